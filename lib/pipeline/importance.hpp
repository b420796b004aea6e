// How much the end of a document attends to each of its tokens, for codecs that code tokens of larger weight more finely
// (Codec::weighs_tokens).
//
// An error in a token's key or value reaches the outputs of queries in proportion to their attention to it, and its cost is the square of
// that. So a token's weight is the squared attention of the document's last queries to it, summed over layers and heads, over the mean of
// the document's tokens. The queries that follow attend to about the same tokens (SnapKV; see kObservedQueries). A token that none of the
// last ones attended to may still be asked for later: a floor is added.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/attention/score_forms.hpp"
#include "lib/core/view.hpp"
#include "lib/model/config.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

/// Sums over the layers of a document.
class TokenImportance {
 public:
  /// tokens: of the document.
  explicit TokenImportance(uint64_t tokens) : sums_(tokens) {}

  /// A layer's queries at the end of the document, and the keys that they meet.
  struct Layer {
    MatrixView<const float> queries;         ///< (query_tokens.size(), query heads * dims)
    std::span<const uint64_t> query_tokens;  ///< of the document, rising; the last kObservedQueries are used
    size_t heads = 0, dims = 0;              ///< of keys
    uint64_t first = 0;                      ///< the first token that the layer holds
    ScoreForm form = {};
    uint64_t window = 0;  ///< tokens that a query sees; 0: all
  };
  /// Writes the keys of tokens [first, first + rows.rows()), (n, heads * dims).
  using ReadKeys = std::function<void(uint64_t first, MatrixView<float> rows)>;
  /// Reads all keys of the layer twice, some at a time.
  void add(const Layer& layer, const ReadKeys& read);

  /// One for each token; 1 for all if no query attends to any.
  std::vector<float> weights() const;

 private:
  std::vector<double> sums_;
};

/// The weights of a prefix's tokens.
std::vector<float> token_weights(const Prefix& prefix, const ModelConfig& config, const ScoreForms& forms);

}  // namespace kvcodec
