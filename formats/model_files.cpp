#include "formats/model_files.hpp"

#include <filesystem>
#include <optional>

#include "formats/gguf.hpp"
#include "formats/gguf_model.hpp"
#include "formats/gguf_tokenizer.hpp"
#include "formats/safetensors.hpp"
#include "formats/tokenizer_json.hpp"

namespace kvcodec {
namespace {

class DirectoryModel final : public ModelFiles {
 public:
  explicit DirectoryModel(const std::string& path) : path_(path), description_(read_model_config(path)) {}

  const ModelDescription& description() const override { return description_; }
  const WeightSource& weights() override { return safetensors(); }
  std::string digest() override { return safetensors().digest(); }
  Tokenizer tokenizer() const override { return load_tokenizer(path_ + "/tokenizer.json"); }

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

 private:
  Gguf file_;
  ModelDescription description_;
  GgufWeights weights_;
};

/// The last part of a path, of a folder whose name ends in a slash too.
std::string last_name(const std::string& named) {
  std::error_code error;
  const auto path = std::filesystem::weakly_canonical(named, error);
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

}  // namespace

std::unique_ptr<ModelFiles> open_model(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return std::make_unique<GgufModel>(path);
  return std::make_unique<DirectoryModel>(path);
}

ModelInfo model_info(const std::string& path, ModelFiles& files, bool pre_rope) {
  ModelInfo info = model_info(path, files.description(), pre_rope);
  info.source = "weights " + files.digest();
  return info;
}

ModelInfo model_info(const std::string& path, const ModelDescription& description, bool pre_rope) {
  const ModelConfig& config = description.config;
  ModelInfo info{.model = last_name(path),
                 .num_layers = config.num_layers,
                 .num_q_heads = config.num_q_heads,
                 .num_kv_heads = config.num_kv_heads,
                 .head_dim = config.head_dim,
                 .rope_theta = config.rope.theta,
                 .rope_scaling = description.rope_scaling,
                 .key_state = pre_rope ? "pre-rope" : "post-rope",
                 .source = {}};
  if (!config.is_latent()) return info;
  const LayerShape shape{.heads = config.num_kv_heads,
                         .key_dim = config.head_dim,
                         .value_dim = config.value_dim(),
                         .values_in_keys = true};
  return with_layer_shapes(info, std::vector(static_cast<size_t>(config.num_layers), shape));
}

}  // namespace kvcodec
