#include "lib/linalg/hadamard.hpp"

#include <bit>
#include <cmath>

#include "lib/core/error.hpp"

namespace kvcodec {

void hadamard(std::span<float> x, size_t block) {
  if (!std::has_single_bit(block) || x.size() % block != 0)
    throw failed("a Hadamard transform of {} values in pieces of {}", x.size(), block);
  // Steps may run over the borders of pieces' pieces, never over those of pieces: half < block.
  for (size_t half = 1; half < block; half *= 2)
    for (size_t first = 0; first < x.size(); first += 2 * half) {
      float* low = x.data() + first;
      float* high = low + half;
      for (size_t i = 0; i < half; ++i) {
        const float sum = low[i] + high[i], difference = low[i] - high[i];
        low[i] = sum;
        high[i] = difference;
      }
    }
  const float factor = 1 / std::sqrt(static_cast<float>(block));
  for (float& value : x) value *= factor;
}

}  // namespace kvcodec
