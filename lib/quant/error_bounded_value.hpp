// Error-bounded quantization (error_bounded.hpp) of one value, and its decisions for one unit: shared by
// the CPU and the device. For kernels too: no fmt and nothing that includes it.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "lib/core/half_bits.hpp"
#include "lib/core/host_device.hpp"
#include "lib/quant/error_bounded_kernels.hpp"

namespace kvcodec::error_bounded_kernels {

/// The symbol of level 0 of a unit without an origin, as in error_bounded.hpp.
inline constexpr int kZeroLevelSymbol = 127;

/// The grid of one value.
struct Grid {
  float step, inverse, bound, offset;
};

/// The level nearest to x, with the inverse of its step.
KVCODEC_HD float level_of(float x, float inverse) { return (x * inverse + kRounder) - kRounder; }

KVCODEC_HD float rounded_to_16(float value, bool brain) {
  return brain ? bf16_to_float(bf16_from_float(value)) : f16_to_float(f16_from_float(value));
}

/// rounded_to_16(value, true) for a value that is not NaN.
KVCODEC_HD float nearest_bf16(float value) {
  const uint32_t bits = bits_of(value);
  return float_of((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

/// The larger of two numbers; neither is NaN.
KVCODEC_HD float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  return fmaxf(a, b);  // one instruction
#else
  return a < b ? b : a;
#endif
}

/// True if x, stored as this level, comes back with an error above the bound: as a float, or rounded to 16 bits. Without branches, which
/// would stall lanes of a device. No NaN arises: x is finite, steps are 0 or from 2^-24 to 2^16, and a level that overflows is infinite.
/// Both errors are exact, so that rounding never decides. At level 0 they are x itself. Elsewhere x and what comes back lie within a factor
/// of 4. Rounded, both have 11 digits at most, and their difference 14. Not rounded, they lie within a factor of 2 (Sterbenz' lemma), or
/// the level is 1 or -1, and the step comes back, which has 11 digits too.
KVCODEC_HD bool fails(float x, float level, const Grid& grid, bool brain) {
  const float back = level * grid.step, rounded = brain ? nearest_bf16(back) : rounded_to_16(back, false);
  const float error = larger(std::fabs(back - x), std::fabs(rounded - x));
  return !(error <= grid.bound);
}

/// The symbol of a level, or the exact symbol.
KVCODEC_HD unsigned symbol_of(float level, bool failed, const Grid& grid) {
  const float position = level + grid.offset;
  const bool none =
      static_cast<int>(failed) | static_cast<int>(position < 0) | static_cast<int>(position > kLargestSymbol);
  return none ? kLargestSymbol + 1 : static_cast<unsigned>(static_cast<int>(position));
}

/// Quantizes one value; returns whether it fails.
KVCODEC_HD bool quantize(float x, const Grid& grid, bool brain, uint8_t& symbol) {
  const float level = level_of(x, grid.inverse);
  const bool failed = fails(x, level, grid, brain);
  symbol = static_cast<uint8_t>(symbol_of(level, failed, grid));
  return failed;
}

struct Extremes {
  float low = std::numeric_limits<float>::infinity(), high = -std::numeric_limits<float>::infinity();

  KVCODEC_HD float magnitude() const {
    return std::fabs(low) < std::fabs(high) ? std::fabs(high) : std::fabs(low);
  }
};

inline constexpr float kLargestF16 = 65504;

/// The largest value of f16 that is not above x; x >= 0.
KVCODEC_HD float f16_below(double x) {
  uint16_t half = f16_from_float(static_cast<float>(x < double{kLargestF16} ? x : double{kLargestF16}));
  if (double{f16_to_float(half)} > x) --half;
  return f16_to_float(half);
}

/// The largest float that is not above x; x >= 0.
KVCODEC_HD float float_below(double x) {
  const auto nearest = static_cast<float>(x < double{FLT_MAX} ? x : double{FLT_MAX});
  return double{nearest} > x ? std::nextafter(nearest, 0.0f) : nearest;
}

KVCODEC_HD int at_least(int value, int least) { return value < least ? least : value; }

/// The distance of neighbouring values of a 16-bit type at x > 0.
KVCODEC_HD double spacing_at(float x, bool brain) {
  return brain ? std::ldexp(1.0, at_least(std::ilogb(x), -126) - 7)
               : std::ldexp(1.0, at_least(std::ilogb(x), -14) - 10);
}

/// The smallest of the bounds that are > 0 for a unit (ErrorBound, error_bounded.hpp).
KVCODEC_HD double bound_of(double range, double absolute, double relative, const Extremes& unit) {
  double result = std::numeric_limits<double>::infinity();
  const auto tighten = [&](double limit) { result = limit < result ? limit : result; };
  if (range > 0) tighten(range * (double{unit.high} - double{unit.low}));
  if (absolute > 0) tighten(absolute);
  if (relative > 0) tighten(relative * double{unit.magnitude()});
  return result;
}

/// A unit's first step. Constants off the grid of their bound get a grid that holds them.
KVCODEC_HD float widest_step(const Extremes& unit, double bound) {
  const float magnitude = unit.magnitude();
  if (magnitude == 0) return 0;
  if (unit.low == unit.high && bound < double{magnitude} && rounded_to_16(magnitude, false) == magnitude)
    return magnitude;
  return f16_below(2 * bound);
}

/// About log2(ratio) for ratio in 1..2, by its series in (ratio - 1) / (ratio + 1); off by less than 0.0002.
/// Plain arithmetic, so that every machine chooses the same steps.
KVCODEC_HD double log2_near(double ratio) {
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  const double z = (ratio - 1) / (ratio + 1), z2 = z * z;
  return kTwoOverLn2 * z * (1 + z2 * (1.0 / 3 + z2 * (1.0 / 5)));
}

/// Looks for the step that costs the fewest bits, from the widest on: first the widest truncated to ever
/// coarser binary digits, then to a power of two. A step that is a multiple of the spacing of 16-bit values
/// in some binade has its levels among them, in that binade and in all above, so nothing is lost to rounding.
class StepSearch {
 public:
  /// `failures` of the unit's `values` fail with the widest step.
  KVCODEC_HD StepSearch(float widest, double spacing, size_t values, uint64_t failures)
      : widest_(widest), spacing_(spacing), values_(values), last_(widest), best_(widest) {
    best_cost_ = cost(widest, failures);
  }

  /// A step to be tried next; 0 if no other can be better.
  KVCODEC_HD float next() {
    while (round_ <= kRounds) {
      const float step = truncated(round_++);
      if (step <= 0 || step >= last_) continue;
      if (cost(step, 0) >= best_cost_) break;  // and all later steps cost more
      last_ = step;
      return step;
    }
    round_ = kRounds + 1;
    return 0;
  }

  KVCODEC_HD void tried(float step, uint64_t failures) {
    const double tried_cost = cost(step, failures);
    if (tried_cost >= best_cost_) return;
    best_ = step;
    best_cost_ = tried_cost;
  }

  KVCODEC_HD float best() const { return best_; }

 private:
  /// Number of binades below that of the largest value whose spacing is tried; below them at most 1/32 of a
  /// spacing is lost, less than the bits of one value in a thousand.
  static constexpr int kRounds = 5;

  /// The cost of an exactly stored value: its 16 bits and the share of a rare symbol above those of others.
  static constexpr double kExactBits = 18;

  KVCODEC_HD float truncated(int round) const {
    if (round == kRounds) return std::ldexp(1.0f, std::ilogb(widest_));
    const double unit = std::ldexp(spacing_, round + 1 - kRounds);
    return static_cast<float>(std::floor(double{widest_} / unit) * unit);
  }

  KVCODEC_HD double cost(float step, uint64_t failures) const {
    return kExactBits * static_cast<double>(failures) +
           static_cast<double>(values_) * log2_near(double{widest_} / double{step});
  }

  float widest_;
  double spacing_;
  size_t values_;
  float last_, best_;
  double best_cost_ = 0;
  int round_ = 0;
};

KVCODEC_HD float clamped(float value, float least, float most) {
  return value < least ? least : most < value ? most : value;
}

/// Origin of a column of `rows` values by their extremes and their sum in the order of rows: the level nearest to the
/// mean, moved as far as needed for all levels between low and high to get symbols, if there are so few.
KVCODEC_HD int16_t origin_of(const Extremes& unit, float sum, size_t rows, float inverse) {
  constexpr float kBelow = kZeroLevelSymbol, kAbove = kLargestSymbol - kZeroLevelSymbol;
  // Sums of the largest bf16 values overflow.
  const float mean = std::isfinite(sum) ? sum / static_cast<float>(rows) : unit.low / 2 + unit.high / 2;
  float origin = level_of(mean, inverse);
  const float least = level_of(unit.high, inverse) - kAbove, most = level_of(unit.low, inverse) + kBelow;
  if (least <= most) origin = clamped(origin, least, most);
  return static_cast<int16_t>(clamped(origin, -32768.0f, 32767.0f));
}

}  // namespace kvcodec::error_bounded_kernels
