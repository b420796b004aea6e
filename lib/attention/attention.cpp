#include "lib/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/attention/attention_kernels.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

// The scalar reference of attention_kernels.hpp

namespace attention_kernels {
static size_t padded(size_t dims) { return round_up(dims, size_t{kLanes}); }

static void dots(const Rows& rows, const float* queries, size_t count, float* out, size_t out_stride) {
  const size_t stride = padded(rows.dims);
  for (size_t q = 0; q < count; ++q)
    for (size_t t = 0; t < rows.n; ++t) {
      float lanes[kLanes] = {};
      for (size_t j = 0; j < stride; ++j) {
        const float value = j < rows.dims ? rows.rows[t][j] : 0;
        lanes[j % kLanes] = std::fma(value, queries[q * stride + j], lanes[j % kLanes]);
      }
      for (size_t width = kLanes / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
      out[q * out_stride + t] = lanes[0];
    }
}

static void sums(const Rows& rows, const float* weights, size_t weight_stride, size_t count, float* sums) {
  const size_t stride = padded(rows.dims);
  for (size_t q = 0; q < count; ++q)
    for (size_t t = 0; t < rows.n; ++t)
      for (size_t j = 0; j < rows.dims; ++j)
        sums[q * stride + j] =
            std::fma(rows.rows[t][j], weights[q * weight_stride + t], sums[q * stride + j]);
}

const Table& scalar::table() {
  static constexpr Table kTable = {dots, sums};
  return kTable;
}

}  // namespace attention_kernels

namespace {

using attention_kernels::kLanes;

/// Tokens whose sums are kept apart until the end. Enough to be worth a thread's while, and few enough for
/// 7.5% of a long context to occupy several.
constexpr size_t kStretch = 512;

/// Tokens of one step of the on-line softmax: 64 rows of keys and values are 64 KiB at d = 128.
constexpr size_t kBlock = 64;
static_assert(kBlock % kLanes == 0 && kStretch % kBlock == 0);

const attention_kernels::Table& kernels() {
  using namespace attention_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
}

/// Rows times a factor, with zeros behind dims.
AlignedVector<float> padded_rows(MatrixView<const float> rows, float factor) {
  const size_t stride = round_up(rows.cols(), kLanes);
  AlignedVector<float> out(rows.rows() * stride);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t j = 0; j < rows.cols(); ++j) out[i * stride + j] = rows(i, j) * factor;
  return out;
}

/// The result of a stretch of tokens: sums (queries, padded dims) weighted by exp(logit - max).
struct Partial {
  size_t first, end;  // of the tokens attended to
  std::vector<SoftmaxState> states;
  AlignedVector<float> sums;
};

/// One head's work.
class HeadAttention {
 public:
  explicit HeadAttention(const Attention& head)
      : head_(head),
        count_(head.queries.rows()),
        dims_(head.queries.cols()),
        value_dims_(head.rows->value_dims()),
        stride_(round_up(value_dims_, kLanes)),
        queries_(padded_rows(head.queries, 1 / std::sqrt(static_cast<float>(std::max<size_t>(dims_, 1))))) {
    if (head.out.cols() != value_dims_ || head.out.rows() != count_)
      throw failed("{} queries of values of {} dimensions do not have results ({}, {})", count_, value_dims_,
                   head.out.rows(), head.out.cols());
    if (!head.form.sinks.empty() && head.form.sinks.size() != count_)
      throw failed("{} scores of sinks for {} queries", head.form.sinks.size(), count_);
    if (head.rows->dims() != dims_)
      throw failed("queries of {} dimensions for rows of {}", dims_, head.rows->dims());
    for (const uint32_t token : head.tokens.value_or(std::span<const uint32_t>()))
      if (token >= head.rows->tokens()) throw failed("token {} of {}", token, head.rows->tokens());
    for (size_t first = 0; first < head.size(); first += kStretch)
      partials_.push_back({first, std::min(first + kStretch, head.size()), {}, {}});
  }

  size_t stretches() const { return partials_.size(); }

  void run(size_t stretch) {
    Partial& partial = partials_[stretch];
    partial.states.resize(count_);
    partial.sums.resize(count_ * stride_);
    AlignedVector<float> weights(count_ * kBlock);
    for (size_t first = partial.first; first < partial.end; first += kBlock) {
      const size_t tokens = std::min(kBlock, partial.end - first);
      const float *keys[kBlock], *values[kBlock];
      for (size_t i = 0; i < tokens; ++i) {
        const size_t token = head_.tokens ? (*head_.tokens)[first + i] : first + i;
        keys[i] = head_.rows->keys.row(token).data(), values[i] = head_.rows->values.row(token).data();
      }
      kernels().dots({keys, tokens, dims_}, queries_.data(), count_, weights.data(), kBlock);
      for (size_t q = 0; q < count_; ++q) {
        const auto scores = std::span(weights).subspan(q * kBlock, round_up(tokens, kLanes));
        if (head_.form.cap > 0) soft_cap(scores.first(tokens), head_.form.cap);
        std::ranges::fill(scores.subspan(tokens), -std::numeric_limits<float>::infinity());
        const float factor = softmax_block(scores, partial.states[q]);
        if (factor != 1) scale(std::span(partial.sums).subspan(q * stride_, stride_), factor);
      }
      kernels().sums({values, tokens, value_dims_}, weights.data(), kBlock, count_, partial.sums.data());
    }
  }

  void join() const {
    std::vector<float> total(stride_);
    for (size_t q = 0; q < count_; ++q) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (const Partial& partial : partials_) max = std::max(max, partial.states[q].max);
      if (!head_.form.sinks.empty()) {
        max = std::max(max, head_.form.sinks[q]);
        sum = head_.form.sinks[q] - max;
        exp_nonpositive({&sum, 1});
      }
      std::ranges::fill(total, 0.0f);
      for (const Partial& partial : partials_) {
        float factor = partial.states[q].max - max;
        exp_nonpositive({&factor, 1});
        sum += factor * partial.states[q].sum;
        for (size_t j = 0; j < stride_; ++j) total[j] += factor * partial.sums[q * stride_ + j];
      }
      for (size_t j = 0; j < value_dims_; ++j) head_.out(q, j) = sum > 0 ? total[j] / sum : 0.0f;
    }
  }

 private:
  const Attention& head_;
  size_t count_, dims_, value_dims_, stride_;  // stride_: of sums
  AlignedVector<float> queries_;
  std::vector<Partial> partials_;
};

/// token_of: that of each column of out.
template <class TokenOf>
void dot_products_of(MatrixView<const float> queries, MatrixView<const float> keys, MatrixView<float> out,
                     const TokenOf& token_of) {
  if (queries.cols() != keys.cols() || out.rows() != queries.rows())
    throw failed("queries ({}, {}) and products ({}, {}) do not fit {} rows of {} dimensions", queries.rows(),
                 queries.cols(), out.rows(), out.cols(), keys.rows(), keys.cols());
  const AlignedVector<float> padded = padded_rows(queries, 1);
  parallel_for(out.cols(), kStretch, [&](size_t begin, size_t end, int) {
    for (size_t first = begin; first < end; first += kBlock) {
      const size_t count = std::min(kBlock, end - first);
      const float* rows[kBlock];
      for (size_t i = 0; i < count; ++i) rows[i] = keys.row(token_of(first + i)).data();
      kernels().dots({rows, count, keys.cols()}, padded.data(), queries.rows(), out.data() + first,
                     out.stride());
    }
  });
}

}  // namespace

CacheRows::CacheRows(MatrixView<const float> k, MatrixView<const float> v) : keys(k), values(v) {
  if (keys.rows() != values.rows()) throw failed("{} keys and {} values", keys.rows(), values.rows());
}

void attend(std::span<const Attention> heads) {
  std::vector<HeadAttention> work;
  work.reserve(heads.size());
  std::vector<std::pair<size_t, size_t>> pieces;  // head, stretch
  for (const Attention& head : heads) {
    work.emplace_back(head);
    for (size_t stretch = 0; stretch < work.back().stretches(); ++stretch)
      pieces.emplace_back(work.size() - 1, stretch);
  }
  parallel_for(pieces.size(), 1, [&](size_t i, size_t, int) { work[pieces[i].first].run(pieces[i].second); });
  for (const HeadAttention& head : work) head.join();
}

void dot_products(MatrixView<const float> queries, MatrixView<const float> keys, MatrixView<float> out) {
  if (out.cols() != keys.rows()) throw failed("{} products for {} tokens", out.cols(), keys.rows());
  dot_products_of(queries, keys, out, [](size_t column) { return column; });
}

void dot_products(MatrixView<const float> queries, MatrixView<const float> keys,
                  std::span<const uint32_t> tokens, MatrixView<float> out) {
  if (out.cols() != tokens.size()) throw failed("{} products for {} tokens", out.cols(), tokens.size());
  if (std::ranges::any_of(tokens, [&](uint32_t token) { return token >= keys.rows(); }))
    throw failed("products with tokens beyond the {} there are", keys.rows());
  dot_products_of(queries, keys, out, [&](size_t column) { return tokens[column]; });
}

}  // namespace kvcodec
