#include "lib/sparse/coefficients.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/dictionary.hpp"
#include "test/test.hpp"

namespace coefficients_test {

using namespace kvcodec;

namespace {

/// The number that a word of i8 stands for.
double number_of(uint16_t word) { return int(word) - int(kCoefficientOffset); }

/// Each coefficient to the nearest number, with the smallest scale that reaches the largest one, which it returns.
uint8_t round_to_nearest(std::span<const float> coefficients, std::span<uint16_t> words) {
  double largest = 0;
  for (const float x : coefficients) largest = std::max(largest, std::abs(double{x}));
  uint8_t scale = 0;
  while (127 * double{scale_from(scale)} < largest) ++scale;
  for (size_t i = 0; i < words.size(); ++i)
    words[i] =
        static_cast<uint16_t>(std::lrint(double{coefficients[i]} / scale_from(scale)) + kCoefficientOffset);
  return scale;
}

/// The Gram matrix of random atoms of norm 1 that have a common part.
Matrix<float> random_gram(size_t n, size_t width, double common, Rng& rng) {
  Matrix<float> atoms(n, width);
  for (size_t i = 0; i < n; ++i)
    for (size_t c = 0; c < width; ++c)
      atoms(i, c) = static_cast<float>(rng.normal() + (c == i % 3 ? common * std::sqrt(double(width)) : 0));
  normalize_atoms(atoms);
  Matrix<float> gram(n, n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t c = 0; c < width; ++c) sum += double{atoms(i, c)} * atoms(j, c);
      gram(i, j) = static_cast<float>(sum);
    }
  return gram;
}

std::vector<float> random_coefficients(size_t n, Rng& rng) {
  std::vector<float> coefficients(n);
  for (float& x : coefficients) x = static_cast<float>(rng.normal() * std::exp2(rng.uniform(-3, 3)));
  return coefficients;
}

/// (c - q)' G (c - q)
double added_energy(MatrixView<const float> gram, std::span<const float> coefficients,
                    std::span<const uint16_t> words, uint8_t scale) {
  double energy = 0;
  std::vector<double> off(coefficients.size());
  for (size_t i = 0; i < off.size(); ++i) off[i] = coefficients[i] - number_of(words[i]) * scale_from(scale);
  for (size_t i = 0; i < off.size(); ++i)
    for (size_t j = 0; j < off.size(); ++j) energy += off[i] * gram(i, j) * off[j];
  return energy;
}

}  // namespace

TEST_CASE("joint rounding of orthogonal atoms is rounding to the nearest number") {
  Rng rng(71);
  for (const size_t n : {1, 2, 7, 33}) {
    CAPTURE(n);
    Matrix<float> gram(n, n);
    for (size_t i = 0; i < n; ++i) gram(i, i) = 1;
    const std::vector<float> coefficients = random_coefficients(n, rng);
    std::vector<uint16_t> words(n), nearest(n);
    JointRounder rounder;
    const uint8_t scale = rounder.round(gram, coefficients, 0, words);
    const uint8_t reaching = round_to_nearest(coefficients, nearest);
    const double energy = added_energy(gram, coefficients, words, scale);
    CHECK_EQ(rounder.added(), doctest::Approx(energy).epsilon(1e-6));
    CHECK_LE(energy, added_energy(gram, coefficients, nearest, reaching) * (1 + 1e-9));
    for (size_t i = 0; i < n; ++i) {  // no other number is nearer
      const double off = std::abs(coefficients[i] - number_of(words[i]) * scale_from(scale));
      for (uint16_t word = 1; word < 256; ++word)
        CHECK_LE(off, std::abs(coefficients[i] - number_of(word) * scale_from(scale)) * (1 + 1e-6) + 1e-12);
    }
  }
}

TEST_CASE("joint rounding adds less than rounding each coefficient, and says how much") {
  Rng rng(72);
  for (const double common : {0.0, 1.0, 3.0}) {
    CAPTURE(common);
    double joint = 0, apart = 0;
    for (int i = 0; i < 40; ++i) {
      const size_t n = 8 + rng.below(40);
      const Matrix<float> gram = random_gram(n, 64, common, rng);
      const std::vector<float> coefficients = random_coefficients(n, rng);
      std::vector<uint16_t> words(n), again(n), nearest(n);
      JointRounder rounder;
      const uint8_t scale = rounder.round(gram, coefficients, 0, words);
      const double energy = added_energy(gram, coefficients, words, scale);
      CHECK_EQ(rounder.added(), doctest::Approx(energy).epsilon(0.01));
      CHECK_EQ(rounder.round(gram, coefficients, 0, again), scale);  // whatever it did before
      CHECK(words == again);
      joint += energy;
      apart += added_energy(gram, coefficients, nearest, round_to_nearest(coefficients, nearest));
    }
    MESSAGE("common " << common << ": " << joint / apart << " of the energy");
    CHECK_LE(joint, apart * 0.95);
  }
}

TEST_CASE("joint rounding of i8 takes the coarsest scale that adds no more than is allowed") {
  Rng rng(73);
  size_t coarser = 0;
  for (int i = 0; i < 60; ++i) {
    const size_t n = 1 + rng.below(48);
    const Matrix<float> gram = random_gram(n, 64, 1, rng);
    const std::vector<float> coefficients = random_coefficients(n, rng);
    std::vector<uint16_t> words(n);
    JointRounder rounder;
    const uint8_t least = rounder.round(gram, coefficients, 0, words);
    const double allowed = rounder.added() * std::exp2(rng.uniform(-2, 8));
    const uint8_t scale = rounder.round(gram, coefficients, allowed, words);
    CHECK_GE(scale, least);
    if (scale > least) {
      ++coarser;
      CHECK_LE(added_energy(gram, coefficients, words, scale), allowed * 1.001);
    }
    for (const uint16_t word : words) CHECK((word > 0 && word < 256));
    // If any error is allowed, there is nothing to store.
    rounder.round(gram, coefficients, 1e12, words);
    CHECK(std::ranges::count(words, 128) == ptrdiff_t(n));
  }
  CHECK_GE(coarser, 30);
}

TEST_CASE("joint rounding: nothing, zeros, atoms that depend on each other, and what is out of range") {
  JointRounder rounder;
  std::vector<uint16_t> words(3);
  CHECK_EQ(rounder.round({}, {}, 0, {}), 0);
  Matrix<float> gram(3, 3);
  std::fill(gram.data(), gram.data() + 9, 1.0f);  // the same atom three times
  CHECK_EQ(rounder.round(gram, std::vector<float>{0, 0, 0}, 0, words), 0);
  for (const uint16_t word : words) CHECK_EQ(word, kCoefficientOffset);
  CHECK_EQ(rounder.added(), 0);
  const std::vector<float> coefficients{1, -2, 2.9f};
  const uint8_t scale = rounder.round(gram, coefficients, 0, words);
  CHECK_LE(added_energy(gram, coefficients, words, scale), 0.06);
  CHECK_THROWS_AS(rounder.round(gram, std::vector<float>{1, 2, 1e9f}, 0, words), Error);
}

}  // namespace coefficients_test
