#include "lib/model/cache_gradients.hpp"

#include <algorithm>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/model/causal_attention.hpp"
#include "lib/model/cpu_steps.hpp"
#include "lib/model/linear.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

// Logits and their derivatives are there for so many tokens at a time: each time all of the output matrix is read
// twice.
constexpr size_t kLogitRows = 128;

void norm_back(const ModelConfig& config, const Norm& norm, std::span<const float> x,
               std::span<float> gradient) {
  if (config.norm == NormKind::layer)
    layer_norm_back(x, norm.weight, config.norm_epsilon, gradient);
  else
    rms_norm_back(x, norm.weight, config.norm_epsilon, gradient);
}

/// Derivatives by rows before a norm, in the place of those behind it; as they are where there is none.
void norm_rows_back(const ModelConfig& config, const Norm& norm, MatrixView<const float> x,
                    MatrixView<float> gradient) {
  if (norm.empty()) return;
  each_row(gradient.rows(), [&](size_t i) { norm_back(config, norm, x.row(i), gradient.row(i)); });
}

/// There through all layers, and back.
class RoundTrip {
 public:
  RoundTrip(const LlamaModel& model, const Continued& continued, Differentiated& function,
            const Progress& progress)
      : weights_(model.weights()), continued_(continued), function_(function), progress_(progress) {}

  void run() {
    steps_->embed();
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const MatrixView<const float> states = steps_->states();
      Matrix<float>& kept = inputs_.emplace_back(states.rows(), states.cols());
      each_row(states.rows(), [&](size_t i) { std::ranges::copy(states.row(i), kept.row(i).begin()); });
      run_layer(layer);
    }
    start_back();
    steps_->record(&tape_);
    for (int layer = config_.num_layers - 1; layer >= 0; --layer) go_back(layer);
  }

  static uint64_t floats(const ModelConfig& config, uint64_t tokens, uint64_t past) {
    const uint64_t hidden = as_size(config.hidden_size), query = as_size(config.query_width()),
                   key = as_size(config.key_width());
    const uint64_t per_token = hidden * (2 + as_size(config.num_layers)) + 2 * query +
                               as_size(config.intermediate_size) + LayerTape::floats_per_token(config);
    const uint64_t logits = std::min<uint64_t>(kLogitRows, tokens);
    return checked_add(checked_mul(tokens, per_token + 2 * key), checked_mul(past, 2 * key)) +
           (tokens + past) * floats_per_position(config) +
           logits * (2 * as_size(config.vocabulary_size) + hidden);
  }

 private:
  PrefillPlan checked_plan() {
    check_batch(config_, batch_);
    head_of(weights_);
    PrefillPlan plan = plan_of(batch_, options_);
    plan.logit_rows = std::min(kLogitRows, tokens_);
    return plan;
  }

  void run_layer(int layer) {
    read_past(*steps_, plan_, layer);
    for (size_t first = 0; first < tokens_; first += plan_.chunk) {
      const size_t count = std::min(plan_.chunk, tokens_ - first);
      steps_->project(layer, first, count);
      steps_->finish(layer, first, count);
    }
    report(progress_, ++done_, 2.0 * config_.num_layers);
  }

  /// Derivatives by the hidden states behind the last layer.
  void start_back() {
    Matrix<float> gradients(plan_.logit_rows, as_size(config_.vocabulary_size));
    const MatrixView<const float> states = steps_->states();
    for (size_t first = 0; first < tokens_; first += plan_.logit_rows) {
      const size_t count = std::min(plan_.logit_rows, tokens_ - first);
      const MatrixView<float> by_logits = gradients.view().rows(0, count),
                              by_states = by_states_.view().rows(first, count);
      const MatrixView<const float> logits = steps_->logits(first, count);
      function_.by_logits(first, logits, by_logits);
      finish_logits_back(logits, by_logits);
      apply_back(by_logits, head_of(weights_), Write::replace, by_states, scratch_);
      norm_rows_back(config_, weights_.final_norm, states.rows(first, count), by_states);
    }
  }

  void finish_logits_back(MatrixView<const float> logits, MatrixView<float> gradients) const {
    const auto cap = static_cast<float>(config_.logit_softcap);
    each_row(logits.rows(), [&](size_t row) {
      const std::span<float> gradient = gradients.row(row);
      if (cap > 0)
        for (size_t i = 0; i < gradient.size(); ++i) {
          const float part = logits(row, i) / cap;
          gradient[i] *= 1 - part * part;
        }
      if (config_.logit_scale != 1) scale(gradient, static_cast<float>(config_.logit_scale));
    });
  }

  /// From derivatives by the hidden states behind a layer to those before it.
  void go_back(int index) {
    const LlamaLayer& layer = weights_.layers[as_size(index)];
    each_row(tokens_,
             [&](size_t i) { std::ranges::copy(inputs_.back().row(i), steps_->states().row(i).begin()); });
    run_layer(index);
    if (config_.parallel_residual) through_output(layer);
    through_mlp(layer);
    if (!config_.parallel_residual) through_output(layer);
    through_attention(index);
    if (index > 0) through_projections(index);
    inputs_.pop_back();
  }

  /// Derivatives by what a branch gives before it is normalised and scaled.
  void start_branch(const Norm& norm, const Matrix<float>& branch) {
    each_row(tokens_, [&](size_t i) {
      const std::span<float> to = by_branch_.row(i);
      std::ranges::copy(by_states_.row(i), to.begin());
      if (config_.residual_scale != 1) scale(to, static_cast<float>(config_.residual_scale));
      if (!norm.empty()) norm_back(config_, norm, branch.row(i), to);
    });
  }

  /// by_branch_: derivatives by what a branch reads of hidden states x, behind its norm.
  void end_branch(const Norm& norm, MatrixView<const float> x) {
    norm_rows_back(config_, norm, x, by_branch_);
    each_row(tokens_, [&](size_t i) { add_to(by_states_.row(i), by_branch_.row(i)); });
  }

  void through_mlp(const LlamaLayer& layer) {
    const Mlp& mlp = layer.mlp;
    const bool gated = !mlp.gate.empty();
    start_branch(layer.mlp_out_norm, tape_.mlp_branch);
    apply_back(by_branch_, mlp.down, Write::replace, by_inner_, scratch_);
    each_row(tokens_, [&](size_t i) {
      if (gated)
        activate_back(config_.activation, by_inner_.row(i), tape_.gate.row(i), tape_.up.row(i));
      else
        activate_back(config_.activation, by_inner_.row(i), tape_.up.row(i), {});
    });
    apply_back(tape_.up, mlp.up, Write::replace, by_branch_, scratch_);
    if (gated) apply_back(tape_.gate, mlp.gate, Write::add, by_branch_, scratch_);
    end_branch(layer.mlp_norm, tape_.mlp_input);
  }

  void through_output(const LlamaLayer& layer) {
    start_branch(layer.attention_out_norm, tape_.attention_branch);
    apply_back(by_branch_, layer.output, Write::replace, by_attended_, scratch_);
  }

  /// Hands out what is asked for; before the first layer that is all.
  void through_attention(int index) {
    const PastRows cache = steps_->cache();
    const CausalAttention done{.documents = plan_.documents,
                               .window = config_.window[as_size(index)],
                               .query = tape_.query,
                               .key = cache.keys,
                               .value = cache.values,
                               .out = tape_.attended,
                               .log_sums = tape_.log_sums};
    const size_t past = continued_.past, keys = index > 0 ? past + tokens_ : past;
    gradients_by_keys(config_, done, by_attended_,
                      {by_key_.view().rows(0, keys), by_value_.view().rows(0, keys)}, scratch_);
    if (index > 0) gradients_by_query(config_, done, by_attended_, by_query_, scratch_);
    if (continued_.before_rope)
      each_row(past, [&](size_t position) { turn_back(index, position, by_key_.row(position)); });
    function_.by_cache(index, by_key_.view().rows(0, past), by_value_.view().rows(0, past));
  }

  void through_projections(int index) {
    const LlamaLayer& layer = weights_.layers[as_size(index)];
    const size_t past = continued_.past;
    const float factor = query_scale(config_);
    each_row(tokens_, [&](size_t i) {
      turn_back(index, past + i, by_query_.row(i));
      turn_back(index, past + i, by_key_.row(past + i));
      if (factor != 1) scale(by_query_.row(i), factor);
      if (layer.query_norm.empty()) return;
      norm_heads_back(layer.query_norm, tape_.raw_query.row(i), by_query_.row(i));
      norm_heads_back(layer.key_norm, tape_.raw_key.row(i), by_key_.row(past + i));
    });
    apply_back(by_query_, layer.query, Write::replace, by_branch_, scratch_);
    apply_back(by_key_.view().rows(past, tokens_), layer.key, Write::add, by_branch_, scratch_);
    apply_back(by_value_.view().rows(past, tokens_), layer.value, Write::add, by_branch_, scratch_);
    end_branch(layer.attention_norm, inputs_.back());
  }

  void norm_heads_back(const Norm& norm, std::span<const float> x, std::span<float> gradient) const {
    const size_t width = norm.weight.size();
    for (size_t at = 0; at < x.size(); at += width)
      norm_back(config_, norm, x.subspan(at, width), gradient.subspan(at, width));
  }

  void turn_back(int layer, size_t position, std::span<float> heads) const {
    if (const RopeTable* const table = rope_.table(layer, plan_.longest)) table->turn_back(position, heads);
  }

  const LlamaWeights& weights_;
  const Continued& continued_;
  Differentiated& function_;
  const Progress& progress_;
  const ModelConfig& config_ = weights_.config;
  const size_t tokens_ = continued_.tokens.size();
  const std::vector<uint64_t> offsets_ = {0, tokens_}, past_ = {continued_.past};
  const PrefillBatch batch_ = {continued_.tokens, offsets_, past_, continued_.cache};
  const PrefillOptions options_ = {};
  const PrefillPlan plan_ = checked_plan();
  const std::unique_ptr<TapedSteps> steps_ = start_on_cpu(weights_, plan_);
  const RopeTables rope_{config_, plan_.longest};
  std::vector<Matrix<float>> inputs_;  // hidden states before each layer that is not behind us
  LayerTape tape_{config_, tokens_};   // of the present layer; its MLP's part turns into derivatives
  // Derivatives: by hidden states, by what a branch gives or reads, by what attention gave and took; by the MLP's
  // activated values.
  Matrix<float> by_states_{tokens_, as_size(config_.hidden_size)}, by_branch_{tokens_, by_states_.cols()};
  Matrix<float> by_attended_{tokens_, as_size(config_.query_width())},
      by_query_{tokens_, by_attended_.cols()};
  Matrix<float> by_key_{plan_.key_rows, as_size(config_.key_width())},
      by_value_{plan_.key_rows, by_key_.cols()};
  Matrix<float> by_inner_{tokens_, as_size(config_.intermediate_size)};
  WorkerScratch scratch_;
  double done_ = 0;  // layers
};

}  // namespace

std::string beyond_gradients(const ModelConfig& config) {
  if (config.is_latent()) return "latent attention";
  if (!config.delta.layers.empty()) return "layers without attention";
  if (config.output_gate) return "gated attention";
  if (config.local_head_dim > 0 || config.shared_layers > 0 || config.token_inputs.width > 0 ||
      config.value_norm || config.keys_make_values || !config.names.layer_scale.empty())
    return "layers that differ or share, or values with norms";
  if (config.mixture.experts > 0) return "a mixture of experts";
  if (!has_derivative(config.activation)) return "an MLP that bounds its values";
  return "";
}

uint64_t gradient_bytes(const ModelConfig& config, uint64_t tokens, uint64_t past, int threads) {
  const uint64_t scratch = std::max(linear_scratch_floats(), attention_gradient_scratch_floats(config));
  return prefill_bytes(config, {}, tokens, tokens + past, threads, past) +
         checked_mul(
             checked_add(RoundTrip::floats(config, tokens, past), static_cast<uint64_t>(threads) * scratch),
             sizeof(float));
}

void differentiate(const LlamaModel& model, const Continued& continued, Differentiated& function,
                   const Progress& progress) {
  if (const std::string why = beyond_gradients(model.config()); !why.empty())
    throw usage_error("the model has {}, through which derivatives are not taken", why);
  if (continued.tokens.empty() || continued.past == 0 || !continued.cache)
    throw failed("derivatives of {} tokens behind a cache of {}", continued.tokens.size(), continued.past);
  RoundTrip(model, continued, function, progress).run();
}

}  // namespace kvcodec
