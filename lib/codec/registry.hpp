// The list of codecs, and pairs of them. How to add one: CONTRIBUTING.md, "A codec".
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "lib/codec/codec.hpp"

namespace kvcodec {

/// All codecs, in the order that help shows them.
std::span<const CodecEntry> codecs();

/// The codec of that name, or the pair of codecs; nullptr: there is none.
const CodecEntry* known_codec(std::string_view name);

/// As known_codec(), but throws Error(usage) with the list of all names if there is none.
const CodecEntry& find_codec(std::string_view name);

// Keys by one codec, values by another: a pair, named by both as "kvcomp+kivi". To its users it is a codec like any
// other: each side has the streams of its own codec.
//
// Its options and parameters are those of the two, named "key.bits" and "value.bits". Those that
// belong to the cache, not to one codec, occur once, without a side: `rope` and `error-scales`.
//
// Any two codecs make a pair, or one codec twice. Three cases are refused: a codec that codes keys and values jointly
// (transform with a book of vectors of both); two codecs with different layer groups; and two that each need a book of
// their own kind, because codes belong to one book at most.

/// Stands between the names of the two codecs.
inline constexpr char kPairMark = '+';

/// "key." and "value.": the prefixes of options and parameters of a pair's codecs.
constexpr std::string_view pair_prefix(Side side) { return side == Side::value ? "value." : "key."; }

/// The options of both, each under its side's prefix.
class PairOptions final : public Options {
 public:
  PairOptions(std::unique_ptr<Options> keys, std::unique_ptr<Options> values)
      : keys_(std::move(keys)), values_(std::move(values)) {}
  std::vector<OptionField> fields() override;
  void check() const override {
    with_context("keys", [&] { keys_->check(); });
    with_context("values", [&] { values_->check(); });
  }

  Options& of(Side side) const { return side == Side::value ? *values_ : *keys_; }

 private:
  std::unique_ptr<Options> keys_, values_;
};

/// The registry line of a pair. keys, values: no pairs themselves; both outlive it. Its make() throws Error(usage) in the
/// three cases above.
CodecEntry pair_of(const CodecEntry& keys, const CodecEntry& values);

}  // namespace kvcodec
