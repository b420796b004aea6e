#include "cli/codecs/selection_options.hpp"

#include <algorithm>

#include "cli/frame/common.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// More than any model has.
constexpr uint64_t kMostLayers = 1 << 16;

std::vector<int> layers_in(const std::string& text) {
  std::vector<int> layers;
  if (text.empty() || text == "none") return layers;
  const auto ranges = number_ranges(text);
  if (!ranges || ranges->back().end > kMostLayers)
    throw usage_error("dense-layers is '{}'; it must be none, or numbers and ranges, as 0-1", text);
  for (const TokenRange& range : *ranges)
    for (uint64_t layer = range.first; layer < range.end; ++layer) layers.push_back(static_cast<int>(layer));
  return layers;
}

}  // namespace

SelectionOptions SelectionOptions::of(SelectBy by, SelectionSetup setup) {
  SelectionOptions options;
  options.by = by;
  options.setup = setup;
  if (setup == SelectionSetup::best) return options;
  options.first = options.newest = options.heavy = 0;
  options.candidates = 1;
  options.share = Share::each;
  switch (by) {
    case SelectBy::quest:
      options.newest = 16;  // the last page
      break;
    case SelectBy::codes:
    case SelectBy::signs:  // which says nothing of layers, nor of query heads that share a key/value head
      options.share = Share::max;
      options.heavy = 64;
      options.dense_layers = "none";
      break;
    case SelectBy::clusters:  // whose sink and waiting tokens are the index's own
    case SelectBy::oracle:    // as these compare with it
    case SelectBy::all:
      break;
  }
  return options;
}

std::vector<OptionField> SelectionOptions::fields() {
  return {
      {.name = "by",
       .help =
           "how to score tokens: codes: by the index in the codes, or, without one, by products with their "
           "keys; signs: by the sign bits of that index alone; clusters: by the centroids in --index; "
           "quest: by Quest's bounds over pages of 16 tokens; oracle: by the true products",
       .target = &by,
       .choices = {kNamesOf<SelectBy>.begin() + 1, kNamesOf<SelectBy>.end()}},  // one that chooses
      {"setup",
       "values of the options below that are not given: best: those that measured best on SmolLM2-135M; "
       "paper: those of the method's paper",
       &setup},
      {"share",
       "how to combine the scores of query heads that share a key/value head: by the mean of their softmax "
       "weights, by the largest or the mean score, or not at all: each head has its own selection",
       &share},
      {"budget",
       "number of tokens to select for each query, including those that are always selected; 0: as --ratio "
       "says",
       &budget, 0, 1e9},
      {"ratio",
       "tokens to select, as a fraction of those that the query sees; 0: 0.075, or all with "
       "--budget-mass",
       &ratio, 0, 1},
      {"budget-mass",
       "stop selecting, below the budget, once the selected tokens have this fraction of the attention "
       "weights, as estimated from scores and products; 0: never; needs --share weight or each",
       &mass, 0, 1},
      {"first", "first tokens of a document that are always selected", &first, 0, 1e9},
      {"newest", "newest tokens that are always selected", &newest, 0, 1e9},
      {"heavy",
       "number of tokens that are always selected because the last 32 queries of the prompt attend to them "
       "most; only codes of selfindex have such tokens, those that they keep exactly",
       &heavy, 0, 1e9},
      {"candidates",
       "preselect this many times the budget by score, then select among these tokens by the products of "
       "the query with their keys; 1: select by score alone",
       &candidates, 1, 1e6},
      {"dense-layers", "layers that attend to all tokens, as 0-1, or none", &dense_layers}};
}

std::vector<OptionField> SelectionOptions::step_fields() {
  std::vector<OptionField> all = fields();
  all[0].name = "select";
  all[0].help =
      "tokens to attend to, selected anew at every step, layer and head: all of them, or the best by the "
      "index in the codes or products with their keys (codes), by sign codes (signs), semantic clusters, "
      "Quest's bounds (quest) or the true products (oracle)";
  all[0].choices = {kNamesOf<SelectBy>.begin(), kNamesOf<SelectBy>.end()};
  for (OptionField& field : all)
    if (field.name == "heavy")
      field.help =
          "tokens that are always selected because the last 32 queries of the prefix attend to them most";
  return all;
}

void SelectionOptions::check() const {
  if (budget > 0 && ratio > 0) throw usage_error("--budget and --ratio exclude each other");
  if (mass > 0 && share != Share::weight && share != Share::each)
    throw usage_error("--budget-mass needs --share weight or each, not {}", share);
}

SelectionRule SelectionOptions::rule(int layers) const {
  SelectionRule rule{.by = by,
                     .budget = static_cast<uint64_t>(budget),
                     .newest = static_cast<uint64_t>(newest),
                     .first = static_cast<uint64_t>(first),
                     .heavy = static_cast<uint64_t>(heavy),
                     .candidates = static_cast<uint64_t>(candidates),
                     .mass = mass,
                     .ratio = ratio,
                     .share = share,
                     .keeps_waiting = setup == SelectionSetup::paper,
                     .dense_layers = layers_in(dense_layers)};
  // The usual ones of a model that has fewer.
  if (dense_layers == kFirstTwo) std::erase_if(rule.dense_layers, [&](int layer) { return layer >= layers; });
  for (const int layer : rule.dense_layers)
    if (layer >= layers)
      throw usage_error("layer {} is to attend to all tokens; the model has layers 0 to {}", layer,
                        layers - 1);
  return rule;
}

}  // namespace kvcodec::cli
