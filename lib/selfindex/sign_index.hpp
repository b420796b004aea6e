// Scores and top-k straight from sign codes: the compressed key is its own index (Self-Indexing KVCache,
// "Compressed-Domain Top-k Retrieval").
//
// top_k is exact in the float scores, although it reads every key with byte tables only: a key that ranks
// among the k best by float score has a byte sum within SignTable::margin() of the k-th largest, so those
// few are looked up again in floats. Equal scores rank by the lower token id. The result is the same for any
// thread count and SIMD level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_table.hpp"

namespace kvcodec {

/// The sign codes of one head, laid out for scoring. Memory: sign_row_bytes(dims) per token, tokens
/// padded to a multiple of 64.
class SignIndex {
 public:
  /// Throws Error(bad_input) unless dims is a positive multiple of 4.
  explicit SignIndex(size_t dims);

  /// Adds tokens behind those at hand. codes: (n, sign_row_bytes(dims)), the stored form. Throws
  /// Error(failed) for another width, and beyond 2^32 tokens.
  void append(MatrixView<const uint8_t> codes);

  size_t dims() const { return dims_; }
  size_t tokens() const { return tokens_; }

  /// out[t] = the float score of token t, its entries added in the order of the groups. out: tokens()
  /// values. Threaded. Throws Error(failed) if table or out do not fit.
  void scores(const SignTable& table, std::span<float> out) const;

  /// The k tokens of the largest float scores; all of them if there are fewer. The keys are cut among the
  /// threads.
  std::vector<Scored> top_k(const SignTable& table, size_t k, Order order = Order::by_score) const;

 private:
  friend class SignSearch;

  size_t dims_, row_bytes_, tokens_ = 0;
  AlignedVector<uint8_t> bytes_;  // whole blocks
};

/// One query against one head's keys.
struct SignQuery {
  const SignIndex* index;
  const SignTable* table;
};

/// top_k of many queries, which may share an index: whole queries go to threads, and the keys of each are cut
/// among them where there are fewer queries than threads.
std::vector<std::vector<Scored>> top_k(std::span<const SignQuery> queries, size_t k,
                                       Order order = Order::by_score);

}  // namespace kvcodec
