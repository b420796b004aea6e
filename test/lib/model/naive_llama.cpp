#include "test/lib/model/naive_llama.hpp"

#include <cmath>

#include "lib/core/rng.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec::test {

ModelConfig make_config(int layers, int hidden, int intermediate, int q_heads, int kv_heads, int head_dim,
                        int vocabulary) {
  ModelConfig config;
  config.num_layers = layers, config.hidden_size = hidden, config.intermediate_size = intermediate;
  config.num_q_heads = q_heads, config.num_kv_heads = kv_heads, config.head_dim = head_dim;
  config.vocabulary_size = vocabulary;
  config.window.assign(static_cast<size_t>(layers), 0);
  return config;
}

void switch_all_on(ModelConfig& config) {
  config.qkv_bias = config.output_bias = config.mlp_bias = config.tied_embeddings = true;
  config.qk_norm = QkNorm::heads;
  config.window = {0, 17};
}

WeightsInMemory random_weights(const ModelConfig& config, DType type, uint64_t seed) {
  Rng rng(seed);
  WeightsInMemory weights;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape, double mean, double deviation) {
    uint64_t count = 1;
    for (const uint64_t side : shape) count *= side;
    std::vector<float> values(count);
    // A sum of uniform numbers: near enough to normal, and fast for large models.
    for (float& value : values)
      value =
          static_cast<float>(mean + deviation * 2 * (rng.uniform() + rng.uniform() + rng.uniform() - 1.5));
    weights.add(name, type, std::move(shape), values);
  };
  const auto linear = [&](const std::string& name, int outputs, int inputs, bool bias) {
    add(name + ".weight", {uint64_t(outputs), uint64_t(inputs)}, 0, 1.2 / std::sqrt(inputs));
    if (bias) add(name + ".bias", {uint64_t(outputs)}, 0, 0.3);
  };
  const auto norm = [&](const std::string& name, int size) {
    add(name + ".weight", {uint64_t(size)}, 1, 0.3);
  };
  add("model.embed_tokens.weight", {uint64_t(config.vocabulary_size), uint64_t(config.hidden_size)}, 0, 1);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    norm(at + "input_layernorm", config.hidden_size);
    norm(at + "post_attention_layernorm", config.hidden_size);
    linear(at + "self_attn.q_proj", config.query_width(), config.hidden_size, config.qkv_bias);
    linear(at + "self_attn.k_proj", config.key_width(), config.hidden_size, config.qkv_bias);
    linear(at + "self_attn.v_proj", config.key_width(), config.hidden_size, config.qkv_bias);
    linear(at + "self_attn.o_proj", config.hidden_size, config.query_width(), config.output_bias);
    if (config.qk_norm == QkNorm::heads)
      norm(at + "self_attn.q_norm", config.head_dim), norm(at + "self_attn.k_norm", config.head_dim);
    linear(at + "mlp.gate_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
    linear(at + "mlp.up_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
    linear(at + "mlp.down_proj", config.hidden_size, config.intermediate_size, config.mlp_bias);
  }
  norm("model.norm", config.hidden_size);
  if (!config.tied_embeddings) linear("lm_head", config.vocabulary_size, config.hidden_size, false);
  return weights;
}

NaiveLlama::NaiveLlama(const ModelConfig& config, const WeightSource& weights)
    : config_(config), weights_(weights) {}

NaiveLlama::Result NaiveLlama::run(const std::vector<uint32_t>& tokens, const Change& change) const {
  Result result;
  std::vector<Row> hidden;
  const std::vector<float>& embedding = tensor("model.embed_tokens.weight");
  const size_t width = size_t(config_.hidden_size);
  for (const uint32_t token : tokens)
    hidden.emplace_back(embedding.begin() + long(token * width),
                        embedding.begin() + long((token + 1) * width));
  for (int layer = 0; layer < config_.num_layers; ++layer) run_layer(layer, hidden, change, result);
  for (const Row& row : hidden)
    result.logits.push_back(
        linear(norm(row, "model.norm"), config_.tied_embeddings ? "model.embed_tokens" : "lm_head"));
  return result;
}

const std::vector<float>& NaiveLlama::tensor(const std::string& name) const {
  auto place = cache_.find(name);
  if (place == cache_.end()) {
    const TensorView* view = weights_.find(name);
    place = cache_.emplace(name, view ? read_floats(*view) : std::vector<float>()).first;
  }
  return place->second;
}

NaiveLlama::Row NaiveLlama::linear(const Row& x, const std::string& name) const {
  const std::vector<float>&weight = tensor(name + ".weight"), &bias = tensor(name + ".bias");
  Row y(weight.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    double sum = bias.empty() ? 0 : bias[i];
    for (size_t j = 0; j < x.size(); ++j) sum += double(weight[i * x.size() + j]) * x[j];
    y[i] = sum;
  }
  return y;
}

NaiveLlama::Row NaiveLlama::norm(const Row& x, const std::string& name) const {
  const std::vector<float>& weight = tensor(name + ".weight");
  Row y = x;
  for (size_t at = 0; at < x.size(); at += weight.size()) {  // several heads share one weight
    double squares = 0;
    for (size_t j = 0; j < weight.size(); ++j) squares += x[at + j] * x[at + j];
    for (size_t j = 0; j < weight.size(); ++j)
      y[at + j] = x[at + j] / std::sqrt(squares / double(weight.size()) + config_.norm_epsilon) * weight[j];
  }
  return y;
}

void NaiveLlama::turn(Row& heads, size_t position) const {
  const std::vector<float> frequencies = rope_frequencies(config_.rope, config_.head_dim);
  const size_t half = frequencies.size();
  for (size_t at = 0; at < heads.size(); at += size_t(config_.head_dim))
    for (size_t j = 0; j < half; ++j) {
      const double angle = static_cast<float>(position) * frequencies[j];
      const double first = heads[at + j], second = heads[at + j + half];
      heads[at + j] = first * std::cos(angle) - second * std::sin(angle);
      heads[at + j + half] = second * std::cos(angle) + first * std::sin(angle);
    }
}

void NaiveLlama::run_layer(int layer, std::vector<Row>& hidden, const Change& change, Result& result) const {
  const std::string at = "model.layers." + std::to_string(layer) + ".", attention = at + "self_attn.";
  std::vector<Row> query, key, value;
  for (size_t t = 0; t < hidden.size(); ++t) {
    const Row x = norm(hidden[t], at + "input_layernorm");
    query.push_back(linear(x, attention + "q_proj"));
    key.push_back(linear(x, attention + "k_proj"));
    value.push_back(linear(x, attention + "v_proj"));
    if (config_.qk_norm == QkNorm::heads) {
      query[t] = norm(query[t], attention + "q_norm");
      key[t] = norm(key[t], attention + "k_norm");
    }
    turn(query[t], t);
    turn(key[t], t);
  }
  if (change) change(layer, key, value);
  for (size_t t = 0; t < hidden.size(); ++t) {
    add(hidden[t], linear(attend(layer, t, query[t], key, value), attention + "o_proj"));
    const Row x = norm(hidden[t], at + "post_attention_layernorm");
    Row gate = linear(x, at + "mlp.gate_proj");
    const Row up = linear(x, at + "mlp.up_proj");
    for (size_t j = 0; j < gate.size(); ++j) gate[j] *= up[j] / (1 + std::exp(-gate[j]));
    add(hidden[t], linear(gate, at + "mlp.down_proj"));
  }
  result.query.push_back(query), result.key.push_back(key), result.value.push_back(value);
}

NaiveLlama::Row NaiveLlama::attend(int layer, size_t t, const Row& query, const std::vector<Row>& key,
                                   const std::vector<Row>& value) const {
  const size_t dim = size_t(config_.head_dim);
  const int64_t window = config_.window[size_t(layer)];
  Row result(query.size());
  for (int head = 0; head < config_.num_q_heads; ++head) {
    const size_t q = size_t(head) * dim, k = size_t(head / config_.group_size()) * dim;
    Row weights(t + 1);
    double total = 0;
    for (size_t s = 0; s <= t; ++s) {
      if (window > 0 && int64_t(t - s) >= window) continue;
      double score = 0;
      for (size_t j = 0; j < dim; ++j) score += query[q + j] * key[s][k + j];
      total += weights[s] = std::exp(score / std::sqrt(double(dim)));
    }
    for (size_t s = 0; s <= t; ++s)
      for (size_t j = 0; j < dim; ++j) result[q + j] += weights[s] / total * value[s][k + j];
  }
  return result;
}

void NaiveLlama::add(Row& x, const Row& y) {
  for (size_t j = 0; j < x.size(); ++j) x[j] += y[j];
}

}  // namespace kvcodec::test
