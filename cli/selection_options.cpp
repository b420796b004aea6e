#include "cli/selection_options.hpp"

#include <algorithm>

#include "cli/common.hpp"
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
           "what scores the tokens: codes: the index in them, or products with their keys; signs: the signs of "
           "such an index; clusters: those of --index; quest: Quest's bounds over pages of 16 tokens; oracle: "
           "the true products",
       .target = &by,
       .choices = {kNamesOf<SelectBy>.begin() + 1, kNamesOf<SelectBy>.end()}},  // one that chooses
      {"setup",
       "where what is not given comes from: best: what does best on SmolLM2-135M; paper: the paper of the method",
       &setup},
      {"share",
       "how query heads that share a key/value head agree: by the mean of the attention weights that their "
       "scores stand for, by the largest or the mean score, or each for itself",
       &share},
      {"budget", "tokens to select for each query, all of the following among them; 0: by --ratio", &budget,
       0, 1e9},
      {"ratio",
       "tokens to select, as a fraction of those that the query sees; 0: 0.075, or all with "
       "--budget-mass",
       &ratio, 0, 1},
      {"budget-mass",
       "select fewer tokens than that, as soon as they have this fraction of the attention "
       "weights, by what is known of them; 0: never; needs --share weight or each",
       &mass, 0, 1},
      {"first", "first tokens of a document that are always selected", &first, 0, 1e9},
      {"newest", "newest tokens that are always selected", &newest, 0, 1e9},
      {"heavy",
       "tokens that are always selected because the last 32 queries of the prompt attend to them most; those "
       "that codes of selfindex keep whole",
       &heavy, 0, 1e9},
      {"candidates",
       "scores choose this many times the budget, and products with their keys choose among "
       "these; 1: scores alone",
       &candidates, 1, 1e6},
      {"dense-layers", "layers that attend to all tokens, as 0-1; none", &dense_layers}};
}

std::vector<OptionField> SelectionOptions::step_fields() {
  std::vector<OptionField> all = fields();
  all[0].name = "select";
  all[0].help =
      "attend to chosen tokens only, anew at every step, layer and head: by the codes' index or products with their "
      "keys, sign codes, semantic clusters, Quest's bounds or true products; all: to all";
  all[0].choices = {kNamesOf<SelectBy>.begin(), kNamesOf<SelectBy>.end()};
  for (OptionField& field : all)
    if (field.name == "heavy")
      field.help =
          "tokens that are always selected because the last 32 queries of the prefix attend to them most";
  return all;
}

void SelectionOptions::check() const {
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
