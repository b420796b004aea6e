#include "formats/interop/foreign.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "formats/io/mapped_file.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec::interop {

constexpr int kMaxHeads = 1 << 16;  // more than any cache has; larger numbers indicate damage

static std::vector<std::string_view> format_names() {
  return mapped<std::string_view>(foreign_formats(), &ForeignFormat::name);
}

ForeignFormat transformers_format(), mlx_format(), llama_format(), lmcache_format(), vllm_format(),
    vllm_blocks_format(), sglang_format(), numpy_format();

const std::vector<ForeignFormat>& foreign_formats() {
  static const std::vector<ForeignFormat> formats = {
      transformers_format(), mlx_format(),         llama_format(),  lmcache_format(),
      vllm_format(),         vllm_blocks_format(), sglang_format(), numpy_format()};
  return formats;
}

const ForeignFormat& foreign_format(std::string_view name) {
  for (const ForeignFormat& format : foreign_formats())
    if (format.name == name) return format;
  throw usage_error("there is no format '{}'; choose from {}", name, fmt::join(format_names(), ", "));
}

const ForeignFormat& guess_format(const std::string& file) {
  for (const ForeignFormat& format : foreign_formats())
    if (format.recognises(file)) return format;
  const MappedFile readable(file);  // says why it is not
  throw usage_error("{}: what is in it does not say its format; name it with --from: {}", file,
                    fmt::join(format_names(), ", "));
}

ModelInfo model_of(std::vector<LayerShape> shapes, const ImportOptions& options, const std::string& source,
                   std::vector<std::string>& notes) {
  ModelInfo model;
  model.model = "unknown";
  model.source = source;
  model.num_layers = static_cast<int>(shapes.size());
  int64_t multiple = 1;  // the least number of query heads that fits all layers
  for (const LayerShape& shape : shapes) {
    if (shape.heads < 0 || shape.heads > kMaxHeads)
      throw bad_input("a layer has {} key/value heads; at most {} are possible", shape.heads, kMaxHeads);
    model.num_kv_heads = std::max(model.num_kv_heads, shape.heads);
    model.head_dim = std::max(model.head_dim, shape.key_dim);
    if (shape.heads > 0) multiple = std::lcm(multiple, int64_t{shape.heads});
    if (multiple > kMaxHeads)
      throw bad_input("layers have head counts with no common multiple up to {}", kMaxHeads);
  }
  if (model.num_kv_heads == 0 || model.head_dim == 0) throw bad_input("there are no keys and values");
  model.num_q_heads = static_cast<int>(multiple);
  if (const auto& named = options.model) {
    if (named->num_layers != model.num_layers)
      throw bad_input("has {} layers; the model {} has {}", model.num_layers, named->model,
                      named->num_layers);
    // Rotary embeddings are described by dimensions of a head, so the description goes only with heads of that shape.
    bool heads_fit = true, dims_fit = true;
    for (size_t layer = 0; layer < shapes.size(); ++layer) {
      const LayerShape own = named->layer_shape(static_cast<int>(layer));
      if (LayerShape& shape = shapes[layer]; shape.heads == 0) {
        if (own.heads == 0) shape.source = own.source;
      } else {
        heads_fit = heads_fit && named->num_q_heads % shape.heads == 0;
        dims_fit = dims_fit && shape.key_dim == own.key_dim;
      }
    }
    model.model = named->model;
    model.family = named->family;
    if (heads_fit) model.num_q_heads = named->num_q_heads, model.scores = named->scores;
    if (dims_fit) {
      model.rope_theta = named->rope_theta;
      model.rope_scaling = named->rope_scaling;
    } else {
      notes.push_back(fmt::format(
          "keys have {} dimensions, and those of the model {} have {}: the rotary embedding is left out",
          model.head_dim, named->model, named->head_dim));
    }
  }
  return with_layer_shapes(std::move(model), std::move(shapes));
}

int plausible(uint64_t count, const std::string& what) {
  if (count == 0 || count > kMaxHeads)
    throw bad_input("{} are {}; 1 to {} are plausible", what, count, kMaxHeads);
  return static_cast<int>(count);
}

ForeignCache joined(const std::vector<std::string>& files,
                    const std::function<ForeignCache(const std::string& file)>& open) {
  ForeignCache cache = open(files.front());
  for (size_t i = 1; i < files.size(); ++i) {
    ForeignCache part = open(files[i]);
    if (part.model.num_layers != cache.model.num_layers ||
        part.model.num_kv_heads != cache.model.num_kv_heads || part.model.head_dim != cache.model.head_dim ||
        part.model.layer_shapes != cache.model.layer_shapes)
      throw bad_input("{}: its layers have other shapes than those of {}", files[i], files[0]);
    cache.dtype = wider(cache.dtype, part.dtype);
    std::ranges::move(part.documents, std::back_inserter(cache.documents));
    for (std::string& note : part.notes)
      if (std::ranges::count(cache.notes, note) == 0) cache.notes.push_back(std::move(note));
    for (std::string& note : part.doubts)
      if (std::ranges::count(cache.doubts, note) == 0) cache.doubts.push_back(std::move(note));
    if (part.model.imported != cache.model.imported) cache.model.imported.clear();
  }
  return cache;
}

static void put_ids(ForeignCache& cache, const ImportOptions& options) {
  if (options.ids.empty()) return;
  if (options.ids.size() != cache.documents.size())
    throw usage_error("--ids has {} lines, one for each document; the files hold {} documents",
                      options.ids.size(), cache.documents.size());
  for (size_t i = 0; i < cache.documents.size(); ++i) {
    ForeignDocument& document = cache.documents[i];
    const auto& ids = options.ids[i];
    document.tokens.clear();
    if (ids.size() == document.positions.size()) {
      document.tokens = ids;
      continue;
    }
    // Ids of a prompt of which only some positions are in the cache.
    if (document.positions.empty() || document.positions.back() >= ids.size())
      throw usage_error("--ids has {} ids for document '{}', which has {} tokens", ids.size(), document.name,
                        document.positions.size());
    for (const uint64_t position : document.positions) document.tokens.push_back(ids[position]);
  }
}

void settle(ForeignCache& cache, const ImportOptions& options, const std::string& file) {
  put_ids(cache, options);
  with_context(file, [&] {
    if (cache.documents.empty()) throw bad_input("it holds no tokens");
    using Layers = std::map<int, ForeignLayer>;
    const Layers& first = cache.documents.front().layers;
    bool any_ids = false, all_ids = true;
    for (const ForeignDocument& document : cache.documents) {
      if (!std::ranges::equal(first, document.layers, {}, &Layers::value_type::first,
                              &Layers::value_type::first))
        throw bad_input("document '{}' has other layers than '{}'", document.name,
                        cache.documents.front().name);
      for (const auto& [layer, rows] : document.layers)
        if (rows.rows > document.positions.size() || (rows.rows == 0 && !document.positions.empty()))
          throw bad_input("layer {} has {} tokens of document '{}', which has {}", layer, rows.rows,
                          document.name, document.positions.size());
      if (document.positions.empty()) continue;
      any_ids = any_ids || !document.tokens.empty();
      all_ids = all_ids && !document.tokens.empty();
    }
    if (first.empty()) throw bad_input("it holds no layers");
    if (any_ids && !all_ids) {
      for (ForeignDocument& document : cache.documents) document.tokens.clear();
      cache.notes.push_back("the token ids of some documents are not known, so those of all are left out");
    }
  });
}

std::string document_name(const std::string& file) { return std::filesystem::path(file).stem().string(); }

std::vector<uint64_t> left_out_of(const ForeignCache& cache, const ForeignDocument& document) {
  std::vector<uint64_t> left_out(as_size(cache.model.num_layers));
  for (const auto& [layer, rows] : document.layers)
    left_out[as_size(layer)] = document.positions.size() - rows.rows;
  return left_out;
}

void for_each_piece(const CacheSource& source, const ExportJob& job, const RowsOf& which,
                    const std::function<void(uint64_t first, MatrixView<float> rows)>& visit) {
  const LayerShape shape = source.model().layer_shape(which.layer);
  const size_t width = as_size(shape.heads) * as_size(shape.stored_dim(which.side));
  if (width == 0) return;
  const uint64_t held = source.documents().held(which.layer, which.document),
                 left_out = source.documents().length(which.document) - held,
                 count = std::min(which.count, held - which.first);
  const uint64_t limit = std::max<uint64_t>(1, job.buffer_bytes / (3 * sizeof(float) * width));
  Matrix<float> rows(static_cast<size_t>(std::min(limit, count)), width);
  const bool turns = job.turn && which.side == Side::key;
  const auto positions = turns ? source.positions_of(which.document) : std::vector<uint64_t>();
  for (uint64_t first = 0; first < count; first += limit) {
    const auto piece = rows.view().rows(0, static_cast<size_t>(std::min(limit, count - first)));
    const uint64_t at = left_out + which.first + first;
    source.read(which.side, which.layer, which.document, at, piece);
    if (turns)
      job.turn->turn(TurnWay::forward, {&which.layer, 1}, std::span(positions).subspan(at, piece.rows()),
                     piece);
    if (job.pairs == PairOrder::neighbours && which.side == Side::key)
      order_pairs(PairOrder::neighbours, shape, piece);
    visit(first, piece);
    if (job.count) job.count(piece.rows());
  }
}

void require_all_layers(const CacheSource& source, const char* what) {
  const size_t layers = source.layers().size();
  if (layers != as_size(source.model().num_layers))
    throw usage_error("{}: it has {} of {} layers; {} has all of them", source.name(), layers,
                      source.model().num_layers, what);
}

LayerShape only_shape(const CacheSource& source, bool may_lie_in_keys, const char* otherwise) {
  const LayerShape shape = source.model().layer_shape(source.layers().front());
  const bool fits = shape.values_in_keys ? may_lie_in_keys : shape.key_dim == shape.value_dim;
  for (const int layer : source.layers())
    if (!fits || source.model().layer_shape(layer) != shape || leaves_out(source, layer))
      throw usage_error("{}: layers, or their keys and values, differ in shape or tokens; {}", source.name(),
                        otherwise);
  return shape;
}

size_t only_document(const CacheSource& source, const ExportJob& job, const char* what) {
  if (job.documents.size() != 1)
    throw usage_error("{}: {} holds one document; choose one of {} with --documents", source.name(), what,
                      job.documents.size());
  return job.documents.front();
}

size_t only_counted_document(const CacheSource& source, const ExportJob& job, const char* what) {
  const size_t document = only_document(source, job, what);
  const uint64_t length = source.documents().length(document);
  if (length > 0 && source.positions_of(document).back() + 1 != length)  // they rise
    throw lost_positions(source, document, what);
  return document;
}

Error lost_positions(const CacheSource& source, size_t document, const char* what) {
  const auto positions = source.positions_of(document);
  return usage_error(
      "{}: document '{}' has {} tokens at positions {} to {}, which {} does not keep; transformers and llama keep them",
      source.name(), source.documents().names[document], positions.size(), positions.front(),
      positions.back(), what);
}

}  // namespace kvcodec::interop
