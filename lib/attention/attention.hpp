// Attention of one decoding step: a few query heads that share one key/value head, over all its tokens or
// over chosen ones (Self-Indexing KVCache, "sparse FlashAttention": only chosen tokens are read).
//
// Softmax is computed on line, block by block, in float (Milakov and Gimelshein 2018); stretches of 512
// tokens are computed apart and joined in order, so the result does not depend on the number of threads, nor
// on the SIMD level: products are summed fused in 16 lanes, lanes as a tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "lib/core/view.hpp"

namespace kvcodec {

/// Keys and values of one head in memory, (tokens, dims) and (tokens, value_dims), which must outlive this. Views of one
/// head of [T, H, d] are columns of (T, H * d).
struct CacheRows {
  /// Throws Error(failed) if their numbers of tokens differ.
  CacheRows(MatrixView<const float> keys, MatrixView<const float> values);
  size_t tokens() const { return keys.rows(); }
  size_t dims() const { return keys.cols(); }
  size_t value_dims() const { return values.cols(); }

  MatrixView<const float> keys, values;
};

/// A change that some models make to scaled scores before the softmax.
struct ScoreForm {
  float cap = 0;  ///< scores s become cap * tanh(s / cap); 0: they do not
  /// A score of each query beside those of keys, as of a token whose value is zero; or empty.
  std::span<const float> sinks = {};

  bool is_plain() const { return cap == 0 && sinks.empty(); }
  /// That of `count` of the queries.
  ScoreForm of_heads(size_t first, size_t count) const {
    return {cap, sinks.empty() ? sinks : sinks.subspan(first, count)};
  }
};

/// One key/value head and the query heads that use it. Logits are scaled by 1 / sqrt(dims).
struct Attention {
  MatrixView<const float> queries;  ///< (n, dims), n the query heads of the group (or several steps of them)
  const CacheRows* rows = nullptr;
  MatrixView<float> out;  ///< (n, value_dims)
  /// In any order, without repeats; std::nullopt: the first `visible` of the rows, or all of them.
  std::optional<std::span<const uint32_t>> tokens = std::nullopt;
  uint64_t visible = UINT64_MAX;
  ScoreForm form = {};

  /// The number of these tokens.
  size_t size() const {
    return tokens ? tokens->size() : static_cast<size_t>(std::min<uint64_t>(visible, rows->tokens()));
  }
};

/// Computes all of them, divided among the threads. Queries without any token get zeros. Throws Error(failed)
/// for shapes that do not fit and tokens that do not exist.
void attend(std::span<const Attention> heads);
inline void attend(const Attention& head) { attend({&head, 1}); }

/// A device's function that computes in place of attend. Threads may share it. It sums in another order, the same in
/// every run, so results differ by rounding. False: declined; the results are unspecified, and the caller
/// computes them all.
using AttendFunction = std::function<bool(std::span<const Attention> heads)>;
/// For Engine::make. The engine must outlive the function.
struct AttentionOnDevice {
  using Factory = AttendFunction();
};

/// out[i, t] = queries[i] . keys[t], for all tokens; queries: (n, dims), keys: (tokens, dims), out: (n, tokens).
/// Threaded; the same for any thread count and SIMD level. Throws Error(failed) for shapes that do not fit.
void dot_products(MatrixView<const float> queries, MatrixView<const float> keys, MatrixView<float> out);
/// The same for the keys of some tokens: out: (n, tokens.size()).
void dot_products(MatrixView<const float> queries, MatrixView<const float> keys,
                  std::span<const uint32_t> tokens, MatrixView<float> out);

}  // namespace kvcodec
