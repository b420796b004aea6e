// Infinities and NaNs in what comes from outside: keys and values hold none, and one would spoil every sum it
// meets.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace kvcodec {

/// Position of the first infinity or NaN, if there is one.
std::optional<size_t> find_non_finite(std::span<const float> values);

}  // namespace kvcodec
