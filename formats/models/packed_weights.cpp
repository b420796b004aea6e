#include <algorithm>
#include <cstring>

#include "formats/models/safetensors.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {

constexpr uint64_t kScaled = 128;  // rows and columns that share a scale of FP8

template <class Fill>
const TensorView& PackedWeights::packed(const TensorView& codes, TensorType type, std::vector<uint64_t> shape,
                                        const Fill& fill) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = packed_.try_emplace(codes.origin);
  Packed& own = place->second;
  if (!is_new) return own.view;
  const BlockLayout layout = block_of(type);
  const uint64_t row = shape.back() / layout.values * layout.bytes,
                 rows = checked_product(shape) / shape.back();
  own.bytes.resize(checked_mul(rows, row));
  parallel_each(rows, 64, [&](size_t r) { fill(r, std::span(own.bytes).subspan(r * row, row)); });
  own.view = {.type = type, .shape = std::move(shape), .bytes = own.bytes, .origin = codes.origin};
  return own.view;
}

const TensorView& PackedWeights::e4m3(const TensorView& codes, const TensorView& scales) {
  const auto blocks = [](uint64_t extent) { return (extent + kScaled - 1) / kScaled; };
  constexpr uint64_t kValues = block_of(TensorType::e4m3).values;
  if (codes.shape.size() != 2 || codes.shape[0] == 0 || codes.shape[1] == 0 ||
      codes.shape[1] % kValues != 0 ||
      scales.shape != std::vector{blocks(codes.shape[0]), blocks(codes.shape[1])})
    throw bad_input(
        "{}: is [{}] with scales of [{}]; a scale is wanted for each block of {} rows and {} columns, and "
        "columns are a multiple of {}",
        codes.origin, fmt::join(codes.shape, ", "), fmt::join(scales.shape, ", "), kScaled, kScaled, kValues);
  constexpr auto kNan = std::byte{0x7f};
  if (std::ranges::any_of(codes.bytes, [](std::byte code) { return (code & kNan) == kNan; }))
    throw bad_input("{}: has codes that are no numbers", codes.origin);
  const std::vector<float> factors = read_floats(scales);
  const uint64_t columns = codes.shape[1];
  return packed(codes, TensorType::e4m3, codes.shape, [&](size_t row, std::span<std::byte> out) {
    for (uint64_t c = 0; c < columns; c += kValues) {
      const float* const factor = &factors[row / kScaled * blocks(columns) + c / kScaled];
      std::byte* const block = out.data() + c / kValues * block_of(TensorType::e4m3).bytes;
      std::memcpy(block, factor, sizeof(float));
      std::memcpy(block + sizeof(float), &codes.bytes[row * columns + c], kValues);
    }
  });
}

const TensorView& PackedWeights::mxfp4(const TensorView& codes, const TensorView& scales) {
  constexpr BlockLayout kLayout = block_of(TensorType::mxfp4);
  constexpr size_t kHalf = kLayout.values / 2;
  std::vector<uint64_t> shape = codes.shape;
  if (shape.size() < 3 || shape.back() != kHalf || std::ranges::count(shape, uint64_t{0}) > 0)
    throw bad_input("{}: is [{}]; blocks of 16 bytes are wanted, the last dimension", codes.origin,
                    fmt::join(codes.shape, ", "));
  shape.pop_back();
  if (scales.shape != shape)
    throw bad_input("{}: is [{}]; [{}] would go with {}", scales.origin, fmt::join(scales.shape, ", "),
                    fmt::join(shape, ", "), codes.origin);
  const uint64_t blocks = shape.back();
  shape.back() *= kLayout.values;
  return packed(codes, TensorType::mxfp4, shape, [&](size_t row, std::span<std::byte> out) {
    for (uint64_t b = row * blocks; b < (row + 1) * blocks; ++b) {
      std::byte* const block = out.data() + (b - row * blocks) * kLayout.bytes;
      block[0] = scales.bytes[b];
      // Byte j of a checkpoint has values 2 j and 2 j + 1, of a block j and j + 16.
      const auto code = [&](size_t j) {
        return codes.bytes[b * kHalf + j / 2] >> (j % 2 * 4) & std::byte{15};
      };
      for (size_t j = 0; j < kHalf; ++j) block[1 + j] = code(j) | code(j + kHalf) << 4;
    }
  });
}

}  // namespace kvcodec
