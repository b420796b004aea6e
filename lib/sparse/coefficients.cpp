#include "lib/sparse/coefficients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {

/// The largest number.
constexpr float kLargest = kCoefficientOffset - 1;

/// The least scale that is not below `least`; the largest one if all are.
static uint8_t scale_code(double least) {
  uint8_t code = 0;
  while (code < 255 && scale_from(code) < least) ++code;
  return code;
}

static uint8_t reaching_scale(std::span<const float> coefficients) {
  float largest = 0;
  for (const float x : coefficients) largest = std::max(largest, std::abs(x));
  const uint8_t code = scale_code(largest / kLargest);
  // A coefficient that rounds to the largest number is still in range.
  if (!(largest / scale_from(code) < kLargest * (1 + 0x1p-6f)))
    throw bad_input(
        "a coefficient of {} is beyond the range of i8; train the dictionary with --normalize layer or signal",
        largest);
  return code;
}

// Joint rounding

/// Energies of atoms outside the span of others are taken for this at least, where the rounding of inner
/// products in float would leave nothing to go by. Pursuit takes no atoms that near to those it has.
constexpr double kLeastOutside = 1e-6;

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
  const size_t n = coefficients_.size();
  const double unit = scale_from(scale);
  std::ranges::fill(taken_up_, 0.0);
  double energy = 0;
  for (size_t i = n; i-- > 0 && energy <= bound;) {
    const double* column = columns_.data() + i * n;
    const double wanted = coefficients_[i] + taken_up_[i] / column[i];
    numbers_[i] = std::nearbyint(std::clamp(wanted / unit, -double{kLargest}, double{kLargest}));
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
  const int reaching = reaching_scale(coefficients);
  const size_t n = coefficients.size();
  factorize(gram, coefficients);
  constexpr double kAny = std::numeric_limits<double>::infinity();
  // Errors of rounding are uniform within a step, along the diagonal of R.
  double energy = 0;
  for (size_t i = 0; i < n; ++i) energy += rows_[i * n + i] * rows_[i * n + i];
  const int fitting = energy > 0 && allowed > 0 ? scale_code(std::sqrt(12 * allowed / energy)) : 0;
  int scale = allowed > 0 ? std::max(reaching, std::min(fitting + kBeyondFitting, 255)) : reaching;
  while (scale > reaching && !attempt(static_cast<uint8_t>(scale), allowed)) --scale;
  if (scale == reaching) attempt(static_cast<uint8_t>(scale), kAny);
  for (size_t i = 0; i < n; ++i)
    words[order_[i]] = static_cast<uint16_t>(static_cast<int>(chosen_[i]) + kCoefficientOffset);
  return scale_;
}

}  // namespace kvcodec
