#include "lib/sparse/train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/nearest.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec {
namespace {

/// Tokens read together: enough for a disk or a checksummed chunk to be read whole, few enough to mix.
constexpr uint64_t kBlockTokens = 256;

/// Signals in memory to draw batches from.
constexpr size_t kWindowBytes = size_t{64} << 20;
constexpr size_t kMinBlocks = 16;

/// Signals held out at most: enough to tell losses apart to a percent, few enough to code after each epoch.
constexpr size_t kMaxHeldOut = 4096;

/// Streams of random numbers.
enum : uint64_t { kForHoldingOut = 1, kForStart = 2, kForKaiming = 3, kForEpochs = uint64_t{1} << 32 };

// Adam (Kingma and Ba, 2015), with its authors' constants.
constexpr double kMeanDecay = 0.9, kVarianceDecay = 0.999, kAdamFloor = 1e-8;

struct Block {
  size_t group = 0;
  uint64_t first = 0, tokens = 0;
};

std::vector<Block> blocks_of(const SignalSource& source) {
  std::vector<Block> blocks;
  for (size_t group = 0; group < source.groups(); ++group)
    for (uint64_t first = 0; first < source.tokens(); first += kBlockTokens)
      blocks.push_back({group, first, std::min(kBlockTokens, source.tokens() - first)});
  return blocks;
}

uint64_t signals_of(std::span<const Block> blocks, const SignalLayout& layout) {
  uint64_t signals = 0;
  for (const Block& block : blocks) signals += block.tokens * layout.signals_per_row();
  return signals;
}

struct Split {
  std::vector<Block> training, held_out;
};

Split split_of(const SignalSource& source, const TrainOptions& options) {
  Split split{blocks_of(source), {}};
  if (!(options.validation > 0) || split.training.size() < 2) return split;
  Rng rng(static_cast<uint64_t>(options.seed), kForHoldingOut);
  rng.shuffle(split.training);
  const auto wanted =
      static_cast<size_t>(std::ceil(options.validation * static_cast<double>(split.training.size())));
  const size_t count = std::min(wanted, split.training.size() - 1);
  split.held_out.assign(split.training.end() - static_cast<ptrdiff_t>(count), split.training.end());
  split.training.resize(split.training.size() - count);
  return split;
}

/// Deals out the signals of some blocks in a random order that depends on the seed and the epoch alone. Each rank reads
/// its share of the blocks in memory, and gets the others from those that read them.
class Sampler {
 public:
  Sampler(const SignalSource& source, const Normalization& normalization, std::vector<Block> blocks,
          int64_t seed, const Team& team)
      : source_(source),
        layout_(source.layout()),
        normalization_(normalization),
        blocks_(std::move(blocks)),
        seed_(static_cast<uint64_t>(seed)),
        team_(team) {
    const size_t block_bytes = kBlockTokens * layout_.row_width() * sizeof(float);
    window_blocks_ = std::max(kMinBlocks, kWindowBytes / block_bytes);
  }

  uint64_t signals() const { return signals_of(blocks_, layout_); }

  /// Goes to a signal of an epoch.
  void seek(uint64_t stream, uint64_t position) {
    stream_ = stream;
    order_ = blocks_;
    Rng(seed_, stream).shuffle(order_);
    for (next_block_ = 0; next_block_ < order_.size(); next_block_ += window().size()) {
      const uint64_t here = signals_of(window(), layout_);
      if (position < here) break;
      position -= here;
    }
    load();
    cursor_ = position;
  }

  /// The next signals, to rows of out. False, with fewer rows written, when the epoch is over.
  bool next(MatrixView<float> out) {
    for (size_t i = 0; i < out.rows(); ++i) {
      if (cursor_ == permutation_.size()) load();
      if (permutation_.empty()) return false;
      std::ranges::copy(window_.row(permutation_[cursor_++]), out.row(i).begin());
    }
    return true;
  }

 private:
  /// The next blocks that are in memory together.
  std::span<const Block> window() const {
    return std::span(order_).subspan(next_block_, std::min(window_blocks_, order_.size() - next_block_));
  }

  void load() {
    const std::span<const Block> blocks = window();
    const size_t first = next_block_;
    next_block_ += blocks.size();
    cursor_ = 0;
    std::vector<size_t> starts{0};  // of each block's signals
    for (const Block& block : blocks) starts.push_back(starts.back() + signals_of({&block, 1}, layout_));
    const size_t total = starts.back();
    if (window_.rows() < total) window_ = Matrix<float>(total, layout_.signal_width());
    Matrix<float> rows(kBlockTokens, layout_.row_width());
    std::vector<float> gains(kBlockTokens * layout_.signals_per_row());
    const TeamShare own = team_.share(blocks.size());
    for (size_t i = own.begin; i < own.end; ++i) {
      const MatrixView<float> part = rows.view().rows(0, blocks[i].tokens);
      source_.read(blocks[i].group, blocks[i].first, part);
      const size_t signals = starts[i + 1] - starts[i];
      to_signals(normalization_, layout_, source_.first_layer(blocks[i].group), part,
                 window_.view().rows(starts[i], signals), std::span(gains).first(signals));
    }
    std::vector<size_t> bounds = team_.bounds(starts);
    for (size_t& bound : bounds) bound *= layout_.signal_width();
    team_.exchange(std::span(window_.data(), window_.size()), bounds);
    permutation_ = numbers_below<size_t>(total);
    Rng(seed_ + first + 1, stream_).shuffle(permutation_);
  }

  const SignalSource& source_;
  const SignalLayout layout_;
  const Normalization& normalization_;
  const std::vector<Block> blocks_;
  const uint64_t seed_;
  const Team& team_;
  size_t window_blocks_ = 0;
  uint64_t stream_ = 0;
  std::vector<Block> order_;
  size_t next_block_ = 0, cursor_ = 0;
  Matrix<float> window_;
  std::vector<size_t> permutation_;  // of the rows of window_ in use
};

/// Every rank reads the first row of each group, and its share of the others.
Normalization find_normalization(const SignalSource& source, const TrainOptions& options, const Team& team) {
  NormalizationFinder finder(options.normalize, options.center, source.layout(), source.num_layers(),
                             source.layer_scales());
  Matrix<float> rows(kBlockTokens, source.layout().row_width());
  for (size_t group = 0; group < source.groups(); ++group) {
    source.read(group, 0, rows.view().rows(0, 1));
    finder.start(source.first_layer(group), rows.row(0));
  }
  const std::vector<Block> blocks = blocks_of(source);
  finder.set_sums(sum_slices(team, blocks.size(), finder.count_of_sums(), [&](size_t first, size_t end) {
    NormalizationFinder of_slice = finder;
    for (size_t i = first; i < end; ++i) {
      const MatrixView<float> part = rows.view().rows(0, blocks[i].tokens);
      source.read(blocks[i].group, blocks[i].first, part);
      of_slice.add(source.first_layer(blocks[i].group), part);
    }
    return of_slice.sums();
  }));
  return finder.finish();
}

/// The first atoms. Signals of zeros make no atom; random numbers stand in where there are too few others.
void start_atoms(Sampler& sampler, const TrainOptions& options, Matrix<float>& atoms) {
  kaiming_atoms(static_cast<uint64_t>(options.seed) ^ kForKaiming, atoms);
  if (options.start == DictStart::kaiming) return;
  sampler.seek(kForStart, 0);
  Matrix<float> signal(1, atoms.cols());
  for (size_t i = 0; i < atoms.rows();) {
    if (!sampler.next(signal)) return;
    if (normalize_atoms(signal) > 0) continue;
    std::ranges::copy(signal.row(0), atoms.row(i++).begin());
  }
}

/// offsets: uniform_offsets() of the codes. Behind the pairs of a code stand zeros.
CodeView view_of(const SparseCodes& codes, std::span<const uint64_t> offsets) {
  return {
      {codes.ids.data(), codes.ids.size()}, {codes.coefficients.data(), codes.coefficients.size()}, offsets};
}

/// Codes batches and takes steps on the CPU, with atoms and moments where they are: each rank codes its share
/// of a batch, then all take the same step.
class CpuTraining final : public TrainingEngine {
 public:
  CpuTraining(Dictionary& dictionary, TrainState& state, int64_t sparsity, const Team& team)
      : atoms_(dictionary.atoms), state_(state), options_{.sparsity = sparsity}, team_(team) {}

  void put(MatrixView<const float>, const Matrix<float>&, const Matrix<float>&) override {}
  void get(MatrixView<float>, Matrix<float>&, Matrix<float>&) const override {}

  void code(MatrixView<const float> batch, BatchLoss& loss) override {
    const size_t n = batch.rows();
    const auto s = as_size(options_.sparsity);
    codes_ = {{n, s}, {n, s}, std::vector<uint32_t>(n), {}};
    residuals_ = Matrix<float>(n, batch.cols());
    loss.energies.assign(n, 0), loss.residuals.assign(n, 0), loss.uses.assign(atoms_.rows(), 0);
    omp_.assign(atoms_);
    if (omp_.gram_pays(n, options_.sparsity)) omp_.build_gram(team_);
    const TeamShare own = team_.share(n);
    if (own.count() > 0) code_rows(batch.rows(own.begin, own.count()), own.begin, loss);
    team_.gather(std::span(codes_.ids.data(), codes_.ids.size()), n);
    team_.gather(std::span(codes_.coefficients.data(), codes_.coefficients.size()), n);
    team_.gather(std::span(codes_.counts), n);
    team_.gather(std::span(residuals_.data(), residuals_.size()), n);
    team_.gather(std::span(loss.residuals), n);
    team_.gather(std::span(loss.energies), n);
    for (size_t i = 0; i < n; ++i)
      for (const uint32_t id : codes_.ids.row(i).first(codes_.counts[i])) ++loss.uses[id];
  }

  void step(const GradientStep& step) override {
    // A sum over an atom's signals runs in their order.
    const OwnedCodes pairs =
        codes_by_atom(view_of(codes_, uniform_offsets(codes_.ids.rows(), codes_.ids.cols())), atoms_.rows());
    const size_t m = atoms_.cols();
    parallel_for(atoms_.rows(), 32, [&](size_t begin, size_t end, int) {
      std::vector<float> gradient(m);
      for (size_t atom = begin; atom < end; ++atom) {
        std::ranges::fill(gradient, 0.0f);
        for (uint64_t k = pairs.offsets[atom]; k < pairs.offsets[atom + 1]; ++k) {
          const float weight = step.factor * pairs.coefficients[k];
          const float* residual = residuals_.row(pairs.ids[k]).data();
          for (size_t c = 0; c < m; ++c) gradient[c] += weight * residual[c];
        }
        float* row = atoms_.row(atom).data();
        if (!step.adam) {
          for (size_t c = 0; c < m; ++c) row[c] -= step.rate * gradient[c];
          continue;
        }
        float* mean = state_.mean.row(atom).data();
        float* variance = state_.variance.row(atom).data();
        for (size_t c = 0; c < m; ++c) {
          mean[c] = step.keep_mean * mean[c] + (1 - step.keep_mean) * gradient[c];
          variance[c] =
              step.keep_variance * variance[c] + (1 - step.keep_variance) * (gradient[c] * gradient[c]);
          row[c] -= step.rate * mean[c] / (std::sqrt(variance[c] * step.variance_correction) + step.floor);
        }
      }
    });
    normalize_atoms(atoms_);
  }

 private:
  /// Codes rows of the batch, which begin at its row `first`.
  void code_rows(MatrixView<const float> rows, size_t first, BatchLoss& loss) {
    reconstructor_.assign(atoms_);
    const SparseCodes codes = omp_.encode(rows, options_);
    const MatrixView<float> residuals = residuals_.view().rows(first, rows.rows());
    reconstructor_.run(view_of(codes, uniform_offsets(rows.rows(), codes.ids.cols())), residuals);
    std::ranges::copy(codes.counts, &codes_.counts[first]);
    parallel_each(rows.rows(), 64, [&](size_t i) {
      std::ranges::copy(codes.ids.row(i), codes_.ids.row(first + i).begin());
      std::ranges::copy(codes.coefficients.row(i), codes_.coefficients.row(first + i).begin());
      const auto y = rows.row(i), r = std::span<const float>(residuals.row(i));
      std::ranges::transform(y, r, residuals.row(i).begin(), std::minus<>());
      loss.residuals[first + i] = squared_norm(r);
      loss.energies[first + i] = squared_norm(y);
    });
  }

  Matrix<float>& atoms_;
  TrainState& state_;
  const OmpOptions options_;
  const Team& team_;
  Omp omp_;
  Reconstructor reconstructor_;
  SparseCodes codes_;  // of the last batch, and what they leave
  Matrix<float> residuals_;
};

class Trainer {
 public:
  Trainer(const SignalSource& source, const TrainOptions& options, Dictionary& dictionary, TrainState& state,
          const TrainHelp& help)
      : source_(source),
        options_(options),
        dictionary_(dictionary),
        state_(state),
        cpu_(dictionary, state, options.sparsity, help.team),
        engine_(help.engine ? *help.engine : cpu_),
        team_(help.team),
        split_(split_of(source, options)) {
    if (signals_of(split_.training, source.layout()) == 0)
      throw bad_input("there are no signals to train on");
  }

  void run(const Progress& progress) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    if (state_.steps == 0) begin();
    check_state();
    Sampler sampler(source_, dictionary_.normalization, split_.training, options_.seed, team_);
    const uint64_t size = std::min<uint64_t>(static_cast<uint64_t>(options_.batch), sampler.signals());
    const uint64_t steps_per_epoch = sampler.signals() / size;
    const uint64_t planned = planned_steps(source_, options_);
    const auto replace_every = static_cast<uint64_t>(options_.replace_every);
    Matrix<float> batch(size, source_.layout().signal_width());
    // A loss that the run before measured at its end, within an epoch, is no part of a training that goes on.
    state_.validation.resize(std::min<uint64_t>(state_.validation.size(), state_.steps / steps_per_epoch));
    const double before = state_.seconds.empty() ? 0 : state_.seconds.back();
    bool positioned = false;
    const auto out_of_time = [&] {
      return options_.seconds > 0 && !state_.seconds.empty() && state_.seconds.back() >= options_.seconds;
    };
    // True if time will do for that many more steps, at the pace so far.
    const auto time_for = [&](uint64_t steps) {
      const double used = state_.seconds.back(), step = used / static_cast<double>(state_.steps);
      return !(options_.seconds > 0) || options_.seconds - used >= static_cast<double>(steps) * step;
    };
    while (state_.steps < planned && !state_.stable && !out_of_time()) {
      const uint64_t epoch = state_.steps / steps_per_epoch, within = state_.steps % steps_per_epoch;
      if (within == 0 || !positioned) sampler.seek(kForEpochs + epoch, within * size);
      positioned = true;
      if (!sampler.next(batch)) throw failed("the training data ended early");
      const double loss = code(batch);
      for (size_t atom = 0; atom < state_.usage.size(); ++atom) state_.usage[atom] += coded_.uses[atom];
      engine_.step(gradient_step(size));
      ++state_.steps;
      state_.loss.push_back(loss);
      state_.replaced.push_back(0);
      double now = before + std::chrono::duration<double>(Clock::now() - start).count();
      team_.broadcast_one(0, now);
      state_.seconds.push_back(now);
      // New atoms need some steps to become useful: none are made when the end is nearer than that.
      if (replace_every > 0 && state_.steps % replace_every == 0 && planned - state_.steps >= replace_every &&
          time_for(replace_every))
        replace_dead(batch);
      if (state_.steps % steps_per_epoch == 0) validate();
      state_.stable = loss_is_stable();
      report(progress, static_cast<double>(state_.steps), static_cast<double>(planned),
             fmt::format("loss {:.4f}", loss));
    }
    if (state_.steps % steps_per_epoch != 0) validate();
    fetch();
  }

 private:
  void begin() {
    dictionary_.normalization = find_normalization(source_, options_, team_);
    dictionary_.atoms = Matrix<float>(as_size(options_.atoms), source_.layout().signal_width());
    Sampler sampler(source_, dictionary_.normalization, split_.training, options_.seed, team_);
    start_atoms(sampler, options_, dictionary_.atoms);
    state_ = {};
    state_.usage.resize(dictionary_.atoms.rows());
    if (options_.optimizer == Optimizer::adam) {
      state_.mean = Matrix<float>(dictionary_.atoms.rows(), dictionary_.atoms.cols());
      state_.variance = state_.mean;
    }
  }

  void check_state() const {
    dictionary_.check(source_.layout(), source_.num_layers());
    const size_t n = dictionary_.atoms.rows(), m = dictionary_.atoms.cols();
    const bool adam = options_.optimizer == Optimizer::adam;
    const auto fits = [&](const Matrix<float>& matrix) {
      return matrix.rows() == (adam ? n : 0) && matrix.cols() == (adam ? m : 0);
    };
    if (n != as_size(options_.atoms) || state_.usage.size() != n || !fits(state_.mean) ||
        !fits(state_.variance) || state_.seconds.size() != state_.steps ||
        state_.loss.size() != state_.steps || state_.replaced.size() != state_.steps)
      throw bad_input(
          "the training record does not fit the dictionary and the options: training cannot go on from it");
  }

  /// Codes a batch where atoms are, or are taken to. Returns its loss: error energy / energy.
  double code(MatrixView<const float> batch) {
    if (!there_) engine_.put(dictionary_.atoms, state_.mean, state_.variance);
    there_ = true;
    engine_.code(batch, coded_);
    const double energy = std::accumulate(coded_.energies.begin(), coded_.energies.end(), 0.0);
    const double error = std::accumulate(coded_.residuals.begin(), coded_.residuals.end(), 0.0);
    return energy > 0 ? error / energy : 0;
  }

  /// Brings atoms and moments back.
  void fetch() {
    if (!there_) return;
    engine_.get(dictionary_.atoms, state_.mean, state_.variance);
    there_ = false;
  }

  /// The step on the squared error of a batch: of its sum, and with adam of its mean, so that moments do not grow with the batch.
  GradientStep gradient_step(size_t signals) const {
    const auto t = static_cast<double>(state_.steps + 1);
    const bool adam = options_.optimizer == Optimizer::adam;
    const double rate = options_.learning_rate / (adam ? 1 - std::pow(kMeanDecay, t) : 1);
    return {.adam = adam,
            .factor = static_cast<float>(-2.0 / (adam ? static_cast<double>(signals) : 1)),
            .rate = static_cast<float>(rate),
            .keep_mean = static_cast<float>(kMeanDecay),
            .keep_variance = static_cast<float>(kVarianceDecay),
            .variance_correction = static_cast<float>(1 / (1 - std::pow(kVarianceDecay, t))),
            .floor = static_cast<float>(kAdamFloor)};
  }

  /// Atoms that were hardly used since the last time become the worst coded signals of the batch, each signal once.
  void replace_dead(MatrixView<const float> batch) {
    fetch();
    Matrix<float>& atoms = dictionary_.atoms;
    const double average =
        static_cast<double>(std::accumulate(state_.usage.begin(), state_.usage.end(), uint64_t{0})) /
        static_cast<double>(atoms.rows());
    std::vector<size_t> dead;
    for (size_t atom = 0; atom < atoms.rows(); ++atom)
      if (static_cast<double>(state_.usage[atom]) < options_.dead_below * average) dead.push_back(atom);
    std::ranges::stable_sort(dead, {}, [&](size_t atom) { return state_.usage[atom]; });
    auto worst = numbers_below<size_t>(batch.rows());
    std::ranges::stable_sort(worst, std::ranges::greater{}, [&](size_t i) { return coded_.residuals[i]; });
    // No more than a quarter of the batch: what is coded about as well as the rest is no worst case.
    const size_t count = std::min(dead.size(), batch.rows() / 4);
    for (size_t i = 0; i < count; ++i) {
      if (!(coded_.residuals[worst[i]] > 0)) break;
      const auto row = atoms.row(dead[i]);
      std::ranges::copy(batch.row(worst[i]), row.begin());
      if (normalize_atoms({row.data(), 1, row.size()}) > 0)
        throw failed("a signal that cannot be made an atom");
      if (options_.optimizer == Optimizer::adam) {
        std::ranges::fill(state_.mean.row(dead[i]), 0.0f);
        std::ranges::fill(state_.variance.row(dead[i]), 0.0f);
      }
      ++state_.replaced.back();
    }
    std::ranges::fill(state_.usage, uint64_t{0});
  }

  void validate() {
    if (split_.held_out.empty()) return;
    if (held_out_.rows() == 0) {
      Sampler sampler(source_, dictionary_.normalization, split_.held_out, options_.seed, team_);
      held_out_ =
          Matrix<float>(std::min<uint64_t>(sampler.signals(), kMaxHeldOut), source_.layout().signal_width());
      sampler.seek(kForHoldingOut, 0);
      sampler.next(held_out_);
    }
    state_.validation.push_back(code(held_out_));
  }

  bool loss_is_stable() const {
    const auto& loss = state_.loss;
    if (!(options_.tolerance > 0) || loss.size() < 2 * kStableSteps || loss.size() % kStableSteps != 0)
      return false;
    const auto end = loss.end(), middle = end - ptrdiff_t{kStableSteps},
               begin = middle - ptrdiff_t{kStableSteps};
    const double before = std::accumulate(begin, middle, 0.0), after = std::accumulate(middle, end, 0.0);
    return after >= before * (1 - options_.tolerance);
  }

  const SignalSource& source_;
  const TrainOptions& options_;
  Dictionary& dictionary_;
  TrainState& state_;
  CpuTraining cpu_;
  TrainingEngine& engine_;
  const Team& team_;
  bool there_ = false;  // the engine has atoms and moments, which may be newer than those here
  const Split split_;
  BatchLoss coded_;  // the last batch
  Matrix<float> held_out_;
};

}  // namespace

std::vector<OptionField> TrainOptions::fields() {
  return {
      {"atoms", "atoms of each side's dictionary", &atoms, 1, 1 << 24},
      {"sparsity", "atoms per signal", &sparsity, 1, 1 << 16},
      {"layer-group", "consecutive layers that share one code", &layer_group, 1, 1 << 16},
      {"signal", "what is one signal: a token with all its heads, or each head by itself", &signal},
      {"dict-scope",
       "what one dictionary serves: all layers, one group of layers (all that may be given to train then holds for each dictionary: atoms, "
       "epochs, seconds ...), or one layer, where groups have one",
       &dict_scope},
      {"normalize",
       "divide signals by their layer's root mean square, by their own norm, by what --weights says of how large their "
       "layer's errors may be, or not at all",
       &normalize},
      {"center", "subtract each channel's mean, or nothing", &center},
      {"start", "first atoms: signals of the data, or uniform random numbers", &start},
      {"optimizer",
       "how atoms follow the gradient of a batch: by Adam, which takes it over the root of its mean square, or as it is, the sum over "
       "the batch's signals",
       &optimizer},
      {"learning-rate", "size of a step", &learning_rate, 0, 1e6},
      {"batch", "signals per step", &batch, 1, 1 << 24},
      {"epochs", "passes over the data", &epochs, 1, 1 << 24},
      {"steps", "stop after this many steps; 0 = when the epochs are over", &steps, 0, 1e15},
      {"seconds", "stop after this time; 0 = when the epochs are over", &seconds, 0, 1e9},
      {"tolerance", "stop when 100 steps lower the loss by less than this fraction; 0 = never", &tolerance, 0,
       1},
      {"dead-below", "atoms used less than this fraction of the average are replaced", &dead_below, 0, 1},
      {"replace-every", "steps between replacements of hardly used atoms; 0 = never", &replace_every, 0,
       1e15},
      {"validation",
       "fraction of the data held out; the loss on it is measured after each epoch and at the end",
       &validation, 0, 0.9},
      {"atom-type",
       "how the dictionary keeps its atoms: floats, or levels of 8 bits with a scale (a quarter as large, faster)",
       &atom_type},
      {"seed", "seed of the order of the data and of random starts", &seed, 0, 9e15},
  };
}

void TrainOptions::check() const {
  if (!(learning_rate > 0)) throw usage_error("learning-rate is {}; it must be positive", learning_rate);
  if (sparsity > atoms) throw usage_error("sparsity is {}; there are only {} atoms", sparsity, atoms);
  if (dict_scope == DictScope::layer && layer_group != 1)
    throw usage_error(
        "dict-scope layer wants a layer-group of 1, not {}: the layers of a group share their codes, and so "
        "their dictionary (dict-scope group)",
        layer_group);
}

uint64_t planned_steps(const SignalSource& source, const TrainOptions& options) {
  const uint64_t signals = signals_of(split_of(source, options).training, source.layout());
  if (signals == 0) return 0;
  const uint64_t size = std::min<uint64_t>(static_cast<uint64_t>(options.batch), signals);
  const uint64_t epochs = static_cast<uint64_t>(options.epochs) * (signals / size);
  return options.steps > 0 ? std::min(epochs, static_cast<uint64_t>(options.steps)) : epochs;
}

uint64_t trained_bytes(const SignalSource& source, const TrainOptions& options) {
  const auto atoms = static_cast<uint64_t>(options.atoms), width = source.layout().signal_width();
  uint64_t per_atom = width;
  if (options.optimizer == Optimizer::adam) per_atom += 2 * width;
  return checked_mul(checked_mul(atoms, per_atom, ErrorKind::usage), sizeof(float), ErrorKind::usage);
}

void train_dictionary(const SignalSource& source, const TrainOptions& options, Dictionary& dictionary,
                      TrainState& state, const Progress& progress, const TrainHelp& help) {
  options.check();
  if (help.engine && help.team.size() > 1) throw failed("steps of {} ranks by an engine", help.team.size());
  OmpOptions{.sparsity = options.sparsity}.check(source.layout().signal_width(), as_size(options.atoms));
  Trainer(source, options, dictionary, state, help).run(progress);
}

}  // namespace kvcodec
