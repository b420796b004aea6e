// The look-up tables of one query (Self-Indexing KVCache, figure 3 and equation 8): entry [g][c] is the
// product of the query's group g with centroid c, and the score of a key is the sum over its groups of the
// entries its codes choose, which is q . (the key as its centroids say).
//
// Besides the float entries there are bytes: entry = low[g] + scale * byte, rounded to nearest, one scale for
// all groups. A sum of bytes is an exact integer, and
//   |score - (offset + scale * sum of bytes)| <= error_bound(),
// half a step for each group and what the float operations of either side may add.
#pragma once

#include <cstdint>
#include <span>

#include "lib/core/aligned.hpp"
#include "lib/selfindex/sign_codes.hpp"

namespace kvcodec {

class SignTable {
 public:
  /// query: dims values. Throws Error(failed) for another number, Error(bad_input) if a product is not
  /// finite.
  SignTable(const SignCodebook& codebook, std::span<const float> query);

  size_t groups() const { return groups_; }
  /// [groups][16]: ((q0 c0 + q1 c1) + q2 c2) + q3 c3, nothing fused.
  std::span<const float> exact() const { return exact_; }
  /// [groups][16], 0..255.
  std::span<const uint8_t> bytes() const { return bytes_; }
  float scale() const { return scale_; }    ///< what one step of the bytes is worth; 0 if no code matters
  float offset() const { return offset_; }  ///< the sum of the groups' lowest entries

  /// How far a score in bytes may lie from the score in floats (sums in the order of the groups).
  double error_bound() const { return error_bound_; }

  /// By how many steps the byte sum of a key may lie below that of another whose float score is no larger.
  /// With scale 0 there is no such number: 0.
  uint32_t margin() const { return margin_; }

 private:
  size_t groups_;
  AlignedVector<float> exact_;
  AlignedVector<uint8_t> bytes_;
  float scale_ = 0, offset_ = 0;
  double error_bound_ = 0;
  uint32_t margin_ = 0;
};

}  // namespace kvcodec
