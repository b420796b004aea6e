// Tokens of a document that a layer with a window has left out (dump-kv --window-layers trim): queries may see the others.
#pragma once

#include <cstdint>

#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {

/// A document in codes, and the original keys and values in a kv file, each of which may lack its first tokens in layers with
/// windows. Tokens count from the first of the match. The files outlive this.
class HeldTokens {
 public:
  HeldTokens(const KvReader& kv, const CodesReader& codes, const Match& match)
      : kv_(kv), codes_(codes), match_(match) {}

  /// The first token that the codes hold in that layer, which is row 0 of their views.
  uint64_t first(int layer) const {
    return codes_.info().documents.left_out_of(layer, match_.other_document);
  }
  /// Throws Error(bad_input) if a query sees tokens, of [from, visible), that one of the files lacks, or if the codes hold none of
  /// those before `visible`. position: the query's, for the message.
  void check(int layer, uint64_t from, uint64_t visible, uint64_t position) const;
  /// Reads original rows of tokens [first, first + out.rows()): zeros for those that the kv file lacks, which no query sees.
  void read(Side side, int layer, uint64_t first, MatrixView<float> out) const;

 private:
  /// The first token of the match that the kv file holds; it may be behind the last.
  uint64_t first_original(int layer) const;

  const KvReader& kv_;
  const CodesReader& codes_;
  Match match_;
};

}  // namespace kvcodec::cli
