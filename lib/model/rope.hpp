// Rotary position embedding (Su et al. 2021) in the half-split layout of the Hugging Face models: dimension j
// of those that are turned, mostly all, is turned together with dimension j + turned / 2, by position * frequency[j].
//
// Frequencies and angles are rounded to float exactly where the reference implementation (transformers)
// rounds them. At position p that rounding moves an angle by up to p * 2^-24 radians, far more than the float
// arithmetic around it, so an "exact" angle would differ visibly from the keys that models are trained and
// served with.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// Which of longrope's lists of divisors is used.
enum class RopeLength : bool { up_to_original, longer };

/// The frequencies of turned_dims(rope, head_dim) / 2 pairs, in radians per token, after scaling.
std::vector<float> rope_frequencies(const Rope& rope, int head_dim,
                                    RopeLength length = RopeLength::up_to_original);

/// Cosines and sines for positions 0 .. positions - 1, multiplied by the scaling's attention factor as the
/// reference does.
class RopeTable {
 public:
  RopeTable(const Rope& rope, int head_dim, size_t positions, RopeLength length = RopeLength::up_to_original);

  size_t positions() const { return cosines_.rows(); }
  std::span<const float> cosines(size_t position) const {
    return cosines_.row(position);
  }  ///< as many as frequencies
  std::span<const float> sines(size_t position) const { return sines_.row(position); }
  size_t first() const { return first_; }  ///< of a head's dimensions that are turned

  /// Turns one head's vector in place: the dimensions that are turned.
  void turn(size_t position, std::span<float> head) const;

  /// The backward pass of turn(): turns derivatives by the opposite angles, with the same factor.
  void turn_back(size_t position, std::span<float> head) const;

 private:
  size_t first_;
  Matrix<float> cosines_, sines_;
};

/// How many tables a model's layers need, for documents of any length.
size_t rope_tables(const ModelConfig& config);

/// The tables of all layers, for documents of up to `longest` tokens.
class RopeTables {
 public:
  RopeTables(const ModelConfig& config, size_t longest);

  /// Of a layer, for a document of so many tokens, its cache included; nullptr: the layer turns nothing.
  const RopeTable* table(int layer, size_t document_tokens) const;

 private:
  struct Lengths {
    std::optional<RopeTable> usual, longer;  ///< longer: for documents beyond longrope's original length
  };
  static Lengths lengths_of(const Rope& rope, int head_dim, size_t longest);

  const ModelConfig& config_;
  Lengths usual_, local_;
};

}  // namespace kvcodec
