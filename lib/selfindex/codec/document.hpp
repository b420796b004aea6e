// The codec `selfindex`: its options and values that follow from them, and opened documents; codec.cpp describes the streams.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/options.hpp"
#include "lib/engine/engine.hpp"
#include "lib/quant/two_bit.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::selfindex {

/// The rows stored beside the index: 2-bit levels, or all keys and values at 16 bits.
enum class Store : uint8_t { two_bit, sixteen_bit };
constexpr auto names_of(Store) { return std::to_array<std::string_view>({"2bit", "16bit"}); }

enum class KeyCenter : uint8_t { mean, median };
constexpr auto names_of(KeyCenter) { return std::to_array<std::string_view>({"mean", "median"}); }

/// The tokens that are kept exactly: those that the last queries attend to most, those that the last query scores highest, or the first.
enum class ExactBy : uint8_t { attention, last_query, first };
constexpr auto names_of(ExactBy) {
  return std::to_array<std::string_view>({"attention", "last-query", "first"});
}

/// The meaning of a key's 2 bits: its magnitude beside the sign bit, or its signed value.
enum class KeyLevels : uint8_t { magnitude, with_sign };
constexpr auto names_of(KeyLevels) { return std::to_array<std::string_view>({"magnitude", "signed"}); }

/// The grid that the magnitudes of a token's keys get: that of the least squared error of keys, or the paper's, from smallest to largest.
enum class KeyFit : uint8_t { least_squares, range };
constexpr auto names_of(KeyFit) { return std::to_array<std::string_view>({"least-squares", "range"}); }

/// The paper's number of exact tokens.
inline constexpr int64_t kPaperExactTokens = 64;

struct SelfIndexOptions final : Options {
  Store store = Store::two_bit;
  KeyCenter center = KeyCenter::mean;  ///< the paper's; its code has the median
  int64_t exact_tokens = kUsualWindow;
  ExactBy exact_by = ExactBy::attention;  ///< the paper's choice, after SnapKV
  KeyLevels key_levels = KeyLevels::magnitude;
  KeyFit key_fit = KeyFit::least_squares;

  std::vector<OptionField> fields() override {
    return {
        {"store", "what is stored beside the index: 2bit keys and values, or all of them at 16bit", &store},
        {"center", "what keys are centred by, per channel", &center},
        {"exact-tokens",
         "tokens of each head that are kept exactly; -1: a 64th of those that a document starts with, and 64 at most",
         &exact_tokens, kUsualWindow, 1 << 20},
        {"exact-by",
         "which: those the last 32 dumped queries attend to most, those the last one scores highest, or the first",
         &exact_by},
        {"key-levels",
         "what the 2 bits of a key say: its magnitude beside the sign bit, or (to see what that gains) its signed value",
         &key_levels},
        {"key-fit",
         "where a key's levels lie: at the least squared error, or from its smallest magnitude to its largest",
         &key_fit}};
  }
};

/// The form of a document's streams, which follows from the options.
struct Form {
  SelfIndexOptions options;
  DType storage;
  size_t heads, dims, query_heads;

  Form(const SelfIndexOptions& o, const GroupShape& shape, DType type, int heads_of_queries)
      : options(o),
        storage(type),
        heads(as_size(shape.heads())),
        dims(shape.dims()),
        query_heads(as_size(heads_of_queries)) {}

  size_t width() const { return heads * dims; }
  size_t level_bytes() const { return two_bit_row_bytes(dims); }
  size_t sign_bytes() const { return sign_row_bytes(dims); }
  size_t groups() const { return two_bit_groups(dims); }
  bool has_levels() const { return options.store == Store::two_bit; }
  bool signed_levels() const { return options.key_levels == KeyLevels::with_sign; }
  bool wants_queries() const {
    return options.exact_tokens != 0 && has_levels() && options.exact_by != ExactBy::first;
  }
  /// Tokens of each head that are kept of a document that starts with so many.
  uint64_t exact_of(uint64_t tokens) const {
    return std::min(exact_tokens_of(options.exact_tokens, kPaperExactTokens, tokens), tokens);
  }
  /// True if a document of this side may be coded. Values with Store::sixteen_bit never are: all are kept exactly.
  bool has_choice(Side side) const { return has_levels() || side == Side::key; }

  /// True if coding this side makes a document of so many tokens smaller. Always true with
  /// Store::sixteen_bit, where the index is stored besides all 16-bit values.
  bool pays(Side side, uint64_t tokens) const;
};

inline constexpr std::string_view kCoded = "coded", kCenter = "center", kAlpha = "alpha",
                                  kCodebooks = "codebooks", kSigns = "signs", kLevels = "levels",
                                  kScales = "scales", kZeros = "zeros", kExactIds = "exact_ids",
                                  kExact = "exact";

/// A token of a head, of those kept exactly.
struct HeadToken {
  uint32_t token = 0, head = 0;
  auto operator<=>(const HeadToken&) const = default;  // NOLINT(modernize-use-nullptr): of what it stands for
};

/// Tables that all keys of a document share.
struct HeadTables {
  std::vector<float> center, alpha;  // (heads, dims)
};

/// One side of a document, opened. Threads may read at once.
class SelfIndexView final : public DocumentView {
 public:
  /// engine: or nullptr; it and document outlive this.
  SelfIndexView(const Form& form, Engine* engine, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), form_(form), engine_(engine) {}

  std::unique_ptr<GrowingSelector> selector(size_t head, bool signs_only) const override;
  std::vector<uint32_t> kept_whole(size_t head) const override {
    std::vector<uint32_t> kept;
    if (!is_coded()) return kept;
    for (const HeadToken& place : exact_places(0, tokens()))
      if (place.head == head) kept.push_back(place.token);
    return kept;
  }

  /// True if there are codes: otherwise "exact" holds all.
  bool is_coded() const { return coded_; }
  /// Tokens of [first, last) that are kept exactly, with their heads; sorted by token, then by head.
  /// Includes tokens that are not appended yet.
  std::span<const HeadToken> exact_places(uint64_t first, uint64_t last) const {
    const uint64_t begin = exact_before(first);
    return std::span(places_).subspan(begin, exact_before(last) - begin);
  }
  /// The tables of coded keys. Throws Error(bad_input) for streams that no encoder writes.
  const HeadTables& tables() const;

 protected:
  uint64_t take_in() override;
  void decode_rows(uint64_t first, MatrixView<float> out) const override;

 private:
  uint64_t exact_before(uint64_t token) const {
    const auto found =
        std::ranges::partition_point(places_, [&](const HeadToken& place) { return place.token < token; });
    return static_cast<uint64_t>(found - places_.begin());
  }
  const std::vector<SignCodebook>& codebooks() const;
  std::vector<float> read_finite(std::string_view stream) const {
    std::vector<float> values = document().read<float>(stream, 0, 1, form_.width());
    for (const float value : values)
      if (!std::isfinite(value)) throw bad_input("stream '{}' holds {}, which is not finite", stream, value);
    return values;
  }
  std::vector<uint16_t> read_scales(std::string_view stream, uint64_t first, uint64_t count) const;
  void read_places();
  void decode_levels(uint64_t first, MatrixView<float> out) const;

  Form form_;
  Engine* engine_;
  bool coded_ = false;
  std::vector<HeadToken> places_;  // of all rows of exact_ids, rising
  Lazy<HeadTables> tables_;
  Lazy<std::vector<SignCodebook>> codebooks_;
};

/// The survey of one side of a document, which sees its keys. keys, own: the forms of the keys and of that side. engine: or nullptr. scores: of
/// the queries that it sees; outlives it.
std::unique_ptr<Survey> make_survey(const Form& keys, const Form& own, Engine* engine,
                                    const GroupShape& shape, const ScoreForms& scores);

/// Tokens centred or decoded by one thread at a time.
inline constexpr size_t kPieceTokens = 64;

}  // namespace kvcodec::selfindex
