// GGUF: any bytes open and give their tensors, a model's configuration and a tokenizer, or are refused.
#include <algorithm>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/models/gguf.hpp"
#include "formats/models/gguf_model.hpp"
#include "lib/core/checked.hpp"
#include "lib/model/llama_weights.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

namespace {

/// Values of the parts that a model takes of larger tensors.
void read_parts(const LlamaWeights& weights) {
  for (const LlamaLayer& layer : weights.layers) {
    std::vector<const Linear*> parts = {&layer.query, &layer.key, &layer.value, &layer.mlp.gate,
                                        &layer.mlp.up};
    for (const Mlp& expert : layer.experts)
      parts.insert(parts.end(), {&expert.gate, &expert.up, &expert.down});
    for (const Linear* const part : parts)
      if (!part->empty()) read_floats(part->weight);
  }
}

void read_all(const Gguf& file) {
  for (const auto& [name, tensor] : file.tensors())
    if (tensor.usable) fuzz::require(read_floats(tensor.view).size() == checked_product(tensor.view.shape));
  fuzz::expect_refusal_or_success([&] {
    const ModelConfig config = describe_model(file).config;
    const GgufWeights weights(file, config);
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.bias"})
      fuzz::expect_refusal_or_success([&] {
        if (const TensorView* tensor = weights.find(name)) read_floats(*tensor);
      });
    fuzz::expect_refusal_or_success([&] { read_parts(load_weights(config, weights)); });
  });
  fuzz::expect_refusal_or_success([&] {
    const Tokenizer tokenizer = load_tokenizer(file);
    const auto ids = tokenizer.encode("abba ab 12 \xc3\xa9", true);
    fuzz::require(
        std::all_of(ids.begin(), ids.end(), [&](uint32_t id) { return id < tokenizer.vocabulary_size(); }));
  });
}

}  // namespace

KVCODEC_FUZZ_TARGET(gguf) {
  const int file = ::memfd_create("gguf", MFD_CLOEXEC);
  fuzz::require(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size));
  fuzz::expect_refusal_or_success([&] { read_all(Gguf::open("/proc/self/fd/" + std::to_string(file))); });
  ::close(file);
  return 0;
}
