#include "cuda/selfindex/signvq.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "cuda/runtime/device_work.hpp"
#include "cuda/selfindex/signvq.cuh"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {

/// Scores of a call that are held at a time, in bytes: a part of the device's second-level cache would do,
/// and memory is large.
constexpr size_t kScoreBytes = size_t{256} << 20;

std::vector<SignCodebook> build_codebooks(MatrixView<const float> rows, size_t heads) {
  if (heads == 0 || rows.cols() % heads != 0)
    throw failed("{} columns are not those of {} heads", rows.cols(), heads);
  const size_t dims = rows.cols() / heads;
  (void)sign_row_bytes(dims);  // throws for dims that have no codes
  const Stream stream;
  const DeviceBuffer<float> device_rows = upload_rows(rows, stream);
  SignSums all{.rows = device_rows.data(), .tokens = rows.rows(), .heads = heads, .dims = dims};
  DeviceBuffer<double> sums(heads * all.pieces() * dims * kSignCodes);
  DeviceBuffer<uint32_t> counts(heads * all.pieces() * dims / kSignGroup * kSignCodes);
  DeviceBuffer<float> centroids(heads * dims * kSignCodes);
  all.sums = sums.data(), all.counts = counts.data();
  stream.run("codebooks", run_sign_codebooks, all, centroids.data());
  std::vector<SignCodebook> codebooks;
  for (size_t head = 0; head < heads; ++head) {
    codebooks.push_back({Matrix<float>(dims, kSignCodes)});
    Matrix<float>& own = codebooks.back().centroids;
    centroids.download({own.data(), own.size()}, stream, head * own.size());
  }
  stream.synchronize();
  return codebooks;
}

void DeviceSignIndex::scores(std::span<const SignTable> tables, MatrixView<float> out) const {
  check_shape("scores", out, tables.size(), tokens_);
  const size_t groups = dims_ / kSignGroup;
  const size_t table_bytes = 2 * row_bytes_ * kSignCodes * sizeof(float), room = limits().shared_bytes;
  if (table_bytes > room)
    throw failed("a table of {} groups takes {} bytes of a block's shared memory, which has {}", groups,
                 table_bytes, room);
  // Tables whose scores have room at a time.
  const size_t fit = kScoreBytes / std::max<size_t>(1, tokens_ * sizeof(float));
  const size_t at_once = std::clamp<size_t>(fit, 1, kMaxGridRows);
  const Stream stream;
  DeviceBuffer<float> scores;
  for (size_t first = 0; first < tables.size(); first += at_once) {
    const size_t count = std::min(at_once, tables.size() - first);
    std::vector<float> values;
    for (const SignTable& table : tables.subspan(first, count)) {
      if (table.groups() != groups)
        throw failed("a table of {} groups does not fit keys of {} dimensions", table.groups(), dims_);
      values.insert(values.end(), table.exact().begin(), table.exact().end());
    }
    const std::vector<SignKeys> same(count, SignKeys{codes_.data(), tokens_});
    const DeviceBuffer<SignKeys> keys(same, stream);
    const DeviceBuffer<float> device_tables(values, stream);
    scores.resize(checked_mul(count, tokens_));
    stream.run("scores of sign codes", run_sign_scores,
               SignScores{.keys = keys.data(),
                          .queries = count,
                          .max_tokens = tokens_,
                          .tables = device_tables.data(),
                          .groups = static_cast<unsigned>(groups),
                          .row_bytes = static_cast<unsigned>(row_bytes_),
                          .in_pairs = count > 1 && 2 * table_bytes <= room,
                          .scores = scores.data(),
                          .score_stride = tokens_});
    download_rows(scores, out.rows(first, count), stream);
  }
}

// Parts that an engine provides ----------------------------------------------------------------------

/// Copies rows there, as many heads at a time as fit, and codebooks back.
static std::optional<std::vector<SignCodebook>> codebooks_there(const DeviceWork& device,
                                                                MatrixView<const float> rows, size_t heads) {
  const size_t dims = heads > 0 ? rows.cols() / heads : 0;
  std::vector<SignCodebook> all;
  const auto run = [&] {
    const size_t at_once = DeviceWork::rows_at_once(rows.rows() * dims * sizeof(float));
    for (size_t first = 0; first < heads; first += at_once) {
      const size_t count = std::min(at_once, heads - first);
      std::ranges::move(build_codebooks(rows.columns(first * dims, count * dims), count),
                        std::back_inserter(all));
    }
  };
  if (!device.try_run(run)) return std::nullopt;
  return all;
}

/// Copies codes there, where they stay; then tables, and their scores back.
static SignScorer sign_scorer(const DeviceWork& device, size_t dims, MatrixView<const uint8_t> codes) {
  return [&device, made = std::make_shared<const DeviceSignIndex>(dims, codes)](
             std::span<const SignTable> tables, MatrixView<float> out) {
    return device.try_run([&] { made->scores(tables, out); });
  };
}

void add_signs(const DeviceWork& device) {
  device.engine().add<SignCodebooksOnDevice>(std::bind_front(codebooks_there, std::cref(device)));
  device.offer<SignIndexOnDevice>("selfindex", sign_scorer);
}

}  // namespace kvcodec::cuda
