// Which dimensions of a key are quantized apart (VQKV, section 3.1). The paper finds that some dimensions are
// reconstructed badly when all are quantized together, and that they recur with the pairs of the rotary
// embedding. It therefore quantizes components of low and of high frequency separately ("low" and "high"),
// and tells them apart by how well they are reconstructed.
//
// What is high is a band of neighbouring frequencies. Pairs that turn at nearly the same speed have much in
// common, which a quantizer of both uses; the worst pairs taken one by one tear them apart. On the demo model
// that costs more than the split gains (data/experiments/README.md, rvq-ablation).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"

namespace kvcodec {

enum class SplitBy : uint8_t {
  measured,  ///< the band with the largest errors of a probe quantizer is high
  rope,      ///< pairs that the rotary embedding turns fastest are high
  none,      ///< all dimensions are low
};
constexpr auto names_of(SplitBy) { return std::to_array<std::string_view>({"measured", "rope", "none"}); }

/// Dimensions of a head, each in one of the two, rising.
struct DimensionSplit {
  std::vector<uint32_t> low, high;

  size_t head_dim() const { return low.size() + high.size(); }
  /// Throws Error(bad_input) unless every dimension below head_dim() is there once, rising.
  void check() const;
};

/// Dimensions 2 * pairs; pair j is dimensions j and j + pairs, which the rotary embedding turns together and
/// which stay together, pair 0 fastest. high_pairs neighbouring pairs are high (those with the largest sum of
/// their errors; of equal ones the first). errors: of each dimension; only for SplitBy::measured. A head of
/// odd size has a last dimension without a partner, which is low.
DimensionSplit split_dimensions(SplitBy by, std::span<const double> errors, size_t head_dim,
                                size_t high_pairs);

/// The paper's share: of 64 pairs at d = 128, 24 are high (its numbers of parameters give 80 and 48).
size_t paper_high_pairs(size_t head_dim);

}  // namespace kvcodec
