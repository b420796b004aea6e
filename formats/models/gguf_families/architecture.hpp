// Architectures of models in GGUF files: how the keys of each become a ModelConfig. Most keys are read alike for all
// (gguf_model.cpp); what an architecture has beside them, its row and its function in the files here say.
// How to add one: CONTRIBUTING.md, "A family of models".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/gguf.hpp"
#include "formats/models/model_config.hpp"

namespace kvcodec::gguf {

struct Architecture;

/// Keys of the architecture: "llama.block_count" …
class Fields {
 public:
  Fields(const Gguf& file, const Architecture& architecture);

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  int need_size(std::string_view name) const;
  int size_or(std::string_view name, int otherwise) const;
  /// A size that may be listed for each layer; all must be the same.
  int need_size_of_layers(std::string_view name) const;
  std::optional<double> get_number(std::string_view name) const { return file_.get_number(key(name)); }
  double number_or(std::string_view name, double otherwise) const;
  double need_number(std::string_view name) const { return file_.need_number(key(name)); }
  std::optional<bool> get_flag(std::string_view name) const { return file_.get_bool(key(name)); }
  std::optional<std::string> get_string(std::string_view name) const { return file_.get_string(key(name)); }
  /// A key that, if it is there, must have the one value that is computed.
  void must_be(std::string_view name, double value) const;

  bool has_tensor(std::string_view name) const { return file_.tensors().contains(name); }
  const Gguf& file() const { return file_; }

 private:
  int as_size(std::string_view name, int64_t value) const;

  const Gguf& file_;
  std::string prefix_;
};

/// A file's keys, and what comes of them.
struct Reading {
  const Fields& fields;
  ModelConfig& config;
  std::vector<std::string>& notes;  ///< as of ModelDescription
};

struct Architecture {
  std::string_view name;               ///< general.architecture
  std::string_view family;             ///< what config.json calls it
  void (*describe)(Reading& reading);  ///< sets what differs, once all else is read
  /// The rotary embedding turns dimensions 2j and 2j + 1 together; rows of q and k are stored for that.
  bool pairs_neighbours = false;
  bool may_be_partial = false;  ///< heads may be turned in part
  bool may_have_experts = false;
  const char* norm_epsilon = "attention.layer_norm_rms_epsilon";
};

extern const Architecture kGemma2, kGemma3, kGptNeoX, kGptOss, kGranite, kLlama, kOlmo2, kPhi2, kPhi3, kQwen2,
    kQwen3, kQwen3Moe, kSmolLm3, kStarcoder2;

/// In the order of messages.
std::span<const Architecture* const> all_architectures();

/// The one that the file names. Throws Error(bad_input) if it is none of them.
const Architecture& architecture_of(const Gguf& file);

// Parts of a configuration that several architectures have -----------------------------------------

/// The same window in all layers, `otherwise` where no key says it; 0 = none.
void set_window(Reading& reading, int otherwise);

/// Whether each layer has a window: as attention.sliding_window_pattern says, a flag for each or a period, of which the
/// last layer has none; without the key that period.
std::vector<bool> sliding_layers(const Reading& reading, int period);

/// A window in those layers.
void set_windows(ModelConfig& config, const std::vector<bool>& slides, int window);

/// The rotary embedding of keys and of the tensors that hold a number for each frequency. As JSON, what config.json
/// would say of its scaling; empty: it is not scaled.
std::string read_rope(const Fields& fields, const Architecture& architecture, ModelConfig& config);

/// Whether read_rope() looks at the tensor of that name.
bool is_rope_tensor(std::string_view name);

}  // namespace kvcodec::gguf
