#include "lib/sparse/update.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/aligned.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {
namespace {

/// Atoms whose gradients are computed together, and atoms that are taken off at a time: these stay in a
/// second-level cache while all of those use them.
constexpr size_t kBlock = 64;

/// Values of atoms that one piece of work is about: cache lines, and enough to keep calls few.
constexpr size_t kColumns = 128;

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

}  // namespace

PairsByAtom::PairsByAtom(const SparseCodes& codes, size_t atoms) : offsets(atoms + 1) {
  const size_t signals = codes.counts.size();
  for (size_t i = 0; i < signals; ++i)
    for (size_t k = 0; k < codes.counts[i]; ++k) ++offsets[codes.ids(i, k) + 1];
  for (size_t atom = 0; atom < atoms; ++atom) offsets[atom + 1] += offsets[atom];
  pairs.resize(offsets[atoms]);
  std::vector<size_t> cursors(offsets.begin(), offsets.end() - 1);
  for (size_t i = 0; i < signals; ++i)
    for (size_t k = 0; k < codes.counts[i]; ++k)
      pairs[cursors[codes.ids(i, k)]++] = {static_cast<uint32_t>(i), codes.coefficients(i, k)};
}

void add_products(const SparseCodes& codes, const PairsByAtom& pairs, MatrixView<const float> batch,
                  float keep, Matrix<float>& coefficients, Matrix<float>& signals) {
  parallel_for(signals.rows(), 32, [&](size_t begin, size_t end, int) {
    for (size_t atom = begin; atom < end; ++atom) {
      const auto products = coefficients.row(atom), sums = signals.row(atom);
      for (float& value : products) value *= keep;
      for (float& value : sums) value *= keep;
      for (const auto& [signal, coefficient] : pairs.of(atom)) {
        for (size_t k = 0; k < codes.counts[signal]; ++k)
          products[codes.ids(signal, k)] += coefficient * codes.coefficients(signal, k);
        const float* y = batch.row(signal).data();
        for (size_t c = 0; c < sums.size(); ++c) sums[c] += coefficient * y[c];
      }
    }
  });
}

double descend(const Matrix<float>& coefficients, const Matrix<float>& signals, bool unit,
               MatrixView<float> atoms) {
  const size_t n = atoms.rows(), m = atoms.cols(), stride = round_up(m, omp_kernels::kFloatLanes);
  const auto& kernels = omp_kernels::best();
  // Rows that end with whole vectors, as the kernels want them.
  AlignedVector<float> padded(n * stride), gradients(kBlock * stride);
  for (size_t i = 0; i < n; ++i) std::ranges::copy(atoms.row(i), &padded[i * stride]);
  std::vector<float> step(m);
  double change = 0, energy = 0;
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t count = std::min(kBlock, n - first);
    parallel_for((stride + kColumns - 1) / kColumns, 1, [&](size_t piece, size_t, int) {
      const size_t column = piece * kColumns, columns = std::min(kColumns, stride - column);
      const float* rows[kBlock];
      for (size_t i = 0; i < count; ++i) {
        float* gradient = &gradients[i * stride + column];
        for (size_t c = 0; c < columns; ++c)
          gradient[c] = column + c < m ? signals(first + i, column + c) : 0.0f;
      }
      for (size_t other = 0; other < n; other += kBlock) {
        const size_t others = std::min(kBlock, n - other);
        for (size_t k = 0; k < others; ++k) rows[k] = &padded[(other + k) * stride + column];
        for (size_t i = 0; i < count; ++i) {
          float* gradient = &gradients[i * stride + column];
          kernels.residual(gradient, rows, coefficients.row(first + i).data() + other, others, columns,
                           gradient);
        }
      }
    });
    for (size_t i = 0; i < count; ++i) {
      const size_t atom = first + i;
      const float weight = coefficients(atom, atom);
      float* row = &padded[atom * stride];
      energy += sum_of_squares({row, m});
      if (!(weight > 0)) continue;
      const float* gradient = &gradients[i * stride];
      for (size_t c = 0; c < m; ++c) step[c] = row[c] + gradient[c] / weight;
      const double norm = std::sqrt(sum_of_squares(step));
      if (!std::isfinite(norm) || !(norm > 0)) continue;
      const auto scale = static_cast<float>(unit ? 1 / norm : 1);
      for (size_t c = 0; c < m; ++c) {
        const float value = step[c] * scale;
        step[c] = value - row[c];
        row[c] = value;
      }
      change += sum_of_squares(step);
      for (size_t other = i + 1; other < count; ++other) {
        const float product = coefficients(first + other, atom);
        float* rest = &gradients[other * stride];
        for (size_t c = 0; c < m; ++c) rest[c] -= product * step[c];
      }
    }
  }
  for (size_t i = 0; i < n; ++i) std::copy_n(&padded[i * stride], m, atoms.row(i).data());
  return energy > 0 ? change / energy : 0;
}

void ksvd(const PairsByAtom& pairs, MatrixView<float> residuals, MatrixView<float> atoms) {
  const size_t m = atoms.cols();
  std::vector<float> direction(m);
  for (size_t atom = 0; atom < atoms.rows(); ++atom) {
    const auto used = pairs.of(atom);
    if (used.empty()) continue;
    const auto row = atoms.row(atom);
    double weight = 0;
    std::fill(direction.begin(), direction.end(), 0.0f);
    for (const auto& [signal, coefficient] : used) {
      const auto r = residuals.row(signal);
      for (size_t c = 0; c < m; ++c) direction[c] += coefficient * r[c];
      weight += double{coefficient} * coefficient;
    }
    for (size_t c = 0; c < m; ++c) direction[c] += static_cast<float>(weight) * row[c];
    const double norm = std::sqrt(sum_of_squares(direction));
    if (!std::isfinite(norm) || !(norm > 0)) continue;
    for (float& value : direction) value = static_cast<float>(value / norm);
    // Of each signal with the atom taken off: the new coefficient, and what it leaves.
    for (const auto& [signal, coefficient] : used) {
      const auto r = residuals.row(signal);
      double product = 0;
      for (size_t c = 0; c < m; ++c) {
        r[c] += coefficient * row[c];
        product += double{r[c]} * direction[c];
      }
      const auto now = static_cast<float>(product);
      for (size_t c = 0; c < m; ++c) r[c] -= now * direction[c];
    }
    std::ranges::copy(direction, row.begin());
  }
}

}  // namespace kvcodec
