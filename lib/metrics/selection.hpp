// How good a selection of tokens is: what it finds of the tokens that matter, what share of the attention
// weights it covers, and how far the output of attention over it lies from that over all tokens.
#pragma once

#include <cstdint>
#include <span>

#include "lib/core/view.hpp"

namespace kvcodec {

/// |selected ∩ wanted| / |wanted|: the recall of the true top-B where `wanted` are those. No id stands twice
/// in either. 1 if nothing is wanted.
double selection_recall(std::span<const uint32_t> selected, std::span<const uint32_t> wanted);

/// The share of the softmax weights of all tokens that the selected ones have. logits: one per token, scaled
/// as for attention, finite; selected: ids below logits.size(), none twice. Throws Error(failed) for others.
/// 1 without tokens.
double mass_covered(std::span<const float> logits, std::span<const uint32_t> selected);

/// |output - reference| / |reference| in the Euclidean norm; 0 if both are zero, infinite if only the
/// reference is. Throws Error(failed) for different sizes.
double relative_error(std::span<const float> output, std::span<const float> reference);

/// The largest relative_error of all vectors of `dims` values that the rows are made of; 0 without any.
/// Throws Error(failed) for different shapes and rows that are not whole vectors.
double largest_relative_error(MatrixView<const float> outputs, MatrixView<const float> references,
                              size_t dims);

}  // namespace kvcodec
