// Orthogonal matching pursuit: the sparse coder of SparseCache (its Algorithm 2) in the form of Batch-OMP (Rubinstein, Zibulevsky and Elad,
// 2008): correlations are updated through the Gram matrix of the dictionary instead of being computed anew.
//
// For each signal y the coder starts with no atoms and repeats: take the atom d with the largest |d . r| of the residual r = y - D x that
// is not taken yet (the lower id among equals), then fit all coefficients x anew by least squares.
//
// It is fast and still exact. Every round needs the correlations of all atoms, but only to find the largest one. They are therefore updated
// approximately, from a Gram matrix in integers of 8 or 16 bits, with a bound on the error; long pursuits skip atoms that another bound
// rules out (omp_screen.hpp). The few atoms whose correlation could be the largest within the error are compared by their inner products
// with the residual in float. The outcome depends on those comparisons alone: it is the same for any thread count, SIMD level and block
// size, and for both ways of computing correlations, on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

struct Dictionary;  // lib/sparse/dictionary.hpp

struct OmpOptions {
  /// Maximum number of atoms per signal; the paper's middle setting. Bits per signal grow linearly with it.
  int64_t sparsity = 64;
  /// Pursuit stops at |y - D x| <= error_target * |y|; 0 = it takes `sparsity` atoms whatever the error.
  double error_target = 0;

  /// Throws Error(usage) for an error target of 1 or more, and for more atoms per signal than it has values or there are.
  void check(size_t width, size_t atoms) const;
};

/// The codes of a batch of signals. Row i of ids and coefficients holds counts[i] pairs in the order of their selection, then zeros.
struct SparseCodes {
  Matrix<uint32_t> ids;        ///< (signals, sparsity)
  Matrix<float> coefficients;  ///< (signals, sparsity)
  /// Atoms taken; fewer than `sparsity` if the target was reached, for a zero signal, or when no
  /// atom that is independent of those taken lowers the error any more.
  std::vector<uint32_t> counts;
  std::vector<double> residuals;  ///< |y - D x|, Euclidean
};

/// A device's function that computes in place of Omp::encode, for one dictionary. Threads may share it. The bits are
/// the same. False: the device did not do it, and the codes are undefined; the caller does it.
using PursuitFunction =
    std::function<bool(MatrixView<const float> signals, const OmpOptions& options, SparseCodes& codes)>;
/// For Engine::make. The function needs nothing of the dictionary afterwards.
struct PursuitOnDevice {
  using Factory = PursuitFunction(const Dictionary&);
};

/// A dictionary made ready for coding. Const members may run on several threads at once.
class Omp {
 public:
  Omp() = default;

  /// Takes a copy of the atoms: (n, m), 1 <= n < 2^31, m >= 1. Throws as check_atoms does (lib/sparse/dictionary.hpp).
  explicit Omp(MatrixView<const float> atoms) { assign(atoms); }

  /// Replaces the dictionary, keeping memory; drops the Gram matrix.
  void assign(MatrixView<const float> atoms);

  size_t atoms() const { return atoms_; }
  size_t width() const { return width_; }

  /// Memory of the Gram matrix for n atoms, in words and bytes: about 3 n^2 bytes, 192 MiB for 8192.
  static uint64_t gram_bytes(size_t n);

  /// Computes the Gram matrix if it is not there; not to be called while encode runs. Without it encode computes correlations by matrix
  /// products in every round: no memory, more time. team: each rank has the same atoms and computes its share of the products.
  void build_gram(const Team& team = alone());
  bool has_gram() const { return !gram_.empty(); }

  /// Inner products of some atoms with each other, as the coder uses them for close decisions: the same
  /// with and without a Gram matrix, at every SIMD level. out: (ids.size(), ids.size()).
  void products_of(std::span<const uint32_t> ids, MatrixView<float> out) const;

  /// True if building the Gram matrix costs less than it saves for that many signals with s atoms each.
  bool gram_pays(uint64_t signals, int64_t s) const {
    // n^2 m / 2 multiplications against n m per signal and atom (the first round needs them either way).
    return static_cast<double>(signals) * static_cast<double>(s - 1) > static_cast<double>(atoms_) / 2;
  }

  /// Codes signals: (count, width()), finite. Throws Error(usage) for a sparsity above width() or the number of atoms.
  SparseCodes encode(MatrixView<const float> signals, const OmpOptions& options) const;

 private:
  friend class OmpBlock;

  MatrixView<const float> padded_atoms() const { return {rows_.data(), atoms_, width_, row_stride_}; }
  const float* row(size_t atom) const { return rows_.data() + atom * row_stride_; }
  using Tile = std::pair<size_t, size_t>;
  void gram_tile(Tile tile, std::span<int16_t> words) const;
  void put_gram_tile(Tile tile, std::span<const int16_t> words);

  size_t atoms_ = 0, width_ = 0;
  size_t row_stride_ = 0;              // floats from one atom to the next; zeros behind width_
  AlignedVector<float> rows_;          // (atoms_, row_stride_)
  std::vector<double> energies_;       // d . d of each atom
  size_t stride_ = 0;                  // atoms_ rounded up to whole tiles
  AlignedVector<int16_t> gram_;        // (atoms_, stride_): inner products in 16 bits, or empty
  AlignedVector<uint8_t> gram_bytes_;  // in 8 bits, each row in units of its own; empty where not faster
  std::vector<double> gram_peaks_;     // largest |entry| of each row except for the diagonal
  std::vector<double> byte_units_;     // of the rows of gram_bytes_
};

}  // namespace kvcodec
