// The codecs that codec_test.cpp holds to the promises of the Codec interface: one row per codec and set of
// options worth testing apart. A new codec adds its rows in codec_table() and, where it needs them, a book
// and an error bound.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/registry.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace kvcodec::test {

struct CodecCase {
  std::string label;  ///< for messages: codec and options
  std::string codec;
  std::vector<std::pair<std::string, Scalar>> options;  ///< beside the defaults

  /// Checks decoded rows against what was encoded (rounded to the storage type), both (tokens, width). Empty
  /// for lossless codecs: theirs must be equal.
  std::function<void(const GroupShape&, MatrixView<const float> original, MatrixView<const float> decoded)>
      check_error = {};

  /// A book that fits the context, for codecs that need one.
  std::function<Book(const CodecContext&, Rng&)> make_book = {};
};

// kivi
// -----------------------------------------------------------------------------------------------------------------------

/// Half a step of the group's grid for every value, exact ones for the tail.
/// slack: relative spacing of the stored scales; zero_slack: of the zero points, 0 if they hold the 16-bit
/// values exactly.
inline void check_kivi(int64_t bits, uint64_t group, uint64_t value_group, uint64_t residual, double slack,
                       double zero_slack, const GroupShape& shape, MatrixView<const float> original,
                       MatrixView<const float> decoded) {
  const uint64_t tokens = original.rows();
  const uint64_t quantized = tokens < residual ? 0 : (tokens - residual) / group * group;
  const auto head_dim = static_cast<uint64_t>(shape.head_dim);
  const double levels = std::exp2(double(bits)) - 1;
  size_t wrong = 0;
  for (uint64_t t = 0; t < tokens; ++t)
    for (uint64_t j = 0; j < original.cols(); ++j) {
      double low = INFINITY, high = -INFINITY;
      const auto include = [&](uint64_t token, uint64_t channel) {
        low = std::min(low, double(original(token, channel)));
        high = std::max(high, double(original(token, channel)));
      };
      if (t < quantized && shape.side == Side::key) {
        for (uint64_t other = t / group * group; other < (t / group + 1) * group; ++other) include(other, j);
      } else if (t < quantized) {
        const uint64_t head = j / head_dim, first = j % head_dim / value_group * value_group;
        for (uint64_t c = first; c < std::min(first + value_group, head_dim); ++c)
          include(t, head * head_dim + c);
      }
      // 2^-24: half a step where the scale itself is a subnormal f16, and the zero point rounded in that
      // range.
      const double largest = std::max(std::abs(low), std::abs(high));
      const double bound = t < quantized ? (high - low + zero_slack * largest) / levels / 2 * (1 + slack) +
                                               0x1p-24 + largest * 0x1p-22
                                         : 0;
      wrong += !(std::abs(double(original(t, j)) - double(decoded(t, j))) <= bound);
    }
  CHECK_EQ(wrong, 0);
}

inline CodecCase kivi_case(int64_t bits, int64_t group, int64_t value_group, int64_t residual,
                           std::string scale_type) {
  const double slack = scale_type == "bf16" ? 0x1p-7 : 0x1p-10;
  const double zero_slack =
      scale_type == "bf16" ? 0x1p-7 : 0;  // f16 holds the bf16 values of its range, bf16 not those of f16
  return {.label = fmt::format("kivi {} bits, group {}, value-group {}, residual {}, {}", bits, group,
                               value_group, residual, scale_type),
          .codec = "kivi",
          .options = {{"bits", bits},
                      {"group", group},
                      {"value-group", value_group},
                      {"residual", residual},
                      {"scale-type", scale_type}},
          .check_error = [=](const GroupShape& shape, MatrixView<const float> original,
                             MatrixView<const float> decoded) {
            // Shapes that would not shrink are kept exactly, which any bound admits.
            check_kivi(bits, uint64_t(group), uint64_t(value_group), uint64_t(residual), slack, zero_slack,
                       shape, original, decoded);
          }};
}

// ----------------------------------------------------------------------------------------------------------------------------

inline std::vector<CodecCase> codec_table() {
  return {
      {.label = "none", .codec = "none", .options = {}},
      kivi_case(2, 32, 32, 128, "f16"),
      kivi_case(4, 32, 32, 128, "f16"),
      kivi_case(1, 8, 5, 0, "bf16"),
      kivi_case(3, 1, 1, 7, "f32"),
      kivi_case(5, 33, 64, 40, "f32"),
      kivi_case(8, 16, 128, 1, "f16"),
  };
}

}  // namespace kvcodec::test
