// Errors of attention that errors of keys and values cause, measured with queries that the cache holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/cache/kv_file.hpp"
#include "lib/metrics/reconstruction.hpp"

namespace kvcodec::cli {

/// Keys and values of a document's tokens in one layer, in the form in which its queries use them.
struct LayerRows {
  LayerRows(const KvReader& kv, int layer, uint64_t first, uint64_t count);
  /// Puts other rows of a side in place of its own: (count, heads * stored_dim). Values that lie in keys follow these.
  void replace(const LayerShape& shape, Side side, MatrixView<const float> rows) {
    Matrix<float>& own = side == Side::key ? keys : values;
    own = Matrix<float>(rows.rows(), rows.cols());
    for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), own.row(i).begin());
    if (side == Side::key && shape.values_in_keys) copy_values(rows, as_size(shape.heads), values);
  }

  Matrix<float> keys, values;
};

/// Some of the queries that a kv file holds of one document.
class StoredQueries {
 public:
  /// The rows of the file that have queries, rising. None if a layer has no queries, or if the keys are not what queries are multiplied
  /// with.
  static std::vector<uint64_t> rows_in(const KvReader& kv) {
    if (kv.query_tokens() == 0 || kv.query_layers() != kv.layers() || kv.model().key_state != "post-rope")
      return {};
    return kv.query_token_rows(0, kv.query_tokens());
  }
  /// At most `most` of the document's queries, at even distances. rows: of rows_in(), which reads those of all documents.
  StoredQueries(const KvReader& kv, std::span<const uint64_t> rows, size_t document, size_t most);

  bool empty() const { return tokens_.empty(); }

  /// Keys and values of some tokens, original and decoded.
  struct Rows {
    MatrixView<const float> keys, values, other_keys, other_values;
  };
  /// Errors of attention to these tokens of the document in a layer, which rise: each query sees those up to its own. It is as if
  /// there were no others: to judge the beginning of a document, queries from behind it are turned to where they would follow it, since from
  /// far away they attend to its first tokens more than a text's queries do. tokens: rows of the file.
  AttentionErrorSums errors(const KvReader& kv, int layer, std::span<const uint64_t> tokens,
                            const Rows& rows) const;

 private:
  uint64_t begin_;                          // the document's first row of the file
  std::vector<uint64_t> numbers_, tokens_;  // their places among all queries; their rows of the file
};

/// Weights of a document's tokens by its last queries (lib/pipeline/importance.hpp). rows: StoredQueries::rows_in(). Throws Error(usage) if
/// it has no queries.
std::vector<float> token_weights(const KvReader& kv, std::span<const uint64_t> rows, size_t document);

}  // namespace kvcodec::cli
