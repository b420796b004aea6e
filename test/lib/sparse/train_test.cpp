#include "lib/sparse/train.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/codec/book.hpp"
#include "lib/sparse/omp.hpp"
#include "test/derivative.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace train_test {

using namespace kvcodec;

namespace {

/// Rows in memory, [layers of the model][tokens][heads * head_dim].
class MemorySource final : public SignalSource {
 public:
  MemorySource(SignalLayout layout, size_t num_layers, uint64_t tokens)
      : layout_(layout),
        num_layers_(num_layers),
        tokens_(tokens),
        rows_(num_layers * tokens, layout.layer_width()) {}

  float* row(size_t layer, uint64_t token) { return rows_.row(layer * tokens_ + token).data(); }

  SignalLayout layout() const override { return layout_; }
  size_t num_layers() const override { return num_layers_; }
  size_t groups() const override { return num_layers_ / static_cast<size_t>(layout_.layers); }
  int first_layer(size_t group) const override { return static_cast<int>(group) * layout_.layers; }
  uint64_t tokens() const override { return tokens_; }
  void read(size_t group, uint64_t first, MatrixView<float> out) const override {
    REQUIRE_LE(first + out.rows(), tokens_);
    const auto layers = static_cast<size_t>(layout_.layers);
    for (size_t i = 0; i < out.rows(); ++i)
      for (size_t l = 0; l < layers; ++l)
        std::ranges::copy(rows_.row((group * layers + l) * tokens_ + first + i),
                          out.row(i).begin() + static_cast<ptrdiff_t>(l * layout_.layer_width()));
  }

 private:
  SignalLayout layout_;
  size_t num_layers_;
  uint64_t tokens_;
  Matrix<float> rows_;
};

/// Tokens that are sums of `s` of `hidden` common directions, with noise; layers differ in scale, channels in
/// mean.
MemorySource synthetic(SignalLayout layout, size_t num_layers, uint64_t tokens, size_t hidden, size_t s,
                       uint64_t seed) {
  MemorySource source(layout, num_layers, tokens);
  Rng rng(seed);
  Matrix<float> directions(hidden, layout.layer_width());
  for (size_t i = 0; i < directions.size(); ++i) directions.data()[i] = static_cast<float>(rng.normal());
  normalize_atoms(directions);
  for (size_t layer = 0; layer < num_layers; ++layer)
    for (uint64_t t = 0; t < tokens; ++t) {
      float* row = source.row(layer, t);
      for (size_t c = 0; c < layout.layer_width(); ++c) row[c] = 0.02f * static_cast<float>(rng.normal());
      for (size_t k = 0; k < s; ++k) {
        const auto weight = static_cast<float>(rng.normal());
        const auto direction = directions.row(rng.below(hidden));
        for (size_t c = 0; c < direction.size(); ++c) row[c] += weight * direction[c];
      }
      for (size_t c = 0; c < layout.layer_width(); ++c)
        row[c] = row[c] * static_cast<float>(layer + 1) + static_cast<float>(c % 5);
    }
  return source;
}

constexpr SignalLayout kLayout{.layers = 1, .heads = 2, .head_dim = 12, .per_head = false};

TrainOptions quick_options() {
  TrainOptions options;
  options.atoms = 60;
  options.sparsity = 3;
  options.batch = 100;
  options.learning_rate = 5e-3;
  options.replace_every = 5;
  options.dead_below = 0.2;
  options.validation = 0.2;
  return options;
}

bool same(const Matrix<float>& a, const Matrix<float>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Trained {
  Dictionary dictionary;
  TrainState state;

  bool operator==(const Trained& other) const {
    return same(dictionary.atoms, other.dictionary.atoms) &&
           dictionary.normalization.layer_scale == other.dictionary.normalization.layer_scale &&
           same(dictionary.normalization.channel_mean, other.dictionary.normalization.channel_mean) &&
           state.steps == other.state.steps && state.loss == other.state.loss &&
           state.validation == other.state.validation && state.replaced == other.state.replaced &&
           state.usage == other.state.usage && same(state.mean, other.state.mean) &&
           same(state.variance, other.state.variance) && state.stable == other.state.stable;
  }
};

Trained train(const SignalSource& source, const TrainOptions& options) {
  Trained result;
  train_dictionary(source, options, result.dictionary, result.state);
  return result;
}

double average(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("training lowers the loss, on what it sees and on what it does not (long)") {
  const MemorySource source = synthetic(kLayout, 3, 1500, 40, 3, 30);
  const std::array starts{DictStart::samples, DictStart::kaiming};
  const std::array normalizations{Normalize::layer, Normalize::signal, Normalize::none};
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient})
    for (const DictStart start : starts)
      for (const Normalize normalize : normalizations) {
        CAPTURE(optimizer);
        CAPTURE(start);
        CAPTURE(normalize);
        // Adam runs with all combinations, but for sanitizers; the gradient with each start and each normalization.
        const bool together = (start == starts[0] && normalize == normalizations[0]) ||
                              (start == starts[1] && normalize != normalizations[0]);
        if ((optimizer != Optimizer::adam || test::kSanitized) && !together) continue;
        TrainOptions options = quick_options();
        options.optimizer = optimizer;
        options.start = start;
        options.normalize = normalize;
        options.epochs = 8;
        options.tolerance = 0;
        if (options.optimizer == Optimizer::gradient)
          options.learning_rate = options.normalize == Normalize::signal ? 0.03 : 0.002;
        const Trained result = train(source, options);
        const auto& loss = result.state.loss;
        CHECK_EQ(loss.size(), planned_steps(source, options));
        CHECK_EQ(result.state.steps, loss.size());
        CHECK_EQ(result.state.validation.size(), static_cast<size_t>(options.epochs));
        const std::span<const double> all(loss);
        CHECK_LT(average(all.last(20)), 0.8 * average(all.first(5)));
        CHECK_LT(result.state.validation.back(), 0.9 * result.state.validation.front());
        // The held-out tokens are from the same source: their loss is near the training's.
        CHECK(result.state.validation.back() == doctest::Approx(average(all.last(20))).epsilon(0.3));
        result.dictionary.check(kLayout, 3);
      }
}

TEST_CASE("training steps along the derivative of a batch's error in the atoms") {
  constexpr uint64_t kSignals = 90;
  const MemorySource source = synthetic(kLayout, 1, kSignals, 40, 3, 44);
  TrainOptions options = TrainOptions::paper();
  options.atoms = 12, options.sparsity = 3, options.batch = kSignals, options.epochs = 1;
  options.learning_rate = 1e-30;  // leaves the atoms where they start
  const Matrix<float> start = train(source, options).dictionary.atoms;
  Matrix<float> signals(kSignals, start.cols());
  source.read(0, 0, signals);
  const SparseCodes codes = Omp(start).encode(signals, {.sparsity = options.sparsity});
  Matrix<double> atoms(start.rows(), start.cols());
  std::copy_n(start.data(), start.size(), atoms.data());
  // Equation 4 of the paper: |Y - D X|^2, with the codes X held fixed.
  const auto error = [&] {
    double sum = 0;
    for (size_t i = 0; i < kSignals; ++i)
      for (size_t c = 0; c < atoms.cols(); ++c) {
        double left = signals(i, c);
        for (size_t k = 0; k < codes.counts[i]; ++k)
          left -= double{codes.coefficients(i, k)} * atoms(codes.ids(i, k), c);
        sum += left * left;
      }
    return sum;
  };
  Matrix<double> derivative(atoms.rows(), atoms.cols());
  for (size_t i = 0; i < atoms.size(); ++i) derivative.data()[i] = test::derivative(error, atoms.data()[i]);

  options.learning_rate = 5e-4;
  const Matrix<float> followed = train(source, options).dictionary.atoms;
  double largest = 0, moved = 0;
  for (size_t atom = 0; atom < atoms.rows(); ++atom) {
    std::vector<double> expected(atoms.cols());
    double energy = 0;
    for (size_t c = 0; c < expected.size(); ++c) {
      expected[c] = atoms(atom, c) - 5e-4 * derivative(atom, c);
      energy += expected[c] * expected[c];
      largest = std::max(largest, std::abs(derivative(atom, c)));
    }
    for (size_t c = 0; c < expected.size(); ++c) {
      CHECK(followed(atom, c) == doctest::Approx(expected[c] / std::sqrt(energy)).epsilon(1e-5).scale(1));
      moved = std::max(moved, std::abs(double{followed(atom, c)} - atoms(atom, c)));
    }
  }
  CHECK_GT(moved, 0.01);  // the mean instead of the sum would move a ninetieth of that

  // The first moment after one step of Adam is a tenth of the gradient of the mean.
  options.optimizer = Optimizer::adam;
  const Matrix<float> mean = train(source, options).state.mean;
  for (size_t i = 0; i < atoms.size(); ++i)
    CHECK_LE(std::abs(mean.data()[i] * 10.0 * kSignals - derivative.data()[i]), 1e-5 * largest);
}

TEST_CASE("training recovers the directions that data is made of (long)") {
  const MemorySource source = synthetic(kLayout, 2, 4000, 30, 2, 31);
  TrainOptions options = quick_options();
  options.atoms = 40;
  options.sparsity = 2;
  options.epochs = 30;
  options.learning_rate = 3e-3;
  options.validation = 0;
  const Trained result = train(source, options);
  // The noise is 0.02^2 * 24 of 2: 0.005; samples alone leave a third.
  CHECK_LT(result.state.loss.back(), 0.06);
  CHECK_GT(result.state.loss.front(), 0.15);
}

TEST_CASE("training that stops and goes on gives what training without a stop gives") {
  const MemorySource source = synthetic(kLayout, 2, 700, 40, 3, 32);
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient}) {
    CAPTURE(optimizer);
    TrainOptions options = quick_options();
    options.optimizer = optimizer;
    options.epochs = 4;
    const Trained whole = train(source, options);
    REQUIRE_EQ(whole.state.steps, planned_steps(source, options));
    const uint64_t per_epoch = whole.state.steps / 4;
    for (const uint64_t stop :
         {uint64_t{1}, per_epoch - 1, per_epoch, per_epoch + 1, whole.state.steps - 1}) {
      CAPTURE(stop);
      // Simulates a run that was killed after a step: the plan is the whole one, the state that of an earlier moment.
      Trained early;
      struct Killed {};
      try {
        train_dictionary(source, options, early.dictionary, early.state,
                         [&](double done, double, std::string_view) {
                           if (static_cast<uint64_t>(done) == stop) throw Killed{};
                         });
        FAIL("was not interrupted");
      } catch (const Killed&) {
      }
      REQUIRE_EQ(early.state.steps, stop);
      train_dictionary(source, options, early.dictionary, early.state);
      CHECK((early == whole));
    }
  }
}

TEST_CASE("training goes on from a book as if it had never stopped") {
  const MemorySource source = synthetic(kLayout, 2, 700, 40, 3, 39);
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient}) {
    CAPTURE(optimizer);
    TrainOptions options = quick_options();
    options.optimizer = optimizer;
    SparseBook sparse;
    sparse.options = options;
    sparse.num_layers = 2, sparse.heads = kLayout.heads, sparse.head_dim = kLayout.head_dim;
    struct Killed {};
    for (const Side side : kSides) {
      auto& [dictionary, state] = sparse.of(side);
      try {
        train_dictionary(source, sparse.options, dictionary, state,
                         [](double done, double, std::string_view) {
                           if (done == 7) throw Killed{};
                         });
      } catch (const Killed&) {
      }
    }
    SparseBook read = sparse_book_from(to_book(sparse), true);
    const Trained whole = train(source, options);
    for (const Side side : kSides) {
      auto& [dictionary, state] = read.of(side);
      CHECK_EQ(state.steps, 7);
      CHECK_EQ(state.seconds.size(), 7);
      train_dictionary(source, read.options, dictionary, state);
      CHECK((Trained{dictionary, state} == whole));
    }
  }
}

TEST_CASE("training records when each step was done, and stops when its time is over") {
  const MemorySource source = synthetic(kLayout, 1, 2000, 40, 3, 40);
  TrainOptions options = quick_options();
  options.epochs = 1000000;
  options.tolerance = 0;
  options.seconds = 0.05;
  Trained result = train(source, options);
  const auto& seconds = result.state.seconds;
  REQUIRE_EQ(seconds.size(), result.state.steps);
  CHECK(std::ranges::is_sorted(seconds));
  CHECK_GT(seconds.front(), 0);
  CHECK_GE(seconds.back(), 0.05);
  if (seconds.size() > 1) CHECK_LT(seconds[seconds.size() - 2], 0.05);
  // Resuming continues the count.
  options.seconds = 2 * seconds.back();
  const double before = seconds.back();
  train_dictionary(source, options, result.dictionary, result.state);
  CHECK_GE(result.state.seconds.back(), 2 * before);
}

TEST_CASE("training with a limit on steps goes on when the limit is raised") {
  const MemorySource source = synthetic(kLayout, 2, 700, 40, 3, 33);
  TrainOptions options = quick_options();
  options.replace_every = 0;  // replacements depend on the distance from the end
  const Trained whole = train(source, options);
  options.steps = 7;
  Trained parts = train(source, options);
  CHECK_EQ(parts.state.steps, 7);
  CHECK_EQ(parts.state.validation.size(), 1);  // within the first epoch; the next run drops it
  options.steps = 0;
  train_dictionary(source, options, parts.dictionary, parts.state);
  CHECK((parts == whole));
}

TEST_CASE("training gives the same bytes for any thread count and SIMD level (long)") {
  const SignalLayout layout{.layers = 2, .heads = 2, .head_dim = 9, .per_head = true};
  const MemorySource source = synthetic(layout, 4, 300, 40, 3, 34);
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient}) {
    CAPTURE(optimizer);
    TrainOptions options = quick_options();
    options.optimizer = optimizer;
    if (options.optimizer == Optimizer::gradient) options.start = DictStart::kaiming;
    const Trained first = train(source, options);
    CHECK_GT(first.state.steps, 5);
    for (const SimdLevel level : test::simd_levels())
      for (const int threads : {1, 3}) {
        const test::AtLevel at(level);
        set_num_threads(threads);
        CHECK((train(source, options) == first));
      }
    set_num_threads(0);
    TrainOptions other = options;
    other.seed = 2;
    CHECK_FALSE((train(source, other) == first));
  }
}

TEST_CASE("training replaces atoms that nothing uses, and says how many") {
  // Two directions only: sixty random atoms have nothing to do.
  const MemorySource source = synthetic(kLayout, 1, 2000, 2, 2, 35);
  TrainOptions options = quick_options();
  options.start = DictStart::kaiming;
  options.epochs = 3;
  const Trained with = train(source, options);
  uint64_t replaced = 0;
  for (size_t step = 0; step < with.state.replaced.size(); ++step) {
    if ((step + 1) % 5 != 0 || step + 1 + 5 > with.state.steps) CHECK_EQ(with.state.replaced[step], 0);
    replaced += with.state.replaced[step];
  }
  CHECK_GT(replaced, 10);
  CHECK_LE(*std::ranges::max_element(with.state.replaced), 25);  // a quarter of a batch
  // None is replaced if the time ends before new atoms could become useful.
  options.replace_every = 1;
  options.seconds = 1e-9;
  const Trained short_of_time = train(source, options);
  CHECK_EQ(short_of_time.state.steps, 1);
  CHECK_EQ(short_of_time.state.replaced[0], 0);
  options.seconds = 0;
  CHECK_GT(train(source, options).state.replaced[0], 0);
  options.replace_every = 0;
  const Trained without = train(source, options);
  for (const uint32_t count : without.state.replaced) CHECK_EQ(count, 0);
  CHECK_LT(with.state.loss.back(), without.state.loss.back());
}

TEST_CASE("training predicts the memory of a dictionary") {
  const MemorySource source = synthetic(kLayout, 2, 100, 5, 2, 43);
  TrainOptions options = quick_options();
  options.validation = 0;
  const auto atoms = static_cast<uint64_t>(options.atoms);
  options.optimizer = Optimizer::adam;
  CHECK_EQ(trained_bytes(source, options), 3 * atoms * 24 * 4);
  options.optimizer = Optimizer::gradient;
  CHECK_EQ(trained_bytes(source, options), atoms * 24 * 4);
  options.atoms = int64_t{1} << 60;  // a fault of the options, not of a file
  try {
    (void)trained_bytes(source, options);
    FAIL("2^60 atoms fit");
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::usage);
  }
}

TEST_CASE("training stops when the loss is stable") {
  MemorySource source(kLayout, 1, 3000);
  Rng rng(36);
  for (uint64_t t = 0; t < 3000; ++t)
    for (size_t c = 0; c < 24; ++c) source.row(0, t)[c] = static_cast<float>(rng.normal());
  TrainOptions options = quick_options();
  options.learning_rate = 1e-9;
  options.replace_every = 0;
  options.epochs = 20;
  options.validation = 0;
  const Trained result = train(source, options);
  CHECK(result.state.stable);
  CHECK_EQ(result.state.steps % kStableSteps, 0);
  CHECK_LT(result.state.steps, planned_steps(source, options));
  options.tolerance = 0;
  CHECK_EQ(train(source, options).state.steps, planned_steps(source, options));
}

TEST_CASE("training with little data: fewer signals than atoms, than a batch, equal or zero ones") {
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient})
    for (const DictStart start : {DictStart::samples, DictStart::kaiming}) {
      CAPTURE(optimizer);
      CAPTURE(start);
      TrainOptions options = quick_options();
      options.optimizer = optimizer;
      options.start = start;
      for (const uint64_t tokens : {1, 2, 30}) {
        CAPTURE(tokens);
        const Trained result = train(synthetic(kLayout, 1, tokens, 5, 2, 37), options);
        CHECK_EQ(result.state.steps, 3);
        result.dictionary.check(kLayout, 1);
      }
      const MemorySource zeros(kLayout, 1, 500);
      const Trained result = train(zeros, options);
      CHECK_EQ(result.state.loss.back(), 0);
      result.dictionary.check(kLayout, 1);
    }
}

TEST_CASE("training refuses what makes no sense") {
  const MemorySource source = synthetic(kLayout, 1, 100, 5, 2, 38);
  TrainOptions options = quick_options();
  options.sparsity = 25;
  CHECK_THROWS_WITH_AS(train(source, options), "sparsity is 25; signals have only 24 values", Error);
  options.sparsity = 61;
  CHECK_THROWS_AS(train(source, options), Error);
  options = quick_options();
  options.learning_rate = 0;
  CHECK_THROWS_AS(train(source, options), Error);
  CHECK_THROWS_WITH_AS(train(MemorySource(kLayout, 1, 0), quick_options()),
                       "there are no signals to train on", Error);
  Trained result = train(source, quick_options());
  options = quick_options();
  options.atoms = 61;
  CHECK_THROWS_AS(train_dictionary(source, options, result.dictionary, result.state), Error);
  options = quick_options();
  options.optimizer = Optimizer::gradient;
  CHECK_THROWS_AS(train_dictionary(source, options, result.dictionary, result.state), Error);
}

}  // namespace train_test
