// Keys of GGUF files that describe a model, and how a ModelConfig is made of them where families do not differ.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/gguf.hpp"
#include "formats/models/model_config.hpp"

namespace kvcodec::gguf {

/// Keys of the architecture: "llama.block_count" …
class Fields {
 public:
  Fields(const Gguf& file, std::string_view architecture);

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

/// The same window in all layers, `otherwise` where no key says it; 0 = none.
void set_window(Reading& reading, int otherwise);

/// Whether each layer has a window: as attention.sliding_window_pattern says, a flag for each or a period, of which the
/// last layer has none; without the key that period.
std::vector<bool> sliding_layers(const Reading& reading, int period);

/// A window in those layers.
void set_windows(Reading& reading, const std::vector<bool>& slides, int window);
void set_no_window(Reading& reading);

/// The rotary embedding of keys and of the tensors that hold a number for each frequency. As JSON, what config.json
/// would say of its scaling; empty: it is not scaled. may_be_partial: heads may be turned in part.
std::string read_rope(const Fields& fields, bool may_be_partial, ModelConfig& config);

/// Whether read_rope() looks at the tensor of that name.
bool is_rope_tensor(std::string_view name);

}  // namespace kvcodec::gguf
