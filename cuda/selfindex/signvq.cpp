#include "cuda/selfindex/signvq.hpp"

#include <algorithm>
#include <utility>

#include "cuda/runtime/device_work.hpp"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "cuda/selfindex/signvq.cuh"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::cuda {
namespace {

/// A grid has at most so many rows of blocks.
constexpr size_t kMostQueries = kMostGridRows;

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

struct DeviceSignIndex::Impl {
  size_t dims = 0, row_bytes = 0, tokens = 0;
  DeviceBuffer<uint8_t> codes;
};

DeviceSignIndex::DeviceSignIndex(size_t dims) : impl_(std::make_unique<Impl>()) {
  impl_->dims = dims, impl_->row_bytes = sign_row_bytes(dims);
}
DeviceSignIndex::~DeviceSignIndex() = default;
DeviceSignIndex::DeviceSignIndex(DeviceSignIndex&&) noexcept = default;
DeviceSignIndex& DeviceSignIndex::operator=(DeviceSignIndex&&) noexcept = default;

size_t DeviceSignIndex::dims() const { return impl_->dims; }
size_t DeviceSignIndex::tokens() const { return impl_->tokens; }

void DeviceSignIndex::append(MatrixView<const uint8_t> codes) {
  Impl& own = *impl_;
  if (codes.cols() != own.row_bytes)
    throw failed("rows of {} bytes are not sign codes of {} dimensions ({} bytes)", codes.cols(), own.dims,
                 own.row_bytes);
  const size_t total = checked_add(own.tokens, codes.rows());
  if (total > (uint64_t{1} << 32)) throw failed("{} tokens in one index: ids have 32 bits", total);
  const PackedRows packed(codes);
  const Stream stream;
  const size_t bytes = checked_mul(total, own.row_bytes), before = own.tokens * own.row_bytes;
  if (bytes > own.codes.size()) {  // twice as much, so that many small pieces cost no more than one large
    DeviceBuffer<uint8_t> larger(std::max(bytes, 2 * own.codes.size()));
    detail::copy(larger.data(), own.codes.data(), before, stream);
    stream.synchronize();
    own.codes = std::move(larger);
  }
  own.codes.upload(packed.values(), stream, before);
  stream.synchronize();
  own.tokens = total;
}

/// Scores of several queries at a time, on the device.
class SignScores {
 public:
  explicit SignScores(std::span<const SignQuery> queries) : queries_(queries.size()) {
    std::vector<SignKeys> keys;
    std::vector<uint64_t> lengths;
    bool in_pairs = queries.size() > 1;  // as where two heads of queries share a head of keys
    for (const SignQuery& query : queries) {
      const DeviceSignIndex::Impl& index = *query.index->impl_;
      if (query.table->groups() * kSignGroup != index.dims)
        throw failed("a table of {} groups does not fit keys of {} dimensions", query.table->groups(),
                     index.dims);
      if (index.dims != queries[0].index->dims())
        throw failed("keys of {} and {} dimensions in one call", queries[0].index->dims(), index.dims);
      keys.push_back({index.codes.data(), index.tokens});
      lengths.push_back(index.tokens);
      most_tokens_ = std::max(most_tokens_, index.tokens);
      if (keys.size() % 2 == 0) in_pairs &= keys[keys.size() - 2].codes == keys.back().codes;
      tables_on_host_.insert(tables_on_host_.end(), query.table->exact().begin(), query.table->exact().end());
    }
    const size_t groups = queries[0].table->groups(), row_bytes = queries[0].index->impl_->row_bytes;
    const size_t table_bytes = groups * kSignCodes * sizeof(float), room = limits().shared_bytes;
    if (table_bytes > room)
      throw failed("a table of {} groups takes {} bytes of a block's shared memory, which has {}", groups,
                   table_bytes, room);
    in_pairs &= 2 * table_bytes <= room;
    keys_ = DeviceBuffer<SignKeys>(keys, stream_);
    lengths_ = DeviceBuffer<uint64_t>(lengths, stream_);
    tables_ = DeviceBuffer<float>(tables_on_host_, stream_);
    scores_.resize(checked_mul(queries_, most_tokens_));
    check(run_sign_scores(keys_.data(), queries_, most_tokens_, tables_.data(), groups, row_bytes, in_pairs,
                          scores_.data(), most_tokens_, stream_.handle()),
          "scores of sign codes");
    stream_.synchronize();
  }

  void get(std::span<float> out) const {
    scores_.download(out, stream_);
    stream_.synchronize();
  }

  /// Of each query, by rising id.
  std::vector<std::vector<Scored>> top(size_t k) {
    const size_t width = std::min(k, most_tokens_);
    DeviceBuffer<uint32_t> ids(checked_mul(queries_, width));
    DeviceBuffer<float> best(ids.size());
    check(run_top_k(scores_.data(), most_tokens_, lengths_.data(), width > 0 ? queries_ : 0, width,
                    ids.data(), best.data(), stream_.handle()),
          "selection");
    std::vector<uint32_t> host_ids(ids.size());
    std::vector<float> host_best(ids.size());
    std::vector<uint64_t> lengths(queries_);
    ids.download(host_ids, stream_);
    best.download(host_best, stream_);
    lengths_.download(lengths, stream_);
    stream_.synchronize();
    std::vector<std::vector<Scored>> all(queries_);
    for (size_t q = 0; q < queries_; ++q)
      for (size_t i = 0; i < std::min<size_t>(width, lengths[q]); ++i)
        all[q].push_back({host_best[q * width + i], host_ids[q * width + i]});
    return all;
  }

 private:
  size_t queries_, most_tokens_ = 0;
  std::vector<float> tables_on_host_;
  Stream stream_;
  DeviceBuffer<SignKeys> keys_;
  DeviceBuffer<uint64_t> lengths_;
  DeviceBuffer<float> tables_, scores_;
};

void DeviceSignIndex::scores(const SignTable& table, std::span<float> out) const {
  if (out.size() != tokens()) throw failed("{} scores do not fit {} tokens", out.size(), tokens());
  const SignQuery query{this, &table};
  SignScores({&query, 1}).get(out);
}

std::vector<Scored> DeviceSignIndex::top_k(const SignTable& table, size_t k, Order order) const {
  const SignQuery query{this, &table};
  return std::move(cuda::top_k({&query, 1}, k, order)[0]);
}

std::vector<std::vector<Scored>> top_k(std::span<const SignQuery> queries, size_t k, Order order) {
  std::vector<std::vector<Scored>> all;
  while (all.size() < queries.size()) {  // as many at a time as their scores have room
    size_t count = 0, most = 1;
    for (const SignQuery& query : queries.subspan(all.size())) {
      most = std::max(most, query.index->tokens());
      if (count > 0 && ((count + 1) * most * sizeof(float) > kScoreBytes || count == kMostQueries)) break;
      ++count;
    }
    for (auto& best : SignScores(queries.subspan(all.size(), count)).top(k)) {
      if (order == Order::by_score) rank(best);
      all.push_back(std::move(best));
    }
  }
  return all;
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

class Index final : public SignIndexEngine {
 public:
  Index(const DeviceWork& device, DeviceSignIndex index) : device_(device), index_(std::move(index)) {}

  /// Copies a table there and its scores back.
  bool scores(std::span<const SignTable> tables, MatrixView<float> out) const override {
    const auto run = [&] {
      for (size_t i = 0; i < tables.size(); ++i) index_.scores(tables[i], out.row(i));
    };
    return device_.try_run(run) == Outcome::done;
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
    auto made = device_.try_make("selfindex", [&] {
      DeviceSignIndex index(dims);
      index.append(codes);
      return index;
    });
    if (!made) return nullptr;
    return std::make_unique<Index>(device_, std::move(*made));
  }

 private:
  const DeviceWork& device_;
};

}  // namespace

void add_signs(Engine& engine, const DeviceWork& device) {
  engine.add<SignEngine>([made = std::make_shared<Signs>(device)] { return made.get(); });
}

}  // namespace kvcodec::cuda
