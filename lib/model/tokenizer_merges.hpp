// Byte-pair encoding of one piece of text after the other: the merges, and a cache of pieces already seen.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/model/tokenizer.hpp"

namespace kvcodec {

/// What encoding needs beside the model; one per thread and model. Holds the cache.
class MergeMemory {
 public:
  MergeMemory();

 private:
  friend class MergeModel;
  /// Where a cached piece lies in the two arenas. A slot is overwritten by the next piece of the same hash;
  /// when an arena is full, everything is dropped.
  struct Slot {
    uint32_t text_begin = 0, ids_begin = 0;
    uint16_t text_size = 0;  ///< 0 = free
    uint16_t num_ids = 0;
    uint32_t tag = 0;  ///< more bits of the hash
  };
  std::vector<Slot> slots_;
  std::string cached_text_;
  std::vector<uint32_t> cached_ids_;

  std::vector<uint32_t> symbols_;          ///< ids of the piece in work
  std::vector<uint32_t> ranks_;            ///< short pieces: of the merge of each symbol with the next
  std::vector<uint32_t> previous_, next_;  ///< long pieces: neighbours in the list of symbols
  std::vector<uint64_t> queue_;            ///< long pieces: heap of rank << 32 | position
};

/// Immutable after construction; any number of threads may encode at the same time.
class MergeModel {
 public:
  /// Takes vocabulary, merges and flags of spec. Throws Error(bad_input) as Tokenizer's constructor does.
  explicit MergeModel(const TokenizerSpec& spec);

  /// Appends the ids of a piece, well-formed UTF-8, to ids.
  void encode(std::string_view piece, MergeMemory& memory, std::vector<uint32_t>& ids) const;

  std::optional<uint32_t> id_of(std::string_view token) const;
  std::optional<std::string_view> token_of(uint32_t id) const;
  uint32_t vocabulary_size() const { return static_cast<uint32_t>(tokens_.size()); }  ///< largest id + 1

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

  std::vector<std::string> tokens_;                     ///< by id
  std::vector<bool> used_;                              ///< by id: not a hole
  std::unordered_map<std::string_view, uint32_t> ids_;  ///< into tokens_
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
