// The nearest of k entries to each of n rows, without ever holding n x k products.
//
// The score of row x with entry e is <x, e> + bias[e]; the highest wins, of equal scores the lowest id. With
// bias[e] = -|e|^2 / 2 (nearest_bias) that is the entry at the smallest Euclidean distance.
//
// A score is one fixed float: products rounded before they are added, element i in lane i mod 16, the lanes added as a tree (upper half
// onto lower half), then the bias. Ids and scores are therefore the same for any number of threads and any SIMD level. What differs is how
// much is left out: wide levels first score all entries roughly (in 8-bit integers where the machine has AVX512_VNNI, else in floats), with
// a bound on the error by Cauchy and Schwarz,
//   |<x, e> - <x', e'>| <= |x - x'| |e| + |x'| |e - e'|,
// for each entry with its own norms, and only entries that the bound does not rule out are scored exactly. (x', e': row
// and entry as the rough score has them.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// out[e] = <row, entry e>, summed as above: the same at any SIMD level. row: d, entries: (k, d), out: k.
/// Runs on the calling thread. Throws Error(failed) if shapes do not fit.
void products(std::span<const float> row, MatrixView<const float> entries, std::span<float> out);

/// |x|^2, summed in double in the order of elements.
inline double squared_norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * double{value};
  return sum;
}

/// -|e|^2 / 2 of each entry (k, d), summed in double: with it a ProductSearch finds the nearest entry.
inline std::vector<float> nearest_bias(MatrixView<const float> entries) {
  std::vector<float> bias(entries.rows());
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(-squared_norm(entries.row(i)) / 2);
  return bias;
}

/// Entries prepared for searches. Const members may run on several threads.
class ProductSearch {
 public:
  ProductSearch() = default;
  /// entries: (k, d), finite, which outlive it; bias: k, or empty for none. Copies the entries unless they are contiguous and d is a
  /// multiple of 16. Throws Error(failed) if there is no entry or another number of biases.
  ProductSearch(MatrixView<const float> entries, std::span<const float> bias);

  /// ids[i] = the entry with the highest score for row i; scores[i] = that score. rows: (n, d), finite; ids: n; scores: n, or empty.
  /// Scratch memory does not grow with n times k. Throws Error(failed) if shapes do not fit.
  void best(MatrixView<const float> rows, std::span<uint32_t> ids, std::span<float> scores) const;

  struct Match {
    float score;   ///< + offset of the row
    uint32_t row;  ///< in its group
    uint32_t id;
    bool operator==(const Match&) const = default;
  };

  /// The memory of a search beside the entries, which later searches of any entries on one thread use again.
  class Scratch {
   public:
    Scratch();

   private:
    friend class ProductSearch;
    class Worker;
    std::shared_ptr<Worker> worker_;
  };

  /// Rows in groups of `group` consecutive ones, such as the hypotheses of a beam search: the best pairs of
  /// row and entry of each group by score + offset of the row, the highest first, of equal ones the earlier
  /// row, then the lower id. offsets: one per row, finite or -infinity for rows that do not count; or empty.
  /// out: (n / group, width); if fewer than `width` pairs count, the rest has score -infinity. Runs on the
  /// calling thread. Throws Error(failed) if shapes do not fit.
  void best_of_groups(MatrixView<const float> rows, std::span<const float> offsets, size_t group,
                      MatrixView<Match> out, Scratch& scratch) const;

 private:
  void pack_floats(MatrixView<const float> entries);
  void pack_bytes(MatrixView<const float> entries);

  enum class Screen : uint8_t { none, floats, bytes };
  size_t count_ = 0, dimensions_ = 0, padded_ = 0;  // padded: dimensions, a multiple of 16
  Screen screen_ = Screen::none;
  const float* entries_ = nullptr;  // the caller's
  AlignedVector<float> own_;        // (count, padded), zeros behind dimensions; empty if not copied
  const float* exact() const { return own_.empty() ? entries_ : own_.data(); }
  AlignedVector<float> bias_;           // count; zeros if none was given
  AlignedVector<float> screen_bias_;    // count rounded up to a tile, -infinity behind count
  AlignedVector<float> float_panels_;   // [tiles of entries / 16][dimensions][16]
  AlignedVector<uint8_t> byte_panels_;  // [tiles of entries / 16][quads][16][4], offset by 128
  AlignedVector<float> scale_;          // of the bytes of each entry
  AlignedVector<float> margin_;         // bound of an entry's error in bytes over that of any; padded
  AlignedVector<float> center_;         // padded; subtracted from entries and rows in bytes
  double largest_norm_ = 0;             // of entries
  double largest_centered_ = 0;         // of entries without the center
  double largest_rounding_ = 0;         // of centered entries less the values of their bytes
  double largest_bias_ = 0, center_norm_ = 0;
};

}  // namespace kvcodec
