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
  using namespace attention_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
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
  explicit Fetched(const RowSource& rows)
      : rows_(rows), in_memory_(rows.in_memory()), coded_(coded_rows(rows)) {
    if (in_memory_ || coded_) return;
    copies_.resize(2 * kBlock * rows.dims());
    const MatrixView<float> all(copies_.data(), 2 * kBlock, rows.dims());
    keys_of_block_ = all.rows(0, kBlock), values_of_block_ = all.rows(kBlock, kBlock);
  }

  /// The coded rows of a source that are computed with as they are: the kernels know whole groups only.
  static std::optional<TwoBitCache> coded_rows(const RowSource& rows) {
    return rows.dims() % kTwoBitGroup == 0 ? rows.in_two_bits() : std::nullopt;
  }

  /// ids: tokens there are, at most kBlock of them.
  void fetch(std::span<const uint32_t> ids) {
    if (in_memory_) {
      for (size_t i = 0; i < ids.size(); ++i) {
        keys[i] = in_memory_->keys + ids[i] * in_memory_->key_stride_bytes;
        values[i] = in_memory_->values + ids[i] * in_memory_->value_stride_bytes;
      }
    } else if (coded_) {
      for (size_t i = 0; i < ids.size(); ++i) {
        keys_coded_[i] = coded_row(coded_->keys, ids[i], coded_->signs.row(ids[i]).data());
        values_coded_[i] = coded_row(coded_->values, ids[i], nullptr);
        keys[i] = &keys_coded_[i], values[i] = &values_coded_[i];
      }
    } else {
      rows_.gather(ids, keys_of_block_.rows(0, ids.size()), values_of_block_.rows(0, ids.size()));
      for (size_t i = 0; i < ids.size(); ++i)
        keys[i] = keys_of_block_.row(i).data(), values[i] = values_of_block_.row(i).data();
    }
  }

  attention_kernels::RowType key_type() const {
    return coded_ ? attention_kernels::kSignedTwoBit : row_type(in_memory_ ? in_memory_->type : DType::f32);
  }
  attention_kernels::RowType value_type() const { return coded_ ? attention_kernels::kTwoBit : key_type(); }

  const void* keys[kBlock];
  const void* values[kBlock];

 private:
  static attention_kernels::CodedRow coded_row(const ConstTwoBitRows& rows, size_t row,
                                               const uint8_t* signs) {
    return {rows.levels.row(row).data(), rows.scales.row(row).data(), rows.zeros.row(row).data(), signs};
  }

  const RowSource& rows_;
  std::optional<RowsInMemory> in_memory_;
  std::optional<TwoBitCache> coded_;
  attention_kernels::CodedRow keys_coded_[kBlock], values_coded_[kBlock];
  AlignedVector<float> copies_;
  MatrixView<float> keys_of_block_, values_of_block_;
};

/// Queries as the rows of a source want them. Keys that are center +- alpha * magnitude are not multiplied by
/// alpha one by one: the query is, and its product with the centre is added to the logits.
struct QueriesFor {
  AlignedVector<float> rows;
  std::vector<float> shifts;  // one per query; empty: none

  QueriesFor(MatrixView<const float> queries, const RowSource& source, float scale)
      : rows(padded_rows(queries, scale)) {
    const auto coded = Fetched::coded_rows(source);
    if (!coded) return;
    const size_t stride = round_up(queries.cols(), kLanes);
    shifts.resize(queries.rows());
    for (size_t q = 0; q < queries.rows(); ++q) {
      double product = 0;
      for (size_t j = 0; j < queries.cols(); ++j) {
        product += double{rows[q * stride + j]} * double{coded->center[j]};
        rows[q * stride + j] *= coded->alpha[j];
      }
      shifts[q] = static_cast<float>(product);
    }
  }
};

/// logits[q * stride + t] = query q . key t of a block that was fetched.
void logits_of(const QueriesFor& queries, const Fetched& rows, size_t tokens, size_t count, size_t dims,
               float* logits, size_t stride) {
  kernels().dots[rows.key_type()](rows.keys, tokens, queries.rows.data(), count, dims, logits, stride);
  for (size_t q = 0; q < queries.shifts.size(); ++q)
    for (size_t t = 0; t < tokens; ++t) logits[q * stride + t] += queries.shifts[q];
}

/// What a stretch of tokens gives: sums (queries, padded dims) weighted by exp(logit - max).
struct Partial {
  size_t part, first, end;  // tokens [first, end) of a part
  std::vector<SoftmaxState> states;
  AlignedVector<float> sums;
};

/// One head's work.
class HeadAttention {
 public:
  explicit HeadAttention(const Attention& head)
      : head_(head), count_(head.queries.rows()), dims_(head.queries.cols()) {
    if (head.out.cols() != dims_ || head.out.rows() != count_)
      throw failed("queries ({}, {}) and their results ({}, {}) differ in shape", count_, dims_,
                   head.out.rows(), head.out.cols());
    const float factor =
        head.scale != 0 ? head.scale : 1 / std::sqrt(static_cast<float>(std::max<size_t>(dims_, 1)));
    for (size_t part = 0; part < head.parts.size(); ++part) {
      const RowSource& rows = *head.parts[part].rows;
      if (rows.dims() != dims_) throw failed("queries of {} dimensions for rows of {}", dims_, rows.dims());
      for (const uint32_t token : head.parts[part].tokens.value_or(std::span<const uint32_t>()))
        if (token >= rows.tokens()) throw failed("token {} of {}", token, rows.tokens());
      queries_.emplace_back(head.queries, rows, factor);
      const size_t size = head.parts[part].size();
      for (size_t first = 0; first < size; first += kStretch)
        partials_.push_back({part, first, std::min(first + kStretch, size), {}, {}});
    }
  }

  size_t stretches() const { return partials_.size(); }

  void run(size_t stretch) {
    Partial& partial = partials_[stretch];
    const size_t stride = padded_dims();
    const AttentionPart& part = head_.parts[partial.part];
    partial.states.resize(count_);
    partial.sums.resize(count_ * stride);
    AlignedVector<float> weights(count_ * kBlock);
    Fetched rows(*part.rows);
    for (size_t first = partial.first; first < partial.end; first += kBlock) {
      const size_t tokens = std::min(kBlock, partial.end - first);
      uint32_t consecutive[kBlock];
      rows.fetch(ids_of(part, first, tokens, consecutive));
      logits_of(queries_[partial.part], rows, tokens, count_, dims_, weights.data(), kBlock);
      for (size_t q = 0; q < count_; ++q) {
        const auto scores = std::span(weights).subspan(q * kBlock, round_up(tokens, kLanes));
        std::fill(scores.begin() + static_cast<std::ptrdiff_t>(tokens), scores.end(),
                  -std::numeric_limits<float>::infinity());
        const float factor = softmax_block(scores, partial.states[q]);
        if (factor != 1) scale(std::span(partial.sums).subspan(q * stride, stride), factor);
      }
      kernels().sums[rows.value_type()](rows.values, tokens, weights.data(), kBlock, count_, dims_,
                                        partial.sums.data());
    }
  }

  void join() const {
    const size_t stride = padded_dims();
    std::vector<float> total(stride);
    for (size_t q = 0; q < count_; ++q) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (const Partial& partial : partials_) max = std::max(max, partial.states[q].max);
      std::fill(total.begin(), total.end(), 0.0f);
      for (const Partial& partial : partials_) {
        float factor = partial.states[q].max - max;
        exp_nonpositive({&factor, 1});
        sum += factor * partial.states[q].sum;
        for (size_t j = 0; j < stride; ++j) total[j] += factor * partial.sums[q * stride + j];
      }
      for (size_t j = 0; j < dims_; ++j) head_.out(q, j) = sum > 0 ? total[j] / sum : 0.0f;
    }
  }

 private:
  size_t padded_dims() const { return round_up(dims_, kLanes); }

  static std::span<const uint32_t> ids_of(const AttentionPart& part, size_t first, size_t count,
                                          uint32_t* consecutive) {
    if (part.tokens) return part.tokens->subspan(first, count);
    for (size_t i = 0; i < count; ++i) consecutive[i] = static_cast<uint32_t>(first + i);
    return {consecutive, count};
  }

  const Attention& head_;
  size_t count_, dims_;
  std::vector<QueriesFor> queries_;  // [part]
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

namespace {

/// id_of: the token of each column of out.
template <class IdOf>
void dot_products_of(MatrixView<const float> queries, const RowSource& rows, MatrixView<float> out,
                     const IdOf& id_of) {
  if (queries.cols() != rows.dims() || out.rows() != queries.rows())
    throw failed("queries ({}, {}) and products ({}, {}) do not fit {} rows of {} dimensions", queries.rows(),
                 queries.cols(), out.rows(), out.cols(), rows.tokens(), rows.dims());
  const QueriesFor wanted(queries, rows, 1);
  parallel_for(out.cols(), kStretch, [&](size_t begin, size_t end, int) {
    Fetched fetched(rows);
    for (size_t first = begin; first < end; first += kBlock) {
      const size_t count = std::min(kBlock, end - first);
      uint32_t ids[kBlock];
      for (size_t i = 0; i < count; ++i) ids[i] = id_of(first + i);
      fetched.fetch({ids, count});
      logits_of(wanted, fetched, count, queries.rows(), rows.dims(), out.data() + first, out.stride());
    }
  });
}

}  // namespace

void dot_products(MatrixView<const float> queries, const RowSource& rows, MatrixView<float> out) {
  if (out.cols() != rows.tokens()) throw failed("{} products for {} tokens", out.cols(), rows.tokens());
  dot_products_of(queries, rows, out, [](size_t column) { return static_cast<uint32_t>(column); });
}

void dot_products(MatrixView<const float> queries, const RowSource& rows, std::span<const uint32_t> tokens,
                  MatrixView<float> out) {
  if (out.cols() != tokens.size()) throw failed("{} products for {} tokens", out.cols(), tokens.size());
  if (std::ranges::any_of(tokens, [&](uint32_t token) { return token >= rows.tokens(); }))
    throw failed("products with tokens beyond the {} there are", rows.tokens());
  dot_products_of(queries, rows, out, [&](size_t column) { return tokens[column]; });
}

}  // namespace kvcodec
