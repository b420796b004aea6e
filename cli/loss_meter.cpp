#include "cli/loss_meter.hpp"

#include "cli/judged_texts.hpp"
#include "cli/model_runner.hpp"
#include "lib/core/error.hpp"
#include "lib/pipeline/closed_loop.hpp"

namespace kvcodec::cli {
namespace {

/// Documents that the model is run on, and their length.
constexpr int64_t kLossDocuments = 6, kLossTokens = 1024;

/// Throws Error(bad_input) unless the cache could be the model's.
void check_model(const std::string& model, ModelFiles& files, const KvReader& kv) {
  const ModelConfig& config = files.description().config;
  const ModelInfo& info = kv.model();
  if (config.num_layers != info.num_layers || config.num_kv_heads != info.num_kv_heads ||
      config.head_dim != info.head_dim)
    throw bad_input("{}: it has {} layers, {} key/value heads of {}; the cache has {}, {} of {}", model,
                    config.num_layers, config.num_kv_heads, config.head_dim, info.num_layers,
                    info.num_kv_heads, info.head_dim);
  if (!info.weights().empty())  // a digest takes reading all weights
    check_same_weights(model, model_info(model, files, false), kv.name(), info);
}

}  // namespace

LossMeter::LossMeter(const std::string& model, const std::vector<std::string>& texts, const KvReader& kv,
                     const CommonOptions& common)
    : kv_(kv), common_(common), files_(open_model(model)), model_(make_model(*files_, common)) {
  check_model(model, *files_, kv);
  JudgedTextOptions judged;
  judged.texts = texts;
  judged.max_documents = kLossDocuments;
  const int64_t length = std::min(document_length(judged, files_->description().config), kLossTokens);
  judged.chunk = length;
  const Tokenizer tokenizer = make_tokenizer(*files_, common);
  documents_ = judged_texts(judged, common, tokenizer, read_texts(judged, common), length).documents;
}

Loss LossMeter::loss(const Codec& codec) const {
  ClosedLoop loop(model_, {{&codec, kv_.dtype() == DType::f32 ? DType::bf16 : kv_.dtype(), {}}},
                  {.memory = common_.memory_bytes(), .engine = common_.engine()});
  std::vector<PredictionSums> own, reference;
  for (const LoopResult& result : loop.run(documents_)) {
    own.push_back(result.settings[0].sums);
    reference.push_back(result.reference.sums);
  }
  const PredictionEstimates estimates = estimate_predictions(own, reference);
  return {estimates.rise.mean, estimates.divergence.mean};
}

}  // namespace kvcodec::cli
