// The streams of one document of the codec `sparse`, opened to read (lib/sparse/codec/streams.hpp).
#pragma once

#include <cstdint>

#include "lib/codec/places.hpp"
#include "lib/codec/stream.hpp"
#include "lib/sparse/codec/streams.hpp"

namespace kvcodec {

/// Threads may read at once.
class SparseReader {
 public:
  /// document outlives this.
  SparseReader(const SparseForm& form, const StreamReader& document);

  /// Looks at the streams, for the first time or when there are more tokens. Throws Error(bad_input) if they
  /// disagree. Not while others read.
  void refresh();
  uint64_t tokens() const { return tokens_; }

  /// Codes of tokens [first, first + count). Throws Error(bad_input) if they are not all there or are of no
  /// encoder; ids are below `atoms`. Room is made for no more than the streams can hold.
  SparsePairs read(uint64_t first, uint64_t count) const;

 private:
  struct Nothing {};

  uint64_t stored_tokens() const;
  void read_plain(uint64_t first, uint64_t count, SparsePairs& pairs) const;
  void read_sorted(uint64_t first, uint64_t count, SparsePairs& pairs) const;
  uint64_t first_pair(uint64_t token) const;
  void check_pairs_of(uint64_t first, uint64_t first_pair, const std::vector<uint32_t>& counts) const;
  const Interval<Nothing>& blocks_from(uint64_t block) const;

  SparseForm form_;
  const StreamReader& document_;
  uint64_t tokens_ = 0;
  Places<Nothing> places_;
};

}  // namespace kvcodec
