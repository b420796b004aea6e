// Prompt caches of mlx-lm (INTEROP.md, "mlx"): safetensors whose tensors are the flattened states of the layers' caches,
// "<layer>.0" keys and "<layer>.1" values, and whose metadata are a flattened list. Up to version 0.31 it is [meta states, the
// user's, classes]; from 0.32 on [the user's, classes, names of scalars], and the meta states are tensors too.
#include <algorithm>
#include <cmath>

#include "formats/interop/arrays.hpp"
#include "formats/io/json_file.hpp"
#include "lib/quant/affine.hpp"

namespace kvcodec::interop {
namespace {

constexpr uint64_t kMaxExtent = 1 << 16;  // heads, or dimensions
constexpr uint64_t kUsualGroup = 64;
constexpr std::string_view kPlain = "KVCache", kJoined = "ConcatenateKVCache",
                           kQuantized = "QuantizedKVCache", kRotating = "RotatingKVCache";

/// The two layouts: the places of data in the metadata, and of the numbers of a layer's state.
enum class Layout : uint8_t { texts = 1, scalars = 2 };

/// The numbers of a cache besides its keys and values.
enum class Number : uint8_t { offset, group, bits, keep, size, next };

/// Their places: with texts the metadata "0.<layer>.<place>", with scalars the tensors "<layer>.<place>".
std::vector<std::pair<Number, int>> places_of(std::string_view kind, Layout layout) {
  const bool texts = layout == Layout::texts;
  if (kind == kQuantized) {
    const int first = texts ? 0 : 2;
    return {{Number::offset, first}, {Number::group, first + 1}, {Number::bits, first + 2}};
  }
  if (kind == kRotating && texts)
    return {{Number::keep, 0}, {Number::size, 1}, {Number::offset, 2}, {Number::next, 3}};
  if (kind == kRotating)
    return {{Number::offset, 2}, {Number::keep, 3}, {Number::size, 4}, {Number::next, 5}};
  if (kind == kPlain && !texts) return {{Number::offset, 2}};
  return {};
}

uint64_t number_in(const TensorFile& file, size_t layer, int place, Layout layout) {
  if (layout == Layout::scalars) {
    const auto& tensor = file.need(fmt::format("{}.{}", layer, place));
    const auto values = integers_of(tensor);
    if (values.size() != 1)
      throw bad_input("{}: has {} numbers; one is wanted", tensor.origin, values.size());
    return values[0];
  }
  const std::string name = fmt::format("0.{}.{}", layer, place);
  if (const auto value = file.metadata_number<uint64_t>(name)) return *value;
  const std::string* text = file.metadata(name);
  throw bad_input("{}: metadata '{}' is {}; a number is wanted", file->name(), name,
                  text ? "'" + printable(*text) + "'" : "missing");
}

/// The layout of a prompt cache file: with scalars, the list of their names begins with an empty one.
std::optional<Layout> layout_of(const TensorFile& file) {
  const std::string *scalars = file.metadata("2.0"), *classes = file.metadata("1.0");
  if (!scalars) return std::nullopt;
  if (!scalars->empty()) return Layout::texts;
  return classes ? std::optional(Layout::scalars) : std::nullopt;
}

// Quantized rows ------------------------------------------------------------------------------------

constexpr uint64_t kBits[] = {2, 3, 4, 5, 6, 8};

/// Codes of `bits` bits, the lowest first in u32 words; groups of `group` values share a scale and a bias (lib/quant/affine.hpp).
struct Quantization {
  uint64_t bits = 0, group = 0;

  AffineGroups groups_of(DType stored) const {
    return {.bits = static_cast<unsigned>(bits), .values = group, .stored = stored};
  }
  uint64_t words(uint64_t dims) const { return dims * bits / 32; }
  uint64_t groups(uint64_t dims) const { return dims / group; }
  void check(uint64_t dims, const std::string& where) const {
    if (std::ranges::count(kBits, bits) == 0 || group == 0 || dims % group != 0 || group * bits % 32 != 0)
      throw bad_input(
          "{}: {} dimensions in groups of {} and codes of {} bits; mlx-lm has 2, 3, 4, 5, 6 and 8 bits, and whole groups",
          where, dims, group, bits);
  }
};

/// Rows of values from rows of codes, scales and biases. Words of codes are read as f32: only their bits matter.
ReadRows dequantized(const ReadRows& codes, const ReadRows& scales, const ReadRows& biases,
                     const Quantization& q) {
  return [=, groups = q.groups_of(DType::f32)](uint64_t first, MatrixView<float> out) {
    Matrix<float> words(out.rows(), q.words(out.cols())), scale(out.rows(), q.groups(out.cols())),
        bias(scale.rows(), scale.cols());
    codes(first, words);
    scales(first, scale);
    biases(first, bias);
    std::vector<std::byte> block(groups.block_bytes());
    for (size_t i = 0; i < out.rows(); ++i)
      for (size_t g = 0; g < scale.cols(); ++g) {
        std::memcpy(block.data(), &scale(i, g), 4);
        std::memcpy(block.data() + 4, &bias(i, g), 4);
        std::memcpy(block.data() + 8, words.row(i).data() + g * q.words(q.group), groups.code_bytes());
        dequantize_affine(groups, block, out.row(i).subspan(g * q.group, q.group));
      }
  };
}

// Reading -------------------------------------------------------------------------------------------

/// The positions of so many rows of a cache that has seen `offset` tokens, and keeps its first `keep` tokens if it forgets any.
std::vector<uint64_t> positions_in(uint64_t rows, uint64_t offset, uint64_t keep) {
  std::vector<uint64_t> positions;
  const uint64_t kept = offset > rows ? std::min(keep, rows) : 0;
  for (uint64_t i = 0; i < rows; ++i) positions.push_back(i < kept ? i : offset - rows + i);
  return positions;
}

/// A layer's cache, as the file describes it.
struct LayerCache {
  std::string kind;
  uint64_t room = 0;              ///< rows of the tensors
  uint64_t rows = 0, offset = 0;  ///< tokens held, and seen
  uint64_t keep = 0, size = 0;    ///< rotating: number of first tokens that stay, and capacity in tokens
  uint64_t next = 0;              ///< rotating: the row of the next token
  Quantization q;
  LayerShape shape;
  DType dtype = DType::f32;
  std::array<ReadRows, 2> sides;

  std::vector<uint64_t> positions() const { return positions_in(rows, offset, keep); }
};

/// The file's rows in the order of their tokens. A rotating cache overwrites its oldest tokens except the first ones.
std::vector<uint32_t> order_of(const LayerCache& layer) {
  if (layer.kind != kRotating || layer.next == layer.room || layer.next >= layer.offset) return {};
  std::vector<uint32_t> order;
  const auto add = [&](uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) order.push_back(static_cast<uint32_t>(i));
  };
  add(0, layer.keep), add(layer.next, layer.room), add(layer.keep, layer.next);
  return order;
}

class PromptReader {
 public:
  explicit PromptReader(const std::string& name) : file_(name) {
    const auto layout = layout_of(file_);
    if (!layout) throw bad_input("{}: its metadata name no cache class", name);
    layout_ = *layout;
  }

  ForeignCache open(const ImportOptions& options) {
    ForeignCache cache;
    std::vector<std::string> classes;
    std::vector<LayerCache> layers;
    for (size_t i = 0; i < as_size(kMaxLayers); ++i) {
      const std::string* kind = file_.metadata(fmt::format("{}.{}", layout_ == Layout::texts ? 2 : 1, i));
      if (!kind) break;
      classes.push_back(*kind);
      layers.push_back(read_layer(i, *kind));
    }
    std::vector<LayerShape> shapes;
    std::optional<DType> type;
    for (const LayerCache& layer : layers) {
      shapes.push_back(layer.shape);
      if (layer.shape.heads > 0) type = wider(type, layer.dtype);
    }
    if (!type) throw bad_input("{}: none of its caches holds keys and values", file_->name());
    cache.dtype = *type;
    with_context(file_->name(), [&] {
      cache.model = model_of(std::move(shapes), options, "mlx prompt cache " + document_name(file_->name()),
                             cache.notes);
    });
    if (!options.model)
      if (const std::string* name = file_.metadata(user_prefix() + "model")) cache.model.model = *name;
    cache.model.imported = describe(classes, layers);
    add_documents(layers, cache);
    return cache;
  }

 private:
  std::string user_prefix() const { return layout_ == Layout::texts ? "1." : "0."; }

  /// A tensor of [batch, heads, tokens, dimensions].
  const Safetensors::Stored& tensor(const std::string& name) const {
    const Safetensors::Stored& found = file_.need(name);
    const auto& shape = found.shape;
    if (shape.size() != 4 || shape[0] == 0 || shape[1] == 0 || shape[1] > kMaxExtent || shape[3] == 0 ||
        shape[3] > kMaxExtent)
      throw bad_input("{}: shape is [{}]; batch, heads, tokens and dimensions are wanted", found.origin,
                      fmt::join(shape, ", "));
    return found;
  }

  static void check_batch(const Safetensors::Stored& found, const LayerCache& layer) {
    const uint64_t heads = as_size(layer.shape.heads);
    if (found.shape[0] != 1)
      throw bad_input("{}: holds a batch of {}; mlx-lm loads prompt caches of one", found.origin,
                      found.shape[0]);
    if (found.shape[1] != heads || found.shape[2] != layer.room)
      throw bad_input("{}: shape is [{}]; {} heads and {} tokens go with the layer's other tensors",
                      found.origin, fmt::join(found.shape, ", "), heads, layer.room);
  }

  ReadRows rows_of(const Safetensors::Stored& found, Cell cell, const LayerCache& layer) const {
    Plane plane = plane_of_heads(cell, 0, found.shape[1], found.shape[2], found.shape[3]);
    plane.order = order_of(layer);
    check_plane(plane, found.bytes.size(), found.origin + ": elements");
    return reader_of(file_.bytes_of(found), plane);
  }

  void read_numbers(size_t i, LayerCache& layer) const {
    layer.offset = layer.next = layer.room;
    for (const auto& [number, place] : places_of(layer.kind, layout_)) {
      const uint64_t value = number_in(file_, i, place, layout_);
      uint64_t* const members[] = {&layer.offset, &layer.q.group, &layer.q.bits,
                                   &layer.keep,   &layer.size,    &layer.next};
      *members[static_cast<size_t>(number)] = value;
    }
    const bool rotating = layer.kind == kRotating;
    const bool turned = rotating && layer.next < layer.room && layer.next < layer.offset;
    layer.rows = !rotating ? layer.offset : turned ? layer.room : layer.next;
    if (layer.rows > layer.room || layer.rows > layer.offset || (turned && layer.keep > layer.next))
      throw bad_input(
          "{}: layer {} has room for {} tokens; it says that it saw {}, keeps the first {} and goes on at {}",
          file_->name(), i, layer.room, layer.offset, layer.keep, layer.next);
  }

  LayerCache read_layer(size_t i, const std::string& kind) {
    LayerCache layer;
    layer.kind = kind;
    if (kind != kPlain && kind != kJoined && kind != kQuantized && kind != kRotating) {
      skipped_.push_back(fmt::format("{} ({})", i, printable(kind)));
      return layer;
    }
    const char* ending = kind == kQuantized ? ".0" : "";
    layer.room = tensor(fmt::format("{}.0{}", i, ending)).shape[2];
    if (layer.room > UINT32_MAX) throw bad_input("{}: layer {} has {} tokens", file_->name(), i, layer.room);
    read_numbers(i, layer);
    for (int s = 0; s < 2; ++s) {
      const std::string name = fmt::format("{}.{}", i, s);
      int& dim = s == 0 ? layer.shape.key_dim : layer.shape.value_dim;
      if (kind == kQuantized) {
        dim = read_quantized(name, layer, s);
        continue;
      }
      const auto& found = tensor(name);
      if (s == 0) layer.shape.heads = static_cast<int>(found.shape[1]);
      check_batch(found, layer);
      const Cell cell = need_cell(found);
      layer.dtype = s == 0 ? dtype_of(cell) : wider(layer.dtype, dtype_of(cell));
      dim = static_cast<int>(found.shape[3]);
      layer.sides[static_cast<size_t>(s)] = rows_of(found, cell, layer);
    }
    return layer;
  }

  int read_quantized(const std::string& name, LayerCache& layer, int side) {
    const auto &codes = tensor(name + ".0"), &scales = tensor(name + ".1"), &biases = tensor(name + ".2");
    if (side == 0) layer.shape.heads = static_cast<int>(codes.shape[1]);
    for (const auto* found : {&codes, &scales, &biases}) check_batch(*found, layer);
    const uint64_t dims = checked_mul(scales.shape[3], layer.q.group);
    if (dims > kMaxExtent) throw bad_input("{}: has {} dimensions, as no cache has", scales.origin, dims);
    layer.q.check(dims, file_->name());
    if (codes.dtype != "U32" || codes.shape[3] != layer.q.words(dims) || biases.shape[3] != scales.shape[3] ||
        biases.dtype != scales.dtype)
      throw bad_input("{}: {} of shape [{}]; U32 with {} words for {} dimensions of {} bits is wanted",
                      codes.origin, printable(codes.dtype), fmt::join(codes.shape, ", "), layer.q.words(dims),
                      dims, layer.q.bits);
    const Cell cell = need_cell(scales);
    layer.sides[static_cast<size_t>(side)] =
        dequantized(rows_of(codes, Cell::f32, layer), rows_of(scales, cell, layer),
                    rows_of(biases, cell, layer), layer.q);
    scale_type_ = cell;
    return static_cast<int>(dims);
  }

  /// The attribute that an export to mlx needs.
  std::string describe(const std::vector<std::string>& classes, const std::vector<LayerCache>& layers) const {
    nlohmann::json object = {{"format", "mlx"}, {"version", static_cast<int>(layout_)}, {"classes", classes}};
    nlohmann::json user = nlohmann::json::object();
    for (const auto& [name, value] : file_->metadata())
      if (name.starts_with(user_prefix())) user[name.substr(2)] = value;
    if (!user.empty()) object["metadata"] = user;
    nlohmann::json sizes = nlohmann::json::array(), keeps = nlohmann::json::array();
    bool rotating = false;
    for (const LayerCache& layer : layers) {
      rotating = rotating || layer.kind == kRotating;
      sizes.push_back(layer.size), keeps.push_back(layer.keep);
      if (layer.kind == kQuantized)
        object["bits"] = layer.q.bits, object["group"] = layer.q.group,
        object["scales"] = name_of(scale_type_);
    }
    if (rotating) object["max_size"] = sizes, object["keep"] = keeps;
    return imported_text(object);
  }

  void add_documents(const std::vector<LayerCache>& layers, ForeignCache& cache) {
    ForeignDocument document{.name = document_name(file_->name())};
    for (const LayerCache& layer : layers)
      if (layer.rows > document.positions.size()) document.positions = layer.positions();
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerCache& layer = layers[i];
      if (layer.shape.heads == 0) continue;
      const auto own = layer.positions();
      if (!std::equal(own.rbegin(), own.rend(), document.positions.rbegin()))
        throw bad_input(
            "{}: layer {} holds tokens that are not the last ones of the layer that holds the most",
            file_->name(), i);
      document.layers.emplace(static_cast<int>(i), ForeignLayer{.rows = layer.rows, .sides = layer.sides});
    }
    cache.documents.push_back(std::move(document));
    if (!skipped_.empty())
      cache.notes.push_back(
          fmt::format("what is not a cache of keys and values is left out: {}", fmt::join(skipped_, ", ")));
  }

  TensorFile file_;
  Layout layout_ = Layout::scalars;
  std::vector<std::string> skipped_;
  Cell scale_type_ = Cell::f16;
};

// Writing -------------------------------------------------------------------------------------------

constexpr char kPromptCache[] = "a prompt cache of mlx-lm";

class PromptWriter {
 public:
  PromptWriter(const CacheSource& source, const ExportJob& job)
      : source_(source),
        job_(job),
        document_(only_document(source, job, kPromptCache)),
        before_(source, "mlx"),
        sizes_(before_.list("max_size")),
        keeps_(before_.list("keep")) {
    constexpr uint64_t kMaxGroup = 1 << 16;
    q_.bits = job.options.bits > 0 ? static_cast<uint64_t>(job.options.bits) : before_.number("bits", 0, 8);
    q_.group = job.options.group > 0 ? static_cast<uint64_t>(job.options.group)
                                     : before_.number("group", kUsualGroup, kMaxGroup);
    if (q_.bits == 0 && job.options.group > 0)
      throw usage_error("--group is given, but the cache is not quantized; name its bits with --bits");
    if (q_.bits != 0 && std::ranges::count(kBits, q_.bits) == 0)
      throw usage_error("--bits is {}; mlx-lm has caches of 2, 3, 4, 5, 6 and 8 bits", q_.bits);
    const auto version = job.options.version > 0 ? static_cast<uint64_t>(job.options.version)
                                                 : before_.number("version", 2, 2);
    if (version < 1 || version > 2)
      throw usage_error("--version is {}; prompt caches are of version 1, up to mlx-lm 0.31, or 2", version);
    layout_ = static_cast<Layout>(version);
    cell_ = cell_or(source.dtype(), before_.text(job.options.key_type, "scales"));
    if (cell_ != Cell::f16 && cell_ != Cell::bf16 && cell_ != Cell::f32)
      throw usage_error("--type is {}; mlx-lm has caches of f16, bf16 and f32", name_of(cell_));
  }

  ExportResult run() {
    add_tensors();
    add_metadata();
    TargetFile file(job_.path, job_.overwrite);
    plan_.write_header(file);
    for (const auto& [layer, tensors] : tensors_)
      for (const Side side : kSides) write_side(layer, side, tensors[static_cast<size_t>(side)], file);
    for (const auto& [tensor, value] : scalars_)
      file.write(plan_.begin(tensor), std::as_bytes(std::span(&value, 1)));
    return finish(file, job_);
  }

 private:
  static uint64_t of_layer(const std::vector<int64_t>& list, int layer) {
    return as_size(layer) < list.size() ? static_cast<uint64_t>(std::max<int64_t>(0, list[as_size(layer)]))
                                        : 0;
  }
  bool quantized() const { return q_.bits != 0; }
  uint64_t tokens() const { return source_.documents().length(document_); }
  uint64_t kept(int layer) const { return source_.documents().held(layer, document_); }

  bool rotating(int layer) const { return leaves_out(source_, layer) || of_layer(sizes_, layer) > 0; }

  void add_tensors() {
    require_all_layers(source_, kPromptCache);
    const std::string dtype = dtype_of_cell(cell_, "--type");
    for (const int layer : source_.layers()) {
      const LayerShape shape = source_.model().layer_shape(layer);
      if (shape.values_in_keys)
        throw usage_error("{}: values lie in keys in layer {}; prompt caches of mlx-lm have both",
                          source_.name(), layer);
      if (quantized() && rotating(layer))
        throw usage_error(
            "{}: layer {} keeps its last tokens only, and mlx-lm has no quantized cache for that",
            source_.name(), layer);
      for (const Side side : kSides) {
        const uint64_t dims = as_size(shape.stored_dim(side)), size = block_of(cell_).bytes;
        const auto add = [&](const char* ending, const std::string& type, uint64_t columns, uint64_t bytes) {
          tensors_[layer][static_cast<size_t>(side)].push_back(
              plan_.add(fmt::format("{}.{}{}", layer, static_cast<int>(side), ending), type,
                        {1, as_size(shape.heads), kept(layer), columns}, bytes));
        };
        if (!quantized()) {
          add("", dtype, dims, size);
          continue;
        }
        q_.check(dims, source_.name());
        add(".0", "U32", q_.words(dims), 4);
        add(".1", dtype, q_.groups(dims), size);
        add(".2", dtype, q_.groups(dims), size);
      }
    }
  }

  /// The class of a layer's cache, and its numbers.
  std::string_view class_of(int layer, uint64_t seen, std::map<Number, uint64_t>& numbers) const {
    numbers[Number::offset] = tokens();
    if (quantized()) {
      numbers[Number::group] = q_.group, numbers[Number::bits] = q_.bits;
      return kQuantized;
    }
    if (!rotating(layer) && seen == tokens()) return kPlain;
    uint64_t size = of_layer(sizes_, layer);
    // Else the maximum over all documents: a short one alone does not show how many tokens the layer can keep.
    for (size_t i = 0; of_layer(sizes_, layer) == 0 && i < source_.documents().count(); ++i)
      size = std::max(size, source_.documents().held(layer, i));
    numbers = {{Number::offset, seen},
               {Number::keep, of_layer(keeps_, layer)},
               {Number::size, size},
               {Number::next, kept(layer)}};
    return kRotating;
  }

  void add_metadata() {
    const auto positions = source_.positions_of(document_);
    const uint64_t seen = positions.empty() ? 0 : positions.back() + 1;
    const bool texts = layout_ == Layout::texts;
    if (!texts) plan_.set("2.0", "");
    for (const int layer : source_.layers()) {
      std::map<Number, uint64_t> numbers;
      const std::string_view kind = class_of(layer, seen, numbers);
      const auto read = positions_in(kept(layer), numbers[Number::offset], numbers[Number::keep]);
      if (!std::equal(read.rbegin(), read.rend(), positions.rbegin()))
        throw lost_positions(source_, document_, kPromptCache);
      plan_.set(fmt::format("{}.{}", texts ? 2 : 1, layer), std::string(kind));
      const auto places = places_of(kind, layout_);
      if (texts && places.empty()) plan_.set(fmt::format("0.{}", layer), "");
      for (const auto& [number, place] : places) {
        const uint64_t value = numbers[number];
        if (texts) {
          plan_.set(fmt::format("0.{}.{}", layer, place), std::to_string(value));
          continue;
        }
        if (value > INT32_MAX)
          throw usage_error("{}: {} tokens are more than mlx-lm counts", source_.name(), value);
        const std::string name = fmt::format("{}.{}", layer, place);
        scalars_.emplace_back(plan_.add(name, "I32", {}, sizeof(int32_t)), static_cast<int32_t>(value));
        plan_.set(fmt::format("2.{}.0", scalars_.size()), name);
        plan_.set(fmt::format("2.{}.1", scalars_.size()), "scalar");
      }
    }
    const std::string user = texts ? "1." : "0.";
    for (const auto& [name, value] : before_.texts("metadata")) plan_.set(user + name, value);
    if (!before_.has("classes") && source_.model().model != "unknown")
      plan_.set(user + "model", source_.model().model);
  }

  void write_side(int layer, Side side, const std::vector<size_t>& tensors, TargetFile& file) const {
    const LayerShape shape = source_.model().layer_shape(layer);
    const uint64_t heads = as_size(shape.heads), dims = as_size(shape.stored_dim(side)), rows = kept(layer);
    for_each_piece(source_, job_, {side, layer, document_}, [&](uint64_t first, MatrixView<float> piece) {
      if (!quantized())
        return file.write(plane_of_heads(cell_, plan_.begin(tensors[0]), heads, rows, dims), first, piece);
      const uint64_t words = q_.words(dims), groups = q_.groups(dims);
      Matrix<float> codes(piece.rows(), heads * words), scales(piece.rows(), heads * groups),
          biases(piece.rows(), heads * groups);
      const AffineGroups group = q_.groups_of(dtype_of(cell_));
      std::vector<std::byte> blocks(heads * groups * group.block_bytes());
      for (size_t i = 0; i < piece.rows(); ++i) {
        quantize_affine(group, piece.row(i), blocks);
        for (size_t g = 0; g < heads * groups; ++g) {
          const auto block = std::span(blocks).subspan(g * group.block_bytes(), group.block_bytes());
          const size_t before = block.size() - group.code_bytes();
          std::array<float, 2> grid{};
          decode(cell_, block.first(before), grid);
          if (!std::isfinite(grid[0]) || !std::isfinite(grid[1]))
            throw bad_input("row {}: values are beyond the range of {}; name another type", first + i,
                            name_of(cell_));
          scales(i, g) = grid[0], biases(i, g) = grid[1];
          // Bit patterns in floats, which are written as they are.
          std::memcpy(codes.row(i).data() + g * q_.words(q_.group), block.data() + before,
                      group.code_bytes());
        }
      }
      file.write(plane_of_heads(Cell::f32, plan_.begin(tensors[0]), heads, rows, words), first, codes);
      file.write(plane_of_heads(cell_, plan_.begin(tensors[1]), heads, rows, groups), first, scales);
      file.write(plane_of_heads(cell_, plan_.begin(tensors[2]), heads, rows, groups), first, biases);
    });
  }

  const CacheSource& source_;
  const ExportJob& job_;
  size_t document_;
  Imported before_;
  std::vector<int64_t> sizes_, keeps_;  ///< of rotating caches, per layer
  Layout layout_ = Layout::scalars;
  Quantization q_;
  Cell cell_ = Cell::f16;
  TensorPlan plan_;
  std::vector<std::pair<size_t, int32_t>> scalars_;  ///< tensors of one number
  std::map<int, std::array<std::vector<size_t>, 2>> tensors_;
};

}  // namespace

ForeignFormat mlx_format() {
  return {.name = "mlx",
          .summary = "prompt cache of mlx-lm, safetensors",
          .is_of = [](const std::string& file) { return layout_of(TensorFile(file)).has_value(); },
          .open =
              [](const auto& files, const auto& options) {
                return joined(files, [&](const auto& file) { return PromptReader(file).open(options); });
              },
          .write = [](const auto& source, const auto& job) { return PromptWriter(source, job).run(); },
          .export_options = {"type", "version", "bits", "group"}};
}

}  // namespace kvcodec::interop
