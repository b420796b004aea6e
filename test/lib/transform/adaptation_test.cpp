// Fitting a transform's classes and means to a text (lib/transform/adaptation.hpp).
#include "lib/transform/adaptation.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/transform/levels.hpp"
#include "lib/transform/train.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace adaptation_test {

using namespace kvcodec;

namespace {

constexpr float kStep = 0.5f;

/// Components of deviations of 2^(1 - i / 2) steps, some with a mean.
Matrix<float> components_of(size_t count, size_t tokens, std::span<const double> scales,
                            std::span<const double> means, uint64_t seed) {
  Matrix<float> values(count, tokens);
  Rng rng(seed);
  for (size_t i = 0; i < count; ++i)
    for (size_t t = 0; t < tokens; ++t)
      values(i, t) = static_cast<float>(
          static_cast<double>(kStep) *
          (means[i] + scales[i] * std::exp2(1 - static_cast<double>(i) / 2) * rng.normal()));
  return values;
}

/// The book's knowledge of such components, if all deviations and means are the usual ones.
struct Learned {
  LearnedLevels levels;
  LevelTables tables;
  const LevelRung& rung() const { return levels.rungs[0][0]; }
};

Learned learn(size_t count) {
  const std::vector<double> ones(count, 1), zeros(count, 0);
  std::vector<Matrix<float>> samples;
  samples.push_back(components_of(count, 4000, ones, zeros, 1));
  // Finer steps too, so that there are tables for louder components.
  LearnedLevels levels =
      learn_levels(samples, std::array{kStep, kStep / 2, kStep / 4, kStep / 8, kStep / 16}, {});
  LevelTables tables(levels.classes, LevelOptions().lambda);
  return {std::move(levels), std::move(tables)};
}

std::optional<Adaptation> surveyed(const Learned& learned, const Matrix<float>& values) {
  AdaptationSurvey survey(learned.tables, learned.rung(), values.rows(), values.rows(), 0.5);
  survey.add(values, std::vector<uint32_t>(values.cols(), 1));
  return survey.finish();
}

double bits_of(const Learned& learned, std::span<const uint8_t> classes, const Matrix<float>& values,
               std::span<const double> offsets) {
  std::vector<float> bits(values.cols());
  std::vector<int32_t> levels(values.cols());
  for (size_t i = 0; i < values.rows(); ++i) {
    std::vector<float> row(values.row(i).begin(), values.row(i).end());
    for (float& value : row) value -= static_cast<float>(offsets[i]);
    if (classes[i] == kDeadClass) continue;
    learned.tables.quantize(classes[i], kStep, row, levels);
    learned.tables.add_bits(classes[i], levels, bits);
  }
  double sum = 0;
  for (const float one : bits) sum += static_cast<double>(one);
  return sum;
}

/// The cost of tokens with an adaptation, or by the book: bits, errors at their price, and the number that are kept exactly because
/// that costs less. Their levels are 0, which also takes bits.
struct Cost {
  double bits = 0;
  size_t exact = 0;
};

Cost cost_of(const Learned& learned, const std::optional<Adaptation>& adaptation,
             const Matrix<float>& values) {
  const LevelRung& rung = learned.rung();
  const size_t tokens = values.cols();
  std::vector<float> bits(tokens + 1), back(tokens + 1);  // the last one is that of a token of zeros
  std::vector<double> errors(tokens);
  std::vector<int32_t> levels(tokens + 1);
  for (size_t i = 0; i < values.rows(); ++i) {
    const uint8_t level_class = adaptation ? adaptation->classes[i] : rung.classes[i];
    const float offset = adaptation ? float(adaptation->offsets[i]) / kOffsetsPerStep : 0,
                gain_change = adaptation ? float(adaptation->gain_changes[i]) / kGainsPerUnit : 0;
    std::vector<float> steps(tokens + 1);
    for (size_t t = 0; t < tokens; ++t) {
      steps[t] = values(i, t) / kStep - offset;
      if (std::abs(steps[t]) < kMaxSteps) continue;
      steps[t] = 0;
      errors[t] = std::numeric_limits<double>::infinity();
    }
    std::ranges::fill(back, 0.0f);
    if (level_class != kDeadClass) {
      learned.tables.quantize(level_class, 1, steps, levels);
      learned.tables.reconstruct(level_class, 1, rung.gains[i] + gain_change, levels, back);
      learned.tables.add_bits(level_class, levels, bits);
    }
    for (size_t t = 0; t < tokens; ++t) errors[t] += std::pow(double(steps[t]) - double(back[t]), 2);
  }
  Cost cost;
  for (size_t t = 0; t < tokens; ++t)
    if (learned.tables.better_coded(errors[t], double(bits[t]), values.rows()))
      cost.bits += double(bits[t]) + errors[t] / LevelOptions().lambda;
    else
      cost.bits += 16.0 * static_cast<double>(values.rows()) + double(bits.back()), ++cost.exact;
  return cost;
}

}  // namespace

TEST_CASE("adaptation: text like that learned from is left as it is, other text gets its classes and means") {
  constexpr size_t kCount = 16, kTokens = 3000;
  const Learned learned = learn(kCount);
  const std::vector<double> zeros(kCount, 0);
  std::vector<double> scales(kCount, 1), means(kCount, 0);
  CHECK_FALSE(surveyed(learned, components_of(kCount, kTokens, scales, means, 2)).has_value());

  scales[3] = 4, scales[5] = 0.25, means[7] = 1.6, means[9] = -0.7;
  REQUIRE_EQ(learned.rung().classes[15], kDeadClass);
  scales[15] = 64;  // dead in the book, and loud here
  const Matrix<float> other = components_of(kCount, kTokens, scales, means, 3);
  const auto adaptation = surveyed(learned, other);
  REQUIRE(adaptation.has_value());
  const auto& before = learned.rung().classes;
  // Four times as loud: two octaves, of two classes each, and fewer zeros besides.
  CHECK_GE(adaptation->classes[3], before[3] + 4);
  CHECK_LE(adaptation->classes[3], before[3] + 6);
  CHECK_LE(adaptation->classes[5], before[5] - 3);
  CHECK_NE(adaptation->classes[15], kDeadClass);
  CHECK_EQ(adaptation->offsets[7], 6);   // of 1.6 steps
  CHECK_EQ(adaptation->offsets[9], -3);  // of -0.7
  CHECK_EQ(adaptation->offsets[3], 0);
  for (const size_t same : {0, 1, 2, 4}) CHECK_EQ(adaptation->classes[same], before[same]);
  // The share, of the bits of components that live in both, that it saves on other tokens of that kind.
  const Matrix<float> more = components_of(14, kTokens, scales, means, 4);
  std::vector<double> offsets;
  for (const int32_t offset : adaptation->offsets)
    offsets.push_back(offset * double{kStep} / kOffsetsPerStep);
  const double saved =
      1 - bits_of(learned, adaptation->classes, more, offsets) / bits_of(learned, before, more, zeros);
  CHECK_GT(saved, 0.02);
}

TEST_CASE("adaptation: of few tokens it does not pay, and what lives stays alive") {
  constexpr size_t kCount = 16;
  const Learned learned = learn(kCount);
  std::vector<double> scales(kCount, 1);
  const std::vector<double> means(kCount, 0);
  scales[3] = 1.5;
  CHECK_FALSE(surveyed(learned, components_of(kCount, 8, scales, means, 2)).has_value());
  scales.assign(kCount, 1e-3);
  const auto silent = surveyed(learned, components_of(kCount, 4000, scales, means, 2));
  REQUIRE(silent.has_value());
  for (size_t i = 0; i < kCount; ++i)
    CHECK_EQ(silent->classes[i] == kDeadClass, learned.rung().classes[i] == kDeadClass);
}

TEST_CASE("adaptation: tokens unlike all others, which are kept exactly, decide nothing") {
  constexpr size_t kCount = 16, kTokens = 2000;
  const Learned learned = learn(kCount);
  const std::vector<double> ones(kCount, 1), zeros(kCount, 0);
  const Matrix<float> plain = components_of(kCount, kTokens, ones, zeros, 5);
  for (const size_t apart : {33, 50, 200})
    for (const double factor : {30.0, 100.0, 1e3, 1e4, 1e6, 1e9})
      for (const bool one_sided : {false, true}) {
        INFO("1 in ", apart, " times ", factor, one_sided ? ", of one sign" : "");
        Matrix<float> values = plain;
        for (size_t t = 7; t < kTokens; t += apart)
          for (size_t i = 0; i < kCount; ++i) {
            const double size = factor * static_cast<double>(values(i, t));
            values(i, t) = static_cast<float>(one_sided ? std::abs(size) + factor : size);
          }
        const auto adaptation = surveyed(learned, values);
        const Cost before = cost_of(learned, {}, values), after = cost_of(learned, adaptation, values);
        CHECK_LE(after.bits, before.bits);
        CHECK_LE(after.exact, before.exact);
      }
}

TEST_CASE(
    "adaptation: rare values of a component, in tokens that are coded, do not decide its class or mean") {
  constexpr size_t kCount = 16, kTokens = 2000;
  const Learned learned = learn(kCount);
  const std::vector<double> ones(kCount, 1), zeros(kCount, 0);
  for (const size_t apart : {20, 50, 200})
    for (const double size : {20.0, 60.0, 1e4})
      for (const size_t component : {0, 9, 14}) {
        INFO("1 in ", apart, " of ", size, " steps in component ", component);
        Matrix<float> values = components_of(kCount, kTokens, ones, zeros, 6);
        for (size_t t = 3; t < kTokens; t += apart) values(component, t) = static_cast<float>(size) * kStep;
        const Cost before = cost_of(learned, {}, values),
                   after = cost_of(learned, surveyed(learned, values), values);
        CHECK_LE(after.bits, before.bits);
        CHECK_LE(after.exact, before.exact);
      }
}

TEST_CASE("adaptation: a text that the book would keep exactly is coded, where that is cheaper") {
  constexpr size_t kCount = 16, kTokens = 2000;
  const Learned learned = learn(kCount);
  const std::vector<double> zeros(kCount, 0);
  for (const double factor : {20.0, 100.0, 1000.0})
    for (const double share : {0.1, 0.6, 1.0}) {
      INFO(share, " of the tokens times ", factor);
      Matrix<float> values = components_of(kCount, kTokens, std::vector<double>(kCount, 1), zeros, 7);
      Rng rng(8);
      for (size_t t = 0; t < kTokens; ++t) {
        const bool loud = rng.uniform() < share;
        for (size_t i = 0; loud && i < kCount; ++i) values(i, t) *= static_cast<float>(factor);
      }
      const Cost before = cost_of(learned, {}, values),
                 after = cost_of(learned, surveyed(learned, values), values);
      CHECK_LE(after.bits, before.bits);
      // Gains change by 32nds of 1, which is too coarse for louder ones.
      if (share == 1.0 && factor <= 100) CHECK_LT(after.bits, 0.9 * before.bits);
    }
}

TEST_CASE("adaptation: means of any size that fits are found, and are told from loudness") {
  constexpr size_t kCount = 16, kTokens = 2000;
  const Learned learned = learn(kCount);
  const std::vector<double> ones(kCount, 1);
  for (const double mean : {5.0, 25.0, 300.0}) {
    INFO("a mean of ", mean, " steps");
    std::vector<double> means(kCount, 0);
    means[1] = mean, means[6] = -mean;
    const Matrix<float> values = components_of(kCount, kTokens, ones, means, 9);
    const auto adaptation = surveyed(learned, values);
    REQUIRE(adaptation.has_value());
    const Cost before = cost_of(learned, {}, values), after = cost_of(learned, adaptation, values);
    CHECK_LT(after.bits, 0.9 * before.bits);
    CHECK_EQ(after.exact, size_t{0});
    write_adaptation(*adaptation, learned.tables, learned.rung().classes);
  }
}

TEST_CASE("adaptation: bytes give it back, and those that no encoder writes are refused") {
  const Learned learned = learn(16);
  const auto& classes = learned.rung().classes;
  const std::vector<int32_t> zeros(16, 0);
  Adaptation adaptation{classes, zeros, zeros};
  adaptation.classes[2] = 39, adaptation.classes[15] = 0, adaptation.classes[4] = kDeadClass;
  adaptation.offsets[1] = -300, adaptation.offsets[14] = 2;
  adaptation.gain_changes[3] = -5, adaptation.gain_changes[7] = 64;
  const std::vector<uint8_t> bytes = write_adaptation(adaptation, learned.tables, classes);
  const Adaptation read = read_adaptation(bytes, learned.tables, classes);
  CHECK_EQ(read.classes, adaptation.classes);
  CHECK_EQ(read.offsets, adaptation.offsets);
  CHECK_EQ(read.gain_changes, adaptation.gain_changes);
  const auto refused = [&](std::vector<uint8_t> some) {
    try {
      read_adaptation(some, learned.tables, classes);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::bad_input;
    }
    return false;
  };
  CHECK(refused({}));
  CHECK(refused({bytes.begin(), bytes.end() - 1}));
  std::vector<uint8_t> of_no_class = bytes;
  of_no_class[2] = kLevelClasses;
  CHECK(refused(of_no_class));
  // Changes that lead beyond the last class.
  Matrix<int32_t> levels(3, 16);
  const auto coded = [&] {
    std::vector<uint8_t> bytes_of{17, 0, 17};
    LevelCoder(learned.tables, bytes_of).encode(levels, bytes_of);
    return bytes_of;
  };
  levels(0, 0) = 40;
  CHECK(refused(coded()));
  levels(0, 0) = 0, levels(2, 5) = 65;
  CHECK(refused(coded()));
  levels(2, 5) = 64;
  CHECK_FALSE(refused(coded()));
}

TEST_CASE("adaptation: other rungs change as the one that it was fitted at") {
  const uint8_t dead = kDeadClass;
  const LevelRung fitted{1, {5, 5, dead, dead, 5, 9}, {1, 1, 1, 1, 1, 1}};
  const Adaptation adaptation{{8, 2, dead, 3, dead, 39}, {9, 0, 0, 0, 0, 0}, {16, -32, 0, 0, 0, 64}};
  const LevelRung finer =
      changed_alike({0.5f, {7, 7, 1, 2, 7, 11}, {1.5f, 1, 1, 2, 1, 1}}, fitted, adaptation);
  CHECK_EQ(finer.step, 0.5f);
  CHECK(finer.classes == std::vector<uint8_t>{10, 4, 1, 6, 1, 39});
  CHECK(finer.gains == std::vector<float>{2, 1 / 32.0f, 1, 2, 1, 3});
  // A component that lives at the coarser rung and in the adaptation stays alive; one that is dead there may come to life.
  const LevelRung coarser =
      changed_alike({2, {dead, 1, dead, dead, 2, dead}, {1, 1, 1, 1, 1, 1}}, fitted, adaptation);
  CHECK(coarser.classes == std::vector<uint8_t>{2, 0, dead, 3, dead, 29});
  CHECK(changed_alike(fitted, fitted, adaptation).classes == adaptation.classes);
}

TEST_CASE(
    "transform: a file of another kind gets classes and means of its own, whatever the pieces it was shown in") {
  Rng rng(2);
  const CodecContext plain{.num_layers = 4, .heads = 2, .head_dim = 8};
  for (const int64_t lags : {0, 2}) {
    const Book book = to_book(test::random_transform_book({.sink = 1, .predict_tokens = lags}, plain, rng));
    CodecContext context = plain;
    context.book = &book;
    const GroupShape shape = usual_group(0, 2, 2, 8, Side::both);
    Matrix<float> rows(1500, shape.width());
    for (size_t i = 0; i < rows.rows(); ++i)
      for (size_t c = 0; c < rows.cols(); ++c) rows(i, c) = static_cast<float>(1 + 0.2 * rng.normal());
    const auto encode = [&](bool adapt) {
      Record record;
      record.set("adapt", adapt);
      record.set("bits", 2.0);
      const auto codec = codec_from_record(find_codec("transform"), record, context);
      DocumentRows document(rows);
      document.token_ids = test::sample_ids();
      Encoded encoded = encode_in_memory(*codec, shape, {&document, 1});
      Matrix<float> back(rows.rows(), rows.cols());
      codec->open(shape, encoded.document(0))->decode(0, back);
      double error = 0;
      for (size_t i = 0; i < back.size(); ++i)
        error += std::pow(static_cast<double>(back.data()[i] - rows.data()[i]), 2);
      // Half a step in each component, which errors of values are no larger than.
      CHECK_LE(error / static_cast<double>(back.size()), 0.25 * 0.25 / 4);
      if (adapt) {
        // Once more, in pieces.
        Encoded shared(codec->streams(shape));
        StreamStore& store = shared.add_document(document.token_ids);
        const auto survey = codec->survey(shape);
        survey->observe_ids(document.token_ids);
        for (size_t at = 0; at < rows.rows(); at += 33)
          survey->observe(rows.view().rows(at, std::min<size_t>(33, rows.rows() - at)));
        survey->end_document();
        survey->finish(store);
        CHECK(std::ranges::equal(shared.bytes("adapted"), encoded.bytes("adapted")));
        // And only what it looks at.
        Encoded looked_at(codec->streams(shape));
        StreamStore& third = looked_at.add_document(document.token_ids);
        const auto sparing = codec->survey(shape);
        sparing->observe_ids(document.token_ids);
        size_t shown = 0;
        for (size_t at = 0; at < rows.rows();) {
          const Survey::Look look = sparing->look(rows.rows() - at);
          sparing->observe(rows.view().rows(at + look.skipped, look.shown));
          at += look.skipped + look.shown;
          shown += look.shown;
        }
        sparing->end_document();
        sparing->finish(third);
        CHECK(std::ranges::equal(looked_at.bytes("adapted"), encoded.bytes("adapted")));
        CHECK_LT(shown, rows.rows());
        CHECK_GT(encoded.bytes("adapted").size(), size_t{2});
      }
      return encoded.bytes("codes").size();
    };
    CHECK_LT(static_cast<double>(encode(true)), 0.9 * static_cast<double>(encode(false)));
  }
}

}  // namespace adaptation_test
