#include "lib/tokenizer/model.hpp"

#include <algorithm>
#include <bit>

#include <xxhash.h>

#include "lib/core/error.hpp"
#include "lib/tokenizer/merges.hpp"
#include "lib/tokenizer/unigram.hpp"

namespace kvcodec {
namespace {

// The largest vocabularies have some 260,000 tokens; a table by id must not be blown up by one wild id.
constexpr uint32_t kMostIds = 1u << 24;

constexpr size_t kSlotBits = 15;
constexpr size_t kArenaBytes = size_t{4} << 20;  // of text, and of ids as many

}  // namespace

TokenList::TokenList(const std::vector<std::pair<std::string, uint32_t>>& tokens) {
  uint32_t largest = 0;
  for (const auto& [token, id] : tokens) {
    if (id >= kMostIds)
      throw bad_input("token {} has id {}; ids must be below {}", quote_text(token), id, kMostIds);
    largest = std::max(largest, id);
  }
  const size_t size = tokens.empty() ? 0 : size_t{largest} + 1;
  tokens_.resize(size);
  used_.resize(size);
  slots_.assign(std::bit_ceil(2 * tokens.size() + 2), kFree);
  for (const auto& [token, id] : tokens) {
    if (used_[id])
      throw bad_input("tokens {} and {} both have id {}", quote_text(tokens_[id]), quote_text(token), id);
    if (valid_utf8_prefix(token) != token.size()) throw bad_input("token {} is not UTF-8", quote_text(token));
    used_[id] = true;
    tokens_[id] = token;
    uint32_t& slot = slots_[slot_of(token)];
    if (slot != kFree) throw bad_input("token {} is given twice", quote_text(token));
    slot = id;
  }
}

size_t TokenList::slot_of(std::string_view token) const {
  const size_t last = slots_.size() - 1;
  size_t slot = XXH3_64bits(token.data(), token.size()) & last;
  while (slots_[slot] != kFree && tokens_[slots_[slot]] != token) slot = (slot + 1) & last;
  return slot;
}

std::optional<uint32_t> TokenList::id_of(std::string_view token) const {
  const uint32_t id = slots_[slot_of(token)];
  return id == kFree ? std::nullopt : std::optional(id);
}

std::optional<std::string_view> TokenList::token_of(uint32_t id) const {
  if (id >= tokens_.size() || !used_[id]) return std::nullopt;
  return tokens_[id];
}

std::string byte_token(unsigned byte) { return fmt::format("<0x{:02X}>", byte); }

PieceCache::PieceCache() : slots_(size_t{1} << kSlotBits) {}

bool PieceCache::find(std::string_view piece, std::vector<uint32_t>& ids) const {
  const uint64_t hash = XXH3_64bits(piece.data(), piece.size());
  const Slot& slot = slots_[hash >> (64 - kSlotBits)];
  if (slot.text_size != piece.size() || slot.tag != static_cast<uint32_t>(hash) ||
      std::string_view(text_).substr(slot.text_begin, slot.text_size) != piece) {
    return false;
  }
  const uint32_t* noted = ids_.data() + slot.ids_begin;
  ids.insert(ids.end(), noted, noted + slot.num_ids);
  return true;
}

void PieceCache::note(std::string_view piece, std::span<const uint32_t> ids) {
  if (text_.size() + piece.size() > kArenaBytes ||
      ids_.size() + ids.size() > kArenaBytes / sizeof(uint32_t)) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    text_.clear();
    ids_.clear();
  }
  const uint64_t hash = XXH3_64bits(piece.data(), piece.size());
  Slot& slot = slots_[hash >> (64 - kSlotBits)];
  slot.text_begin = static_cast<uint32_t>(text_.size());
  slot.text_size = static_cast<uint16_t>(piece.size());
  slot.ids_begin = static_cast<uint32_t>(ids_.size());
  slot.num_ids = static_cast<uint16_t>(ids.size());
  slot.tag = static_cast<uint32_t>(hash);
  text_ += piece;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

std::unique_ptr<TokenModel> make_token_model(const TokenizerSpec& spec) {
  if (spec.unigram) return std::make_unique<UnigramModel>(spec);
  return std::make_unique<MergeModel>(spec);
}

}  // namespace kvcodec
