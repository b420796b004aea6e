// Models that turn a piece of text into tokens: their interface, and their common parts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// Tokens and their ids.
class TokenList {
 public:
  /// Throws Error(bad_input) for an id or token given twice, an id above 2^24, a token that is not UTF-8.
  explicit TokenList(const std::vector<std::pair<std::string, uint32_t>>& tokens);
  TokenList(const TokenList&) = delete;
  TokenList& operator=(const TokenList&) = delete;

  std::optional<uint32_t> id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Valid as long as this.
  std::optional<std::string_view> token_of(uint32_t id) const {
    return id < tokens_.size() && tokens_[id] ? std::optional<std::string_view>(*tokens_[id]) : std::nullopt;
  }
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }  ///< largest id + 1

 private:
  std::vector<std::optional<std::string>> tokens_;  ///< by id; ids may have holes
  std::unordered_map<std::string_view, uint32_t> ids_;
};

/// Strings with a value each; one walk along a text finds all strings that it begins with. Nodes are numbers.
class StringTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX, kRoot = 0;

  /// False if the string has a value already; then it keeps that.
  bool add(std::string_view text, uint32_t value);
  bool empty() const { return edges_.empty(); }
  /// The node one byte further, or kNone if no string continues so.
  uint32_t next(uint32_t node, char byte) const {
    const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(byte));
    return edge == edges_.end() ? kNone : edge->second;
  }
  /// Value of the string that ends here, or kNone.
  uint32_t value(uint32_t node) const { return values_[node]; }

 private:
  std::unordered_map<uint64_t, uint32_t> edges_;  ///< node << 8 | byte -> node
  std::vector<uint32_t> values_{kNone};           ///< by node
};

/// Ids of short pieces seen before: some 30,000 different words cover most of a long text. One per thread and model.
class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 64;  ///< bytes of a piece; longer ones hardly ever occur again

  /// Appends the ids noted for a piece of at least one byte, and returns true if there were any.
  bool find(std::string_view piece, std::vector<uint32_t>& ids) const {
    const Slot& slot = slots_[slot_of(piece)];
    if (slot.piece != piece) return false;
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.end());
    return true;
  }
  void note(std::string_view piece, std::span<const uint32_t> ids) {
    slots_[slot_of(piece)] = {std::string(piece), {ids.begin(), ids.end()}};
  }

 private:
  struct Slot {
    std::string piece;
    std::vector<uint32_t> ids;
  };
  static constexpr size_t kSlots = size_t{1} << 15;
  static size_t slot_of(std::string_view piece) { return std::hash<std::string_view>()(piece) % kSlots; }
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);  ///< the next piece with the same hash takes the slot
};

/// Immutable after construction; any number of threads may encode at the same time.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the ids of a piece, well-formed UTF-8, to ids.
  void encode(std::string_view piece, PieceCache& cache, std::vector<uint32_t>& ids) const;

  const TokenList& tokens() const { return tokens_; }

 protected:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit TokenModel(const TokenizerSpec& spec) : tokens_(spec.vocabulary) {
    for (unsigned byte = 0; byte < 256; ++byte)
      byte_ids_[byte] =
          spec.byte_fallback ? tokens_.id_of(fmt::format("<0x{:02X}>", byte)).value_or(kNone) : kNone;
  }
  /// encode() of a piece that is not in the cache, and not empty.
  virtual void encode_new(std::string_view piece, PieceCache& cache, std::vector<uint32_t>& ids) const = 0;
  /// Appends the <0x..> tokens of these bytes and returns true, if there is one for each.
  bool fall_back(std::string_view bytes, std::vector<uint32_t>& ids) const;

  std::array<uint32_t, 256> byte_ids_;  ///< of the <0x..> tokens; kNone: the byte has no fallback

 private:
  TokenList tokens_;
};

/// The model that spec describes. Throws Error(bad_input) as Tokenizer's constructor does.
std::unique_ptr<TokenModel> make_token_model(const TokenizerSpec& spec);

}  // namespace kvcodec
