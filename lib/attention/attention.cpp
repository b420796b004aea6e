#include "lib/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/attention/attention_kernels.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

using attention_kernels::kLanes;

/// Tokens whose sums are kept apart until the end. Enough to be worth a thread's while, and few enough for
/// 7.5% of a long context to occupy several.
constexpr size_t kStretch = 512;

/// Tokens of one step of the on-line softmax: 64 rows of keys and values in float are 64 KiB at d = 128,
/// a quarter of that in 16 bits.
constexpr size_t kBlock = 64;
static_assert(kBlock % kLanes == 0 && kStretch % kBlock == 0);

const attention_kernels::Table& kernels() {
  switch (simd_level()) {
    case SimdLevel::avx512:
      return attention_kernels::avx512::table();
    case SimdLevel::avx2:
      return attention_kernels::avx2::table();
    case SimdLevel::scalar:
      break;
  }
  return attention_kernels::scalar::table();
}

attention_kernels::RowType row_type(DType type) {
  return type == DType::f32   ? attention_kernels::kF32
         : type == DType::f16 ? attention_kernels::kF16
                              : attention_kernels::kBf16;
}

/// Rows of zeros behind dims, times a factor.
AlignedVector<float> padded_rows(MatrixView<const float> rows, float factor) {
  const size_t stride = round_up(rows.cols(), kLanes);
  AlignedVector<float> out(rows.rows() * stride);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t j = 0; j < rows.cols(); ++j) out[i * stride + j] = rows(i, j) * factor;
  return out;
}

/// Pointers to the rows of some tokens: where they lie, or to copies in floats.
class Fetched {
 public:
  explicit Fetched(const RowSource& rows) : rows_(rows), in_memory_(rows.in_memory()) {
    if (in_memory_) return;
    copies_.resize(2 * kBlock * rows.dims());
    const MatrixView<float> all(copies_.data(), 2 * kBlock, rows.dims());
    keys_of_block_ = all.rows(0, kBlock), values_of_block_ = all.rows(kBlock, kBlock);
  }

  /// ids: tokens there are, at most kBlock of them.
  void fetch(std::span<const uint32_t> ids) {
    if (in_memory_) {
      for (size_t i = 0; i < ids.size(); ++i) {
        keys[i] = in_memory_->keys + ids[i] * in_memory_->key_stride_bytes;
        values[i] = in_memory_->values + ids[i] * in_memory_->value_stride_bytes;
      }
      return;
    }
    rows_.gather(ids, keys_of_block_.rows(0, ids.size()), values_of_block_.rows(0, ids.size()));
    for (size_t i = 0; i < ids.size(); ++i)
      keys[i] = keys_of_block_.row(i).data(), values[i] = values_of_block_.row(i).data();
  }

  attention_kernels::RowType type() const { return row_type(in_memory_ ? in_memory_->type : DType::f32); }

  const void* keys[kBlock];
  const void* values[kBlock];

 private:
  const RowSource& rows_;
  std::optional<RowsInMemory> in_memory_;
  AlignedVector<float> copies_;
  MatrixView<float> keys_of_block_, values_of_block_;
};

/// What a stretch of tokens gives: sums (queries, padded dims) weighted by exp(logit - max).
struct Partial {
  std::vector<SoftmaxState> states;
  AlignedVector<float> sums;
};

/// One head's work.
class HeadAttention {
 public:
  explicit HeadAttention(const Attention& head) : head_(head) {
    const size_t dims = head.rows->dims(), count = head.queries.rows();
    if (head.queries.cols() != dims || head.out.cols() != dims || head.out.rows() != count)
      throw failed("queries ({}, {}) and their results ({}, {}) do not fit rows of {} dimensions", count,
                   head.queries.cols(), head.out.rows(), head.out.cols(), dims);
    for (const uint32_t token : head.tokens.value_or(std::span<const uint32_t>()))
      if (token >= head.rows->tokens()) throw failed("token {} of {}", token, head.rows->tokens());
    const float scale =
        head.scale != 0 ? head.scale : 1 / std::sqrt(static_cast<float>(std::max<size_t>(dims, 1)));
    queries_ = padded_rows(head.queries, scale);
    partials_.resize((size() + kStretch - 1) / kStretch);
  }

  size_t stretches() const { return partials_.size(); }

  void run(size_t stretch) {
    const size_t count = head_.queries.rows(), stride = padded_dims();
    const attention_kernels::Table& table = kernels();
    Partial& partial = partials_[stretch];
    partial.states.resize(count);
    partial.sums.resize(count * stride);
    AlignedVector<float> weights(count * kBlock);
    Fetched rows(*head_.rows);
    const auto type = rows.type();
    const size_t end = std::min((stretch + 1) * kStretch, size());
    for (size_t first = stretch * kStretch; first < end; first += kBlock) {
      const size_t tokens = std::min(kBlock, end - first);
      uint32_t all[kBlock];
      rows.fetch(ids_of(first, tokens, all));
      table.dots[type](rows.keys, tokens, queries_.data(), count, head_.rows->dims(), weights.data(), kBlock);
      for (size_t q = 0; q < count; ++q) {
        const auto scores = std::span(weights).subspan(q * kBlock, round_up(tokens, kLanes));
        std::fill(scores.begin() + static_cast<std::ptrdiff_t>(tokens), scores.end(),
                  -std::numeric_limits<float>::infinity());
        const float factor = softmax_block(scores, partial.states[q]);
        if (factor != 1) scale(std::span(partial.sums).subspan(q * stride, stride), factor);
      }
      table.sums[type](rows.values, tokens, weights.data(), kBlock, count, head_.rows->dims(),
                       partial.sums.data());
    }
  }

  void join() const {
    const size_t stride = padded_dims();
    std::vector<float> total(stride);
    for (size_t q = 0; q < head_.queries.rows(); ++q) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (const Partial& partial : partials_) max = std::max(max, partial.states[q].max);
      std::fill(total.begin(), total.end(), 0.0f);
      for (const Partial& partial : partials_) {
        float factor = partial.states[q].max - max;
        exp_nonpositive({&factor, 1});
        sum += factor * partial.states[q].sum;
        for (size_t j = 0; j < stride; ++j) total[j] += factor * partial.sums[q * stride + j];
      }
      for (size_t j = 0; j < head_.out.cols(); ++j) head_.out(q, j) = sum > 0 ? total[j] / sum : 0.0f;
    }
  }

 private:
  size_t size() const { return head_.tokens ? head_.tokens->size() : head_.rows->tokens(); }
  size_t padded_dims() const { return round_up(head_.rows->dims(), kLanes); }

  std::span<const uint32_t> ids_of(size_t first, size_t count, uint32_t* all) const {
    if (head_.tokens) return head_.tokens->subspan(first, count);
    for (size_t i = 0; i < count; ++i) all[i] = static_cast<uint32_t>(first + i);
    return {all, count};
  }

  const Attention& head_;
  AlignedVector<float> queries_;
  std::vector<Partial> partials_;
};

}  // namespace

void attend(std::span<const Attention> heads) {
  std::vector<HeadAttention> work;
  work.reserve(heads.size());
  struct Piece {
    size_t head, stretch;
  };
  std::vector<Piece> pieces;
  for (const Attention& head : heads) {
    work.emplace_back(head);
    for (size_t stretch = 0; stretch < work.back().stretches(); ++stretch)
      pieces.push_back({work.size() - 1, stretch});
  }
  parallel_for(pieces.size(), 1, [&](size_t i, size_t, int) { work[pieces[i].head].run(pieces[i].stretch); });
  for (const HeadAttention& head : work) head.join();
}

void dot_products(MatrixView<const float> queries, const RowSource& rows, MatrixView<float> out) {
  if (queries.cols() != rows.dims() || out.rows() != queries.rows() || out.cols() != rows.tokens())
    throw failed("queries ({}, {}) and products ({}, {}) do not fit {} rows of {} dimensions", queries.rows(),
                 queries.cols(), out.rows(), out.cols(), rows.tokens(), rows.dims());
  const AlignedVector<float> padded = padded_rows(queries, 1);
  parallel_for(rows.tokens(), kStretch, [&](size_t begin, size_t end, int) {
    Fetched fetched(rows);
    for (size_t first = begin; first < end; first += kBlock) {
      const size_t count = std::min(kBlock, end - first);
      uint32_t ids[kBlock];
      for (size_t i = 0; i < count; ++i) ids[i] = static_cast<uint32_t>(first + i);
      fetched.fetch({ids, count});
      kernels().dots[fetched.type()](fetched.keys, count, padded.data(), queries.rows(), rows.dims(),
                                     out.data() + first, out.stride());
    }
  });
}

}  // namespace kvcodec
