// Compares OMP with scikit-learn's orthogonal_mp_gram. make_omp_fixtures.py made the fixtures and describes them; inputs are
// regenerated here from the same numbers.
#include "lib/sparse/omp.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "test/golden/fixtures.hpp"
#include "test/test.hpp"

namespace omp_test {

using namespace kvcodec;

namespace {

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : x_(seed) {}
  double uniform() {
    x_ = x_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(x_ >> 40) / 0x1p24;
  }
  double bell() {
    const double a = uniform(), b = uniform(), c = uniform(), d = uniform();
    return a + b + c + d - 2.0;
  }

 private:
  uint64_t x_;
};

enum Kind : uint32_t { kGaussian = 0, kSparse = 1, kTarget = 2 };

struct Case {
  uint32_t n, m, s, count, common, kind, percent;
  uint64_t seed;
  uint32_t atoms_xor, signals_xor;

  explicit Case(test::Fixtures& fixtures)
      : n(fixtures.next<uint32_t>()),
        m(fixtures.next<uint32_t>()),
        s(fixtures.next<uint32_t>()),
        count(fixtures.next<uint32_t>()),
        common(fixtures.next<uint32_t>()),
        kind(fixtures.next<uint32_t>()),
        percent(fixtures.next<uint32_t>()),
        seed(fixtures.next<uint64_t>()),
        atoms_xor(fixtures.next<uint32_t>()),
        signals_xor(fixtures.next<uint32_t>()) {}
};

Matrix<float> make_atoms(Numbers& numbers, const Case& c) {
  std::vector<double> shared(c.m), row(c.m);
  for (double& value : shared) value = numbers.bell();
  Matrix<float> atoms(c.n, c.m);
  for (size_t i = 0; i < c.n; ++i) {
    double energy = 0;
    for (size_t j = 0; j < c.m; ++j) {
      row[j] = c.common / 100.0 * shared[j] + (100 - c.common) / 100.0 * numbers.bell();
      energy += row[j] * row[j];
    }
    const double norm = std::sqrt(energy);
    for (size_t j = 0; j < c.m; ++j) atoms(i, j) = static_cast<float>(row[j] / norm);
  }
  return atoms;
}

Matrix<float> make_signals(Numbers& numbers, const Case& c, const Matrix<float>& atoms) {
  Matrix<float> signals(c.count, c.m);
  for (size_t i = 0; i < c.count; ++i) {
    std::vector<double> row(c.m);
    if (c.kind != kSparse) {
      for (double& value : row) value = numbers.bell();
    } else {
      for (uint32_t k = 0; k < c.s; ++k) {
        const auto atom = static_cast<size_t>(numbers.uniform() * c.n);
        const double weight = numbers.bell();
        for (size_t j = 0; j < c.m; ++j) row[j] += weight * double{atoms(atom, j)};
      }
      for (size_t j = 0; j < c.m; ++j) row[j] += c.percent / 100.0 * numbers.bell() / std::sqrt(double(c.m));
    }
    for (size_t j = 0; j < c.m; ++j) signals(i, j) = static_cast<float>(row[j]);
  }
  return signals;
}

uint32_t xor_of(const Matrix<float>& matrix) {
  uint32_t bits = 0;
  for (size_t i = 0; i < matrix.size(); ++i) bits ^= std::bit_cast<uint32_t>(matrix.data()[i]);
  return bits;
}

/// |y - D x| with the coefficients as they are stored.
double residual_of(const Matrix<float>& atoms, std::span<const float> y, const SparseCodes& codes, size_t i) {
  std::vector<double> r(y.begin(), y.end());
  for (size_t k = 0; k < codes.counts[i]; ++k)
    for (size_t j = 0; j < r.size(); ++j)
      r[j] -= double{codes.coefficients(i, k)} * atoms(codes.ids(i, k), j);
  double energy = 0;
  for (const double value : r) energy += value * value;
  return std::sqrt(energy);
}

}  // namespace

TEST_CASE("OMP takes the atoms that scikit-learn takes, at no larger error") {
  test::Fixtures fixtures("omp_fixtures.bin");
  size_t signals_seen = 0, same_atoms = 0;
  double worst = 0;
  for (uint32_t left = fixtures.next<uint32_t>(); left > 0; --left) {
    const Case c(fixtures);
    CAPTURE(c.seed);
    Numbers numbers(c.seed);
    const Matrix<float> atoms = make_atoms(numbers, c), signals = make_signals(numbers, c, atoms);
    REQUIRE_EQ(xor_of(atoms), c.atoms_xor);  // the generator, before the coder is blamed
    REQUIRE_EQ(xor_of(signals), c.signals_xor);
    OmpOptions options;
    options.sparsity = c.s;
    options.error_target = c.kind == kTarget ? c.percent / 100.0 : 0;
    Omp omp(atoms);
    omp.build_gram();
    const SparseCodes codes = omp.encode(signals, options);
    for (size_t i = 0; i < c.count; ++i) {
      std::vector<uint32_t> expected(fixtures.next<uint16_t>());
      const double reference = fixtures.next<double>();
      for (uint32_t& id : expected) id = fixtures.next<uint16_t>();
      std::vector<uint32_t> ids(codes.ids.row(i).begin(), codes.ids.row(i).begin() + codes.counts[i]);
      std::sort(ids.begin(), ids.end());
      const bool same = ids == expected;
      ++signals_seen;
      same_atoms += same;
      const double residual = residual_of(atoms, signals.row(i), codes, i);
      // With other atoms a target may be met by another margin.
      if (same || c.kind != kTarget) {
        worst = std::max(worst, residual / reference - 1);
        CHECK_LE(residual, reference * (1 + 1e-4));
      }
      if (c.kind == kTarget && codes.counts[i] < c.s) {
        double energy = 0;
        for (const float value : signals.row(i)) energy += double{value} * value;
        CHECK_LE(residual, options.error_target * std::sqrt(energy) * (1 + 1e-4));
      }
    }
  }
  CHECK(fixtures.at_end());
  MESSAGE("same atoms: " << same_atoms << " of " << signals_seen
                         << "; worst residual above the reference: " << worst);
  CHECK_GE(signals_seen, 1000);
  CHECK_GE(double(same_atoms), 0.99 * double(signals_seen));
}

}  // namespace omp_test
