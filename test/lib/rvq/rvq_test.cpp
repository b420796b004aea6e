#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/rvq/codec/book.hpp"
#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"
#include "test/derivative.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace rvq_test {

using namespace kvcodec;

namespace {

Matrix<float> normal(size_t n, size_t d, Rng& rng, double scale = 1) {
  Matrix<float> out(n, d);
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<float>(rng.normal() * scale);
  return out;
}

Codebooks random_books(size_t stages, size_t entries, size_t width, Rng& rng) {
  Codebooks books(stages, entries, width);
  for (size_t s = 0; s < stages; ++s)
    for (size_t e = 0; e < entries; ++e)
      for (float& value : books.stage(s).row(e))
        value = static_cast<float>(rng.normal() * std::pow(0.8, double(s)) * 0.5);
  return books;
}

/// Sum of a[j] * b[j] in 16 lanes that are added as a tree, no product fused.
float lane_product(std::span<const float> a, std::span<const float> b) {
  float lanes[16] = {};
  for (size_t j = 0; j < a.size(); ++j) {
    const float product = a[j] * b[j];
    lanes[j % 16] = lanes[j % 16] + product;
  }
  for (size_t half = 8; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}

/// Beam search by the description in residual.hpp, by sorting all continuations.
std::vector<uint32_t> naive_code(const Codebooks& books, std::span<const float> row, size_t beam) {
  struct Hypothesis {
    float score;
    std::vector<uint32_t> ids;
    std::vector<float> residual;
  };
  std::vector<Hypothesis> kept{{0, {}, {row.begin(), row.end()}}};
  for (size_t s = 0; s < books.stages(); ++s) {
    const auto bias = nearest_bias(books.stage(s));
    std::vector<Hypothesis> next;
    for (const Hypothesis& hypothesis : kept) {
      const float offset =
          beam > 1 && s > 0 ? -lane_product(hypothesis.residual, hypothesis.residual) / 2 : 0.0f;
      for (size_t e = 0; e < books.entries(); ++e) {
        const auto entry = books.stage(s).row(e);
        Hypothesis longer = hypothesis;
        longer.score = (lane_product(hypothesis.residual, entry) + bias[e]) + offset;
        longer.ids.push_back(static_cast<uint32_t>(e));
        for (size_t j = 0; j < entry.size(); ++j) longer.residual[j] -= entry[j];
        next.push_back(std::move(longer));
      }
    }
    std::ranges::stable_sort(next, [](const auto& a, const auto& b) { return a.score > b.score; });
    next.resize(std::min(beam, next.size()));
    kept = std::move(next);
  }
  return kept[0].ids;
}

double loss_of(const Codebooks& books, const Matrix<float>& rows, size_t beam) {
  double sum = 0;
  for (const double error : column_errors(books, rows, beam)) sum += error;
  return sum * double(rows.rows()) / energy_of(rows);
}

bool same(const Codebooks& a, const Codebooks& b) {
  for (size_t s = 0; s < a.stages(); ++s)
    for (size_t e = 0; e < a.entries(); ++e)
      if (!std::ranges::equal(a.stage(s).row(e), b.stage(s).row(e))) return false;
  return a.stages() == b.stages() && a.entries() == b.entries();
}

/// Rows near a few centres, with correlated channels and a mean, so that training has an effect.
Matrix<float> clustered(size_t n, size_t d, Rng& rng) {
  const Matrix<float> centres = normal(12, d, rng, 2);
  Matrix<float> rows = normal(n, d, rng, 0.5);
  for (size_t i = 0; i < n; ++i) {
    const auto centre = centres.row(rng.below(12));
    for (size_t j = 0; j < d; ++j)
      rows(i, j) += centre[j] + 0.4f * rows(i, (j + 1) % d) + (j == 1 ? 5.0f : 0.0f);
  }
  return rows;
}

RvqTrainOptions options_of(RvqMethod method, int64_t epochs, int64_t refits) {
  RvqTrainOptions options;
  options.method = method, options.epochs = epochs, options.refits = refits;
  options.batch = 300, options.refit_beam = 3, options.learning_rate = 5e-3;
  return options;
}

}  // namespace

TEST_CASE("split: the worst band of neighbouring pairs, the fastest ones, or none") {
  // 6 pairs, dimensions j and j + 6; the worst single ones are 0, 2 and 5, the worst three side by side 3
  // to 5.
  std::vector<double> errors(13);
  const double of_pairs[] = {5, 0, 4, 3, 3, 5};
  for (size_t pair = 0; pair < 6; ++pair)
    errors[pair] = of_pairs[pair] * 0.75, errors[pair + 6] = of_pairs[pair] / 4;
  const auto even = std::span<const double>(errors).first(12);
  const auto high = [&](SplitBy by, size_t head_dim, size_t pairs) {
    const DimensionSplit split =
        split_dimensions(by, by == SplitBy::measured ? even : even.first(0), head_dim, pairs);
    split.check();
    CHECK_EQ(split.head_dim(), head_dim);
    return split.high;
  };
  using Dimensions = std::vector<uint32_t>;
  CHECK(high(SplitBy::measured, 12, 3) == Dimensions{3, 4, 5, 9, 10, 11});
  CHECK(high(SplitBy::measured, 12, 2) == Dimensions{4, 5, 10, 11});
  CHECK(high(SplitBy::measured, 12, 1) == Dimensions{0, 6});  // of equal ones the first
  CHECK(high(SplitBy::measured, 12, 6).size() == 12);
  CHECK(high(SplitBy::measured, 12, 0).empty());
  CHECK(high(SplitBy::rope, 12, 2) == Dimensions{0, 1, 6, 7});
  CHECK(high(SplitBy::rope, 13, 1) == Dimensions{0, 6});  // 12 has no partner
  CHECK(high(SplitBy::none, 12, 4).empty());
  CHECK_THROWS_AS(high(SplitBy::measured, 14, 2), Error);
  CHECK_THROWS_AS(high(SplitBy::rope, 12, 7), Error);
  CHECK_EQ(paper_high_pairs(128), 24);
  CHECK_EQ(paper_high_pairs(64), 12);
  DimensionSplit wrong{.low = {0, 1, 1}, .high = {2}};
  CHECK_THROWS_AS(wrong.check(), Error);
  wrong = {.low = {0, 2}, .high = {3}};
  CHECK_THROWS_AS(wrong.check(), Error);
}

TEST_CASE("residual codes: those of a plain search, greedy and with a beam, at every level") {
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    Rng rng(21);
    for (const size_t width : {1, 2, 16, 24, 33, 80})
      for (const size_t entries : {1, 2, 7, 64, 70})
        for (const size_t stages : {1, 2, 5})
          for (const size_t beam : {1, 2, 5}) {
            const Codebooks books = random_books(stages, entries, width, rng);
            const Matrix<float> rows = normal(test::kSanitized ? 2 : 7, width, rng);
            Matrix<uint32_t> ids(rows.rows(), stages);
            ResidualEncoder(books).encode(rows, beam, ids);
            CAPTURE(width);
            CAPTURE(entries);
            CAPTURE(stages);
            CAPTURE(beam);
            for (size_t i = 0; i < rows.rows(); ++i)
              CHECK(std::ranges::equal(ids.row(i), naive_code(books, rows.row(i), beam)));
          }
  }
}

TEST_CASE("residual codes: the same for any number of threads, and for one row or many") {
  Rng rng(22);
  const Codebooks books = random_books(4, 100, 40, rng);
  const Matrix<float> rows = normal(2000, 40, rng);
  for (const size_t beam : {1, 4}) {
    Matrix<uint32_t> expected(2000, 4), found(2000, 4), single(1, 4);
    ResidualEncoder encoder(books);
    set_num_threads(1);
    encoder.encode(rows, beam, expected);
    set_num_threads(3);
    encoder.encode(rows, beam, found);
    set_num_threads(0);
    CHECK(std::ranges::equal(std::span(expected.data(), expected.size()),
                             std::span(found.data(), found.size())));
    for (size_t i = 0; i < 2000; i += 211) {
      encoder.encode(rows.view().rows(i, 1), beam, single);
      CHECK(std::ranges::equal(single.row(0), expected.row(i)));
    }
  }
  Matrix<uint32_t> ids(2000, 4), few(2000, 3);
  CHECK_THROWS_AS(ResidualEncoder(books).encode(rows, 0, ids), Error);
  CHECK_THROWS_AS(ResidualEncoder(books).encode(rows, 1, few), Error);
}

TEST_CASE("residual codes: a beam leaves no more than greedy choice does") {
  Rng rng(23);
  const Codebooks books = random_books(6, 64, 32, rng);
  const Matrix<float> rows = normal(500, 32, rng);
  const double greedy = loss_of(books, rows, 1), five = loss_of(books, rows, 5);
  CHECK_LT(five, greedy);
  CHECK_LT(loss_of(books, rows, 20), five);
}

TEST_CASE("residual codes: with a beam, rows whose squares overflow get the codes of greedy choice") {
  Rng rng(24);
  const Codebooks books = random_books(5, 64, 24, rng);
  for (const double loudness : {1e19, 1e22, 1e30}) {
    CAPTURE(loudness);
    const Matrix<float> rows = normal(50, 24, rng, loudness);
    Matrix<uint32_t> greedy(50, 5), beam(50, 5);
    ResidualEncoder(books).encode(rows, 1, greedy);
    ResidualEncoder(books).encode(rows, 4, beam);
    CHECK(std::ranges::equal(std::span(greedy.data(), greedy.size()), std::span(beam.data(), beam.size())));
  }
}

TEST_CASE("sum_entries: entries added in order, the same bits at every level") {
  Rng rng(24);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    for (const size_t width : {1, 7, 8, 15, 16, 17, 48, 64, 80, 127, 128, 130, 200})
      for (const size_t stages : {1, 2, 9})
        for (const size_t n : {0, 1, 3, 700}) {
          const Codebooks books = random_books(stages, 33, width, rng);
          Matrix<uint32_t> ids(n, stages);
          for (size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<uint32_t>(rng.below(33));
          Matrix<float> wide(n, width + 5);
          for (size_t i = 0; i < wide.size(); ++i) wide.data()[i] = 77;
          sum_entries(books, ids, wide.view().columns(2, width));
          test::Mismatch wrong;
          for (size_t i = 0; i < n; ++i)
            for (size_t j = 0; j < width + 5; ++j) {
              float expected = 77;
              if (j >= 2 && j < width + 2) {
                expected = 0;
                for (size_t s = 0; s < stages; ++s) expected += books.stage(s)(ids(i, s), j - 2);
              }
              wrong.compare(wide(i, j), expected, i, j);
            }
          CAPTURE(width);
          CHECK_EQ(wrong.report(), "");
        }
  }
}

TEST_CASE("training: every method lowers the error, epoch by epoch and by refitting (long)") {
  Rng rng(25);
  const Matrix<float> rows = clustered(1500, 12, rng);
  for (const RvqMethod method : {RvqMethod::kmeans, RvqMethod::simvq}) {
    CAPTURE(method);
    // The last epoch leaves at most this share of what the first left.
    const double enough = method == RvqMethod::kmeans ? 0.9 : 0.99;
    const RvqTrainOptions options = options_of(method, 12, 3);
    Codebooks books(3, 16, 12);
    RvqTrainState state;
    train_codebooks(rows, options, books, state);
    CHECK_EQ(state.loss.size(), 12);
    CHECK_LT(state.loss.back().back(), enough * state.loss.front().back());
    CHECK_LT(state.loss.back()[2], state.loss.back()[1]);
    CHECK_LT(state.loss.back()[1], state.loss.back()[0]);
    for (size_t i = 1; i < state.refit_loss.size(); ++i)
      CHECK_LE(state.refit_loss[i], state.refit_loss[i - 1]);
    CHECK_EQ(state.refit_loss.empty(), method == RvqMethod::simvq);
    if (!state.refit_loss.empty()) {
      CHECK_LT(state.refit_loss.back(), state.loss.back().back());
      CHECK(state.refit_loss.back() == doctest::Approx(loss_of(books, rows, 3)));
    }
    for (size_t s = 0; s < 3; ++s) {
      uint64_t total = 0;
      for (const uint64_t count : state.usage.row(s)) total += count;
      CHECK_EQ(total, rows.rows());
      CHECK_GT(state.perplexity(s), 1);
      CHECK_LE(state.perplexity(s), 16.0001);
      CHECK_EQ(state.dead_entries(s), size_t(std::ranges::count(state.usage.row(s), 0u)));
    }
  }
}

TEST_CASE("training: simvq's entries are frozen random ones, projected") {
  Rng rng(26);
  const Matrix<float> rows = clustered(800, 6, rng);
  Codebooks books(2, 20, 6);
  RvqTrainState state;
  train_codebooks(rows, options_of(RvqMethod::simvq, 3, 0), books, state);
  // Two trainings on different data with the same seed have the same random entries: differences between entries of one are a
  // linear function of those of the other.
  for (size_t s = 0; s < 2; ++s) {
    Codebooks other_books(2, 20, 6);
    RvqTrainState other;
    train_codebooks(clustered(700, 6, rng), options_of(RvqMethod::simvq, 2, 0), other_books, other);
    // x = W q + b and y = V q + c, so x - b = W V^-1 (y - c): solve for W V^-1 by the first 6, check the rest.
    double matrix[6][12];
    for (size_t i = 0; i < 6; ++i)
      for (size_t j = 0; j < 6; ++j) {
        matrix[i][j] = double{other_books.stage(s)(i, j)} - other.projection(s * 7 + 6, j);
        matrix[i][6 + j] = double{books.stage(s)(i, j)} - state.projection(s * 7 + 6, j);
      }
    for (size_t j = 0; j < 6; ++j) {
      size_t pivot = j;
      for (size_t i = j; i < 6; ++i)
        if (std::abs(matrix[i][j]) > std::abs(matrix[pivot][j])) pivot = i;
      std::swap(matrix[j], matrix[pivot]);
      for (size_t i = 0; i < 6; ++i)
        if (i != j) {
          const double factor = matrix[i][j] / matrix[j][j];
          for (size_t k = j; k < 12; ++k) matrix[i][k] -= factor * matrix[j][k];
        }
    }
    for (size_t e = 6; e < 20; ++e)
      for (size_t j = 0; j < 6; ++j) {
        double value = state.projection(s * 7 + 6, j);
        for (size_t i = 0; i < 6; ++i)
          value += (double{other_books.stage(s)(e, i)} - other.projection(s * 7 + 6, i)) * matrix[i][6 + j] /
                   matrix[i][i];
        CHECK(value == doctest::Approx(books.stage(s)(e, j)).epsilon(1e-2).scale(1));
      }
  }
}

TEST_CASE("training: going on equals never having stopped, and threads and levels do not matter") {
  Rng rng(27);
  const Matrix<float> rows = clustered(1100, 10, rng);
  for (const RvqMethod method : {RvqMethod::kmeans, RvqMethod::simvq}) {
    CAPTURE(method);
    const auto train = [&](std::vector<std::pair<int64_t, int64_t>> parts) {
      Codebooks books(3, 12, 10);
      RvqTrainState state;
      for (const auto& [epochs, refits] : parts)
        train_codebooks(rows, options_of(method, epochs, refits), books, state);
      CHECK_EQ(state.epochs, uint64_t(parts.back().first));
      return books;
    };
    constexpr int64_t refits = 2;
    set_num_threads(2);
    const Codebooks once = train({{4, refits}});
    CHECK(same(once, train({{2, 0}, {3, 0}, {4, refits}})));
    set_num_threads(1);
    CHECK(same(once, train({{4, refits}})));
    set_num_threads(0);
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      CHECK(same(once, train({{4, refits}})));
    }
  }
}

TEST_CASE("training: as many entries as rows, one row, constant rows, no rows") {
  Rng rng(28);
  for (const RvqMethod method : {RvqMethod::kmeans, RvqMethod::simvq})
    for (const size_t n : {1, 5, 16}) {
      CAPTURE(method);
      CAPTURE(n);
      const Matrix<float> rows = normal(n, 5, rng);
      Codebooks books(2, 16, 5);
      RvqTrainState state;
      train_codebooks(rows, options_of(method, 3, 1), books, state);
      books.check_finite();
      if (method == RvqMethod::kmeans) CHECK_LT(loss_of(books, rows, 1), 1e-6);
      Matrix<float> constant(n, 5);
      std::fill_n(constant.data(), constant.size(), 2.5f);
      Codebooks of_constant(2, 16, 5);
      RvqTrainState constant_state;
      train_codebooks(constant, options_of(method, 3, 1), of_constant, constant_state);
      of_constant.check_finite();
      CHECK_LT(loss_of(of_constant, constant, 1), 1e-3);
    }
  Codebooks books(2, 16, 5);
  RvqTrainState state;
  CHECK_THROWS_AS(train_codebooks(Matrix<float>(0, 5), options_of(RvqMethod::kmeans, 1, 0), books, state),
                  Error);
  CHECK_THROWS_AS(train_codebooks(Matrix<float>(9, 4), options_of(RvqMethod::kmeans, 1, 0), books, state),
                  Error);
}

TEST_CASE("training: epochs after refits are refitted again, and leave no more than before") {
  Rng rng(29);
  const Matrix<float> rows = normal(3000, 16, rng);
  RvqTrainOptions options = options_of(RvqMethod::kmeans, 6, 4);
  options.refit_beam = 5;
  Codebooks books(4, 32, 16);
  RvqTrainState state;
  train_codebooks(rows, options, books, state);
  const double before = state.refit_loss.back();
  options.epochs = 12;
  train_codebooks(rows, options, books, state);
  CHECK_EQ(state.refits, state.refit_loss.size());
  CHECK_GT(state.refits, 0);
  CHECK(state.refit_loss.back() == doctest::Approx(loss_of(books, rows, 5)));
  CHECK_LE(state.refit_loss.back(), before);
  // The training is complete: the record and the codebooks stay.
  const std::vector<double> losses = state.refit_loss;
  const Codebooks finished = books;
  train_codebooks(rows, options, books, state);
  CHECK_EQ(state.refit_loss, losses);
  CHECK(same(books, finished));
  // The refits that ended for lack of gain begin again, too.
  state.refit_ended = true;
  options.epochs = 13;
  train_codebooks(rows, options, books, state);
  CHECK(state.refit_loss.back() == doctest::Approx(loss_of(books, rows, 5)));
}

TEST_CASE("training: a round of refitting that gains nothing is undone and ends them") {
  Rng rng(30);
  const Matrix<float> rows = clustered(400, 6, rng);
  for (const int64_t seed : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(seed);
    RvqTrainOptions options = options_of(RvqMethod::kmeans, 3, 200);
    options.refit_beam = 1, options.seed = seed;
    Codebooks books(3, 8, 6);
    RvqTrainState state;
    train_codebooks(rows, options, books, state);
    CHECK(state.refit_ended);
    CHECK_LT(state.refits, 200);
    CHECK_EQ(state.refit_loss.size(), state.refits);
    for (size_t i = 1; i < state.refit_loss.size(); ++i)
      CHECK_LE(state.refit_loss[i], state.refit_loss[i - 1]);
    CHECK(state.refit_loss.back() == doctest::Approx(loss_of(books, rows, 1)).epsilon(1e-6));
    // The codebooks are those of the round before.
    options.refits = static_cast<int64_t>(state.refits) - 1;
    Codebooks stopped(3, 8, 6);
    RvqTrainState earlier;
    train_codebooks(rows, options, stopped, earlier);
    CHECK(same(books, stopped));
  }
}

TEST_CASE("training: entries that no row chooses are placed anew") {
  // Nearly all rows are equal, so nearly all entries start on that one row, and all but one of them are idle.
  Matrix<float> rows(600, 4);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t j = 0; j < 4; ++j)
      rows(i, j) = i % 50 == 0 ? static_cast<float>((i / 50 * 7 + j * 5) % 23) - 11 : 1;
  Codebooks books(1, 16, 4);
  RvqTrainState state;
  train_codebooks(rows, options_of(RvqMethod::kmeans, 16, 0), books, state);
  CHECK_GT(state.loss.front()[0], 0.1);
  CHECK_LT(state.loss.back()[0], 1e-6);
}

TEST_CASE("training: gradients are the derivatives of a codebook's mean squared error") {
  Rng rng(33);
  constexpr size_t kRows = 200, kWidth = 5, kEntries = 8, kStages = 2;
  const Matrix<float> rows = clustered(kRows, kWidth, rng);
  RvqTrainOptions options = options_of(RvqMethod::simvq, 1, 0);
  options.batch = kRows;  // a step each epoch, from the second on
  Matrix<double> random(kStages * kEntries, kWidth);
  for (size_t s = 0; s < kStages; ++s) {
    Rng of_stage(static_cast<uint64_t>(options.seed), 1 + s);
    for (size_t i = 0; i < kEntries * kWidth; ++i)
      random.row(s * kEntries).data()[i] =
          static_cast<float>(of_stage.normal() * (1 / std::sqrt(double{kWidth})));
  }
  for (const bool bias : {true, false}) {
    CAPTURE(bias);
    options.bias = bias, options.epochs = 1;
    Codebooks books(kStages, kEntries, kWidth);
    RvqTrainState state;
    train_codebooks(rows, options, books, state);  // no step yet
    Matrix<uint32_t> ids(kRows, kStages);
    ResidualEncoder(books).encode(rows, 1, ids);
    Matrix<double> left(kRows, kWidth), projection(kStages * (kWidth + 1), kWidth);
    for (size_t i = 0; i < left.size(); ++i) left.data()[i] = rows.data()[i];
    std::copy_n(state.projection.data(), projection.size(), projection.data());
    options.epochs = 2;
    const Codebooks before = books;
    train_codebooks(rows, options, books, state);
    REQUIRE_EQ(state.steps, 1);
    for (size_t s = 0; s < kStages; ++s) {
      CAPTURE(s);
      const size_t of_w = s * (kWidth + 1), of_q = s * kEntries;
      const auto error = [&] {  // of x - W q - b, x what the codebooks before leave
        double sum = 0;
        for (size_t i = 0; i < kRows; ++i)
          for (size_t j = 0; j < kWidth; ++j) {
            double rest = left(i, j) - projection(of_w + kWidth, j);
            for (size_t k = 0; k < kWidth; ++k) rest -= projection(of_w + k, j) * random(of_q + ids(i, s), k);
            sum += rest * rest;
          }
        return sum / kRows;
      };
      // The first moment of Adam after one step is a tenth of the gradient.
      for (size_t i = 0; i < kWidth + (bias ? 1 : 0); ++i)
        for (size_t j = 0; j < kWidth; ++j)
          CHECK(10 * double{state.mean(of_w + i, j)} ==
                doctest::Approx(test::derivative(error, projection(of_w + i, j))).epsilon(1e-4).scale(0.1));
      if (!bias)
        for (size_t j = 0; j < kWidth; ++j) CHECK_EQ(state.mean(of_w + kWidth, j), 0);
      for (size_t i = 0; i < kRows; ++i)
        for (size_t j = 0; j < kWidth; ++j) left(i, j) -= double{before.stage(s)(ids(i, s), j)};
    }
  }
}

TEST_CASE("training: steps of the gradient are Adam's") {
  Rng rng(31);
  const Matrix<float> rows = clustered(500, 5, rng);
  RvqTrainOptions options = options_of(RvqMethod::simvq, 1, 0);
  options.batch = 500;  // a step each epoch
  Codebooks books(2, 8, 5);
  RvqTrainState state;
  train_codebooks(rows, options, books, state);
  CHECK_EQ(state.steps, 0);
  for (uint64_t t = 1; t <= 4; ++t) {
    const RvqTrainState before = state;
    options.epochs = static_cast<int64_t>(t) + 1;
    train_codebooks(rows, options, books, state);
    REQUIRE_EQ(state.steps, t);
    const double steps = static_cast<double>(t);
    for (size_t i = 0; i < state.projection.rows(); ++i)
      for (size_t j = 0; j < state.projection.cols(); ++j) {
        const double mean = state.mean(i, j), variance = state.variance(i, j);
        const double last_mean = t == 1 ? 0 : before.mean(i, j);
        const double last_variance = t == 1 ? 0 : before.variance(i, j);
        const double gradient = (mean - 0.9 * last_mean) / 0.1;
        CHECK(variance ==
              doctest::Approx(0.999 * last_variance + 0.001 * gradient * gradient).epsilon(1e-3).scale(1e-6));
        const double step =
            mean / (1 - std::pow(0.9, steps)) / (std::sqrt(variance / (1 - std::pow(0.999, steps))) + 1e-8);
        CHECK(state.projection(i, j) ==
              doctest::Approx(before.projection(i, j) - 5e-3 * step).epsilon(1e-5).scale(1));
      }
  }
}

TEST_CASE("training: a record that does not fit is refused") {
  Rng rng(32);
  const Matrix<float> rows = clustered(300, 5, rng);
  RvqTrainOptions options = options_of(RvqMethod::simvq, 2, 1);
  Codebooks books(2, 8, 5);
  RvqTrainState state;
  train_codebooks(rows, options, books, state);
  options.epochs = 3;
  const auto refused = [&](const auto& spoil) {
    Codebooks spoilt_books = books;
    RvqTrainState spoilt = state;
    spoil(spoilt_books, spoilt);
    try {
      train_codebooks(rows, options, spoilt_books, spoilt);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::bad_input;
    }
    return false;
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(refused([](Codebooks&, RvqTrainState&) {}));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.loss[1].pop_back(); }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.loss.pop_back(); }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.refit_loss.push_back(1); }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.projection = {}; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.mean = {}; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.variance = {}; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.mean = {}, s.variance = {}; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.mean = {}, s.variance = {}, s.steps = 0; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.steps = 0; }));
  CHECK(refused([](Codebooks& b, RvqTrainState&) { b.stage(1)(3, 2) = kNan; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.projection(4, 1) = INFINITY; }));
  CHECK(refused([](Codebooks&, RvqTrainState& s) { s.mean(4, 1) = kNan; }));
}

}  // namespace rvq_test
