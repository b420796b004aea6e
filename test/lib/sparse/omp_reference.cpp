#include "test/lib/sparse/omp_reference.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvcodec {

namespace {

template <class A, class B>
double dot(std::span<const A> a, std::span<const B> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return dot(std::span<const double>(a), std::span<const double>(b));
}

std::vector<double> widen_row(std::span<const float> row) { return {row.begin(), row.end()}; }

/// Atoms with less of their energy outside the span of the chosen ones depend on these, up to the rounding of double.
constexpr double kDependent = 1e-12;

}  // namespace

ReferenceCode omp_reference(MatrixView<const float> atoms, std::span<const float> signal, size_t sparsity,
                            double error_target) {
  const std::vector<double> y = widen_row(signal);
  const double energy = dot(y, y);
  ReferenceCode code;
  std::vector<bool> out_of_play(atoms.rows());
  std::vector<std::vector<double>> basis,
      triangle;               // Gram-Schmidt: atom j = sum over i <= j of triangle[j][i] basis[i]
  std::vector<double> along;  // coordinates of y in the basis
  std::vector<double> r = y;
  while (code.ids.size() < sparsity) {
    // 1e-12: below it the residual is the rounding of double.
    const double floor = 1e-12;
    if (dot(r, r) <= std::max(error_target * error_target, floor * floor) * energy) break;
    double best = 0, second = 0;
    size_t winner = atoms.rows();
    for (size_t i = 0; i < atoms.rows(); ++i) {
      if (out_of_play[i]) continue;
      const double value = std::abs(dot(atoms.row(i), std::span<const double>(r)));
      if (value > best) {
        second = best, best = value, winner = i;
      } else {
        second = std::max(second, value);
      }
    }
    if (winner == atoms.rows() || best <= floor * std::sqrt(energy)) break;
    out_of_play[winner] = true;
    std::vector<double> q = widen_row(atoms.row(winner));
    const double atom_energy = dot(q, q);
    std::vector<double> column(basis.size());
    for (int pass = 0; pass < 2; ++pass)  // twice is enough (Kahan; Parlett, 1980)
      for (size_t i = 0; i < basis.size(); ++i) {
        const double part = dot(q, basis[i]);
        column[i] += part;
        for (size_t c = 0; c < q.size(); ++c) q[c] -= part * basis[i][c];
      }
    const double outside = dot(q, q);
    if (outside <= kDependent * atom_energy) continue;
    code.narrowest = std::min(code.narrowest, (best - second) / best);
    for (double& value : q) value /= std::sqrt(outside);
    column.push_back(std::sqrt(outside));
    along.push_back(dot(q, y));
    for (size_t c = 0; c < r.size(); ++c) r[c] -= along.back() * q[c];
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
  code.residual = std::sqrt(dot(rest, rest));
  return code;
}

}  // namespace kvcodec
