#include "lib/pipeline/importance.hpp"

#include <algorithm>
#include <numeric>

#include "lib/attention/selector.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {

constexpr double kFloor = 0.05;
/// Keys that are read at a time: a few megabytes, as are their scores.
constexpr uint64_t kKeysTogether = 1024;

void TokenImportance::add(const Layer& layer, const ReadKeys& read) {
  const size_t used = std::min(kObservedQueries, layer.query_tokens.size()),
               skipped = layer.query_tokens.size() - used, width = layer.heads * layer.dims;
  if (used == 0 || width == 0) return;
  const size_t group = layer.queries.cols() / width;
  std::vector<AttentionSums> sums;
  for (size_t head = 0; head < layer.heads; ++head) {
    sums.push_back(AttentionSums::of_head(layer.queries.rows(skipped, used),
                                          layer.query_tokens.subspan(skipped), head, group, layer.dims));
    sums.back().set_form(layer.form.of_heads(head * group, group), layer.window);
    sums.back().sum_squares();
  }
  for (const bool second : {false, true})
    for (uint64_t first = layer.first; first < sums_.size(); first += kKeysTogether) {
      Matrix<float> keys(std::min(kKeysTogether, sums_.size() - first), width);
      read(first, keys);
      parallel_each(layer.heads, 1, [&](size_t head) {
        const auto own = keys.view().columns(head * layer.dims, layer.dims);
        second ? sums[head].second_pass(first, own) : sums[head].first_pass(first, own);
      });
    }
  for (const AttentionSums& head : sums)
    std::ranges::transform(sums_, head.weights(), sums_.begin(), std::plus());
}

std::vector<float> TokenImportance::weights() const {
  const double mean = std::accumulate(sums_.begin(), sums_.end(), 0.0) /
                      static_cast<double>(std::max<size_t>(sums_.size(), 1));
  std::vector<float> weights(sums_.size(), 1);
  for (size_t t = 0; t < weights.size() && mean > 0; ++t)
    weights[t] = static_cast<float>(sums_[t] / mean + kFloor);
  return weights;
}

std::vector<float> token_weights(const Prefix& prefix, const ModelConfig& config, const ScoreForms& forms) {
  TokenImportance importance(prefix.rows.keys.front().rows());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const Matrix<float>& keys = prefix.rows.keys[as_size(layer)];
    if (keys.cols() == 0) continue;
    importance.add({.queries = prefix.queries[as_size(layer)],
                    .query_tokens = prefix.query_tokens,
                    .heads = as_size(config.num_kv_heads),
                    .dims = as_size(config.head_dim),
                    .form = forms.of(layer),
                    .window = forms.window(layer)},
                   [&](uint64_t first, MatrixView<float> rows) {
                     std::copy_n(keys.row(first).data(), rows.rows() * rows.cols(), rows.data());
                   });
  }
  return importance.weights();
}

}  // namespace kvcodec
