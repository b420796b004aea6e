// Rotations of heads that depend on the queries.
#include <cmath>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/q4/rotation.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/hadamard.hpp"
#include "test/test.hpp"

namespace q4_rotation_test {

using namespace kvcodec;

namespace {

constexpr size_t kDims = 32;
const GroupShape kKeys = usual_group(0, 1, 2, kDims, Side::key);

/// Vectors whose energy lies in few directions, none of which is a channel.
Matrix<float> in_few_directions(size_t rows, size_t heads, Rng& rng) {
  Matrix<float> directions(kDims, kDims), out(rows, heads * kDims);
  for (float& value : std::span(directions.data(), directions.size()))
    value = static_cast<float>(rng.normal());
  for (size_t i = 0; i < rows; ++i)
    for (size_t head = 0; head < heads; ++head)
      for (size_t k = 0; k < kDims; ++k) {
        const double amount = rng.normal() * std::exp2(-double(k));
        for (size_t j = 0; j < kDims; ++j)
          out(i, head * kDims + j) += static_cast<float>(amount * double(directions(k, j)));
      }
  return out;
}

struct Learned {
  Encoded encoded{q4::rotation_streams(kKeys)};
  StreamStore& document = encoded.add_document();
};

void learn(Learned& learned, const GroupShape& shape, const Matrix<float>& queries,
           const Matrix<float>& rows) {
  const auto survey = q4::make_rotation_survey(shape, true);
  if (queries.rows() > 0) survey->observe_queries({}, queries);
  survey->observe(rows);
  survey->end_document();
  survey->finish(learned.document);
}

}  // namespace

TEST_CASE("q4: rotated back is what was rotated, and lengths stay") {
  Rng rng(80);
  const Matrix<float> queries = in_few_directions(300, 4, rng), keys = in_few_directions(50, 2, rng);
  Learned learned;
  learn(learned, kKeys, queries, keys);
  const q4::Rotations rotations(kKeys, learned.document);
  std::vector<float> rotated(2 * kDims), back(2 * kDims);
  for (size_t i = 0; i < keys.rows(); ++i) {
    rotations.forward(keys.row(i), rotated);
    rotations.back(rotated, back);
    double energy = 0, length = 0, error = 0;
    for (size_t j = 0; j < 2 * kDims; ++j) {
      energy += double(keys(i, j)) * double(keys(i, j));
      length += double(rotated[j]) * double(rotated[j]);
      error += std::pow(double(keys(i, j)) - double(back[j]), 2);
    }
    CHECK(length == doctest::Approx(energy).epsilon(0.02));
    CHECK_LE(error, 1e-4 * energy);
  }
}

TEST_CASE("q4: rotations lay what queries hold evenly on all channels, and of values what they hold") {
  Rng rng(81);
  for (const Side side : kSides) {
    const GroupShape shape = of_side(kKeys, side);
    const size_t heads = side == Side::key ? 4 : 2;
    const Matrix<float> seen = in_few_directions(1000, heads, rng), other = in_few_directions(100, 2, rng);
    Learned learned;
    learn(learned, shape, side == Side::key ? seen : other, side == Side::key ? other : seen);
    const q4::Rotations rotations(shape, learned.document);
    std::vector<double> energy(2 * kDims);
    double least = INFINITY, largest = 0, plain_least = INFINITY, plain_most = 0;
    std::vector<double> plain(2 * kDims);
    std::vector<float> row(2 * kDims), rotated(2 * kDims);
    for (size_t i = 0; i < seen.rows(); ++i)
      for (size_t part = 0; part < heads / 2; ++part) {
        // Consecutive query heads share a key head.
        for (size_t head = 0; head < 2; ++head)
          for (size_t j = 0; j < kDims; ++j)
            row[head * kDims + j] = seen(i, (head * (heads / 2) + part) * kDims + j);
        rotations.forward(row, rotated);
        hadamard(row, kDims);
        for (size_t j = 0; j < 2 * kDims; ++j) {
          energy[j] += double(rotated[j]) * double(rotated[j]);
          plain[j] += double(row[j]) * double(row[j]);
        }
      }
    for (size_t j = 0; j < kDims; ++j) {
      least = std::min(least, energy[j]), largest = std::max(largest, energy[j]);
      plain_least = std::min(plain_least, plain[j]), plain_most = std::max(plain_most, plain[j]);
    }
    CHECK_LE(largest, 1.1 * least);
    CHECK_GE(plain_most, 3 * plain_least);
  }
}

TEST_CASE("q4: without queries keys get a Hadamard transform") {
  Rng rng(82);
  const Matrix<float> keys = in_few_directions(20, 2, rng);
  Learned learned;
  learn(learned, kKeys, Matrix<float>(0, 0), keys);
  const q4::Rotations rotations(kKeys, learned.document);
  std::vector<float> rotated(2 * kDims), expected(2 * kDims);
  for (size_t i = 0; i < keys.rows(); ++i) {
    std::ranges::copy(keys.row(i), expected.begin());
    hadamard(expected, kDims);
    rotations.forward(keys.row(i), rotated);
    for (size_t j = 0; j < 2 * kDims; ++j) CHECK(rotated[j] == doctest::Approx(expected[j]).epsilon(1e-4));
  }
}

}  // namespace q4_rotation_test
