#include "cuda/rvq/rvq.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

namespace rvq_test {

using namespace kvcodec;

namespace {

struct Shape {
  size_t stages, entries, width;
};
/// Around multiples of 16 dimensions, tiles of 64 entries and powers of two.
constexpr Shape kShapes[] = {{1, 1, 1},    {2, 2, 3},     {3, 63, 16},  {3, 64, 17}, {2, 65, 48},
                             {4, 130, 80}, {2, 200, 128}, {1, 33, 129}, {2, 96, 256}};

Codebooks random_books(const Shape& shape, Rng& rng) {
  Codebooks books(shape.stages, shape.entries, shape.width);
  for (size_t s = 0; s < shape.stages; ++s)
    for (size_t e = 0; e < shape.entries; ++e)
      for (float& value : books.stage(s).row(e))
        value = static_cast<float>(rng.normal() * std::exp2(-static_cast<double>(s)));
  return books;
}

Matrix<float> random_rows(size_t n, size_t width, double loudness, Rng& rng) {
  Matrix<float> rows(n, width);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(loudness * rng.normal());
  return rows;
}

/// The number of rows whose ids differ from those of the CPU.
size_t wrong_ids(const Codebooks& books, const Matrix<float>& rows, size_t beam = 1) {
  Matrix<uint32_t> expected(rows.rows(), books.stages()), found(rows.rows(), books.stages());
  ResidualEncoder(books).encode(rows, beam, expected);
  for (size_t i = 0; i < found.size(); ++i) found.data()[i] = ~0u;
  cuda::ResidualQuantizer(books).encode(rows, beam, found);
  size_t wrong = 0;
  for (size_t i = 0; i < rows.rows(); ++i)
    wrong += !std::equal(found.row(i).begin(), found.row(i).end(), expected.row(i).begin());
  return wrong;
}

}  // namespace

TEST_CASE("rvq on a device: sums of entries are those of the CPU, bit for bit") {
  NEEDS_DEVICE();
  const uint64_t seed = 31;
  Rng rng(seed);
  for (const Shape& shape : kShapes) {
    INFO(shape.stages, " books of ", shape.entries, " x ", shape.width);
    const Codebooks books = random_books(shape, rng);
    const cuda::ResidualQuantizer quantizer(books);
    for (const size_t n : {0, 1, 7, 100}) {
      Matrix<uint32_t> ids(n + 5, shape.stages);
      for (size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<uint32_t>(rng.below(shape.entries));
      const auto wanted = ids.view().rows(5, n);
      Matrix<float> expected(n, shape.width), out(n, shape.width + 1);
      sum_entries(books, wanted, expected);
      for (size_t i = 0; i < out.size(); ++i) out.data()[i] = -7;
      quantizer.sum_entries(wanted, out.view().columns(0, shape.width));
      size_t wrong = 0;
      for (size_t i = 0; i < n; ++i)
        wrong += std::memcmp(out.row(i).data(), expected.row(i).data(), shape.width * 4) != 0 ||
                 out(i, shape.width) != -7;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("rvq on a device: greedy ids are those of the CPU") {
  NEEDS_DEVICE();
  const uint64_t seed = 32;
  Rng rng(seed);
  for (const Shape& shape : kShapes) {
    INFO(shape.stages, " books of ", shape.entries, " x ", shape.width);
    const Codebooks books = random_books(shape, rng);
    for (const size_t n : {1, 15, 128, 150})
      CHECK(wrong_ids(books, random_rows(n, shape.width, std::exp2(rng.uniform(-2, 2)), rng)) == 0);
  }
  CHECK(wrong_ids(random_books(kShapes[2], rng), Matrix<float>(0, 16)) == 0);
}

TEST_CASE("rvq on a device: ids of a beam search are those of the CPU") {
  NEEDS_DEVICE();
  const uint64_t seed = 36;
  INFO("seed ", seed);
  Rng rng(seed);
  // Several rows of a warp, one, parts of one; more hypotheses than entries; more blocks than one.
  for (const Shape& shape : {Shape{1, 1, 1}, {2, 2, 3}, {3, 63, 16}, {4, 130, 80}, {5, 9, 40}, {2, 96, 256}})
    for (const size_t beam : {2, 5, 16, 17, 40, 64}) {
      INFO(shape.stages, " books of ", shape.entries, " x ", shape.width, ", beam ", beam);
      const size_t n = beam < 6 ? 67 : 5;
      CHECK(wrong_ids(random_books(shape, rng),
                      random_rows(n, shape.width, std::exp2(rng.uniform(-2, 2)), rng), beam) == 0);
    }
  CHECK(wrong_ids(random_books(kShapes[2], rng), Matrix<float>(0, 16), 3) == 0);
  Matrix<uint32_t> ids(1, 2);
  const Codebooks books = random_books({2, 8, 16}, rng);
  const cuda::ResidualQuantizer quantizer(books);
  CHECK_THROWS_AS(quantizer.encode(Matrix<float>(1, 16), 0, ids), Error);
  CHECK_THROWS_AS(quantizer.encode(Matrix<float>(1, 16), 65, ids), Error);
  // Scores would fit floats, the squared residual of the row would not.
  Matrix<float> loud(1, 16);
  loud(0, 0) = 1e20f;
  CHECK_NOTHROW(quantizer.encode(loud, 1, ids));
  CHECK_THROWS_AS(quantizer.encode(loud, 2, ids), Error);
}

TEST_CASE("rvq on a device: near entries, ties, and values far from 1") {
  NEEDS_DEVICE();
  const uint64_t seed = 33;
  Rng rng(seed);
  Codebooks books(2, 150, 20);
  // Entries that differ in the last bits only, some of them twice: rough scores cannot tell them apart.
  for (size_t s = 0; s < 2; ++s)
    for (size_t e = 0; e < 150; ++e)
      for (size_t j = 0; j < 20; ++j)
        books.stage(s)(e, j) = static_cast<float>(std::sin(static_cast<double>(j + s)) +
                                                  1e-6 * static_cast<double>((e * 7 + j * e) % 50));
  CHECK(wrong_ids(books, random_rows(40, 20, 1, rng)) == 0);
  CHECK(wrong_ids(books, Matrix<float>(3, 20)) == 0);
  for (const size_t beam : {3, 20}) {
    CHECK(wrong_ids(books, random_rows(9, 20, 1, rng), beam) == 0);
    CHECK(wrong_ids(books, Matrix<float>(2, 20), beam) == 0);
  }
  for (const double loudness : {1e-30, 1e-8, 1e6, 1e15}) {
    Codebooks scaled = random_books({2, 70, 20}, rng);
    for (size_t s = 0; s < 2; ++s)
      for (size_t e = 0; e < 70; ++e)
        for (float& value : scaled.stage(s).row(e)) value = static_cast<float>(value * loudness);
    CHECK(wrong_ids(scaled, random_rows(20, 20, loudness, rng)) == 0);
    CHECK(wrong_ids(scaled, random_rows(20, 20, 1, rng)) == 0);
    CHECK(wrong_ids(scaled, random_rows(9, 20, loudness, rng), 4) == 0);
  }
}

TEST_CASE("rvq on a device: values whose scores are no floats are refused") {
  NEEDS_DEVICE();
  const uint64_t seed = 34;
  Rng rng(seed);
  const auto scaled_books = [&](double factor) {
    Codebooks books = random_books({2, 70, 20}, rng);
    for (size_t s = 0; s < 2; ++s)
      for (size_t e = 0; e < 70; ++e)
        for (float& value : books.stage(s).row(e))
          value = static_cast<float>(std::clamp(value * factor, -3e38, 3e38));
    return books;
  };
  const auto refused = [](const Codebooks& books, const Matrix<float>& rows) {
    Matrix<uint32_t> ids(rows.rows(), books.stages());
    try {
      cuda::ResidualQuantizer(books).encode(rows, 1, ids);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::bad_input;
    }
    return false;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  CHECK(wrong_ids(scaled_books(1e17), random_rows(20, 20, 1e17, rng)) == 0);
  for (const double factor : {1e19, 1e25, 1e37}) {
    INFO("factor ", factor);
    const Codebooks books = scaled_books(factor);
    CHECK(refused(books, random_rows(5, 20, 1, rng)));
    CHECK(refused(books, random_rows(5, 20, factor, rng)));
    CHECK(refused(random_books({2, 70, 20}, rng), random_rows(5, 20, factor, rng)) == (factor > 1e36));
    // Sums are those of the CPU still.
    Matrix<uint32_t> ids(4, 2);
    for (size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<uint32_t>(rng.below(70));
    Matrix<float> expected(4, 20), found(4, 20);
    sum_entries(books, ids, expected);
    cuda::ResidualQuantizer(books).sum_entries(ids, found);
    CHECK(std::memcmp(found.data(), expected.data(), found.size() * 4) == 0);
  }
  for (const float odd : {nan, infinity, -infinity}) {
    Matrix<float> rows = random_rows(5, 20, 1, rng);
    rows(3, 19) = odd;
    CHECK(refused(scaled_books(1), rows));
    Codebooks books = scaled_books(1);
    books.stage(1)(69, 3) = odd;
    CHECK(refused(books, random_rows(5, 20, 1, rng)));
  }
}

TEST_CASE("rvq on a device: what does not fit is refused") {
  NEEDS_DEVICE();
  Rng rng(1);
  const Codebooks books = random_books({2, 5, 8}, rng);
  const cuda::ResidualQuantizer quantizer(books);
  Matrix<uint32_t> ids(3, 2), few(3, 1);
  Matrix<float> rows(3, 8), narrow(3, 7);
  quantizer.encode(rows, 1, ids);
  quantizer.sum_entries(ids, rows);
  CHECK_THROWS_AS(quantizer.encode(narrow, 1, ids), Error);
  CHECK_THROWS_AS(quantizer.encode(rows, 1, few), Error);
  CHECK_THROWS_AS(quantizer.sum_entries(few, rows), Error);
  CHECK_THROWS_AS(quantizer.sum_entries(ids, narrow), Error);
  ids(2, 1) = 5;
  CHECK_THROWS_AS(quantizer.sum_entries(ids, rows), Error);
  CHECK_THROWS_AS(cuda::ResidualQuantizer(Codebooks(1, 4, 257)), Error);
}

}  // namespace rvq_test
