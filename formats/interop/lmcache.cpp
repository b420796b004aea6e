// Chunks of LMCache with their header (INTEROP.md, "lmcache"): seven i32, then the elements.
#include <algorithm>

#include "formats/interop/arrays.hpp"

namespace kvcodec::interop {
namespace {

constexpr uint64_t kHeaderBytes = 28, kUsualTokens = 256;

constexpr CellName<int32_t> kChunkTypes[] = {{2, Cell::f16}, {1, Cell::f16},  {3, Cell::bf16}, {4, Cell::f32},
                                             {5, Cell::f64}, {7, Cell::e4m3}, {8, Cell::e5m2}};

/// The layout of the elements of each format. The last axis is all heads together.
struct ChunkForm {
  int32_t number;
  const char* layout;
  bool whole;  ///< a chunk has all layers; else one
};
constexpr ChunkForm kChunkForms[] = {
    {1, "sltd", true}, {2, "tsd", false}, {3, "std", false}, {6, "sltd", true}};

const ChunkForm& chunk_form(int32_t number) {
  for (const ChunkForm& form : kChunkForms)
    if (form.number == number) return form;
  throw bad_input("is of format {}; formats 1, 2, 3 and 6 are read", number);
}

struct Chunk {
  ChunkForm form;
  Array array;
};

Chunk open_chunk(const std::string& file) {
  const Bytes bytes = map_file(file);
  return with_context(file, [&] {
    ByteCursor in(bytes.bytes);
    const auto length = in.number<int32_t>("the length"), format = in.number<int32_t>("the format"),
               type = in.number<int32_t>("the type of elements");
    const auto known = std::ranges::find(kChunkTypes, type, &CellName<int32_t>::name);
    if (known == std::end(kChunkTypes))
      throw bad_input("has elements of type {}; types 1 to 5, 7 and 8 are read", type);
    Chunk chunk{.form = chunk_form(format),
                .array = {.bytes = bytes, .type = known->cell, .begin = kHeaderBytes, .where = file}};
    chunk.array.axes = axes_of(chunk.form.layout, "layout");
    std::vector<int32_t> extents(4);
    for (int32_t& extent : extents) extent = in.number<int32_t>("an extent");
    std::vector<uint64_t> shape;
    for (size_t i = 0; i < extents.size(); ++i) {
      const bool is_axis = i < chunk.array.axes.size();
      if (is_axis ? extents[i] <= 0 : extents[i] > 1)
        throw bad_input("shape is [{}], that of no format {}", fmt::join(extents, ", "), format);
      if (is_axis) shape.push_back(static_cast<uint64_t>(extents[i]));
    }
    chunk.array.set_shape(shape);
    if (const uint64_t sides = format == 6 ? 1 : 2; chunk.array.extent('s') != sides)
      throw bad_input("shape is [{}]; keys and values are {} in format {}", fmt::join(extents, ", "), sides,
                      format);
    const uint64_t wanted = chunk.array.byte_count();
    if (length < 0 || static_cast<uint64_t>(length) != wanted || in.left() != wanted)
      throw bad_input("says that it has {} bytes of elements; its shape takes {}, and {} are there", length,
                      wanted, in.left());
    return chunk;
  });
}

ForeignCache open_lmcache(const std::vector<std::string>& files, const ImportOptions& options) {
  const auto chunks = mapped<Chunk>(files, open_chunk);
  const Chunk& first = chunks.front();
  const auto given = options.layers > 0 ? static_cast<uint64_t>(options.layers)
                     : options.model    ? static_cast<uint64_t>(options.model->num_layers)
                                        : files.size();
  const uint64_t layers = first.form.whole ? first.array.extent('l') : given;
  if (first.form.whole && options.layers > 0 && layers != static_cast<uint64_t>(options.layers))
    throw usage_error("{}: has {} layers; --layer-count is {}", files[0], layers, options.layers);
  if (!first.form.whole && files.size() % layers != 0)
    throw usage_error("{} files are not whole chunks of {} layers, a file each", files.size(), layers);
  if (layers > uint64_t{kMaxLayers}) throw bad_input("{}: has {} layers, as no cache has", files[0], layers);
  const LayerShape shape = with_context(files[0], [&] {
    const uint64_t dims = first.array.extent('d');
    return first.form.number == 6 ? latent_layer(dims, options) : heads_in(1, dims, options);
  });
  for (size_t i = 1; i < chunks.size(); ++i)
    if (chunks[i].form.number != first.form.number || chunks[i].array.extent('l') != first.array.extent('l'))
      throw bad_input("{}: is of another format or other layers than {}", files[i], files[0]);
  std::map<int, ArrayLayer> all;
  for (uint64_t layer = 0; layer < layers; ++layer) {
    ArrayLayer& own = all[static_cast<int>(layer)];
    own.shape = shape;
    for (size_t i = first.form.whole ? 0 : layer; i < chunks.size(); i += first.form.whole ? 1 : layers)
      own.pieces.push_back({&chunks[i].array, first.form.whole ? layer : 0});
  }
  const std::string name = document_name(files[0]);
  ForeignCache cache = cache_in_arrays(all, layers, options, {files[0], "LMCache " + name, name});
  cache.model.imported = imported_text({{"format", "lmcache"},
                                        {"kind", std::to_string(first.form.number)},
                                        {"type", name_of(first.array.type)},
                                        {"tokens", first.array.extent('t')}});
  return cache;
}

ExportResult write_lmcache(const CacheSource& source, const ExportJob& job) {
  const uint64_t tokens = source.documents().length(only_counted_document(source, job, "a folder of chunks"));
  const Imported before(source, "lmcache");
  const std::string kind = before.text(job.options.kind, "kind");
  if (!kind.empty() && kind != "1" && kind != "2" && kind != "3" && kind != "6")
    throw usage_error("--kind is '{}'; formats of LMCache are 1, 2, 3 and 6", kind);
  const Cell cell = cell_or(source.dtype(), before.text(job.options.key_type, "type"));
  const auto number = std::ranges::find(kChunkTypes, cell, &CellName<int32_t>::cell);
  if (number == std::end(kChunkTypes))
    throw usage_error("--type is {}; LMCache has no such elements", name_of(cell));
  constexpr const char* kOneShape = "chunks of LMCache have one shape";
  const LayerShape shape = only_shape(source, kind.empty() || kind == "6", kOneShape);
  const ChunkForm& form = chunk_form(!kind.empty() ? std::stoi(kind) : shape.values_in_keys ? 6 : 1);
  if (form.number == 6 && !shape.values_in_keys)
    throw usage_error("{}: values do not lie in keys, as they do in format 6 of LMCache", source.name());
  const uint64_t chunk = job.options.page_tokens > 0
                             ? job.options.page_tokens
                             : std::max<uint64_t>(1, before.number("tokens", kUsualTokens, INT32_MAX));
  const size_t layers = form.whole ? source.layers().size() : 1;
  const uint64_t limit = std::min(chunk, tokens), sides = shape.values_in_keys ? 1 : 2,
                 extents[] = {sides, layers, limit, as_size(shape.heads), as_size(shape.key_dim)};
  if (const uint64_t bytes = checked_mul(checked_product(extents), block_of(cell).bytes); bytes > INT32_MAX)
    throw usage_error("a chunk of {} tokens takes {} bytes; --page makes smaller ones", limit, bytes);
  constexpr std::string_view kOfAllLayers = "{0:06}.data", kOfOne = "{0:06}-{1:04}.data";
  const auto write_head = [&](TargetFile& file, const Array& array) {
    Numbers head;
    for (const int32_t value : {static_cast<int32_t>(array.byte_count()), form.number, number->name})
      head.add(value);
    std::vector<uint64_t> axes = array.shape();
    if (form.number == 6) axes.insert(axes.begin(), 1);
    axes.resize(4);
    for (const uint64_t extent : axes) head.add(static_cast<int32_t>(extent));
    file.write(0, head.bytes());
    return kHeaderBytes;
  };
  ExportResult result = write_chunks(
      source, job, tokens,
      {.type = cell,
       .layout = form.layout,
       .option = "layout",
       .layers = layers,
       .tokens = chunk,
       .names = form.whole ? std::vector{kOfAllLayers, kOfOne} : std::vector{kOfOne, kOfAllLayers},
       .write_head = write_head});
  result.notes.push_back(
      "LMCache finds chunks by their names, which hold hashes of token ids: rename the files to the keys");
  return result;
}

}  // namespace

ForeignFormat lmcache_format() {
  return {.name = "lmcache",
          .summary = "chunks of LMCache with their header, .data",
          .is_of = [](const std::string& file) { return open_chunk(file), true; },
          .open = open_lmcache,
          .write = write_lmcache,
          .import_options = {"heads", "head-dim", "layer-count", "key-pairs"},
          .export_options = {"type", "kind", "page", "key-pairs"},
          .writes_folder = true,
          .pairs = PairRule::of_weights};
}

}  // namespace kvcodec::interop
