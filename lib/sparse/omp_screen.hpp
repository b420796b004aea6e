// Which atoms could be the next one? Screens look at all atoms with cheap arithmetic whose error they bound,
// and hand over the few that could win; those are then compared exactly (omp_block.hpp). Inside lib/sparse
// only.
//
// A screen keeps the words of the Gram matrix's rows of the atoms taken in panels, [tiles][rows][kScreen], so
// that one tile of all rows lies together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {

/// Entries of the Gram matrix and of atoms in 16 bits are multiples of 1 / kWordUnit: below 2^15 with room
/// for norms that are a little above 1.
inline constexpr double kWordUnit = 32000;

/// Integer sums stay below 2^31 if what is multiplied with entries in units of 1 / kWordUnit has units no
/// finer than the largest sum / kSumUnit, where a sum includes the roundings of its weights: 2^31 / kWordUnit =
/// 67108, less a margin for norms. There may be 65536 weights: their roundings take up to half of it.
inline constexpr double kSumUnit = 64000;

/// Largest weight in 16 bits, less the rounding.
inline constexpr double kWordWeight = 32000;

/// The Gram matrix as screens see it.
struct GramView {
  const int16_t* words = nullptr;  ///< (atoms, stride), in units of 1 / kWordUnit
  size_t atoms = 0, stride = 0;
  const double* peaks = nullptr;     ///< largest |entry| of each row except for the diagonal
  const double* energies = nullptr;  ///< the diagonal
  double entry_error = 0;            ///< bound of the words' distance from the products of atoms in float

  const int16_t* row(size_t atom) const { return words + atom * stride; }
};

/// Panels, and weighted sums over their rows in integers.
class GramPanels {
 public:
  GramPanels(const GramView& gram, size_t capacity);

  void begin() { count_ = 0, sum_of_peaks_ = 0; }
  void add(uint32_t atom);
  const int16_t* tile(size_t t) const { return panels_.data() + t * tile_size_; }

  /// Weights in 16 bits for factors, one per row: scale() times the sum is within error() of the sum with the
  /// factors, for all atoms that are not in a panel themselves.
  void set_weights(std::span<const double> factors);
  const uint32_t* weights() const { return weights_.data(); }
  size_t pairs() const { return (count_ + 1) / 2; }
  float scale() const { return scale_; }
  double error() const { return error_; }
  double magnitude() const { return magnitude_; }  ///< bound of the sums

 private:
  const GramView gram_;
  const size_t tile_size_;  // words
  size_t count_ = 0;
  double sum_of_peaks_ = 0;
  std::vector<double> peaks_;  // of the rows
  AlignedVector<int16_t> panels_;
  std::vector<uint32_t> weights_;
  float scale_ = 0;
  double error_ = 0, magnitude_ = 0;
};

/// Screens by correlation with the residual: orthogonal matching pursuit. The correlations are those with the
/// signal less sum over the atoms taken of x(i) G(i, j).
class CorrelationScreen {
 public:
  virtual ~CorrelationScreen() = default;

  /// start: the correlations of all atoms with a signal, within `error`; (stride), changed by the screen.
  virtual void begin(float* start, double error) = 0;
  /// Leaves an atom out from now on.
  virtual void exclude(uint32_t atom) = 0;
  /// The atom may be added soon: fetches what is far away.
  virtual void expect(uint32_t atom) const = 0;
  /// A new atom, the last of those with coefficients x.
  virtual void add(uint32_t atom, std::span<const double> x) = 0;
  /// Atoms that could have the largest correlation, where correlations that are closer than twice `margin`
  /// count as equal; ascending. Returns a lower bound of the largest.
  virtual double look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) = 0;
  /// start now has the correlations of the residual at x, with no error.
  virtual void rebase(std::span<const double> x) = 0;
  /// Whether start has no error.
  virtual bool exact() const = 0;
};

/// Looks at few atoms: for long pursuits. The values of a tile of atoms follow each new atom at once, with
/// the coefficient that it begins with; what coefficients have changed since is put right later and by tiles,
/// in the order of how large the correlations of a tile could be: by Cauchy and Schwarz a change of the
/// coefficients by dx moves that of atom j by |dx| times the norm of its products with the atoms taken at
/// most. Most tiles wait for many rounds.
class LazyScreen final : public CorrelationScreen {
 public:
  LazyScreen(const GramView& gram, size_t capacity);

  void begin(float* start, double error) override;
  void exclude(uint32_t atom) override;
  void expect(uint32_t atom) const override;
  void add(uint32_t atom, std::span<const double> x) override;
  double look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) override;
  void rebase(std::span<const double> x) override;
  bool exact() const override { return start_error_ == 0; }

 private:
  float distance(size_t round, std::span<const double> x) const;
  float look_at(size_t tile, uint32_t round);

  const GramView gram_;
  const omp_kernels::Kernels& kernels_;
  const size_t capacity_, tiles_;
  GramPanels panels_;
  float* start_ = nullptr;
  double start_error_ = 0;
  double magnitude_ = 0;        // bound of what values are made of
  std::vector<float> applied_;  // coefficients with which values followed the atoms
  std::vector<double> origin_;  // coefficients that start belongs to
  AlignedVector<float> values_;
  AlignedVector<float> spread_;         // energy of each atom's products with those taken
  std::vector<float> peaks_, spreads_;  // largest of each tile, spreads as norms
  std::vector<uint32_t> rounds_;        // atoms taken when the tile was last looked at
  std::vector<float> errors_;           // of values, by that look
  std::vector<double> history_;         // coefficients at each round, (capacity + 1, capacity)
  std::vector<double> changes_;
  std::vector<float> distances_, moves_;  // of the coefficients since each round; since each tile's round
  std::vector<float> bounds_;             // of tiles that are not up to date
  std::vector<size_t> fresh_;             // tiles that are
};

/// Looks at all atoms with a Gram matrix in bytes, each row in units of its own: for short pursuits, where
/// processors multiply bytes fast.
class ByteScreen final : public CorrelationScreen {
 public:
  /// bytes: (atoms, stride), units: of each row.
  ByteScreen(const GramView& gram, const uint8_t* bytes, const double* units, size_t capacity);
  static bool fits(size_t capacity);

  void begin(float* start, double error) override;
  void exclude(uint32_t atom) override;
  void expect(uint32_t atom) const override;
  void add(uint32_t atom, std::span<const double> x) override;
  double look(std::span<const double> x, double margin, std::vector<uint32_t>& candidates) override;
  void rebase(std::span<const double> x) override;
  bool exact() const override { return start_error_ == 0; }

 private:
  double screen(std::span<const double> x);
  double collect(double error, std::vector<uint32_t>& candidates);
  void rebase_in_words(std::span<const double> x);
  void take_start();

  const GramView gram_;
  const omp_kernels::Kernels& kernels_;
  const uint8_t* bytes_;
  const double* units_;
  float* start_ = nullptr;
  double start_error_ = 0, magnitude_ = 0;
  size_t full_ = 0;          // quads that are stored
  bool from_bytes_ = false;  // whether peaks are of start less what rows_ say, or of start
  std::vector<uint32_t> ids_;
  std::vector<double> origin_;  // coefficients that start belongs to
  AlignedVector<uint8_t> quads_;
  omp_kernels::ByteRows rows_{};
  std::vector<uint32_t> high_, low_;
  AlignedVector<float> values_;
  std::vector<float> peaks_;  // of tiles of kTile
  AlignedVector<float> unused_;
};

/// Screens by the error that would be left: order-recursive selection. Keeps for every atom its correlation c
/// with the residual and its energy outside the span of those taken, a; c^2 / a is what taking it would gain.
/// Both follow from the products p with the basis vector that a new atom brings: c -= z p, a -= p^2.
class ErrorScreen {
 public:
  ErrorScreen(const GramView& gram, size_t capacity, double independent);

  /// As above, for a signal of that norm; error includes the margin within which correlations count as equal.
  void begin(float* start, double error, double norm);
  void exclude(uint32_t atom);
  void expect(uint32_t atom) const;
  /// A new atom. column: what the new basis vector is made of, as factors of the atoms taken, itself the
  /// last; along: the coordinate of the signal.
  void add(uint32_t atom, std::span<const double> column, double along);
  /// As above, of gains. Returns a lower bound of the root of the largest.
  double look(std::vector<uint32_t>& candidates);

 private:
  void project(float along);
  double outside_error() const;

  const GramView gram_;
  const omp_kernels::Kernels& kernels_;
  const size_t tiles_;
  const double independent_;
  GramPanels panels_;
  float* correlations_ = nullptr;
  double norm_ = 0, correlation_error_ = 0, squared_errors_ = 0;
  size_t count_ = 0;
  AlignedVector<float> outside_, gains_;  // gains: upper bounds
  AlignedVector<float> energies_;
  std::vector<float> peaks_;
};

}  // namespace kvcodec
