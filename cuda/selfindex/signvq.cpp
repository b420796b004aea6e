#include "cuda/selfindex/signvq.hpp"

#include <algorithm>
#include <utility>

#include "cuda/runtime/device_work.hpp"
#include "cuda/selfindex/signvq.cuh"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::cuda {
namespace {

/// Scores of a call that are held at a time, in bytes: a part of the device's second-level cache would do,
/// and memory is large.
constexpr size_t kScoreBytes = size_t{256} << 20;

}  // namespace

std::vector<SignCodebook> encode_and_build_codebooks(MatrixView<const float> rows, size_t heads,
                                                     MatrixView<uint8_t> codes) {
  if (heads == 0 || rows.cols() % heads != 0)
    throw failed("{} columns are not those of {} heads", rows.cols(), heads);
  const size_t dims = rows.cols() / heads, row_bytes = sign_row_bytes(dims);
  if (codes.rows() != rows.rows() || codes.cols() != heads * row_bytes || !rows.contiguous() ||
      !codes.contiguous())
    throw failed("codes ({}, {}) do not fit rows ({}, {}) of {} heads, or are not contiguous", codes.rows(),
                 codes.cols(), rows.rows(), rows.cols(), heads);
  const size_t pieces = (rows.rows() + kSummedTogether - 1) / kSummedTogether;
  const Stream stream;
  const DeviceBuffer<float> device_rows({rows.data(), rows.rows() * rows.cols()}, stream);
  DeviceBuffer<uint8_t> device_codes(codes.rows() * codes.cols());
  DeviceBuffer<double> sums(heads * pieces * dims * kSignCodes);
  DeviceBuffer<uint32_t> counts(heads * pieces * dims / kSignGroup * kSignCodes);
  DeviceBuffer<float> centroids(heads * dims * kSignCodes);
  const SignShape shape{rows.rows(), heads, dims, row_bytes, rows.cols(), codes.cols()};
  check(run_sign_sums(device_rows.data(), shape, device_codes.data(), sums.data(), counts.data(),
                      stream.handle()),
        "sign codes");
  check(
      run_sign_codebooks(sums.data(), counts.data(), heads, dims, pieces, centroids.data(), stream.handle()),
      "codebooks");
  std::vector<SignCodebook> codebooks;
  for (size_t head = 0; head < heads; ++head) {
    codebooks.push_back({Matrix<float>(dims, kSignCodes)});
    Matrix<float>& own = codebooks.back().centroids;
    centroids.download({own.data(), own.size()}, stream, head * own.size());
  }
  device_codes.download({codes.data(), codes.rows() * codes.cols()}, stream);
  stream.synchronize();
  return codebooks;
}

DeviceSignIndex::DeviceSignIndex(size_t dims, MatrixView<const uint8_t> codes)
    : dims_(dims), row_bytes_(sign_row_bytes(dims)), tokens_(codes.rows()) {
  if (codes.cols() != row_bytes_)
    throw failed("rows of {} bytes are not sign codes of {} dimensions ({} bytes)", codes.cols(), dims_,
                 row_bytes_);
  if (tokens_ > (uint64_t{1} << 32)) throw failed("{} tokens in one index: ids have 32 bits", tokens_);
  const PackedRows packed(codes);
  const Stream stream;
  codes_ = DeviceBuffer<uint8_t>(packed.values(), stream);
  stream.synchronize();
}

/// Tables whose scores have room at a time.
size_t DeviceSignIndex::at_once(size_t tables) const {
  const size_t fit = kScoreBytes / std::max<size_t>(1, tokens_ * sizeof(float));
  return std::min(tables, std::clamp<size_t>(fit, 1, kMaxGridRows));
}

void DeviceSignIndex::run_scores(std::span<const SignTable> tables, float* scores,
                                 const Stream& stream) const {
  const size_t groups = dims_ / kSignGroup;
  std::vector<float> values;
  for (const SignTable& table : tables) {
    if (table.groups() != groups)
      throw failed("a table of {} groups does not fit keys of {} dimensions", table.groups(), dims_);
    values.insert(values.end(), table.exact().begin(), table.exact().end());
  }
  const size_t table_bytes = groups * kSignCodes * sizeof(float), room = limits().shared_bytes;
  if (table_bytes > room)
    throw failed("a table of {} groups takes {} bytes of a block's shared memory, which has {}", groups,
                 table_bytes, room);
  const bool in_pairs = tables.size() > 1 && 2 * table_bytes <= room;
  const std::vector<SignKeys> same(tables.size(), SignKeys{codes_.data(), tokens_});
  const DeviceBuffer<SignKeys> keys(same, stream);
  const DeviceBuffer<float> device_tables(values, stream);
  check(run_sign_scores(keys.data(), tables.size(), tokens_, device_tables.data(), groups, row_bytes_,
                        in_pairs, scores, tokens_, stream.handle()),
        "scores of sign codes");
  stream.synchronize();
}

void DeviceSignIndex::scores(std::span<const SignTable> tables, MatrixView<float> out) const {
  if (out.cols() != tokens_ || out.rows() != tables.size())
    throw failed("scores ({}, {}) do not fit {} tables and {} tokens", out.rows(), out.cols(), tables.size(),
                 tokens_);
  const Stream stream;
  const size_t some = at_once(tables.size());
  DeviceBuffer<float> scores;
  for (size_t first = 0; first < tables.size(); first += some) {
    const size_t count = std::min(some, tables.size() - first);
    scores.resize(checked_mul(count, tokens_));
    run_scores(tables.subspan(first, count), scores.data(), stream);
    download_rows(scores, out.rows(first, count), stream);
  }
}

std::vector<std::vector<Scored>> DeviceSignIndex::top_k(std::span<const SignTable> tables, size_t k,
                                                        Order order) const {
  std::vector<std::vector<Scored>> all(tables.size());
  const size_t width = std::min(k, tokens_), some = at_once(tables.size());
  if (width == 0 || some == 0) return all;
  const Stream stream;
  const std::vector<uint64_t> lengths(some, tokens_);
  const DeviceBuffer<uint64_t> device_lengths(lengths, stream);
  DeviceBuffer<float> scores(checked_mul(some, tokens_)), best(some * width);
  DeviceBuffer<uint32_t> ids(best.size());
  for (size_t first = 0; first < tables.size(); first += some) {
    const size_t count = std::min(some, tables.size() - first);
    run_scores(tables.subspan(first, count), scores.data(), stream);
    check(run_top_k(scores.data(), tokens_, device_lengths.data(), count, width, ids.data(), best.data(),
                    stream.handle()),
          "selection");
    const auto found_ids = downloaded(ids, stream);
    const auto found_scores = downloaded(best, stream);
    for (size_t i = 0; i < count * width; ++i)
      all[first + i / width].push_back({found_scores[i], found_ids[i]});
  }
  if (order == Order::by_score)
    for (std::vector<Scored>& tokens : all) rank(tokens);
  return all;
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

class Index final : public SignIndexEngine {
 public:
  Index(const DeviceWork& device, size_t dims, MatrixView<const uint8_t> codes)
      : device_(device), index_(dims, codes) {}

  /// Copies tables there and their scores back.
  bool scores(std::span<const SignTable> tables, MatrixView<float> out) const override {
    return device_.try_run([&] { index_.scores(tables, out); }) == Outcome::done;
  }

 private:
  const DeviceWork& device_;
  DeviceSignIndex index_;
};

class Signs final : public SignEngine {
 public:
  explicit Signs(const DeviceWork& device) : device_(device) {}

  /// Copies rows there, as many heads at a time as fit, and codebooks back; codes too, which nobody asked
  /// for.
  std::optional<std::vector<SignCodebook>> codebooks(MatrixView<const float> rows,
                                                     size_t heads) const override {
    const size_t dims = heads > 0 ? rows.cols() / heads : 0;
    std::vector<SignCodebook> all;
    const auto run = [&] {
      const size_t at_once =
          DeviceWork::rows_at_once(rows.rows() * (dims * sizeof(float) + sign_row_bytes(dims)));
      for (size_t first = 0; first < heads; first += at_once) {
        const size_t count = std::min(at_once, heads - first);
        Matrix<float> part(rows.rows(), count * dims);
        for (size_t i = 0; i < part.rows(); ++i)
          std::ranges::copy(rows.row(i).subspan(first * dims, count * dims), part.row(i).begin());
        Matrix<uint8_t> codes(rows.rows(), count * sign_row_bytes(dims));
        for (SignCodebook& codebook : encode_and_build_codebooks(part, count, codes))
          all.push_back(std::move(codebook));
      }
    };
    if (device_.try_run(run) == Outcome::declined) return std::nullopt;
    return all;
  }

  /// Copies codes there, where they stay.
  std::unique_ptr<SignIndexEngine> index(size_t dims, MatrixView<const uint8_t> codes) const override {
    return device_.try_make("selfindex", [&] { return std::make_unique<Index>(device_, dims, codes); })
        .value_or(nullptr);
  }

 private:
  const DeviceWork& device_;
};

}  // namespace

void add_signs(Engine& engine, const DeviceWork& device) {
  engine.add<SignEngine>([made = std::make_shared<Signs>(device)] { return made.get(); });
}

}  // namespace kvcodec::cuda
