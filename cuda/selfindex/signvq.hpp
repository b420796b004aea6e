// CUDA implementation of lib/selfindex: sign codes, one-pass codebooks, scores and top-k straight from codes.
// Everything is bit-identical to lib/.
//
// Queries of one head's keys go through float tables here: a look-up of 16 neighbouring words has no bank
// conflicts, so byte tables would gain nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_codes.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::cuda {

/// As kvcodec::encode_signs and kvcodec::build_codebooks together, in one pass over the rows: fills codes and
/// returns a codebook per head. rows: (n, heads * dims), codes: (n, heads * sign_row_bytes(dims)), both
/// contiguous. Throws Error(bad_input) and Error(failed) as they do.
std::vector<SignCodebook> encode_and_build_codebooks(MatrixView<const float> rows, size_t heads,
                                                     MatrixView<uint8_t> codes);

/// The sign codes of one head in device memory: kvcodec::SignIndex. Memory: sign_row_bytes(dims) per token.
class DeviceSignIndex {
 public:
  /// Throws Error(bad_input) unless dims is a positive multiple of 4.
  explicit DeviceSignIndex(size_t dims);
  ~DeviceSignIndex();
  DeviceSignIndex(DeviceSignIndex&&) noexcept;
  DeviceSignIndex& operator=(DeviceSignIndex&&) noexcept;

  /// Adds tokens behind those at hand. codes: (n, sign_row_bytes(dims)). Throws as kvcodec::SignIndex does.
  void append(MatrixView<const uint8_t> codes);

  size_t dims() const;
  size_t tokens() const;

  void scores(const SignTable& table, std::span<float> out) const;
  std::vector<Scored> top_k(const SignTable& table, size_t k, Order order = Order::by_score) const;

 private:
  friend class SignScores;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One query against one head's keys.
struct SignQuery {
  const DeviceSignIndex* index;
  const SignTable* table;
};

/// top_k of many queries, which may share an index.
std::vector<std::vector<Scored>> top_k(std::span<const SignQuery> queries, size_t k,
                                       Order order = Order::by_score);

}  // namespace kvcodec::cuda
