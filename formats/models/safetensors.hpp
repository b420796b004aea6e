// Weights in safetensors files (github.com/huggingface/safetensors, "Format"): the length of the header, 8 bytes, little-endian;
// the header, a JSON object from tensor names to dtype, shape and data_offsets; the data, which the tensors cover without gaps.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/io/mapped_file.hpp"
#include "formats/models/packed_weights.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// One file, or the shards of a model directory, mapped into memory: opening reads only the headers, and tensors are read from disk
/// when they are used. Nothing in a file is trusted: header length, JSON, shapes and offsets are checked against the file's size
/// when it is opened; overlaps and gaps are refused.
class Safetensors final : public WeightSource {
 public:
  /// A single file. Throws Error(bad_input) naming file, tensor, the value found and the expected one; Error(failed) if the file
  /// cannot be mapped.
  static Safetensors open_file(const std::string& file);

  /// A model directory: model.safetensors if it exists, otherwise the shards in model.safetensors.index.json.
  static Safetensors open_model(const std::string& directory);

  /// Also tensors that are stored as codes and scales (PackedWeights), under the name that they would have as floats.
  const TensorView* find(std::string_view name) const override;
  std::string name() const override { return name_; }

  /// A tensor of any element type; its bytes live as long as this object.
  struct Stored : TensorView {
    std::string dtype;       ///< as the header calls it
    bool is_usable = false;  ///< f32, f16 or bf16, which `type` says then
  };
  /// nullptr if there is no tensor of that name.
  const Stored* stored(std::string_view name) const;

  /// The texts in `__metadata__` of the files' headers.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// All names, sorted.
  std::vector<std::string> names() const;

  /// A digest of all files, in the order of their names, which identifies the weights. Reads all of them.
  std::string digest() const;

 private:
  using Entries = std::map<std::string, Stored, std::less<>>;
  explicit Safetensors(std::string name) : name_(std::move(name)) {}
  Entries map_file(const std::string& path);

  std::string name_;
  std::map<std::string, std::unique_ptr<const MappedFile>> files_;
  Entries entries_;
  std::map<std::string, std::string> metadata_;
  std::unique_ptr<PackedWeights> packed_ = std::make_unique<PackedWeights>();
};

}  // namespace kvcodec
