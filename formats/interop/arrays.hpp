// Caches that are plain arrays, whole or cut into chunks of tokens: the common part of LMCache, vLLM, SGLang, NumPy and
// transformers; and the attribute of a cache that describes the file from which it was imported.
#pragma once

#include <utility>

#include <nlohmann/json.hpp>

#include "formats/interop/plane.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/core/checked.hpp"
#include "lib/model/config.hpp"

namespace kvcodec::interop {

// The attribute `imported` ----------------------------------------------------------------------------

/// A cache's attribute `imported`, which describes the file from which the cache was imported. The attribute is as untrusted as its
/// file, so a value of an unexpected type or size counts as absent.
class Imported {
 public:
  /// Empty if the cache was imported from another format, or not at all.
  Imported(const CacheSource& source, std::string_view format);

  uint64_t number(const char* name, uint64_t usual, uint64_t limit) const {
    const auto& value = find(name);
    const bool is_plausible = value.is_number_unsigned() && value.get<uint64_t>() <= limit;
    return is_plausible ? value.get<uint64_t>() : usual;
  }
  bool flag(const char* name) const { return find(name) == true; }
  std::string text(const char* name) const {
    const auto& value = find(name);
    return value.is_string() ? value.get<std::string>() : "";
  }
  /// The given text, or else the text in the attribute.
  std::string text(const std::string& given, const char* name) const {
    return given.empty() ? text(name) : given;
  }
  /// Empty unless all items are integers.
  std::vector<int64_t> list(const char* name) const {
    const auto& value = find(name);
    const auto is_integer = [](const nlohmann::json& item) { return item.is_number_integer(); };
    const bool is_list = value.is_array() && std::ranges::all_of(value, is_integer);
    return is_list ? value.get<std::vector<int64_t>>() : std::vector<int64_t>();
  }
  std::vector<std::pair<uint32_t, uint32_t>> pairs(const char* name) const;
  std::vector<std::pair<std::string, std::string>> texts(const char* name) const;  ///< of an object of texts
  bool has(const char* name) const { return object_.contains(name); }

 private:
  const nlohmann::json& find(const char* name) const;  ///< null if it is absent
  nlohmann::json object_ = nlohmann::json::object();
};

/// The text of the attribute for that object.
inline std::string imported_text(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Arrays ----------------------------------------------------------------------------------------------

/// The layer and the side of an array or tensor.
struct LayerName {
  int layer;
  size_t side;  ///< 0: keys, 1: values
};
/// Parses "layers.3.keys", "past_key_values.3.key", "past_key_values.3.0", "key_cache.3" and the corresponding names of values.
std::optional<LayerName> layer_name(std::string_view name);

/// An array of keys, values or both, somewhere in bytes.
struct Array {
  Bytes bytes = {};
  Cell type = Cell::f32;
  uint64_t begin = 0;
  std::vector<Axis> axes = {};  ///< slowest first, as of plane_in_array()
  std::string where = {};       ///< for messages: file, or file and array

  /// Sets the axes' extents, as many as there are axes. Throws Error(bad_input) if one is 0.
  void set_shape(std::span<const uint64_t> shape) {
    if (std::ranges::find(shape, 0U) != shape.end())
      throw bad_input("shape is [{}], which holds nothing", fmt::join(shape, ", "));
    for (size_t i = 0; i < axes.size(); ++i) axes[i].extent = shape[i];
  }
  std::vector<uint64_t> shape() const;
  /// The bytes of all elements.
  uint64_t byte_count() const { return checked_mul(checked_product(shape()), block_of(type).bytes); }

  /// 1 if there is no such axis.
  uint64_t extent(char axis) const;
  bool has(char axis) const;
  /// The plane of one side of a layer of a document, checked.
  Plane plane(Side side, uint64_t layer, uint64_t document) const {
    const Plane plane = plane_in_array(type, begin, axes, {side, layer, document});
    check_plane(plane, bytes.bytes.size(), where + ": elements");
    return plane;
  }
};

/// Keys and values of each layer in arrays of their own.
using ArrayPairs = std::map<int, std::array<std::optional<Array>, 2>>;
/// Adds an array. Throws Error(bad_input) if that layer and side already has one. file: for messages.
inline void add_array(ArrayPairs& arrays, const LayerName& name, Array array, const std::string& file) {
  auto& place = arrays[name.layer][name.side];
  if (place) throw bad_input("{}: layer {} is there twice, under two names", file, name.layer);
  place = std::move(array);
}
/// Throws Error(bad_input) unless there are layers, and each has keys and values. wanted: the expected names of arrays.
void check_pairs(const ArrayPairs& arrays, const std::string& file, const char* wanted);

/// The axes that the letters of a layout name, each with extent 1: the caller sets the extents. Throws
/// Error(usage) for letters that name no axis or occur twice, and for a layout without tokens or dimensions.
std::vector<Axis> axes_of(const std::string& layout, const std::string& option);

/// The extents of a cache, or of a page of it, along its axes.
struct Extents {
  uint64_t sides = 2, layers = 1, heads = 1, tokens = 1, dims = 1;
};

/// Sets the axes' extents: one document (b), and all heads in d if there is no axis of heads. Throws Error(usage) if there are
/// several sides or layers but no axis for them, so that values would have no place.
void set_extents(std::vector<Axis>& axes, const Extents& extents, const std::string& option);

// Safetensors -----------------------------------------------------------------------------------------

/// The name of the element type in a header. Throws Error(usage) for types with blocks, which have none. option: for the message.
std::string dtype_of_cell(Cell type, const std::string& option);

/// An opened file whose readers may outlive the function that makes them.
class TensorFile {
 public:
  explicit TensorFile(const std::string& file)
      : file_(std::make_shared<const Safetensors>(Safetensors::open_file(file))) {}

  const Safetensors& operator*() const { return *file_; }
  const Safetensors* operator->() const { return file_.get(); }
  const std::string* metadata(const std::string& name) const {
    const auto place = file_->metadata().find(name);
    return place == file_->metadata().end() ? nullptr : &place->second;
  }
  /// The number that a whole text in the metadata spells; std::nullopt if it is not such a number.
  template <class Number>
  std::optional<Number> metadata_number(const std::string& name) const {
    const std::string* text = metadata(name);
    return text ? number_in<Number>(*text) : std::nullopt;
  }
  /// Throws Error(bad_input) if the tensor is missing.
  const Safetensors::Stored& need(const std::string& name) const;
  Bytes bytes_of(const Safetensors::Stored& tensor) const { return {file_, tensor.bytes}; }
  /// A tensor that has an axis for each letter of the layout.
  Array array_of(const Safetensors::Stored& tensor, const char* layout) const;

 private:
  std::shared_ptr<const Safetensors> file_;
};

/// The type of a tensor's elements; throws Error(bad_input) if this program cannot read that type.
Cell need_cell(const Safetensors::Stored& tensor);

/// All elements of a tensor of integers or booleans. Throws Error(bad_input) for negative ones and other types.
std::vector<uint64_t> integers_of(const Safetensors::Stored& tensor);

/// The tensors that will be written to a file, in this order.
class TensorPlan {
 public:
  /// Returns the tensor's number. size: bytes of an element.
  size_t add(std::string name, std::string dtype, std::vector<uint64_t> shape, uint64_t size) {
    const uint64_t bytes = checked_mul(checked_product(shape), size);
    tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), end_, bytes});
    end_ = checked_add(end_, bytes);
    return tensors_.size() - 1;
  }
  void set(std::string name, std::string value) { metadata_[std::move(name)] = std::move(value); }

  /// Writes the header; afterwards begin() is known.
  void write_header(TargetFile& file);
  /// The place in the file where a tensor's bytes begin.
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

// Readers ---------------------------------------------------------------------------------------------

/// One piece of a layer's tokens.
struct Piece {
  const Array* array;
  uint64_t layer = 0;    ///< its place in the array
  Side of = Side::both;  ///< both: it has an axis of sides, or its values lie in keys
};

/// A layer whose tokens lie in pieces, one after the other.
struct ArrayLayer {
  LayerShape shape;  ///< what the pieces' rows are split into
  std::vector<Piece> pieces;
};

struct CacheNames {
  std::string file;      ///< for messages
  std::string source;    ///< for people
  std::string document;  ///< with a number behind it if there are several
};

/// The cache of these layers; the model has num_layers. The arrays need not outlive this call.
ForeignCache cache_in_arrays(const std::map<int, ArrayLayer>& layers, size_t num_layers,
                             const ImportOptions& options, const CacheNames& names);

/// The shape of heads in an array with these extents and the options: the array may have heads and dimensions, or only their
/// product. Throws Error(usage) if the options must give the shape, and Error(bad_input) if they contradict the array.
LayerShape heads_in(uint64_t heads, uint64_t dims, const ImportOptions& options);

/// The shape of a layer whose values lie in its keys, which have that many dimensions. Throws Error(usage) unless options.latent
/// gives the number of dimensions that are values.
LayerShape latent_layer(uint64_t dims, const ImportOptions& options);

// Writers ---------------------------------------------------------------------------------------------

/// A folder of files, each with an array of some tokens of some layers.
struct ChunkFiles {
  Cell type;
  std::string layout;       ///< of axes_of(); without sides where values lie in keys
  std::string option;       ///< that it is from, for messages
  size_t layers = 1;        ///< of a file
  uint64_t tokens = 0;      ///< of a file
  bool fills_last = false;  ///< the last file has as many tokens, zeros behind its own
  /// Patterns of file names with the number of the chunk of tokens ({0}), the index of the first layer ({1}) and its number ({2}).
  /// The first pattern is used; the others are those of other exports, whose files are also removed.
  std::vector<std::string_view> names;
  /// Writes the header before the elements. Returns its bytes.
  std::function<uint64_t(TargetFile& file, const Array& array)> write_head = {};
};

/// Writes the first `tokens` tokens of the job's only document.
ExportResult write_chunks(const CacheSource& source, const ExportJob& job, uint64_t tokens,
                          const ChunkFiles& files);

}  // namespace kvcodec::interop
