#include "lib/sparse/byte_atoms.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

constexpr float kLargestLevel = 127;

/// Atoms per piece of work.
constexpr size_t kAtomsPerPiece = 64;

}  // namespace

float scale_of(std::span<const int8_t> levels) {
  double energy = 0;
  for (const int8_t level : levels) energy += level * level;
  return static_cast<float>(1 / std::sqrt(energy));
}

ByteAtoms round_to_bytes(MatrixView<const float> atoms) {
  ByteAtoms bytes{Matrix<int8_t>(atoms.rows(), atoms.cols()), std::vector<float>(atoms.rows())};
  parallel_for(atoms.rows(), kAtomsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      float largest = 0;
      for (const float value : atoms.row(i)) largest = std::max(largest, std::abs(value));
      if (!(largest > 0)) throw failed("atom {} is zero", i);
      // In double, so that levels that were rounded before come out as themselves.
      const double factor = kLargestLevel / double{largest};
      std::ranges::transform(atoms.row(i), bytes.levels.row(i).begin(), [&](float value) {
        return static_cast<int8_t>(std::nearbyint(double{value} * factor));
      });
      bytes.scales[i] = scale_of(bytes.levels.row(i));
    }
  });
  return bytes;
}

Matrix<float> floats_of(const ByteAtoms& atoms) {
  Matrix<float> floats(atoms.levels.rows(), atoms.levels.cols());
  parallel_for(floats.rows(), kAtomsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i)
      std::ranges::transform(atoms.levels.row(i), floats.row(i).begin(),
                             [scale = atoms.scales[i]](int8_t level) { return scale * level; });
  });
  return floats;
}

}  // namespace kvcodec
