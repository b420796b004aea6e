// Blocks of quantized types: decoded values encode to the same block again, and errors are those of the grid.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/tensor_type.hpp"
#include "test/test.hpp"

namespace quantize_test {

using namespace kvcodec;

namespace {

constexpr TensorType kTypes[] = {TensorType::q8_0, TensorType::q4_0, TensorType::q4_1,
                                 TensorType::q5_0, TensorType::q5_1, TensorType::iq4_nl};
constexpr size_t kBlocks = 50, kValues = 32 * kBlocks;

std::vector<std::byte> blocks_of(TensorType type, std::span<const float> values) {
  std::vector<std::byte> blocks(values.size() / 32 * block_of(type).bytes);
  quantize(type, values, blocks);
  return blocks;
}

std::vector<float> values_of(TensorType type, std::span<const std::byte> blocks) {
  std::vector<float> values(blocks.size() / block_of(type).bytes * 32);
  dequantize(type, blocks, values);
  return values;
}

std::vector<float> random_values(uint64_t seed, float mean) {
  Rng rng(seed);
  std::vector<float> values(kValues);
  for (float& value : values) value = mean + static_cast<float>(rng.normal());
  return values;
}

}  // namespace

TEST_CASE("quantize: values of a block become the same block") {
  for (const TensorType type : kTypes)
    for (const float mean : {0.0f, 3.0f, -0.7f}) {
      CAPTURE(name_of(type));
      CAPTURE(mean);
      const auto blocks = blocks_of(type, random_values(7, mean));
      CHECK(blocks_of(type, values_of(type, blocks)) == blocks);
    }
}

TEST_CASE("quantize: errors are at most those of the grid") {
  // Relative to the largest magnitude or, with an offset, to the range: half a step, plus the effect of rounding the scale to f16.
  // The end of a grid around 0 that has no level of its own may have an error of a whole step.
  struct Bound {
    TensorType type;
    double steps;  ///< half steps in the magnitude or range
    bool ranged;
  };
  constexpr Bound kBounds[] = {{TensorType::q8_0, 254, false}, {TensorType::q4_0, 8, false},
                               {TensorType::q5_0, 16, false},  {TensorType::q4_1, 30, true},
                               {TensorType::q5_1, 62, true},   {TensorType::iq4_nl, 127.0 / 13, false}};
  const auto values = random_values(3, 0.5f);
  for (const Bound& bound : kBounds) {
    CAPTURE(name_of(bound.type));
    const auto back = values_of(bound.type, blocks_of(bound.type, values));
    for (size_t b = 0; b < kBlocks; ++b) {
      const auto own = std::span(values).subspan(32 * b, 32);
      const auto [least, largest] = std::minmax_element(own.begin(), own.end());
      const double extent =
          bound.ranged ? *largest - *least : std::max(std::fabs(*least), std::fabs(*largest));
      for (size_t i = 0; i < 32; ++i)
        CHECK_LE(std::fabs(own[i] - back[32 * b + i]), extent / bound.steps * 1.01 + extent * 0x1p-9);
    }
  }
}

TEST_CASE("quantize: constant blocks, zeros, and types that are not written") {
  for (const TensorType type : kTypes) {
    CAPTURE(name_of(type));
    for (const float value : {0.0f, 1.0f, -2.0f}) {
      const std::vector<float> same(32, value);
      for (const float back : values_of(type, blocks_of(type, same)))
        CHECK(std::fabs(back - value) <= 0.01 * std::fabs(value));
    }
  }
  std::vector<std::byte> block(1000);
  const std::vector<float> zeros(256);
  CHECK_THROWS_AS(quantize(TensorType::q6_k, zeros, block), Error);
}

}  // namespace quantize_test
