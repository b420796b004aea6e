// Chunks of LMCache with their header (INTEROP.md, "lmcache"): seven i32, then the elements.
#include <algorithm>
#include <fstream>

#include "formats/interop/arrays.hpp"
#include "formats/interop/formats.hpp"
#include "formats/interop/imported.hpp"
#include "formats/interop/layer_names.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {
namespace {

constexpr uint64_t kHeaderBytes = 28, kUsualTokens = 256;

struct TypeNumber {
  int32_t number;
  Cell cell;
};
constexpr TypeNumber kTypes[] = {{2, Cell::f16}, {1, Cell::f16},  {3, Cell::bf16}, {4, Cell::f32},
                                 {5, Cell::f64}, {7, Cell::e4m3}, {8, Cell::e5m2}};

/// How the elements of each format lie. The last axis is all heads together.
struct Form {
  int32_t number;
  const char* layout;
  bool layers;  ///< all layers in one chunk; else a chunk is of one
};
constexpr Form kForms[] = {{1, "sltd", true}, {2, "tsd", false}, {3, "std", false}, {6, "sltd", true}};

const Form& form_of(int32_t number) {
  for (const Form& form : kForms)
    if (form.number == number) return form;
  throw bad_input("is of format {}; formats 1, 2, 3 and 6 are read", number);
}

/// The name of an exported chunk of all layers, and of one.
std::string chunk_name(uint64_t number) { return fmt::format("{:06}.data", number); }
std::string chunk_name(uint64_t number, uint64_t layer) {
  return fmt::format("{:06}-{:04}.data", number, layer);
}

struct Chunk {
  Form form{};
  Array array;
};

Chunk open_chunk(const std::string& file) {
  const Bytes bytes = map_file(file);
  return with_context(file, [&] {
    Cursor in(bytes.bytes);
    const auto length = in.number<int32_t>("the length"), format = in.number<int32_t>("the format"),
               type = in.number<int32_t>("the type of elements");
    int32_t extents[4];
    for (int32_t& extent : extents) extent = in.number<int32_t>("an extent");
    Chunk chunk{.form = form_of(format), .array = {}};
    chunk.array = {.bytes = bytes, .type = Cell::f32, .begin = kHeaderBytes, .axes = {}, .where = file};
    const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeNumber& own) { return own.number == type; });
    if (known == std::end(kTypes))
      throw bad_input("has elements of type {}; types 1 to 5, 7 and 8 are read", type);
    chunk.array.type = known->cell;
    chunk.array.axes = axes_of(chunk.form.layout, "layout");
    uint64_t elements = 1;
    for (size_t i = 0; i < 4; ++i) {
      if (i >= chunk.array.axes.size() && extents[i] <= 1) continue;
      if (i >= chunk.array.axes.size() || extents[i] <= 0)
        throw bad_input("shape is [{}], that of no format {}", fmt::join(extents, ", "), format);
      chunk.array.axes[i].extent = static_cast<uint64_t>(extents[i]);
      elements = checked_mul(elements, static_cast<uint64_t>(extents[i]));
    }
    if (chunk.array.extent('s') != (format == 6 ? 1u : 2u))
      throw bad_input("shape is [{}]; keys and values are {} in format {}", fmt::join(extents, ", "),
                      format == 6 ? 1 : 2, format);
    const uint64_t wanted = checked_mul(elements, block_of(known->cell).bytes);
    if (length < 0 || static_cast<uint64_t>(length) != wanted || in.left() != wanted)
      throw bad_input("says that it has {} bytes of elements; its shape takes {}, and {} are there", length,
                      wanted, in.left());
    return chunk;
  });
}

}  // namespace

bool is_lmcache(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  int32_t head[3] = {};
  in.read(reinterpret_cast<char*>(head), sizeof head);
  in.seekg(0, std::ios::end);
  if (!in || head[0] <= 0 ||
      static_cast<uint64_t>(in.tellg()) != kHeaderBytes + static_cast<uint64_t>(head[0]))
    return false;
  try {
    open_chunk(file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

ForeignCache open_lmcache(const std::vector<std::string>& files, const ImportOptions& options) {
  std::vector<Chunk> chunks;
  chunks.reserve(files.size());
  for (const std::string& file : files) chunks.push_back(open_chunk(file));
  const Chunk& first = chunks.front();
  const auto named = options.layers > 0 ? static_cast<uint64_t>(options.layers)
                     : options.model    ? static_cast<uint64_t>(options.model->num_layers)
                                        : files.size();
  const uint64_t layers = first.form.layers ? first.array.extent('l') : named;
  if (first.form.layers && options.layers > 0 && layers != static_cast<uint64_t>(options.layers))
    throw usage_error("{}: has {} layers; --layer-count is {}", files[0], layers, options.layers);
  if (!first.form.layers && files.size() % layers != 0)
    throw usage_error("{} files are not whole chunks of {} layers, a file each", files.size(), layers);
  if (layers > uint64_t{kMostLayers}) throw bad_input("{}: has {} layers, as no cache has", files[0], layers);
  LayerShape shape;
  if (first.form.number == 6) {
    if (options.latent <= 0 || static_cast<uint64_t>(options.latent) > first.array.extent('d') ||
        first.array.extent('d') > (1 << 20))
      throw usage_error("{}: has keys alone, in which values lie; name the model with --model", files[0]);
    shape = {.heads = 1,
             .key_dim = static_cast<int>(first.array.extent('d')),
             .value_dim = options.latent,
             .values_in_keys = true};
  } else {
    shape = heads_in(1, first.array.extent('d'), options, files[0]);
  }
  ForeignCache cache;
  cache.dtype = dtype_of(first.array.type);
  for (size_t i = 1; i < chunks.size(); ++i) {
    if (chunks[i].form.number != first.form.number || chunks[i].array.extent('l') != first.array.extent('l'))
      throw bad_input("{}: is of another format or other layers than {}", files[i], files[0]);
    cache.dtype = wider(cache.dtype, dtype_of(chunks[i].array.type));
  }
  cache.model = with_context(files[0], [&] {
    return model_of(std::vector(static_cast<size_t>(layers), shape), options,
                    "LMCache " + document_name(files[0]), cache.notes);
  });
  ForeignDocument document{.name = document_name(files[0]), .tokens = {}, .positions = {}, .layers = {}};
  for (uint64_t layer = 0; layer < layers; ++layer) {
    std::vector<Piece> pieces;
    for (size_t i = first.form.layers ? 0 : layer; i < chunks.size(); i += first.form.layers ? 1 : layers)
      pieces.push_back({&chunks[i].array, first.form.layers ? layer : 0, 0, Side::both});
    document.layers.emplace(static_cast<int>(layer), layer_of(pieces, shape));
  }
  document.positions = first_positions(document.layers.begin()->second.rows);
  cache.documents.push_back(std::move(document));
  cache.model.imported = imported_text({{"format", "lmcache"},
                                        {"kind", std::to_string(first.form.number)},
                                        {"type", name_of(first.array.type)},
                                        {"tokens", first.array.extent('t')}});
  return cache;
}

ExportResult write_lmcache(const CacheSource& source, const ExportJob& job) {
  const size_t document = only_document(source, job, "a folder of chunks");
  const Imported before(source, "lmcache");
  const std::string kind = before.text(job.options.kind, "kind");
  if (!kind.empty() && kind != "1" && kind != "2" && kind != "3" && kind != "6")
    throw usage_error("--kind is '{}'; formats of LMCache are 1, 2, 3 and 6", kind);
  const std::string type = before.text(job.options.key_type, "type");
  const Cell cell = type.empty() ? cell_of(source.dtype()) : cell_from_name(type, "--type");
  const auto number =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeNumber& t) { return t.cell == cell; });
  if (number == std::end(kTypes))
    throw usage_error("--type is {}; LMCache has no such elements", name_of(cell));
  const LayerShape shape = source.model().layer_shape(source.layers().front());
  const Form& form = form_of(!kind.empty() ? std::stoi(kind) : shape.values_in_keys ? 6 : 1);
  for (const int layer : source.layers())
    if (const LayerShape own = source.model().layer_shape(layer);
        own != shape || leaves_out(source, layer) || (own.key_dim != own.value_dim && !own.values_in_keys) ||
        own.values_in_keys != (form.number == 6))
      throw usage_error(
          "{}: layers, or their keys and values, differ in shape or tokens; chunks of LMCache have one shape",
          source.name());
  const uint64_t chunk = job.options.page_tokens > 0
                             ? job.options.page_tokens
                             : std::max<uint64_t>(1, before.number("tokens", kUsualTokens, INT32_MAX));
  const uint64_t tokens = source.documents().length(document), layers = source.layers().size(),
                 row = as_size(shape.heads) * as_size(shape.key_dim), sides = form.number == 6 ? 1 : 2;
  const auto bytes_of = [&](std::vector<Axis>& axes, uint64_t count) {
    const uint64_t elements = set_extents(
        axes, {.sides = sides, .layers = form.layers ? layers : 1, .tokens = count, .dims = row}, "layout");
    return checked_mul(elements, block_of(cell).bytes);
  };
  std::vector<Axis> largest = axes_of(form.layout, "layout");
  const uint64_t most = std::min(chunk, tokens);
  if (const uint64_t bytes = bytes_of(largest, most); bytes > INT32_MAX)
    throw usage_error("a chunk of {} tokens takes {} bytes; --page makes smaller ones", most, bytes);
  TargetFolder folder(job, [](const std::string& name) {
    const auto numbers = numbers_in(name);
    return (numbers.size() == 1 && name == chunk_name(numbers[0])) ||
           (numbers.size() == 2 && name == chunk_name(numbers[0], numbers[1]));
  });
  ExportResult result;
  for (uint64_t first = 0, i = 0; first < tokens; first += chunk, ++i) {
    const uint64_t count = std::min(chunk, tokens - first);
    for (size_t file_layer = 0; file_layer < (form.layers ? 1 : layers); ++file_layer) {
      TargetFile file(folder.place_of(form.layers ? chunk_name(i) : chunk_name(i, file_layer)), false);
      std::vector<Axis> axes = axes_of(form.layout, "layout");
      const uint64_t bytes = bytes_of(axes, count);
      Numbers head;
      head.add(static_cast<int32_t>(bytes)), head.add(form.number), head.add(number->number);
      for (size_t a = 0; a < 4; ++a)
        head.add(a < axes.size() ? static_cast<int32_t>(axes[a].extent) : int32_t{0});
      file.write(0, head.bytes());
      for (size_t l = form.layers ? 0 : file_layer; l < (form.layers ? layers : file_layer + 1); ++l)
        for (const Side side : kSides) {
          if (shape.stored_dim(side) == 0) continue;
          const AxisPlace at[] = {{'s', static_cast<uint64_t>(side == Side::value)}, {'l', l}};
          const Plane plane = plane_in_array(cell, kHeaderBytes, axes, at);
          Matrix<float> rows(static_cast<size_t>(count), static_cast<size_t>(row));
          source.read(side, source.layers()[l], document, first, rows);
          file.write(plane, 0, rows);
          if (job.count) job.count(count);
        }
      result.bytes += file.commit();
    }
  }
  result.files = folder.commit();
  result.notes.push_back(
      "LMCache finds chunks by their names, which hold hashes of token ids: rename the files to the keys");
  return result;
}

}  // namespace kvcodec::interop
