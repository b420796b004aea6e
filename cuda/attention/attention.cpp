#include "cuda/attention/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "cuda/runtime/device_work.hpp"
#include "lib/attention/attention.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {

namespace {

template <class T>
DeviceBuffer<uint8_t> packed(MatrixView<const T> rows, const Stream& stream) {
  const PackedRows all(rows);
  const auto* bytes = reinterpret_cast<const uint8_t*>(all.values().data());
  DeviceBuffer<uint8_t> buffer({bytes, all.values().size_bytes()}, stream);
  stream.synchronize();  // `all` ends here
  return buffer;
}

void check_dims(size_t dims) {
  if (dims == 0 || dims > kMaxDims)
    throw failed("heads of {} dimensions; attention on a device takes 1 to {}", dims, kMaxDims);
}

}  // namespace

template <class T>
DeviceRows::DeviceRows(RowKind kind, MatrixView<const T> keys, MatrixView<const T> values)
    : kind_(kind), tokens_(keys.rows()), dims_(keys.cols()) {
  if (keys.rows() != values.rows() || keys.cols() != values.cols())
    throw failed("keys ({}, {}) and values ({}, {}) differ in shape", keys.rows(), keys.cols(), values.rows(),
                 values.cols());
  check_dims(dims_);
  const Stream stream;
  keys_ = packed(keys, stream), values_ = packed(values, stream);
}

DeviceRows::DeviceRows(MatrixView<const float> keys, MatrixView<const float> values)
    : DeviceRows(RowKind::f32, keys, values) {}
DeviceRows::DeviceRows(DType type, MatrixView<const uint16_t> keys, MatrixView<const uint16_t> values)
    : DeviceRows(type == DType::f16 ? RowKind::f16 : RowKind::bf16, keys, values) {
  if (type != DType::f16 && type != DType::bf16) throw failed("rows of 16 bits are f16 or bf16");
}

namespace {

/// Launches of a call differ in kind of rows only: all queries of one group stand one behind the other,
/// filled up to `each` with zeros, and a group's results are joined from items of all kinds.
class Work {
 public:
  explicit Work(std::span<const Attention> heads) : heads_(heads) {
    size_t most = 1;
    for (const Attention& head : heads) {
      check_head(head);
      most = std::max(most, head.queries.rows());
    }
    while (each_ < most && each_ < kMaxQueries) each_ *= 2;
    for (const Attention& head : heads)
      for (size_t first = 0; first < head.queries.rows(); first += each_) add_group(head, first);
  }

  void run() {
    if (results_.empty()) return;
    const DeviceBuffer<uint32_t> ids(ids_, stream_);
    for (size_t i = 0; i < items_.size(); ++i)
      if (listed_[i]) items_[i].ids = ids.data();
    const DeviceBuffer<float> queries(queries_, stream_), shifts(shifts_, stream_);
    DeviceBuffer<float> states(items_.size() * each_ * 2), sums(checked_mul(items_.size() * each_, dims_));
    const DeviceBuffer<AttentionItem> items(items_, stream_);
    for (size_t first = 0; first < items_.size();) {  // stretches of one kind
      size_t end = first + 1;
      while (end < items_.size() && kinds_[end] == kinds_[first]) ++end;
      check(run_attention_items(kinds_[first], items.data() + first, end - first, each_, dims_,
                                queries.data(), shifts.data(), states.data() + first * each_ * 2,
                                sums.data() + first * each_ * dims_, stream_.handle()),
            "attention");
      first = end;
    }
    const DeviceBuffer<AttentionResult> results(results_, stream_);
    DeviceBuffer<float> out(results_.size() * dims_);
    check(run_attention_join(results.data(), results_.size(), each_, dims_, states.data(), sums.data(),
                             out.data(), stream_.handle()),
          "joining attention");
    std::vector<float> host(out.size());
    out.download(host, stream_);
    stream_.synchronize();
    for (size_t r = 0; r < results_.size(); ++r)
      std::copy_n(host.begin() + static_cast<std::ptrdiff_t>(r * dims_), dims_, rows_out_[r]);
  }

 private:
  void check_head(const Attention& head) {
    const size_t dims = head.queries.cols();
    if (head.out.cols() != dims || head.out.rows() != head.queries.rows())
      throw failed("queries ({}, {}) and their results ({}, {}) differ in shape", head.queries.rows(), dims,
                   head.out.rows(), head.out.cols());
    check_dims(dims);
    if (dims_ != 0 && dims_ != dims) throw failed("heads of {} and {} dimensions in one call", dims_, dims);
    dims_ = static_cast<unsigned>(dims);
    for (const auto& [rows, tokens, visible] : head.parts) {
      if (rows->dims() != dims) throw failed("queries of {} dimensions for rows of {}", dims, rows->dims());
      for (const uint32_t token : tokens.value_or(std::span<const uint32_t>()))
        if (token >= rows->tokens()) throw failed("token {} of {}", token, rows->tokens());
    }
  }

  void add_group(const Attention& head, size_t first_query) {
    const float factor = head.scale != 0 ? head.scale : 1 / std::sqrt(static_cast<float>(dims_));
    const size_t count = std::min<size_t>(each_, head.queries.rows() - first_query);
    const auto first_item = static_cast<uint32_t>(items_.size());
    for (const auto& [rows, tokens, visible] : head.parts) {
      const auto query = static_cast<uint32_t>(shifts_.size());
      add_queries(head.queries.rows(first_query, count), factor);
      const size_t offset = ids_.size(),
                   all = tokens ? tokens->size()
                                : static_cast<size_t>(std::min<uint64_t>(visible, rows->tokens()));
      if (tokens) ids_.insert(ids_.end(), tokens->begin(), tokens->end());
      if (offset + all > UINT32_MAX) throw failed("{} tokens in one call; places have 32 bits", offset + all);
      for (size_t first = 0; first < all; first += kSplitTokens) {
        items_.push_back({rows->pointers(), nullptr, static_cast<uint32_t>(first + (tokens ? offset : 0)),
                          static_cast<uint32_t>(std::min<size_t>(kSplitTokens, all - first)), query});
        listed_.push_back(tokens.has_value());
        kinds_.push_back(rows->kind());
      }
    }
    for (uint32_t q = 0; q < count; ++q) {
      results_.push_back({first_item, static_cast<uint32_t>(items_.size()), q});
      rows_out_.push_back(head.out.row(first_query + q).data());
    }
  }

  void add_queries(MatrixView<const float> queries, float factor) {
    for (size_t q = 0; q < each_; ++q) {
      for (size_t j = 0; j < dims_; ++j) queries_.push_back(q < queries.rows() ? queries(q, j) * factor : 0);
      shifts_.push_back(0);
    }
  }

  std::span<const Attention> heads_;
  unsigned each_ = 1, dims_ = 0;
  std::vector<AttentionItem> items_;
  std::vector<bool> listed_;
  std::vector<RowKind> kinds_;
  std::vector<AttentionResult> results_;
  std::vector<float*> rows_out_;
  std::vector<uint32_t> ids_;
  std::vector<float> queries_, shifts_;
  Stream stream_;
};

}  // namespace

uint64_t attention_scratch_bytes(size_t queries, uint64_t tokens, size_t dims) {
  const uint64_t padded = std::bit_ceil(queries), groups = round_up(padded, kMaxQueries) / kMaxQueries;
  const uint64_t items = round_up(tokens, uint64_t{kSplitTokens}) / kSplitTokens * padded;
  return items * (sizeof(AttentionItem) + (dims + 2) * sizeof(float)) + padded * dims * 2 * sizeof(float) +
         groups * tokens * sizeof(uint32_t);  // each group has a list of its own, if there is one
}

void attend(std::span<const Attention> heads) { Work(heads).run(); }

// What an engine hands out ------------------------------------------------------------------------

namespace {

class Attending final : public AttentionEngine {
 public:
  explicit Attending(const DeviceWork& device) : device_(device) {}

  /// Copies the rows of as many heads as fit there, each once, with queries and lists of tokens, and results
  /// back.
  bool attend(std::span<const kvcodec::Attention> heads) const override {
    for (const kvcodec::Attention& head : heads) {
      if (head.queries.cols() > kMaxDims) {
        device_.fall_back(
            fmt::format("attention of heads of {} dimensions (more than {})", head.queries.cols(), kMaxDims));
        return false;
      }
    }
    // Heads that share rows one after the other, so that each piece holds what it needs once.
    std::vector<size_t> order(heads.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto rows_of = [&](size_t i) { return heads[i].rows; };
    std::ranges::stable_sort(order, std::less<const CacheRows*>(), rows_of);
    const auto run = [&] {
      const uint64_t room = free_bytes() / 2;
      for (size_t first = 0; first < order.size();) {
        std::map<const CacheRows*, DeviceRows> rows;
        std::vector<Attention> part;
        uint64_t bytes = 0;
        size_t next = first;
        for (; next < order.size(); ++next) {
          const kvcodec::Attention& head = heads[order[next]];
          uint64_t more = attention_scratch_bytes(head.queries.rows(), head.size(), head.rows->dims());
          if (!rows.contains(head.rows))
            more += uint64_t{head.rows->tokens()} * head.rows->dims() * 2 * sizeof(float);
          if (next > first && bytes + more > room) break;
          bytes += more;
          const auto place = rows.try_emplace(head.rows, head.rows->keys, head.rows->values).first;
          part.push_back({.queries = head.queries,
                          .parts = {{.rows = &place->second, .tokens = head.tokens, .visible = head.visible}},
                          .out = head.out});
        }
        cuda::attend(part);
        first = next;
      }
    };
    return device_.try_run(run, DeviceWork::Bits::rounded) == Outcome::done;
  }

 private:
  const DeviceWork& device_;
};

}  // namespace

void add_attention(Engine& engine, const DeviceWork& device) {
  engine.add<AttentionEngine>([made = std::make_shared<Attending>(device)] { return made.get(); });
}

}  // namespace kvcodec::cuda
