#include "cli/search/attention_judge.hpp"

#include <algorithm>

#include "formats/cache/score_forms.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/attention/selector.hpp"
#include "lib/codec/document_view.hpp"
#include "lib/core/checked.hpp"
#include "lib/pipeline/importance.hpp"

namespace kvcodec::cli {

LayerRows::LayerRows(const KvReader& kv, int layer, uint64_t first, uint64_t count) {
  const LayerShape shape = kv.model().layer_shape(layer);
  for (const Side side : kSides) {
    Matrix<float>& own = side == Side::key ? keys : values;
    own = Matrix<float>(count,
                        as_size(shape.heads) * as_size(side == Side::key ? shape.key_dim : shape.value_dim));
    kv.read(side, layer, first, own);
  }
}

StoredQueries::StoredQueries(const KvReader& kv, std::span<const uint64_t> rows, size_t document, size_t most)
    : begin_(kv.documents().offsets[document]) {
  const auto begin = std::ranges::lower_bound(rows, kv.documents().offsets[document]),
             end = std::ranges::lower_bound(rows, kv.documents().offsets[document + 1]);
  const auto there = static_cast<size_t>(end - begin), taken = std::min(most, there);
  for (size_t i = 0; i < taken; ++i) {
    const auto query = begin + static_cast<ptrdiff_t>((2 * i + 1) * there / (2 * taken));
    numbers_.push_back(static_cast<uint64_t>(query - rows.begin()));
    tokens_.push_back(*query);
  }
}

AttentionErrorSums StoredQueries::errors(const KvReader& kv, int layer, std::span<const uint64_t> tokens,
                                         const Rows& rows) const {
  const ModelInfo& model = kv.model();
  const LayerShape shape = model.layer_shape(layer);
  const ScoreForms forms = score_forms(model);
  const KeyRope rope = key_rope_of(model);
  if (tokens.empty()) return {};
  std::vector<uint64_t> numbers, from, visible;
  std::vector<uint64_t> asked, turned;  // places in the document, before and after queries are turned
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const uint64_t place = rope.known() ? std::min(tokens_[i], tokens.back() + 1) : tokens_[i];
    const auto seen = static_cast<uint64_t>(std::ranges::upper_bound(tokens, place) - tokens.begin());
    const uint64_t first = forms.first_seen(layer, tokens, place);
    if (first >= seen) continue;
    numbers.push_back(numbers_[i]), from.push_back(first), visible.push_back(seen);
    asked.push_back(tokens_[i] - begin_), turned.push_back(place - begin_);
  }
  if (numbers.empty()) return {};
  Matrix<float> queries(numbers.size(), as_size(model.num_q_heads) * as_size(shape.key_dim));
  for (size_t i = 0; i < numbers.size(); ++i) kv.read_queries(layer, numbers[i], queries.view().rows(i, 1));
  if (asked != turned) {
    rope.turn(TurnWay::back, {&layer, 1}, asked, queries);
    rope.turn(TurnWay::forward, {&layer, 1}, turned, queries);
  }
  AttentionErrorMeter meter(1, model.num_q_heads, 0);
  meter.add(0, {.keys = rows.keys,
                .values = rows.values,
                .other_keys = rows.other_keys,
                .other_values = rows.other_values,
                .queries = queries,
                .visible = visible,
                .heads = shape.heads,
                .from = from,
                .cap = forms.cap,
                .sinks = forms.of(layer).sinks});
  return meter.sums();
}

std::vector<float> token_weights(const KvReader& kv, std::span<const uint64_t> rows, size_t document) {
  const Documents& documents = kv.documents();
  const uint64_t first = documents.offsets[document], end = documents.offsets[document + 1];
  if (first == end) return {};
  const auto stop = std::ranges::lower_bound(rows, end);
  const auto last_queries = std::min<ptrdiff_t>(static_cast<ptrdiff_t>(kObservedQueries),
                                                stop - std::ranges::lower_bound(rows, first));
  if (last_queries == 0)
    throw usage_error(
        "{}: document '{}' has no queries that meet its keys, and the codec weighs tokens by them: dump it with --queries",
        kv.name(), documents.names[document]);
  std::vector<uint64_t> tokens(stop - last_queries, stop);
  for (uint64_t& token : tokens) token -= first;
  const ScoreForms forms = score_forms(kv.model());
  TokenImportance importance(end - first);
  for (const int layer : kv.layers()) {
    const LayerShape shape = kv.model().layer_shape(layer);
    Matrix<float> queries(tokens.size(), as_size(kv.model().num_q_heads) * as_size(shape.key_dim));
    kv.read_queries(layer, static_cast<uint64_t>(stop - last_queries - rows.begin()), queries);
    importance.add({.queries = queries,
                    .query_tokens = tokens,
                    .heads = as_size(shape.heads),
                    .dims = as_size(shape.key_dim),
                    .first = documents.left_out_of(layer, document),
                    .form = forms.of(layer),
                    .window = forms.window(layer)},
                   [&](uint64_t at, MatrixView<float> keys) { kv.read(Side::key, layer, first + at, keys); });
  }
  return importance.weights();
}

}  // namespace kvcodec::cli
