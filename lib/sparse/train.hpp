// Learns a dictionary (SparseCache, its Algorithm 1): mini-batches of signals are coded with the present dictionary, the atoms take a step
// towards a lower error |Y - X D|^2 (its equation 4: the sum over the batch) with the codes X held fixed, and are normalised again after
// the step. Steps go along the gradient of that sum as it is (Algorithm 1; the paper names no other optimizer), or by Adam (Kingma and Ba,
// 2015), whose steps do not depend on the batch's size.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/core/options.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/gradient_step.hpp"
#include "lib/sparse/signals.hpp"

namespace kvcodec {

/// The extent of one signal: a token with all its heads, or each head by itself.
enum class SignalUnit : uint8_t { token, head };
constexpr auto names_of(SignalUnit) { return std::to_array<std::string_view>({"token", "head"}); }

/// The layers that one dictionary serves.
enum class DictScope : uint8_t { global, group, layer };
constexpr auto names_of(DictScope) { return std::to_array<std::string_view>({"global", "group", "layer"}); }

/// The first atoms: signals of the data, or uniform random numbers.
enum class DictStart : uint8_t { samples, kaiming };
constexpr auto names_of(DictStart) { return std::to_array<std::string_view>({"samples", "kaiming"}); }

enum class Optimizer : uint8_t { adam, gradient };
constexpr auto names_of(Optimizer) { return std::to_array<std::string_view>({"adam", "gradient"}); }

struct TrainOptions final : Options {
  int64_t atoms = 8192;     ///< the paper's size; ids then take 13 bits
  int64_t sparsity = 64;    ///< atoms per signal while training, and the default of encode
  int64_t layer_group = 1;  ///< consecutive layers that share one code
  SignalUnit signal = SignalUnit::token;
  DictScope dict_scope = DictScope::global;
  Normalize normalize = Normalize::layer;  ///< a global dictionary would serve the loud layers only
  /// On real keys much of the energy is the channels' means, the same for every token.
  Center center = Center::channel;
  /// Close to the data from the first step; the paper starts from random numbers.
  DictStart start = DictStart::samples;
  Optimizer optimizer = Optimizer::adam;
  double learning_rate = 3e-3;  ///< for adam; with 5e-4 it is far from its goal after a few epochs
  int64_t batch = 1024;         ///< the paper's
  int64_t epochs = 3;           ///< the paper's
  int64_t steps = 0;
  double seconds = 0;
  double tolerance = 1e-3;     ///< relative gain over kStableSteps steps; less is noise between batches
  double dead_below = 0.05;    ///< of the average use; atoms below it hardly change the loss
  int64_t replace_every = 25;  ///< steps; batches of 1024 have used every live atom many times by then
  double validation = 0;
  /// A quarter of the bytes of f32 and several times its speed, for 0.1 to 0.2% more error.
  AtomType atom_type = AtomType::i8;
  int64_t seed = 1;

  std::vector<OptionField> fields() override;
  void check() const override;

  /// The cut of rows of a cache with these heads into signals.
  SignalLayout layout(int heads, int head_dim) const {
    return {.layers = static_cast<int>(layer_group),
            .heads = heads,
            .head_dim = head_dim,
            .per_head = signal == SignalUnit::head};
  }

  /// The paper's training; kvcodec-sparse(7) names the sentence or table for each option.
  static TrainOptions paper() {
    TrainOptions options;
    options.start = DictStart::kaiming, options.normalize = Normalize::none, options.center = Center::none;
    options.optimizer = Optimizer::gradient, options.learning_rate = 5e-4;
    options.replace_every = 0, options.atom_type = AtomType::f32;
    return options;
  }
};

/// Steps over which the loss is averaged to see whether it is stable.
inline constexpr size_t kStableSteps = 100;

/// The training data: one side of a cache, any size. Training reads it in runs of at most kBlockTokens consecutive tokens.
class SignalSource {
 public:
  virtual ~SignalSource() = default;
  virtual SignalLayout layout() const = 0;
  virtual size_t num_layers() const = 0;            ///< of the model
  virtual size_t groups() const = 0;                ///< layer groups there are rows of
  virtual int first_layer(size_t group) const = 0;  ///< of the model
  virtual uint64_t tokens() const = 0;              ///< rows of each group
  /// The scales of all layers, for Normalize::weights.
  virtual std::vector<float> layer_scales() const { return {}; }
  /// Writes rows [first, first + out.rows()) of a group to out: (n, layout().row_width()), finite. Called
  /// from one thread.
  virtual void read(size_t group, uint64_t first, MatrixView<float> out) const = 0;
};

/// The data, beside the dictionary, with which training continues as if it had never stopped.
struct TrainState {
  uint64_t steps = 0;
  std::vector<double> loss;        ///< per step: error energy / energy of the batch, before the step
  std::vector<double> validation;  ///< the same over the signals held out: after each epoch, and at the
                                   ///< end of a run that ended within one (the next run drops that)
  std::vector<uint32_t> replaced;  ///< atoms replaced after each step
  std::vector<uint64_t> usage;     ///< per atom: how often it was taken since the last replacement
  std::vector<double> seconds;     ///< per step: since training began, over all its runs
  Matrix<float> mean, variance;    ///< Adam's moments; empty with others
  bool stable = false;             ///< stopped because the loss was
};

/// A coded batch for callers that do not see its codes.
struct BatchLoss {
  std::vector<double> energies;   ///< of the signals
  std::vector<double> residuals;  ///< energies of the residuals
  std::vector<uint32_t> uses;     ///< pairs of each atom
};

/// A device that codes batches and takes the steps in place of this processor; atoms and moments stay on it
/// from step to step. The same bits. One thread at a time; put comes first, and step after a code.
class TrainingEngine {
 public:
  /// For Engine::make: the training of one dictionary, for signals of `width` values.
  using Factory = std::unique_ptr<TrainingEngine>(const TrainOptions&, size_t width);
  virtual ~TrainingEngine() = default;
  /// Takes over atoms of norm 1; mean and variance are empty except with adam.
  virtual void put(MatrixView<const float> atoms, const Matrix<float>& mean,
                   const Matrix<float>& variance) = 0;
  virtual void code(MatrixView<const float> batch, BatchLoss& loss) = 0;
  /// A step with the codes of the last batch; then atoms are brought back to norm 1.
  virtual void step(const GradientStep& step) = 0;
  virtual void get(MatrixView<float> atoms, Matrix<float>& mean, Matrix<float>& variance) const = 0;
};

/// Helpers of a training. With a team, each rank reads its share of blocks and codes its share of each batch; then all take the same
/// step. The result is that of one rank, except for the times in the state, which are the first rank's.
struct TrainHelp {
  TrainingEngine* engine = nullptr;  ///< takes the batches and steps of this side, or null
  const Team& team = alone();
};

/// Trains until the requested epochs or steps are done, the time is over or the loss is stable. With state.steps == 0 the dictionary is
/// made anew (its normalization from a first pass over all data); else training continues from the state. The result is the same as
/// without an interruption if source and options are the same, `seconds` is 0 (the clock differs between runs), and no replacement was
/// left out because an earlier plan was near its end.
///
/// Replacements. Every replace_every steps, atoms that were used less than dead_below of the average are replaced by the worst coded
/// signals of the batch, unless the plan has fewer steps left than that, or `seconds`, at the pace so far, leaves time for fewer.
///
/// Order of the data. Blocks of up to 256 consecutive tokens of one group are shuffled for each epoch; as many of them as fill 64 MiB (at
/// least 16) are read, their signals are shuffled, and batches are cut from those one after the other. Reading is sequential within blocks,
/// whatever the size of the data. The last, incomplete batch of an epoch is left out.
///
/// Throws Error(bad_input) if there are no signals, or if dictionary and state do not fit source and options.
void train_dictionary(const SignalSource& source, const TrainOptions& options, Dictionary& dictionary,
                      TrainState& state, const Progress& progress = {}, const TrainHelp& help = {});

/// Bytes of one dictionary while it is trained, and until it is stored: its atoms, and the moments of adam.
uint64_t trained_bytes(const SignalSource& source, const TrainOptions& options);

/// Maximum number of steps that training with these options takes over a source.
uint64_t planned_steps(const SignalSource& source, const TrainOptions& options);

}  // namespace kvcodec
