#include "lib/rvq/train.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {
namespace {

/// Rows per piece of parallel work over rows, and entries over entries.
constexpr size_t kPieceRows = 1024, kPieceEntries = 64;

/// Gauss-Seidel stops when a sweep lowers the error by less than this fraction, or after kMaxSweeps: the next
/// round of encoding then changes more than further sweeps would.
constexpr double kSweepGain = 1e-4;
constexpr size_t kMaxSweeps = 12;

/// Adam's usual constants (Kingma and Ba, 2015).
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

/// Streams of random numbers, so that none depends on how many another draws.
enum Stream : uint64_t {
  kEntriesStream = 1,
  kStartStream = 1u << 20,
  kReplaceStream = 2u << 20,
  kOrderStream = 3u << 20
};

using Ids = std::vector<uint32_t>;

/// Sum over pieces of rows, added in the order of the pieces.
template <class Body>
double sum_over_rows(size_t rows, const Body& body) {
  std::vector<double> parts((rows + kPieceRows - 1) / kPieceRows);
  parallel_for(rows, kPieceRows, [&](size_t begin, size_t end, int) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += body(i);
    parts[begin / kPieceRows] = sum;
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double energy_of_row(std::span<const float> row) {
  std::array<double, 4> lanes{};
  size_t j = 0;
  for (; j + lanes.size() <= row.size(); j += lanes.size())
    for (size_t lane = 0; lane < lanes.size(); ++lane)
      lanes[lane] += double{row[j + lane]} * double{row[j + lane]};
  for (; j < row.size(); ++j) lanes[j % lanes.size()] += double{row[j]} * double{row[j]};
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/// to(i) = from(order[i]), or from(i) without an order.
void copy_rows(MatrixView<const float> from, MatrixView<float> to, std::span<const uint32_t> order = {}) {
  parallel_each(to.rows(), kPieceRows, [&](size_t i) {
    std::ranges::copy(from.row(order.empty() ? i : order[i]), to.row(i).begin());
  });
}

/// The Cholesky factor of the symmetric a (n, n), in its lower triangle; what lies above is left as it is.
/// Squares of the diagonal are at least `floor`, for matrices that are singular except for rounding.
void cholesky(MatrixView<double> a, double floor) {
  const size_t n = a.cols();
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) a(j, j) -= a(j, k) * a(j, k);
    a(j, j) = std::sqrt(std::max(a(j, j), floor));
    for (size_t i = j + 1; i < n; ++i) {
      double sum = a(i, j);
      for (size_t k = 0; k < j; ++k) sum -= a(i, k) * a(j, k);
      a(i, j) = sum / a(j, j);
    }
  }
}

/// a += rows' . others, products in double, each sum in the order of the rows. rows: (k, n), others: (k, m), a: (n, m).
void add_outer(const Matrix<double>& rows, const Matrix<double>& others, Matrix<double>& a) {
  parallel_for(a.rows(), 8, [&](size_t begin, size_t end, int) {
    for (size_t e = 0; e < rows.rows(); ++e)
      for (size_t i = begin; i < end; ++i) {
        const double factor = rows(e, i);
        if (factor == 0) continue;
        const auto other = others.row(e);
        const auto to = a.row(i);
        for (size_t j = 0; j < to.size(); ++j) to[j] += factor * other[j];
      }
  });
}

class Trainer {
 public:
  Trainer(MatrixView<const float> rows, const RvqTrainOptions& options, Codebooks& books,
          RvqTrainState& state, const Progress& progress, const RvqTrainHelp& help)
      : rows_(rows),
        options_(options),
        books_(books),
        state_(state),
        progress_(progress),
        engine_(help.engine),
        team_(help.team) {}

  void run() {
    check_state();
    if (simvq_ && state_.projection.size() == 0)
      state_.projection = Matrix<float>(stages_ * (width_ + 1), width_);
    const auto epochs = static_cast<uint64_t>(options_.epochs),
               refits = simvq_ ? 0 : static_cast<uint64_t>(options_.refits);
    // The epochs change what was fitted jointly, so it has to be fitted again.
    if (state_.epochs < epochs) state_.refits = 0, state_.refit_ended = false, state_.refit_loss.clear();
    const double total = static_cast<double>((epochs + refits) * stages_);
    for (; state_.epochs < epochs; ++state_.epochs) {
      done_ = static_cast<double>(state_.epochs * stages_), total_ = total;
      std::vector<double> loss(stages_);
      if (simvq_ && state_.epochs > 0)
        batch_epoch(loss);
      else
        stage_epoch(loss);
      state_.loss.push_back(loss);
    }
    for (; state_.refits < refits && !state_.refit_ended; ++state_.refits) {
      done_ = static_cast<double>((epochs + state_.refits) * stages_), total_ = total;
      refit_round();
    }
    count_usage();
  }

 private:
  void check_state() const {
    const auto fits = [](const auto& matrix, size_t rows, size_t cols) {
      return matrix.size() == 0 || (matrix.rows() == rows && matrix.cols() == cols);
    };
    const size_t parameters = stages_ * (width_ + 1);
    if (rows_.rows() == 0) throw bad_input("there are no vectors to train on");
    if (rows_.rows() > std::numeric_limits<uint32_t>::max())
      throw bad_input("{} vectors to train on; there can be {}", rows_.rows(),
                      std::numeric_limits<uint32_t>::max());
    const bool begun = state_.epochs > 0, stepped = state_.steps > 0;
    if (rows_.cols() != width_ || state_.loss.size() != state_.epochs ||
        std::ranges::any_of(state_.loss, [&](const auto& epoch) { return epoch.size() != stages_; }) ||
        state_.refit_loss.size() != state_.refits || !fits(state_.projection, parameters, width_) ||
        !fits(state_.mean, parameters, width_) || !fits(state_.variance, parameters, width_) ||
        (begun && simvq_ && state_.projection.size() == 0) || (simvq_ && state_.epochs > 1 && !stepped) ||
        stepped != (state_.mean.size() > 0) || stepped != (state_.variance.size() > 0))
      throw bad_input("the record of the training does not fit its options");
    if (!begun) return;
    with_context("the codebooks to go on from", [&] { books_.check_finite(); });
    for (const auto* matrix : {&state_.projection, &state_.mean, &state_.variance})
      if (!std::ranges::all_of(std::span(matrix->data(), matrix->size()),
                               [](float value) { return std::isfinite(value); }))
        throw bad_input("the record of the training holds a value that is not finite");
  }

  void report_at(size_t stage, double loss) {
    report(progress_, done_ + static_cast<double>(stage), total_, fmt::format("error {:.4f}", loss));
  }

  // Heavy steps: by the engine, or here, where each rank takes its share

  /// Gives the engine the rows that choose() and fit() work on next.
  void take(MatrixView<const float> rows) { taken_ = engine_ && engine_->take(rows); }

  /// Finds the entry nearest to each of `rows`, those last given to take().
  void choose(size_t stage, MatrixView<const float> rows, std::span<uint32_t> ids) const {
    const std::vector<float> bias = nearest_bias(books_.stage(stage));
    if (taken_ && engine_->choose(std::as_const(books_).stage(stage), bias, ids)) return;
    const TeamShare own = team_.share(rows.rows());
    ProductSearch(books_.padded_stage(stage), bias)
        .best(padded(rows).rows(own.begin, own.count()), ids.subspan(own.begin, own.count()), {});
    team_.gather(ids, rows.rows());
  }

  /// RvqTrainEngine::sums of `targets`, the rows last given to take().
  Matrix<double> sums_of(MatrixView<const float> targets, std::span<const uint32_t> ids,
                         const RowsByCluster& members) const {
    Matrix<double> sums(entries_, width_);
    if (taken_ && engine_->sums(ids, sums)) return sums;
    const TeamShare own = team_.share(entries_);
    parallel_each(own.count(), kPieceEntries, [&](size_t k) {
      for (const uint32_t i : members.of(own.begin + k))
        for (size_t j = 0; j < width_; ++j) sums(own.begin + k, j) += double{targets(i, j)};
    });
    team_.gather(std::span(sums.data(), sums.size()), entries_);
    return sums;
  }

  /// rows' . others
  Matrix<double> outer(const Matrix<double>& rows, const Matrix<double>& others) const {
    Matrix<double> a(rows.cols(), others.cols());
    if (!engine_ || !engine_->outer(rows, others, a)) add_outer(rows, others, a);
    return a;
  }

  void encode(size_t beam, Matrix<uint32_t>& ids) const {
    if (engine_ && engine_->encode(books_, rows_, beam, ids)) return;
    const TeamShare own = team_.share(rows_.rows());
    ResidualEncoder(books_).encode(rows_.rows(own.begin, own.count()), beam,
                                   ids.view().rows(own.begin, own.count()));
    team_.gather(std::span(ids.data(), ids.size()), ids.rows());
  }

  // SimVQ: entries from projections

  /// The frozen random entries of a codebook: made anew from the seed wherever they are needed.
  Matrix<float> frozen(size_t stage) const {
    Rng rng(static_cast<uint64_t>(options_.seed), kEntriesStream + stage);
    Matrix<float> random(entries_, width_);
    const double scale = 1 / std::sqrt(static_cast<double>(width_));
    for (size_t i = 0; i < random.size(); ++i) random.data()[i] = static_cast<float>(rng.normal() * scale);
    return random;
  }

  MatrixView<float> projection_of(size_t stage) {
    return state_.projection.view().rows(stage * (width_ + 1), width_ + 1);
  }

  /// Sets the stored entries to W q + b. Without BLAS, whose order of sums depends on the processor: the
  /// codebooks must not. It takes hardly any time beside the search.
  void fold(size_t stage, const Matrix<float>& random) {
    const MatrixView<float> projection = projection_of(stage);
    const auto out = books_.stage(stage);
    parallel_each(entries_, kPieceEntries, [&](size_t e) {
      const auto entry = out.row(e);
      std::ranges::copy(projection.row(width_), entry.begin());
      for (size_t i = 0; i < width_; ++i) {
        const float factor = random(e, i);
        const float* row = projection.row(i).data();
        for (size_t j = 0; j < entry.size(); ++j) entry[j] += factor * row[j];
      }
    });
  }

  /// W = the square root of the rows' covariance (by Cholesky), as N(0, 1/d) becomes N(0, covariance) then; b = their mean.
  void start_projection(size_t stage) {
    const size_t n = left_.rows();
    Matrix<double> moments(width_ + 1, width_);
    parallel_for(width_, 4, [&](size_t begin, size_t end, int) {
      for (size_t i = 0; i < n; ++i) {
        const auto row = left_.row(i);
        for (size_t a = begin; a < end; ++a) {
          moments(width_, a) += double{row[a]};
          for (size_t b = 0; b <= a; ++b) moments(a, b) += double{row[a]} * double{row[b]};
        }
      }
    });
    const double count = static_cast<double>(n);
    const auto mean = moments.row(width_);
    for (double& value : mean) value = options_.bias ? value / count : 0;
    double trace = 0;
    for (size_t a = 0; a < width_; ++a) {
      for (size_t b = 0; b <= a; ++b) moments(a, b) = moments(a, b) / count - mean[a] * mean[b];
      trace += moments(a, a);
    }
    // A channel that never changes would make the matrix singular.
    const double floor = std::max(trace / static_cast<double>(width_) * 1e-6, 1e-30);
    const MatrixView<float> projection = projection_of(stage);
    const MatrixView<double> root = moments.view().rows(0, width_);  // above its diagonal are zeros
    cholesky(root, floor);
    const double scale = std::sqrt(static_cast<double>(width_));
    for (size_t a = 0; a < width_; ++a)
      for (size_t b = 0; b < width_; ++b) projection(b, a) = static_cast<float>(root(a, b) * scale);
    for (size_t a = 0; a < width_; ++a) projection(width_, a) = static_cast<float>(mean[a]);
  }

  /// Entries that spread as widely as the rows are too long for the few rows near each. So W is scaled by the
  /// factor that fits the rows best; rows then choose other, shorter entries, so this is done three times.
  void shrink_projection(size_t stage) {
    const Matrix<float> random = frozen(stage);
    const MatrixView<float> projection = projection_of(stage);
    fold(stage, random);
    for (int round = 0; round < 3; ++round) {
      choose(stage, left_, ids_);
      const auto entries = std::as_const(books_).stage(stage);
      // The sum over rows of products of their entries, both less the bias, with the rows or with themselves.
      const auto products_with = [&](bool rows) {
        return sum_over_rows(left_.rows(), [&](size_t i) {
          double sum = 0;
          for (size_t j = 0; j < width_; ++j) {
            const double bias = projection(width_, j), entry = double{entries(ids_[i], j)} - bias;
            sum += (rows ? double{left_(i, j)} - bias : entry) * entry;
          }
          return sum;
        });
      };
      const double products = products_with(true), squares = products_with(false);
      if (!(squares > 0)) return;
      const auto scale = static_cast<float>(std::max(products / squares, 0.0));
      for (size_t i = 0; i < width_; ++i)
        for (float& value : projection.row(i)) value *= scale;
      fold(stage, random);
    }
  }

  // k-means: free entries

  void start_entries(size_t stage) {
    Rng rng(static_cast<uint64_t>(options_.seed), kStartStream + stage);
    const auto out = books_.stage(stage);
    const size_t n = left_.rows();
    // Distinct rows as long as there are enough.
    auto order = numbers_below<uint32_t>(n);
    for (size_t e = 0; e < entries_; ++e) {
      if (e < n) std::swap(order[e], order[e + static_cast<size_t>(rng.below(n - e))]);
      std::ranges::copy(left_.row(order[e % n]), out.row(e).begin());
    }
  }

  /// Entries become the means of their members among targets, the rows last given to take(). Empty ones stay as they are.
  void fit_means(size_t stage, MatrixView<const float> targets, std::span<const uint32_t> ids,
                 const RowsByCluster& members) {
    const auto out = books_.stage(stage);
    if (!taken_ || !engine_->means(ids, out)) team_means(team_, targets, members, out);
  }

  /// Places entries without members on rows drawn with a chance proportional to their error.
  void replace_empty(size_t stage, const RowsByCluster& members) {
    std::vector<size_t> empty;
    for (size_t e = 0; e < entries_; ++e)
      if (members.of(e).empty()) empty.push_back(e);
    if (empty.empty()) return;
    const auto out = books_.stage(stage);
    std::vector<double> sums(left_.rows());
    parallel_each(left_.rows(), kPieceRows, [&](size_t i) {
      double error = 0;
      for (size_t j = 0; j < width_; ++j) {
        const double difference = double{left_(i, j)} - double{out(ids_[i], j)};
        error += difference * difference;
      }
      sums[i] = error;
    });
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
    if (!(sums.back() > 0)) return;  // every row is coded exactly
    Rng rng(static_cast<uint64_t>(options_.seed), kReplaceStream + state_.epochs * stages_ + stage);
    for (const size_t e : empty) {
      const double at = rng.uniform() * sums.back();
      const auto i = static_cast<size_t>(std::ranges::upper_bound(sums, at) - sums.begin());
      std::ranges::copy(left_.row(std::min(i, left_.rows() - 1)), out.row(e).begin());
    }
  }

  // Epochs

  /// The rows with zeros behind them up to the width of stored entries.
  MatrixView<const float> padded(MatrixView<const float> rows) const {
    if (rows.cols() == books_.padded() && rows.contiguous()) return rows;
    if (padded_.rows() < rows.rows()) padded_ = Matrix<float>(rows.rows(), books_.padded());
    copy_rows(rows, padded_.view().rows(0, rows.rows()).columns(0, rows.cols()));
    return padded_.view().rows(0, rows.rows());
  }

  /// Adds to each row the entry that it chose, or subtracts it (sign -1). Returns the energy of the new rows.
  double add_entries(float sign, size_t stage, MatrixView<float> rows, std::span<const uint32_t> ids) const {
    const auto entries = books_.stage(stage);
    return sum_over_rows(rows.rows(), [&](size_t i) {
      const auto row = rows.row(i);
      const auto entry = entries.row(ids[i]);
      for (size_t j = 0; j < row.size(); ++j) row[j] += sign * entry[j];
      return energy_of_row(row);
    });
  }

  void stage_epoch(std::vector<double>& loss) {
    copy_rows(rows_, left_);
    for (size_t s = 0; s < stages_; ++s) {
      take(left_);
      if (state_.epochs == 0) {
        if (simvq_) {
          start_projection(s);
          shrink_projection(s);
        } else {
          start_entries(s);
        }
      }
      choose(s, left_, ids_);
      if (!simvq_) {
        const RowsByCluster members = sort_by_cluster(ids_, entries_);
        fit_means(s, left_, ids_, members);
        replace_empty(s, members);
      }
      loss[s] = add_entries(-1, s, left_, ids_) / energy_;
      report_at(s, loss[s]);
    }
  }

  void batch_epoch(std::vector<double>& loss) {
    const size_t n = rows_.rows(), batch = std::min(as_size(options_.batch), n);
    auto order = numbers_below<uint32_t>(n);
    Rng rng(static_cast<uint64_t>(options_.seed), kOrderStream + state_.epochs);
    rng.shuffle(order);
    std::vector<Matrix<float>> random;
    for (size_t s = 0; s < stages_; ++s) random.push_back(frozen(s));
    for (size_t first = 0; first < n; first += batch) {
      const size_t count = std::min(batch, n - first);
      const MatrixView<float> rows = left_.view().rows(0, count);
      copy_rows(rows_, rows, std::span<const uint32_t>(order).subspan(first, count));
      ++state_.steps;
      take(rows);
      for (size_t s = 0; s < stages_; ++s) {
        const std::span<uint32_t> ids = std::span(ids_).first(count);
        choose(s, rows, ids);
        loss[s] += add_entries(-1, s, rows, ids) / energy_;
        gradient_step(s, random[s], rows, ids);
      }
      report_at(stages_ * first / n,
                loss.back() * static_cast<double>(n) / static_cast<double>(first + count));
    }
  }

  /// One step of Adam on W and b. errors: rows - (W q + b).
  void gradient_step(size_t stage, const Matrix<float>& random, MatrixView<const float> errors,
                     std::span<const uint32_t> ids) {
    take(errors);  // for the next codebook, too
    const Matrix<double> sums = sums_of(errors, ids, sort_by_cluster(ids, entries_));
    const double scale = -2 / static_cast<double>(errors.rows());
    Matrix<double> q(entries_, width_);
    for (size_t e = 0; e < entries_; ++e) std::ranges::copy(random.row(e), q.row(e).begin());
    Matrix<double> gradient(width_ + 1, width_);
    const Matrix<double> of_projection = outer(q, sums);
    for (size_t i = 0; i < width_; ++i)
      for (size_t j = 0; j < width_; ++j) gradient(i, j) = scale * of_projection(i, j);
    if (options_.bias)
      for (size_t e = 0; e < entries_; ++e)
        for (size_t j = 0; j < width_; ++j) gradient(width_, j) += scale * sums(e, j);
    if (state_.mean.size() == 0) {
      state_.mean = Matrix<float>(stages_ * (width_ + 1), width_);
      state_.variance = state_.mean;
    }
    adam(projection_of(stage), gradient, stage * (width_ + 1));
    fold(stage, random);
  }

  void adam(MatrixView<float> values, const Matrix<double>& gradient, size_t first_moment) {
    const double steps = static_cast<double>(state_.steps);
    const double mean_scale = 1 / (1 - std::pow(kBeta1, steps)),
                 variance_scale = 1 / (1 - std::pow(kBeta2, steps));
    for (size_t i = 0; i < values.rows(); ++i)
      for (size_t j = 0; j < width_; ++j) {
        float& mean = state_.mean(first_moment + i, j);
        float& variance = state_.variance(first_moment + i, j);
        const double g = gradient(i, j);
        mean = static_cast<float>(kBeta1 * double{mean} + (1 - kBeta1) * g);
        variance = static_cast<float>(kBeta2 * double{variance} + (1 - kBeta2) * g * g);
        const double step =
            double{mean} * mean_scale / (std::sqrt(double{variance} * variance_scale) + kEpsilon);
        values(i, j) = static_cast<float>(double{values(i, j)} - options_.learning_rate * step);
      }
  }

  // Joint refit

  /// left_ = rows minus the sums of their entries. Returns its energy over that of the rows.
  double load_errors(const Matrix<uint32_t>& ids) {
    sum_entries(books_, ids, left_);
    const double left = sum_over_rows(rows_.rows(), [&](size_t i) {
      const auto row = left_.row(i);
      for (size_t j = 0; j < width_; ++j) row[j] = rows_(i, j) - row[j];
      return energy_of_row(row);
    });
    return left / energy_;
  }

  void refit_round() {
    const auto beam = as_size(options_.refit_beam);
    if (all_ids_.size() == 0) {
      all_ids_ = Matrix<uint32_t>(rows_.rows(), stages_);
      encode(beam, all_ids_);
    }
    const double before = load_errors(all_ids_);
    const Codebooks books_before = books_;
    std::vector<RowsByCluster> members;
    for (size_t s = 0; s < stages_; ++s) {
      for (size_t i = 0; i < rows_.rows(); ++i) ids_[i] = all_ids_(i, s);
      members.push_back(sort_by_cluster(ids_, entries_));
    }
    double error = before;
    for (size_t sweep = 0; sweep < kMaxSweeps; ++sweep) {
      const double at_start = error;
      for (size_t s = 0; s < stages_; ++s) {
        for (size_t i = 0; i < rows_.rows(); ++i) ids_[i] = all_ids_(i, s);
        add_entries(1, s, left_, ids_);
        take(left_);
        fit_means(s, left_, ids_, members[s]);
        error = add_entries(-1, s, left_, ids_) / energy_;
        report_at(stages_ * sweep / kMaxSweeps, error);
      }
      if (!(error < at_start * (1 - kSweepGain))) break;
    }
    encode(beam, all_ids_);
    const double after = load_errors(all_ids_);
    if (after < before) {
      state_.refit_loss.push_back(after);
      return;
    }
    books_ = books_before;
    state_.refit_ended = true;
    state_.refit_loss.push_back(before);
  }

  void count_usage() {
    Matrix<uint32_t> ids(rows_.rows(), stages_);
    encode(1, ids);
    state_.usage = Matrix<uint64_t>(stages_, entries_);
    for (size_t i = 0; i < ids.rows(); ++i)
      for (size_t s = 0; s < stages_; ++s) ++state_.usage(s, ids(i, s));
  }

  MatrixView<const float> rows_;
  const RvqTrainOptions& options_;
  Codebooks& books_;
  RvqTrainState& state_;
  const Progress& progress_;
  RvqTrainEngine* engine_;  // nullptr: none
  const Team& team_;
  bool taken_ = false;  // the engine has the rows last given to take()
  const size_t stages_ = books_.stages(), entries_ = books_.entries(), width_ = books_.width();
  const bool simvq_ = options_.method == RvqMethod::simvq;
  const double energy_ = std::max(energy_of(rows_), std::numeric_limits<double>::min());
  Matrix<float> left_{rows_.rows(), width_};  // residuals of all rows
  mutable Matrix<float> padded_;
  Ids ids_ = Ids(rows_.rows());
  Matrix<uint32_t> all_ids_;  // refit: of all stages
  double done_ = 0, total_ = 1;
};

}  // namespace

std::vector<OptionField> RvqTrainOptions::fields() {
  return {
      {"method", "kmeans: free entries; simvq: frozen random entries with a learned projection (the paper's)",
       &method},
      {"bias", "simvq: projections without a bias", &bias},
      {"epochs", "passes over the vectors", &epochs, 1, 1 << 20},
      {"batch", "vectors per step of the gradient", &batch, 1, 1 << 30},
      {"learning-rate", "of the gradient", &learning_rate, 0, 1e3},
      {"refits", "kmeans: rounds in which all codebooks are fitted together, with ids found by beam search",
       &refits, 0, 1 << 20},
      {"refit-beam", "hypotheses of the beam search in these rounds", &refit_beam, 1,
       static_cast<double>(ResidualEncoder::kMaxHypotheses)},
      {"seed", "of all random choices", &seed, 0, 9e15},
  };
}

double RvqTrainState::perplexity(size_t stage) const {
  double total = 0, entropy = 0;
  for (const uint64_t count : usage.row(stage)) total += static_cast<double>(count);
  for (const uint64_t count : usage.row(stage))
    if (count > 0) {
      const double share = static_cast<double>(count) / total;
      entropy -= share * std::log(share);
    }
  return std::exp(entropy);
}

void train_codebooks(MatrixView<const float> rows, const RvqTrainOptions& options, Codebooks& books,
                     RvqTrainState& state, const Progress& progress, const RvqTrainHelp& help) {
  if (books.stages() == 0 || books.entries() == 0 || books.width() == 0)
    throw failed("{} codebooks of {} entries of {} dimensions", books.stages(), books.entries(),
                 books.width());
  Trainer(rows, options, books, state, progress, help).run();
}

double energy_of(MatrixView<const float> rows) {
  return sum_over_rows(rows.rows(), [&](size_t i) { return energy_of_row(rows.row(i)); });
}

std::vector<double> column_errors(const Codebooks& books, MatrixView<const float> rows, size_t beam) {
  Matrix<uint32_t> ids(rows.rows(), books.stages());
  ResidualEncoder(books).encode(rows, beam, ids);
  Matrix<float> decoded(rows.rows(), rows.cols());
  sum_entries(books, ids, decoded);
  std::vector<double> errors(rows.cols());
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t j = 0; j < rows.cols(); ++j) {
      const double difference = double{rows(i, j)} - double{decoded(i, j)};
      errors[j] += difference * difference;
    }
  for (double& error : errors) error /= static_cast<double>(std::max<size_t>(rows.rows(), 1));
  return errors;
}

}  // namespace kvcodec
