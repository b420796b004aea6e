// The limits that decide in orthogonal matching pursuit, for implementations that must give the same codes: lib/sparse and CUDA.
#pragma once

namespace kvcodec {

/// A new atom must have at least this part of its energy outside the span of those taken. Inner products are exact to some 1e-7, so that at
/// the limit the factorisation still has two good digits; the refinement at the end restores the rest.
inline constexpr double kIndependent = 1e-5;

/// Residuals and correlations below this part of |y| are float rounding, not signal.
inline constexpr double kNoise = 1e-6;

/// Energies obtained by subtraction lose their digits below these parts of |y|^2; the residual is then
/// computed. The second is for error targets, which need it to a thousandth.
inline constexpr double kEnergyDoubt = 1e-6, kEnergyDoubtForTarget = 1e-3;

}  // namespace kvcodec
