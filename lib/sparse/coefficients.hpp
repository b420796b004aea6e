// Coefficients of sparse codes in few bits: whole numbers of 8 bits (i8), times a scale that each signal has. FORMAT.md,
// "sparse", defines words and scales. f16, the paper's type, has no scale.
//
// Rounding. The residual of pursuit is orthogonal to the atoms taken, so rounding coefficients c to q adds exactly (c - q)' G (c - q) to
// the error's energy, G being the Gram matrix of those atoms. The nearest numbers are the best q only if G is diagonal. Instead
// coefficients are rounded one after the other, the largest first, and those not rounded yet are fitted anew, to compensate each rounding
// error as well as they can. With G = R'R, coefficients in rising order of magnitude, that is back substitution with rounding (the nearest
// plane method of Babai, "On Lovasz' lattice reduction and the nearest lattice point problem", 1986). On keys and values of our models the
// added error falls by a quarter.
//
// Scales. i8 is for entropy coding, where finer steps than needed cost bits. The search goes down from three scales above the one at which
// rounding adds the allowed error on average: the first scale at which rounding adds no more is taken, or else the smallest one that
// reaches the largest coefficient.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

enum class CoefficientType : uint8_t { f16, i8 };
constexpr auto names_of(CoefficientType) { return std::to_array<std::string_view>({"f16", "i8"}); }

/// The word of i8 that stands for 0, and so what is added to its numbers, which are -127 to 127.
inline constexpr uint16_t kCoefficientOffset = 128;

/// The scale that a byte stands for.
inline float scale_from(uint8_t code) { return std::ldexp(static_cast<float>(8 + code % 8), code / 8 - 23); }

/// Rounds coefficients jointly. It holds scratch memory, so each thread needs its own.
class JointRounder {
 public:
  /// gram: (n, n), inner products of the atoms that the n coefficients belong to. allowed: the energy that rounding
  /// may add. Fills words, and returns the scale. Throws Error(bad_input) for a coefficient beyond the range.
  uint8_t round(MatrixView<const float> gram, std::span<const float> coefficients, double allowed,
                std::span<uint16_t> words);

  /// The energy that the last rounding added.
  double added() const { return added_; }

 private:
  void factorize(MatrixView<const float> gram, std::span<const float> coefficients);
  double substitute(uint8_t scale, double bound);
  bool attempt(uint8_t scale, double bound);

  std::vector<uint32_t> order_;         // coefficients by rising magnitude
  std::vector<double> coefficients_;    // in that order, as all that follows
  std::vector<double> rows_, columns_;  // R by rows and by columns, (n, n) each
  std::vector<double> taken_up_;        // per row of R, the compensation for the coefficients rounded so far
  std::vector<double> numbers_, chosen_;  // of the present attempt and of the best one, without the scale
  uint8_t scale_ = 0;
  double added_ = 0;
};

}  // namespace kvcodec
