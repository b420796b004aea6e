#include "lib/quant/affine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace kvcodec::affine_test {
namespace {

/// A block of such a scale, bias and codes.
std::vector<std::byte> block_of(const AffineGroups& groups, uint16_t scale, uint16_t bias,
                                const std::vector<uint32_t>& codes) {
  std::vector<std::byte> block(groups.block_bytes());
  std::memcpy(block.data(), &scale, 2);
  std::memcpy(block.data() + 2, &bias, 2);
  for (size_t bit = 0; bit < codes.size() * groups.bits; ++bit)
    if (codes[bit / groups.bits] >> bit % groups.bits & 1)
      block[4 + bit / 8] |= static_cast<std::byte>(1 << bit % 8);
  return block;
}

}  // namespace

// Scales and biases in f16 of groups that mlx 0.32 made, but for the first.
TEST_CASE("affine groups: a group that was quantized shows its scale and bias again") {
  struct Group {
    const char* what;
    unsigned bits;
    uint16_t scale, bias;
    uint32_t highest;  // code
  };
  Rng rng(5);
  for (const Group& group : {
           Group{"ends of both signs", 4, 0x3400, 0xc000, 15},              // .25, -2
           Group{"one code fewer", 4, 0xb569, 0x40bc, 14},                  // -.338, 2.367: -7.0007 steps
           Group{"all values positive", 4, 0xb472, 0x4780, 15},             // -.278, 7.5: -27 steps
           Group{"one sign and 315 steps from 0", 8, 0xa559, 0x4694, 255},  // -.0209, 6.578
           Group{"values that are all the same", 4, 0x8002, 0x4500, 0},     // -1e-7, 5
           Group{"a rounded scale moves the other end further from 0", 4, 0xb495, 0x4002,
                 14},                                       // -.286, 2.004
           Group{"one large value", 2, 0xc260, 0x4660, 2},  // -3.1875, 6.375: 2.125 goes too
           Group{"zeros", 8, 0x8002, 0, 0},
       }) {
    CAPTURE(group.what);
    const AffineGroups groups{.bits = group.bits, .values = 32, .stored = DType::f16};
    std::vector<uint32_t> codes(32);
    for (uint32_t& code : codes) code = static_cast<uint32_t>(rng.below(group.highest + 1));
    if (group.bits == 2) std::ranges::fill(codes, group.highest);
    codes[3] = 0, codes[20] = group.highest;
    const auto block = block_of(groups, group.scale, group.bias, codes);
    std::vector<float> values(32), back(32);
    dequantize_affine(groups, block, values);
    std::vector<std::byte> again(block.size());
    CHECK(quantize_affine(groups, values, again));
    CHECK(again == block);
  }
}

TEST_CASE("affine groups: other values are within a step, and become the same groups again") {
  Rng rng(6);
  for (const DType stored : {DType::bf16, DType::f16, DType::f32})
    for (const unsigned bits : {2u, 3u, 4u, 5u, 6u, 8u})
      for (const float mean : {0.0f, 60.0f}) {
        const AffineGroups groups{.bits = bits, .values = 32, .stored = stored};
        CAPTURE(groups.bits);
        CAPTURE(mean);
        CAPTURE(stored);
        std::vector<float> values(3200), back(3200);
        for (float& value : values) value = round_to(stored, mean + static_cast<float>(rng.normal()));
        std::vector<std::byte> blocks(100 * groups.block_bytes()), again(blocks.size());
        (void)quantize_affine(groups, values, blocks);
        dequantize_affine(groups, blocks, back);
        for (size_t g = 0; g < 100; ++g) {
          const auto group = std::span(values).subspan(32 * g, 32);
          const float spread = *std::ranges::max_element(group) - *std::ranges::min_element(group);
          // The step is the range over all codes but for the rounding of the steps to 0, and the scale's own.
          const float step = spread / static_cast<float>((1 << bits) - 1) * 1.34f;
          for (size_t i = 32 * g; i < 32 * g + 32; ++i) CHECK_LE(std::fabs(back[i] - values[i]), step);
        }
        CHECK(quantize_affine(groups, back, again));
        CHECK(again == blocks);
      }
}

}  // namespace kvcodec::affine_test
