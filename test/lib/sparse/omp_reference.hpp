// Orthogonal matching pursuit in its textbook form (Pati, Rezaiifar and Krishnaprasad, 1993), and orthogonal least squares (Chen,
// Billings and Luo, 1989), in double and one signal at a time: the reference for lib/sparse/omp.hpp. Far too slow for anything
// else.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"

namespace kvcodec {

struct ReferenceCode {
  std::vector<uint32_t> ids;         ///< in the order of selection
  std::vector<double> coefficients;  ///< least squares over ids
  double residual = 0;               ///< |y - D x|
  double narrowest = 1;  ///< the least relative margin by which an atom was ahead of the next best one
};

/// The choice of the next atom: by the largest |d . r|, or by the smallest remaining error, which means the largest |d . r| / |d'|,
/// where d' is the part of d outside the span of the chosen atoms.
enum class ReferenceSelection : uint8_t { correlation, error };

namespace omp_reference_parts {

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline std::vector<double> widen_row(std::span<const float> row) { return {row.begin(), row.end()}; }

/// Atoms with less of their energy outside the span of the chosen ones depend on these, up to the rounding of double.
inline constexpr double kDependent = 1e-12;

}  // namespace omp_reference_parts

/// Chooses at most `sparsity` atoms of atoms: (n, m) for signal: m values; fewer once |y - D x| <= error_target |y| or no atom that
/// is independent of the chosen ones is left.
inline ReferenceCode omp_reference(MatrixView<const float> atoms, std::span<const float> signal,
                                   size_t sparsity, double error_target = 0,
                                   ReferenceSelection selection = ReferenceSelection::correlation) {
  const std::vector<double> y = omp_reference_parts::widen_row(signal);
  const double energy = omp_reference_parts::dot(y, y);
  ReferenceCode code;
  std::vector<bool> out_of_play(atoms.rows());
  std::vector<std::vector<double>> basis,
      triangle;               // Gram-Schmidt: atom j = sum over i <= j of triangle[j][i] basis[i]
  std::vector<double> along;  // coordinates of y in the basis
  std::vector<double> r = y;
  std::vector<std::vector<double>> outside_parts;  // of all atoms, for selection by error
  if (selection == ReferenceSelection::error)
    for (size_t i = 0; i < atoms.rows(); ++i)
      outside_parts.push_back(omp_reference_parts::widen_row(atoms.row(i)));
  while (code.ids.size() < sparsity) {
    // 1e-12: below it the residual is the rounding of double.
    const double floor = 1e-12;
    if (omp_reference_parts::dot(r, r) <= std::max(error_target * error_target, floor * floor) * energy)
      break;
    double best = 0, second = 0;
    size_t winner = atoms.rows();
    for (size_t i = 0; i < atoms.rows(); ++i) {
      if (out_of_play[i]) continue;
      double value = std::abs(omp_reference_parts::dot(omp_reference_parts::widen_row(atoms.row(i)), r));
      if (selection == ReferenceSelection::error) {
        const double left = omp_reference_parts::dot(outside_parts[i], outside_parts[i]);
        if (left <= omp_reference_parts::kDependent *
                        omp_reference_parts::dot(omp_reference_parts::widen_row(atoms.row(i)),
                                                 omp_reference_parts::widen_row(atoms.row(i))))
          continue;
        value /= std::sqrt(left);
      }
      if (value > best) {
        second = best, best = value, winner = i;
      } else {
        second = std::max(second, value);
      }
    }
    if (winner == atoms.rows() || best <= floor * std::sqrt(energy)) break;
    out_of_play[winner] = true;
    std::vector<double> q = omp_reference_parts::widen_row(atoms.row(winner));
    const double atom_energy = omp_reference_parts::dot(q, q);
    std::vector<double> column(basis.size());
    for (int pass = 0; pass < 2; ++pass)  // twice is enough (Kahan; Parlett, 1980)
      for (size_t i = 0; i < basis.size(); ++i) {
        const double part = omp_reference_parts::dot(q, basis[i]);
        column[i] += part;
        for (size_t c = 0; c < q.size(); ++c) q[c] -= part * basis[i][c];
      }
    const double outside = omp_reference_parts::dot(q, q);
    if (outside <= omp_reference_parts::kDependent * atom_energy) continue;
    code.narrowest = std::min(code.narrowest, (best - second) / best);
    for (double& value : q) value /= std::sqrt(outside);
    column.push_back(std::sqrt(outside));
    along.push_back(omp_reference_parts::dot(q, y));
    for (size_t c = 0; c < r.size(); ++c) r[c] -= along.back() * q[c];
    for (std::vector<double>& part : outside_parts) {
      const double along_q = omp_reference_parts::dot(part, q);
      for (size_t c = 0; c < q.size(); ++c) part[c] -= along_q * q[c];
    }
    basis.push_back(std::move(q));
    triangle.push_back(std::move(column));
    code.ids.push_back(static_cast<uint32_t>(winner));
  }
  code.coefficients.resize(code.ids.size());
  for (size_t i = code.ids.size(); i-- > 0;) {
    double value = along[i];
    for (size_t j = i + 1; j < code.ids.size(); ++j) value -= triangle[j][i] * code.coefficients[j];
    code.coefficients[i] = value / triangle[i][i];
  }
  std::vector<double> rest = y;
  for (size_t i = 0; i < code.ids.size(); ++i)
    for (size_t c = 0; c < rest.size(); ++c) rest[c] -= code.coefficients[i] * double{atoms(code.ids[i], c)};
  code.residual = std::sqrt(omp_reference_parts::dot(rest, rest));
  return code;
}

}  // namespace kvcodec
