#include "lib/linalg/hadamard.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "lib/core/error.hpp"

namespace kvcodec {

// Four values, which every machine has as one register: loops of one or two values cost more than their sums.
typedef float Four __attribute__((vector_size(16)));
constexpr size_t kFour = 4;

static Four load(const float* x) {
  Four four;
  std::memcpy(&four, x, sizeof(four));
  return four;
}
static void store(const Four& four, float* x) { std::memcpy(x, &four, sizeof(four)); }

/// The first two steps. To add a negated value is to subtract it.
static Four first_steps(const Four& x) {
  const Four pairs = __builtin_shufflevector(x, x, 0, 0, 2, 2) +
                     __builtin_shufflevector(x, x, 1, 1, 3, 3) * Four{1, -1, 1, -1};
  return __builtin_shufflevector(pairs, pairs, 0, 1, 0, 1) +
         __builtin_shufflevector(pairs, pairs, 2, 3, 2, 3) * Four{1, 1, -1, -1};
}

/// One step of 2 * half values.
static void step(float* low, float* high, size_t half) {
  size_t i = 0;
  for (; i + kFour <= half; i += kFour) {
    const Four a = load(low + i), b = load(high + i);
    store(a + b, low + i);
    store(a - b, high + i);
  }
  for (; i < half; ++i) {
    const float sum = low[i] + high[i], difference = low[i] - high[i];
    low[i] = sum;
    high[i] = difference;
  }
}

void hadamard(std::span<float> x, size_t block) {
  if (!std::has_single_bit(block) || x.size() % block != 0)
    throw failed("a Hadamard transform of {} values in pieces of {}", x.size(), block);
  // Steps may run over the borders of pieces' pieces, never over those of pieces: half < block.
  size_t half = 1;
  if (block >= kFour) {
    for (size_t first = 0; first < x.size(); first += kFour)
      store(first_steps(load(x.data() + first)), x.data() + first);
    half = kFour;
  }
  for (; half < block; half *= 2)
    for (size_t first = 0; first < x.size(); first += 2 * half)
      step(x.data() + first, x.data() + first + half, half);
  const float factor = 1 / std::sqrt(static_cast<float>(block));
  for (float& value : x) value *= factor;
}

}  // namespace kvcodec
