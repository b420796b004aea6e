// Weights in safetensors files (github.com/huggingface/safetensors, "Format"): 8 bytes length of the header,
// little-endian; the header, a JSON object from tensor names to dtype, shape and data_offsets; the data,
// which the tensors cover without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/model/weights.hpp"

namespace kvcodec {

/// One file, or the shards of a model directory, mapped into memory: opening reads the headers only, and
/// tensors are read from disk as they are used. Nothing in a file is trusted: header length, JSON, shapes and
/// offsets are checked against the file's size when it is opened, overlaps and gaps are refused.
class Safetensors final : public WeightSource {
 public:
  /// A single file. Throws Error(bad_input) naming file, tensor, what is there and what would be right;
  /// Error(failed) if the file cannot be mapped.
  static Safetensors open_file(const std::string& file);

  /// A model directory: model.safetensors if it is there, otherwise the shards of
  /// model.safetensors.index.json.
  static Safetensors open_model(const std::string& directory);

  ~Safetensors() override;
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;

  const TensorView* find(std::string_view name) const override;
  std::string name() const override;

  /// A tensor of any element type, which is called as in the header; its bytes live as long as this.
  struct Stored {
    std::string dtype;
    std::vector<uint64_t> shape;
    std::span<const std::byte> bytes;
    std::string origin;  ///< for messages: "file: tensor 'name'"
  };
  std::optional<Stored> stored(std::string_view name) const;

  /// What `__metadata__` of the files' headers says, as far as it is text.
  const std::map<std::string, std::string>& metadata() const;

  /// All names, sorted.
  std::vector<std::string> names() const;

  /// Bytes of all files.
  uint64_t file_bytes() const;

  /// Identifies the weights: a digest of all files, in the order of their names. Reads all of them.
  std::string digest() const;

 private:
  struct Impl;
  explicit Safetensors(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
