// The Llama-family forward pass written down as plainly as possible, in double, one token and one head at a
// time; and models with random weights to run it on. For tests and benchmarks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lib/model/config.hpp"
#include "lib/model/weights.hpp"
#include "test/lib/model/weights_in_memory.hpp"

namespace kvcodec::test {

/// A model of this shape with all switches off.
ModelConfig make_config(int layers, int hidden, int intermediate, int q_heads, int kv_heads, int head_dim,
                        int vocabulary = 50);

/// Biases everywhere, norms of heads, tied embeddings, and a window in the second of two layers.
void switch_all_on(ModelConfig& config);

/// A forward pass for comparison.
struct ForwardCase {
  const char* what;
  ModelConfig config;
  DType type;
  size_t tokens, chunk;
};

/// Weights that spread attention and keep activations near 1, rounded to `type`.
WeightsInMemory random_weights(const ModelConfig& config, DType type, uint64_t seed);

class NaiveLlama {
 public:
  using Row = std::vector<double>;

  NaiveLlama(const ModelConfig& config, const WeightSource& weights);

  struct Result {
    std::vector<std::vector<Row>> key, value, query;  ///< [layer][token]
    std::vector<Row> logits;                          ///< [token]
  };

  /// Called in each layer with the keys, turned, and values of all tokens, [token]; may change them.
  using Change = std::function<void(int layer, std::vector<Row>& key, std::vector<Row>& value)>;

  /// One document.
  Result run(const std::vector<uint32_t>& tokens, const Change& change = {}) const;

 private:
  const std::vector<float>& tensor(const std::string& name) const;
  Row linear(const Row& x, const std::string& name) const;
  Row norm(const Row& x, const std::string& name) const;
  void turn(Row& heads, size_t position) const;
  void run_layer(int layer, std::vector<Row>& hidden, const Change& change, Result& result) const;
  Row attend(int layer, size_t t, const Row& query, const std::vector<Row>& key,
             const std::vector<Row>& value) const;
  static void add(Row& x, const Row& y);

  ModelConfig config_;
  const WeightSource& weights_;
  mutable std::map<std::string, std::vector<float>> cache_;
};

}  // namespace kvcodec::test
