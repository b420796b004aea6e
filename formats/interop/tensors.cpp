#include "formats/interop/tensors.hpp"

#include <cstring>
#include <fstream>

#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {
namespace {

struct DtypeName {
  std::string_view dtype;
  Cell cell;
};
constexpr DtypeName kDtypes[] = {{"F32", Cell::f32}, {"F16", Cell::f16},      {"BF16", Cell::bf16},
                                 {"F64", Cell::f64}, {"F8_E4M3", Cell::e4m3}, {"F8_E5M2", Cell::e5m2}};

struct IntegerType {
  std::string_view dtype;
  uint64_t bytes;
  bool has_sign;
};
constexpr IntegerType kIntegers[] = {{"I64", 8, true},  {"I32", 4, true},  {"I16", 2, true},
                                     {"I8", 1, true},   {"U64", 8, false}, {"U32", 4, false},
                                     {"U16", 2, false}, {"U8", 1, false},  {"BOOL", 1, false}};

/// Whether the file begins as a safetensors file does.
bool looks_like_safetensors(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  char head[9] = {};
  if (!in.read(head, sizeof head)) return false;
  uint64_t length = 0;
  std::memcpy(&length, head, 8);
  return head[8] == '{' && length >= 2 && length <= 100'000'000;
}

}  // namespace

std::optional<Cell> cell_of_dtype(std::string_view dtype) {
  for (const DtypeName& known : kDtypes)
    if (known.dtype == dtype) return known.cell;
  return std::nullopt;
}

std::string dtype_of_cell(Cell type, const std::string& option) {
  for (const DtypeName& known : kDtypes)
    if (known.cell == type) return std::string(known.dtype);
  throw usage_error("{} is {}; safetensors have no such type", option, name_of(type));
}

const std::string* TensorFile::metadata(const std::string& name) const {
  const auto place = file_->metadata().find(name);
  return place == file_->metadata().end() ? nullptr : &place->second;
}

Safetensors::Stored TensorFile::need(const std::string& name) const {
  if (auto tensor = file_->stored(name)) return *std::move(tensor);
  throw bad_input("{}: tensor '{}' is missing", file_->name(), printable(name));
}

bool is_tensor_file(const std::string& file, bool (*is_own)(const TensorFile& file)) {
  if (!looks_like_safetensors(file)) return false;
  try {
    return is_own(TensorFile(file));
  } catch (const Error&) {
    return false;
  }
}

Cell need_cell(const Safetensors::Stored& tensor) {
  if (const auto cell = cell_of_dtype(tensor.dtype)) return *cell;
  throw bad_input("{}: dtype is {}; keys and values of F32, F16, BF16, F64, F8_E4M3 and F8_E5M2 are read",
                  tensor.origin, printable(tensor.dtype));
}

std::vector<uint64_t> integers_of(const Safetensors::Stored& tensor) {
  for (const IntegerType& type : kIntegers) {
    if (type.dtype != tensor.dtype) continue;
    std::vector<uint64_t> values(tensor.bytes.size() / type.bytes);
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&values[i], tensor.bytes.data() + i * type.bytes, type.bytes);
      if (type.has_sign && values[i] >> (8 * type.bytes - 1) != 0)
        throw bad_input("{}: element {} is negative", tensor.origin, i);
    }
    return values;
  }
  throw bad_input("{}: dtype is {}; integers are wanted", tensor.origin, printable(tensor.dtype));
}

size_t TensorPlan::add(std::string name, std::string dtype, std::vector<uint64_t> shape, uint64_t bytes) {
  tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), end_, bytes});
  end_ = checked_add(end_, bytes);
  return tensors_.size() - 1;
}

void TensorPlan::write_header(TargetFile& file) {
  nlohmann::ordered_json header;
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  for (const Tensor& tensor : tensors_)
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.begin + tensor.bytes}}};
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  file.write(0, std::as_bytes(std::span(&length, 1)));
  file.write(8, text);
  data_ = 8 + length;
}

}  // namespace kvcodec::interop
