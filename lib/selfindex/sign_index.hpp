// Scores directly from sign codes: the compressed key is its own index (Self-Indexing KVCache, "Compressed-Domain Top-k
// Retrieval", figure 3 and equation 8). A query's table has for each group g and code c the product of the query's group
// g with centroid c; the score of a key is the sum over its groups of the entries of its codes, which is the product of
// the query with the key's centroids. The result is the same for any thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"
#include "lib/selfindex/sign_codes.hpp"

namespace kvcodec {

/// Tokens that are scored together. So neighbouring ones are looked up side by side in one table of 16 entries (as
/// Andre, Kermarrec and Le Scouarnec, "Quicker ADC", do).
inline constexpr size_t kSignBlock = 32;

/// The look-up table of one query.
class SignTable {
 public:
  /// query: dims values. Throws Error(failed) for another number, Error(bad_input) if a sum of products may not be finite.
  SignTable(const SignCodebook& codebook, std::span<const float> query);

  size_t groups() const { return exact_.size() / kSignCodes; }
  /// [groups][16]: ((q0 c0 + q1 c1) + q2 c2) + q3 c3, nothing fused.
  std::span<const float> exact() const { return exact_; }

 private:
  std::vector<float> exact_;
};

/// The sign codes of one head, laid out for scoring. Memory: sign_row_bytes(dims) per token, tokens padded to a multiple of 32.
class SignIndex {
 public:
  /// Throws Error(bad_input) unless dims is a positive multiple of 4.
  explicit SignIndex(size_t dims) : dims_(dims), row_bytes_(sign_row_bytes(dims)) {}

  /// Adds tokens behind those at hand. codes: (n, sign_row_bytes(dims)), the stored form. Throws
  /// Error(failed) for another width, and beyond 2^32 tokens.
  void append(MatrixView<const uint8_t> codes);

  size_t dims() const { return dims_; }
  size_t tokens() const { return tokens_; }

  /// out[t] = the score of token t, its entries added in the order of the groups. out: tokens()
  /// values. Threaded. Throws Error(failed) if table or out do not fit.
  void scores(const SignTable& table, std::span<float> out) const;

 private:
  size_t dims_, row_bytes_, tokens_ = 0;
  AlignedVector<uint8_t> bytes_;  // [block][byte][token of the block], the last block filled up with zeros
};

// Functions of a device that computes codebooks and indices of sign codes. Threads may share them. Results are those of the CPU, bit for bit.
// False, std::nullopt, an empty function: declined; the output is unspecified, and the caller computes all of it.

/// SignIndex::scores of the codes of one head: row i of out, (tables.size(), tokens), becomes those of table i.
using SignScorer = std::function<bool(std::span<const SignTable> tables, MatrixView<float> out)>;

/// For Engine::make: an index of these codes, (n, sign_row_bytes(dims)), which may be freed afterwards.
struct SignIndexOnDevice {
  using Factory = SignScorer(size_t dims, MatrixView<const uint8_t> codes);
};
/// For Engine::make: the codebooks of centred rows that are all in memory: build_codebooks of them and their encode_signs.
struct SignCodebooksOnDevice {
  using Factory = std::optional<std::vector<SignCodebook>>(MatrixView<const float> rows, size_t heads);
};

}  // namespace kvcodec
