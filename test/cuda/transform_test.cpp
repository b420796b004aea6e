// Decoding of the codec transform on a device: vectors are those of lib, bit for bit, and damage is found.
#include "cuda/transform/transform.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/runtime/runtime.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/transform/basis.hpp"
#include "lib/transform/levels.hpp"
#include "test/cuda/device_case.hpp"
#include "test/test.hpp"

namespace transform_test {

using namespace kvcodec;

namespace {

/// Classes whose tables have all symbols, escapes among them.
LevelTables random_tables(Rng& rng) {
  std::vector<LevelClass> classes;
  for (size_t c = 0; c < kLevelClasses; ++c) {
    std::vector<uint64_t> counts(kLevelSymbols);
    for (size_t s = 0; s < counts.size(); ++s) {
      const double away = std::abs(static_cast<double>(s) - kLargestSymbol);
      counts[s] = away > 9 ? 0 : static_cast<uint64_t>(1 + 1e5 * std::exp(-away * rng.uniform(0.2, 1)));
    }
    LevelClass level_class{.model = RansModel::from_counts(counts, {.escape_bits = kEscapedBits})};
    for (float& shrink : level_class.shrink) shrink = static_cast<float>(rng.uniform(0, 0.3));
    classes.push_back(std::move(level_class));
  }
  return {std::move(classes), 0.12};
}

/// Components of random classes, their way back, and levels of some blocks.
struct Case {
  LevelTables tables;
  std::vector<uint8_t> classes;
  std::vector<float> gains, mean;
  Matrix<float> rows;
  float step = 0.37f;

  Case(size_t components, size_t width, Rng& rng)
      : tables(random_tables(rng)), mean(width), rows(components, width) {
    for (size_t i = 0; i < components; ++i) {
      // Many components have some of each class.
      classes.push_back(
          static_cast<uint8_t>(components > kLevelClasses ? i % kLevelClasses : rng.below(kLevelClasses)));
      gains.push_back(static_cast<float>(rng.uniform(1, 2)));
    }
    for (float& value : mean) value = static_cast<float>(rng.normal());
    for (float& value : std::span(rows.data(), rows.size())) value = static_cast<float>(rng.normal());
  }

  SynthesisTask task() const {
    return {.tables = tables, .classes = classes, .gains = gains, .step = step, .rows = rows, .mean = mean};
  }

  /// Levels of about the size of their class, half of them zeros, a few far beyond.
  Matrix<int32_t> levels(size_t tokens, Rng& rng) const {
    Matrix<int32_t> all(classes.size(), tokens);
    for (size_t i = 0; i < all.rows(); ++i)
      for (size_t t = 0; t < tokens; ++t) {
        const double size = std::exp2(shift_of_class(classes[i])) * 4 * rng.normal();
        all(i, t) = rng.below(2) ? 0 : static_cast<int32_t>(size * (rng.below(40) ? 1 : 30));
      }
    return all;
  }

  /// The output of lib for levels.
  Matrix<float> vectors(const Matrix<int32_t>& levels) const {
    RowCoefficients coefficients(classes.size(), levels.cols());
    std::vector<float> values(levels.cols());
    for (size_t i = 0; i < classes.size(); ++i) {
      tables.reconstruct(classes[i], step, gains[i], levels.row(i), values);
      coefficients.append_row(values);
    }
    Matrix<float> out(levels.cols(), mean.size());
    RowSums(rows).add(coefficients, mean, out);
    return out;
  }
};

struct Blocks {
  std::vector<uint8_t> payload;
  std::vector<uint32_t> bytes;
};

Blocks encoded(const Case& of, const Matrix<int32_t>& levels, size_t tokens) {
  const LevelCoder coder(of.tables, of.classes);
  Blocks blocks;
  for (size_t first = 0; first < levels.cols(); first += tokens)
    blocks.bytes.push_back(coder.encode(levels.view().columns(first, tokens), blocks.payload));
  return blocks;
}

}  // namespace

TEST_CASE("transform on a device: vectors are those of the CPU, bit for bit") {
  NEEDS_DEVICE();
  Rng rng(91);
  // Around tiles of 128 tokens, 128 columns and 16 components, groups of eight lanes and of 32 symbols; with more blocks
  // than a device has multiprocessors, and more classes than fit its shared memory.
  for (const auto& [components, width, tokens, count] : std::vector<std::array<size_t, 4>>{{1, 1, 1, 1},
                                                                                           {3, 70, 13, 6},
                                                                                           {16, 64, 64, 1},
                                                                                           {37, 65, 33, 5},
                                                                                           {20, 130, 8, 9},
                                                                                           {18, 300, 9, 8},
                                                                                           {35, 260, 76, 4},
                                                                                           {41, 12, 8, 270},
                                                                                           {0, 5, 7, 2}}) {
    INFO(components, " components of ", width, " values, ", count, " blocks of ", tokens);
    const Case of(components, width, rng);
    const Matrix<int32_t> levels = of.levels(count * tokens, rng);
    const Blocks blocks = encoded(of, levels, tokens);
    const Matrix<float> expected = of.vectors(levels);
    Matrix<float> out(count * tokens, width + 2);
    for (float& value : std::span(out.data(), out.size())) value = -7;
    cuda::VectorSynthesizer(of.task()).decode(blocks.payload, blocks.bytes, tokens,
                                              out.view().columns(1, width));
    const auto wrong_rows = [&] {
      size_t wrong = 0;
      for (size_t t = 0; t < out.rows(); ++t)
        wrong += std::memcmp(out.row(t).data() + 1, expected.row(t).data(), width * sizeof(float)) != 0 ||
                 out(t, 0) != -7 || out(t, width + 1) != -7;
      return wrong;
    };
    CHECK(wrong_rows() == 0);
    // With so little memory that few blocks are processed at a time.
    const cuda::VectorSynthesizer synthesizer(of.task());
    for (size_t t = 0; t < out.rows(); ++t)
      for (size_t c = 1; c <= width; ++c) out(t, c) = 0;
    cuda::limit_free_bytes(100000);
    synthesizer.decode(blocks.payload, blocks.bytes, tokens, out.view().columns(1, width));
    cuda::limit_free_bytes(cuda::kAllFreeBytes);
    CHECK(wrong_rows() == 0);
  }
}

TEST_CASE("transform on a device: levels up to the largest size, and none beyond") {
  NEEDS_DEVICE();
  Rng rng(93);
  const size_t tokens = 16;
  const Case of(30, 9, rng);
  const cuda::VectorSynthesizer synthesizer(of.task());
  Matrix<float> out(tokens, 9);
  for (const int32_t level : {(1 << 23) - 1, 1 - (1 << 23)}) {
    Matrix<int32_t> levels = of.levels(tokens, rng);
    for (size_t i = 0; i < levels.rows(); ++i) levels(i, i % tokens) = level;
    const Blocks blocks = encoded(of, levels, tokens);
    const Matrix<float> expected = of.vectors(levels);
    synthesizer.decode(blocks.payload, blocks.bytes, tokens, out);
    CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
  }
  for (size_t i = 0; i < of.classes.size(); ++i) {
    Matrix<int32_t> levels = of.levels(tokens, rng);
    levels(i, 3) = -(1 << 23);
    const Blocks blocks = encoded(of, levels, tokens);
    CHECK_THROWS_AS(synthesizer.decode(blocks.payload, blocks.bytes, tokens, out), Error);
  }
}

TEST_CASE("transform on a device: damaged blocks are refused, whatever is wrong with them") {
  NEEDS_DEVICE();
  Rng rng(92);
  const size_t tokens = 24, count = 5, width = 40;
  const Case of(12, width, rng);
  const Matrix<int32_t> levels = of.levels(count * tokens, rng);
  const Blocks blocks = encoded(of, levels, tokens);
  const LevelCoder coder(of.tables, of.classes);
  const cuda::VectorSynthesizer synthesizer(of.task());
  Matrix<int32_t> there(of.classes.size(), count * tokens);
  size_t refused = 0, taken = 0;
  for (int round = 0; round < 60; ++round) {
    Blocks wrong = blocks;
    if (round % 3 == 0)
      wrong.payload[rng.below(wrong.payload.size())] ^= static_cast<uint8_t>(1 + rng.below(255));
    else if (round % 3 == 1)
      --wrong.bytes[rng.below(count)];
    else
      wrong.payload.resize(wrong.payload.size() - 1 - rng.below(20));
    const auto fails = [](const auto& body) {
      try {
        body();
        return false;
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::bad_input);
        return true;
      }
    };
    Matrix<float> out(count * tokens, width);
    const bool on_cpu = fails([&] { coder.decode(wrong.payload, wrong.bytes, tokens, there); });
    const bool on_device = fails([&] { synthesizer.decode(wrong.payload, wrong.bytes, tokens, out); });
    CHECK(on_device == on_cpu);
    if (on_cpu) {
      ++refused;
      continue;
    }
    // A bit whose change is not detectable: the same wrong vectors.
    ++taken;
    const Matrix<float> expected = of.vectors(there);
    CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
  }
  CHECK(refused > 40);
  INFO(taken, " were blocks of other levels");
}

}  // namespace transform_test
