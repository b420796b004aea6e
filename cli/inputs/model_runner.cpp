#include "cli/inputs/model_runner.hpp"

#include "cli/frame/machine_memory.hpp"
#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"
#include "lib/model/llama_weights.hpp"
#include "lib/model/prefill_engine.hpp"

namespace kvcodec::cli {
namespace {

/// Of the machine's memory what weights may take that are laid out for products.
constexpr uint64_t kShareOfKept = 8;

/// Tokens from which on laying out pays. On two Zen 4 cores it takes 0.08 s of SmolLM2-135M, a few tenths where the system has
/// fresh memory to find, and dump-kv is as fast with it as without from 500 (f32) to 1,000 tokens (bf16) on, at best; the
/// cost and the gain both grow with the model.
constexpr uint64_t kTokensThatPay = 2048;

void write_notes(const std::vector<std::string>& notes, const CommonOptions& common) {
  for (const std::string& note : notes) common.note("{}", note);
}

}  // namespace

void declare_compute(Command& command, Compute& compute) {
  command.group("Arithmetic");
  command.option(
      {.name = "compute",
       .help = "how products with the model's weights, and those of attention, are made: f32, or bf16, which "
               "is faster where the processor multiplies it (AVX512-BF16, AMX), and rounds more",
       .target = &compute});
}

LlamaModel make_model(ModelFiles& files, const CommonOptions& common, Compute compute) {
  write_notes(files.description().notes, common);
  LlamaModel model(files.description().config, files.weights());
  Engine* const engine = common.engine();
  if (engine && compute != Compute::f32)
    throw usage_error("--compute {} is of the CPU; leave it out, or add --device cpu", name_of(compute));
  if (engine) model.use(engine->make<PrefillEngine>(model.weights()));
  model.compute_in(compute);
  return model;
}

void keep_weights(LlamaModel& model, const ModelWork& work) {
  if (model.uses_engine() || work.tokens < kTokensThatPay) return;
  model.compute_in(model.weights().compute,
                   {.bytes = machine_memory() / kShareOfKept, .layers = work.layers, .head = work.logits});
}

Tokenizer make_tokenizer(const ModelFiles& files, const CommonOptions& common) {
  write_notes(files.tokenizer_notes(), common);
  return files.tokenizer();
}

}  // namespace kvcodec::cli
