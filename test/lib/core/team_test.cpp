// Ranks as threads: their exchanges and errors, and that trainings by them give the bytes of one rank.
#include "lib/core/team.hpp"

#include <array>
#include <cmath>
#include <string>

#include "lib/core/rng.hpp"
#include "lib/rvq/train.hpp"
#include "lib/sparse/train.hpp"
#include "lib/transform/train.hpp"
#include "test/lib/core/thread_team.hpp"
#include "test/test.hpp"

namespace team_test {

using namespace kvcodec;

namespace {

constexpr std::array kTeams{2, 3, 4};

/// The bytes of some results, one after the other, with their sizes.
class Bytes {
 public:
  template <class T>
  Bytes& add(std::span<const T> values) {
    bytes_ += std::to_string(values.size()) + ":";
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return *this;
  }
  template <class T>
  Bytes& add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }
  template <class T>
  Bytes& add(const Matrix<T>& matrix) {
    return add(std::span<const T>(matrix.data(), matrix.size()));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Checks that every rank of every team gets the same result as a single program.
void check_teams(const std::function<std::string(const Team&)>& work) {
  const std::string expected = work(alone());
  CHECK_GT(expected.size(), size_t{8});
  for (const int ranks : kTeams) {
    CAPTURE(ranks);
    std::vector<std::string> found(static_cast<size_t>(ranks));
    const auto errors =
        run_ranks(ranks, [&](const Team& team) { found[static_cast<size_t>(team.rank())] = work(team); });
    for (const Error& error : errors) FAIL_CHECK(error.what());
    for (const std::string& of_rank : found) CHECK(of_rank == expected);
  }
}

Matrix<float> normal_rows(size_t n, size_t width, uint64_t seed) {
  Matrix<float> rows(n, width);
  Rng rng(seed);
  for (size_t i = 0; i < n; ++i) {
    const auto common = static_cast<float>(rng.normal());
    for (size_t c = 0; c < width; ++c)
      rows(i, c) =
          static_cast<float>(rng.normal() / static_cast<double>(c + 1)) + common + static_cast<float>(c % 3);
  }
  return rows;
}

void copy_rows(const Matrix<float>& from, uint64_t first, MatrixView<float> out) {
  for (size_t i = 0; i < out.rows(); ++i) std::ranges::copy(from.row(first + i), out.row(i).begin());
}

}  // namespace

TEST_CASE("team: shares are consecutive and about as large, and what ranks give all get") {
  for (const int ranks : {1, 2, 3, 5})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{4}, size_t{17}})
      for (const Error& error : run_ranks(ranks, [&](const Team& team) {
             size_t at = 0, largest = 0, least = count;
             for (int rank = 0; rank < ranks; ++rank) {
               const TeamShare share = team.share_of(rank, count);
               if (share.begin != at) throw failed("a share begins at {}, not {}", share.begin, at);
               at = share.end;
               largest = std::max(largest, share.count()), least = std::min(least, share.count());
             }
             if (at != count || largest - least > 1)
               throw failed("shares of {} to {} of {}", least, largest, count);
           }))
        FAIL_CHECK(error.what());
  const auto errors = run_ranks(3, [](const Team& team) {
    Matrix<uint32_t> all(7, 2);
    const TeamShare own = team.share(7);
    for (size_t i = own.begin; i < own.end; ++i) all(i, 0) = static_cast<uint32_t>(i), all(i, 1) = 70;
    team.gather(std::span(all.data(), all.size()), 7);
    for (size_t i = 0; i < 7; ++i)
      if (all(i, 0) != i || all(i, 1) != 70) throw failed("row {} is ({}, {})", i, all(i, 0), all(i, 1));
    std::vector<double> from_two;
    Matrix<float> matrix;
    if (team.rank() == 2) from_two = {1, 2, 3}, matrix = Matrix<float>(2, 5), matrix(1, 4) = 6;
    team.broadcast(2, from_two);
    team.broadcast(2, matrix);
    if (from_two != std::vector<double>{1, 2, 3} || matrix.rows() != 2 || matrix(1, 4) != 6)
      throw failed("rank {} did not get what rank 2 has", team.rank());
  });
  for (const Error& error : errors) FAIL_CHECK(error.what());
}

TEST_CASE("team: sums of slices are the same bits for any number of ranks") {
  for (const size_t items :
       {size_t{0}, size_t{1}, size_t{5}, size_t{63}, size_t{64}, size_t{150}, size_t{333}}) {
    CAPTURE(items);
    const size_t width = 9000;  // more than is exchanged at a time
    Rng rng(items);
    std::vector<double> values(items);
    for (double& value : values) value = rng.normal() * std::exp(5 * rng.normal());
    const auto sum = [&](const Team& team) {
      return sum_slices(team, items, width, [&](size_t first, size_t end) {
        std::vector<double> sums(width);
        for (size_t i = first; i < end; ++i)
          for (size_t j = 0; j < width; ++j) sums[j] += values[i] * static_cast<double>(j % 7 + 1);
        return sums;
      });
    };
    const std::vector<double> expected = sum(alone());
    double plain = 0;
    for (const double value : values) plain += value;
    CHECK(expected[0] == doctest::Approx(plain));
    CHECK(expected[width - 1] == doctest::Approx(plain * static_cast<double>((width - 1) % 7 + 1)));
    for (const int ranks : {2, 3, 4, 7, 70}) {
      CAPTURE(ranks);
      std::vector<std::vector<double>> found(static_cast<size_t>(ranks));
      run_ranks(ranks, [&](const Team& team) { found[static_cast<size_t>(team.rank())] = sum(team); });
      for (const auto& of_rank : found) CHECK(of_rank == expected);
    }
  }
}

TEST_CASE("team: an error of one rank ends all, wherever they are, with its kind and its sentence") {
  const auto check = [](const std::vector<Error>& errors, size_t ranks) {
    REQUIRE_EQ(errors.size(), ranks);
    for (const Error& error : errors) {
      CHECK(error.kind() == ErrorKind::bad_input);
      CHECK_EQ(std::string(error.what()), "kv.h5: rank 1 cannot read it");
    }
  };
  const auto exchange = [](const Team& team) {
    int number = team.rank();
    team.broadcast_one(0, number);
  };
  for (const int before : {0, 1, 5}) {
    CAPTURE(before);  // exchanges until it happens
    check(run_ranks(4,
                    [&](const Team& team) {
                      for (int i = 0; i < 6; ++i) {
                        if (team.rank() == 1 && i == before) throw bad_input("kv.h5: rank 1 cannot read it");
                        // Words that a caller adds to an error of another rank are not returned to that rank.
                        with_context("step", [&] { exchange(team); });
                      }
                    }),
          4);
  }
  // At the end, when the others have done all their work; and of two ranks the lower one.
  check(run_ranks(3,
                  [&](const Team& team) {
                    exchange(team);
                    if (team.rank() == 1) throw bad_input("kv.h5: rank 1 cannot read it");
                    if (team.rank() == 2) throw usage_error("rank 2 fails, too");
                  }),
        3);
}

TEST_CASE("team: a transform learned by ranks is that of one") {
  class Source final : public VectorSource {
   public:
    size_t parts() const override { return 3; }
    size_t width(size_t /*part*/) const override { return 24; }
    size_t head_dim(size_t /*part*/) const override { return 8; }
    uint64_t tokens() const override { return 2500; }
    void read(size_t part, uint64_t first, MatrixView<float> out) const override {
      copy_rows(rows_[part], first, out);
    }
    size_t features() const override { return 5; }
    void read_features(uint64_t first, MatrixView<float> out) const override {
      for (size_t i = 0; i < out.rows(); ++i)
        std::ranges::copy(rows_[0].row(first + i).first(5), out.row(i).begin());
    }
    uint64_t first_tokens() const override { return 300; }
    void read_first_tokens(size_t part, uint64_t first, MatrixView<float> out) const override {
      copy_rows(rows_[part], 700 + first, out);
    }

   private:
    std::array<Matrix<float>, 3> rows_{normal_rows(2500, 24, 1), normal_rows(2500, 24, 2),
                                       normal_rows(2500, 24, 3)};
  };
  const Source source;
  const std::vector<ErrorMetric> metrics(3, ErrorMetric(std::vector<float>(24, 1.5f)));
  check_teams([&](const Team& team) {
    const LearnedTransform learned =
        learn_transform(source, metrics, {.max_bits = 1.5, .least_bits = 0.3}, {}, team);
    CHECK_EQ(learned.firsts.size(), size_t{3});
    Bytes bytes;
    for (size_t part = 0; part < 3; ++part) {
      const TransformBasis& basis = learned.bases[part];
      bytes.add(basis.mean)
          .add(basis.vectors.packed())
          .add(basis.vectors.scales())
          .add(basis.prediction.scores.packed());
      bytes.add(basis.prediction.loadings.packed()).add(basis.prediction.loadings.scales());
      bytes.add(basis.metric.inverse_roots()).add(learned.energies[part]).add(learned.left[part]);
      for (const LevelRung& rung : learned.levels.rungs[part]) bytes.add(rung.classes).add(rung.gains);
    }
    for (const LevelClass& level_class : learned.levels.classes) {
      bytes.add(std::span<const float>(level_class.shrink));
      std::vector<uint32_t> frequencies;
      for (size_t symbol = 0; symbol < kLevelSymbols; ++symbol)
        frequencies.push_back(level_class.model.frequency(symbol));
      bytes.add(frequencies);
    }
    for (const RungMeasure& measure : learned.levels.measures)
      bytes.add(std::vector<double>{measure.bits, measure.error});
    return bytes.take();
  });
}

TEST_CASE("team: codebooks learned by ranks are those of one, by every method") {
  const Matrix<float> rows = normal_rows(1111, 12, 4);
  for (const RvqMethod method : {RvqMethod::kmeans, RvqMethod::simvq}) {
    CAPTURE(method);
    RvqTrainOptions options;
    options.method = method;
    options.epochs = 3, options.refits = 1, options.batch = 200;
    check_teams([&](const Team& team) {
      Codebooks books(3, 33, 12);
      RvqTrainState state;
      train_codebooks(rows, options, books, state, {}, {.team = team});
      Bytes bytes;
      for (size_t stage = 0; stage < 3; ++stage)
        for (size_t e = 0; e < 33; ++e)
          bytes.add(std::span<const float>(std::as_const(books).stage(stage).row(e)));
      for (const auto& of_epoch : state.loss) bytes.add(of_epoch);
      bytes.add(state.refit_loss).add(state.usage).add(state.projection).add(state.mean);
      return bytes.take();
    });
  }
}

TEST_CASE("team: dictionaries learned by ranks are those of one, by every optimizer (long)") {
  class Source final : public SignalSource {
   public:
    SignalLayout layout() const override {
      return {.layers = 2, .heads = 2, .head_dim = 6, .per_head = true};
    }
    size_t num_layers() const override { return 4; }
    size_t groups() const override { return 2; }
    int first_layer(size_t group) const override { return static_cast<int>(group) * 2; }
    uint64_t tokens() const override { return 700; }
    void read(size_t group, uint64_t first, MatrixView<float> out) const override {
      copy_rows(rows_[group], first, out);
    }

   private:
    std::array<Matrix<float>, 2> rows_{normal_rows(700, 24, 6), normal_rows(700, 24, 7)};
  };
  const Source source;
  for (const Optimizer optimizer : {Optimizer::adam, Optimizer::gradient}) {
    CAPTURE(optimizer);
    TrainOptions options;
    options.atoms = 40, options.sparsity = 3, options.layer_group = 2, options.signal = SignalUnit::head;
    options.batch = 250, options.epochs = 1, options.replace_every = 3, options.dead_below = 0.3;
    options.validation = 0.2, options.tolerance = 0, options.optimizer = optimizer;
    if (optimizer == Optimizer::gradient) options.atoms = 290;  // more than a tile of the Gram matrix
    check_teams([&](const Team& team) {
      Dictionary dictionary;
      TrainState state;
      train_dictionary(source, options, dictionary, state, {}, {.team = team});
      Bytes bytes;
      bytes.add(dictionary.atoms).add(dictionary.normalization.layer_scale);
      bytes.add(dictionary.normalization.channel_mean).add(state.loss).add(state.validation);
      bytes.add(state.usage).add(state.replaced).add(state.mean);
      return bytes.take();
    });
  }
}

}  // namespace team_test
