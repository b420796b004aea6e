// Tensors of a transformers DynamicCache in safetensors (INTEROP.md, "transformers"): per layer keys and values of
// [batch, heads, tokens, dimensions], with the ids, mask and positions of the batch beside them.
#include <algorithm>
#include <cctype>

#include "formats/interop/arrays.hpp"
#include "formats/io/json_file.hpp"

namespace kvcodec::interop {
namespace {

constexpr const char *kIds = "input_ids", *kMask = "attention_mask", *kPositions = "position_ids";

/// Keys and values of each layer, of all documents.
ArrayPairs find_layers(const TensorFile& file) {
  ArrayPairs layers;
  for (const std::string& name : file->names()) {
    const auto place = layer_name(name);
    if (!place) continue;
    const auto& tensor = file.need(name);
    if (tensor.shape.size() != 4)
      throw bad_input("{}: has {} dimensions; batch, heads, tokens and dimensions are wanted", tensor.origin,
                      tensor.shape.size());
    add_array(layers, *place, file.array_of(tensor, "bhtd"), file->name());
  }
  check_pairs(layers, file->name(), "tensors called layers.0.keys, past_key_values.0.key or key_cache.0");
  const uint64_t documents = layers.begin()->second[0]->extent('b');
  for (const auto& [layer, sides] : layers) {
    const auto keys = sides[0]->shape(), values = sides[1]->shape();
    if (!std::equal(keys.begin(), keys.begin() + 3, values.begin()))
      throw bad_input("{}: shape [{}] does not go with keys of [{}]", sides[1]->where,
                      fmt::join(values, ", "), fmt::join(keys, ", "));
    if (keys[0] != documents)
      throw bad_input("{}: has {} documents; the first layer has {}", sides[0]->where, keys[0], documents);
  }
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
  const auto* tensor = file->stored(name);
  if (!tensor) return {};
  if (tensor->shape.size() != 2 || tensor->shape[0] != documents || tensor->shape[1] != tokens)
    throw bad_input("{}: shape is [{}]; [{}, {}] would go with the layers", tensor->origin,
                    fmt::join(tensor->shape, ", "), documents, tokens);
  return {integers_of(*tensor)};
}

/// Tokens of the batch before layers forget any.
uint64_t batch_tokens(const TensorFile& file, const ArrayPairs& layers) {
  uint64_t tokens = 0;
  for (const auto& [layer, sides] : layers) tokens = std::max(tokens, sides[0]->extent('t'));
  for (const char* name : {kIds, kMask, kPositions})
    if (const auto* tensor = file->stored(name); tensor && tensor->shape.size() == 2)
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
  if (std::ranges::any_of(mask, [](uint64_t m) { return m > 1; }) ||
      std::find(end, mask.end(), 1) != mask.end())
    throw bad_input("{}: is not a run of ones with zeros before or behind it", where);
  return {static_cast<uint64_t>(begin - mask.begin()), static_cast<uint64_t>(end - mask.begin())};
}

std::vector<std::string> names_in(const TensorFile& file, uint64_t documents) {
  if (const std::string* text = file.metadata("documents")) {
    const auto list = nlohmann::json::parse(*text, nullptr, false);
    if (list.is_array() && list.size() == documents &&
        std::ranges::all_of(list, [](const nlohmann::json& name) { return name.is_string(); })) {
      auto names = list.get<std::vector<std::string>>();
      for (const std::string& name : names)
        if (name.find('\0') != std::string::npos)
          throw bad_input("{}: documents: the name '{}' has a zero byte; names end at one", file->name(),
                          printable(name));
      return names;
    }
  }
  std::vector<std::string> names(documents, document_name(file->name()));
  for (uint64_t i = 0; documents > 1 && i < documents; ++i) names[i] += fmt::format(":{}", i);
  return names;
}

// State of layers without keys and values: layers.3.conv_states.0 and layers.3.recurrent_states.0 of a LinearAttentionLayer, with the
// batch before the shape of the document's tensor.

/// The name of an element type in a header, or here; the types of both have one name but for its case.
std::string type_name(std::string_view name, int (*in_case)(int)) {
  std::string text(name);
  std::ranges::transform(text, text.begin(), [&](unsigned char c) { return static_cast<char>(in_case(c)); });
  return text;
}

/// True for names of the form layers.N.….
bool is_of_layer(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const size_t digits = name.find_first_not_of("0123456789");
  return digits > 0 && digits < name.size() && name[digits] == '.';
}

/// The state of document i of a batch of that many.
std::vector<StateTensor> state_of(const TensorFile& file, uint64_t i, uint64_t documents) {
  std::vector<StateTensor> state;
  for (const std::string& name : file->names()) {
    if (!is_of_layer(name) || layer_name(name)) continue;
    const auto& tensor = file.need(name);
    const auto type = value_named<DType>(type_name(tensor.dtype, std::tolower));
    if (!type || tensor.shape.empty() || tensor.shape[0] != documents)
      throw bad_input(
          "{}: is {} of [{}]; a state of {} documents has as many rows of F32, F16, BF16 and such",
          tensor.origin, tensor.dtype, fmt::join(tensor.shape, ", "), documents);
    const size_t bytes = tensor.bytes.size() / documents;
    const auto own = tensor.bytes.subspan(i * bytes, bytes);
    state.push_back({.name = name,
                     .type = *type,
                     .shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                     .digest = digest_of(own),
                     .load = [from = file.bytes_of(tensor), own] {
                       return std::vector<std::byte>(own.begin(), own.end());
                     }});
  }
  return state;
}

/// The tensors of state of the job's documents, which are the same of all, and their numbers in the plan. Adds a note on tensors that
/// are not a layer's.
std::vector<std::pair<StateTensor, size_t>> plan_state(const CacheSource& source, const ExportJob& job,
                                                       TensorPlan& plan, std::vector<std::string>& notes) {
  std::vector<std::pair<StateTensor, size_t>> tensors;
  const Documents& documents = source.documents();
  const auto first = documents.facts_of(job.documents.front()).state;
  for (const size_t document : job.documents)
    if (!std::ranges::equal(documents.facts_of(document).state, first,
                            [](const StateTensor& a, const StateTensor& b) {
                              return a.name == b.name && a.type == b.type && a.shape == b.shape;
                            }))
      throw usage_error("{}: documents '{}' and '{}' have other tensors of state; export them apart",
                        source.name(), documents.names[job.documents.front()], documents.names[document]);
  for (const StateTensor& tensor : first) {
    if (!is_of_layer(tensor.name) || layer_name(tensor.name)) continue;
    std::vector<uint64_t> shape = {job.documents.size()};
    shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
    tensors.emplace_back(tensor, plan.add(tensor.name, type_name(name_of(tensor.type), std::toupper), shape,
                                          size_of(tensor.type)));
  }
  if (const size_t others = first.size() - tensors.size(); others > 0)
    notes.push_back(
        fmt::format("{} tensors of each document's state, such as {}, are no layer's and left out", others,
                    first.back().name));
  return tensors;
}

/// Reads the file's data about its model, unless --model is given, and about its keys.
void read_model(const TensorFile& file, const ImportOptions& options, ForeignCache& cache) {
  ModelInfo& model = cache.model;
  if (const std::string* state = file.metadata("key_state"); state && *state == "pre-rope")
    model.key_state = *state;
  if (options.model) return;
  if (const std::string* name = file.metadata("model")) model.model = *name;
  constexpr int kMaxQueryHeads = 1'000'000;
  if (const std::string* text = file.metadata("num_attention_heads")) {
    const auto heads = file.metadata_number<int>("num_attention_heads");
    if (heads && *heads >= 1 && *heads <= kMaxQueryHeads && *heads % model.num_q_heads == 0)
      model.num_q_heads = *heads;
    else
      cache.notes.push_back(fmt::format(
          "num_attention_heads is '{}', which does not go with {} key/value heads; it is left out",
          printable(*text), model.num_kv_heads));
  }
  if (const auto theta = file.metadata_number<double>("rope_theta"); theta && *theta > 0 && *theta < 1e30)
    model.rope_theta = *theta;
  if (const std::string* scaling = file.metadata("rope_scaling"); scaling && model.rope_theta > 0) try {
      model.rope_scaling = parse_json_object(*scaling, "").dump();
    } catch (const Error&) {  // it counts as absent
    }
}

ForeignCache open_one(const std::string& name, const ImportOptions& options) {
  const TensorFile file(name);
  const ArrayPairs layers = find_layers(file);
  const uint64_t documents = layers.begin()->second[0]->extent('b'), tokens = batch_tokens(file, layers);
  const Table ids = read_table(file, kIds, documents, tokens),
              mask = read_table(file, kMask, documents, tokens),
              places = read_table(file, kPositions, documents, tokens);
  ForeignCache cache;
  const int count = std::max(layers.rbegin()->first + 1, options.model ? options.model->num_layers : 0);
  std::vector<LayerShape> shapes(as_size(count));
  std::optional<DType> type;
  for (const auto& [layer, sides] : layers) {
    const std::string& where = sides[0]->where;
    shapes[as_size(layer)] = {
        .heads = plausible(sides[0]->extent('h'), where + ": heads"),
        .key_dim = plausible(sides[0]->extent('d'), where + ": dimensions"),
        .value_dim = plausible(sides[1]->extent('d'), where + ": dimensions of values")};
    for (const auto& side : sides) type = wider(type, dtype_of(side->type));
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
      document.positions.push_back(places.there() ? places.row(i, tokens)[t] : t - run.begin);
      if (!ids.there()) continue;
      const uint64_t id = ids.row(i, tokens)[t];
      if (id > UINT32_MAX) throw bad_input("{}: {}: {} is not a token id", name, kIds, id);
      document.tokens.push_back(static_cast<uint32_t>(id));
    }
    for (const auto& [layer, sides] : layers) {
      const uint64_t forgotten = tokens - sides[0]->extent('t'), first = std::max(run.begin, forgotten);
      ForeignLayer& own = document.layers[layer];
      own.rows = run.end > first ? run.end - first : 0;
      for (size_t s = 0; s < 2; ++s) {
        Plane plane = sides[s]->plane(kSides[s], 0, i);
        plane.begin += (first - forgotten) * plane.token_step;
        plane.tokens = own.rows;
        own.sides[s] = reader_of(sides[s]->bytes, plane);
      }
    }
    document.state = state_of(file, i, documents);
    cache.documents.push_back(std::move(document));
  }
  return cache;
}

void describe(const CacheSource& source, const ExportJob& job, TensorPlan& plan) {
  const ModelInfo& model = source.model();
  std::vector<std::string> names;
  for (const size_t document : job.documents) names.emplace_back(source.documents().names[document]);
  plan.set("cache", "dynamic");
  plan.set("version", "1");
  plan.set("generator", generator());
  plan.set("model", model.model);
  plan.set("num_attention_heads", std::to_string(model.num_q_heads));
  plan.set("key_state", job.turn ? ModelInfo().key_state : model.key_state);
  plan.set("documents", imported_text(names));
  if (model.rope_theta > 0) plan.set("rope_theta", fmt::format("{}", model.rope_theta));
  if (!model.rope_scaling.empty()) plan.set("rope_scaling", model.rope_scaling);
}

/// Writes documents as a batch, aligned at their ends.
ExportResult write_transformers(const CacheSource& source, const ExportJob& job) {
  const Cell cell = cell_or(source.dtype(), job.options.key_type);
  const std::string dtype = dtype_of_cell(cell, "--type");
  const Documents& documents = source.documents();
  const uint64_t count = job.documents.size();
  uint64_t tokens = 0;
  for (const size_t document : job.documents) tokens = std::max(tokens, documents.length(document));
  TensorPlan plan;
  describe(source, job, plan);
  std::map<std::pair<int, Side>, std::pair<size_t, Array>> tensors;  // the number in the plan, and the array
  std::vector<uint64_t> last_tokens(as_size(source.model().num_layers));
  for (const int layer : source.layers()) {
    const LayerShape shape = source.model().layer_shape(layer);
    if (shape.values_in_keys)
      throw usage_error(
          "{}: values lie in keys in layer {}, as multi-head latent attention keeps them; transformers caches have "
          "keys and values of all heads",
          source.name(), layer);
    uint64_t held = 0;
    for (const size_t document : job.documents) held = std::max(held, documents.held(layer, document));
    if (held < tokens) last_tokens[as_size(layer)] = held;
    for (const Side side : kSides) {
      Array array{.type = cell, .axes = axes_of("bhtd", "layout")};
      const std::vector<uint64_t> extents{count, as_size(shape.heads), held, as_size(shape.stored_dim(side))};
      for (size_t i = 0; i < extents.size(); ++i) array.axes[i].extent = extents[i];
      const std::string name = fmt::format("layers.{}.{}s", layer, name_of(side));
      tensors[{layer, side}] = {plan.add(name, dtype, extents, block_of(cell).bytes), std::move(array)};
    }
  }
  if (std::ranges::any_of(last_tokens, [](uint64_t n) { return n > 0; }))
    plan.set("layer_last_tokens", nlohmann::json(last_tokens).dump());
  std::vector<std::string> notes;
  const auto states = plan_state(source, job, plan, notes);
  std::map<std::string, size_t> tables;
  for (const char* name : {kIds, kMask, kPositions})
    if (name != kIds || source.has_tokens())
      tables[name] = plan.add(name, "I64", {count, tokens}, sizeof(int64_t));
  TargetFile file(job.path, job.overwrite);
  plan.write_header(file);
  for (const auto& [place, tensor] : tensors)
    for (size_t i = 0; i < count; ++i) {
      const auto [layer, side] = place;
      const auto& [number, array] = tensor;
      const Plane plane = plane_in_array(cell, plan.begin(number), array.axes, {.document = i});
      const uint64_t pad = array.extent('t') - documents.held(layer, job.documents[i]);
      for_each_piece(source, job, {side, layer, job.documents[i]},
                     [&](uint64_t first, MatrixView<float> rows) { file.write(plane, pad + first, rows); });
    }
  for (size_t i = 0; i < count; ++i) {
    const auto put = [&](const char* name, const auto& numbers) {
      std::vector<int64_t> row(tokens - numbers.size());
      row.insert(row.end(), numbers.begin(), numbers.end());
      file.write(plan.begin(tables.at(name)) + i * tokens * sizeof(int64_t), std::as_bytes(std::span(row)));
    };
    if (source.has_tokens()) put(kIds, source.tokens_of(job.documents[i]));
    put(kMask, std::vector<int64_t>(documents.length(job.documents[i]), 1));
    put(kPositions, source.positions_of(job.documents[i]));
  }
  for (const auto& [tensor, number] : states)
    for (size_t i = 0; i < count; ++i) {
      const auto state = documents.facts_of(job.documents[i]).state;
      const auto own = std::ranges::find(state, tensor.name, &StateTensor::name);
      file.write(plan.begin(number) + i * tensor.bytes(), own->load());
    }
  ExportResult result = finish(file, job);
  result.notes = std::move(notes);
  return result;
}

}  // namespace

ForeignFormat transformers_format() {
  return {.name = "transformers",
          .summary = "tensors of a DynamicCache, safetensors",
          .is_of =
              [](const std::string& file) {
                return std::ranges::any_of(TensorFile(file)->names(), [](const std::string& name) {
                  return layer_name(name).has_value();
                });
              },
          .open =
              [](const auto& files, const auto& options) {
                return joined(files, [&](const std::string& file) { return open_one(file, options); });
              },
          .write = write_transformers,
          .export_options = {"type"},
          .writes_state = true};
}

}  // namespace kvcodec::interop
