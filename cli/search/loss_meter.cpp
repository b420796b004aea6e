#include "cli/search/loss_meter.hpp"

#include <algorithm>

#include "cli/inputs/judged_texts.hpp"
#include "cli/inputs/model_runner.hpp"
#include "lib/core/error.hpp"
#include "lib/pipeline/closed_loop.hpp"

namespace kvcodec::cli {
namespace {

/// Documents that the model is run on, and their length.
constexpr size_t kLossDocuments = 6;
constexpr int64_t kLossTokens = 1024;

/// Kept exactly, so much of a document is worth a note: a codec's usual window and its first tokens are less. Behind nearly all
/// of it hardly any loss is left to be seen; the first token may be coded by itself.
constexpr double kMuchExact = 0.05, kNearlyAll = 0.9;

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

/// The share of values that take 16 bits in exempt streams. These may hold copies too (lib/codec/sink_codec.cpp).
double exact_share(const StoredBits& stored) {
  const uint64_t exact = stored.category[static_cast<size_t>(Category::exempt)] / 16;
  return stored.values == 0
             ? 0
             : static_cast<double>(std::min(exact, stored.values)) / static_cast<double>(stored.values);
}

}  // namespace

LossMeter::LossMeter(const std::string& model, const std::vector<std::string>& texts, const KvReader& kv,
                     const CommonOptions& common)
    : kv_(kv), common_(common), files_(open_model(model)), model_(make_model(*files_, common)) {
  check_model(model, *files_, kv);
  JudgedTextOptions judged;
  judged.texts = texts;
  const int64_t length = std::min(document_length(judged, files_->description().config), kLossTokens);
  judged.chunk = length;
  const Tokenizer tokenizer = make_tokenizer(*files_, common);
  documents_ = spread_documents(
      judged_texts(judged, common, tokenizer, read_texts(judged, common), length).documents, kLossDocuments);
  keep_weights(model_, {.tokens = tokens_of(documents_)});
}

Loss LossMeter::loss(const Codec& codec) const {
  ClosedLoop loop(model_, {{&codec, kv_.dtype() == DType::f32 ? DType::bf16 : kv_.dtype(), {}}},
                  {.memory = common_.memory_bytes(), .engine = common_.engine()});
  std::vector<PredictionSums> own, reference;
  StoredBits stored;
  for (const LoopResult& result : loop.run(documents_)) {
    stored.add(result.settings[0].stored);
    own.push_back(result.settings[0].sums);
    reference.push_back(result.reference.sums);
  }
  const PredictionEstimates estimates = estimate_predictions(own, reference);
  const double exact = exact_share(stored);
  if (exact >= kNearlyAll)
    throw usage_error(
        "the loss is measured behind {} tokens, of whose values these options keep {:.0f}% exactly, so that hardly any can be "
        "seen: take a smaller window, sink or block",
        documents_.front().prefix, 100 * exact);
  return {estimates.rise.mean, estimates.divergence.mean, exact};
}

void LossMeter::note_exact(const Loss& loss, const std::string& codec) const {
  if (loss.exact > kMuchExact)
    common_.note(
        "the loss is measured behind {} tokens, of whose values {} keeps {:.0f}% exactly; documents of which it keeps less "
        "lose more",
        documents_.front().prefix, codec, 100 * loss.exact);
}

}  // namespace kvcodec::cli
