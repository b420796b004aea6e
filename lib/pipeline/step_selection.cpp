#include "lib/pipeline/step_selection.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "lib/attention/attention.hpp"
#include "lib/attention/cluster_selector.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/engine/engine.hpp"
#include "lib/pipeline/selection.hpp"
#include "lib/signvq/sign_codes.hpp"

namespace kvcodec {
namespace {

Matrix<uint8_t> codes_of(const Matrix<float>& centred) {
  Matrix<uint8_t> codes(centred.rows(), sign_row_bytes(centred.cols()));
  encode_signs(centred, 1, codes);
  return codes;
}

/// What sign codes of a head stand on; both stay what they are after the prefix, as in the paper.
struct SignFit {
  std::vector<float> center;
  SignCodebook codebook;

  /// first: the keys that the document began with.
  explicit SignFit(MatrixView<const float> first) : center(first.cols()) {
    std::vector<double> sums(first.cols());
    for (size_t t = 0; t < first.rows(); ++t)
      for (size_t c = 0; c < sums.size(); ++c) sums[c] += static_cast<double>(first(t, c));
    for (size_t c = 0; c < sums.size() && first.rows() > 0; ++c)
      center[c] = static_cast<float>(sums[c] / static_cast<double>(first.rows()));
    const Matrix<float> rows = centred(first);
    codebook = build_codebooks(rows, codes_of(rows), 1).front();
  }

  Matrix<float> centred(MatrixView<const float> keys) const {
    Matrix<float> rows(keys.rows(), keys.cols());
    for (size_t t = 0; t < rows.rows(); ++t)
      for (size_t c = 0; c < rows.cols(); ++c) rows(t, c) = keys(t, c) - center[c];
    return rows;
  }
};

/// Choices that are made together, about: the tokens of all of them are held until they are attended to.
constexpr size_t kMostTogether = 256;

/// The keys themselves, which lie behind each other where they are.
class GrowingOracle final : public GrowingSelector {
 public:
  explicit GrowingOracle(MatrixView<const float> all) : all_(all) {}
  void append(MatrixView<const float> keys) override { tokens_ += keys.rows(); }
  size_t tokens() const override { return tokens_; }
  size_t dims() const override { return all_.cols(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    const MatrixView<const float> seen = all_.rows(0, tokens_);
    dot_products(queries, CacheRows(seen, seen), out);
  }

 private:
  MatrixView<const float> all_;
  size_t tokens_ = 0;
};

class GrowingSigns final : public GrowingSelector {
 public:
  explicit GrowingSigns(const SignFit& fit) : fit_(fit), index_(fit.center.size()) {}
  void append(MatrixView<const float> keys) override { index_.append(codes_of(fit_.centred(keys))); }
  size_t tokens() const override { return index_.tokens(); }
  size_t dims() const override { return index_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    SignSelector(fit_.codebook, index_).scores(queries, out);
  }

 private:
  const SignFit& fit_;
  SignIndex index_;
};

/// ClusterKV: tokens score as the centroids of their clusters. The prompt is what the document began with;
/// the first tokens, and those that wait for a batch to be full, are always kept.
class GrowingClusters final : public GrowingSelector {
 public:
  /// index: the clusters there are, or an empty one; those of the tokens that are appended are added to it.
  GrowingClusters(MatrixView<const float> all, size_t past, uint64_t stream, ClusterIndex& index,
                  Engine* engine)
      : all_(all), past_(past), stream_(stream), engine_(engine), index_(index) {}
  void append(MatrixView<const float> keys) override {
    tokens_ += keys.rows();
    if (tokens_ < past_) return;
    const auto ends = next_batches(index_.end(), tokens_, past_, options_);
    if (ends.empty()) return;
    const ClusterTask task{.index = &index_,
                           .keys = all_.rows(index_.end(), ends.back() - index_.end()),
                           .ends = ends,
                           .stream = stream_};
    (void)add_batches({&task, 1}, options_, kSeed, {}, engine_ ? engine_->kmeans() : KmeansFunction());
  }
  size_t tokens() const override { return tokens_; }
  size_t dims() const override { return all_.cols(); }
  uint64_t sink() const override { return index_.sink(); }
  uint64_t waiting() const override { return tokens_ - index_.covered(tokens_); }
  /// Until the next batch is full.
  bool is_steady() const override {
    return engine_ && next_batches(index_.end(), tokens_ + 1, past_, options_).empty();
  }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    ClusterSelector(index_, out.cols()).scores(queries, out);
  }
  TokenChooser chooser(size_t choices) const override {
    if (!engine_ || index_.clusters() == 0 || choices < kWorthCopying) return {};
    return engine_->choice_by_clusters(index_, tokens_);
  }

 private:
  static constexpr uint64_t kSeed = 0;
  /// Choices for which the index is copied to a device: one is soon made here, from a few hundred centroids.
  static constexpr size_t kWorthCopying = 32;
  ClusterOptions options_;
  MatrixView<const float> all_;
  size_t past_, tokens_ = 0;
  uint64_t stream_;
  Engine* engine_;
  ClusterIndex& index_;
};

/// The tokens of each choice, by id; of a selector that was not steady since the first of them there is but one.
std::vector<std::vector<uint32_t>> choose(const GrowingSelector& selector,
                                          std::span<const TokenChoice> choices, Share share, uint64_t first) {
  std::vector<std::vector<Scored>> scored(choices.size());
  const uint64_t sink = std::max(first, selector.sink());
  // Who chooses elsewhere keeps the selector's own.
  const TokenChooser chooser = sink == selector.sink() ? selector.chooser(choices.size()) : TokenChooser();
  if (!chooser || !chooser(choices, share == Share::max, scored))
    for (size_t i = 0; i < choices.size(); ++i) {
      const TokenChoice& choice = choices[i];
      Matrix<float> all(choice.queries.rows(), static_cast<size_t>(choice.visible));
      selector.scores(choice.queries, all);
      scored[i] = choose_tokens(all, all.cols(), choice.budget, sink, choice.newest, share);
    }
  std::vector<std::vector<uint32_t>> chosen;
  chosen.reserve(scored.size());
  for (const std::vector<Scored>& tokens : scored) chosen.push_back(ids_in_order(tokens));
  return chosen;
}

}  // namespace

/// What a head of a document keeps from call to call.
struct SelectedAttention::Kept {
  std::unique_ptr<const SignFit> fit;      ///< of signs
  std::unique_ptr<ClusterIndex> clusters;  ///< of clusters

  /// all: the keys of the head as far as they are there; past: how many the document began with; stream: the
  /// head's own random starts.
  std::unique_ptr<GrowingSelector> selector(SelectBy by, MatrixView<const float> all, size_t past,
                                            uint64_t stream, Engine* engine) {
    if (by == SelectBy::oracle) return std::make_unique<GrowingOracle>(all);
    if (by == SelectBy::quest) return std::make_unique<QuestSelector>(all.cols());
    if (by == SelectBy::clusters) {
      if (!clusters)
        clusters = std::make_unique<ClusterIndex>(all.cols(), static_cast<uint64_t>(ClusterOptions{}.sink));
      return std::make_unique<GrowingClusters>(all, past, stream, *clusters, engine);
    }
    if (!fit) fit = std::make_unique<const SignFit>(all.rows(0, past));
    return std::make_unique<GrowingSigns>(*fit);
  }
};

SelectedAttention::SelectedAttention(const ModelConfig& config, std::vector<StepSelection> selections,
                                     size_t prefix, Engine* engine)
    : config_(config),
      selections_(std::move(selections)),
      prefix_(prefix),
      engine_(engine),
      kept_(selections_.size() * static_cast<size_t>(config.num_layers) *
            static_cast<size_t>(config.num_kv_heads)) {
  for (const StepSelection& selection : selections_) {
    if (std::ranges::find(kStepSelectors, selection.by) == std::end(kStepSelectors))
      throw usage_error("selection by '{}' cannot follow a model; there are {}", selection.by,
                        fmt::join(kStepSelectors, ", "));
    if (selection.budget == 0) throw usage_error("selection by {} has no budget", selection.by);
    for (const int layer : selection.dense_layers)
      if (layer < 0 || layer >= config.num_layers)
        throw usage_error("layer {} is to attend to all tokens; the model has layers 0 to {}", layer,
                          config.num_layers - 1);
    if (selection.by == SelectBy::signs && config.head_dim % 4 != 0)
      throw usage_error("selection by signs needs heads of a multiple of 4 dimensions, not {}",
                        config.head_dim);
  }
  if (std::ranges::any_of(config.window, [](int64_t window) { return window > 0; }))
    throw usage_error("tokens cannot be selected in models whose layers have sliding windows");
  if (config.is_latent()) throw usage_error("tokens cannot be selected in models with latent attention");
  if (config.attention_softcap > 0)
    throw usage_error("tokens cannot be selected in models that cap the scores of attention");
  if (!config.names.sinks.empty())
    throw usage_error("tokens cannot be selected in models with attention sinks");
}

SelectedAttention::~SelectedAttention() = default;

void SelectedAttention::attend(const AttentionRows& rows) {
  const StepSelection& selection = selections_.at(rows.document);
  const auto dims = static_cast<size_t>(config_.head_dim), group = static_cast<size_t>(config_.group_size());
  const size_t per_document = kept_.size() / selections_.size();
  const bool dense = std::ranges::find(selection.dense_layers, rows.layer) != selection.dense_layers.end();
  parallel_for(static_cast<size_t>(config_.num_kv_heads), 1, [&](size_t head, size_t, int) {
    const auto keys = rows.key.columns(head * dims, dims), values = rows.value.columns(head * dims, dims);
    const CacheRows cache(keys, values);
    if (dense) {
      const size_t first = head * group * dims;
      for (size_t i = 0; i < rows.query.rows(); ++i)
        kvcodec::attend(Attention{.queries = {rows.query.row(i).data() + first, group, dims},
                                  .parts = {{.rows = &cache, .visible = rows.position + i + 1}},
                                  .out = {rows.out.row(i).data() + first, group, dims}});
      return;
    }
    const size_t place = static_cast<size_t>(rows.layer) * static_cast<size_t>(config_.num_kv_heads) + head;
    const auto selector = kept_[rows.document * per_document + place].selector(
        selection.by, keys, std::min(prefix_, keys.rows()), place, engine_);
    selector->append(keys.rows(0, rows.position));
    const size_t together = selection.share == Share::each ? 1 : group;  // query heads
    for (size_t i = 0; i < rows.query.rows();) {
      std::vector<TokenChoice> choices;
      std::vector<MatrixView<float>> outs;
      do {
        selector->append(keys.rows(rows.position + i, 1));
        const size_t first = head * group * dims;
        const MatrixView<const float> queries(rows.query.row(i).data() + first, group, dims);
        const MatrixView<float> out(rows.out.row(i).data() + first, group, dims);
        for (size_t q = 0; q < group; q += together) {
          choices.push_back({.queries = queries.rows(q, together),
                             .visible = selector->tokens(),
                             .budget = selection.budget,
                             .newest = std::max(selection.newest, selector->waiting())});
          outs.push_back(out.rows(q, together));
        }
        ++i;
      } while (i < rows.query.rows() && choices.size() < kMostTogether && selector->is_steady());
      const auto chosen = choose(*selector, choices, selection.share, selection.first);
      for (size_t c = 0; c < choices.size(); ++c)
        kvcodec::attend(Attention{.queries = choices[c].queries,
                                  .parts = {{.rows = &cache, .tokens = std::span<const uint32_t>(chosen[c])}},
                                  .out = outs[c]});
    }
  });
}

}  // namespace kvcodec
