// Sign codes of keys and their one-pass codebooks (Self-Indexing KVCache, "One-Pass Sign-Based Clustering").
//
// A head's centred key of d dimensions is cut in groups of 4; the code of a group is its 4 signs, 1 for values >= 0 (both zeros), first
// dimension highest (equation 3). The codes of a row, one behind the other, are thus its sign bits, most significant bit first: d / 8
// bytes, a last half byte padded with zero bits. Files hold this plain row-major form, and CUDA implementations read it; any token can be
// read or appended alone, and NumPy makes it by packbits(rows >= 0). The form for scoring is made from it in memory (sign_index.hpp).
//
// The centroid of a code is the mean of the groups that have it (equation 4). A code without a group gets its
// signs times the mean magnitude of each dimension: any estimate suffices, since only later tokens use it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

inline constexpr size_t kSignGroup = 4;   ///< dimensions of a group
inline constexpr size_t kSignCodes = 16;  ///< codes of a group: 2^4

/// Bytes of one head's codes of one token: dims / 8 rounded up. Throws Error(bad_input) unless dims is a positive multiple of 4.
size_t sign_row_bytes(size_t dims);

/// rows: (n, heads * dims), finite, already centred; codes: (n, heads * sign_row_bytes(dims)), each head's bytes one behind the other.
/// Throws Error(bad_input) for dims as above, Error(failed) for shapes that do not fit. Threaded.
void encode_signs(MatrixView<const float> rows, size_t heads, MatrixView<uint8_t> codes);

/// One head's centroids: (dims, 16), row 4 g + i holding dimension i of the 16 centroids of group g.
struct SignCodebook {
  Matrix<float> centroids;

  size_t dims() const { return centroids.rows(); }
  size_t groups() const { return centroids.rows() / kSignGroup; }
};

/// Sums up the codebooks of all heads from rows that are added piece by piece. Means are summed in double,
/// over 4096 tokens at a time in order, so they depend neither on the pieces, nor on threads or SIMD level.
class CodebookSums {
 public:
  /// Throws Error(bad_input) unless dims is a positive multiple of 4.
  CodebookSums(size_t heads, size_t dims) : dims_(dims), parts_(heads) { (void)sign_row_bytes(dims); }

  /// The next rows and their codes; shapes as for encode_signs. Threaded.
  void add(MatrixView<const float> rows, MatrixView<const uint8_t> codes);

  /// One per head; without any rows all zeros.
  std::vector<SignCodebook> codebooks() const;

  /// Sums over some tokens of one head.
  struct Partial {
    std::vector<std::array<double, kSignGroup>> sums;  ///< [group][code]
    std::vector<uint32_t> counts;                      ///< [group][code]
  };

 private:
  size_t dims_;
  uint64_t rows_ = 0;
  std::vector<std::vector<Partial>> parts_;  // [head][piece of 4096 rows]
};

/// The codebooks of rows that are all in memory.
std::vector<SignCodebook> build_codebooks(MatrixView<const float> rows, MatrixView<const uint8_t> codes,
                                          size_t heads);

}  // namespace kvcodec
