#include "formats/results/selection_file.hpp"

#include <algorithm>
#include <cmath>

#include "formats/cache/header_io.hpp"
#include "formats/cache/record_json.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kSelectionType = "selection";

size_t largest(const LayerSelections& layer) {
  size_t most = 0;
  for (const auto& chosen : layer.chosen) most = std::max(most, chosen.size());
  return std::max<size_t>(most, 1);
}

/// A layer's two datasets, checked against each other and the queries.
struct LayerDatasets {
  LayerDatasets(const h5::File& file, int layer, uint64_t queries, uint64_t heads)
      : tokens(file.dataset(layer_path(layer, "token"))), scores(file.dataset(layer_path(layer, "score"))) {
    if (tokens.shape().size() != 3)
      throw tokens.error("has {} dimensions; there are 3", tokens.shape().size());
    budget = tokens.shape()[2];
    const std::vector<uint64_t> shape{queries, heads, budget};
    tokens.expect(DType::u32, shape);
    scores.expect(DType::f32, shape);
  }
  h5::Dataset tokens, scores;
  uint64_t budget = 0;
};

SelectionInfo read_info(const h5::File& file, const FileType& type) {
  SelectionInfo info;
  info.model = read_model(file, type);
  info.parameters = with_context(file.name() + ": attribute 'parameters'",
                                 [&] { return record_from_json(file.text("/", "parameters")); });
  info.heads = static_cast<size_t>(file.integer("/", "heads", 1, 1 << 20));
  const h5::Dataset rows = file.dataset("/query_position");
  info.query_rows = rows.integers(0, rows.rows(), UINT64_MAX);
  if (file.has("/documents/name")) {
    info.documents = read_documents(file);
    if (info.documents.tokens() != info.query_rows.size())
      throw file.error("/documents/offset", "ends at {}; there are {} queries", info.documents.tokens(),
                       info.query_rows.size());
  }
  return info;
}

}  // namespace

void write_selections(OutputFile& output, const SelectionInfo& info,
                      const std::map<int, LayerSelections>& layers, const Provenance& provenance) {
  h5::File file = h5::File::create(output);
  const size_t queries = info.query_rows.size();
  h5::DatasetWriter rows(file, "/query_position", DType::u64, {}, queries);
  rows.append_values<uint64_t>(info.query_rows);
  rows.finish();
  if (info.documents.count() > 0) {
    if (info.documents.tokens() != queries)
      throw failed("{}: documents of {} queries; there are {}", output.target(), info.documents.tokens(),
                   queries);
    write_documents(file, info.documents);
  }
  for (const auto& [layer, selections] : layers) {
    if (selections.chosen.size() != checked_mul(queries, info.heads))
      throw failed("{}: layer {}: {} selections for {} queries of {} heads", output.target(), layer,
                   selections.chosen.size(), queries, info.heads);
    const size_t budget = largest(selections);
    file.make_group(fmt::format("/layers/{}", layer));
    h5::DatasetWriter tokens(file, layer_path(layer, "token"), DType::u32, {info.heads, budget}, queries);
    h5::DatasetWriter scores(file, layer_path(layer, "score"), DType::f32, {info.heads, budget}, queries);
    std::vector<uint32_t> ids(info.heads * budget);
    std::vector<float> values(ids.size());
    for (size_t q = 0; q < queries; ++q) {
      std::ranges::fill(ids, kNoToken);
      std::ranges::fill(values, 0.0f);
      for (size_t head = 0; head < info.heads; ++head) {
        const std::vector<Scored>& chosen = selections.chosen[q * info.heads + head];
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
  write_model(file, info.model);
  file.set_text("/", "parameters", to_json_text(info.parameters));
  file.set_integer("/", "heads", static_cast<int64_t>(info.heads));
  write_file_type(file, std::string(kSelectionType), info.model, provenance);
  file.close();
}

SelectionFile read_selection_info(const std::string& name) {
  SelectionFile result;
  const h5::File file = open_file(name, kSelectionType, result.type);
  result.info = read_info(file, result.type);
  for (const int layer : layer_numbers(file, result.info.model.num_layers))
    result.budgets[layer] =
        LayerDatasets(file, layer, result.info.query_rows.size(), result.info.heads).budget;
  return result;
}

LayerSelections read_selections(const std::string& name, int layer) {
  FileType type;
  const h5::File file = open_file(name, kSelectionType, type);
  const SelectionInfo info = read_info(file, type);
  const LayerDatasets datasets(file, layer, info.query_rows.size(), info.heads);
  LayerSelections selections;
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
