// Weights in safetensors files (github.com/huggingface/safetensors, "Format"): the length of the header, 8 bytes, little-endian;
// the header, a JSON object from tensor names to dtype, shape and data_offsets; the data, which the tensors cover without gaps.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "formats/io/mapped_file.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// Weights that checkpoints hold as codes and scales in two tensors, as one tensor of blocks (TensorType): FP8 with a scale for each
/// block of rows and columns (NAME and NAME_scale_inv, Qwen3-FP8 and DeepSeek-V3), and MXFP4 (NAME_blocks and NAME_scales, gpt-oss).
/// Puts blocks together when a tensor is first asked for, in memory of as many bytes as both tensors, about.
class PackedWeights {
 public:
  /// e4m3 of a matrix of codes (rows, columns), columns a multiple of 32, and scales in floats, one for each block of 128 rows and 128
  /// columns. Throws Error(bad_input) for other shapes, and for codes of NaN.
  const TensorView& e4m3(const TensorView& codes, const TensorView& scales);
  /// mxfp4 of (…, rows, columns / 32, 16) bytes, two codes in each, and the scales' exponents, (…, rows, columns / 32).
  const TensorView& mxfp4(const TensorView& codes, const TensorView& scales);

 private:
  struct Packed {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  template <class Fill>
  const TensorView& packed(const TensorView& codes, TensorType type, std::vector<uint64_t> shape,
                           const Fill& fill);

  std::mutex mutex_;
  std::map<std::string, Packed> packed_;  // by the origin of the codes
};

/// One file, or the shards of a model directory, mapped into memory: opening reads only the headers, and tensors are read from disk
/// when they are used. Nothing in a file is trusted: header length, JSON, shapes and offsets are checked against the file's size
/// when it is opened; overlaps and gaps are refused.
class Safetensors final : public WeightSource {
 public:
  /// A single file. Throws Error(bad_input) naming file, tensor, the value found and the expected one; Error(failed) if the file
  /// cannot be mapped.
  static Safetensors open_file(const std::string& file) {
    Safetensors opened(file);
    opened.entries_ = opened.map_file(file);
    return opened;
  }

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
  const Stored* stored(std::string_view name) const {
    const auto place = entries_.find(name);
    return place == entries_.end() ? nullptr : &place->second;
  }

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
