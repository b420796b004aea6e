#include "formats/header.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "formats/header_io.hpp"
#include "kvcodec/version.hpp"

namespace kvcodec {
namespace {

/// The types this program reads and writes, the newest version of each that it knows, which it writes, and the
/// oldest that it still reads.
struct KnownType {
  std::string_view name;
  int version = 1, oldest = 1;
};
constexpr KnownType kTypes[] = {{"kv"},        {"dictionary"}, {"codebooks"},   {"codes", 2, 2}, {"index"},
                                {"selection"}, {"outputs"},    {"sensitivity"}, {"transform"}};

const KnownType* find_type(std::string_view name) {
  const auto place =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const KnownType& t) { return t.name == name; });
  return place == std::end(kTypes) ? nullptr : place;
}

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr char kRoot[] = "/";

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string generator() { return std::string("kvcodec ") + kVersion; }

std::string timestamp() {
  std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  if (const char* fixed = std::getenv("SOURCE_DATE_EPOCH")) {
    const std::string_view text(fixed);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
      throw usage_error("SOURCE_DATE_EPOCH is '{}'; seconds since 1970 are wanted", text);
    seconds = static_cast<std::time_t>(value);
  }
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

FileType identify(const std::string& file) { return read_file_type(h5::File::open(file)); }

FileType read_file_type(const h5::File& file, std::string_view wanted) {
  if (!file.has_attribute(kRoot, "kvcodec_type"))
    throw file.error(kRoot, "not a kvcodec file: it has no attribute 'kvcodec_type'");
  FileType type;
  type.type = file.text(kRoot, "kvcodec_type");
  const KnownType* known = find_type(type.type);
  if (!known) throw file.error(kRoot, "is of type '{}', which kvcodec {} does not know", type.type, kVersion);
  const auto article = [](std::string_view word) { return word.find_first_of("aeiou") == 0 ? "an" : "a"; };
  if (!wanted.empty() && type.type != wanted)
    throw file.error(kRoot, "is {} {} file; {} {} file is wanted here", article(type.type), type.type,
                     article(wanted), wanted);
  type.version = static_cast<int>(file.integer(kRoot, "kvcodec_version", 1, kMaxInt));
  if (type.version > known->version)
    throw file.error(kRoot, "is a {} file of version {}; kvcodec {} reads versions up to {}", type.type,
                     type.version, kVersion, known->version);
  if (type.version < known->oldest)
    throw file.error(kRoot,
                     "is a {} file of version {}; kvcodec {} reads versions from {} on: encode it again",
                     type.type, type.version, kVersion, known->oldest);
  type.generator = file.text(kRoot, "generator");
  type.created = file.text(kRoot, "created");
  type.history = file.texts(kRoot, "history");
  return type;
}

h5::File open_file(const std::string& name, std::string_view wanted, FileType& type) {
  h5::File file = h5::File::open(name);
  type = read_file_type(file, wanted);
  return file;
}

void write_file_type(h5::File& file, const std::string& type, const Provenance& provenance) {
  const KnownType* known = find_type(type);
  if (!known) throw failed("'{}' is no file type", type);
  file.set_text(kRoot, "kvcodec_type", type);
  file.set_integer(kRoot, "kvcodec_version", known->version);
  file.set_text(kRoot, "generator", generator());
  file.set_text(kRoot, "created", timestamp());
  std::vector<std::string> history = provenance.history;
  history.push_back(provenance.command);
  for (auto& line : history) line = one_line(std::move(line));
  file.set_texts(kRoot, "history", history);
}

ModelInfo read_model(const h5::File& file) {
  ModelInfo model;
  model.model = file.text(kRoot, "model");
  model.num_layers = static_cast<int>(file.integer(kRoot, "num_layers", 1, kMaxInt));
  model.num_kv_heads = static_cast<int>(file.integer(kRoot, "num_kv_heads", 1, kMaxInt));
  model.num_q_heads = static_cast<int>(file.integer(kRoot, "num_q_heads", 1, kMaxInt));
  model.head_dim = static_cast<int>(file.integer(kRoot, "head_dim", 1, kMaxInt));
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
  return model;
}

void write_model(h5::File& file, const ModelInfo& model) {
  file.set_text(kRoot, "model", model.model);
  file.set_integer(kRoot, "num_layers", model.num_layers);
  file.set_integer(kRoot, "num_q_heads", model.num_q_heads);
  file.set_integer(kRoot, "num_kv_heads", model.num_kv_heads);
  file.set_integer(kRoot, "head_dim", model.head_dim);
  file.set_number(kRoot, "rope_theta", model.rope_theta);
  file.set_text(kRoot, "rope_scaling", model.rope_scaling);
  file.set_text(kRoot, "key_state", model.key_state);
  file.set_text(kRoot, "source", model.source);
}

Documents read_documents(const h5::File& file) {
  Documents documents;
  documents.names = file.dataset("/documents/name").texts();
  const h5::Dataset offsets = file.dataset("/documents/offset");
  documents.offsets = offsets.integers(0, offsets.rows(), std::numeric_limits<int64_t>::max());
  const auto& o = documents.offsets;
  if (o.size() != documents.names.size() + 1)
    throw offsets.error("has {} elements; {} documents have {}", o.size(), documents.names.size(),
                        documents.names.size() + 1);
  if (o.front() != 0) throw offsets.error("begins with {}; documents begin at 0", o.front());
  const auto fall = std::adjacent_find(o.begin(), o.end(), [](uint64_t a, uint64_t b) { return a > b; });
  if (fall != o.end())
    throw offsets.error("falls from {} to {} after document {}; offsets never fall", fall[0], fall[1],
                        fall - o.begin());
  return documents;
}

uint64_t write_documents(h5::File& file, const Documents& documents) {
  const uint64_t name_bytes = h5::write_texts(file, "/documents/name", documents.names);
  h5::DatasetWriter offsets(file, "/documents/offset", DType::u64, {}, documents.offsets.size());
  offsets.append_values(std::span<const uint64_t>(documents.offsets));
  offsets.finish();
  return name_bytes + documents.offsets.size() * sizeof(uint64_t);
}

std::vector<int> layer_numbers(const h5::File& file, int num_layers) {
  std::vector<int> layers;
  for (const std::string& name : file.children("/layers")) {
    int layer = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (error != std::errc{} || end != name.data() + name.size() || std::to_string(layer) != name) continue;
    if (layer < 0 || layer >= num_layers)
      throw file.error("/layers/" + name, "the model has {} layers: 0 to {} are possible", num_layers,
                       num_layers - 1);
    layers.push_back(layer);
  }
  if (layers.empty()) throw file.error("/layers", "holds no layer");
  std::sort(layers.begin(), layers.end());
  return layers;
}

std::string layer_path(int layer, std::string_view side) { return fmt::format("/layers/{}/{}", layer, side); }

DType position_type(uint64_t largest) {
  return largest <= std::numeric_limits<uint32_t>::max() ? DType::u32 : DType::u64;
}

}  // namespace kvcodec
