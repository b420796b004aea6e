#include "cuda/kvcomp/kvcomp.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/kvcomp/kvcomp.cuh"
#include "lib/core/error.hpp"
#include "test/cuda/device_case.hpp"
#include "test/cuda/kvcomp_data.hpp"

namespace kvcomp_test {

using namespace kvcodec;
using test::KvcompCase;
using test::KvcompDocument;

namespace {

/// Shapes around warps, chunks of 64 symbols and teams of 256 threads; both sides, both kinds of units.
std::vector<KvcompCase> cases() {
  const std::pair<std::string, Scalar> by_block{"key-quant", std::string("block")},
      shared{"unit-heads", true}, plain{"key-origins", false};
  const std::pair<std::string, Scalar> flat{"entropy", std::string("none")}, fine{"max-error", 1e-3};
  const std::pair<std::string, Scalar> rans{"entropy", std::string("rans")};
  const Side key = Side::key, value = Side::value;
  const DType f16 = DType::f16;
  return {
      {key, 64, 3, 64, 200, DType::bf16, {by_block, shared, rans}},
      {value, 64, 3, 64, 200, DType::bf16, {shared, rans}},
      {key, 33, 2, 65, 100, f16, {rans}, 0.2},
      {value, 33, 2, 65, 100, f16, {rans}, 0.2},
      {key, 300, 1, 66, 300, DType::bf16, {plain, rans}},
      {value, 32, 5, 32, 128, DType::bf16, {fine, rans}, 0, true},
      {key, 1, 3, 130, 5, DType::bf16, {rans}},
      {key, 64, 2, 128, 130},
      {value, 64, 2, 128, 130},
      {key, 64, 1, 64, 64, f16, {by_block}},
      {value, 64, 3, 64, 200, f16, {shared}},
      {key, 64, 3, 64, 200, f16, {by_block, shared}},
      {key, 64, 3, 64, 200, f16, {by_block, plain}},
      {key, 33, 2, 65, 100, DType::bf16, {plain}},
      {key, 32, 2, 65, 96},
      {value, 33, 2, 65, 100},
      {key, 300, 1, 66, 300},
      {value, 16, 1, 300, 32},
      {key, 64, 1, 1, 128},
      {value, 64, 1, 1, 128},
      {key, 1, 2, 64, 5},
      {value, 1, 2, 64, 5},
      {key, 64, 2, 128, 64, DType::bf16, {flat}},
      {key, 64, 2, 32, 128, DType::bf16, {}, 0.2},
      {value, 64, 2, 32, 128, DType::bf16, {}, 0.2},
      {key, 64, 2, 64, 64, f16, {fine}},
      {key, 32, 4, 32, 128, DType::bf16, {fine}, 0, true},
      {value, 32, 4, 32, 128, DType::bf16, {fine}, 0, true},
  };
}

std::string name_of_case(const KvcompCase& c) {
  return fmt::format("{} block {} heads {} dims {} tokens {}", name_of(c.side), c.block, c.heads, c.dims,
                     c.tokens);
}

/// Random floats.
Matrix<float> random_matrix(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> out(rows, cols);
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<float>(rng.normal());
  return out;
}

/// The number of elements that differ from an exact sum of `terms` products by more than the device's sums may (kvcomp.hpp).
/// largest: of queries times steps.
struct Products {
  size_t wrong = 0;
  void check(double got, double expected, double magnitude, size_t terms, double largest = 0) {
    const auto n = static_cast<double>(terms);
    const double bound = (2 * n + 16) * 0x1p-24 * magnitude + n * 0x1p-28 * largest + 1e-30;
    wrong += !(std::abs(got - expected) <= bound);
  }
};

/// Limits under which nothing fits: payloads are read in place, and eight queries go four at a time.
cuda::KvcompCuts small_shared() {
  cuda::KvcompCuts cuts;
  cuts.shared_together = cuts.shared_staged = cuts.shared_max = 0;
  return cuts;
}
/// Few blocks of threads, so that each has many items.
cuda::KvcompCuts few_blocks() {
  cuda::KvcompCuts cuts;
  cuts.max_blocks = cuts.max_key_blocks = cuts.max_sums = 1;
  return cuts;
}
const cuda::KvcompCuts kAllCuts[] = {cuda::KvcompCuts{}, small_shared(), few_blocks()};

/// A document as it is, except for one byte of one stream.
class Changed final : public StreamReader {
 public:
  Changed(const StreamReader& document, std::string_view stream, size_t byte, uint8_t bits)
      : document_(document), stream_(stream), byte_(byte), bits_(bits) {}
  uint64_t rows(std::string_view stream) const override { return document_.rows(stream); }
  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    return document_.token_ids(first, count);
  }
  void read(std::string_view stream, uint64_t first, uint64_t count,
            std::span<std::byte> out) const override {
    document_.read(stream, first, count, out);
    if (stream == stream_ && first == 0 && byte_ < out.size()) out[byte_] ^= std::byte{bits_};
  }

 private:
  const StreamReader& document_;
  std::string_view stream_;
  size_t byte_;
  uint8_t bits_;
};

}  // namespace

TEST_CASE("kvcomp on a device: blocks are decoded as on the CPU, bit for bit") {
  NEEDS_DEVICE();
  size_t coded = 0, raw = 0;
  for (const KvcompCase& c : cases()) {
    INFO(name_of_case(c));
    const KvcompDocument document(c, 7);
    coded += document.blocks_of_mode(false), raw += document.blocks_of_mode(true);
    cuda::DeviceBlocks blocks(document.layout, c.storage, document.blocks(0, document.block_rows));
    REQUIRE(blocks.tokens() == document.tokens());
    const size_t all = document.tokens();
    // All, none, one, and a range that begins and ends within blocks.
    const std::pair<size_t, size_t> ranges[] = {
        {0, all}, {all / 2, 0}, {all - 1, 1}, {all / 3, all - all / 3 - all / 5}};
    for (const auto& [first, count] : ranges) {
      const Matrix<float> expected = document.decoded(first, count);
      for (const cuda::KvcompCuts& cuts : kAllCuts) {
        blocks.cut(cuts);
        // A guard value after each row must stay.
        Matrix<float> out(count, expected.cols() + 1);
        for (size_t i = 0; i < out.size(); ++i) out.data()[i] = -1;
        blocks.decode(first, out.view().columns(0, expected.cols()));
        size_t wrong = 0;
        for (size_t i = 0; i < count; ++i) {
          wrong += std::memcmp(out.row(i).data(), expected.row(i).data(), expected.cols() * 4) != 0;
          wrong += out(i, expected.cols()) != -1;
        }
        CHECK(wrong == 0);
      }
    }
  }
  CHECK(coded > 0);
  CHECK(raw > 0);
}

TEST_CASE("kvcomp on a device: a part of the block rows, and none") {
  NEEDS_DEVICE();
  const KvcompDocument document({.side = Side::key, .block = 16, .heads = 2, .dims = 32, .tokens = 100}, 3);
  const cuda::DeviceBlocks blocks(document.layout, DType::bf16, document.blocks(2, 5));
  Matrix<float> out(48, 64);
  blocks.decode(0, out);
  const Matrix<float> expected = document.decoded(32, 48);
  CHECK(std::memcmp(out.data(), expected.data(), out.size() * 4) == 0);
  const cuda::DeviceBlocks none(document.layout, DType::bf16, document.blocks(3, 3));
  CHECK(none.tokens() == 0);
  Matrix<float> nothing(0, 64);
  none.decode(0, nothing);
  CHECK_THROWS_AS(blocks.decode(1, out), Error);
  CHECK_THROWS_AS(blocks.decode(0, nothing.view().columns(0, 63)), Error);
}

namespace {

/// Products of the keys of a document with n queries a head, the channels of `loud` so much louder.
void check_keys(const KvcompDocument& document, cuda::DeviceBlocks& blocks, size_t n,
                const cuda::KvcompCuts& cuts, Rng& rng, float loud = 1) {
  const size_t heads = document.layout.heads, dims = document.layout.block.dims,
               block = document.layout.block.tokens;
  const Matrix<float> keys = document.decoded(0, document.tokens());
  const auto units = document.units();
  const size_t first = rng.below(document.tokens()), count = rng.below(document.tokens() - first) + 1;
  Matrix<float> queries = random_matrix(heads * n, dims, rng);
  for (size_t q = 0; q < queries.rows(); ++q)
    for (size_t d = 0; d < dims; d += 16) queries(q, d) *= loud;
  Matrix<float> out(heads * n, count);
  blocks.cut(cuts);
  blocks.multiply_keys(first, queries, out);
  Products products;
  for (size_t q = 0; q < out.rows(); ++q)
    for (size_t t = 0; t < count; ++t) {
      double sum = 0, magnitude = 0, largest = 0;
      for (size_t d = 0; d < dims; ++d) {
        const size_t row = (first + t) / block, column = q / n * dims + d;
        const double query = queries(q, d), key = keys(first + t, column),
                     origin = units.origins(row, column);
        sum += query * key;
        magnitude += std::abs(query) * (std::abs(key - origin) + std::abs(origin));
        largest = std::max(largest, std::abs(query) * double{units.steps(row, column)});
      }
      products.check(out(q, t), sum, magnitude, dims, largest);
    }
  CHECK(products.wrong == 0);
}

/// Products of weights, n for each head, with the values of a document.
void check_values(const KvcompDocument& document, cuda::DeviceBlocks& blocks, size_t n,
                  const cuda::KvcompCuts& cuts, Rng& rng) {
  const size_t heads = document.layout.heads, dims = document.layout.block.dims;
  const Matrix<float> values = document.decoded(0, document.tokens());
  const size_t first = rng.below(document.tokens()), count = rng.below(document.tokens() - first) + 1;
  const Matrix<float> weights = random_matrix(heads * n, count, rng);
  Matrix<float> out(heads * n, dims);
  blocks.cut(cuts);
  blocks.multiply_values(first, weights, out);
  Products products;
  for (size_t q = 0; q < out.rows(); ++q)
    for (size_t d = 0; d < dims; ++d) {
      double sum = 0, magnitude = 0;
      for (size_t t = 0; t < count; ++t) {
        const double term = double{weights(q, t)} * double{values(first + t, q / n * dims + d)};
        sum += term, magnitude += std::abs(term);
      }
      products.check(out(q, d), sum, magnitude, count);
    }
  CHECK(products.wrong == 0);
}

}  // namespace

TEST_CASE("kvcomp on a device: products with keys and values") {
  NEEDS_DEVICE();
  const uint64_t seed = 21;
  Rng rng(seed);
  for (const KvcompCase& c : cases()) {
    INFO(name_of_case(c));
    const KvcompDocument document(c, 8);
    cuda::DeviceBlocks blocks(document.layout, c.storage, document.blocks(0, document.block_rows));
    for (const size_t n : {1, 2, 3, 4, 5, 8, 9}) {
      CAPTURE(n);
      for (const cuda::KvcompCuts& cuts : kAllCuts)
        c.side == Side::key ? check_keys(document, blocks, n, cuts, rng)
                            : check_values(document, blocks, n, cuts, rng);
    }
  }
}

TEST_CASE("kvcomp on a device: blocks of threads that have many blocks of tokens each") {
  NEEDS_DEVICE();
  const uint64_t seed = 23;
  Rng rng(seed);
  for (const Side side : kSides) {
    const KvcompDocument document({.side = side, .block = 64, .heads = 2, .dims = 40, .tokens = 64 * 20}, 11);
    REQUIRE(document.blocks_of_mode(false) == 40);  // of several warps each: they must wait for each other
    cuda::DeviceBlocks blocks(document.layout, DType::bf16, document.blocks(0, document.block_rows));
    blocks.cut(few_blocks());
    const Matrix<float> expected = document.decoded(0, document.tokens());
    Matrix<float> out(expected.rows(), expected.cols());
    blocks.decode(0, out);
    CHECK(std::memcmp(out.data(), expected.data(), out.size() * 4) == 0);
    for (const size_t n : {1, 4, 8})
      side == Side::key ? check_keys(document, blocks, n, few_blocks(), rng)
                        : check_values(document, blocks, n, few_blocks(), rng);
  }
}

TEST_CASE("kvcomp on a device: products with keys, some channels of queries far louder than the others") {
  NEEDS_DEVICE();
  const uint64_t seed = 24;
  Rng rng(seed);
  // Loud channels are mostly multiplied with 0, so that the others show.
  const KvcompDocument document(
      {.side = Side::key, .block = 64, .heads = 2, .dims = 64, .tokens = 256, .outliers = 0, .rare = true},
      12);
  REQUIRE(document.blocks_of_mode(false) > 0);
  cuda::DeviceBlocks blocks(document.layout, DType::bf16, document.blocks(0, document.block_rows));
  for (const float loud : {1e3f, 1e5f, 1e7f, 1e12f})
    for (const size_t n : {1, 4, 8}) {
      CAPTURE(loud);
      check_keys(document, blocks, n, {}, rng, loud);
    }
}

TEST_CASE("kvcomp on a device: what products with keys do not take is refused") {
  NEEDS_DEVICE();
  const auto refused = [](const cuda::DeviceBlocks& blocks, MatrixView<const float> queries,
                          MatrixView<float> out) {
    try {
      blocks.multiply_keys(0, queries, out);
      return false;
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return true;
    }
  };
  const KvcompDocument document({.side = Side::key, .block = 32, .heads = 1, .dims = 32, .tokens = 64}, 5);
  const cuda::DeviceBlocks blocks(document.layout, DType::bf16, document.blocks(0, 2));
  Matrix<float> queries(2, 32), scores(2, 64);
  for (const float query : {INFINITY, -INFINITY, NAN, 1e20f, -1e20f}) {
    queries(1, 31) = query;
    CHECK(refused(blocks, queries, scores));
  }
  queries(1, 31) = 1e19f;
  CHECK(!refused(blocks, queries, scores));
}

TEST_CASE("kvcomp on a device: products with keys of many channels") {
  NEEDS_DEVICE();
  const uint64_t seed = 25;
  Rng rng(seed);
  // The maximum number: eight queries at a time would take more shared memory than any device has.
  const KvcompDocument document({.side = Side::key, .block = 256, .heads = 1, .dims = 2340, .tokens = 256},
                                13);
  REQUIRE(document.blocks_of_mode(false) > 0);
  cuda::DeviceBlocks blocks(document.layout, DType::bf16, document.blocks(0, document.block_rows));
  for (const size_t n : {1, 8}) check_keys(document, blocks, n, {}, rng);
}

TEST_CASE("kvcomp on a device: damaged blocks are refused, and shapes that do not fit") {
  NEEDS_DEVICE();
  const std::pair<std::string, Scalar> coders[] = {{"entropy", std::string("huffman")},
                                                   {"entropy", std::string("rans")}};
  for (size_t i = 0; i < 4; ++i) {
    const KvcompDocument document({.side = kSides[i % 2],
                                   .block = 32,
                                   .heads = 2,
                                   .dims = 32,
                                   .tokens = 64,
                                   .options = {coders[i / 2]}},
                                  5);
    REQUIRE(document.blocks_of_mode(true) == 0);
    size_t refused = 0, passed = 0;
    for (const std::string_view stream : {kvcomp::kCounts, kvcomp::kPayload}) {
      if (i / 2 == 1 && stream == kvcomp::kCounts) continue;  // rANS has none
      for (size_t byte = 0; byte < 40; byte += 3) {
        const Changed changed(document.document(), stream, byte, 0x11);
        Matrix<float> out(64, 64), expected(64, 64);
        bool bad = false, device_bad = false;
        try {
          kvcomp::BlockScratch scratch(document.layout);
          const kvcomp::LoadedBlocks blocks(document.layout, DType::bf16,
                                            test::read_blocks(document.layout, changed, 0, 2));
          for (size_t block = 0; block < 4; ++block)
            blocks.decode(block / 2, block % 2, scratch,
                          expected.view().rows(block / 2 * 32, 32).columns(block % 2 * 32, 32));
        } catch (const Error& error) {
          CHECK(error.kind() == ErrorKind::bad_input);
          bad = true;
        }
        try {
          cuda::DeviceBlocks(document.layout, DType::bf16, test::read_blocks(document.layout, changed, 0, 2))
              .decode(0, out);
        } catch (const Error& error) {
          CHECK(error.kind() == ErrorKind::bad_input);
          device_bad = true;
        }
        // The CPU joins short runs and may let errors pass that cancel out; not the other way round.
        if (bad) CHECK(device_bad);
        if (!device_bad) CHECK(std::memcmp(out.data(), expected.data(), out.size() * 4) == 0);
        device_bad ? ++refused : ++passed;
      }
    }
    CHECK(refused > passed);
  }
  const KvcompDocument document({.side = Side::key, .block = 32, .heads = 2, .dims = 32, .tokens = 64}, 5);
  const cuda::DeviceBlocks blocks(document.layout, DType::bf16, document.blocks(0, 2));
  Matrix<float> queries(2, 32), scores(2, 64), other(2, 33), few(1, 64);
  blocks.multiply_keys(0, queries, scores);
  CHECK_THROWS_AS(blocks.multiply_keys(0, other, scores), Error);
  CHECK_THROWS_AS(blocks.multiply_keys(0, queries, few), Error);
  CHECK_THROWS_AS(blocks.multiply_keys(1, queries, scores), Error);
  CHECK_THROWS_AS(blocks.multiply_values(0, scores, queries), Error);
}

}  // namespace kvcomp_test
