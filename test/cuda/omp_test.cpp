#include "cuda/omp/omp.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/sparse/dictionary.hpp"
#include "test/cuda/device_case.hpp"
#include "test/lib/sparse/omp_reference.hpp"

namespace omp_test {

using namespace kvcodec;

namespace {

Matrix<float> random_atoms(Rng& rng, size_t n, size_t m) {
  Matrix<float> atoms = test::random_rows(rng, n, m);
  normalize_atoms(atoms);
  return atoms;
}

void same(const SparseCodes& found, const SparseCodes& expected) {
  CHECK(found.counts == expected.counts);
  CHECK(found.residuals == expected.residuals);
  CHECK(std::equal(expected.ids.data(), expected.ids.data() + expected.ids.size(), found.ids.data()));
  CHECK(std::equal(expected.coefficients.data(), expected.coefficients.data() + expected.coefficients.size(),
                   found.coefficients.data()));
}

/// Codes of the device equal lib's, with and without lookup of inner products.
void same_as_lib(MatrixView<const float> atoms, MatrixView<const float> signals, int64_t s,
                 double target = 0) {
  OmpOptions options;
  options.sparsity = s, options.error_target = target;
  const SparseCodes expected = Omp(atoms).encode(signals, options);
  cuda::OmpDictionary device(atoms);
  same(cuda::sparse_codes(device, signals, options), expected);
  if (s > 12) return;  // long pursuits take the emulation long
  device.build_gram(cuda::Stream());
  CHECK(device.device().gram != nullptr);
  same(cuda::sparse_codes(device, signals, options), expected);
}

}  // namespace

TEST_CASE("device: pursuits come to lib's codes") {
  NEEDS_DEVICE();
  const uint64_t seed = 41;
  INFO("seed ", seed);
  Rng rng(seed);
  struct Shape {
    size_t atoms, width, signals;
    int64_t sparsity;
  };
  // One tile of atoms and several; widths that are no multiple of what rows are padded to; more than one tile
  // of signals.
  for (const auto [n, m, count, s] : {Shape{1, 1, 3, 1}, Shape{7, 5, 4, 5}, Shape{300, 24, 9, 11},
                                      Shape{64, 40, 130, 3}, Shape{600, 33, 5, 4}, Shape{40, 70, 6, 18}}) {
    CAPTURE(n);
    CAPTURE(m);
    CAPTURE(s);
    const Matrix<float> atoms = random_atoms(rng, n, m), signals = test::random_rows(rng, count, m);
    same_as_lib(atoms, signals, s);
  }
}

TEST_CASE("device: pursuits of widths beyond one pass of a block, streamed residuals (large)") {
  NEEDS_DEVICE();
  const uint64_t seed = 42;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t m : {540, 1100}) {  // 1100: residuals do not fit shared memory
    CAPTURE(m);
    const Matrix<float> atoms = random_atoms(rng, 130, m), signals = test::random_rows(rng, 5, m);
    same_as_lib(atoms, signals, 4);
  }
}

TEST_CASE("device: pursuits stop where lib's do") {
  NEEDS_DEVICE();
  const uint64_t seed = 43;
  INFO("seed ", seed);
  Rng rng(seed);
  const Matrix<float> atoms = random_atoms(rng, 90, 20);
  Matrix<float> signals = test::random_rows(rng, 40, 20);
  for (float& value : signals.row(3)) value = 0;
  for (size_t i = 4; i < 12; ++i) {  // sums of a few atoms: their residuals vanish
    std::ranges::fill(signals.row(i), 0.0f);
    for (size_t k = 0; k <= i % 4; ++k)
      for (size_t c = 0; c < 20; ++c) signals(i, c) += static_cast<float>(k + 1) * atoms((7 * i + k) % 90, c);
  }
  for (size_t i = 0; i < 40; ++i)  // sizes from far below to far above f16's
    for (float& value : signals.row(i)) value *= std::pow(10.0f, static_cast<float>(i) - 20.0f);
  for (const double target : {0.0, 0.3, 0.01}) {
    CAPTURE(target);
    same_as_lib(atoms, signals, 16, target);
  }
  same_as_lib(atoms, signals, 5, 1e-5);
  // The residual after three atoms is about the target: energies by subtraction are not exact enough to decide.
  Matrix<float> close(30, 20);
  for (size_t i = 0; i < 30; ++i) {
    for (size_t k = 0; k < 3; ++k)
      for (size_t c = 0; c < 20; ++c) close(i, c) += static_cast<float>(k + 2) * atoms((5 * i + k) % 90, c);
    const auto noise = static_cast<float>(0.5e-4 + 0.04e-4 * static_cast<double>(i));
    for (size_t c = 0; c < 20; ++c) close(i, c) += noise * static_cast<float>(rng.normal());
  }
  same_as_lib(atoms, close, 7, 1e-4);
  OmpOptions options;
  options.sparsity = 20, options.error_target = 0.3;
  const SparseCodes codes = cuda::sparse_codes(cuda::OmpDictionary(atoms), signals, options);
  CHECK(codes.counts[3] == 0);
  for (size_t i = 13; i < 40; ++i) {
    CHECK(codes.counts[i] > 0);
    CHECK(codes.counts[i] < 20);
  }
  // Denormal values, whose norm has no inverse in float.
  Matrix<float> tiny = test::random_rows(rng, 3, 20);
  for (size_t i = 0; i < tiny.size(); ++i) tiny.data()[i] *= 1e-42f;
  same_as_lib(atoms, tiny, 8);
}

TEST_CASE("device: atoms that are nearly or quite equal, or depend on others") {
  NEEDS_DEVICE();
  const uint64_t seed = 44;
  INFO("seed ", seed);
  Rng rng(seed);
  // Families of atoms that differ by less than f16 can tell, some not at all: winners are found by the very
  // products, taken atoms hide others of their tile, and dependent ones are refused one after the other.
  Matrix<float> atoms = random_atoms(rng, 330, 12);
  for (size_t i = 0; i < 330; ++i)
    for (size_t c = 0; c < 12; ++c)
      atoms(i, c) = atoms(i % 5, c) * (1 + (i % 3 == 0 ? 0.0f : static_cast<float>(rng.normal()) * 1e-6f));
  normalize_atoms(atoms);
  Matrix<float> signals = test::random_rows(rng, 6, 12);
  for (size_t c = 0; c < 12; ++c) signals(2, c) = atoms(4, c);
  same_as_lib(atoms, signals, 12);
  same_as_lib(atoms, signals, 3);
  // The first atom is refused once the second is taken, and still has the largest product with the residual.
  Matrix<float> leaning(8, 8), along(1, 8);
  for (size_t i = 0; i < 8; ++i) leaning(i, i) = 1;
  leaning(1, 0) = 1, leaning(1, 1) = 3e-3f;
  normalize_atoms(leaning);
  along(0, 0) = 2, along(0, 1) = 1, along(0, 2) = 1e-3f, along(0, 5) = 5e-4f;
  same_as_lib(leaning, along, 4);
  // Atoms with one large entry each, and their sums: correlations tie exactly.
  Matrix<float> units(24, 8);
  for (size_t i = 0; i < 24; ++i)
    for (size_t c = 0; c < 8; ++c) units(i, c) = c == i % 8 ? (i < 16 ? 1.0f : -1.0f) : 0.0f;
  Matrix<float> flat(4, 8);
  for (size_t i = 0; i < flat.size(); ++i) flat.data()[i] = i % 3 == 0 ? -1.0f : 1.0f;
  same_as_lib(units, flat, 8);
}

TEST_CASE("device: selection of atoms against a reference in double") {
  NEEDS_DEVICE();
  const uint64_t seed = 45;
  INFO("seed ", seed);
  Rng rng(seed);
  const Matrix<float> atoms = random_atoms(rng, 200, 30), signals = test::random_rows(rng, 8, 30);
  OmpOptions options;
  options.sparsity = 7;
  const SparseCodes codes = cuda::sparse_codes(cuda::OmpDictionary(atoms), signals, options);
  for (size_t i = 0; i < 8; ++i) {
    const ReferenceCode expected = omp_reference(atoms, signals.row(i), 7);
    if (expected.narrowest < 1e-5) continue;  // floats may tell otherwise
    CHECK(std::equal(expected.ids.begin(), expected.ids.end(), codes.ids.row(i).begin()));
    CHECK(std::abs(codes.residuals[i] - expected.residual) <= 1e-5 * expected.residual);
  }
}

TEST_CASE("device: pursuits that do not fit are refused") {
  NEEDS_DEVICE();
  Rng rng(46);
  const Matrix<float> atoms = random_atoms(rng, 20, 10);
  const cuda::OmpDictionary device(atoms);
  const auto message = [&](const auto& change, size_t width = 10, float value = 1) -> std::string {
    OmpOptions options;
    options.sparsity = 4;
    change(options);
    Matrix<float> signals(3, width);
    signals(1, 2) = value;
    try {
      (void)cuda::sparse_codes(device, signals, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto as_it_is = [](OmpOptions&) {};
  CHECK(message(as_it_is).empty());
  CHECK(message([](OmpOptions& o) { o.sparsity = 11; }).find("10 values") != std::string::npos);
  CHECK(message(as_it_is, 9).find("width 10") != std::string::npos);
  CHECK(message(as_it_is, 10, INFINITY).find("signal 1 ") != std::string::npos);
  CHECK(message(as_it_is, 10, NAN).find("signal 1 ") != std::string::npos);
  Matrix<float> long_atoms = atoms;
  for (float& value : long_atoms.row(5)) value *= 1.01f;
  CHECK_THROWS_AS(cuda::OmpDictionary{long_atoms}, Error);
  OmpOptions few;
  few.sparsity = 4;
  CHECK(cuda::sparse_codes(device, Matrix<float>(0, 10), few).counts.empty());
}

}  // namespace omp_test
