#include <cmath>
#include <vector>

#include "cuda/prefill/prefill.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/half_bits.hpp"
#include "test/cuda/device_case.hpp"
#include "test/cuda/prefill_error.hpp"

namespace prefill_launch_test {

using namespace kvcodec;

namespace {

/// Floats on the device, taken apart.
struct Parts {
  cuda::DeviceBuffer<uint16_t> data;
  size_t plane;

  Parts(const std::vector<float>& values, const cuda::Stream& stream) : plane(values.size()) {
    std::vector<uint16_t> parts(cuda::kFloatParts * plane);
    for (size_t i = 0; i < plane; ++i)
      for (size_t p = 0; p < cuda::kFloatParts; ++p) parts[p * plane + i] = bf16_parts(values[i]).part[p];
    data = cuda::DeviceBuffer<uint16_t>(parts, stream);
    stream.synchronize();
  }
  cuda::FloatParts view() { return {data.data(), plane}; }
  std::vector<float> read(const cuda::Stream& stream) const {
    std::vector<uint16_t> parts(data.size());
    data.download(parts, stream);
    stream.synchronize();
    std::vector<float> values(plane);
    for (size_t p = cuda::kFloatParts; p-- > 0;)
      for (size_t i = 0; i < plane; ++i) values[i] += bf16_to_float(parts[p * plane + i]);
    return values;
  }
};

}  // namespace

// Weights that are all alike, and values of one sign that are the same in all rows: every addition that is
// truncated is then off to the same side. Summed in one go these come out 7e-5 too small.
TEST_CASE("device: attention over many keys is not biased") {
  NEEDS_DEVICE();
  constexpr size_t kKeys = 2048;
  for (const unsigned dims : {32u, 128u, 256u}) {
    CAPTURE(dims);
    const cuda::Stream stream;
    std::vector<float> value_of(dims), values;
    for (unsigned j = 0; j < dims; ++j)
      value_of[j] = (j % 2 == 0 ? 1.0f : -1.0f) * (1 + static_cast<float>(j) / static_cast<float>(dims + 1));
    for (size_t i = 0; i < kKeys; ++i) values.insert(values.end(), value_of.begin(), value_of.end());
    const std::vector<cuda::AttentionTile> tiles = {{0, 0, kKeys - 1, 1}};
    Parts query(std::vector<float>(dims), stream), key(std::vector<float>(kKeys * dims), stream),
        value(values, stream), out(std::vector<float>(dims, 7), stream);
    const cuda::DeviceBuffer<cuda::AttentionTile> device_tiles(tiles, stream);
    cuda::CausalAttention attention;
    attention.query = query.view(), attention.key = key.view(), attention.value = value.view();
    attention.out = out.view();
    attention.tiles = device_tiles.data(), attention.tile_count = 1;
    attention.q_heads = attention.kv_heads = 1, attention.dims = attention.padded = dims;
    cuda::check(cuda::run_causal_attention(attention, stream.handle()), "attention");
    const std::vector<float> found = out.read(stream);
    // The sum, its division, and what three parts hold.
    const double bound = test::prefill_sum_error(kKeys, test::kAttentionStretch) + 3 * 0x1p-24;
    for (unsigned j = 0; j < dims; ++j)
      CHECK(std::abs(double{found[j]} - double{value_of[j]}) <= bound * std::abs(double{value_of[j]}));
  }
}

}  // namespace prefill_launch_test
