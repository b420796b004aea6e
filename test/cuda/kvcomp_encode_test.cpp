#include "cuda/kvcomp/kvcomp_encode.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/quant/error_bounded.hpp"
#include "test/cuda/device_case.hpp"
#include "test/cuda/kvcomp_data.hpp"

namespace kvcomp_encode_test {

using namespace kvcodec;
using test::KvcompCase;
using test::KvcompDocument;

namespace {

struct Encoding {
  KvcompCase data;
  ErrorBound bound;
};

std::vector<Encoding> encodings() {
  const Side key = Side::key, value = Side::value;
  const DType f16 = DType::f16, bf16 = DType::bf16;
  const std::pair<std::string, Scalar> by_block{"key-quant", std::string("block")},
      plain{"key-origins", false};
  const auto number = [](const char* name, double bound) {
    return std::pair<std::string, Scalar>{name, bound};
  };
  return {
      {{key, 64, 2, 128, 128}, {.range = 0.125}},
      {{value, 64, 2, 128, 128}, {.range = 0.075}},
      {{key, 32, 2, 65, 96, f16}, {.range = 0.125}},
      {{value, 33, 2, 65, 99, f16}, {.range = 0.075}},
      {{key, 64, 3, 64, 128, f16, {by_block}}, {.range = 0.025}},
      {{key, 300, 1, 34, 300, bf16, {by_block}}, {.range = 0.025}},
      {{key, 64, 3, 64, 128, bf16, {by_block, plain}}, {.range = 0.025}},
      {{key, 32, 2, 65, 96, f16, {plain}}, {.range = 0.125}},
      {{key, 300, 1, 34, 300}, {.range = 0.125}},
      {{value, 16, 1, 300, 32}, {.range = 0.075}},
      {{key, 64, 1, 1, 128}, {.range = 0.125}},
      {{value, 64, 1, 1, 128}, {.range = 0.075}},
      {{key, 64, 2, 32, 128, bf16, {}, 0.2}, {.range = 0.125}},
      {{value, 64, 2, 32, 128, bf16, {}, 0.2}, {.range = 0.075}},
      // Steps near the spacing of 16-bit values, so that the search for a better one has an effect.
      {{key, 64, 2, 64, 64, bf16, {number("max-error", 0.01)}}, {.absolute = 0.01}},
      {{value, 64, 2, 64, 64, bf16, {number("max-rel-error", 0.004)}}, {.magnitude = 0.004}},
      {{key, 64, 2, 32, 64, bf16, {by_block, number("max-rel-error", 0.002)}}, {.magnitude = 0.002}},
      // Units that are not copied to shared memory.
      {{key, 600, 1, 40, 600}, {.range = 0.125}},
      {{value, 40, 1, 600, 80, f16}, {.range = 0.075}},
      // Raw blocks.
      {{key, 32, 4, 32, 128, bf16, {number("max-error", 1e-3)}, 0, true}, {.absolute = 1e-3}},
      {{value, 32, 4, 32, 128, bf16, {number("max-error", 1e-3)}, 0, true}, {.absolute = 1e-3}},
  };
}

template <class T>
bool same(std::span<const std::byte> stored, const std::vector<T>& found) {
  return stored.size() == found.size() * sizeof(T) &&
         std::memcmp(stored.data(), found.data(), stored.size()) == 0;
}

Matrix<uint16_t> narrowed(const Matrix<float>& rows, DType storage) {
  Matrix<uint16_t> out(rows.rows(), rows.cols());
  narrow(storage, {rows.data(), rows.size()}, {out.data(), out.size()});
  return out;
}

}  // namespace

TEST_CASE("kvcomp on a device: blocks are quantized, counted and coded as on the CPU, byte for byte") {
  NEEDS_DEVICE();
  size_t raw = 0, exact = 0, moved = 0;
  for (const Encoding& encoding : encodings()) {
    const KvcompCase& c = encoding.data;
    INFO(fmt::format("{} block {} heads {} dims {} tokens {}", name_of(c.side), c.block, c.heads, c.dims,
                     c.tokens));
    KvcompDocument document(c, 17);
    REQUIRE(document.tokens() == c.tokens);  // whole blocks
    raw += document.blocks_of_mode(true);
    const auto& layout = document.layout;
    const cuda::QuantizedBlocks blocks(layout, c.storage, encoding.bound, narrowed(document.rows, c.storage));
    const auto symbols = blocks.symbols();
    const auto steps = blocks.steps();
    const auto origins = blocks.origins();
    std::vector<uint64_t> counts(256);
    size_t wrong_symbols = 0, wrong_steps = 0, wrong_origins = 0;
    for (size_t block = 0; block < document.block_rows * layout.heads; ++block) {
      const auto x = document.rows.view()
                         .rows(block / layout.heads * c.block, c.block)
                         .columns(block % layout.heads * c.dims, c.dims);
      Matrix<uint8_t> expected(c.block, c.dims);
      std::vector<float> expected_steps(layout.steps());
      std::vector<int16_t> expected_origins(layout.origins());
      quantize_bounded(x, layout.unit, encoding.bound, c.storage,
                       {expected_steps, expected_origins, expected});
      wrong_symbols +=
          std::memcmp(symbols.data() + block * expected.size(), expected.data(), expected.size()) != 0;
      for (size_t i = 0; i < layout.steps(); ++i)
        wrong_steps += steps[block * layout.steps() + i] != expected_steps[i];
      for (size_t i = 0; i < layout.origins(); ++i) {
        wrong_origins += origins[block * layout.origins() + i] != expected_origins[i];
        moved += expected_origins[i] != 0;
      }
      const auto of_block = histogram(std::span<const uint8_t>(expected.data(), expected.size()), 256);
      for (size_t s = 0; s < 256; ++s) counts[s] += of_block[s];
    }
    CHECK(wrong_symbols == 0);
    CHECK(wrong_steps == 0);
    CHECK(wrong_origins == 0);
    exact += counts[kExactSymbol];
    CHECK(blocks.histogram() == counts);

    const auto book =
        document.document().read<uint8_t>(kvcomp::kBook, 0, document.document().rows(kvcomp::kBook), 1);
    const cuda::EncodedBlocks found = blocks.encode(BlockCoder::read(book));
    const Encoded& stored = *document.encoded;
    CHECK(same(stored.bytes(kvcomp::kModes), found.modes));
    CHECK(same(stored.bytes(kvcomp::kSizes), found.sizes));
    CHECK(same(stored.bytes(kvcomp::kCounts), found.counts));
    CHECK(same(stored.bytes(kvcomp::kPayload), found.payload));
    CHECK(same(stored.bytes(kvcomp::kSteps), found.steps));
    if (layout.has_origins) {
      CHECK(same(stored.bytes(kvcomp::kOriginBits), found.origin_bits));
      CHECK(same(stored.bytes(kvcomp::kOrigins), found.origins));
    }
  }
  CHECK(raw > 0);
  CHECK(exact > 0);
  CHECK(moved > 0);
}

TEST_CASE("kvcomp on a device: no blocks, and what is refused") {
  NEEDS_DEVICE();
  const KvcompDocument document({.side = Side::key, .block = 32, .heads = 2, .dims = 32, .tokens = 64}, 5);
  auto layout = document.layout;
  const auto book =
      document.document().read<uint8_t>(kvcomp::kBook, 0, document.document().rows(kvcomp::kBook), 1);
  const ErrorBound bound{.range = 0.1};
  const Matrix<uint16_t> none(0, 64);
  const cuda::QuantizedBlocks nothing(layout, DType::bf16, bound, none);
  CHECK(nothing.rows() == 0);
  CHECK(nothing.histogram() == std::vector<uint64_t>(256));
  CHECK(nothing.encode(BlockCoder::read(book)).payload.empty());

  Matrix<uint16_t> rows(64, 64);
  CHECK_THROWS_AS(cuda::QuantizedBlocks(layout, DType::bf16, {}, rows), Error);
  CHECK_THROWS_AS(cuda::QuantizedBlocks(layout, DType::f32, bound, rows), Error);
  CHECK_THROWS_AS(cuda::QuantizedBlocks(layout, DType::bf16, bound, rows.view().columns(0, 63)), Error);
  CHECK_THROWS_AS(cuda::QuantizedBlocks(layout, DType::bf16, bound, rows.view().rows(0, 63)), Error);
  rows(3, 3) = 0x7f80;
  CHECK_THROWS_AS(cuda::QuantizedBlocks(layout, DType::bf16, bound, rows), Error);
  rows(3, 3) = 0;
  const cuda::QuantizedBlocks zeros(layout, DType::bf16, bound, rows);
  CHECK(zeros.histogram()[kZeroSymbol] == 64 * 64);
  const std::vector<uint64_t> counts(256, 1);
  CHECK_THROWS_AS(zeros.encode(BlockCoder::from_counts(counts, 8, EntropyChoice::rans, layout.block)), Error);
  layout.unit = UnitShape::block;
  layout.shared_steps = true;
  CHECK_THROWS_AS(cuda::QuantizedBlocks(layout, DType::bf16, bound, rows), Error);
}

}  // namespace kvcomp_encode_test
