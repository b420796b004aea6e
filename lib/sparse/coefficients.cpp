#include "lib/sparse/coefficients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/quant/fp8.hpp"

namespace kvcodec {
namespace {

/// The numbers of a type: multiples of `step`, and from 2^(mantissa + 1) steps on of twice it, and so on; integers have one step only.
/// Words of floats have a sign, an exponent and a mantissa, those of integers the number and an offset.
struct Grid {
  double largest;
  double step;
  int mantissa;  // bits; 0: integers
  int offset;    // of integers
};

Grid grid_of(CoefficientType type) {
  switch (type) {
    case CoefficientType::fp8:
      return {kLargestE4m3, 0x1p-9, 3, 0};
    case CoefficientType::e3m4:
      return {31 << 6, 1, 4, 0};
    case CoefficientType::i8:
      return {127, 1, 0, 128};
    default:
      return {7, 1, 0, 8};
  }
}

/// The nearest number of a grid, ties to even.
double nearest_number(const Grid& grid, double x) {
  const double magnitude = std::min(std::abs(x), grid.largest);
  double step = grid.step;
  if (grid.mantissa > 0 && magnitude > 0)
    step = std::max(step, std::ldexp(1.0, std::ilogb(magnitude) - grid.mantissa));
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

uint16_t word_of(const Grid& grid, double number) {
  if (grid.mantissa == 0) return static_cast<uint16_t>(static_cast<int>(number) + grid.offset);
  const auto steps = static_cast<int>(std::abs(number) / grid.step);
  const int exponent = std::max(0, std::ilogb(std::max(steps, 1)) - grid.mantissa + 1);
  const int mantissa = exponent == 0 ? steps : (steps >> (exponent - 1)) - (1 << grid.mantissa);
  return static_cast<uint16_t>((std::signbit(number) ? 0x80 : 0) | exponent << grid.mantissa | mantissa);
}

/// The least scale that is not below `least`; the largest one if all are.
uint8_t scale_code(double least) {
  uint8_t code = 0;
  while (code < 255 && scale_from(code) < least) ++code;
  return code;
}

uint8_t reaching_scale(CoefficientType type, std::span<const float> coefficients) {
  float largest = 0;
  for (const float x : coefficients) largest = std::max(largest, std::abs(x));
  const auto limit = static_cast<float>(grid_of(type).largest);
  const uint8_t code = scale_code(largest / limit);
  // A coefficient that rounds to the largest number is still in range.
  if (!(largest / scale_from(code) < limit * (1 + 0x1p-6f)))
    throw bad_input(
        "a coefficient of {} is beyond the range of {}; train the dictionary with --normalize layer or signal",
        largest, name_of(type));
  return code;
}

}  // namespace

unsigned coefficient_bits(CoefficientType type) {
  return type == CoefficientType::f16 ? 16 : type == CoefficientType::i4 ? 4 : 8;
}

unsigned scale_bits(CoefficientType type) { return type == CoefficientType::f16 ? 0 : 8; }

float scale_from(uint8_t code) { return std::ldexp(static_cast<float>(8 + code % 8), code / 8 - 23); }

float number_of(CoefficientType type, uint16_t word) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  if (word > 255 || type == CoefficientType::f16) return kNone;
  const Grid grid = grid_of(type);
  if (grid.mantissa == 0)
    return word > 0 && word < 2 * grid.offset ? static_cast<float>(word - grid.offset) : kNone;
  const int exponent = (word & 0x7f) >> grid.mantissa, one = 1 << grid.mantissa, mantissa = word & (one - 1);
  const double magnitude = grid.step * (exponent == 0 ? mantissa : (one + mantissa) << (exponent - 1));
  return magnitude > grid.largest ? kNone : static_cast<float>(word & 0x80 ? -magnitude : magnitude);
}

uint8_t round_to_nearest(CoefficientType type, std::span<const float> coefficients,
                         std::span<uint16_t> words) {
  const Grid grid = grid_of(type);
  const uint8_t code = reaching_scale(type, coefficients);
  const float scale = scale_from(code);
  for (size_t k = 0; k < coefficients.size(); ++k)
    words[k] = word_of(grid, nearest_number(grid, coefficients[k] / scale));
  return code;
}

// Joint rounding

/// Energies of atoms outside the span of others are taken for this at least, where the rounding of inner
/// products in float would leave nothing to go by. Pursuit takes no atoms that near to those it has.
constexpr double kLeastOutside = 1e-6;

/// Scales tried: an octave has eight, after which floats repeat. Those of i4 go down to a clipping at less
/// than half of the largest coefficient.
constexpr int kOctave = 8, kLowestOfNibbles = -12;

/// Steps beyond the scale that fits on average, where the search for one that fits a signal begins.
constexpr int kBeyondFitting = 3;

/// Order, coefficients in it, and the upper factor R of the Gram matrix in it.
void JointRounder::factorize(MatrixView<const float> gram, std::span<const float> coefficients) {
  const size_t n = coefficients.size();
  order_ = numbers_below<uint32_t>(n);
  std::ranges::stable_sort(order_, {}, [&](uint32_t i) { return std::abs(coefficients[i]); });
  coefficients_.resize(n), numbers_.resize(n), chosen_.resize(n), taken_up_.resize(n);
  rows_.resize(n * n), columns_.resize(n * n);
  for (size_t i = 0; i < n; ++i) {
    coefficients_[i] = coefficients[order_[i]];
    const float* row = gram.row(order_[i]).data();
    for (size_t j = i; j < n; ++j) rows_[i * n + j] = row[order_[j]];
  }
  for (size_t i = 0; i < n; ++i) {
    double* row = rows_.data() + i * n;
    const double diagonal = std::sqrt(std::max(row[i], kLeastOutside));
    row[i] = diagonal;
    for (size_t j = i + 1; j < n; ++j) row[j] /= diagonal;
    for (size_t k = i + 1; k < n; ++k) {
      double* below = rows_.data() + k * n;
      const double part = row[k];
      for (size_t j = k; j < n; ++j) below[j] -= part * row[j];
    }
    for (size_t j = i; j < n; ++j) columns_[j * n + i] = row[j];
  }
}

/// Back substitution with rounding at a scale, into numbers_. Returns the energy that it adds; once that is beyond `bound` it may stop.
double JointRounder::substitute(uint8_t scale, double bound) {
  const Grid grid = grid_of(type_);
  const size_t n = coefficients_.size();
  const double unit = scale_from(scale);
  std::ranges::fill(taken_up_, 0.0);
  double energy = 0;
  for (size_t i = n; i-- > 0 && energy <= bound;) {
    const double* column = columns_.data() + i * n;
    const double wanted = coefficients_[i] + taken_up_[i] / column[i];
    numbers_[i] = nearest_number(grid, wanted / unit);
    const double left = column[i] * (wanted - numbers_[i] * unit);
    energy += left * left;
    const double off = coefficients_[i] - numbers_[i] * unit;
    for (size_t j = 0; j < i; ++j) taken_up_[j] += column[j] * off;
  }
  return energy;
}

/// Keeps what a scale gives if that adds no more than `bound`.
bool JointRounder::attempt(uint8_t scale, double bound) {
  const double energy = substitute(scale, bound);
  if (!(energy <= bound)) return false;
  std::swap(numbers_, chosen_);
  scale_ = scale, added_ = energy;
  return true;
}

uint8_t JointRounder::round(MatrixView<const float> gram, std::span<const float> coefficients, double allowed,
                            std::span<uint16_t> words) {
  const int reaching = reaching_scale(type_, coefficients);
  const size_t n = coefficients.size();
  factorize(gram, coefficients);
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (type_ == CoefficientType::i8) {
    // Errors of rounding are uniform within a step, along the diagonal of R.
    double energy = 0;
    for (size_t i = 0; i < n; ++i) energy += rows_[i * n + i] * rows_[i * n + i];
    const int fitting = energy > 0 && allowed > 0 ? scale_code(std::sqrt(12 * allowed / energy)) : 0;
    int scale = allowed > 0 ? std::max(reaching, std::min(fitting + kBeyondFitting, 255)) : reaching;
    while (scale > reaching && !attempt(static_cast<uint8_t>(scale), allowed)) --scale;
    if (scale == reaching) attempt(static_cast<uint8_t>(scale), kAny);
  } else {
    attempt(static_cast<uint8_t>(reaching), kAny);
    const bool clips = type_ == CoefficientType::i4;
    const int first = clips ? std::max(reaching + kLowestOfNibbles, 0) : reaching + 1;
    const int end = clips ? reaching : std::min(reaching + kOctave, 256);
    for (int scale = first; scale < end && added_ > 0; ++scale)
      attempt(static_cast<uint8_t>(scale), std::nextafter(added_, 0.0));  // less
  }
  for (size_t i = 0; i < n; ++i) words[order_[i]] = word_of(grid_of(type_), chosen_[i]);
  return scale_;
}

}  // namespace kvcodec
