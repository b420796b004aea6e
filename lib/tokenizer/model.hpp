// What turns one piece of text into tokens: the interface of the tokenizer's models, and what they share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tokenizer/tokenizer.hpp"

namespace kvcodec {

/// Tokens and their ids.
class TokenList {
 public:
  /// Throws Error(bad_input) for an id or token given twice, an id above 2^24, a token that is not UTF-8.
  explicit TokenList(const std::vector<std::pair<std::string, uint32_t>>& tokens);

  std::optional<uint32_t> id_of(std::string_view token) const;
  std::optional<std::string_view> token_of(uint32_t id) const;             ///< valid as long as this
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }  ///< largest id + 1

 private:
  static constexpr uint32_t kFree = UINT32_MAX;

  /// Where the token's id stands in slots_, or would stand.
  size_t slot_of(std::string_view token) const;

  std::vector<std::string> tokens_;  ///< by id
  std::vector<bool> used_;           ///< by id: not a hole
  std::vector<uint32_t> slots_;  ///< ids by the hash of their token, in the next free slot; a power of two
};

/// The token of a byte that is fallen back on: <0x0A>.
std::string byte_token(unsigned byte);

/// Ids of short pieces already seen: some 30,000 different words cover most of a long text.
class PieceCache {
 public:
  static constexpr size_t kLongest = 64;  ///< bytes of a piece; longer ones hardly ever come again

  PieceCache();

  /// Appends the ids that were noted of a piece of 1 to kLongest bytes, and says whether there were any.
  bool find(std::string_view piece, std::vector<uint32_t>& ids) const;
  /// Keeps the ids of such a piece, at most one for each byte.
  void note(std::string_view piece, std::span<const uint32_t> ids);

 private:
  /// Where a piece lies in the two arenas. A slot is overwritten by the next piece of the same hash; when an
  /// arena is full, everything is dropped.
  struct Slot {
    uint32_t text_begin = 0, ids_begin = 0;
    uint16_t text_size = 0;  ///< 0 = free
    uint16_t num_ids = 0;
    uint32_t tag = 0;  ///< more bits of the hash
  };
  std::vector<Slot> slots_;
  std::string text_;
  std::vector<uint32_t> ids_;
};

/// What encoding needs beside the model; one per thread and model.
class ModelMemory {
 public:
  virtual ~ModelMemory() = default;
  PieceCache cache;
};

/// Immutable after construction; any number of threads may encode at the same time.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  virtual std::unique_ptr<ModelMemory> new_memory() const = 0;
  /// Appends the ids of a piece, well-formed UTF-8, to ids. memory: made by new_memory of this model.
  virtual void encode(std::string_view piece, ModelMemory& memory, std::vector<uint32_t>& ids) const = 0;

  const TokenList& tokens() const { return tokens_; }

 protected:
  explicit TokenModel(const TokenizerSpec& spec) : tokens_(spec.vocabulary) {}

 private:
  TokenList tokens_;
};

/// The model that spec describes. Throws Error(bad_input) as Tokenizer's constructor does.
std::unique_ptr<TokenModel> make_token_model(const TokenizerSpec& spec);

}  // namespace kvcodec
