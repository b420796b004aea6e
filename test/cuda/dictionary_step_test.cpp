#include <algorithm>
#include <string>
#include <vector>

#include "cuda/engine.hpp"
#include "lib/core/error.hpp"
#include "lib/sparse/train.hpp"
#include "test/cuda/device_case.hpp"

namespace dictionary_step_test {

using namespace kvcodec;

namespace {

/// Random rows with a few directions that are louder than others.
class RandomSource final : public SignalSource {
 public:
  RandomSource(uint64_t seed, size_t tokens, const SignalLayout& layout) : layout_(layout) {
    Rng rng(seed);
    rows_ = test::random_rows(rng, tokens, layout.row_width());
    const Matrix<float> loud = test::random_rows(rng, 5, layout.row_width());
    for (size_t i = 0; i < tokens; ++i) {
      const auto row = loud.row(rng.below(5));
      const auto factor = static_cast<float>(rng.normal()) * 3;
      for (size_t c = 0; c < row.size(); ++c) rows_(i, c) += factor * row[c];
    }
  }

  SignalLayout layout() const override { return layout_; }
  size_t num_layers() const override { return static_cast<size_t>(layout_.layers); }
  size_t groups() const override { return 1; }
  int first_layer(size_t) const override { return 0; }
  uint64_t tokens() const override { return rows_.rows(); }
  void read(size_t, uint64_t first, MatrixView<float> out) const override {
    for (size_t i = 0; i < out.rows(); ++i) std::ranges::copy(rows_.row(first + i), out.row(i).begin());
  }

 private:
  SignalLayout layout_;
  Matrix<float> rows_;
};

bool same(const Matrix<float>& a, const Matrix<float>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() && std::equal(a.data(), a.data() + a.size(), b.data());
}

void check_same(const TrainState& found, const TrainState& expected) {
  CHECK(found.steps == expected.steps);
  CHECK(found.loss == expected.loss);
  CHECK(found.validation == expected.validation);
  CHECK(found.replaced == expected.replaced);
  CHECK(found.usage == expected.usage);
  CHECK(same(found.mean, expected.mean));
  CHECK(same(found.variance, expected.variance));
}

struct Trained {
  Dictionary dictionary;
  TrainState state;
};

/// Trains one on this processor and the other on the device, from the same state: the results are the same.
void train_both(const SignalSource& source, const TrainOptions& options, Trained& here, Trained& there) {
  kvcodec::train_dictionary(source, options, here.dictionary, here.state);
  const auto device = cuda::make_engine();
  const auto engine = device->make<TrainingEngine>(options, source.layout().signal_width());
  kvcodec::train_dictionary(source, options, there.dictionary, there.state, {}, {.engine = engine.get()});
  CHECK(same(there.dictionary.atoms, here.dictionary.atoms));
  check_same(there.state, here.state);
}

}  // namespace

TEST_CASE("device: training comes to lib's dictionary") {
  NEEDS_DEVICE();
  const RandomSource source(51, 90, {.layers = 1, .heads = 2, .head_dim = 9});
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient}) {
    CAPTURE(optimizer);
    TrainOptions options;
    options.atoms = 40, options.sparsity = 3, options.batch = 30, options.epochs = 2;
    options.optimizer = optimizer, options.learning_rate = optimizer == Optimizer::adam ? 0.01 : 0.02;
    options.replace_every = 2, options.dead_below = 0.6, options.validation = 0.2;
    Trained one, other;
    train_both(source, options, one, other);
    CHECK(other.state.steps > 3);
    CHECK(*std::ranges::max_element(other.state.replaced) > 0);
    // Training begun on the device can continue here, and vice versa.
    options.epochs = 3;
    train_both(source, options, other, one);
  }
}

TEST_CASE("device: a step adds up pairs of more than one window of signals in their order (large)") {
  NEEDS_DEVICE();
  // More than 4096 signals, the second window not full; most atoms have none of 128 signals in a row.
  const RandomSource source(52, 4300, {.layers = 1, .heads = 1, .head_dim = 6});
  TrainOptions options;
  options.atoms = 150, options.sparsity = 1, options.batch = 4300, options.epochs = 1,
  options.replace_every = 0;
  Trained here, there;
  train_both(source, options, here, there);
}

TEST_CASE("device: training that does not fit is refused") {
  NEEDS_DEVICE();
  TrainOptions options;
  options.atoms = 30, options.sparsity = 4;
  options.sparsity = 11;
  const auto device = cuda::make_engine();
  CHECK(device->make<TrainingEngine>(options, 10) == nullptr);
  options.sparsity = 4;
  const auto engine = device->make<TrainingEngine>(options, 10);
  Rng rng(53);
  Matrix<float> atoms = test::random_rows(rng, 30, 10), none;
  CHECK_THROWS_AS(engine->put(atoms, none, none), Error);  // their norms are not 1
  normalize_atoms(atoms);
  Matrix<float> moments(30, 10);
  engine->put(atoms, moments, moments);
  CHECK_THROWS_AS(engine->step({.adam = true}), Error);  // no batch was coded
  Matrix<float> batch = test::random_rows(rng, 5, 10);
  batch(3, 2) = INFINITY;
  BatchLoss loss;
  CHECK_THROWS_AS(engine->code(batch, loss), Error);
  CHECK_THROWS_AS(engine->code(Matrix<float>(5, 9), loss), Error);
  // A step that leaves an atom without a norm: the next pursuit refuses it, as lib's does.
  batch(3, 2) = 1;
  engine->code(batch, loss);
  CHECK(loss.energies.size() == 5);
  CHECK(loss.uses.size() == 30);
  GradientStep wild;
  wild.factor = -2, wild.rate = INFINITY;
  engine->step(wild);
  CHECK_THROWS_AS(engine->code(batch, loss), Error);
}

}  // namespace dictionary_step_test
