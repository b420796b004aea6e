#include "lib/sparse/omp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/omp_kernels.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/lib/sparse/omp_reference.hpp"
#include "test/test.hpp"

namespace omp_test {

using namespace kvcodec;

namespace {

/// n unit-norm rows of m values; `common` in [0, 1) is the part that all share: coherence about common^2.
Matrix<float> random_atoms(size_t n, size_t m, Rng& rng, double common = 0) {
  Matrix<float> atoms(n, m);
  std::vector<double> shared(m), row(m);
  for (double& value : shared) value = rng.normal();
  for (size_t i = 0; i < n; ++i) {
    double energy = 0;
    for (size_t c = 0; c < m; ++c) {
      row[c] = common * shared[c] + std::sqrt(1 - common * common) * rng.normal();
      energy += row[c] * row[c];
    }
    for (size_t c = 0; c < m; ++c) atoms(i, c) = static_cast<float>(row[c] / std::sqrt(energy));
  }
  return atoms;
}

Matrix<float> gaussian(size_t count, size_t m, Rng& rng, double scale = 1) {
  Matrix<float> rows(count, m);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(scale * rng.normal());
  return rows;
}

/// Sums of s random atoms, and noise.
Matrix<float> sparse_signals(size_t count, const Matrix<float>& atoms, size_t s, double noise, Rng& rng) {
  Matrix<float> rows(count, atoms.cols());
  for (size_t i = 0; i < count; ++i) {
    std::vector<double> row(atoms.cols());
    for (size_t k = 0; k < s; ++k) {
      const size_t id = rng.below(atoms.rows());
      const double weight = rng.normal() + (rng.below(2) ? 1 : -1);
      for (size_t c = 0; c < row.size(); ++c) row[c] += weight * atoms(id, c);
    }
    for (size_t c = 0; c < row.size(); ++c)
      rows(i, c) = static_cast<float>(row[c] + noise * rng.normal() / std::sqrt(double(row.size())));
  }
  return rows;
}

double norm(std::span<const float> row) {
  double energy = 0;
  for (const float value : row) energy += double{value} * value;
  return std::sqrt(energy);
}

/// |y - D x| with the coefficients as stored.
double residual_of(const Matrix<float>& atoms, std::span<const float> y, const SparseCodes& codes, size_t i) {
  std::vector<double> r(y.begin(), y.end());
  for (size_t k = 0; k < codes.counts[i]; ++k)
    for (size_t c = 0; c < r.size(); ++c)
      r[c] -= double{codes.coefficients(i, k)} * atoms(codes.ids(i, k), c);
  double energy = 0;
  for (const double value : r) energy += value * value;
  return std::sqrt(energy);
}

OmpOptions options_of(size_t sparsity, double target = 0) {
  OmpOptions options;
  options.sparsity = static_cast<int64_t>(sparsity);
  options.error_target = target;
  return options;
}

bool same(const SparseCodes& a, const SparseCodes& b) {
  const auto equal = [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.size() == 0 || std::memcmp(x.data(), y.data(), x.size() * sizeof(*x.data())) == 0);
  };
  return equal(a.ids, b.ids) && equal(a.coefficients, b.coefficients) && equal(a.counts, b.counts) &&
         equal(a.residuals, b.residuals);
}

/// Compares codes with the reference: distinct atoms, zeros after the count, the claimed residual, which is larger than the
/// reference's by at most 1e-4 (and the rounding of float), and the same atoms unless the reference met a near-tie.
struct Agreement {
  size_t signals = 0, same_atoms = 0;

  void check(const Matrix<float>& atoms, const Matrix<float>& signals_in, const OmpOptions& options,
             const SparseCodes& codes) {
    REQUIRE_EQ(codes.counts.size(), signals_in.rows());
    for (size_t i = 0; i < signals_in.rows(); ++i) {
      CAPTURE(i);
      const auto y = signals_in.row(i);
      const auto reference =
          omp_reference(atoms, y, static_cast<size_t>(options.sparsity), options.error_target);
      const size_t count = codes.counts[i];
      std::vector<uint32_t> ids(codes.ids.row(i).begin(),
                                codes.ids.row(i).begin() + static_cast<ptrdiff_t>(count));
      for (size_t k = count; k < codes.ids.cols(); ++k) {
        CHECK_EQ(codes.ids(i, k), 0);
        CHECK_EQ(codes.coefficients(i, k), 0);
      }
      const double actual = residual_of(atoms, y, codes, i);
      CHECK_LE(std::abs(actual - codes.residuals[i]), 1e-6 * norm(y));
      // A target may be met one atom earlier or later when the reference's residual is at the target itself.
      if (options.error_target == 0 || count == reference.ids.size())
        CHECK_LE(actual, reference.residual * (1 + 1e-4) + 3e-6 * norm(y));
      std::vector<uint32_t> expected = reference.ids;
      std::sort(ids.begin(), ids.end());
      std::sort(expected.begin(), expected.end());
      CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
      ++signals;
      same_atoms += ids == expected;
      if (reference.narrowest > 1e-4) CHECK(ids == expected);
    }
  }
};

/// Every atom three times, the last one negated.
Matrix<float> three_of_each(const Matrix<float>& atoms) {
  Matrix<float> all(3 * atoms.rows(), atoms.cols());
  for (size_t i = 0; i < all.rows(); ++i)
    for (size_t c = 0; c < all.cols(); ++c) all(i, c) = (i % 3 == 2 ? -1 : 1) * atoms(i / 3, c);
  return all;
}

/// True if code i contains none of three_of_each twice.
void check_all_differ(const SparseCodes& codes, size_t i) {
  std::vector<uint32_t> originals;
  for (size_t k = 0; k < codes.counts[i]; ++k) originals.push_back(codes.ids(i, k) / 3);
  std::sort(originals.begin(), originals.end());
  CHECK(std::adjacent_find(originals.begin(), originals.end()) == originals.end());
}

/// Atoms that span a plane only.
Matrix<float> atoms_of_a_plane() {
  Matrix<float> plane(40, 8);
  for (size_t i = 0; i < 40; ++i)
    plane(i, 0) = std::cos(0.1f * float(i)), plane(i, 1) = std::sin(0.1f * float(i));
  return plane;
}

}  // namespace

TEST_CASE("OMP finds what the reference finds, with and without a Gram matrix") {
  struct Case {
    size_t n, m, s, count;
    double common, noise;  // noise < 0: Gaussian signals
  };
  const Case cases[] = {
      {1, 1, 1, 3, 0, -1},         {2, 1, 1, 4, 0, -1},         {3, 7, 2, 20, 0, -1},
      {40, 16, 16, 20, 0, -1},     {127, 33, 5, 40, 0, -1},     {128, 64, 12, 150, 0, -1},
      {129, 64, 12, 33, 0.7, -1},  {300, 100, 20, 60, 0.9, -1}, {512, 128, 8, 60, 0, 0.05},
      {1000, 96, 24, 40, 0, 0.01}, {257, 50, 10, 40, 0.5, 0.1}, {600, 256, 32, 20, 0.3, -1},
  };
  Agreement agreement;
  for (const Case& c : cases) {
    CAPTURE(c.n);
    CAPTURE(c.m);
    Rng rng(100 + c.n);
    const Matrix<float> atoms = random_atoms(c.n, c.m, rng, c.common);
    const size_t count = test::kSanitized ? std::min<size_t>(c.count, 8) : c.count;
    const Matrix<float> signals =
        c.noise < 0 ? gaussian(count, c.m, rng, 3) : sparse_signals(count, atoms, c.s, c.noise, rng);
    Omp omp(atoms);
    const SparseCodes direct = omp.encode(signals, options_of(c.s));
    omp.build_gram();
    const SparseCodes gram = omp.encode(signals, options_of(c.s));
    CHECK(same(direct, gram));
    agreement.check(atoms, signals, options_of(c.s), gram);
  }
  MESSAGE("same atoms: " << agreement.same_atoms << " of " << agreement.signals);
  CHECK_GE(double(agreement.same_atoms), 0.99 * double(agreement.signals));
}

TEST_CASE("OMP with a pursuit so long that tiles wait: they are looked at in time, at every SIMD level") {
  // From 96 atoms per signal on every level leaves tiles out of date. Bounds decide which of them could hold the winner; for
  // similar atoms they alternately fail and hold.
  Rng rng(21);
  const size_t n = 900, m = 160;
  for (const double common : {0.0, 0.5, 0.95}) {
    CAPTURE(common);
    const Matrix<float> atoms = random_atoms(n, m, rng, common);
    const Matrix<float> signals = gaussian(3, m, rng);
    for (const size_t s : {96, 127}) {
      CAPTURE(s);
      const SparseCodes direct = Omp(atoms).encode(signals, options_of(s));
      Agreement agreement;
      agreement.check(atoms, signals, options_of(s), direct);
      for (const SimdLevel level : test::simd_levels()) {
        const test::AtLevel at(level);
        CAPTURE(name_of(level));
        Omp omp(atoms);
        omp.build_gram();
        CHECK(same(omp.encode(signals, options_of(s)), direct));
      }
    }
  }
}

TEST_CASE("OMP with many rounds") {
  Rng rng(18);
  for (const double common : {0.0, 0.5, 0.95}) {
    CAPTURE(common);
    const Matrix<float> atoms = random_atoms(900, 96, rng, common);
    const Matrix<float> signals = gaussian(test::kSanitized ? 3 : 6, 96, rng);
    Omp omp(atoms);
    omp.build_gram();
    const SparseCodes codes = omp.encode(signals, options_of(48));
    Agreement agreement;
    agreement.check(atoms, signals, options_of(48), codes);
    CHECK(same(codes, Omp(atoms).encode(signals, options_of(48))));
  }
}

TEST_CASE("OMP stops at the error target, and never takes an atom more than it needs") {
  Rng rng(5);
  const Matrix<float> atoms = random_atoms(400, 64, rng);
  const Matrix<float> signals = gaussian(test::kSanitized ? 24 : 80, 64, rng);
  for (const double target : {0.9, 0.5, 0.2, 0.05, 0.005}) {
    CAPTURE(target);
    Omp omp(atoms);
    const OmpOptions options = options_of(40, target);
    const SparseCodes direct = omp.encode(signals, options);
    omp.build_gram();
    const SparseCodes codes = omp.encode(signals, options);
    CHECK(same(direct, codes));
    Agreement agreement;
    agreement.check(atoms, signals, options, codes);
    size_t same_counts = 0;
    for (size_t i = 0; i < signals.rows(); ++i) {
      if (codes.counts[i] < 40) CHECK_LE(codes.residuals[i], target * norm(signals.row(i)) * (1 + 1e-3));
      same_counts += codes.counts[i] == omp_reference(atoms, signals.row(i), 40, target).ids.size();
    }
    CHECK_GE(same_counts, signals.rows() - 1);
  }
}

TEST_CASE("OMP recovers exactly sparse signals and then stops") {
  Rng rng(6);
  const Matrix<float> atoms = random_atoms(256, 128, rng);
  const Matrix<float> signals = sparse_signals(100, atoms, 6, 0, rng);
  Omp omp(atoms);
  omp.build_gram();
  const SparseCodes codes = omp.encode(signals, options_of(64));
  for (size_t i = 0; i < signals.rows(); ++i) {
    CHECK_LE(codes.residuals[i], 2e-6 * norm(signals.row(i)));
    CHECK_LE(codes.counts[i], 8);  // six atoms, some of them twice, and perhaps a detour
  }
}

TEST_CASE("OMP with degenerate dictionaries and signals") {
  Rng rng(7);
  const Matrix<float> atoms = three_of_each(random_atoms(50, 20, rng));
  Matrix<float> signals = gaussian(30, 20, rng);
  std::fill(signals.row(3).begin(), signals.row(3).end(), 0.0f);
  for (const bool gram : {false, true}) {
    Omp omp(atoms);
    if (gram) omp.build_gram();
    const SparseCodes codes = omp.encode(signals, options_of(20));
    CHECK_EQ(codes.counts[3], 0);
    CHECK_EQ(codes.residuals[3], 0);
    for (size_t i = 0; i < signals.rows(); ++i) {
      check_all_differ(codes, i);
      for (size_t k = 0; k < codes.counts[i]; ++k) CHECK_EQ(codes.ids(i, k) % 3, 0);  // the first of equals
      CHECK_LE(codes.residuals[i], 1e-4 * norm(signals.row(i)));  // 20 independent atoms span everything
    }
  }
  // Atoms that span a plane only: two are taken, the rest depends on them.
  Omp omp(atoms_of_a_plane());
  omp.build_gram();
  const SparseCodes codes = omp.encode(gaussian(10, 8, rng), options_of(8));
  for (size_t i = 0; i < 10; ++i) CHECK_LE(codes.counts[i], 2);
}

TEST_CASE("OMP refuses atoms that all but depend on those taken") {
  // Atoms that rise 0.0003 out of a plane: at most about 1e-6 of their energy, where inner products in float have no accuracy left.
  Matrix<float> atoms(30, 8);
  for (size_t i = 0; i < 30; ++i) {
    const double angle = 0.2 * double(i);
    atoms(i, 0) = float(std::cos(angle)), atoms(i, 1) = float(std::sin(angle)), atoms(i, 2) = 0.0003f;
  }
  Rng rng(12);
  const Matrix<float> signals = gaussian(20, 8, rng);
  for (const bool gram : {false, true}) {
    Omp omp(atoms);
    if (gram) omp.build_gram();
    const SparseCodes codes = omp.encode(signals, options_of(6));
    for (size_t i = 0; i < 20; ++i) {
      CHECK_LE(codes.counts[i], 2);
      for (size_t k = 0; k < codes.counts[i]; ++k) CHECK_LE(std::abs(codes.coefficients(i, k)), 40.0);
    }
  }
}

TEST_CASE("OMP coefficients are the least-squares ones to float precision, for coherent atoms too") {
  Rng rng(13);
  const Matrix<float> atoms = random_atoms(80, 40, rng, 0.9999);  // inner products near 0.9998
  const Matrix<float> signals = sparse_signals(60, atoms, 10, 0.3, rng);
  Omp omp(atoms);
  omp.build_gram();
  const SparseCodes codes = omp.encode(signals, options_of(10));
  size_t compared = 0;
  for (size_t i = 0; i < signals.rows(); ++i) {
    const ReferenceCode reference = omp_reference(atoms, signals.row(i), 10);
    if (!std::equal(reference.ids.begin(), reference.ids.end(), codes.ids.row(i).begin())) continue;
    ++compared;
    double largest = 0, error = 0;
    for (size_t k = 0; k < reference.ids.size(); ++k) {
      largest = std::max(largest, std::abs(reference.coefficients[k]));
      error = std::max(error, std::abs(reference.coefficients[k] - codes.coefficients(i, k)));
    }
    CHECK_LE(error, 1e-5 * largest);
  }
  CHECK_GE(compared, 55);
}

TEST_CASE("OMP does not depend on the scale of a signal, from the least floats to the largest") {
  Rng rng(8);
  const Matrix<float> atoms = random_atoms(200, 32, rng);
  const Matrix<float> signals = gaussian(20, 32, rng);
  const SparseCodes plain = Omp(atoms).encode(signals, options_of(6));
  for (const int exponent : {-100, -20, 20, 120}) {
    Matrix<float> scaled = signals;
    for (size_t i = 0; i < scaled.size(); ++i) scaled.data()[i] = std::ldexp(scaled.data()[i], exponent);
    const SparseCodes codes = Omp(atoms).encode(scaled, options_of(6));
    for (size_t i = 0; i < signals.rows(); ++i)
      for (size_t k = 0; k < 6; ++k) {
        CHECK_EQ(codes.ids(i, k), plain.ids(i, k));
        CHECK_EQ(codes.coefficients(i, k), std::ldexp(plain.coefficients(i, k), exponent));
      }
  }
  CHECK_EQ(Omp(atoms).encode(Matrix<float>(0, 32), options_of(6)).counts.size(), 0);
}

TEST_CASE("OMP gives the same bytes for any thread count and SIMD level") {
  Rng rng(9);
  const Matrix<float> atoms = random_atoms(700, 80, rng, 0.5);
  const Matrix<float> signals = gaussian(333, 80, rng);
  struct Form {
    bool gram;
    OmpOptions options;
  };
  // 40 atoms: correlations of the signals in float.
  for (const Form& form :
       {Form{false, options_of(15)}, Form{true, options_of(15)}, Form{true, options_of(40)}}) {
    CAPTURE(form.gram);
    SparseCodes first;
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      CAPTURE(name_of(level));
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        Omp omp(atoms);
        if (form.gram) omp.build_gram();
        SparseCodes codes = omp.encode(signals, form.options);
        if (first.counts.empty())
          first = std::move(codes);
        else
          CHECK(same(first, codes));
      }
    }
    set_num_threads(0);
  }
}

TEST_CASE("OMP refuses what it cannot do") {
  Rng rng(10);
  Matrix<float> atoms = random_atoms(20, 8, rng);
  const Omp omp(atoms);
  CHECK_THROWS_WITH_AS(omp.encode(Matrix<float>(2, 8), options_of(9)),
                       "sparsity is 9; signals have only 8 values", Error);
  CHECK_THROWS_AS(omp.encode(Matrix<float>(2, 7), options_of(3)), Error);
  CHECK_THROWS_AS(omp.encode(Matrix<float>(2, 8), options_of(3, 1.0)), Error);
  Matrix<float> signals(2, 8);
  signals(1, 4) = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS(omp.encode(signals, options_of(3)), "signal 1 has values that are not finite", Error);
  CHECK_THROWS_AS(Omp(Matrix<float>(0, 8)), Error);
  atoms(7, 0) += 0.5f;
  CHECK_THROWS_AS(Omp{atoms}, Error);
  atoms(7, 0) = std::nanf("");
  CHECK_THROWS_AS(Omp{atoms}, Error);
  CHECK_EQ(Omp::gram_bytes(8192), 192u << 20);
}

namespace {

bool equal_but_nans(const std::vector<float>& a, const std::vector<float>& b, size_t nans_expected) {
  size_t different = 0, nans = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    if (std::isnan(a[j]) || std::isnan(b[j]))
      ++nans;
    else
      different += a[j] != b[j];
  }
  return a.size() == b.size() && different == 0 && nans == nans_expected;
}

/// Screening in bytes with `count` full quads of rows.
void check_bytes(const omp_kernels::Kernels& wide, size_t count, const std::vector<float>& start, Rng& rng) {
  namespace k = omp_kernels;
  const size_t n = start.size(), capacity = count + 2;
  std::vector<std::vector<uint8_t>> last(4, std::vector<uint8_t>(n));
  for (auto& row : last)
    for (uint8_t& byte : row) byte = static_cast<uint8_t>(rng.next());
  std::vector<uint32_t> high(count + 1), low(count + 1);
  for (uint32_t& weight : high) weight = static_cast<uint32_t>(rng.next());
  for (uint32_t& weight : low) weight = static_cast<uint32_t>(rng.next());
  std::vector<uint8_t> random(n * capacity * 4);
  for (uint8_t& byte : random) byte = static_cast<uint8_t>(rng.next());
  for (const bool keep : {false, true}) {
    std::vector<uint8_t> quads[2] = {random, random};
    std::vector<float> values[2], peaks[2];
    for (const int which : {0, 1}) {
      const k::ByteRows rows{quads[which].data(),
                             capacity,
                             count,
                             {last[0].data(), last[1].data(), last[2].data(), last[3].data()},
                             keep,
                             high.data(),
                             low.data(),
                             -1234,
                             567,
                             1e-6f};
      values[which].resize(n);
      peaks[which].resize(n / k::kTile);
      (which ? wide : k::scalar::table())
          .screen_bytes(start.data(), rows, 0, n, values[which].data(), peaks[which].data());
    }
    CHECK(equal_but_nans(values[0], values[1], 2));
    CHECK(peaks[0] == peaks[1]);
    CHECK(quads[0] == quads[1]);
    CHECK_EQ(quads[0] == random, !keep);
    // A part of it, and without the values.
    std::vector<float> part = values[0], peaks_of_part = peaks[0];
    std::fill(part.begin() + k::kTile, part.begin() + 2 * k::kTile, 7.0f);
    const k::ByteRows rows{quads[1].data(),
                           capacity,
                           count,
                           {last[0].data(), last[1].data(), last[2].data(), last[3].data()},
                           false,
                           high.data(),
                           low.data(),
                           -1234,
                           567,
                           1e-6f};
    wide.screen_bytes(start.data(), rows, k::kTile, 2 * k::kTile, part.data(), peaks_of_part.data());
    CHECK(equal_but_nans(part, values[0], 2));
    std::fill(peaks_of_part.begin(), peaks_of_part.end(), 0.0f);
    wide.screen_bytes(start.data(), rows, 0, n, nullptr, peaks_of_part.data());
    CHECK(peaks_of_part == peaks[0]);
  }
}

/// The screening kernels with `count` pairs of rows.
void check_screening(const omp_kernels::Kernels& wide, size_t count, Rng& rng) {
  namespace k = omp_kernels;
  const size_t n = 3 * k::kTile, tiles = n / k::kScreen;
  const auto random_words = [&](size_t size) {
    std::vector<int16_t> words(size);
    for (int16_t& word : words) word = static_cast<int16_t>(rng.next());
    return words;
  };
  const auto panel = random_words(2 * count * k::kScreen), row = random_words(n);
  std::vector<uint32_t> weights(count);
  for (uint32_t& weight : weights) weight = static_cast<uint32_t>(rng.next());
  const Matrix<float> random = gaussian(3, n, rng);
  struct Arrays {
    std::vector<float> start, values, spread, peaks, spreads, results;
    uint32_t found = 0;
  };
  Arrays arrays[2];
  for (const int which : {0, 1}) {
    const k::Kernels& kernels = which ? wide : k::scalar::table();
    Arrays& x = arrays[which];
    x.start.assign(random.row(0).begin(), random.row(0).end());
    x.values.assign(random.row(1).begin(), random.row(1).end());
    x.spread.assign(random.row(2).begin(), random.row(2).end());
    for (float& value : x.spread) value *= value;
    for (const size_t atom : {size_t{5}, size_t{200}})
      x.start[atom] = x.values[atom] = x.spread[atom] = std::nanf("");
    x.peaks.resize(tiles);
    x.spreads.resize(tiles);
    kernels.peaks(x.values.data(), n, x.peaks.data());
    x.results = x.peaks;
    x.found = kernels.at_least(x.values.data(), std::abs(x.values[17]));  // one of them is equal
    kernels.apply_row({row.data(), n, 1e-5f, 2e-5f}, x.values.data(), x.spread.data(), x.peaks.data(),
                      x.spreads.data());
    x.results.push_back(
        kernels.screen(x.start.data(), panel.data(), weights.data(), count, 1e-9f, x.values.data()));
  }
  CHECK(arrays[0].results == arrays[1].results);
  CHECK(arrays[0].peaks == arrays[1].peaks);
  CHECK(arrays[0].spreads == arrays[1].spreads);
  CHECK_EQ(arrays[0].found, arrays[1].found);
  CHECK_EQ(arrays[0].found >> 17 & 1, 1);
  CHECK_EQ(arrays[0].found >> 5 & 1, 0);
  CHECK(equal_but_nans(arrays[0].start, arrays[1].start, 2));
  CHECK(equal_but_nans(arrays[0].values, arrays[1].values, 2));
  CHECK(equal_but_nans(arrays[0].spread, arrays[1].spread, 2));
  if (count > 0) CHECK_NE(arrays[0].values[0], arrays[0].start[0]);

  if (!wide.screen_bytes) return;
  std::vector<uint8_t> bytes[2] = {std::vector<uint8_t>(n), std::vector<uint8_t>(n)};
  k::scalar::table().words_to_bytes(row.data(), 201, n, bytes[0].data());
  wide.words_to_bytes(row.data(), 201, n, bytes[1].data());
  CHECK(bytes[0] == bytes[1]);
  check_bytes(wide, count, arrays[0].start, rng);
}

/// All kernels of a level against the scalar ones.
void check_kernels(const omp_kernels::Kernels& wide, Rng& rng) {
  namespace k = omp_kernels;
  for (const size_t count : {0, 1, 2, 3, 4, 5, 8, 11}) {
    CAPTURE(count);
    for (const size_t m : {16, 32, 48, 64, 80, 144}) {
      const Matrix<float> rows = gaussian(count, m, rng), y = gaussian(1, m, rng),
                          x = gaussian(1, std::max<size_t>(count, 1), rng);
      std::vector<const float*> pointers;
      for (size_t i = 0; i < count; ++i) pointers.push_back(rows.row(i).data());
      std::vector<float> out[2] = {std::vector<float>(count), std::vector<float>(count)};
      std::vector<float> floats[2] = {std::vector<float>(m), std::vector<float>(m)};
      for (const int which : {0, 1}) {
        const k::Kernels& kernels = which ? wide : k::scalar::table();
        kernels.dots(pointers.data(), count, y.data(), m, out[which].data());
        kernels.residual(y.data(), pointers.data(), x.data(), count, m, floats[which].data());
      }
      CHECK(out[0] == out[1]);
      CHECK(floats[0] == floats[1]);
    }
    const size_t offsets_of[] = {0, count, count, count + 3, 2 * count + 5};
    const std::vector<uint64_t> offsets(std::begin(offsets_of), std::end(offsets_of));
    std::vector<uint32_t> ids(offsets.back());
    for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(20));
    const Matrix<float> coefficients = gaussian(1, ids.size(), rng);
    for (size_t width = 1; width <= k::kTile; width += width < 34 || width > 120 ? 1 : 11) {
      const size_t row = round_up(width, k::kFloatLanes), stride = width + 1;
      const Matrix<float> slice = gaussian(20, row, rng);
      std::vector<float> out[2] = {std::vector<float>(4 * stride, -7.0f),
                                   std::vector<float>(4 * stride, -7.0f)};
      for (const int which : {0, 1})
        (which ? wide : k::scalar::table())
            .combine({slice.data(), row, width}, {ids.data(), coefficients.data(), offsets.data(), 4},
                     out[which].data(), stride);
      CHECK(out[0] == out[1]);
      for (size_t i = 0; i < 4; ++i) CHECK_EQ(out[1][i * stride + width], -7.0f);
    }
    check_screening(wide, count, rng);
  }
}

}  // namespace

TEST_CASE("OMP kernels: every level gives the scalar bits") {
  namespace k = omp_kernels;
  Rng rng(11);
  for (const SimdLevel level : test::simd_levels()) {
    if (level == SimdLevel::scalar) continue;
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    REQUIRE(&k::best() != &k::scalar::table());
    CHECK_EQ(k::best().screen_bytes != nullptr, level >= SimdLevel::avx512_vnni);
    check_kernels(k::best(), rng);
  }
}

TEST_CASE("OMP's inner products of atoms: those of doubles to rounding, the same at every level") {
  Rng rng(19);
  for (const size_t m : {1, 3, 64, 250}) {
    const Matrix<float> atoms = random_atoms(40, m, rng, 0.3);
    const std::vector<uint32_t> ids{7, 0, 39, 12, 8, 21};
    Matrix<float> first;
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      const Omp omp(atoms);
      Matrix<float> products(ids.size(), ids.size());
      omp.products_of(ids, products);
      if (first.size() == 0) first = products;
      CHECK(std::equal(first.data(), first.data() + first.size(), products.data()));
      for (size_t i = 0; i < ids.size(); ++i)
        for (size_t j = 0; j < ids.size(); ++j) {
          double sum = 0;
          for (size_t c = 0; c < m; ++c) sum += double{atoms(ids[i], c)} * atoms(ids[j], c);
          CHECK_LE(std::abs(products(i, j) - sum), 1e-5);
          CHECK_EQ(products(i, j), products(j, i));
        }
    }
    Matrix<float> none;
    Omp(atoms).products_of({}, none);
  }
}

}  // namespace omp_test
