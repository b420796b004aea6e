// Options of the codec `selfindex`, and what follows from them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_ends.hpp"
#include "lib/core/options.hpp"
#include "lib/quant/two_bit.hpp"
#include "lib/selfindex/sign_codes.hpp"

namespace kvcodec::selfindex {

/// What is stored beside the index: 2-bit levels, or all keys and values at 16 bits.
enum class Store : uint8_t { two_bit, sixteen_bit };
constexpr auto names_of(Store) { return std::to_array<std::string_view>({"2bit", "16bit"}); }

enum class KeyCenter : uint8_t { mean, median };
constexpr auto names_of(KeyCenter) { return std::to_array<std::string_view>({"mean", "median"}); }

/// Which tokens are kept exactly: those that the last queries attend to most, those that the last one scores
/// highest, or the first.
enum class ExactBy : uint8_t { attention, last_query, first };
constexpr auto names_of(ExactBy) {
  return std::to_array<std::string_view>({"attention", "last-query", "first"});
}

/// What the 2 bits of a key say: its magnitude beside the sign bit, or its signed value.
enum class KeyLevels : uint8_t { magnitude, with_sign };
constexpr auto names_of(KeyLevels) { return std::to_array<std::string_view>({"magnitude", "signed"}); }

/// The paper's number of exact tokens.
inline constexpr int64_t kPaperExactTokens = 64;

struct SelfIndexOptions final : Options {
  Store store = Store::two_bit;
  KeyCenter center = KeyCenter::mean;  ///< the paper's; its code has the median
  int64_t exact_tokens = kUsualWindow;
  ExactBy exact_by = ExactBy::attention;  ///< the paper's choice, after SnapKV
  KeyLevels key_levels = KeyLevels::magnitude;

  std::vector<OptionField> fields() override {
    return {
        {"store", "what is stored beside the index: 2bit keys and values, or all of them at 16bit", &store},
        {"center", "what keys are centred by, per channel", &center},
        {.name = "exact-tokens",
         .help =
             "tokens of each head that are kept exactly; -1: a 64th of those that a document starts with, and 64 at "
             "most",
         .target = &exact_tokens,
         .min = kUsualWindow,
         .max = 1 << 20},
        {"exact-by",
         "which: those the last 32 dumped queries attend to most, those the last one scores highest, or the "
         "first",
         &exact_by},
        {"key-levels",
         "what the 2 bits of a key say: its magnitude beside the sign bit, or (to see what that gains) its "
         "signed value",
         &key_levels}};
  }
};

/// What a document's streams look like, and who decides about its exact tokens.
struct Form {
  DType storage;
  size_t heads, dims, query_heads;
  int64_t exact_tokens;  ///< as the option has it
  bool at_16_bits, signed_levels;

  Form(const SelfIndexOptions& options, const CodecContext& context)
      : storage(context.storage),
        heads(static_cast<size_t>(context.heads)),
        dims(static_cast<size_t>(context.head_dim)),
        query_heads(static_cast<size_t>(context.query_heads)),
        exact_tokens(options.exact_tokens),
        at_16_bits(options.store == Store::sixteen_bit),
        signed_levels(options.key_levels == KeyLevels::with_sign) {}

  size_t width() const { return heads * dims; }
  size_t level_bytes() const { return two_bit_row_bytes(dims); }
  size_t sign_bytes() const { return sign_row_bytes(dims); }
  size_t groups() const { return two_bit_groups(dims); }
  bool has_levels() const { return !at_16_bits; }
  /// Tokens of each head that are kept of a document that starts with so many.
  uint64_t exact_of(uint64_t tokens) const {
    return std::min(exact_tokens_of(exact_tokens, kPaperExactTokens, tokens), tokens);
  }
  /// Whether a document of this side may be coded. Values with Store::sixteen_bit never are: all are kept
  /// exactly.
  bool has_choice(Side side) const { return has_levels() || side == Side::key; }

  /// Whether coding this side makes a document of so many tokens smaller. True with Store::sixteen_bit, where
  /// the index is stored besides all 16-bit values.
  bool pays(Side side, uint64_t tokens) const;
};

/// Tokens centred or decoded by one thread at a time.
inline constexpr size_t kPieceTokens = 64;

}  // namespace kvcodec::selfindex
