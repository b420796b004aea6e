// Safetensors files of other programs: tensors as planes, and files written tensor by tensor.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/interop/plane.hpp"
#include "formats/models/safetensors.hpp"

namespace kvcodec::interop {

/// The type of elements that a header calls so; none if rows of it are not read.
std::optional<Cell> cell_of_dtype(std::string_view dtype);
/// What a header calls that type. Throws Error(usage) for blocks, which have no name there. option: for the message.
std::string dtype_of_cell(Cell type, const std::string& option);

/// An opened file whose readers may outlive the function that makes them.
class TensorFile {
 public:
  explicit TensorFile(const std::string& file)
      : file_(std::make_shared<const Safetensors>(Safetensors::open_file(file))) {}

  const Safetensors& operator*() const { return *file_; }
  const Safetensors* operator->() const { return file_.get(); }
  const std::string* metadata(const std::string& name) const;
  /// Throws Error(bad_input) if it is not there.
  Safetensors::Stored need(const std::string& name) const;
  Bytes bytes_of(const Safetensors::Stored& tensor) const { return {file_, tensor.bytes}; }

 private:
  std::shared_ptr<const Safetensors> file_;
};

/// Whether it is a safetensors file, and one such as is_own(file) says.
bool is_tensor_file(const std::string& file, bool (*is_own)(const TensorFile& file));

/// The type of a tensor's elements; throws Error(bad_input) if rows of it are not read.
Cell need_cell(const Safetensors::Stored& tensor);

/// All elements of a tensor of integers or booleans. Throws Error(bad_input) for negative ones and other types.
std::vector<uint64_t> integers_of(const Safetensors::Stored& tensor);

/// What a file will hold, in this order.
class TensorPlan {
 public:
  /// Returns the tensor's number. bytes: of all of it.
  size_t add(std::string name, std::string dtype, std::vector<uint64_t> shape, uint64_t bytes);
  void set(std::string name, std::string value) { metadata_[std::move(name)] = std::move(value); }

  /// Writes the header; from then on begin() is known.
  void write_header(TargetFile& file);
  /// Where a tensor's bytes begin in the file.
  uint64_t begin(size_t tensor) const { return data_ + tensors_[tensor].begin; }

 private:
  struct Tensor {
    std::string name, dtype;
    std::vector<uint64_t> shape;
    uint64_t begin, bytes;
  };
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  uint64_t end_ = 0, data_ = 0;
};

}  // namespace kvcodec::interop
