#include "lib/tokenizer/merges.hpp"

#include <algorithm>
#include <bit>
#include <functional>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr size_t kShortSymbols = 32;  // up to here looking at all pairs beats keeping a heap
constexpr unsigned kBridgeBits = 20;  // 128 KiB; the largest vocabularies hold some 50,000 pairs
constexpr uint64_t kMultiplier =
    0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: spreads keys over the upper bits

uint64_t bridge_hash(char32_t left, char32_t right) {
  return (static_cast<uint64_t>(left) << 32 | right) * kMultiplier >> (64 - kBridgeBits);
}

}  // namespace

MergeModel::MergeModel(const TokenizerSpec& spec)
    : TokenModel(spec),
      fuse_unknown_(spec.fuse_unknown),
      byte_fallback_(spec.byte_fallback),
      ignore_merges_(spec.ignore_merges) {
  add_tokens(spec);
  add_merges(spec);
}

void MergeModel::add_tokens(const TokenizerSpec& spec) {
  character_pages_.assign(0x1100, 0);
  character_ids_.emplace_back().fill(kNone);  // the page of those that have no tokens
  for (const auto& [token, id] : spec.vocabulary) {
    if (token.empty()) continue;
    unsigned bytes;
    const char32_t character = decode_utf8(token.data(), bytes);
    if (bytes != token.size()) continue;
    uint32_t& page = character_pages_[character >> 8];
    if (page == 0) {
      page = static_cast<uint32_t>(character_ids_.size());
      character_ids_.emplace_back().fill(kNone);
    }
    character_ids_[page][character & 0xff] = id;
  }
  all_bytes_ = byte_fallback_;
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = byte_fallback_ ? tokens().id_of(byte_token(byte)).value_or(kNone) : kNone;
    all_bytes_ = all_bytes_ && byte_ids_[byte] != kNone;
  }
  if (spec.unknown_token) {
    has_unknown_ = true;
    unknown_name_ = *spec.unknown_token;
    unknown_id_ = tokens().id_of(unknown_name_).value_or(kNone);
  }
}

void MergeModel::add_merges(const TokenizerSpec& spec) {
  const size_t slots = std::bit_ceil(2 * spec.merges.size() + 2);
  merges_.resize(slots);
  merges_shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
  bridges_.assign((size_t{1} << kBridgeBits) / 64, 0);
  std::string product;
  if (!spec.merge_ranks.empty() && spec.merge_ranks.size() != spec.merges.size())
    throw bad_input("{} ranks for {} merges", spec.merge_ranks.size(), spec.merges.size());
  uint32_t rank = 0;
  for (const auto& merge : spec.merges) {
    const std::string &left = merge.first, &right = merge.second;  // clang 14 captures no binding
    const auto known = [&](const std::string& token, const char* what) {
      const auto id = tokens().id_of(token);
      if (!id) {
        throw bad_input("merge {} of {} and {}: {} {} is not in the vocabulary", rank, quote_text(left),
                        quote_text(right), what, quote_text(token));
      }
      return *id;
    };
    const uint32_t left_id = known(left, "the part"), right_id = known(right, "the part");
    product = left;
    product += right;
    insert_merge({uint64_t{left_id} << 32 | right_id,
                  spec.merge_ranks.empty() ? rank : spec.merge_ranks[rank], known(product, "their product")});
    note_bridges(product);
    // Pieces are cut where no product reaches across (encode_long). The spelling of byte tokens says nothing
    // about the characters they stand for, so with merges of byte tokens there is no telling.
    const auto is_byte = [&](uint32_t id) {
      return std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
    };
    if (byte_fallback_ && (left.starts_with("<0x") || right.starts_with("<0x")) &&
        (is_byte(left_id) || is_byte(right_id))) {
      can_cut_ = false;
    }
    ++rank;
  }
}

void MergeModel::insert_merge(Merge merge) {
  for (size_t slot = merge.pair * kMultiplier >> merges_shift_;; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].id != kNone && merges_[slot].pair != merge.pair) continue;
    merges_[slot] = merge;  // given twice, the later rank holds
    return;
  }
}

const MergeModel::Merge* MergeModel::find_merge(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t{left} << 32 | right;
  for (size_t slot = pair * kMultiplier >> merges_shift_;; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].id == kNone) return nullptr;
    if (merges_[slot].pair == pair) return &merges_[slot];
  }
}

uint32_t MergeModel::rank_of(uint32_t left, uint32_t right) const {
  const Merge* merge = find_merge(left, right);
  return merge ? merge->rank : kNone;
}

uint32_t MergeModel::id_of_character(char32_t character) const {
  return character_ids_[character_pages_[character >> 8]][character & 0xff];
}

void MergeModel::note_bridges(std::string_view token) {
  char32_t before = 0;
  for (size_t at = 0; at < token.size();) {
    unsigned size;
    const char32_t character = decode_utf8(token.data() + at, size);
    if (at > 0) {
      const uint64_t hash = bridge_hash(before, character);
      bridges_[hash / 64] |= uint64_t{1} << hash % 64;
    }
    before = character;
    at += size;
  }
}

bool MergeModel::may_bridge(char32_t left, char32_t right) const {
  const uint64_t hash = bridge_hash(left, right);
  return bridges_[hash / 64] >> hash % 64 & 1;
}

std::unique_ptr<ModelMemory> MergeModel::new_memory() const { return std::make_unique<MergeMemory>(); }

void MergeModel::encode(std::string_view piece, ModelMemory& memory, std::vector<uint32_t>& ids) const {
  auto& own = static_cast<MergeMemory&>(memory);
  if (piece.size() <= PieceCache::kLongest) return encode_cached(piece, own, ids);
  if (ignore_merges_) {
    if (const auto id = tokens().id_of(piece)) return ids.push_back(*id);
  }
  encode_long(piece, own, ids);
}

void MergeModel::encode_cached(std::string_view piece, MergeMemory& memory,
                               std::vector<uint32_t>& ids) const {
  if (piece.empty() || memory.cache.find(piece, ids)) return;
  memory.symbols_.clear();
  const auto whole = ignore_merges_ ? tokens().id_of(piece) : std::nullopt;
  if (whole) {
    memory.symbols_.push_back(*whole);
  } else {
    merge(piece, memory);
  }
  ids.insert(ids.end(), memory.symbols_.begin(), memory.symbols_.end());
  memory.cache.note(piece, memory.symbols_);
}

// A piece can be as long as the text: SentencePiece models do not split at all. But a merge can only reach
// across two neighbouring characters if they stand side by side in its product. Where no product has them so,
// the piece may be cut without changing the result; in text these are nearly all beginnings of words, and
// words are in the cache.
void MergeModel::encode_long(std::string_view piece, MergeMemory& memory, std::vector<uint32_t>& ids) const {
  const auto part = [&](size_t begin, size_t end) {
    const std::string_view text = piece.substr(begin, end - begin);
    // With ignore_merges the cache says what a whole piece becomes, not a part of one.
    if (text.size() <= PieceCache::kLongest && !ignore_merges_) return encode_cached(text, memory, ids);
    memory.symbols_.clear();
    merge(text, memory);
    ids.insert(ids.end(), memory.symbols_.begin(), memory.symbols_.end());
  };
  if (!can_cut_) return part(0, piece.size());
  size_t begin = 0;
  char32_t before = 0;
  bool before_is_known = false;
  for (size_t at = 0; at < piece.size();) {
    unsigned size;
    const char32_t character = decode_utf8(piece.data() + at, size);
    // Characters that have no token may vanish, fuse or change places: no cut next to them.
    const bool is_known = all_bytes_ || id_of_character(character) != kNone;
    if (before_is_known && is_known && !may_bridge(before, character)) {
      part(begin, at);
      begin = at;
    }
    before = character;
    before_is_known = is_known;
    at += size;
  }
  part(begin, piece.size());
}

// The piece's characters as ids in memory.symbols_, then merged there.
void MergeModel::merge(std::string_view piece, MergeMemory& memory) const {
  if (piece.size() >= UINT32_MAX)
    throw bad_input("a piece of text of {} bytes without a split; at most 4 GiB", piece.size());
  to_symbols(piece, memory.symbols_);
  if (memory.symbols_.size() <= 1) return;
  if (memory.symbols_.size() <= kShortSymbols) {
    merge_short(memory);
  } else {
    merge_long(memory);
  }
}

void MergeModel::to_symbols(std::string_view piece, std::vector<uint32_t>& symbols) const {
  // An unknown token waits for the next character that has a token; bytes fallen back on overtake it. That is
  // the reference's order.
  bool unknown_waits = false;
  for (size_t at = 0; at < piece.size();) {
    unsigned size;
    const char32_t character = decode_utf8(piece.data() + at, size);
    const std::string_view bytes = piece.substr(at, size);
    at += size;
    if (const uint32_t id = id_of_character(character); id != kNone) {
      if (unknown_waits) symbols.push_back(unknown_id_);
      unknown_waits = false;
      symbols.push_back(id);
      continue;
    }
    const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (byte_fallback_ &&
        std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return id_of_byte(byte) != kNone; })) {
      for (const char byte : bytes) symbols.push_back(id_of_byte(byte));
      continue;
    }
    if (!has_unknown_) continue;
    if (unknown_id_ == kNone) {
      throw bad_input("character {} has no token, and the unknown token {} is not in the vocabulary",
                      quote_text(bytes), quote_text(unknown_name_));
    }
    if (unknown_waits && !fuse_unknown_) symbols.push_back(unknown_id_);
    unknown_waits = true;
  }
  if (unknown_waits) symbols.push_back(unknown_id_);
}

void MergeModel::merge_short(MergeMemory& memory) const {
  auto& symbols = memory.symbols_;
  auto& ranks = memory.ranks_;
  ranks.resize(symbols.size());
  const auto rank_at = [&](size_t i) {
    return i + 1 < symbols.size() ? rank_of(symbols[i], symbols[i + 1]) : kNone;
  };
  for (size_t i = 0; i < symbols.size(); ++i) ranks[i] = rank_at(i);
  for (;;) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNone) return;
    const auto i = best - ranks.begin();
    const auto at = static_cast<size_t>(i);
    symbols[at] = find_merge(symbols[at], symbols[at + 1])->id;
    symbols.erase(symbols.begin() + i + 1);
    ranks.erase(best + 1);
    ranks[at] = rank_at(at);
    if (at > 0) ranks[at - 1] = rank_at(at - 1);
  }
}

void MergeModel::merge_long(MergeMemory& memory) const {
  auto& symbols = memory.symbols_;
  auto& previous = memory.previous_;
  auto& next = memory.next_;
  auto& queue = memory.queue_;
  const auto count = static_cast<uint32_t>(symbols.size());
  previous.resize(count);
  next.resize(count);
  queue.clear();
  const auto entry = [&](uint32_t at) -> uint64_t {
    const uint32_t rank = next[at] == kNone ? kNone : rank_of(symbols[at], symbols[next[at]]);
    return uint64_t{rank} << 32 | at;
  };
  const auto is_merge = [](uint64_t key) { return key >> 32 != kNone; };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == count ? kNone : i + 1;
    if (const uint64_t key = entry(i); is_merge(key)) queue.push_back(key);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](uint32_t at) {
    if (const uint64_t key = entry(at); is_merge(key)) {
      queue.push_back(key);
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t key = queue.back();
    queue.pop_back();
    const auto at = static_cast<uint32_t>(key);
    // Out of date if the symbol has gone into its left neighbour, or the pair has another rank by now. (A
    // pair that has come to the same rank has the same key, and its turn.)
    if (symbols[at] == kNone || entry(at) != key) continue;
    const uint32_t right = next[at];
    symbols[at] = find_merge(symbols[at], symbols[right])->id;
    symbols[right] = kNone;
    next[at] = next[right];
    if (next[at] != kNone) previous[next[at]] = at;
    push(at);
    if (previous[at] != kNone) push(previous[at]);
  }
  std::erase(symbols, kNone);
}

}  // namespace kvcodec
