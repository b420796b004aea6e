#include "cuda/selfindex/signvq.hpp"

#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/selfindex/sign_index.hpp"
#include "test/cuda/device_case.hpp"

namespace signvq_test {

using namespace kvcodec;

namespace {

struct Case {
  size_t tokens, heads, dims;
};

/// Twin against lib, bit for bit.
void same_codebooks(const Matrix<float>& rows, size_t heads) {
  const size_t row_bytes = sign_row_bytes(rows.cols() / heads);
  Matrix<uint8_t> codes(rows.rows(), heads * row_bytes);
  encode_signs(rows, heads, codes);
  const auto books = build_codebooks(rows, codes, heads), found = cuda::build_codebooks(rows, heads);
  REQUIRE(found.size() == books.size());
  for (size_t head = 0; head < heads; ++head)
    CHECK(std::equal(found[head].centroids.data(),
                     found[head].centroids.data() + found[head].centroids.size(),
                     books[head].centroids.data()));
}

}  // namespace

TEST_CASE("device: codebooks of sign codes are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 7;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const auto [tokens, heads, dims] : {Case{1, 1, 4}, Case{7, 3, 12}, Case{33, 2, 64}, Case{100, 1, 128},
                                           Case{65, 2, 36}, Case{4100, 1, 8}}) {
    CAPTURE(tokens);
    CAPTURE(heads);
    CAPTURE(dims);
    Matrix<float> rows = test::random_rows(rng, tokens, heads * dims);
    rows(0, 0) = 0, rows(tokens - 1, 1) = -0.0f;
    same_codebooks(rows, heads);
  }
  // Few codes: most centroids are the mean magnitude with a sign.
  Matrix<float> rows(20, 8);
  for (size_t i = 0; i < 20; ++i)
    for (size_t j = 0; j < 8; ++j) rows(i, j) = static_cast<float>(j % 2 == 0 ? 1 + i : -1.5 - double(i));
  same_codebooks(rows, 1);
  CHECK(cuda::build_codebooks(Matrix<float>(0, 8), 1).size() == 1);
}

TEST_CASE("device: shapes that do not fit are refused") {
  NEEDS_DEVICE();
  Matrix<uint8_t> codes(3, 2);
  CHECK_THROWS_AS(cuda::build_codebooks(Matrix<float>(3, 6), 1), Error);
  CHECK_THROWS_AS(cuda::build_codebooks(Matrix<float>(3, 7), 2), Error);
  CHECK_THROWS_AS(cuda::DeviceSignIndex(6, codes), Error);
  CHECK_THROWS_AS(cuda::DeviceSignIndex(8, codes), Error);
  const cuda::DeviceSignIndex index(16, codes.view());
  Matrix<float> scores(1, 3);
  const SignCodebook narrow{Matrix<float>(8, kSignCodes)};
  const SignTable table(narrow, std::vector<float>(8));
  CHECK_THROWS_AS(index.scores({&table, 1}, scores), Error);
}

TEST_CASE("device: scores of sign codes are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 8;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const auto [tokens, heads, dims] :
       {Case{1, 1, 4}, Case{37, 1, 12}, Case{1500, 1, 128}, Case{1025, 1, 64}, Case{600, 1, 256}}) {
    CAPTURE(tokens);
    CAPTURE(dims);
    const Matrix<float> rows = test::random_rows(rng, tokens, dims);
    Matrix<uint8_t> codes(tokens, sign_row_bytes(dims));
    encode_signs(rows, 1, codes);
    const auto books = build_codebooks(rows, codes, 1);
    SignIndex reference(dims);
    reference.append(codes);
    const cuda::DeviceSignIndex index(dims, codes);
    const Matrix<float> query = test::random_rows(rng, 3, dims);
    std::vector<SignTable> tables;
    for (size_t q = 0; q < 3; ++q) tables.emplace_back(books[0], query.row(q));
    Matrix<float> expected(3, tokens), scores(3, tokens);
    for (size_t q = 0; q < 3; ++q) reference.scores(tables[q], expected.row(q));
    index.scores(tables, scores);
    CHECK(std::equal(scores.data(), scores.data() + scores.size(), expected.data()));
  }
}

TEST_CASE("device: tables too large to go in pairs are looked up one by one") {
  NEEDS_DEVICE();
  const uint64_t seed = 9;
  Rng rng(seed);
  const size_t tokens = 20,
               dims = 8000;  // two tables take more shared memory than 227 KiB, one less than 163
  const Matrix<float> rows = test::random_rows(rng, tokens, dims), query = test::random_rows(rng, 2, dims);
  Matrix<uint8_t> codes(tokens, sign_row_bytes(dims));
  encode_signs(rows, 1, codes);
  const auto books = build_codebooks(rows, codes, 1);
  SignIndex reference(dims);
  reference.append(codes);
  const SignTable tables[] = {{books[0], query.row(0)}, {books[0], query.row(1)}};
  Matrix<float> expected(2, tokens), scores(2, tokens);
  for (size_t q = 0; q < 2; ++q) reference.scores(tables[q], expected.row(q));
  cuda::DeviceSignIndex(dims, codes).scores(tables, scores);
  CHECK(std::equal(scores.data(), scores.data() + scores.size(), expected.data()));
}

}  // namespace signvq_test
