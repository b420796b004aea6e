// Books of the codec transform whose bases are random: for tests and fuzz targets that need some book, not a good one.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/core/rng.hpp"
#include "lib/transform/codec/book.hpp"

namespace kvcodec::test {

struct TransformSettings {
  bool per_head = false;  ///< the metric
  SideCoding sides = SideCoding::joint;
  int layer_group = 2;
  int64_t sink = 4, window = 0, block = 256;
  float step = 0.25f;
  int64_t predict_tokens = 0;
  bool first_tokens = false;  ///< whether the book knows them; with a sink of 0 they are coded by themselves
};

/// Ids of the tokens of any document, below kSampleVocabulary: the first of a long list, more than most documents have.
inline constexpr uint32_t kSampleVocabulary = 50;
inline std::vector<uint32_t> sample_ids(size_t count = 10'000) {
  static const std::vector<uint32_t> all = [] {
    std::vector<uint32_t> ids(65536);
    Rng rng(77);
    for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(kSampleVocabulary));
    return ids;
  }();
  return {all.begin(), all.begin() + static_cast<ptrdiff_t>(count)};
}

inline LevelRows random_byte_rows(size_t rows, size_t cols, Rng& rng) {
  LevelRows result(std::vector<uint8_t>(rows, 8), cols);
  std::vector<int16_t> levels(rows * cols);
  for (int16_t& level : levels) level = static_cast<int16_t>(static_cast<int>(rng.below(255)) - 127);
  for (size_t i = 0; i < rows; ++i)
    result.set(i, std::span(levels).subspan(i * cols, cols), static_cast<float>(rng.uniform(0.001, 0.01)));
  return result;
}

/// Weights of errors: at least 1: 1 and 4 or, in blocks, the identity and a matrix of rank 1.
inline ErrorMetric random_metric(size_t width, size_t block) {
  Matrix<double> blocks(width, block);
  for (size_t c = 0; c < width; ++c) {
    if (block == 1) blocks(c, 0) = c % 2 == 0 ? 1 : 4;
    for (size_t k = 0; block > 1 && k < block; ++k)
      blocks(c, k) = (c % block == k ? 1 : 0) + 1.0 / static_cast<double>(block);
  }
  return ErrorMetric(std::move(blocks));
}

/// A book of random orthonormal vectors with all components, fine steps and the tables of a Laplacian.
inline TransformBook random_transform_book(const TransformSettings& settings, const CodecContext& context,
                                           Rng& rng) {
  TransformBook book;
  book.options.sides = settings.sides;
  book.options.layer_group = settings.layer_group;
  book.options.rate_distortion = 0;
  book.options.predict_tokens = settings.predict_tokens;
  if (settings.predict_tokens > 0)
    book.features.emplace(random_byte_rows(kSampleVocabulary, 5, rng),
                          static_cast<size_t>(settings.predict_tokens));
  book.num_layers = context.num_layers, book.heads = context.heads, book.head_dim = context.head_dim;
  book.value_dim = value_dim_of(context.layer_shape(0));
  book.source = "random";
  for (size_t c = 0; c < kLevelClasses; ++c) {
    std::vector<uint64_t> counts(kLevelSymbols);
    for (size_t k = 0; k < kLevelSymbols; ++k)
      counts[k] =
          static_cast<uint64_t>(1e4 * std::exp(-std::abs(static_cast<double>(k) - kLargestSymbol) / 2)) + 1;
    book.classes.push_back({RansModel::from_counts(counts, {.escape_bits = kEscapedBits}), {}});
  }
  book.measures = {{1, 1}, {2, 0.5}};
  for (const Side side : book.options.part_sides())
    for (int first = 0; first < context.num_layers && book.width(side) > 0; first += settings.layer_group) {
      const size_t width = book.width(side);
      TransformBook::Part part{side, first, {}, {}, {}};
      for (size_t c = 0; c < width; ++c) part.basis.mean.push_back(static_cast<float>(rng.normal()));
      part.basis.metric = random_metric(width, settings.per_head ? book.layer().values_of_class() : 1);
      if (book.features) {
        const size_t rank = 1 + rng.below(book.features->width());
        part.basis.prediction = {random_byte_rows(rank, book.features->width(), rng),
                                 random_byte_rows(rank, width, rng)};
      }
      // Neighbours turned by an eighth of a circle: levels hold these vectors to a float's rounding.
      Matrix<float> vectors(width, width);
      const auto half = static_cast<float>(std::sqrt(0.5));
      for (size_t i = 0; i < width; ++i) {
        const size_t other = i ^ 1;
        vectors(i, i) = other < width ? (i % 2 == 0 ? half : -half) : 1;
        if (other < width) vectors(i, other) = half;
      }
      part.basis.vectors = round_to_byte_rows(vectors);
      for (const float step : {2 * settings.step, settings.step}) {
        LevelRung rung{step, {}, std::vector<float>(width, 1.0f)};
        for (size_t i = 0; i < width; ++i) rung.classes.push_back(static_cast<uint8_t>(18 + rng.below(8)));
        part.rungs.push_back(rung);
      }
      if (settings.first_tokens) {
        for (size_t c = 0; c < width; ++c) part.first.mean.push_back(static_cast<float>(rng.normal()));
        for (size_t rung = 0; rung < part.rungs.size(); ++rung) {
          auto& classes = part.first.classes.emplace_back(width / book.layer().values_of_class());
          for (uint8_t& level_class : classes) level_class = static_cast<uint8_t>(20 + rng.below(12));
        }
      }
      book.parts.push_back(std::move(part));
    }
  return book;
}

}  // namespace kvcodec::test
