#include "lib/model/tensor_type.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half_bits.hpp"
#include "lib/model/quantized_kernels_body.hpp"

namespace kvcodec {

namespace {

constexpr size_t kBlock = 32, kHalf = kBlock / 2;
using Values = std::span<const float, kBlock>;
using Codes = std::array<uint8_t, kBlock>;

float inverse(float scale) { return scale != 0 ? 1.0f / scale : 0.0f; }

/// The value of the largest magnitude, the first of several, with its sign.
float extreme(Values x) {
  return *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

/// Appends parts of a block.
class Writer {
 public:
  explicit Writer(std::byte* out) : out_(out) {}
  void half(float value) { put(f16_from_float(value)); }
  template <class T>
  void put(T value) {
    std::memcpy(out_, &value, sizeof value);
    out_ += sizeof value;
  }
  /// The lower 4 bits of codes: byte j has those of value j, and above them those of value j + 16.
  void nibbles(const Codes& codes) {
    for (size_t j = 0; j < kHalf; ++j)
      put(static_cast<uint8_t>((codes[j] & 15) | (codes[j + kHalf] & 15) << 4));
  }
  /// Bit 4 of each code: bit j of 32.
  void fifth_bits(const Codes& codes) {
    uint32_t bits = 0;
    for (size_t j = 0; j < kBlock; ++j) bits |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
    put(bits);
  }

 private:
  std::byte* out_;
};

/// A grid around 0 whose lowest point, -2^(bits-1) steps, is the value of the largest magnitude.
float centred(Values x, int bits, Codes& codes) {
  const int middle = 1 << (bits - 1);
  const float scale = extreme(x) / static_cast<float>(-middle), by = inverse(scale);
  const int limit = 2 * middle - 1;
  for (size_t j = 0; j < kBlock; ++j)
    codes[j] = static_cast<uint8_t>(
        std::clamp(static_cast<int>(x[j] * by + (static_cast<float>(middle) + 0.5f)), 0, limit));
  return scale;
}

struct Range {
  float scale, least;
};

/// A grid from the least value to the largest one.
Range ranged(Values x, int bits, Codes& codes) {
  const auto [least, largest] = std::minmax_element(x.begin(), x.end());
  const int limit = (1 << bits) - 1;
  const float scale = (*largest - *least) / static_cast<float>(limit), by = inverse(scale);
  for (size_t j = 0; j < kBlock; ++j)
    // Half is added and the rest cut off, in floats, as ggml does. NOLINTNEXTLINE(bugprone-incorrect-roundings)
    codes[j] = static_cast<uint8_t>(std::clamp(static_cast<int>((x[j] - *least) * by + 0.5f), 0, limit));
  return {scale, *least};
}

using quantized_kernels::kLevels;

uint8_t nearest_level(float value) {
  size_t best = 0;
  for (size_t i = 1; i < std::size(kLevels); ++i)
    if (std::fabs(value - static_cast<float>(kLevels[i])) <
        std::fabs(value - static_cast<float>(kLevels[best])))
      best = i;
  return static_cast<uint8_t>(best);
}

/// Levels that are not equally far from each other: the value of the largest magnitude is put on the first one, then the
/// scale is fitted to what was chosen, large values counting most.
float levelled(Values x, Codes& codes) {
  constexpr float kNothing = 1e-15f;  // as good as zeros
  codes.fill(0);
  const float largest = extreme(x);
  if (std::fabs(largest) < kNothing) return 0;
  float by = inverse(largest / static_cast<float>(kLevels[0])), product = 0, square = 0;
  for (const float value : x) {
    const auto level = static_cast<float>(kLevels[nearest_level(value * by)]);
    const float weight = value * value;
    product += weight * level * value;
    square += weight * level * level;
  }
  const float scale = square > 0 ? product / square : 0;
  by = inverse(scale);
  for (size_t j = 0; j < kBlock; ++j) codes[j] = nearest_level(x[j] * by);
  return scale;
}

void quantize_q8(Values x, Writer& out) {
  const float scale = std::fabs(extreme(x)) / 127.0f, by = inverse(scale);
  out.half(scale);
  for (const float value : x) out.put(static_cast<int8_t>(std::round(value * by)));
}

void quantize_block(TensorType type, Values x, Writer out) {
  Codes codes{};
  switch (type) {
    case TensorType::q8_0:
      return quantize_q8(x, out);
    case TensorType::q4_0:
      out.half(centred(x, 4, codes));
      break;
    case TensorType::q5_0:
      out.half(centred(x, 5, codes));
      out.fifth_bits(codes);
      break;
    case TensorType::q4_1:
    case TensorType::q5_1: {
      const Range range = ranged(x, type == TensorType::q4_1 ? 4 : 5, codes);
      out.half(range.scale);
      out.half(range.least);
      if (type == TensorType::q5_1) out.fifth_bits(codes);
      break;
    }
    case TensorType::iq4_nl:
      out.half(levelled(x, codes));
      break;
    default:
      throw failed("nothing is quantized to {}", name_of(type));
  }
  out.nibbles(codes);
}

}  // namespace

void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks) {
  const size_t bytes = block_of(type).bytes;
  for (size_t i = 0; i * kBlock < values.size(); ++i)
    quantize_block(type, Values(values.data() + i * kBlock, kBlock), Writer(blocks.data() + i * bytes));
}

bool quantize_exactly(TensorType type, std::span<const float> values, std::span<std::byte> blocks) {
  quantize(type, values, blocks);
  std::vector<float> back(values.size());
  dequantize(type, blocks, back);
  return std::ranges::equal(std::as_bytes(std::span(back)), std::as_bytes(values));
}

void dequantize(TensorType type, std::span<const std::byte> blocks, std::span<float> out) {
  const auto [values, bytes] = block_of(type);
  if (!is_quantized(type)) throw failed("{} has no blocks", name_of(type));
  if (out.size() % values != 0 || blocks.size() != out.size() / values * bytes)
    throw failed("{} bytes of {} do not fit {} values", blocks.size(), name_of(type), out.size());
  using namespace quantized_kernels;
  const Table& kernels = pick(scalar::table, avx2::table, avx512::table)();
  const size_t index = static_cast<size_t>(type) - static_cast<size_t>(TensorType::q4_0);
  kernels.dequantize[index](reinterpret_cast<const uint8_t*>(blocks.data()), out.data(), out.size() / values);
}

}  // namespace kvcodec
