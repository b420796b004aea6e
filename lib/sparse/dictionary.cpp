#include "lib/sparse/dictionary.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/nearest.hpp"
#include "lib/sparse/gradient_step.hpp"

namespace kvcodec {

constexpr float kLargestLevel = 127;

constexpr size_t kAtomsPerPiece = 64;

ByteAtoms round_to_bytes(MatrixView<const float> atoms) {
  ByteAtoms bytes{Matrix<int8_t>(atoms.rows(), atoms.cols()), std::vector<float>(atoms.rows())};
  parallel_each(atoms.rows(), kAtomsPerPiece, [&](size_t i) {
    float largest = 0;
    for (const float value : atoms.row(i)) largest = std::max(largest, std::abs(value));
    if (!(largest > 0)) throw failed("atom {} is zero", i);
    // In double, so that levels that were rounded before come out as themselves.
    const double factor = kLargestLevel / double{largest};
    double energy = 0;
    for (size_t c = 0; c < atoms.cols(); ++c) {
      const double level = std::nearbyint(double{atoms(i, c)} * factor);
      bytes.levels(i, c) = static_cast<int8_t>(level);
      energy += level * level;
    }
    bytes.scales[i] = static_cast<float>(1 / std::sqrt(energy));
  });
  return bytes;
}

Matrix<float> floats_of(const ByteAtoms& atoms) {
  Matrix<float> floats(atoms.levels.rows(), atoms.levels.cols());
  parallel_each(floats.rows(), kAtomsPerPiece, [&](size_t i) {
    std::ranges::transform(atoms.levels.row(i), floats.row(i).begin(),
                           [scale = atoms.scales[i]](int8_t level) { return scale * level; });
  });
  return floats;
}

void check_atoms(MatrixView<const float> atoms) {
  if (atoms.rows() == 0 || atoms.cols() == 0)
    throw bad_input("a dictionary of {} atoms of {} values is empty", atoms.rows(), atoms.cols());
  for (size_t i = 0; i < atoms.rows(); ++i)
    if (const double norm = std::sqrt(squared_norm(atoms.row(i)));
        !(std::abs(norm - 1) <= kNormTolerance))  // NaN fails as well
      throw bad_input("atom {} has norm {:.6g}; atoms have norm 1 within {}", i, norm, kNormTolerance);
}

size_t normalize_atoms(MatrixView<float> atoms) {
  size_t unusable = 0;
  for (size_t i = 0; i < atoms.rows(); ++i) {
    const double norm = std::sqrt(squared_norm(atoms.row(i)));
    if (!(norm > 0) || !std::isfinite(norm))
      ++unusable;
    else if (std::abs(norm - 1) > kNormRounding)
      for (float& value : atoms.row(i)) value = static_cast<float>(value / norm);
  }
  return unusable;
}

void kaiming_atoms(uint64_t seed, MatrixView<float> atoms) {
  Rng rng(seed);
  // The bound sqrt(6 / fan-in) of the method cancels when rows are brought to norm 1.
  for (size_t i = 0; i < atoms.rows(); ++i)
    for (float& value : atoms.row(i)) value = static_cast<float>(rng.uniform(-1, 1));
  normalize_atoms(atoms);
}

}  // namespace kvcodec
