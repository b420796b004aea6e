// Tensors of a transformers DynamicCache in safetensors (INTEROP.md, "transformers"): per layer keys and values of
// [batch, heads, tokens, dimensions], with the ids, mask and positions of the batch beside them.
#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "formats/interop/foreign.hpp"
#include "formats/interop/layer_names.hpp"
#include "formats/interop/tensors.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {
namespace {

constexpr const char *kIds = "input_ids", *kMask = "attention_mask", *kPositions = "position_ids";

/// Keys and values of a layer, of all documents.
struct LayerTensors {
  std::optional<Safetensors::Stored> sides[2];
  uint64_t tokens() const { return sides[0]->shape[2]; }
};

std::map<int, LayerTensors> find_layers(const TensorFile& file) {
  std::map<int, LayerTensors> layers;
  for (const std::string& name : file->names()) {
    const auto place = layer_name(name);
    if (!place) continue;
    auto& side = layers[place->layer].sides[place->side];
    if (side) throw bad_input("{}: layer {} is there twice, under two names", file->name(), place->layer);
    side = file.need(name);
    if (side->shape.size() != 4)
      throw bad_input("{}: has {} dimensions; batch, heads, tokens and dimensions are wanted", side->origin,
                      side->shape.size());
    if (std::find(side->shape.begin(), side->shape.end(), 0) != side->shape.end())
      throw bad_input("{}: shape is [{}], which holds nothing", side->origin, fmt::join(side->shape, ", "));
  }
  for (const auto& [layer, tensors] : layers) {
    for (size_t s = 0; s < 2; ++s)
      if (!tensors.sides[s])
        throw bad_input("{}: layer {} has no {}s", file->name(), layer, name_of(kSides[s]));
    const auto &keys = tensors.sides[0]->shape, &values = tensors.sides[1]->shape;
    if (!std::equal(keys.begin(), keys.begin() + 3, values.begin()))
      throw bad_input("{}: shape [{}] does not go with keys of [{}]", tensors.sides[1]->origin,
                      fmt::join(values, ", "), fmt::join(keys, ", "));
    if (keys[0] != layers.begin()->second.sides[0]->shape[0])
      throw bad_input("{}: has {} documents; the first layer has {}", tensors.sides[0]->origin, keys[0],
                      layers.begin()->second.sides[0]->shape[0]);
  }
  if (layers.empty())
    throw bad_input("{}: it has no tensors called layers.0.keys, past_key_values.0.key or key_cache.0",
                    file->name());
  return layers;
}

/// A tensor of [documents, tokens] beside the layers.
struct Table {
  std::vector<uint64_t> values;
  bool there() const { return !values.empty(); }
  std::span<const uint64_t> row(size_t document, uint64_t tokens) const {
    return std::span(values).subspan(document * tokens, tokens);
  }
};
Table read_table(const TensorFile& file, const char* name, uint64_t documents, uint64_t tokens) {
  const auto tensor = file->stored(name);
  if (!tensor) return {};
  if (tensor->shape.size() != 2 || tensor->shape[0] != documents || tensor->shape[1] != tokens)
    throw bad_input("{}: shape is [{}]; [{}, {}] would go with the layers", tensor->origin,
                    fmt::join(tensor->shape, ", "), documents, tokens);
  return {integers_of(*tensor)};
}

/// Tokens of the batch before layers forget any.
uint64_t batch_tokens(const TensorFile& file, const std::map<int, LayerTensors>& layers) {
  uint64_t tokens = 0;
  for (const auto& [layer, tensors] : layers) tokens = std::max(tokens, tensors.tokens());
  for (const char* name : {kIds, kMask, kPositions})
    if (const auto tensor = file->stored(name); tensor && tensor->shape.size() == 2)
      tokens = std::max(tokens, tensor->shape[1]);
  return tokens;
}

/// The run of a mask's ones.
struct Run {
  uint64_t begin, end;
};
Run run_of(std::span<const uint64_t> mask, const std::string& where) {
  const auto begin = std::find(mask.begin(), mask.end(), 1);
  const auto end = std::find(begin, mask.end(), 0);
  if (std::any_of(mask.begin(), mask.end(), [](uint64_t m) { return m > 1; }) ||
      std::find(end, mask.end(), 1) != mask.end())
    throw bad_input("{}: is not a run of ones with zeros before or behind it", where);
  return {static_cast<uint64_t>(begin - mask.begin()), static_cast<uint64_t>(end - mask.begin())};
}

std::vector<std::string> names_in(const TensorFile& file, uint64_t documents) {
  std::vector<std::string> names;
  const std::string own = document_name(file->name());
  if (const std::string* text = file.metadata("documents")) {
    const auto list = nlohmann::json::parse(*text, nullptr, false);
    if (list.is_array() && list.size() == documents)
      for (const auto& name : list)
        if (name.is_string()) names.push_back(name.get<std::string>());
  }
  if (names.size() == documents) return names;
  names.clear();
  for (uint64_t i = 0; i < documents; ++i)
    names.push_back(documents == 1 ? own : fmt::format("{}:{}", own, i));
  return names;
}

/// A number that is all of a metadata text; nothing if that is no such number.
template <class Number>
std::optional<Number> metadata_number(const TensorFile& file, const char* name) {
  const std::string* text = file.metadata(name);
  if (!text) return std::nullopt;
  Number value{};
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  return error == std::errc{} && stop == end ? std::optional(value) : std::nullopt;
}

/// What the file says of its model, where --model says nothing, and of its keys.
void read_model(const TensorFile& file, const ImportOptions& options, ForeignCache& cache) {
  ModelInfo& model = cache.model;
  if (const std::string* state = file.metadata("key_state"); state && *state == "pre-rope")
    model.key_state = *state;
  if (options.model) return;
  if (const std::string* name = file.metadata("model")) model.model = *name;
  constexpr int kMostQueryHeads = 1'000'000;
  if (const std::string* text = file.metadata("num_attention_heads")) {
    const auto heads = metadata_number<int>(file, "num_attention_heads");
    if (heads && *heads >= 1 && *heads <= kMostQueryHeads && *heads % model.num_q_heads == 0)
      model.num_q_heads = *heads;
    else
      cache.notes.push_back(fmt::format(
          "num_attention_heads is '{}', which does not go with {} key/value heads; it is left out",
          printable(*text), model.num_kv_heads));
  }
  if (const auto theta = metadata_number<double>(file, "rope_theta"); theta && *theta > 0 && *theta < 1e30)
    model.rope_theta = *theta;
  if (const std::string* scaling = file.metadata("rope_scaling"); scaling && model.rope_theta > 0)
    if (const auto object = json_object_in(*scaling)) model.rope_scaling = object->dump();
}

ForeignLayer layer_rows(const TensorFile& file, const LayerTensors& tensors, size_t document, const Run& run,
                        uint64_t tokens) {
  const uint64_t forgotten = tokens - tensors.tokens(), first = std::max(run.begin, forgotten);
  ForeignLayer layer{.rows = run.end > first ? run.end - first : 0};
  for (size_t s = 0; s < 2; ++s) {
    const Safetensors::Stored& tensor = *tensors.sides[s];
    const Axis axes[] = {
        {'b', tensor.shape[0]}, {'h', tensor.shape[1]}, {'t', tensor.shape[2]}, {'d', tensor.shape[3]}};
    Plane plane = plane_in_array(need_cell(tensor), 0, axes, {.document = document});
    plane.begin = checked_add(plane.begin, checked_mul(first - forgotten, plane.token_step));
    plane.tokens = layer.rows;
    check_plane(plane, tensor.bytes.size(), tensor.origin + ": elements");
    layer.sides[s] = reader_of(file.bytes_of(tensor), plane);
  }
  return layer;
}

ForeignCache open_one(const std::string& name, const ImportOptions& options) {
  const TensorFile file(name);
  const auto layers = find_layers(file);
  const uint64_t documents = layers.begin()->second.sides[0]->shape[0], tokens = batch_tokens(file, layers);
  const Table ids = read_table(file, kIds, documents, tokens),
              mask = read_table(file, kMask, documents, tokens),
              places = read_table(file, kPositions, documents, tokens);
  ForeignCache cache;
  const int count = options.model ? std::max(options.model->num_layers, layers.rbegin()->first + 1)
                                  : layers.rbegin()->first + 1;
  std::vector<LayerShape> shapes(as_size(count));
  std::optional<DType> type;
  for (const auto& [layer, tensors] : layers) {
    const auto &keys = tensors.sides[0]->shape, &values = tensors.sides[1]->shape;
    const std::string& where = tensors.sides[0]->origin;
    shapes[as_size(layer)] = {.heads = plausible(keys[1], where + ": heads"),
                              .key_dim = plausible(keys[3], where + ": dimensions"),
                              .value_dim = plausible(values[3], where + ": dimensions of values")};
    for (const auto& side : tensors.sides) type = wider(type, dtype_of(need_cell(*side)));
  }
  cache.dtype = *type;
  with_context(name, [&] {
    cache.model =
        model_of(std::move(shapes), options, "transformers cache " + document_name(name), cache.notes);
  });
  read_model(file, options, cache);
  const auto names = names_in(file, documents);
  for (size_t i = 0; i < documents; ++i) {
    const Run run = mask.there()
                        ? run_of(mask.row(i, tokens), fmt::format("{}: {} of document {}", name, kMask, i))
                        : Run{0, tokens};
    ForeignDocument document{.name = names[i]};
    for (uint64_t t = run.begin; t < run.end; ++t) {
      if (ids.there()) {
        const uint64_t id = ids.row(i, tokens)[t];
        if (id > UINT32_MAX) throw bad_input("{}: {}: {} is not a token id", name, kIds, id);
        document.tokens.push_back(static_cast<uint32_t>(id));
      }
      document.positions.push_back(places.there() ? places.row(i, tokens)[t] : t - run.begin);
    }
    for (const auto& [layer, tensors] : layers)
      document.layers.emplace(layer, layer_rows(file, tensors, i, run, tokens));
    cache.documents.push_back(std::move(document));
  }
  return cache;
}

/// The batch that documents become, each at its right end.
struct Batch {
  std::vector<size_t> documents;
  uint64_t tokens = 0;
  uint64_t pad(const CacheSource& source, size_t i) const {
    return tokens - source.documents().length(documents[i]);
  }
};

void describe(const CacheSource& source, const Batch& batch, TensorPlan& plan) {
  const ModelInfo& model = source.model();
  std::vector<std::string> names;
  for (const size_t document : batch.documents) names.emplace_back(source.documents().names[document]);
  plan.set("cache", "dynamic");
  plan.set("version", "1");
  plan.set("generator", generator());
  plan.set("model", model.model);
  plan.set("num_attention_heads", std::to_string(model.num_q_heads));
  plan.set("key_state", model.key_state);
  plan.set("documents", nlohmann::json(names).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (model.rope_theta > 0) plan.set("rope_theta", fmt::format("{}", model.rope_theta));
  if (!model.rope_scaling.empty()) plan.set("rope_scaling", model.rope_scaling);
}

void write_tables(const CacheSource& source, const Batch& batch, const std::map<std::string, size_t>& tables,
                  const TensorPlan& plan, TargetFile& file) {
  for (size_t i = 0; i < batch.documents.size(); ++i) {
    const uint64_t pad = batch.pad(source, i), length = batch.tokens - pad;
    std::vector<int64_t> ids(batch.tokens), mask(batch.tokens), places(batch.tokens);
    if (source.has_tokens()) {
      const auto tokens = source.tokens(batch.documents[i]);
      std::copy(tokens.begin(), tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(pad));
    }
    const auto positions = source.positions(batch.documents[i]);
    for (uint64_t t = 0; t < length; ++t) {
      mask[pad + t] = 1;
      places[pad + t] = static_cast<int64_t>(positions[t]);
    }
    const auto put = [&](const char* name, const std::vector<int64_t>& values) {
      if (const auto table = tables.find(name); table != tables.end())
        file.write(plan.begin(table->second) + i * batch.tokens * sizeof(int64_t),
                   std::as_bytes(std::span(values)));
    };
    put(kIds, ids), put(kMask, mask), put(kPositions, places);
  }
}

bool is_transformers(const std::string& file) {
  return is_tensor_file(file, [](const TensorFile& tensors) {
    const auto names = tensors->names();
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return layer_name(name).has_value(); });
  });
}

ForeignCache open_transformers(const std::vector<std::string>& files, const ImportOptions& options) {
  return joined(files, [&](const std::string& file) { return open_one(file, options); });
}

ExportResult write_transformers(const CacheSource& source, const ExportJob& job) {
  const Cell cell = cell_or(source.dtype(), job.options.key_type);
  const std::string dtype = dtype_of_cell(cell, "--type");
  Batch batch{.documents = job.documents, .tokens = 0};
  for (const size_t document : batch.documents)
    batch.tokens = std::max(batch.tokens, source.documents().length(document));
  TensorPlan plan;
  describe(source, batch, plan);
  const uint64_t count = batch.documents.size();
  std::map<int, std::array<size_t, 2>> tensors;
  std::map<int, uint64_t> columns;  // tokens of the document that has the most in the layer
  std::vector<uint64_t> last_tokens(as_size(source.model().num_layers));
  for (const int layer : source.layers()) {
    const LayerShape shape = source.model().layer_shape(layer);
    if (shape.values_in_keys)
      throw usage_error(
          "{}: values lie in keys in layer {}, as multi-head latent attention keeps them; transformers caches have "
          "keys and values of all heads",
          source.name(), layer);
    uint64_t& held = columns[layer];
    for (const size_t document : batch.documents)
      held = std::max(held, source.documents().held(layer, document));
    if (held < batch.tokens) last_tokens[as_size(layer)] = held;
    for (const Side side : kSides) {
      const std::vector<uint64_t> extents{count, static_cast<uint64_t>(shape.heads), columns[layer],
                                          static_cast<uint64_t>(shape.stored_dim(side))};
      tensors[layer][static_cast<size_t>(side)] =
          plan.add(fmt::format("layers.{}.{}s", layer, name_of(side)), dtype, extents,
                   checked_mul(checked_product(extents), block_of(cell).bytes));
    }
  }
  if (std::any_of(last_tokens.begin(), last_tokens.end(), [](uint64_t n) { return n > 0; }))
    plan.set("layer_last_tokens", nlohmann::json(last_tokens).dump());
  std::map<std::string, size_t> tables;
  for (const char* name : {kIds, kMask, kPositions})
    if (name != kIds || source.has_tokens())
      tables[name] = plan.add(name, "I64", {count, batch.tokens}, count * batch.tokens * sizeof(int64_t));
  TargetFile file(job.path, job.overwrite);
  plan.write_header(file);
  for (const int layer : source.layers())
    for (const Side side : kSides) {
      const LayerShape shape = source.model().layer_shape(layer);
      const Axis axes[] = {{'b', count},
                           {'h', static_cast<uint64_t>(shape.heads)},
                           {'t', columns[layer]},
                           {'d', static_cast<uint64_t>(shape.stored_dim(side))}};
      for (size_t i = 0; i < count; ++i) {
        const Plane plane = plane_in_array(cell, plan.begin(tensors[layer][static_cast<size_t>(side)]), axes,
                                           {.document = i});
        const uint64_t pad = columns[layer] - source.documents().held(layer, batch.documents[i]);
        for_each_piece(source, job, side, layer, batch.documents[i],
                       [&](uint64_t first, MatrixView<float> rows) { file.write(plane, pad + first, rows); });
      }
    }
  write_tables(source, batch, tables, plan, file);
  return finish(file, job);
}

}  // namespace

ForeignFormat transformers_format() {
  return {.name = "transformers",
          .summary = "tensors of a DynamicCache, safetensors",
          .recognise = is_transformers,
          .open = open_transformers,
          .write = write_transformers,
          .export_options = {"type"}};
}

}  // namespace kvcodec::interop
