// Rotations of heads that are learned from the data: keys in the directions of the eigenvectors of their queries' second moments, values in
// those of their own, followed by a Hadamard transform. Rounding errors are then as even over the directions of queries as they are over
// those of keys with a plain Hadamard transform (Zhou et al., "OSCAR: Offline Spectral Covariance-Aware Rotation for 2-bit KV Cache
// Quantization", 2026, section 3; there values are weighed with attention, and rotations learned once for a model).
//
// Shared streams, H heads of d dimensions
//   rotation         u8  [H][d][d]   a row of coefficients for each rotated channel, as levels + 128 …
//   rotation_scales  f32 [H][d]      … times this scale
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/group_shape.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"

namespace kvcodec::q4 {

std::vector<StreamSpec> rotation_streams(const GroupShape& shape);

/// Finds the rotations of a side in one pass. For keys without queries they are Hadamard transforms. stores: true if
/// the codes have rotation_streams().
std::unique_ptr<Survey> make_rotation_survey(const GroupShape& shape, bool stores);

/// Rotations of all heads of a side, as stored.
class Rotations {
 public:
  /// Throws Error(bad_input) unless they are stored, with scales that are finite.
  Rotations(const GroupShape& shape, const StreamReader& document);

  /// One token's heads, one behind the other. Sums are made in a fixed order. The stored rotation keeps lengths to
  /// about a hundredth of a decibel, and back() after forward() differs from the row by some -45 dB.
  void forward(std::span<const float> row, std::span<float> out) const;
  void back(std::span<const float> row, std::span<float> out) const;

 private:
  size_t dims_;
  Matrix<float> rows_, columns_;  // (heads * dims, dims): rotations, and the same transposed
};

}  // namespace kvcodec::q4
