#include "lib/tokenizer/unigram.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr size_t kMostTokenBytes = 1024;  // each place in a text may look this far ahead; SentencePiece: 64
constexpr size_t kMostBytes = size_t{1} << 30;

// Every token as it may stand in text. Throws for those that would make the search endless.
StringTrie trie_of(const TokenizerSpec& spec) {
  std::vector<std::pair<std::string_view, uint32_t>> strings;
  strings.reserve(spec.vocabulary.size());
  size_t bytes = 0;
  for (const auto& [token, id] : spec.vocabulary) {
    if (token.size() > kMostTokenBytes) {
      throw bad_input("token {} has {} bytes; at most {} in a unigram model", quote_text(token), token.size(),
                      kMostTokenBytes);
    }
    bytes += token.size();
    if (!token.empty()) strings.emplace_back(token, id);
  }
  if (bytes > kMostBytes)
    throw bad_input("the tokens have {} bytes together; at most {} in a unigram model", bytes, kMostBytes);
  return StringTrie(std::move(strings));
}

}  // namespace

class UnigramModel::Memory : public ModelMemory {
 public:
  /// The best way to a place in the piece: what the tokens up to there sum to, and the last of them.
  struct Way {
    double score = 0;
    uint32_t token_size = 0;  ///< bytes; 0: no way known yet
    uint32_t id = kNone;
  };
  std::vector<Way> ways;      ///< by place, from the beginning of the part in work
  std::vector<Way> path;      ///< the best way's tokens, last first
  std::vector<uint32_t> ids;  ///< of the piece, for the cache
};

// Goes through one piece, in parts: where no token reaches across a place, every way leads through it, and
// what lies before can be decided.
class UnigramModel::Search {
 public:
  Search(const UnigramModel& model, std::string_view piece, Memory& memory, std::vector<uint32_t>& ids)
      : model_(model), piece_(piece), ways_(memory.ways), path_(memory.path), ids_(ids) {}

  void run() {
    ways_.assign(1, {});
    for (size_t at = 0; at < piece_.size();) {
      constexpr size_t kShortPart = 256;  // deciding at every such place would cost more than it saves
      if (reached_ == at && at - part_ >= kShortPart) finish_part();
      at += pass(at);
    }
    finish_part();
    finish_unknown(piece_.size());
  }

 private:
  // Extends the best way to `at` by all that may follow, and returns the size of the character there.
  size_t pass(size_t at) {
    unsigned size;
    decode_utf8(piece_.data() + at, size);
    const size_t most = std::min(model_.longest_, piece_.size() - at);
    ways_.resize(std::max(ways_.size(), at - part_ + std::max<size_t>(most, size) + 1));
    const double score = ways_[at - part_].score;
    bool is_token = false;
    uint32_t node = StringTrie::kRoot;
    for (size_t i = 0; i < most; ++i) {
      node = model_.trie_.next(node, static_cast<unsigned char>(piece_[at + i]));
      if (node == StringTrie::kNone) break;
      const uint32_t id = model_.trie_.value(node);
      if (id == StringTrie::kNone) continue;
      is_token = is_token || i + 1 == size;
      offer(at, i + 1, model_.scores_[id] + score, id);
    }
    if (!is_token) offer(at, size, model_.unknown_score_ + score, model_.unknown_id_);
    return size;
  }

  void offer(size_t at, size_t size, double score, uint32_t id) {
    Memory::Way& way = ways_[at - part_ + size];
    if (way.token_size != 0 && !(score > way.score)) return;
    if (id == kNone) {
      throw bad_input("character {} has no token, and the unigram model has no unknown token (\"unk_id\")",
                      quote_text(piece_.substr(at, size)));
    }
    way = {score, static_cast<uint32_t>(size), id};
    reached_ = std::max(reached_, at + size);
  }

  // Decides between part_ and reached_, and begins the next part there.
  void finish_part() {
    path_.clear();
    for (size_t at = reached_; at > part_; at -= path_.back().token_size) path_.push_back(ways_[at - part_]);
    size_t at = part_;
    for (auto step = path_.rbegin(); step != path_.rend(); ++step) {
      if (step->id == model_.unknown_id_) {
        if (unknown_ == kKnown) unknown_ = at;
      } else {
        finish_unknown(at);
        ids_.push_back(step->id);
      }
      at += step->token_size;
    }
    const double score = ways_[reached_ - part_].score;  // sums go on, as they round otherwise from zero
    part_ = reached_;
    ways_.assign(1, {});
    ways_[0].score = score;
  }

  void finish_unknown(size_t end) {
    if (unknown_ != kKnown) model_.append_unknown(piece_.substr(unknown_, end - unknown_), ids_);
    unknown_ = kKnown;
  }

  static constexpr size_t kKnown = SIZE_MAX;

  const UnigramModel& model_;
  std::string_view piece_;
  std::vector<Memory::Way>&ways_, &path_;
  std::vector<uint32_t>& ids_;
  size_t part_ = 0;          ///< where the part in work begins
  size_t reached_ = 0;       ///< the furthest place that a way leads to
  size_t unknown_ = kKnown;  ///< where the unknown characters begin that have not become tokens yet
};

UnigramModel::UnigramModel(const TokenizerSpec& spec) : TokenModel(spec), trie_(trie_of(spec)) {
  add_scores(spec);
  for (const auto& [token, id] : spec.vocabulary) longest_ = std::max(longest_, token.size());
  for (unsigned byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = spec.byte_fallback ? tokens().id_of(byte_token(byte)).value_or(kNone) : kNone;
}

void UnigramModel::add_scores(const TokenizerSpec& spec) {
  const std::vector<double>& scores = spec.unigram->scores;
  if (spec.vocabulary.empty()) throw bad_input("a unigram model without tokens");
  if (scores.size() != spec.vocabulary.size())
    throw bad_input("{} scores for {} tokens", scores.size(), spec.vocabulary.size());
  scores_.resize(tokens().size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto& entry = spec.vocabulary[i];
    if (!std::isfinite(scores[i]))
      throw bad_input("the score of {} is {}; expected a finite number", quote_text(entry.first), scores[i]);
    scores_[entry.second] = scores[i];
  }
  unknown_score_ = *std::min_element(scores.begin(), scores.end()) - kUnknownPenalty;
  if (!spec.unigram->unknown_id) return;
  unknown_id_ = *spec.unigram->unknown_id;
  if (!tokens().token_of(unknown_id_)) {
    throw bad_input("the unknown token has id {}, which is not a token's (ids below {})", unknown_id_,
                    tokens().size());
  }
}

// Unknown characters in a row may spell a token after all, one that costs more than they do. (With scores
// above zero; or the unknown token as it is spelled.)
void UnigramModel::append_unknown(std::string_view text, std::vector<uint32_t>& ids) const {
  if (text.size() <= longest_) {
    if (const auto id = tokens().id_of(text)) return ids.push_back(*id);
  }
  const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(text.begin(), text.end(), [&](char byte) { return id_of_byte(byte) == kNone; }))
    return ids.push_back(unknown_id_);
  for (const char byte : text) ids.push_back(id_of_byte(byte));
}

std::unique_ptr<ModelMemory> UnigramModel::new_memory() const { return std::make_unique<Memory>(); }

void UnigramModel::encode(std::string_view piece, ModelMemory& memory, std::vector<uint32_t>& ids) const {
  if (piece.empty()) return;
  auto& own = static_cast<Memory&>(memory);
  if (piece.size() > PieceCache::kLongest) return Search(*this, piece, own, ids).run();
  if (own.cache.find(piece, ids)) return;
  own.ids.clear();
  Search(*this, piece, own, own.ids).run();
  own.cache.note(piece, own.ids);
  ids.insert(ids.end(), own.ids.begin(), own.ids.end());
}

}  // namespace kvcodec
