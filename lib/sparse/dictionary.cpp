#include "lib/sparse/dictionary.hpp"

#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/gradient_step.hpp"

namespace kvcodec {
void check_atoms(MatrixView<const float> atoms) {
  if (atoms.rows() == 0 || atoms.cols() == 0)
    throw bad_input("a dictionary of {} atoms of {} values is empty", atoms.rows(), atoms.cols());
  for (size_t i = 0; i < atoms.rows(); ++i) {
    double energy = 0;
    for (const float value : atoms.row(i)) energy += double{value} * value;
    // Written so that NaN fails as well.
    if (!(std::abs(std::sqrt(energy) - 1) <= kNormTolerance))
      throw bad_input("atom {} has norm {:.6g}; atoms have norm 1 within {}", i, std::sqrt(energy),
                      kNormTolerance);
  }
}

void Dictionary::check(const SignalLayout& layout, size_t num_layers) const {
  if (atoms.cols() != layout.signal_width())
    throw bad_input("atoms of {} values; {} layers of {} heads of {} make signals of {}", atoms.cols(),
                    layout.layers, layout.heads, layout.head_dim, layout.signal_width());
  check_atoms(atoms);
  normalization.check(num_layers, layout.layer_width());
}

void Dictionary::store_as(AtomType type) {
  bytes = {};
  if (type == AtomType::f32) return;
  bytes = round_to_bytes(atoms);
  atoms = floats_of(bytes);
}

size_t normalize_atoms(MatrixView<float> atoms) {
  size_t unusable = 0;
  for (size_t i = 0; i < atoms.rows(); ++i) {
    double energy = 0;
    for (const float value : atoms.row(i)) energy += double{value} * value;
    const double norm = std::sqrt(energy);
    if (!(norm > 0) || !std::isfinite(norm)) {
      ++unusable;
      continue;
    }
    if (std::abs(norm - 1) <= kNormRounding) continue;
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
