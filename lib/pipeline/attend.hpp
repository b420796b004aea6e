// Causal attention over keys and values from any source that can multiply with them: a codec's streams,
// multiplied without decoding or decoded first, or rows of floats.
//
// The softmax is computed online, block of tokens by block (Milakov and Gimelshein 2018), so that memory grows neither with the document
// nor with its queries. The number of threads does not change the result. Its last bits depend on the number of queries of a call, for
// which all callers use attention_batch(), and on the instruction set if those of the codec's products do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/attention/attention.hpp"
#include "lib/codec/document_view.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Keys and values of one layer group of one document, as attention needs them: the products of
/// DocumentView::multiply, with their shapes.
struct AttentionSource {
  std::function<void(Side side, uint64_t first, MatrixView<const float> factors, MatrixView<float> out)>
      multiply;

  /// Keys and values multiplied by the codec: without decoding, if it can. The views outlive this.
  static AttentionSource of_codes(const DocumentView& keys, const DocumentView& values) {
    return {[&](Side side, uint64_t first, MatrixView<const float> factors, MatrixView<float> out) {
      (side == Side::key ? keys : values).multiply(first, factors, out);
    }};
  }
  /// Rows of floats, read piece by piece. read: fills rows (n, heads * dimensions) with tokens [first, first + n) of that side. keys:
  /// their shape; value_dim: of a head's value, 0: as many as of its key.
  using Read = std::function<void(Side side, uint64_t first, MatrixView<float> rows)>;
  static AttentionSource of_rows(const GroupShape& keys, Read read, int value_dim = 0);
  /// Keys and values decoded first, which every codec can do: the reference for products without decoding.
  static AttentionSource of_decoded(const DocumentView& keys, const DocumentView& values);
};

/// Queries of one document, of all layers of a group.
struct CausalQueries {
  int q_heads = 0;                    ///< per layer, a multiple of the group's heads
  MatrixView<const float> rows;       ///< (n, layers * q_heads * head_dim)
  std::span<const uint64_t> visible;  ///< first tokens of the document that each query sees, at least 1
  /// The first token that each query sees in layers with windows, up to visible; (layers, n) or empty.
  std::span<const uint64_t> from = {};
  ScoreForm form = {};  ///< sinks: of all layers' query heads, or empty

  uint64_t from_of(size_t layer, size_t query) const {
    return from.empty() ? 0 : from[layer * visible.size() + query];
  }
};

/// out = softmax(q k^T / sqrt(head_dim)) v, for each query over the tokens it sees, with what `form` makes of scores. out: like
/// queries.rows, with dimensions of values. Query head h of a layer uses key/value head h / (q_heads / heads). Zeros where a window shows none. Throws Error(failed) for
/// shapes that do not fit and for queries that see nothing, and the source's errors.
void attend_causally(const GroupShape& group, const AttentionSource& source, const CausalQueries& queries,
                     MatrixView<float> out);

/// The same by a device, of any codec: all tokens that the queries see are decoded first, which takes
/// 2 * tokens * group.width() floats. The results differ by rounding. False:
/// the device did not do it, and `out` is undefined; the caller does it.
bool attend_decoded(const AttendFunction& on_device, const DocumentView& keys, const DocumentView& values,
                    const CausalQueries& queries, MatrixView<float> out);

/// Queries of one document, of all layers of a group, and the tokens that each attends to.
struct ChosenQueries {
  int q_heads = 0;               ///< per layer, a multiple of the group's heads
  MatrixView<const float> rows;  ///< (n, layers * q_heads * head_dim)
  size_t selections = 0;         ///< per query and layer: the group's heads, or q_heads
  /// (n, layers * selections), row by row; each rises. Query head h of a layer has selection h / (q_heads / selections).
  std::span<const std::vector<uint32_t>> tokens;
  ScoreForm form = {};  ///< sinks: of all layers' query heads, or empty
};

/// out = softmax(q k^T / sqrt(head_dim)) v of every query head over its tokens; zeros where it has none. This is the purpose of selections
/// (ClusterKV; Self-Indexing KVCache): only the chosen tokens are fetched and decoded. out: as of attend_causally. Decodes each token of any
/// of the queries once. The number of threads does not change the result; the SIMD level changes it only where it changes the decoded
/// values. Throws Error(failed) for shapes that do not fit. on_device: attends in place of the CPU, with results that differ by rounding;
/// may be empty.
void attend_chosen(const DocumentView& keys, const DocumentView& values, const ChosenQueries& queries,
                   MatrixView<float> out, const AttendFunction& on_device = nullptr);

/// Number of queries for one call of attend_chosen: they share decoded tokens, and memory holds the tokens of all of them.
inline constexpr size_t kChosenBatch = 32;

/// Number of queries to ask at a time: enough to make the cost of decoding or reading a block of tokens
/// vanish beside the products with it, and few enough for 16 MiB of scores.
size_t attention_batch(const GroupShape& group, int q_heads);

/// Bytes that attend_causally and its source take for such a batch, the queries and their results included.
/// codec_scratch: Codec::scratch_bytes_per_row, or 0 for rows.
uint64_t attention_bytes(const GroupShape& group, int q_heads, size_t codec_scratch);

}  // namespace kvcodec
