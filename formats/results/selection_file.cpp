#include "formats/results/selection_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/cache/header_io.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {
namespace {

constexpr char kSelectionType[] = "selection", kHeads[] = "heads", kQueryRows[] = "/query_position";

size_t largest(const LayerSelections& layer) {
  size_t most = 1;
  for (const auto& chosen : layer.chosen) most = std::max(most, chosen.size());
  return most;
}

/// A layer's two datasets, checked against each other and the queries.
struct LayerDatasets {
  LayerDatasets(const h5::File& file, int layer, const SelectionInfo& info)
      : tokens(file.dataset(layer_path(layer, "token"))), scores(file.dataset(layer_path(layer, "score"))) {
    budget = tokens.shape().back();
    const std::array<uint64_t, 3> shape{info.query_rows.size(), info.heads, budget};
    tokens.expect(DType::u32, shape);
    scores.expect(DType::f32, shape);
  }

  h5::Dataset tokens, scores;
  uint64_t budget = 0;
};

SelectionInfo read_info(const h5::File& file) {
  SelectionInfo info{.model = read_model(file),
                     .parameters = read_parameters(file),
                     .heads = static_cast<size_t>(file.integer(kRoot, kHeads, 1, 1 << 20)),
                     .query_rows = {},
                     .documents = read_documents(file)};
  const uint64_t queries = info.documents.tokens();
  info.query_rows = open_column(file, kQueryRows, queries, "queries").integers(0, queries, UINT64_MAX);
  return info;
}

void write_layer(h5::File& file, int layer, const SelectionInfo& info, const LayerSelections& selections) {
  const size_t queries = info.query_rows.size(), heads = info.heads, budget = largest(selections);
  if (selections.chosen.size() != checked_mul(queries, heads))
    throw failed("{}: layer {}: {} selections for {} queries of {} heads", file.name(), layer,
                 selections.chosen.size(), queries, heads);
  h5::DatasetWriter tokens(file, layer_path(layer, "token"), DType::u32, {heads, budget}, queries),
      scores(file, layer_path(layer, "score"), DType::f32, {heads, budget}, queries);
  std::vector<uint32_t> ids(heads * budget);
  std::vector<float> values(ids.size());
  for (size_t q = 0; q < queries; ++q) {
    std::ranges::fill(ids, kNoToken);
    std::ranges::fill(values, 0.0f);
    for (size_t head = 0; head < heads; ++head) {
      const std::vector<Scored>& chosen = selections.chosen[q * heads + head];
      for (size_t i = 0; i < chosen.size(); ++i) {
        ids[head * budget + i] = chosen[i].id;
        values[head * budget + i] = chosen[i].score;
      }
    }
    tokens.append_values<uint32_t>(ids);
    scores.append_values<float>(values);
  }
  tokens.finish();
  scores.finish();
}

}  // namespace

void write_selections(OutputFile& output, const SelectionInfo& info,
                      const std::map<int, LayerSelections>& layers, const Provenance& provenance) {
  const size_t queries = info.query_rows.size();
  if (info.documents.tokens() != queries)
    throw failed("{}: documents of {} queries; there are {}", output.target(), info.documents.tokens(),
                 queries);
  h5::File file = h5::File::create(output);
  write_dataset<uint64_t>(file, kQueryRows, DType::u64, info.query_rows);
  write_documents(file, info.documents);
  for (const auto& [layer, selections] : layers) write_layer(file, layer, info, selections);
  file.set_integer(kRoot, kHeads, static_cast<int64_t>(info.heads));
  finish_result(file, kSelectionType, info.model, &info.parameters, provenance);
}

SelectionFile read_selection_info(const std::string& name) {
  SelectionFile result;
  const h5::File file = open_file(name, kSelectionType, result.type);
  result.info = read_info(file);
  for (const int layer : layer_numbers(file, result.info.model.num_layers))
    result.budgets[layer] = LayerDatasets(file, layer, result.info).budget;
  return result;
}

LayerSelections read_selections(const std::string& name, int layer) {
  FileType type;
  const h5::File file = open_file(name, kSelectionType, type);
  const SelectionInfo info = read_info(file);
  const LayerDatasets datasets(file, layer, info);
  LayerSelections selections;
  if (info.query_rows.empty()) return selections;  // nothing stored bears out how many a row has room for
  selections.chosen.resize(info.query_rows.size() * info.heads);
  std::vector<uint32_t> ids(info.heads * datasets.budget);
  std::vector<float> values(ids.size());
  for (size_t q = 0; q < info.query_rows.size(); ++q) {
    datasets.tokens.read(q, 1, std::as_writable_bytes(std::span(ids)));
    datasets.scores.read(q, 1, std::as_writable_bytes(std::span(values)));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNoToken) continue;
      if (std::isnan(values[i])) throw datasets.scores.error("query {}: a score is not a number", q);
      selections.chosen[q * info.heads + i / datasets.budget].push_back({values[i], ids[i]});
    }
  }
  return selections;
}

}  // namespace kvcodec
