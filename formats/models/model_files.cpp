#include "formats/models/model_files.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "formats/io/json_file.hpp"
#include "formats/models/gguf_model.hpp"
#include "formats/models/safetensors.hpp"
#include "formats/models/tokenizer_json.hpp"
#include "lib/codec/model_layers.hpp"
#include "lib/core/error.hpp"
#include "lib/model/llama_weights.hpp"

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxSettingsBytes = 16 << 20;

/// The tokens that a configuration calls eos_token_id: a number, or a list of numbers. None without such a file.
std::vector<uint32_t> named_ends(const std::string& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  const nlohmann::json object = read_json_object(file, kMaxSettingsBytes);
  const nlohmann::json* const ends = JsonFields(object).find("eos_token_id");
  std::vector<uint32_t> ids;
  if (!ends) return ids;
  for (const nlohmann::json& id : ends->is_array() ? *ends : nlohmann::json::array({*ends})) {
    if (!id.is_number_integer())
      throw bad_input("{}: eos_token_id is {}; it must be a token's number, or a list of them", file,
                      printable(ends->dump(-1, ' ', true)));
    if (const auto number = id.get<int64_t>(); number >= 0 && number <= INT32_MAX)  // -1 stands for none
      ids.push_back(static_cast<uint32_t>(number));
  }
  return ids;
}

/// That of chat_template.jinja, or of tokenizer_config.json: a text, or a list of named ones of which "default" is taken.
std::string directory_chat_template(const std::string& path) {
  std::error_code error;
  if (const std::string own = path + "/chat_template.jinja"; fs::is_regular_file(own, error)) {
    if (fs::file_size(own, error) > kMaxSettingsBytes)
      throw bad_input("{}: has more than {} bytes", own, kMaxSettingsBytes);
    std::ifstream stream(own);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  const std::string file = path + "/tokenizer_config.json";
  if (!fs::exists(file, error)) return {};
  const nlohmann::json object = read_json_object(file, kMaxSettingsBytes);
  const nlohmann::json* const found = JsonFields(object).find("chat_template");
  if (!found) return {};
  if (found->is_string()) return found->get<std::string>();
  return with_context(file, [&] {
    for (const nlohmann::json& one : *found) {
      if (!one.is_object())
        throw bad_input("chat_template must be a text, or a list of objects with name and template");
      const JsonFields fields(one);
      if (fields.get_string("name") == "default") return fields.get_string("template").value_or("");
    }
    return std::string();
  });
}

class DirectoryModel final : public ModelFiles {
 public:
  explicit DirectoryModel(const std::string& path) : path_(path), description_(read_model_config(path)) {}

  const ModelDescription& description() const override { return description_; }
  const WeightSource& weights() override { return safetensors(); }
  std::string digest() override { return safetensors().digest(); }
  Tokenizer tokenizer() const override { return load_model_tokenizer(path_); }
  std::string chat_template() const override { return directory_chat_template(path_); }
  std::vector<uint32_t> end_tokens() const override {
    for (const char* file : {"/generation_config.json", "/config.json"})
      if (auto ends = named_ends(path_ + file); !ends.empty()) return ends;
    return {};
  }

 private:
  const Safetensors& safetensors() {
    if (!weights_) weights_ = Safetensors::open_model(path_);
    return *weights_;
  }

  std::string path_;
  ModelDescription description_;
  std::optional<Safetensors> weights_;
};

class GgufModel final : public ModelFiles {
 public:
  explicit GgufModel(const std::string& path)
      : file_(Gguf::open(path)), description_(describe_model(file_)), weights_(file_, description_.config) {}

  const ModelDescription& description() const override { return description_; }
  const WeightSource& weights() override { return weights_; }
  std::string digest() override { return file_.digest(); }
  Tokenizer tokenizer() const override { return load_tokenizer(file_); }
  std::vector<std::string> tokenizer_notes() const override { return kvcodec::tokenizer_notes(file_); }
  std::string chat_template() const override {
    return file_.get_string("tokenizer.chat_template").value_or("");
  }
  std::vector<uint32_t> end_tokens() const override {
    std::vector<uint32_t> ends;
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
      if (const auto id = file_.get_int(key); id && *id >= 0 && *id <= INT32_MAX)
        ends.push_back(static_cast<uint32_t>(*id));
    return ends;
  }

 private:
  Gguf file_;
  ModelDescription description_;
  GgufWeights weights_;
};

constexpr std::string_view kHubPrefix = "models--";

/// "org/name" for a folder of the hub's cache called models--org--name; else std::nullopt.
std::optional<std::string> hub_id(const std::string& folder) {
  if (!folder.starts_with(kHubPrefix)) return std::nullopt;
  std::string id = folder.substr(kHubPrefix.size());
  if (const size_t gap = id.find("--"); gap != std::string::npos) id.replace(gap, 2, "/");
  return id;
}

/// The name of a model: the last part of its path, also of a folder with a slash at the end; in the hub's cache, whose folders are
/// named after revisions and whose files after their content, the name that it has there.
std::string model_name(const std::string& named) {
  std::error_code error;
  const auto plain = fs::absolute(named, error).lexically_normal();
  for (const fs::path& part : plain)
    if (const auto id = hub_id(part.string()))
      return fs::is_regular_file(named, error) ? plain.filename().string() : *id;
  const auto path = fs::weakly_canonical(named, error);
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

/// The folder in which programs that download models keep them.
std::string hub_cache() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  const std::string caches = variable("XDG_CACHE_HOME");
  return (caches.empty() ? variable("HOME") + "/.cache" : caches) + "/huggingface/hub";
}

/// The revision to which the main branch of a folder of the hub's cache points, or the only one there.
std::string snapshot_of(const std::string& folder) {
  std::string revision;
  std::ifstream(folder + "/refs/main") >> revision;
  const std::string snapshots = folder + "/snapshots";
  std::error_code error;
  if (!revision.empty() && fs::is_directory(snapshots + "/" + revision, error))
    return snapshots + "/" + revision;
  std::vector<std::string> found;
  for (fs::directory_iterator entry(snapshots, error), end; !error && entry != end; entry.increment(error))
    found.push_back(entry->path().string());
  if (found.size() == 1) return found.front();
  throw bad_input(
      "{}: holds {} revisions of a model, and does not say which is the newest; name one of its folders "
      "snapshots/...",
      folder, found.size());
}

/// True for ORG/NAME, the form of names of published models.
bool is_hub_id(const std::string& text) {
  const auto is_allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("-_./", c);
  };
  const size_t slash = text.find('/');
  return slash != 0 && slash != std::string::npos && slash + 1 < text.size() && slash == text.rfind('/') &&
         text.front() != '.' && std::ranges::all_of(text, is_allowed);
}

void refuse_adapter(const std::string& folder) {
  const std::string config = folder + "/adapter_config.json";
  std::error_code error;
  if (!fs::exists(config, error) || fs::exists(folder + "/config.json", error)) return;
  const nlohmann::json object = read_json_object(config, uint64_t{1} << 20);
  const std::string base = JsonFields(object).get_string("base_model_name_or_path").value_or("another model");
  throw bad_input(
      "{}: is an adapter (LoRA) of {} and no whole model; merge it into that one, and name the merged model",
      folder, printable(base));
}

/// The path of the named model: a folder or a file, possibly in the hub's cache.
std::string located(const std::string& named) {
  std::error_code error;
  const auto is_cached = [&](const std::string& folder) {
    const fs::path path = fs::path(folder + "/").parent_path();
    return hub_id(path.filename().string()) && fs::is_directory(folder + "/snapshots", error);
  };
  if (is_cached(named)) return snapshot_of(named);
  if (fs::exists(named, error) || !is_hub_id(named)) return named;
  std::string folder = named;
  folder.replace(folder.find('/'), 1, "--");
  folder = fmt::format("{}/{}{}", hub_cache(), kHubPrefix, folder);
  if (is_cached(folder)) return snapshot_of(folder);
  throw bad_input(
      "{}: is neither here nor among the models that were downloaded ({}); 'hf download {}' fetches it",
      named, hub_cache(), named);
}

}  // namespace

std::unique_ptr<ModelFiles> open_model(const std::string& named) {
  std::error_code ignored;
  const std::string path = located(named);
  if (fs::is_regular_file(path, ignored)) return std::make_unique<GgufModel>(path);
  refuse_adapter(path);
  return std::make_unique<DirectoryModel>(path);
}

ModelInfo model_info(const std::string& path, const ModelDescription& description, bool pre_rope) {
  const ModelConfig& config = description.config;
  // Keys of learned positions cannot be moved as those of an embedding that turns none could.
  const bool learned = !config.names.positions.empty();
  ModelInfo info{.model = model_name(located(path)),
                 .family = config.family,
                 .num_layers = config.num_layers,
                 .num_q_heads = config.num_q_heads,
                 .num_kv_heads = config.max_kv_heads(),
                 .head_dim = config.max_head_dim(),
                 .rope_theta = learned ? 0 : config.rope.theta,
                 .rope_scaling = learned ? "" : description.rope_scaling,
                 .key_state = pre_rope ? "pre-rope" : "post-rope",
                 .source = {}};
  info.layer_shapes = layer_shapes_of(config);
  return info;
}

ScoreForms score_forms(ModelFiles& files) {
  const ModelConfig& config = files.description().config;
  ScoreForms forms{.known = true,
                   .cap = static_cast<float>(config.attention_softcap),
                   .windows = {config.window.begin(), config.window.end()},
                   .q_heads = static_cast<size_t>(config.num_q_heads)};
  if (config.names.sinks.empty()) return forms;
  for (const LlamaLayer& layer : load_weights(config, files.weights()).layers)
    forms.sinks.insert(forms.sinks.end(), layer.sinks.begin(), layer.sinks.end());
  return forms;
}

}  // namespace kvcodec
