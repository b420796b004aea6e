#include "cuda/selfindex/signvq.hpp"

#include <cmath>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_index.hpp"
#include "test/cuda/device_case.hpp"

namespace signvq_test {

using namespace kvcodec;

namespace {

struct Case {
  size_t tokens, heads, dims;
};

/// The best by lib's scores.
std::vector<Scored> top_of(const SignIndex& index, const SignTable& table, size_t k, Order order) {
  std::vector<float> scores(index.tokens());
  index.scores(table, scores);
  return top_k(scores, k, order);
}

/// Twin against lib, bit for bit.
void same_codebooks(const Matrix<float>& rows, size_t heads) {
  const size_t row_bytes = sign_row_bytes(rows.cols() / heads);
  Matrix<uint8_t> codes(rows.rows(), heads * row_bytes), expected(rows.rows(), heads * row_bytes);
  encode_signs(rows, heads, expected);
  const auto books = build_codebooks(rows, expected, heads);
  const auto found = cuda::encode_and_build_codebooks(rows, heads, codes);
  REQUIRE(found.size() == books.size());
  CHECK(std::equal(codes.data(), codes.data() + codes.size(), expected.data()));
  for (size_t head = 0; head < heads; ++head)
    CHECK(std::equal(found[head].centroids.data(),
                     found[head].centroids.data() + found[head].centroids.size(),
                     books[head].centroids.data()));
}

}  // namespace

TEST_CASE("device: sign codes and codebooks are lib's") {
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
  CHECK(cuda::encode_and_build_codebooks(Matrix<float>(0, 8), 1, Matrix<uint8_t>(0, 1)).size() == 1);
}

TEST_CASE("device: shapes that do not fit are refused") {
  NEEDS_DEVICE();
  Matrix<uint8_t> codes(3, 2);
  CHECK_THROWS_AS(cuda::encode_and_build_codebooks(Matrix<float>(3, 8), 1, codes), Error);
  CHECK_THROWS_AS(cuda::encode_and_build_codebooks(Matrix<float>(3, 7), 2, codes), Error);
  CHECK_THROWS_AS(cuda::DeviceSignIndex(6, codes), Error);
  CHECK_THROWS_AS(cuda::DeviceSignIndex(8, codes), Error);
  const cuda::DeviceSignIndex index(16, codes.view());
  Matrix<float> scores(1, 3);
  const SignCodebook narrow{Matrix<float>(8, kSignCodes)};
  const SignTable table(narrow, std::vector<float>(8));
  CHECK_THROWS_AS(index.scores({&table, 1}, scores), Error);
}

TEST_CASE("device: scores and the best of sign codes are lib's") {
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
    for (const size_t k : {size_t{0}, size_t{1}, size_t{20}, tokens / 2, tokens, tokens + 5})
      for (const Order order : {Order::by_id, Order::by_score}) {
        CAPTURE(k);
        const auto best = index.top_k(tables, k, order);
        for (size_t q = 0; q < 3; ++q) CHECK(best[q] == top_of(reference, tables[q], k, order));
      }
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
  const auto best = cuda::DeviceSignIndex(dims, codes).top_k(tables, 7, Order::by_id);
  for (size_t q = 0; q < 2; ++q) CHECK(best[q] == top_of(reference, tables[q], 7, Order::by_id));
}

TEST_CASE("device: of equal scores the lower ids are taken") {
  NEEDS_DEVICE();
  const size_t dims = 8, tokens = 17000;  // a warp goes through its part of them in three steps
  Matrix<uint8_t> codes(tokens, 1);
  for (size_t t = 0; t < tokens; ++t)
    codes(t, 0) = static_cast<uint8_t>(t % 3 == 0 ? 0xff : t % 3 == 1 ? 0x00 : 0xf0);
  SignCodebook book{Matrix<float>(dims, kSignCodes)};
  for (size_t j = 0; j < dims; ++j)
    for (size_t code = 0; code < kSignCodes; ++code)
      book.centroids(j, code) = code >> (3 - j % 4) & 1 ? 1.0f : -1.0f;
  const std::vector<float> query(dims, 1.0f);
  const SignTable table(book, query);
  SignIndex reference(dims);
  const cuda::DeviceSignIndex index(dims, codes);
  reference.append(codes);
  for (const size_t k : {1, 5, 5666, 5667, 5668, 11333, 11334, 11335, 17000})
    CHECK(index.top_k({&table, 1}, k, Order::by_id)[0] == top_of(reference, table, k, Order::by_id));
}

}  // namespace signvq_test
