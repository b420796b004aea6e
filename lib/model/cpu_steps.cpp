#include "lib/model/cpu_steps.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/model/causal_attention.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

/// True if the outputs of attention and MLP are modified before they are added to the hidden states.
bool has_branch(const ModelConfig& config) {
  return !config.names.attention_out_norm.empty() || !config.names.mlp_out_norm.empty() ||
         config.residual_scale != 1 || config.mixture.experts > 0;
}

/// Copies rows of a chunk to their place in the rows of all tokens.
void keep(MatrixView<const float> rows, size_t first, Matrix<float>& kept) {
  each_row(rows.rows(), [&](size_t i) { std::ranges::copy(rows.row(i), kept.row(first + i).begin()); });
}

/// The beginning of a matrix's memory as rows of another width.
MatrixView<float> shaped(Matrix<float>& memory, size_t rows, int width) {
  return {memory.data(), rows, as_size(width)};
}

/// Intermediate rows of latent attention for a chunk's tokens: of queries, and of the output of attention.
struct LatentRows {
  LatentRows(const ModelConfig& config, size_t rows)
      : low_query(config.latent.query_rank > 0 ? rows : 0, as_size(config.latent.query_rank)),
        query(config.is_latent() ? rows : 0, as_size(config.num_q_heads * config.latent.query_dim())),
        values(config.is_latent() ? rows : 0, as_size(config.num_q_heads * config.latent.value_dim)) {}
  static size_t floats_per_row(const ModelConfig& config) {
    const LatentRows one(config, 1);
    return one.low_query.size() + one.query.size() + one.values.size();
  }

  Matrix<float> low_query, query, values;
};

float logistic(float x) { return 1 / (1 + std::exp(-x)); }

void softmax(std::span<float> scores) {
  const float limit = *std::max_element(scores.begin(), scores.end());
  for (float& score : scores) score -= limit;
  exp_nonpositive(scores);
  scale(scores, 1 / std::accumulate(scores.begin(), scores.end(), 0.0f));
}

/// A mixture of experts in the place of an MLP (Shazeer et al. 2017): a router gives every token a few of many MLPs. Holds the
/// intermediate rows of a chunk of tokens.
class MixtureSteps {
 public:
  /// chunk: maximum number of tokens at a time. Nothing is allocated for a model without experts.
  MixtureSteps(const ModelConfig& config, size_t chunk)
      : config_(config), rows_(config.mixture.experts > 0 ? chunk : 0) {}

  /// Floats that it holds for each row.
  static size_t floats_per_row(const ModelConfig& config) {
    const Mixture& mixture = config.mixture;
    if (mixture.experts == 0) return 0;
    const size_t shares = as_size(mixture.chosen) * sizeof(Share) / sizeof(float);
    return as_size(mixture.experts) + as_size(mixture.width) + as_size(mixture.shared_width) +
           (mixture.beside_mlp ? 4 : 2) * as_size(config.hidden_size) + shares;
  }
  /// out = the sum of the outputs of each row's experts, weighted by the router, whose input is routed. x, out: (n, hidden_size). Of
  /// experts or groups with the same score those with the smaller numbers are chosen.
  void run(const LlamaLayer& layer, MatrixView<const float> x, MatrixView<const float> routed,
           MatrixView<float> out, WorkerScratch& scratch) {
    route(layer, routed, scratch);
    for (size_t row = 0; row < out.rows(); ++row) std::ranges::fill(out.row(row), 0.0f);
    for (size_t i = 0; i < shares_.size(); ++i)
      if (!shares_[i].empty()) run_expert(layer.experts[i], shares_[i], x, out, scratch);
    if (layer.shared_expert.up.empty()) return;
    const MatrixView<float> inner = shared_inner_.view().rows(0, x.rows());
    apply_activated(x, layer.shared_expert, config_.activation, inner, scratch);
    if (!layer.shared_expert_gate.empty())
      each_row(x.rows(), [&](size_t i) {
        scale(inner.row(i), logistic(static_cast<float>(dot(x.row(i), layer.shared_expert_gate))));
      });
    apply(inner, {&layer.shared_expert.down, out}, Write::add, scratch);
  }

 private:
  struct Share {
    size_t row;
    float weight;
  };

  /// The experts of a token with these scores. correction: added to the scores for this choice only.
  std::vector<Scored> choose(std::span<const float> scores, std::span<const float> correction) const {
    const Mixture& mixture = config_.mixture;
    if (mixture.groups == 1 && correction.empty()) return top_k(scores, as_size(mixture.chosen));
    std::vector<float> corrected(scores.begin(), scores.end());
    for (size_t i = 0; i < correction.size(); ++i) corrected[i] += correction[i];
    if (mixture.groups > 1) {
      const size_t size = corrected.size() / as_size(mixture.groups);
      std::vector<float> groups;
      for (size_t first = 0; first < corrected.size(); first += size) {
        const auto group = std::span<const float>(corrected).subspan(first, size);
        float sum = 0;
        for (const Scored& best : top_k(group, as_size(mixture.group_best))) sum += best.score;
        groups.push_back(sum);
      }
      std::vector<bool> open(groups.size());
      for (const Scored& group : top_k(groups, as_size(mixture.chosen_groups))) open[group.id] = true;
      for (size_t i = 0; i < corrected.size(); ++i)
        if (!open[i / size]) corrected[i] = -std::numeric_limits<float>::infinity();
    }
    return top_k(corrected, as_size(mixture.chosen));
  }
  void route(const LlamaLayer& layer, MatrixView<const float> x, WorkerScratch& scratch) {
    const MatrixView<float> scores = scores_.view().rows(0, x.rows());
    apply(x, {&layer.router, scores}, Write::replace, scratch);
    for (std::vector<Share>& shares : shares_) shares.clear();
    for (size_t row = 0; row < x.rows(); ++row) {
      const std::span<float> own = scores.row(row);
      if (config_.mixture.scores == RouterScores::sigmoid)
        for (float& score : own) score = logistic(score);
      else
        softmax(own);
      const std::vector<Scored> chosen = choose(own, layer.router_correction);
      float sum = 0;
      for (const Scored& expert : chosen) sum += own[expert.id];
      // Sigmoids may all underflow to 0.
      const float divisor = config_.mixture.normalised && sum > 0 ? sum : 1;
      const auto factor = static_cast<float>(config_.mixture.scale);
      for (const Scored& expert : chosen)
        shares_[expert.id].push_back(
            {row, own[expert.id] / divisor * factor *
                      (layer.expert_scales.empty() ? 1.0f : layer.expert_scales[expert.id])});
    }
  }
  void run_expert(const Mlp& expert, const std::vector<Share>& shares, MatrixView<const float> x,
                  MatrixView<float> out, WorkerScratch& scratch) {
    const size_t count = shares.size();
    const MatrixView<float> gathered = gathered_.view().rows(0, count), inner = inner_.view().rows(0, count),
                            result = result_.view().rows(0, count);
    for (size_t i = 0; i < count; ++i) std::ranges::copy(x.row(shares[i].row), gathered.row(i).begin());
    apply_activated(gathered, expert, config_.activation, inner, scratch);
    apply(inner, {&expert.down, result}, Write::replace, scratch);
    for (size_t i = 0; i < count; ++i) {
      scale(result.row(i), shares[i].weight);
      add_to(out.row(shares[i].row), result.row(i));
    }
  }
  const ModelConfig& config_;
  const size_t rows_, experts_ = as_size(config_.mixture.experts), hidden_ = as_size(config_.hidden_size);
  Matrix<float> scores_{rows_, experts_};
  // Rows of one expert.
  Matrix<float> gathered_{rows_, hidden_}, inner_{rows_, as_size(config_.mixture.width)},
      result_{rows_, hidden_};
  Matrix<float> shared_inner_{config_.mixture.shared_width > 0 ? rows_ : 0,
                              as_size(config_.mixture.shared_width)};  // of the shared expert
  std::vector<std::vector<Share>> shares_ = std::vector<std::vector<Share>>(experts_);  // of each expert
};

/// Layers of the gated delta rule, token by token: the matrix of a value head decays, what it holds at the token's key moves towards the
/// token's value, and the output is what it then holds at the query. Or layers of a gated convolution over tokens alone.
class DeltaSteps {
 public:
  /// Nothing is allocated for a model without such layers. The plan outlives this.
  DeltaSteps(const ModelConfig& config, const PrefillPlan& plan)
      : config_(config),
        sizes_(config.delta),
        plan_(plan),
        rows_(sizes_.layers.empty() ? 0 : plan.chunk),
        states_(sizes_.layers.empty() ? 0 : plan.documents.size(), std::vector<float>(state_size())) {}

  static size_t floats_per_row(const ModelConfig& config) {
    if (config.delta.layers.empty()) return 0;
    return as_size(2 * config.delta.mixed_width() + 2 * config.delta.value_width() +
                   2 * config.delta.value_heads);
  }

  void project(const DeltaNet& layer, const LayerInput& x, WorkerScratch& scratch) {
    const MatrixView<float> mixed = mixed_.view().rows(0, x.rows());
    const size_t keys = as_size(sizes_.key_width()), values = as_size(sizes_.value_width());
    if (sizes_.only_convolve()) {
      const MatrixView<float> factor = out_.view().rows(0, x.rows());
      const std::array outputs = {LinearOutput{&layer.query, factor}, LinearOutput{&layer.value, mixed},
                                  LinearOutput{&layer.gate, gate_.view().rows(0, x.rows())}};
      apply(x, outputs, Write::replace, scratch);
      return each_row(x.rows(), [&](size_t i) { multiply(mixed.row(i), factor.row(i)); });
    }
    const std::array outputs = {LinearOutput{&layer.query, mixed.columns(0, keys)},
                                LinearOutput{&layer.key, mixed.columns(keys, keys)},
                                LinearOutput{&layer.value, mixed.columns(2 * keys, values)},
                                LinearOutput{&layer.gate, gate_.view().rows(0, x.rows())},
                                LinearOutput{&layer.beta, beta_.view().rows(0, x.rows())},
                                LinearOutput{&layer.decay, decay_.view().rows(0, x.rows())}};
    apply(x, outputs, Write::replace, scratch);
  }

  /// The input of the output matrix for tokens [first, first + count), which were projected.
  MatrixView<const float> run(const DeltaNet& layer, int index, size_t first, size_t count) {
    for (size_t i = 0; i < plan_.documents.size(); ++i) {
      const DocumentPlace& document = plan_.documents[i];
      size_t begin = std::max(first, document.first);
      const size_t end = std::min(first + count, document.first + document.tokens);
      if (begin >= end) continue;
      if (begin == document.first) start(index, i);
      const size_t at = plan_.options->state_at, handed_out = document.first + at;
      if (at > 0 && begin < handed_out && handed_out < end) {
        mix(layer, states_[i], begin - first, handed_out - first);
        begin = handed_out;
      }
      if (at > 0 && begin == handed_out) kept_[i] = states_[i];
      mix(layer, states_[i], begin - first, end - first);
    }
    each_row(count, [&](size_t row) {
      if (sizes_.only_convolve()) {
        std::ranges::copy(mixed_.row(row), out_.row(row).begin());
        return multiply(out_.row(row), gate_.row(row));
      }
      const size_t dim = as_size(sizes_.value_dim);
      for (size_t c = 0; c < out_.cols(); c += dim) {
        const auto head = out_.row(row).subspan(c, dim);
        rms_norm(head, layer.norm, config_.norm_epsilon, head);
      }
      for (size_t c = 0; c < out_.cols(); ++c) out_(row, c) *= gate_(row, c) * logistic(gate_(row, c));
    });
    return std::as_const(out_).view().rows(0, count);
  }

  std::span<const float> state(size_t document) const {
    const auto kept = kept_.find(document);
    return kept == kept_.end() ? states_[document] : kept->second;
  }

 private:
  static void multiply(std::span<float> x, std::span<const float> factors) {
    for (size_t i = 0; i < x.size(); ++i) x[i] *= factors[i];
  }

  size_t state_size() const { return sizes_.layers.empty() ? 0 : sizes_.state_size(); }

  void start(int index, size_t document) {
    std::vector<float>& state = states_[document];
    kept_.erase(document);
    if (plan_.documents[document].past == 0) {
      std::ranges::fill(state, 0.0f);
      return;
    }
    const auto past = plan_.batch->cache->state(index, document);
    if (past.size() != state.size())
      throw failed("a state of {} numbers; it has {}", past.size(), state.size());
    std::ranges::copy(past, state.begin());
  }

  /// Rows [begin, end) of the chunk, consecutive tokens of one document.
  void mix(const DeltaNet& layer, std::vector<float>& state, size_t begin, size_t end) {
    const size_t width = mixed_.cols(), before = as_size(sizes_.kernel) - 1, count = end - begin;
    Matrix<float> window(before + count, width);
    std::copy_n(state.begin(), before * width, window.data());
    for (size_t i = 0; i < count; ++i)
      std::ranges::copy(mixed_.row(begin + i), window.row(before + i).begin());
    std::copy_n(window.row(count).data(), before * width, state.begin());
    each_row(count, [&](size_t i) {
      const auto out = mixed_.row(begin + i);
      for (size_t c = 0; c < width; ++c) {
        float sum = layer.kernel_bias.empty() ? 0 : layer.kernel_bias[c];
        for (size_t k = 0; k <= before; ++k) sum += layer.kernel[c * (before + 1) + k] * window(i + k, c);
        out[c] = sizes_.only_convolve() ? sum : sum * logistic(sum);
      }
      const size_t dim = as_size(sizes_.key_dim), keys = as_size(sizes_.key_width());
      for (size_t c = 0; c < 2 * keys; c += dim) {
        const auto head = out.subspan(c, dim);
        const float length = 1 / std::sqrt(static_cast<float>(dot(head, head)) + 1e-6f);
        scale(head, c < keys ? length / std::sqrt(static_cast<float>(dim)) : length);
      }
    });
    if (sizes_.only_convolve()) return;
    parallel_each(as_size(sizes_.value_heads), 1, [&](size_t head) {
      const size_t rows = as_size(sizes_.key_dim), cols = as_size(sizes_.value_dim);
      const MatrixView<float> held(state.data() + before * width + head * rows * cols, rows, cols);
      for (size_t i = begin; i < end; ++i) step(layer, head, i, held);
    });
  }

  void step(const DeltaNet& layer, size_t head, size_t row, MatrixView<float> held) {
    const size_t rows = held.rows(), cols = held.cols(), keys = as_size(sizes_.key_width()),
                 key_head = as_size(sizes_.key_head_of(static_cast<int>(head)));
    const auto query = mixed_.row(row).subspan(key_head * rows, rows),
               key = mixed_.row(row).subspan(keys + key_head * rows, rows),
               value = mixed_.row(row).subspan(2 * keys + head * cols, cols),
               out = out_.row(row).subspan(head * cols, cols);
    const float raw = decay_(row, head) + layer.decay_bias[head],
                rate = raw > 20 ? raw : std::log1p(std::exp(raw)),
                decay = std::exp(-layer.decay_rate[head] * rate), beta = logistic(beta_(row, head));
    std::ranges::fill(out, 0.0f);
    for (size_t r = 0; r < rows; ++r) {
      const auto own = held.row(r);
      for (size_t c = 0; c < cols; ++c) own[c] *= decay, out[c] += own[c] * key[r];
    }
    std::vector<float> change(cols);
    for (size_t c = 0; c < cols; ++c) change[c] = (value[c] - out[c]) * beta, out[c] = 0;
    for (size_t r = 0; r < rows; ++r) {
      const auto own = held.row(r);
      for (size_t c = 0; c < cols; ++c) own[c] += key[r] * change[c], out[c] += own[c] * query[r];
    }
  }

  const ModelConfig& config_;
  const DeltaLayers& sizes_;
  const PrefillPlan& plan_;
  const size_t rows_;
  // Rows of the present chunk: queries, keys and values; the other projections; the output.
  Matrix<float> mixed_{rows_, as_size(sizes_.mixed_width())}, gate_{rows_, as_size(sizes_.value_width())},
      beta_{rows_, as_size(sizes_.value_heads)}, decay_{rows_, as_size(sizes_.value_heads)},
      out_{rows_, as_size(sizes_.value_width())};
  std::vector<std::vector<float>> states_;     // of each document in the present layer
  std::map<size_t, std::vector<float>> kept_;  // those after state_at tokens
};

class CpuSteps final : public TapedSteps {
 public:
  CpuSteps(const LlamaWeights& weights, const PrefillPlan& plan) : weights_(weights), plan_(plan) {
    if (plan.options->before_rope) {
      if (plan.options->queries) query_before_rope_ = Matrix<float>(plan.chunk, query_.cols());
      key_before_rope_ = Matrix<float>(plan.chunk, key_.cols());
    }
    for (size_t i = 0; i < plan.documents.size(); ++i)
      document_of_row_.insert(document_of_row_.end(), plan.documents[i].tokens, i);
    for (int i = 0; i < config_.num_layers && (config_.local_head_dim > 0 || config_.shared_layers > 0); ++i)
      own_.push_back(config_.of_layer(i));
  }

  void embed() override {
    each_row(hidden_.rows(), [&](size_t row) { embed(row, hidden_.row(row)); });
  }

  PastRows past_rows(int layer, size_t document) override {
    const DocumentPlace& place = plan_.documents[document];
    const PastRows all = rows_of(layer, key_, value_, key_.rows());
    return {all.keys.rows(place.key_first, place.past), all.values.rows(place.key_first, place.past)};
  }
  void place_past(size_t) override {}  // past_rows() are in their final place

  void project(int index, size_t first, size_t count) override {
    const LlamaLayer& layer = weights_.layers[as_size(index)];
    const LayerInput x = normed(layer.attention_norm, first, count);
    if (config_.is_delta(index)) return delta_.project(layer.delta, x, scratch_);
    const PastRows all = rows_of(index, key_, value_, key_.rows()),
                   made = rows_of(index, new_key_, new_value_, count);
    const MatrixView<float> query = shaped(query_, count, own_of(index).query_width()), key = made.keys;
    if (config_.is_latent()) {
      project_latent(layer, x, query, key);
    } else {
      std::vector<LinearOutput> outputs = {{&layer.query, query}};
      if (!layer.key.empty()) outputs.push_back({&layer.key, key});
      if (!layer.value.empty()) outputs.push_back({&layer.value, made.values});
      if (!layer.output_gate.empty())
        outputs.push_back({&layer.output_gate, output_gate_.view().rows(0, count)});
      apply(x, outputs, Write::replace, scratch_);
    }
    if (tape_ && !layer.query_norm.empty()) {
      keep(query, first, tape_->raw_query);
      keep(key, first, tape_->raw_key);
    }
    const float factor = query_scale(own_of(index));
    const PastRows before = before_rope(index, count);
    each_row(count, [&](size_t i) {
      if (layer.value.empty())
        std::ranges::copy(key.row(i).first(made.values.cols()), made.values.row(i).begin());
      norm_heads(query.row(i), layer.query_norm);
      norm_heads(key.row(i), layer.key_norm);
      norm_heads(made.values.row(i), layer.value_norm);
      if (factor != 1) scale(query.row(i), factor);
      if (plan_.options->before_rope) {
        if (plan_.options->queries) std::ranges::copy(query.row(i), before.values.row(i).begin());
        std::ranges::copy(key.row(i), before.keys.row(i).begin());
      }
      turn(index, first + i, query.row(i));
      turn(index, first + i, key.row(i));
      std::ranges::copy(key.row(i), all.keys.row(plan_.key_row[first + i]).begin());
      std::ranges::copy(made.values.row(i), all.values.row(plan_.key_row[first + i]).begin());
    });
    if (tape_) keep(query, first, tape_->query);
  }

  void finish(int index, size_t first, size_t count) override {
    const LlamaLayer& layer = weights_.layers[as_size(index)];
    if (config_.is_delta(index)) {
      add_branch(layer.output, delta_.run(layer.delta, index, first, count), layer.attention_out_norm, first,
                 nullptr);
      return add_mlp(layer, read_by_mlp(layer, first, count), first);
    }
    attend(index, first, count);
    if (!layer.output_gate.empty())
      each_row(count, [&](size_t i) {
        const auto gate = output_gate_.row(i);
        for (size_t j = 0; j < gate.size(); ++j) attended_(i, j) *= logistic(gate[j]);
      });
    // Before attention is added, as both read the same states.
    std::optional<LayerInput> mlp_input;
    if (config_.parallel_residual) mlp_input = read_by_mlp(layer, first, count);
    add_branch(layer.output, heads_output(layer, index, count), layer.attention_out_norm, first,
               tape_ ? &tape_->attention_branch : nullptr);
    if (!config_.parallel_residual) mlp_input = read_by_mlp(layer, first, count);
    add_mlp(layer, *mlp_input, first);
    if (config_.token_inputs.width > 0) add_token_inputs(layer, index, first, count);
    if (layer.scale != 1) each_row(count, [&](size_t i) { scale(hidden_.row(first + i), layer.scale); });
    if (first + count < hidden_.rows()) return;
    for (int later = config_.num_layers - config_.shared_layers; later < config_.num_layers; ++later)
      if (config_.source_of(later) == index) return void(shared_[index] = present_);
  }

  std::span<const float> state(size_t document) const override { return delta_.state(document); }
  MatrixView<float> states() override { return hidden_; }
  PastRows cache() override { return {key_, value_}; }
  void record(LayerTape* tape) override { tape_ = tape; }

  LayerChunk projected(int layer, size_t first, size_t count) override {
    const size_t queries = plan_.options->queries ? count : 0,
                 before = plan_.options->before_rope ? count : 0;
    const PastRows made = rows_of(layer, new_key_, new_value_, count), raw = before_rope(layer, before);
    return {.layer = layer,
            .first = first,
            .key = made.keys,
            .value = made.values,
            .query = shaped(query_, queries, own_of(layer).query_width()),
            .key_before_rope = raw.keys,
            .query_before_rope = raw.values.rows(0, std::min(queries, before))};
  }

  MatrixView<const float> logits(size_t first, size_t count) override {
    if (logits_.rows() < count) {
      final_normed_ = Matrix<float>(count, hidden_.cols());
      logits_ = Matrix<float>(count, weights_.head->outputs());
    }
    norm_rows(weights_.final_norm, hidden_.view().rows(first, count), final_normed_);
    const MatrixView<float> out = logits_.view().rows(0, count);
    apply(final_normed_.view().rows(0, count), {&*weights_.head, out}, Write::replace, scratch_);
    finish_logits(config_, out);
    return out;
  }

  MatrixView<const float> hidden() override {
    norm_rows(weights_.final_norm, hidden_, hidden_);
    return hidden_;
  }

 private:
  const ModelConfig& own_of(int layer) const { return own_.empty() ? config_ : own_[as_size(layer)]; }

  /// Rows in this memory of what the layer makes for a cache; without columns if it makes nothing.
  PastRows rows_of(int layer, Matrix<float>& keys, Matrix<float>& values, size_t count) const {
    const bool cached = config_.has_cache(layer);
    return {shaped(keys, count, cached ? own_of(layer).key_width() : 0),
            shaped(values, count, cached ? own_of(layer).cached_value_width() : 0)};
  }

  /// Keys before the rotary embedding, and in the place of values queries.
  PastRows before_rope(int layer, size_t count) {
    return {rows_of(layer, key_before_rope_, new_value_, count).keys,
            shaped(query_before_rope_, count, own_of(layer).query_width())};
  }

  /// Keys and values that the layer's queries meet; with latent attention values are columns of the keys.
  PastRows met_by(int layer) {
    const int source = config_.source_of(layer);
    auto& [keys, values] = source == layer ? present_ : shared_.at(source);
    const PastRows all = rows_of(source, keys, values, keys.rows());
    return {all.keys, config_.is_latent() ? all.keys.columns(0, as_size(config_.latent.rank)) : all.values};
  }

  void embed(size_t row, std::span<float> out) const {
    read_floats(*weights_.embedding, plan_.batch->tokens[row] * out.size(), out);
    if (config_.embedding_scale != 1) scale(out, static_cast<float>(config_.embedding_scale));
    if (!weights_.positions) return;
    std::vector<float> position(out.size());
    read_floats(*weights_.positions, plan_.positions[row] * out.size(), position);
    add_to(out, position);
  }

  /// out may be x.
  void norm_row(const Norm& norm, std::span<const float> x, std::span<float> out) const {
    norm_row(norm, config_.norm_epsilon, x, out);
  }
  void norm_row(const Norm& norm, double epsilon, std::span<const float> x, std::span<float> out) const {
    if (config_.norm == NormKind::layer)
      layer_norm(x, norm.weight, norm.bias, epsilon, out);
    else
      rms_norm(x, norm.weight, epsilon, out);
  }

  void norm_rows(const Norm& norm, MatrixView<const float> x, MatrixView<float> out) const {
    each_row(x.rows(), [&](size_t row) { norm_row(norm, x.row(row), out.row(row)); });
  }

  /// Input of attention or MLP from the hidden states of tokens [first, first + count).
  LayerInput normed(const Norm& norm, size_t first, size_t count) {
    const MatrixView<const float> rows = hidden_.view().rows(first, count);
    if (norm.empty()) return rows;
    const MatrixView<float> out = normed_.view().rows(0, count);
    const MatrixView<uint16_t> rounded = rounded_normed_.view().rows(0, in_bf16() ? count : 0);
    each_row(count, [&](size_t row) {
      norm_row(norm, rows.row(row), out.row(row));
      if (rounded.rows() > 0) narrow(DType::bf16, out.row(row), rounded.row(row));
    });
    return {out, rounded};
  }

  bool in_bf16() const { return weights_.compute == Compute::bf16; }

  LayerInput read_by_mlp(const LlamaLayer& layer, size_t first, size_t count) {
    if (tape_) keep(hidden_.view().rows(first, count), first, tape_->mlp_input);
    return normed(layer.mlp_norm, first, count);
  }

  /// Queries and keys of latent attention, before they are turned.
  void project_latent(const LlamaLayer& layer, const LayerInput& x, MatrixView<float> query,
                      MatrixView<float> key) {
    const LatentAttention& latent = config_.latent;
    const size_t count = x.rows(), rank = as_size(latent.rank), plain = as_size(latent.plain_dim),
                 turned = as_size(latent.turned_dim), head_dim = as_size(config_.head_dim);
    const MatrixView<float> raw = latent_.query.view().rows(0, count);
    std::vector<LinearOutput> outputs = {{&layer.key, key}};
    if (!layer.query_down.empty())
      outputs.push_back({&layer.query_down, latent_.low_query.view().rows(0, count)});
    else
      outputs.push_back({&layer.query, raw});
    apply(x, outputs, Write::replace, scratch_);
    if (!layer.query_down.empty()) {
      const MatrixView<float> low = outputs[1].out;
      each_row(count, [&](size_t i) {
        norm_row(layer.query_down_norm, latent.norm_epsilon, low.row(i), low.row(i));
      });
      apply(low, {&layer.query, raw}, Write::replace, scratch_);
    }
    for (size_t head = 0; head < layer.key_up.size(); ++head)
      apply_back(raw.columns(head * (plain + turned), plain), layer.key_up[head], Write::replace,
                 query.columns(head * head_dim, rank), scratch_);
    each_row(count, [&](size_t i) {
      const std::span<float> own = key.row(i);
      norm_row(layer.latent_norm, latent.norm_epsilon, own.first(rank), own.first(rank));
      std::vector<float> turned_part(own.begin() + static_cast<std::ptrdiff_t>(rank), own.end());
      split_pairs(turned_part, own.subspan(rank));
      for (size_t head = 0; head < layer.key_up.size(); ++head)
        split_pairs(raw.row(i).subspan(head * (plain + turned) + plain, turned),
                    query.row(i).subspan(head * head_dim + rank, turned));
    });
  }

  /// Puts the first channels of the pairs that are rotated together in the first half of out, the second ones behind.
  void split_pairs(std::span<const float> pairs, std::span<float> out) const {
    const size_t half = out.size() / 2;
    if (!config_.latent.interleaved) {
      std::ranges::copy(pairs, out.begin());
      return;
    }
    for (size_t j = 0; j < half; ++j) out[j] = pairs[2 * j], out[half + j] = pairs[2 * j + 1];
  }

  /// The input of the output matrix, made from the attended rows of all heads.
  MatrixView<const float> heads_output(const LlamaLayer& layer, int index, size_t count) {
    const MatrixView<const float> attended = shaped(attended_, count, own_of(index).attended_width());
    if (!config_.is_latent()) return attended;
    const size_t rank = as_size(config_.latent.rank), dim = as_size(config_.latent.value_dim);
    const MatrixView<float> out = latent_.values.view().rows(0, count);
    for (size_t head = 0; head < layer.value_up.size(); ++head)
      apply(attended.columns(head * rank, rank), {&layer.value_up[head], out.columns(head * dim, dim)},
            Write::replace, scratch_);
    return out;
  }

  void norm_heads(std::span<float> heads, const Norm& norm) const {
    if (norm.empty()) return;
    const size_t width = norm.weight.size();
    for (size_t at = 0; at < heads.size(); at += width)
      norm_row(norm, heads.subspan(at, width), heads.subspan(at, width));
  }

  void turn(int layer, size_t row, std::span<float> heads) const {
    const DocumentPlace& document = plan_.documents[document_of_row_[row]];
    if (const RopeTable* const table = rope_.table(layer, document.past + document.tokens))
      table->turn(plan_.positions[row], heads);
  }

  void attend(int index, size_t first, size_t count) {
    const ModelConfig& own = own_of(index);
    const MatrixView<float> attended = shaped(attended_, count, own.attended_width()),
                            query = shaped(query_, count, own.query_width());
    const PastRows met = met_by(index);
    if (plan_.options->attention)
      attend_by_method(index, first, query, met, attended);
    else
      causal_attention(own,
                       {.documents = plan_.documents,
                        .window = config_.window[as_size(index)],
                        .sinks = weights_.layers[as_size(index)].sinks,
                        .compute = weights_.compute,
                        .first = first,
                        .query = query,
                        .key = met.keys,
                        .value = met.values,
                        .out = attended,
                        .log_sums = tape_ ? tape_->log_sums.view().rows(first, count) : MatrixView<float>()},
                       scratch_);
    if (tape_) keep(attended, first, tape_->attended);
  }

  void attend_by_method(int index, size_t first, MatrixView<const float> query, const PastRows& met,
                        MatrixView<float> attended) {
    const size_t count = query.rows();
    for (size_t i = 0; i < plan_.documents.size(); ++i) {
      const DocumentPlace& document = plan_.documents[i];
      const size_t begin = std::max(first, document.first);
      const size_t end = std::min(first + count, document.first + document.tokens);
      if (begin >= end) continue;
      const size_t position = plan_.positions[begin], rows = position + end - begin - document.unread;
      plan_.options->attention->attend({.layer = index,
                                        .source = config_.source_of(index),
                                        .document = i,
                                        .past = document.past,
                                        .position = position,
                                        .query = query.rows(begin - first, end - begin),
                                        .key = met.keys.rows(document.key_first, rows),
                                        .value = met.values.rows(document.key_first, rows),
                                        .out = attended.rows(begin - first, end - begin),
                                        .sinks = weights_.layers[as_size(index)].sinks});
    }
  }

  /// Adds output(x) to the hidden states of the tokens from `first` on, normalised and scaled as the model says. kept:
  /// gets output(x) before it is normalised, or is nullptr.
  void add_branch(const Linear& output, const LayerInput& x, const Norm& norm, size_t first,
                  Matrix<float>* kept) {
    if (norm.empty() && config_.residual_scale == 1) {
      apply(x, {&output, hidden_.view().rows(first, x.rows())}, Write::add, scratch_);
      return;
    }
    const MatrixView<float> branch = branch_.view().rows(0, x.rows());
    apply(x, {&output, branch}, Write::replace, scratch_);
    if (kept && !norm.empty()) keep(branch, first, *kept);
    add_branch(branch, norm, first);
  }

  void add_branch(MatrixView<float> branch, const Norm& norm, size_t first) {
    each_row(branch.rows(), [&](size_t i) {
      if (!norm.empty()) norm_row(norm, branch.row(i), branch.row(i));
      if (config_.residual_scale != 1) scale(branch.row(i), static_cast<float>(config_.residual_scale));
      add_to(hidden_.row(first + i), branch.row(i));
    });
  }

  /// Adds the output of the MLP, or of the experts in its place.
  void add_mlp(const LlamaLayer& layer, const LayerInput& x, size_t first) {
    if (!layer.experts.empty()) {
      const MatrixView<float> branch = branch_.view().rows(0, x.rows());
      if (layer.mlp.up.empty())
        mixture_.run(layer, x.floats, x.floats, branch, scratch_);
      else
        run_mlp_and_experts(layer, x, first, branch);
      return add_branch(branch, layer.mlp_out_norm, first);
    }
    if (tape_) return add_mlp_on_tape(layer, x, first);
    if (in_bf16())
      add_mlp(layer, x, first, rounded_inner_);
    else
      add_mlp(layer, x, first, inner_);
  }

  /// The sum of both outputs, each normalised. x: the input of the MLP.
  void run_mlp_and_experts(const LlamaLayer& layer, const LayerInput& x, size_t first,
                           MatrixView<float> out) {
    const size_t count = x.rows();
    const MatrixView<float> inner = inner_rows(inner_, count, layer.mlp.up.outputs());
    apply_activated(x, layer.mlp, config_.activation, inner, scratch_);
    apply(inner, {&layer.mlp.down, out}, Write::replace, scratch_);
    norm_rows(layer.beside_out_norm, out, out);
    Matrix<float> routed(count, hidden_width_), mixed(count, hidden_width_);
    norm_rows(layer.router_norm, hidden_.view().rows(first, count), routed);
    mixture_.run(layer, normed(layer.expert_norm, first, count).floats, routed, mixed, scratch_);
    norm_rows(layer.expert_out_norm, mixed, mixed);
    for (size_t i = 0; i < count; ++i) add_to(out.row(i), mixed.row(i));
  }

  template <class T>
  void add_mlp(const LlamaLayer& layer, const LayerInput& x, size_t first, Matrix<T>& kept) {
    const MatrixView<T> inner = inner_rows(kept, x.rows(), layer.mlp.up.outputs());
    apply_activated(x, layer.mlp, config_.activation, inner, scratch_);
    add_branch(layer.mlp.down, inner, layer.mlp_out_norm, first, nullptr);
  }

  /// Rows between the two halves of the MLP, as floats or bf16. Allocates the matrix on first use.
  template <class T>
  MatrixView<T> inner_rows(Matrix<T>& kept, size_t count, size_t width) const {
    if (kept.rows() == 0) kept = Matrix<T>(plan_.chunk, as_size(config_.mlp_width()));
    return {kept.data(), count, width};
  }

  /// Adds what the layer makes of its numbers of each token (TokenInputs).
  void add_token_inputs(const LlamaLayer& layer, int index, size_t first, size_t count) {
    const size_t width = as_size(config_.token_inputs.width);
    const auto root = [](size_t number) { return std::sqrt(static_cast<float>(number)); };
    const MatrixView<float> embedded = normed_.view().rows(0, count), own = token_.view().rows(0, count),
                            gate = token_gate_.view().rows(0, count);
    each_row(count, [&](size_t i) { embed(first + i, embedded.row(i)); });
    apply(embedded, {&layer.token_projection, own}, Write::replace, scratch_);
    apply(hidden_.view().rows(first, count), {&layer.token_gate, gate}, Write::replace, scratch_);
    each_row(count, [&](size_t i) {
      std::vector<float> of_table(width);
      const size_t row = plan_.batch->tokens[first + i] * as_size(config_.num_layers) + as_size(index);
      read_floats(*weights_.token_table, row * width, of_table);
      scale(of_table, root(width));
      scale(own.row(i), 1 / root(hidden_width_));
      norm_row(weights_.token_norm, own.row(i), own.row(i));
      add_to(own.row(i), of_table);
      scale(own.row(i), std::sqrt(0.5f));
      activate(config_.activation, gate.row(i), own.row(i));
    });
    add_branch(layer.token_output, gate, layer.token_output_norm, first, nullptr);
  }

  /// Skips the output of the MLP where the backward pass does not depend on it.
  void add_mlp_on_tape(const LlamaLayer& layer, const LayerInput& x, size_t first) {
    const size_t count = x.rows();
    const bool gated = !layer.mlp.gate.empty();
    std::vector<LinearOutput> outputs = {{&layer.mlp.up, tape_->up.view().rows(first, count)}};
    if (gated) outputs.push_back({&layer.mlp.gate, tape_->gate.view().rows(first, count)});
    apply(x, outputs, Write::replace, scratch_);
    if (layer.mlp_out_norm.empty()) return;
    const MatrixView<float> inner = inner_rows(inner_, count, as_size(config_.intermediate_size));
    each_row(count, [&](size_t i) {
      std::ranges::copy(outputs.back().out.row(i), inner.row(i).begin());
      activate(config_.activation, inner.row(i), gated ? outputs[0].out.row(i) : std::span<float>());
    });
    add_branch(layer.mlp.down, inner, layer.mlp_out_norm, first, &tape_->mlp_branch);
  }

  const LlamaWeights& weights_;
  const PrefillPlan& plan_;
  const ModelConfig& config_ = weights_.config;
  const size_t chunk_ = plan_.chunk, hidden_width_ = as_size(config_.hidden_size),
               key_width_ = as_size(config_.key_width()),
               value_width_ = as_size(config_.cached_value_width());
  const RopeTables rope_{config_, plan_.longest};
  std::vector<ModelConfig> own_;  // as each layer sees the model; empty: all as config_ has it
  std::vector<size_t> document_of_row_;
  Matrix<float> hidden_{plan_.batch->tokens.size(), hidden_width_};  // all tokens of the batch
  // The present layer's keys and values, of caches and new tokens, and those that later layers use, by their layer.
  using Cache = std::pair<Matrix<float>, Matrix<float>>;
  Cache present_{Matrix<float>(plan_.key_rows, key_width_), Matrix<float>(plan_.key_rows, value_width_)};
  Matrix<float>&key_ = present_.first, &value_ = present_.second;
  std::map<int, Cache> shared_;
  // All that follows is of the present chunk.
  Matrix<float> new_key_{chunk_, key_width_}, new_value_{chunk_, value_width_};
  // The input of attention or MLP, and its output if that is modified before it is added.
  Matrix<float> normed_{chunk_, hidden_width_}, branch_{has_branch(config_) ? chunk_ : 0, hidden_width_};
  Matrix<float> query_{chunk_, as_size(config_.query_width())},
      attended_{chunk_, as_size(config_.attended_width())};
  LatentRows latent_{config_, chunk_};
  Matrix<uint16_t> rounded_normed_{in_bf16() ? chunk_ : 0, hidden_width_};  // where layers compute in bf16
  Matrix<float> inner_;
  Matrix<uint16_t> rounded_inner_;
  Matrix<float> query_before_rope_, key_before_rope_;
  Matrix<float> final_normed_, logits_;  // of the rows handed out
  Matrix<float> token_{config_.token_inputs.width > 0 ? chunk_ : 0, as_size(config_.token_inputs.width)},
      token_gate_ = token_;
  Matrix<float> output_gate_{config_.output_gate ? chunk_ : 0, as_size(config_.query_width())};
  MixtureSteps mixture_{config_, chunk_};
  DeltaSteps delta_{config_, plan_};
  WorkerScratch scratch_;
  LayerTape* tape_ = nullptr;
};

}  // namespace

LayerTape::LayerTape(const ModelConfig& config, size_t tokens) {
  const auto rows_of = [&](bool there, int width) {
    return Matrix<float>(there ? tokens : 0, as_size(width));
  };
  const bool normed = config.qk_norm != QkNorm::none;
  raw_query = rows_of(normed, config.query_width()), raw_key = rows_of(normed, config.key_width());
  query = rows_of(true, config.query_width()), attended = rows_of(true, config.query_width());
  log_sums = rows_of(true, config.num_q_heads);
  mlp_input = rows_of(true, config.hidden_size);
  attention_branch = rows_of(!config.names.attention_out_norm.empty(), config.hidden_size);
  mlp_branch = rows_of(!config.names.mlp_out_norm.empty(), config.hidden_size);
  gate = rows_of(config.gated_mlp, config.intermediate_size);
  up = rows_of(true, config.intermediate_size);
}

size_t LayerTape::floats_per_token(const ModelConfig& config) {
  const LayerTape one(config, 1);
  size_t floats = 0;
  for (const Matrix<float>* const part :
       {&one.raw_query, &one.raw_key, &one.query, &one.attended, &one.log_sums, &one.mlp_input,
        &one.attention_branch, &one.mlp_branch, &one.gate, &one.up})
    floats += part->size();
  return floats;
}

std::unique_ptr<TapedSteps> start_on_cpu(const LlamaWeights& weights, const PrefillPlan& plan) {
  return std::make_unique<CpuSteps>(weights, plan);
}

size_t floats_per_chunk_row(const ModelConfig& config, const PrefillOptions& options) {
  const size_t hidden = as_size(config.hidden_size), query = as_size(config.query_width()),
               key = as_size(config.key_width()), attended = as_size(config.attended_width()),
               mlp = config.has_mlp() ? as_size(config.mlp_width()) : 0,
               inputs = 2 * as_size(config.token_inputs.width);
  // Inputs of matrix products, if these are in bf16: the normed input, and the largest of the others.
  const size_t rounded = (hidden + std::max({hidden, query, attended, mlp}) + 1) / 2;
  return hidden + query + attended + as_size(config.cache_width()) + LatentRows::floats_per_row(config) +
         DeltaSteps::floats_per_row(config) + (config.output_gate ? query : 0) +
         (options.before_rope ? (options.queries ? query : 0) + key : 0) + (has_branch(config) ? hidden : 0) +
         mlp + inputs + MixtureSteps::floats_per_row(config) + rounded;
}

size_t floats_per_token(const ModelConfig& config) {
  // The present layer's, and those of a layer of each kind that others use.
  const size_t kept = config.shared_layers > 0 ? 3 : 1;
  return as_size(config.hidden_size) + kept * as_size(config.cache_width());
}

size_t floats_per_position(const ModelConfig& config) {
  return rope_tables(config) * as_size(config.max_head_dim());  // at most: heads may be turned in part
}

size_t floats_per_thread(const ModelConfig& config) {
  ModelConfig local = config;
  if (config.local_head_dim > 0)
    local.num_kv_heads = config.local_kv_heads, local.head_dim = config.local_head_dim;
  return std::max(
      {linear_scratch_floats(), attention_scratch_floats(config), attention_scratch_floats(local)});
}

void finish_logits(const ModelConfig& config, MatrixView<float> logits) {
  if (config.logit_scale == 1 && config.logit_softcap == 0) return;
  each_row(logits.rows(), [&](size_t row) {
    if (config.logit_scale != 1) scale(logits.row(row), static_cast<float>(config.logit_scale));
    if (config.logit_softcap > 0) soft_cap(logits.row(row), static_cast<float>(config.logit_softcap));
  });
}

}  // namespace kvcodec
