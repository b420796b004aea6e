// The streams of one document of the codec `selfindex`, opened to read; codec.cpp describes them.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/lazy.hpp"
#include "lib/selfindex/codec/options.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec::selfindex {

inline constexpr std::string_view kCoded = "coded", kCenter = "center", kAlpha = "alpha",
                                  kCodebooks = "codebooks", kSigns = "signs", kLevels = "levels",
                                  kScales = "scales", kZeros = "zeros", kExactIds = "exact_ids",
                                  kExact = "exact";

/// A token of a head.
struct HeadToken {
  uint32_t token = 0, head = 0;
  auto operator<=>(const HeadToken&) const = default;  // NOLINT(modernize-use-nullptr): of what it stands for
};

/// What the keys of a document share.
struct HeadTables {
  std::vector<float> center, alpha;  // (heads, dims)
};

/// Of one side. Threads may read at once.
class Reader {
 public:
  /// document outlives this.
  Reader(const Form& form, Side side, const StreamReader& document)
      : form_(form), side_(side), document_(document) {}

  /// Looks at the streams, for the first time or when there are more tokens. Throws Error(bad_input) if they
  /// disagree. Not while others read.
  void refresh();
  uint64_t tokens() const { return tokens_; }
  /// Whether there are codes: otherwise "exact" holds all.
  bool is_coded() const { return coded_; }

  /// Which tokens of [first, last) are kept exactly, in which heads; sorted by token, then by head. Includes
  /// tokens that are not appended yet.
  std::span<const HeadToken> exact_places(uint64_t first, uint64_t last) const;
  /// How many rows of "exact" lie before those of this token.
  uint64_t exact_before(uint64_t token) const;

  /// Of coded keys. Throws Error(bad_input) for streams that no encoder writes.
  const HeadTables& tables() const;
  const std::vector<SignCodebook>& codebooks() const;

 private:
  std::vector<float> read_finite(std::string_view stream) const;
  std::vector<SignCodebook> read_codebooks() const;
  void read_places();

  Form form_;
  Side side_;
  const StreamReader& document_;
  uint64_t tokens_ = 0;
  bool coded_ = false;
  uint64_t id_rows_ = 0;
  std::vector<HeadToken> places_;  // of all rows of exact_ids, rising
  Lazy<HeadTables> tables_;
  Lazy<std::vector<SignCodebook>> codebooks_;
};

}  // namespace kvcodec::selfindex
