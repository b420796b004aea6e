// Rotary position embedding (Su et al. 2021) in the half-split layout of the Hugging Face models: dimension j
// of a head is turned together with dimension j + head_dim / 2, by position * frequency[j].
//
// Frequencies and angles are rounded to float exactly where the reference implementation (transformers)
// rounds them. At position p that rounding moves an angle by up to p * 2^-24 radians, far more than the float
// arithmetic around it, so an "exact" angle would differ visibly from the keys that models are trained and
// served with.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// The head_dim / 2 frequencies, in radians per token, after scaling.
std::vector<float> rope_frequencies(const ModelConfig& config);

/// Cosines and sines for positions 0 .. positions - 1.
class RopeTable {
 public:
  RopeTable(const ModelConfig& config, size_t positions);

  size_t positions() const { return cosines_.rows(); }
  std::span<const float> cosines(size_t position) const {
    return cosines_.row(position);
  }  ///< head_dim / 2 values
  std::span<const float> sines(size_t position) const { return sines_.row(position); }

  /// Turns one head's vector (head_dim values) in place.
  void turn(size_t position, std::span<float> head) const;

 private:
  Matrix<float> cosines_, sines_;
};

}  // namespace kvcodec
