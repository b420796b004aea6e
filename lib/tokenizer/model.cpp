#include "lib/tokenizer/model.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/error.hpp"

namespace kvcodec {

TokenList::TokenList(const std::vector<std::pair<std::string, uint32_t>>& tokens) {
  uint32_t size = 0;
  for (const auto& [token, id] : tokens) {
    if (id >= kMaxTokenIds)
      throw bad_input("token {} has id {}; ids must be below {}", quote_text(token), id, kMaxTokenIds);
    size = std::max(size, id + 1);
  }
  tokens_.resize(size);
  ids_.reserve(tokens.size());
  for (const auto& [token, id] : tokens) {
    if (tokens_[id])
      throw bad_input("tokens {} and {} both have id {}", quote_text(*tokens_[id]), quote_text(token), id);
    if (valid_utf8_prefix(token) != token.size()) throw bad_input("token {} is not UTF-8", quote_text(token));
    tokens_[id] = token;
    if (!ids_.emplace(*tokens_[id], id).second) throw bad_input("token {} is given twice", quote_text(token));
  }
}

bool StringTrie::add(std::string_view text, uint32_t value) {
  uint32_t node = kRoot;
  for (const char byte : text) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
    const auto [found, is_new] = edges_.try_emplace(edge, static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(kNone);
    node = found->second;
  }
  if (values_[node] != kNone) return false;
  values_[node] = value;
  return true;
}

void TokenModel::encode(std::string_view piece, PieceCache& cache, std::vector<uint32_t>& ids) const {
  if (piece.empty()) return;
  if (piece.size() > PieceCache::kMaxBytes) return encode_new(piece, cache, ids);
  if (cache.find(piece, ids)) return;
  const size_t before = ids.size();
  encode_new(piece, cache, ids);
  cache.note(piece, std::span(ids).subspan(before));
}

bool TokenModel::fall_back(std::string_view bytes, std::vector<uint32_t>& ids) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(bytes.begin(), bytes.end(), [&](char byte) { return id_of(byte) == kNone; })) return false;
  std::transform(bytes.begin(), bytes.end(), std::back_inserter(ids), id_of);
  return true;
}

namespace {

/// Byte-pair encoding.
class MergeModel final : public TokenModel {
 public:
  explicit MergeModel(const TokenizerSpec& spec)
      : TokenModel(spec), fuse_unknown_(spec.fuse_unknown), ignore_merges_(spec.ignore_merges) {
    all_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), kNone) == byte_ids_.end();
    unknown_name_ = spec.unknown_token;
    if (unknown_name_) unknown_id_ = tokens().id_of(*unknown_name_).value_or(kNone);
    if (!spec.merge_ranks.empty() && spec.merge_ranks.size() != spec.merges.size())
      throw bad_input("{} ranks for {} merges", spec.merge_ranks.size(), spec.merges.size());
    merges_.reserve(spec.merges.size());
    for (uint32_t i = 0; i < spec.merges.size(); ++i)
      add_merge(spec.merges[i].first, spec.merges[i].second, i,
                spec.merge_ranks.empty() ? i : spec.merge_ranks[i]);
  }

 private:
  struct Merge {
    uint32_t rank, id;  ///< id: of the token that it makes
  };

  void add_merge(const std::string& left, const std::string& right, uint32_t number, uint32_t rank) {
    const auto known = [&](const std::string& token, const char* what) {
      if (const auto id = tokens().id_of(token)) return *id;
      throw bad_input("merge {} of {} and {}: {} {} is not in the vocabulary", number, quote_text(left),
                      quote_text(right), what, quote_text(token));
    };
    const uint32_t left_id = known(left, "the part"), right_id = known(right, "the part");
    const std::string both = left + right;
    merges_[pair_of(left_id, right_id)] = {
        rank, known(both, "what they make,")};  // given twice, the later rank holds
    for_each_pair(both, [&](char32_t before, char32_t character, size_t) {
      const uint64_t hash = bridge_hash(before, character);
      bridges_[hash / 64] |= uint64_t{1} << hash % 64;
    });
    // Pieces are cut where no merge reaches across (encode_new). The spelling of byte tokens says nothing about the characters
    // that they stand for, so with merges of byte tokens there is no telling.
    const auto is_byte = [&](const std::string& token, uint32_t id) {
      return token.starts_with("<0x") && std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
    };
    if (is_byte(left, left_id) || is_byte(right, right_id)) can_cut_ = false;
  }

  static uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  /// Calls visit(left, right, at) for neighbouring characters, the second of which begins at byte `at`.
  template <class Visit>
  static void for_each_pair(std::string_view text, const Visit& visit) {
    char32_t before = 0;
    unsigned size;
    for (size_t at = 0; at < text.size(); at += size) {
      const char32_t character = decode_utf8(text.data() + at, size);
      if (at > 0) visit(before, character, at);
      before = character;
    }
  }

  static constexpr unsigned kBridgeBits = 20;  // 128 KiB; the largest vocabularies hold some 50,000 pairs
  static uint64_t bridge_hash(char32_t left, char32_t right) {
    constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio spreads keys over upper bits
    return pair_of(left, right) * kMultiplier >> (64 - kBridgeBits);
  }

  /// A piece can be as long as the text: SentencePiece models do not split at all. But a merge can only reach across two
  /// neighbouring characters if they stand side by side in what it makes. Where no merge has them so, the piece may be cut
  /// without changing the result; in text these are nearly all beginnings of words, and words are in the cache.
  void encode_new(std::string_view piece, PieceCache& cache, std::vector<uint32_t>& ids) const override {
    if (ignore_merges_)
      if (const auto id = tokens().id_of(piece)) return ids.push_back(*id);
    if (piece.size() <= PieceCache::kMaxBytes || !can_cut_) return merge(piece, ids);
    size_t begin = 0;
    const auto finish_part = [&](size_t end) {
      const std::string_view part = piece.substr(begin, end - begin);
      begin = end;
      // With ignore_merges the cache says what a whole piece becomes, not a part of one.
      part.size() > PieceCache::kMaxBytes || ignore_merges_ ? merge(part, ids) : encode(part, cache, ids);
    };
    // Characters that have no token may vanish, fuse or change places: no cut next to them.
    const auto is_known = [&](char32_t character) {
      std::string text;
      if (!all_bytes_) append_utf8(text, character);
      return all_bytes_ || tokens().id_of(text);
    };
    for_each_pair(piece, [&](char32_t before, char32_t character, size_t at) {
      const uint64_t hash = bridge_hash(before, character);
      const bool may_bridge = bridges_[hash / 64] >> hash % 64 & 1;
      if (!may_bridge && is_known(before) && is_known(character)) finish_part(at);
    });
    finish_part(piece.size());
  }

  /// Joins the piece's characters by a list of symbols and a heap of the merges that are possible.
  void merge(std::string_view piece, std::vector<uint32_t>& ids) const {
    if (piece.size() >= UINT32_MAX)
      throw bad_input("a piece of text of {} bytes without a split; at most 4 GiB", piece.size());
    std::vector<uint32_t> symbols = symbols_of(piece);
    const auto count = static_cast<uint32_t>(symbols.size());
    std::vector<uint32_t> previous(count), next(count);
    std::vector<uint64_t> heap;  // rank << 32 | position
    const auto merge_at = [&](uint32_t at) -> const Merge* {
      if (next[at] == kNone) return nullptr;
      const auto found = merges_.find(pair_of(symbols[at], symbols[next[at]]));
      return found == merges_.end() ? nullptr : &found->second;
    };
    const auto push = [&](uint32_t at) {
      const Merge* merge = merge_at(at);
      if (!merge) return;
      heap.push_back(pair_of(merge->rank, at));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    for (uint32_t i = 0; i < count; ++i) {
      previous[i] = i == 0 ? kNone : i - 1;
      next[i] = i + 1 == count ? kNone : i + 1;
      push(i);
    }
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const uint64_t key = heap.back();
      heap.pop_back();
      const auto at = static_cast<uint32_t>(key);
      // Out of date if the symbol has gone into its left neighbour, or the pair has another rank by now. (A pair that has come
      // to the same rank has the same key, and its turn.)
      const Merge* merge = symbols[at] == kNone ? nullptr : merge_at(at);
      if (!merge || pair_of(merge->rank, at) != key) continue;
      const uint32_t right = next[at];
      symbols[at] = merge->id;
      symbols[right] = kNone;
      next[at] = next[right];
      if (next[at] != kNone) previous[next[at]] = at;
      push(at);
      if (previous[at] != kNone) push(previous[at]);
    }
    std::erase(symbols, kNone);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }

  std::vector<uint32_t> symbols_of(std::string_view piece) const {
    std::vector<uint32_t> symbols;
    // An unknown token waits for the next character that has a token; bytes fallen back on overtake it. That is the
    // reference's order.
    bool unknown_waits = false;
    unsigned size;
    for (size_t at = 0; at < piece.size(); at += size) {
      decode_utf8(piece.data() + at, size);
      const std::string_view character = piece.substr(at, size);
      if (const auto id = tokens().id_of(character)) {
        if (std::exchange(unknown_waits, false)) symbols.push_back(unknown_id_);
        symbols.push_back(*id);
        continue;
      }
      if (fall_back(character, symbols) || !unknown_name_) continue;
      if (unknown_id_ == kNone)
        throw bad_input("character {} has no token, and the unknown token {} is not in the vocabulary",
                        quote_text(character), quote_text(*unknown_name_));
      if (unknown_waits && !fuse_unknown_) symbols.push_back(unknown_id_);
      unknown_waits = true;
    }
    if (unknown_waits) symbols.push_back(unknown_id_);
    return symbols;
  }

  std::unordered_map<uint64_t, Merge> merges_;  ///< by left id << 32 | right id
  /// Hashed set of pairs of neighbouring characters in what merges make.
  std::vector<uint64_t> bridges_ = std::vector<uint64_t>((size_t{1} << kBridgeBits) / 64);
  std::optional<std::string> unknown_name_;
  uint32_t unknown_id_ = kNone;
  bool fuse_unknown_, ignore_merges_, all_bytes_ = false, can_cut_ = true;
};

/// The most likely tokens. A piece is cut so that the sum of its tokens' scores is largest (Viterbi's algorithm: for each place in
/// the piece, the best way to get there). A character that is not a token by itself may also be unknown, at 10 below the worst
/// score. Of equal sums the one whose last token is longest wins. Neighbouring unknown characters are one unknown token, or the
/// bytes they are made of. All this as the reference does it, with the sums in its order, so that what differs by rounding only
/// comes out the same.
class UnigramModel final : public TokenModel {
 public:
  explicit UnigramModel(const TokenizerSpec& spec) : TokenModel(spec), scores_(tokens().size()) {
    constexpr size_t kMaxTokenBytes = 1024;  // how far each place in a text may look ahead; SentencePiece: 64
    const std::vector<double>& scores = spec.unigram->scores;
    if (spec.vocabulary.empty()) throw bad_input("a unigram model without tokens");
    if (scores.size() != spec.vocabulary.size())
      throw bad_input("{} scores for {} tokens", scores.size(), spec.vocabulary.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto& [token, id] = spec.vocabulary[i];
      if (token.size() > kMaxTokenBytes)
        throw bad_input("token {} has {} bytes; at most {} in a unigram model", quote_text(token),
                        token.size(), kMaxTokenBytes);
      if (!std::isfinite(scores[i]))
        throw bad_input("the score of {} is {}; expected a finite number", quote_text(token), scores[i]);
      scores_[id] = scores[i];
      longest_ = std::max(longest_, token.size());
      if (!token.empty()) trie_.add(token, id);
    }
    constexpr double kUnknownPenalty = 10;
    unknown_score_ = *std::min_element(scores.begin(), scores.end()) - kUnknownPenalty;
    unknown_id_ = spec.unigram->unknown_id.value_or(kNone);
    if (spec.unigram->unknown_id && !tokens().token_of(unknown_id_))
      throw bad_input("the unknown token has id {}, which is not a token's (ids below {})", unknown_id_,
                      tokens().size());
  }

 private:
  /// The best way to a place in the piece: what the tokens up to there sum to, and the last of them.
  struct Way {
    double score = 0;
    uint32_t token_size = 0;  ///< bytes; 0: no way known yet
    uint32_t id = kNone;
  };

  void encode_new(std::string_view piece, PieceCache&, std::vector<uint32_t>& ids) const override {
    std::vector<Way> ways(piece.size() + 1), path;
    for (size_t at = 0; at < piece.size();) at += pass(piece, at, ways);
    for (size_t at = piece.size(); at > 0; at -= path.back().token_size) path.push_back(ways[at]);
    size_t known = 0, at = 0;  // between them stand unknown characters
    const auto finish_unknown = [&] {
      if (known < at) append_unknown(piece.substr(known, at - known), ids);
    };
    for (auto way = path.rbegin(); way != path.rend(); at += way++->token_size) {
      if (way->id == unknown_id_) continue;
      finish_unknown();
      ids.push_back(way->id);
      known = at + way->token_size;
    }
    finish_unknown();
  }

  /// Extends the best way to `at` by all that may follow, and returns the size of the character there.
  size_t pass(std::string_view piece, size_t at, std::vector<Way>& ways) const {
    const auto offer = [&](size_t size, double score, uint32_t id) {
      Way& way = ways[at + size];
      if (way.token_size != 0 && !(score > way.score)) return;
      if (id == kNone)
        throw bad_input("character {} has no token, and the unigram model has no unknown token (\"unk_id\")",
                        quote_text(piece.substr(at, size)));
      way = {score, static_cast<uint32_t>(size), id};
    };
    unsigned size;
    decode_utf8(piece.data() + at, size);
    bool is_token = false;
    uint32_t node = StringTrie::kRoot;
    for (size_t end = at; end < piece.size();) {
      node = trie_.next(node, piece[end++]);
      if (node == StringTrie::kNone) break;
      const uint32_t id = trie_.value(node);
      if (id == StringTrie::kNone) continue;
      is_token = is_token || end - at == size;
      offer(end - at, scores_[id] + ways[at].score, id);
    }
    if (!is_token) offer(size, unknown_score_ + ways[at].score, unknown_id_);
    return size;
  }

  /// Unknown characters in a row may spell a token after all, one that costs more than they do. (With scores above zero; or
  /// the unknown token as it is spelled.)
  void append_unknown(std::string_view text, std::vector<uint32_t>& ids) const {
    const auto token = text.size() <= longest_ ? tokens().id_of(text) : std::nullopt;
    if (token || !fall_back(text, ids)) ids.push_back(token.value_or(unknown_id_));
  }

  std::vector<double> scores_;  ///< by id
  double unknown_score_ = 0;
  uint32_t unknown_id_ = kNone;
  size_t longest_ = 0;  ///< bytes of a token
  StringTrie trie_;
};

}  // namespace

std::unique_ptr<TokenModel> make_token_model(const TokenizerSpec& spec) {
  if (spec.unigram) return std::make_unique<UnigramModel>(spec);
  return std::make_unique<MergeModel>(spec);
}

}  // namespace kvcodec
