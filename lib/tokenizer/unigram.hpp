// The most likely tokens of one piece of text after the other, by a unigram language model.
//
// A piece is cut so that the sum of its tokens' scores is largest (Viterbi's algorithm: for each place in the
// piece, the best way to get there). A character that is not a token by itself may also be unknown, at 10 below
// the worst score. Of equal sums the one whose last token is longest wins. Neighbouring unknown characters are
// one unknown token, or the bytes they are made of. All this as the reference does it, with the sums in its
// order, so that what differs by rounding only comes out the same.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/tokenizer/model.hpp"
#include "lib/tokenizer/trie.hpp"

namespace kvcodec {

class UnigramModel : public TokenModel {
 public:
  /// Takes vocabulary, unigram and byte_fallback of spec. Throws Error(bad_input) as Tokenizer's constructor
  /// does.
  explicit UnigramModel(const TokenizerSpec& spec);

  std::unique_ptr<ModelMemory> new_memory() const override;
  void encode(std::string_view piece, ModelMemory& memory, std::vector<uint32_t>& ids) const override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  class Memory;
  class Search;

  void add_scores(const TokenizerSpec& spec);
  void append_unknown(std::string_view text, std::vector<uint32_t>& ids) const;

  std::vector<double> scores_;  ///< by id
  double unknown_score_ = 0;
  uint32_t unknown_id_ = kNone;
  size_t longest_ = 0;                  ///< bytes of a token
  std::array<uint32_t, 256> byte_ids_;  ///< of the <0x..> tokens; kNone: no falling back on this byte
  StringTrie trie_;
};

}  // namespace kvcodec
