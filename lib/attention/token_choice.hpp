// Choosing tokens for many queries at a time, elsewhere than by the scores of a selector.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"

namespace kvcodec {

/// Queries that agree on one selection.
struct TokenChoice {
  MatrixView<const float> queries;  ///< (n, dims)
  uint64_t visible = 0;             ///< they see tokens [0, visible)
  uint64_t budget = 0, newest = 0;  ///< as of choose_tokens() of lib/pipeline/selection.hpp
};
/// Who chooses instead of the scores of a selector: chosen[i] = what choose_tokens() gives for choices[i], by
/// Share::max if largest, else by Share::mean. False: declined, with nothing written.
using TokenChooser = std::function<bool(std::span<const TokenChoice> choices, bool largest,
                                        std::span<std::vector<Scored>> chosen)>;

}  // namespace kvcodec
