// Tokens of a document that a layer with a window has left out (dump-kv --window-layers trim): queries may see the others.
#pragma once

#include <algorithm>
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
  void check(int layer, uint64_t from, uint64_t visible, uint64_t position) const {
    const bool sees = from < visible, is_coded = std::min(from, visible - 1) >= first(layer);
    if (is_coded && (!sees || from >= first_original(layer))) return;
    const std::string& file = is_coded ? kv_.name() : codes_.name();
    throw bad_input(
        "{}: in layer {} document '{}' lacks its first {}, as windows of later tokens allow, and the query at position {} "
        "sees {}; dump queries of the last token alone (--queries last:1), or the cache with --window-layers keep, or choose "
        "other --layers",
        file, layer, codes_.info().documents.names[match_.other_document],
        counted(is_coded ? first_original(layer) : first(layer), "token"), position,
        sees ? fmt::format("tokens from {} on", from) : "none of the others");
  }
  /// Reads original rows of tokens [first, first + out.rows()): zeros for those that the kv file lacks, which no query sees.
  void read(Side side, int layer, uint64_t first, MatrixView<float> out) const {
    const uint64_t held = first_original(layer);
    const auto lacking = static_cast<size_t>(std::min<uint64_t>(held - std::min(held, first), out.rows()));
    for (size_t i = 0; i < lacking; ++i) std::ranges::fill(out.row(i), 0.0f);
    if (const size_t rest = out.rows() - lacking; rest > 0)
      kv_.read(side, layer, match_.original + first + lacking, out.rows(lacking, rest));
  }

 private:
  /// The first token of the match that the kv file holds; it may be behind the last.
  uint64_t first_original(int layer) const {
    const uint64_t before = match_.original - kv_.documents().offsets[match_.original_document],
                   held = kv_.documents().left_out_of(layer, match_.original_document);
    return held - std::min(held, before);
  }

  const KvReader& kv_;
  const CodesReader& codes_;
  Match match_;
};

}  // namespace kvcodec::cli
