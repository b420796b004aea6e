// Learns the codebooks of one residual quantizer (lib/rvq/residual.hpp) from a sample of rows.
//
// simvq: RSimVQ, the paper's method. The entries of a codebook are W q + b with FROZEN random q ~ N(0, 1/d);
//   only the projection W (d x d) and the bias b are learned. The paper's loss (eq. 4),
//     |x - x^|^2 + beta |q_z - sg(x)|^2 + gamma |x - sg(q_z)|,
//   has no encoder whose output it could move: the last term reaches nothing, and the first two have the same
//   gradient -2 (x - W q_z) q_z^T in W, so beta is a factor of the step.
//   Steps go along that gradient, of the mean over a batch, all codebooks at once, as in the paper. They are Adam's (Kingma and Ba,
//   2015): the paper names no optimizer and no beta, and Adam's steps do not depend on beta.
// kmeans: classic residual k-means: entries are free, and each becomes the mean of the rows that chose it.
//   An entry that no row chose moves to a row that is drawn with a probability proportional to its error.
//
// An epoch passes over all rows: codebook by codebook (kmeans), each with the residuals of the codebooks before it after their own update;
// or batch by batch (simvq). In the first epoch a codebook starts from its residuals: simvq with W = square root of their covariance and
// b = their mean, which is all that it does there, kmeans with rows drawn at random.
//
// Joint refit. Afterwards `refits` rounds improve all codebooks of kmeans together: rows are encoded with a beam, then with these ids held
// fixed the sum of squared errors over ALL codebooks is lowered towards its least-squares solution by solving for one codebook after the
// other (Gauss-Seidel), entry by entry. The entries are then no longer fitted to greedy choice; a round that does not lower the error of the
// rows is undone and ends the refit.
//
// The same result for any number of threads and any SIMD level: no sum uses BLAS, whose order depends on the processor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/options.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"
#include "lib/rvq/residual.hpp"

namespace kvcodec {

/// The way in which entries are learned: freely, or as a learned projection of frozen random ones (the paper's).
enum class RvqMethod : uint8_t { kmeans, simvq };
constexpr auto names_of(RvqMethod) { return std::to_array<std::string_view>({"kmeans", "simvq"}); }

struct RvqTrainOptions final : Options {
  RvqMethod method = RvqMethod::kmeans;  ///< the better one by far at equal bits (rvq-ablation)
  bool bias = true;                      ///< keys have strong means, for which W alone would need entries
  int64_t epochs = 12;                   ///< passes; k-means has hardly anything to gain after these
  int64_t batch = 65536;                 ///< the paper's
  double learning_rate = 1e-3;           ///< the paper's
  int64_t refits = 4;      ///< rounds of kmeans; each gains less than half as much as the one before
  int64_t refit_beam = 5;  ///< hypotheses while refitting; encode with about as many
  int64_t seed = 1;

  std::vector<OptionField> fields() override;
};

/// State that training needs, beside the codebooks, to continue, and that the report shows.
struct RvqTrainState {
  uint64_t epochs = 0, refits = 0;        ///< done
  bool refit_ended = false;               ///< a round gained nothing
  std::vector<std::vector<double>> loss;  ///< [epochs][stages]: energy left after a codebook / that of rows
  std::vector<double> refit_loss;         ///< after each refit round: with the beam
  Matrix<uint64_t> usage;                 ///< (stages, entries): number of rows that chose each, at the end
  Matrix<float> projection;               ///< simvq: (stages * (width + 1), width): rows of W^T, then b
  Matrix<float> mean, variance;           ///< Adam's moments of projection
  uint64_t steps = 0;                     ///< of Adam

  /// exp(entropy) of a codebook's usage: its effective number of entries.
  double perplexity(size_t stage) const;
  size_t dead_entries(size_t stage) const {
    return static_cast<size_t>(std::ranges::count(usage.row(stage), 0u));
  }
};

/// Computes the expensive steps of a training in place of the CPU, with the same bits (cuda/rvq/rvq_train.cpp). Each
/// call may decline by returning false, with nothing written: then the CPU does it.
class RvqTrainEngine {
 public:
  /// For Engine::make.
  using Factory = std::unique_ptr<RvqTrainEngine>();
  virtual ~RvqTrainEngine() = default;
  /// The rows for the next calls: (n, width), finite. They stay as they are until the next rows.
  virtual bool take(MatrixView<const float> rows) = 0;
  /// ids[i] = the entry with the highest score for row i: as ProductSearch::best (lib/linalg/nearest.hpp).
  virtual bool choose(MatrixView<const float> entries, std::span<const float> bias,
                      std::span<uint32_t> ids) = 0;
  /// Row e of means = mean_of the rows i with ids[i] = e, in rising order; unchanged if there are none.
  virtual bool means(std::span<const uint32_t> ids, MatrixView<float> means) = 0;
  /// sums(e, j) = the sum of column j over the rows i with ids[i] = e, in rising order, in double.
  virtual bool sums(std::span<const uint32_t> ids, MatrixView<double> sums) = 0;
  /// a(i, j) = the sum over e of rows(e, i) * others(e, j), in rising order, products rounded before they are
  /// added. rows: (k, n), others: (k, m), a: (n, m), finite.
  virtual bool outer(MatrixView<const double> rows, MatrixView<const double> others,
                     MatrixView<double> a) = 0;
  /// As ResidualEncoder::encode.
  virtual bool encode(const Codebooks& books, MatrixView<const float> rows, size_t beam,
                      MatrixView<uint32_t> ids) = 0;
};

/// Helpers of a training. With a team, every rank has all rows and makes the same call; each takes its share of the rows in searches, and
/// its share of the entries in sums over the rows of an entry. All get the bits of one rank.
struct RvqTrainHelp {
  RvqTrainEngine* engine = nullptr;  ///< or nullptr; not together with a team
  const Team& team = alone();
};

/// Trains `books`, or continues their training. With state.epochs == 0 they are made anew (only their shape counts); else epochs and
/// refits continue from those done up to the requested numbers, as if never interrupted, if rows and options are the same as before
/// (epochs and refits may differ). Epochs after refits start from the refitted codebooks and undo the joint fit, so all requested refits
/// are then made again, and their record starts anew.
/// rows: (n, width), finite, n > 0. Throws Error(bad_input) if there are none, if the state does not fit the
/// options or itself, or if it or the codebooks of an earlier run hold values that are not finite.
void train_codebooks(MatrixView<const float> rows, const RvqTrainOptions& options, Codebooks& books,
                     RvqTrainState& state, const Progress& progress = {}, const RvqTrainHelp& help = {});

/// Sum of squares of all elements, in double, in a fixed order.
double energy_of(MatrixView<const float> rows);

/// Mean squared error of each column of rows when they are encoded (with a beam) and decoded.
std::vector<double> column_errors(const Codebooks& books, MatrixView<const float> rows, size_t beam);

}  // namespace kvcodec
