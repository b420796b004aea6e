// Attributes of the root: types, histories, models.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include <nlohmann/json.hpp>

#include "formats/cache/header_io.hpp"
#include "formats/cache/score_forms.hpp"
#include "formats/io/json_file.hpp"
#include "kvcodec/version.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {

/// The types that this program reads and writes, and the version that all of them have.
constexpr std::string_view kTypes[] = {"kv",        "dictionary", "codebooks",   "codes",    "index",
                                       "selection", "outputs",    "sensitivity", "transform"};
constexpr int kFormatVersion = 1;

static bool is_known_type(std::string_view name) {
  return std::ranges::find(kTypes, name) != std::end(kTypes);
}

/// The largest number of a model's shape, as in books: far beyond any real one. Readers may go through all layers.
constexpr int kMaxOfShape = 1 << 20;
/// All strings of an attribute are as long as the longest, and every reader of a file reads all of them.
constexpr size_t kMaxHistoryBytes = 250000;
/// Limits for the words of a command, and for a line of history, which also has results; so shortened words fit a line.
constexpr size_t kMaxWordBytes = 4000, kMaxLineBytes = 6000;

/// Text of at most that many bytes on one line: if it is longer, its beginning and its last bytes.
static std::string bounded_line(std::string line, size_t limit) {
  constexpr size_t kEnd = 1000, kMark = 64;
  std::ranges::replace(line, '\n', ' ');
  if (line.size() <= limit) return line;
  const size_t begin = limit - kEnd - kMark;
  return fmt::format("{} (... {} bytes ...) {}", line.substr(0, begin), line.size() - begin - kEnd,
                     line.substr(line.size() - kEnd));
}

/// Counts the commands that a line of a history stands for: one, unless the line gives a larger number.
static uint64_t commands_in(const std::string& line) {
  unsigned long long more = 0;
  int length = 0;
  const bool is_count = std::sscanf(line.c_str(), "(and %llu more commands)%n", &more, &length) == 1 &&
                        length == static_cast<int>(line.size());
  return is_count ? more : 1;
}

/// The commands that led to a file, the last one its own. Of thousands, as for a joined file, only the first stay, and the number
/// of the others.
static std::vector<std::string> bounded_history(const Provenance& provenance) {
  std::vector<std::string> lines;
  for (const std::string& line : provenance.history) lines.push_back(history_line(line));
  std::string own = history_line(provenance.command);
  size_t longest = own.size(), kept = 0;
  for (; kept < lines.size(); ++kept) {
    longest = std::max({longest, lines[kept].size(), size_t{64}});
    if (longest * (kept + 3) > kMaxHistoryBytes) break;
  }
  if (kept < lines.size()) {
    uint64_t more = 0;
    for (size_t i = kept; i < lines.size(); ++i) more += commands_in(lines[i]);
    lines.resize(kept);
    lines.push_back(fmt::format("(and {} more commands)", more));
  }
  lines.push_back(std::move(own));
  return lines;
}

// Attributes with an integer per layer.
constexpr char kLayerHeads[] = "layer_heads", kKeyDim[] = "layer_key_dim", kValueDim[] = "layer_value_dim",
               kValuesInKeys[] = "layer_values_in_keys", kSource[] = "layer_source";

/// Throws Error(bad_input) for an impossible layer. number: that of the layer.
static void check_layer(const h5::File& file, const ModelInfo& model, int number, const LayerShape& layer) {
  const auto wrong = [&](const std::string& what) { throw file.error(kRoot, "layer {}: {}", number, what); };
  if (layer.heads == 0) {
    if (layer.key_dim != 0 || layer.value_dim != 0 || layer.values_in_keys)
      wrong("it has no heads, but dimensions of them");
    if (layer.source >= 0 && model.layer_shapes[static_cast<size_t>(layer.source)].heads == 0)
      wrong(fmt::format("its keys and values are those of layer {}, which has none", layer.source));
    return;
  }
  if (layer.source >= 0) wrong("it has heads of its own, and those of another layer");
  if (layer.heads > model.num_kv_heads || model.num_q_heads % layer.heads != 0)
    wrong(fmt::format("{} heads; num_kv_heads is {}, and num_q_heads {}", layer.heads, model.num_kv_heads,
                      model.num_q_heads));
  if (layer.key_dim < 1 || layer.key_dim > model.head_dim || layer.value_dim < 1)
    wrong(fmt::format("keys of {} dimensions and values of {}; head_dim is {}", layer.key_dim,
                      layer.value_dim, model.head_dim));
  if (layer.values_in_keys && layer.value_dim > layer.key_dim)
    wrong(fmt::format("values of {} dimensions cannot lie in keys of {}", layer.value_dim, layer.key_dim));
}

static std::vector<LayerShape> read_layer_shapes(const h5::File& file, const ModelInfo& model) {
  const auto count = static_cast<size_t>(model.num_layers);
  const auto numbers = [&](const char* name, int limit) {
    const std::vector<uint64_t> values = file.extents(kRoot, name);
    if (values.size() != count)
      throw file.error(kRoot, "attribute '{}' has {} numbers for {} layers", name, values.size(), count);
    for (const uint64_t value : values)
      if (value > static_cast<uint64_t>(limit))
        throw file.error(kRoot, "attribute '{}' has a {}; at most {} is possible", name, value, limit);
    return std::vector<int>(values.begin(), values.end());
  };
  const auto heads = numbers(kLayerHeads, kMaxOfShape), keys = numbers(kKeyDim, kMaxOfShape),
             values = numbers(kValueDim, kMaxOfShape), in_keys = numbers(kValuesInKeys, 1),
             sources = numbers(kSource, model.num_layers - 1);
  std::vector<LayerShape> shapes;
  for (size_t i = 0; i < count; ++i)
    shapes.push_back({.heads = heads[i],
                      .key_dim = keys[i],
                      .value_dim = values[i],
                      .values_in_keys = in_keys[i] == 1,
                      .source = sources[i] == static_cast<int>(i) ? -1 : sources[i]});
  return shapes;
}

static void write_layer_shapes(h5::File& file, const ModelInfo& model) {
  const auto write = [&](const char* name, const auto& number_of) {
    std::vector<uint64_t> numbers;
    for (int layer = 0; layer < model.num_layers; ++layer)
      numbers.push_back(as_size(number_of(model.layer_shape(layer), layer)));
    file.set_extents(kRoot, name, numbers);
  };
  write(kLayerHeads, [](const LayerShape& shape, int) { return shape.heads; });
  write(kKeyDim, [](const LayerShape& shape, int) { return shape.key_dim; });
  write(kValueDim, [](const LayerShape& shape, int) { return shape.value_dim; });
  write(kValuesInKeys, [](const LayerShape& shape, int) { return int{shape.values_in_keys}; });
  write(kSource, [](const LayerShape& shape, int own) { return shape.source < 0 ? own : shape.source; });
}

constexpr char kImported[] = "imported", kFamily[] = "family", kScores[] = "scores";

std::string history_words(std::string words) { return bounded_line(std::move(words), kMaxWordBytes); }

std::string history_line(std::string line) { return bounded_line(std::move(line), kMaxLineBytes); }

std::string generator() { return std::string("kvcodec ") + kVersion; }

int64_t now() {
  const char* fixed = std::getenv("SOURCE_DATE_EPOCH");
  if (!fixed) return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const auto value = number_in<int64_t>(fixed);
  if (!value) throw usage_error("SOURCE_DATE_EPOCH is '{}'; seconds since 1970 are wanted", fixed);
  return *value;
}

std::string date_text(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc = {};
  ::gmtime_r(&time, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

FileType identify(const std::string& file) { return read_file_type(h5::File::open(file)); }

FileType read_file_type(const h5::File& file, std::string_view wanted) {
  if (!file.has_attribute(kRoot, "kvcodec_type"))
    throw file.error(kRoot, "not a kvcodec file: it has no attribute 'kvcodec_type'");
  FileType type;
  type.type = file.text(kRoot, "kvcodec_type");
  if (!is_known_type(type.type))
    throw file.error(kRoot, "is of type '{}', which kvcodec {} does not know", type.type, kVersion);
  const auto article = [](std::string_view word) { return word.find_first_of("aeiou") == 0 ? "an" : "a"; };
  if (!wanted.empty() && type.type != wanted)
    throw file.error(kRoot, "is {} {} file; {} {} file is wanted here", article(type.type), type.type,
                     article(wanted), wanted);
  type.version = static_cast<int>(file.integer(kRoot, "kvcodec_version", 1, std::numeric_limits<int>::max()));
  if (type.version > kFormatVersion)
    throw file.error(kRoot, "is a {} file of version {}; kvcodec {} reads versions up to {}", type.type,
                     type.version, kVersion, kFormatVersion);
  type.generator = file.text(kRoot, "generator");
  type.created = file.text(kRoot, "created");
  type.history = file.texts(kRoot, "history");
  return type;
}

h5::File open_file(const std::string& name, std::string_view wanted, FileType& type) {
  // Readers of all types read kWhole first, and look up documents in kByRows.
  constexpr const char* kWhole[] = {"/documents/name",         "/documents/offset", "/documents/left_out",
                                    "/documents/digest",       "/documents/time",   "/documents/metadata",
                                    "/documents/metadata_end", "/digests",          "/totals"};
  constexpr const char* kByRows[] = {"/parts", "/tokens", "/positions"};
  h5::File file = h5::File::open(name);
  type = read_file_type(file, wanted);
  file.will_read(kWhole, ReadPlan::whole);
  file.will_read(kByRows, ReadPlan::some_rows);
  return file;
}

void write_file_type(h5::File& file, const std::string& type, const Provenance& provenance) {
  if (!is_known_type(type)) throw internal_error("'{}' is not a file type", type);
  file.set_text(kRoot, "kvcodec_type", type);
  file.set_integer(kRoot, "kvcodec_version", kFormatVersion);
  file.set_text(kRoot, "generator", generator());
  file.set_text(kRoot, "created", timestamp());
  file.set_texts(kRoot, "history", bounded_history(provenance));
}

void check_same_weights(const std::string& name, const ModelInfo& model, const std::string& other_name,
                        const ModelInfo& other) {
  if (model.weights().empty() || other.weights().empty() || model.weights() == other.weights()) return;
  throw bad_input("{}: is of a model with other weights ('{}', digest {}) than {} ('{}', digest {})", name,
                  model.model, model.weights(), other_name, other.model, other.weights());
}

void check_same_model(const std::string& name, const ModelInfo& a, const std::string& other_name,
                      const ModelInfo& b) {
  const auto differ = [&](const char* what, const auto& mine, const auto& theirs) {
    if (mine != theirs) throw bad_input("{}: {} is {}; {} has {}", name, what, mine, other_name, theirs);
  };
  differ("num_layers", a.num_layers, b.num_layers);
  differ("num_q_heads", a.num_q_heads, b.num_q_heads);
  differ("num_kv_heads", a.num_kv_heads, b.num_kv_heads);
  differ("head_dim", a.head_dim, b.head_dim);
  if (a.layer_shapes != b.layer_shapes)
    throw bad_input("{}: its layers have other shapes than those of {}", name, other_name);
  differ("key_state", a.key_state, b.key_state);
  differ("rope_theta", a.rope_theta, b.rope_theta);
  differ("rope_scaling", a.rope_scaling, b.rope_scaling);
  check_same_weights(name, a, other_name, b);
  if (a.weights().empty() || b.weights().empty()) differ("model", a.model, b.model);
}

ModelInfo with_layer_shapes(ModelInfo model, std::vector<LayerShape> shapes) {
  const LayerShape usual = usual_layer(model.num_kv_heads, model.head_dim);
  if (std::ranges::count(shapes, usual) == std::ssize(shapes)) shapes.clear();
  model.layer_shapes = std::move(shapes);
  return model;
}

GroupShape group_shape(const ModelInfo& model, std::vector<int> layers, Side side) {
  const LayerShape first = model.layer_shape(layers.front());
  for (const int layer : layers)
    if (model.layer_shape(layer) != first)
      throw failed("layers {} and {} have other shapes and lie in one group", layers.front(), layer);
  GroupShape shape{std::move(layers), first, side};
  if (shape.width() == 0) throw failed("layer {} has no rows of '{}'", shape.first_layer(), name_of(side));
  return shape;
}

ModelInfo read_model(const h5::File& file) {
  ModelInfo model;
  model.model = file.text(kRoot, "model");
  if (file.has_attribute(kRoot, kFamily)) model.family = file.text(kRoot, kFamily);
  model.num_layers = static_cast<int>(file.integer(kRoot, "num_layers", 1, kMaxOfShape));
  model.num_kv_heads = static_cast<int>(file.integer(kRoot, "num_kv_heads", 1, kMaxOfShape));
  model.num_q_heads = static_cast<int>(file.integer(kRoot, "num_q_heads", 1, kMaxOfShape));
  model.head_dim = static_cast<int>(file.integer(kRoot, "head_dim", 1, kMaxOfShape));
  if (model.num_q_heads % model.num_kv_heads != 0)
    throw file.error(kRoot, "attribute 'num_q_heads' is {}, no multiple of num_kv_heads {}",
                     model.num_q_heads, model.num_kv_heads);
  model.rope_theta = file.number(kRoot, "rope_theta");
  if (!std::isfinite(model.rope_theta) || model.rope_theta < 0)
    throw file.error(kRoot, "attribute 'rope_theta' is {}; 0 or a positive number is possible",
                     model.rope_theta);
  model.rope_scaling = file.text(kRoot, "rope_scaling");
  model.key_state = file.text(kRoot, "key_state");
  if (model.key_state != "post-rope" && model.key_state != "pre-rope")
    throw file.error(kRoot, "attribute 'key_state' is '{}'; post-rope and pre-rope are possible",
                     model.key_state);
  model.source = file.text(kRoot, "source");
  if (file.has_attribute(kRoot, kImported)) model.imported = file.text(kRoot, kImported);
  for (const auto& [name, text] :
       {std::pair("rope_scaling", &model.rope_scaling), {kImported, &model.imported}})
    if (!text->empty()) (void)parse_json_object(*text, fmt::format("{}: attribute '{}'", file.name(), name));
  if (file.has_attribute(kRoot, kScores)) model.scores = file.text(kRoot, kScores);
  try {
    (void)score_forms(model);
  } catch (const Error& error) {
    throw error.at(file.name());
  }
  if (!file.has_attribute(kRoot, kLayerHeads)) return model;
  model.layer_shapes = read_layer_shapes(file, model);
  for (int layer = 0; layer < model.num_layers; ++layer)
    check_layer(file, model, layer, model.layer_shape(layer));
  return with_layer_shapes(model, model.layer_shapes);
}

void write_model(h5::File& file, const ModelInfo& model) {
  file.set_text(kRoot, "model", model.model);
  if (!model.family.empty()) file.set_text(kRoot, kFamily, model.family);
  file.set_integer(kRoot, "num_layers", model.num_layers);
  file.set_integer(kRoot, "num_q_heads", model.num_q_heads);
  file.set_integer(kRoot, "num_kv_heads", model.num_kv_heads);
  file.set_integer(kRoot, "head_dim", model.head_dim);
  file.set_number(kRoot, "rope_theta", model.rope_theta);
  file.set_text(kRoot, "rope_scaling", model.rope_scaling);
  file.set_text(kRoot, "key_state", model.key_state);
  file.set_text(kRoot, "source", model.source);
  if (!model.one_shape()) write_layer_shapes(file, model);
  if (!model.imported.empty()) file.set_text(kRoot, kImported, model.imported);
  if (!model.scores.empty()) file.set_text(kRoot, kScores, model.scores);
}

std::vector<int> layer_numbers(const h5::File& file, int num_layers) {
  std::vector<int> layers;
  for (const std::string& name : file.children("/layers")) {
    const auto layer = number_in<int>(name);
    if (!layer || std::to_string(*layer) != name) continue;
    if (*layer < 0 || *layer >= num_layers)
      throw file.error("/layers/" + name, "the model has {} layers: 0 to {} are possible", num_layers,
                       num_layers - 1);
    layers.push_back(*layer);
  }
  if (layers.empty()) throw file.error("/layers", "holds no layer");
  std::ranges::sort(layers);
  return layers;
}

std::string layer_path(int layer, std::string_view side) { return fmt::format("/layers/{}/{}", layer, side); }

void finish_result(h5::File& file, const std::string& type, const ModelInfo& model, const Record* parameters,
                   const Provenance& provenance) {
  write_model(file, model);
  if (parameters) write_record(file, kRoot, "parameters", *parameters);
  write_file_type(file, type, provenance);
  file.close();
}

void write_record(h5::File& file, const std::string& object, const std::string& name, const Record& record) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [key, value] : record.items()) {
    if (const auto* number = std::get_if<double>(&value); number && !std::isfinite(*number))
      throw failed("parameter '{}' is {}; only finite numbers can be stored", key, *number);
    json[key] = std::visit([](const auto& v) { return nlohmann::ordered_json(v); }, value);
  }
  // Text that is not UTF-8 (a file name, say) is stored with replacement characters.
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  file.set_text(object, name, json.dump(-1, ' ', false, kReplace));
}

Record read_parameters(const h5::File& file, const std::string& object) {
  const auto json = nlohmann::ordered_json::parse(file.text(object, "parameters"), nullptr, false);
  const std::string where = "attribute 'parameters'";
  if (!json.is_object()) throw file.error(object, "{}: is not a JSON object", where);
  Record record;
  for (const auto& [name, value] : json.items()) {
    if (value.is_boolean())
      record.set(name, value.get<bool>());
    else if (value.is_number_unsigned() && value.get<uint64_t>() > kMaxNumber)
      throw file.error(object, "{}: parameter '{}' does not fit 64 bits", where, name);
    else if (value.is_number_integer())
      record.set(name, value.get<int64_t>());
    else if (value.is_number_float())
      record.set(name, value.get<double>());
    else if (value.is_string())
      record.set(name, value.get<std::string>());
    else
      throw file.error(object, "{}: parameter '{}' is neither a number, a string nor true or false", where,
                       name);
  }
  return record;
}

h5::Dataset open_dataset(const h5::File& file, const std::string& path, DType type,
                         std::initializer_list<uint64_t> shape) {
  h5::Dataset dataset = file.dataset(path);
  dataset.expect(type, {shape.begin(), shape.size()});
  return dataset;
}

h5::Dataset open_column(const h5::File& file, const std::string& path, uint64_t rows, std::string_view what) {
  h5::Dataset dataset = file.dataset(path);
  if (dataset.shape() != std::vector<uint64_t>{rows})
    throw dataset.error("has the shape [{}]; the documents have {} {}", fmt::join(dataset.shape(), ", "),
                        rows, what);
  return dataset;
}

}  // namespace kvcodec
