// A document's first token, coded by itself.
//
// Attention that has nothing to look at goes to the first token (Xiao et al., "Efficient Streaming Language Models with
// Attention Sinks", 2024). Its keys and values are like no other token's and, except for the first layers, nearly the same
// in all documents; an error in them reaches every later token. So first tokens have a mean of their own, learned from
// those of many documents, and what is left is quantized value by value, `finer` times as finely as other tokens'
// components:
//   q ~ (x - mean) W finer / step        x = mean + q V step / finer        W = M^(1/2), V = W^-1 (metric.hpp)
// The values of a head have one class of levels (levels.hpp). None is dead, so that no error is unbounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/transform/level_coder.hpp"
#include "lib/transform/levels.hpp"
#include "lib/transform/metric.hpp"

namespace kvcodec {

/// What is learned of the first tokens of one part.
struct FirstTokens {
  std::vector<float> mean;                    ///< (width); empty: nothing
  std::vector<std::vector<uint8_t>> classes;  ///< of each step, of each head: (width / head_dim)

  bool empty() const { return mean.empty(); }
};

/// First tokens are learned from at least so many documents: fewer say too little about others.
inline constexpr size_t kLeastFirstTokens = 8;

/// rows: first tokens, (documents, width), at least one; blocks: number of heads in a row; steps: those of other tokens.
FirstTokens learn_first_tokens(MatrixView<const float> rows, const ErrorMetric& metric, size_t blocks,
                               std::span<const float> steps, double finer);

/// First tokens of one part at one step, to bytes and back.
class FirstTokenCoder {
 public:
  /// metric and tables outlive it. classes: those of the step.
  FirstTokenCoder(const ErrorMetric& metric, const LevelTables& tables, std::vector<float> mean,
                  const std::vector<uint8_t>& classes, float step, double finer);

  size_t width() const { return mean_.size(); }

  /// Appends a block of levels (level_coder.hpp), a head's values side by side. row: (width).
  void encode(std::span<const float> row, std::vector<uint8_t>& out) const;
  /// Throws Error(bad_input) for bytes that no encoder writes.
  void decode(std::span<const uint8_t> bytes, std::span<float> row) const;

 private:
  size_t of_head() const { return width() / classes_.size(); }

  const ErrorMetric& metric_;
  const LevelTables& tables_;
  std::vector<float> mean_;
  std::vector<uint8_t> classes_;
  float step_;
  LevelCoder coder_;
};

}  // namespace kvcodec
