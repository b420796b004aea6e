#include "formats/interop/arrays.hpp"

#include <algorithm>
#include <cstring>

#include "formats/io/json_file.hpp"

namespace kvcodec::interop {

Imported::Imported(const CacheSource& source, std::string_view format) {
  if (source.model().imported.empty()) return;
  nlohmann::json object =
      parse_json_object(source.model().imported, source.name() + ": attribute 'imported'");
  if (object.contains("format") && object["format"] == std::string(format)) object_ = std::move(object);
}

const nlohmann::json& Imported::find(const char* name) const {
  static const nlohmann::json kNull;
  const auto value = object_.find(name);
  return value == object_.end() ? kNull : *value;
}

std::vector<std::pair<uint32_t, uint32_t>> Imported::pairs(const char* name) const {
  const auto& value = find(name);
  std::vector<std::pair<uint32_t, uint32_t>> found;
  if (!value.is_array()) return found;
  const auto is_small = [](const auto& item) {
    return item.is_number_unsigned() && item.template get<uint64_t>() <= UINT16_MAX;
  };
  for (const auto& item : value) {
    if (!item.is_array() || item.size() != 2 || !is_small(item[0]) || !is_small(item[1])) return {};
    found.emplace_back(item[0].template get<uint32_t>(), item[1].template get<uint32_t>());
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> Imported::texts(const char* name) const {
  const auto& value = find(name);
  std::vector<std::pair<std::string, std::string>> found;
  if (!value.is_object()) return found;
  for (const auto& [key, text] : value.items())
    if (text.is_string()) found.emplace_back(key, text.template get<std::string>());
  return found;
}

std::optional<LayerName> layer_name(std::string_view name) {
  /// Names of keys and values of layer N: `before`, N, and one of the ends.
  constexpr struct {
    std::string_view before, ends[2];
  } kPatterns[] = {{"layers.", {".keys", ".values"}},
                   {"past_key_values.", {".key", ".value"}},
                   {"past_key_values.", {".0", ".1"}},
                   {"key_cache.", {"", "-"}},
                   {"value_cache.", {"-", ""}}};
  for (const auto& pattern : kPatterns) {
    if (!name.starts_with(pattern.before)) continue;
    const std::string_view rest = name.substr(pattern.before.size());
    int layer = -1;
    const char* const end = std::from_chars(rest.data(), rest.data() + rest.size(), layer).ptr;
    if (layer < 0 || layer >= kMaxLayers) continue;
    const std::string_view behind = rest.substr(static_cast<size_t>(end - rest.data()));
    for (size_t side = 0; side < 2; ++side)
      if (behind == pattern.ends[side]) return LayerName{layer, side};
  }
  return std::nullopt;
}

static const Axis* find_axis(const std::vector<Axis>& axes, char name) {
  const auto axis = std::ranges::find(axes, name, &Axis::name);
  return axis == axes.end() ? nullptr : &*axis;
}

bool Array::has(char axis) const { return find_axis(axes, axis) != nullptr; }
uint64_t Array::extent(char axis) const { return has(axis) ? find_axis(axes, axis)->extent : 1; }

std::vector<uint64_t> Array::shape() const { return mapped<uint64_t>(axes, &Axis::extent); }

void check_pairs(const ArrayPairs& arrays, const std::string& file, const char* wanted) {
  if (arrays.empty()) throw bad_input("{}: it has no {}", file, wanted);
  for (const auto& [layer, sides] : arrays)
    for (size_t s = 0; s < 2; ++s)
      if (!sides[s]) throw bad_input("{}: layer {} has no {}s", file, layer, name_of(kSides[s]));
}

std::vector<Axis> axes_of(const std::string& layout, const std::string& option) {
  std::vector<Axis> axes;
  for (const char letter : layout) {
    if (find_axis(axes, letter) || std::string_view("slbhtd").find(letter) == std::string_view::npos)
      throw usage_error(
          "{} is '{}'; it must be of the letters s (side), l (layer), b (document), h (head), t (token) and d "
          "(dimension), each once",
          option, layout);
    axes.push_back({letter, 1});
  }
  if (!find_axis(axes, 't') || !find_axis(axes, 'd'))
    throw usage_error("{} is '{}'; tokens (t) and dimensions (d) must be among the axes", option, layout);
  return axes;
}

void set_extents(std::vector<Axis>& axes, const Extents& extents, const std::string& option) {
  std::string layout;
  for (const Axis& axis : axes) layout += axis.name;
  const auto require = [&](char name, const char* what, uint64_t count) {
    if (count > 1 && !find_axis(axes, name))
      throw usage_error("{} is '{}', which has no axis of {} ({}), but there are {}", option, layout, what,
                        name, count);
  };
  require('s', "sides", extents.sides);
  require('l', "layers", extents.layers);
  const uint64_t dims = find_axis(axes, 'h') ? extents.dims : checked_mul(extents.heads, extents.dims);
  const std::map<char, uint64_t> all = {{'s', extents.sides}, {'l', extents.layers}, {'b', 1},
                                        {'h', extents.heads}, {'t', extents.tokens}, {'d', dims}};
  for (Axis& axis : axes) axis.extent = all.at(axis.name);
}

namespace {

constexpr CellName<std::string_view> kDtypes[] = {{"F32", Cell::f32},      {"F16", Cell::f16},
                                                  {"BF16", Cell::bf16},    {"F64", Cell::f64},
                                                  {"F8_E4M3", Cell::e4m3}, {"F8_E5M2", Cell::e5m2}};

struct IntegerType {
  std::string_view dtype;
  uint64_t bytes;
  bool has_sign;
};
constexpr IntegerType kIntegers[] = {{"I64", 8, true},  {"I32", 4, true},  {"I16", 2, true},
                                     {"I8", 1, true},   {"U64", 8, false}, {"U32", 4, false},
                                     {"U16", 2, false}, {"U8", 1, false},  {"BOOL", 1, false}};

}  // namespace

std::string dtype_of_cell(Cell type, const std::string& option) {
  for (const auto& known : kDtypes)
    if (known.cell == type) return std::string(known.name);
  throw usage_error("{} is {}; safetensors have no such type", option, name_of(type));
}

const Safetensors::Stored& TensorFile::need(const std::string& name) const {
  if (const auto* tensor = file_->stored(name)) return *tensor;
  throw bad_input("{}: tensor '{}' is missing", file_->name(), printable(name));
}

Array TensorFile::array_of(const Safetensors::Stored& tensor, const char* layout) const {
  Array array{.bytes = bytes_of(tensor),
              .type = need_cell(tensor),
              .axes = axes_of(layout, "layout"),
              .where = tensor.origin};
  with_context(array.where, [&] { array.set_shape(tensor.shape); });
  return array;
}

Cell need_cell(const Safetensors::Stored& tensor) {
  for (const auto& known : kDtypes)
    if (known.name == tensor.dtype) return known.cell;
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

/// A reader of one side of a layer of a document; sets `rows` to the number of its rows.
static ReadRows reader_of(const ArrayLayer& layer, Side side, uint64_t document, uint64_t& rows) {
  struct Part {
    uint64_t first, tokens;
    ReadRows read;
  };
  std::vector<Part> parts;
  const LayerShape& shape = layer.shape;
  rows = 0;
  for (const Piece& piece : layer.pieces) {
    if (piece.of != Side::both && piece.of != side) continue;
    const Plane plane = piece.array->plane(side, piece.layer, document);
    if (plane.values() != as_size(shape.heads) * as_size(shape.stored_dim(side)))
      throw bad_input("{}: has {} {}s of a token; those of {} heads of {} dimensions are wanted",
                      piece.array->where, plane.values(), name_of(side), shape.heads, shape.stored_dim(side));
    parts.push_back({rows, plane.tokens, reader_of(piece.array->bytes, plane)});
    rows = checked_add(rows, plane.tokens);
  }
  return [parts = std::move(parts)](uint64_t first, MatrixView<float> out) {
    size_t done = 0;
    for (const Part& part : parts) {
      const uint64_t at = first + done;
      if (done == out.rows()) break;
      if (at < part.first || at >= part.first + part.tokens) continue;
      const auto count = static_cast<size_t>(std::min(out.rows() - done, part.first + part.tokens - at));
      part.read(at - part.first, out.rows(done, count));
      done += count;
    }
  };
}

ForeignCache cache_in_arrays(const std::map<int, ArrayLayer>& layers, size_t num_layers,
                             const ImportOptions& options, const CacheNames& names) {
  ForeignCache cache;
  std::vector<LayerShape> shapes(num_layers);
  std::optional<DType> type;
  const Array& first = *layers.begin()->second.pieces.front().array;
  const uint64_t documents = first.extent('b');
  constexpr uint64_t kMaxDocuments = 1 << 20;
  if (documents > kMaxDocuments)
    throw bad_input("{}: has {} documents, as no cache has", first.where, documents);
  for (const auto& [number, layer] : layers) {
    shapes[as_size(number)] = layer.shape;
    for (const Piece& piece : layer.pieces) {
      type = wider(type, dtype_of(piece.array->type));
      if (piece.array->extent('b') != documents)
        throw bad_input("{}: has {} documents; others have {}", piece.array->where, piece.array->extent('b'),
                        documents);
    }
  }
  cache.dtype = *type;
  cache.model = with_context(names.file,
                             [&] { return model_of(std::move(shapes), options, names.source, cache.notes); });
  for (uint64_t b = 0; b < documents; ++b) {
    ForeignDocument document{.name = names.document};
    if (documents > 1) document.name += fmt::format(":{}", b);
    uint64_t tokens = 0;
    for (const auto& [number, layer] : layers) {
      ForeignLayer& own = document.layers[number];
      uint64_t values = 0;
      own.sides[0] = reader_of(layer, Side::key, b, own.rows);
      if (!layer.shape.values_in_keys) own.sides[1] = reader_of(layer, Side::value, b, values);
      if (!layer.shape.values_in_keys && values != own.rows)
        throw bad_input("{}: has values of {} tokens and keys of {}", layer.pieces.front().array->where,
                        values, own.rows);
      tokens = std::max(tokens, own.rows);
    }
    document.positions = numbers_below<uint64_t>(tokens);
    cache.documents.push_back(std::move(document));
  }
  return cache;
}

LayerShape heads_in(uint64_t heads, uint64_t dims, const ImportOptions& options) {
  constexpr uint64_t kMaxValues = 1 << 20;
  const uint64_t values = checked_mul(heads, dims);
  if (values == 0 || values > kMaxValues)
    throw bad_input("a token has {} values, as that of no cache", values);
  if (heads == 1 && options.latent == 0) {  // the rows may be of several heads
    const bool is_known = options.model && options.model->one_shape();
    heads = options.heads > 0      ? as_size(options.heads)
            : options.head_dim > 0 ? values / as_size(options.head_dim)
            : is_known             ? as_size(options.model->num_kv_heads)
                                   : 0;
    if (heads == 0 && options.head_dim == 0)
      throw usage_error("does not say how many heads its rows of {} values are of; give --model or --heads",
                        values);
    if (heads == 0 || values % heads != 0)
      throw bad_input("rows have {} values, which are not those of {} heads", values, heads);
  }
  return usual_layer(static_cast<int>(heads), static_cast<int>(values / heads));
}

LayerShape latent_layer(uint64_t dims, const ImportOptions& options) {
  if (options.latent <= 0 || as_size(options.latent) > dims)
    throw usage_error("has keys alone, in which values lie; name the model with --model");
  return {.heads = 1,
          .key_dim = plausible(dims, "dimensions"),
          .value_dim = options.latent,
          .values_in_keys = true};
}

ExportResult write_chunks(const CacheSource& source, const ExportJob& job, uint64_t tokens,
                          const ChunkFiles& files) {
  const auto file_name = [](std::string_view pattern, uint64_t chunk, uint64_t place, uint64_t layer) {
    return fmt::format(fmt::runtime(pattern), chunk, place, layer);
  };
  TargetFolder folder(job, [&](const std::string& name) {
    const auto numbers = numbers_in(name);
    return !numbers.empty() && std::ranges::any_of(files.names, [&](std::string_view pattern) {
      return file_name(pattern, numbers.front(), numbers.back(), numbers.back()) == name;
    });
  });
  ExportResult result;
  for (uint64_t first = 0, chunk = 0; first < tokens; first += files.tokens, ++chunk)
    for (size_t place = 0; place < source.layers().size(); place += files.layers) {
      const auto layers = std::span(source.layers()).subspan(place, files.layers);
      const LayerShape shape = source.model().layer_shape(layers.front());
      const uint64_t count = std::min(files.tokens, tokens - first);
      std::string layout = files.layout;
      if (shape.values_in_keys) std::erase(layout, 's');
      Array array{.type = files.type, .axes = axes_of(layout, files.option)};
      set_extents(array.axes,
                  {.sides = shape.values_in_keys ? uint64_t{1} : 2,
                   .layers = files.layers,
                   .heads = as_size(shape.heads),
                   .tokens = files.fills_last ? files.tokens : count,
                   .dims = as_size(shape.key_dim)},
                  files.option);
      TargetFile file(folder.place_of(file_name(files.names.front(), chunk, place, as_size(layers.front()))),
                      false);
      if (files.write_head) array.begin = files.write_head(file, array);
      const std::byte last{};
      file.write(array.begin + array.byte_count() - 1, {&last, 1});  // beyond its tokens it has zeros
      for (size_t l = 0; l < layers.size(); ++l)
        for (const Side side : kSides) {
          const Plane plane = plane_in_array(array.type, array.begin, array.axes, {side, l, 0});
          for_each_piece(source, job, {side, layers[l], job.documents.front(), first, count},
                         [&](uint64_t at, MatrixView<float> rows) { file.write(plane, at, rows); });
        }
      result.bytes += file.commit();
    }
  result.files = folder.commit();
  return result;
}

}  // namespace kvcodec::interop
