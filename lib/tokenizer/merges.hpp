// Byte-pair encoding of one piece of text after the other.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizer/model.hpp"

namespace kvcodec {

/// Of one piece in work.
class MergeMemory : public ModelMemory {
 private:
  friend class MergeModel;
  std::vector<uint32_t> symbols_;          ///< ids of the piece
  std::vector<uint32_t> ranks_;            ///< short pieces: of the merge of each symbol with the next
  std::vector<uint32_t> previous_, next_;  ///< long pieces: neighbours in the list of symbols
  std::vector<uint64_t> queue_;            ///< long pieces: heap of rank << 32 | position
};

class MergeModel : public TokenModel {
 public:
  /// Takes vocabulary, merges and flags of spec. Throws Error(bad_input) as Tokenizer's constructor does.
  explicit MergeModel(const TokenizerSpec& spec);

  std::unique_ptr<ModelMemory> new_memory() const override;
  void encode(std::string_view piece, ModelMemory& memory, std::vector<uint32_t>& ids) const override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Merge {
    uint64_t pair = 0;  ///< left id << 32 | right id
    uint32_t rank = kNone;
    uint32_t id = kNone;  ///< of the token it makes; kNone = free slot
  };

  void add_tokens(const TokenizerSpec& spec);
  void add_merges(const TokenizerSpec& spec);
  void insert_merge(Merge merge);
  const Merge* find_merge(uint32_t left, uint32_t right) const;
  uint32_t rank_of(uint32_t left, uint32_t right) const;
  uint32_t id_of_character(char32_t character) const;
  void note_bridges(std::string_view token);
  bool may_bridge(char32_t left, char32_t right) const;

  void encode_cached(std::string_view piece, MergeMemory& memory, std::vector<uint32_t>& ids) const;
  void encode_long(std::string_view piece, MergeMemory& memory, std::vector<uint32_t>& ids) const;
  void merge(std::string_view piece, MergeMemory& memory) const;
  void to_symbols(std::string_view piece, std::vector<uint32_t>& symbols) const;
  void merge_short(MergeMemory& memory) const;
  void merge_long(MergeMemory& memory) const;

  std::vector<uint32_t> character_pages_;  ///< by character >> 8: index of its page in character_ids_
  std::vector<std::array<uint32_t, 256>> character_ids_;  ///< id of the token that is this one character
  std::array<uint32_t, 256> byte_ids_;                    ///< of the <0x..> tokens
  std::vector<Merge> merges_;                             ///< open addressing, a power of two of slots
  unsigned merges_shift_ = 64;
  std::vector<uint64_t> bridges_;  ///< hashed set of character pairs that some merge's product holds
  std::string unknown_name_;
  uint32_t unknown_id_ = kNone;
  bool has_unknown_ = false, fuse_unknown_ = false, byte_fallback_ = false, all_bytes_ = false,
       ignore_merges_ = false;
  bool can_cut_ = true;
};

}  // namespace kvcodec
