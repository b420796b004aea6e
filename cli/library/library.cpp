// libkvcodec.so: kvcodec.h over the readers and writers of formats/ and the commands of the program.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/frame/run.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/cache_source.hpp"
#include "cli/library/kvcodec.h"
#include "formats/cache/kv_file.hpp"
#include "formats/cache/score_forms.hpp"
#include "formats/io/temporary.hpp"
#include "kvcodec/version.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::cli {
namespace {

thread_local std::string last_error, last_printed;

/// Runs body(); an error becomes a status, with its text for kvcodec_error().
template <class Body>
int guarded(const Body& body) noexcept {
  try {
    body();
    return 0;
  } catch (...) {
    const Error error = current_error();
    last_error = message_text(error.what());
    return exit_status(error.kind());
  }
}

DType type_of(kvcodec_type type) {
  switch (type) {
    case KVCODEC_F32:
      return DType::f32;
    case KVCODEC_F16:
      return DType::f16;
    case KVCODEC_BF16:
      return DType::bf16;
  }
  throw usage_error("there is no type {}; f32 is 0, f16 is 1, bf16 is 2", static_cast<int>(type));
}

kvcodec_type type_for(DType type) {
  return type == DType::f32 ? KVCODEC_F32 : type == DType::f16 ? KVCODEC_F16 : KVCODEC_BF16;
}

Side side_of(kvcodec_side side) {
  if (side != KVCODEC_KEY && side != KVCODEC_VALUE)
    throw usage_error("there is no side {}; keys are 0, values are 1", static_cast<int>(side));
  return side == KVCODEC_KEY ? Side::key : Side::value;
}

template <class T>
T& given(T* pointer, const char* what) {
  if (!pointer) throw usage_error("{} is NULL", what);
  return *pointer;
}

std::string text_of(const char* text) { return text ? text : ""; }

std::vector<std::string> words_of(int count, const char* const* arguments) {
  std::vector<std::string> words;
  for (int i = 0; i < count; ++i)
    words.emplace_back(&given((&given(arguments, "arguments"))[i], "an argument"));
  return words;
}

/// Rows of a caller are not read or written where the hardware, or vector code, would not reach them.
void check_place(const void* rows, DType type, const char* what) {
  if (reinterpret_cast<uintptr_t>(rows) % size_of(type) != 0)
    throw usage_error("{} is at no multiple of {} bytes, as {} must be", what, size_of(type), name_of(type));
}

/// Writes rows to memory of a 16-bit type; values beyond its range become its largest ones.
void store(MatrixView<const float> rows, DType type, uint16_t* out) {
  constexpr uint16_t kMagnitude = 0x7fff;
  const uint16_t infinity = type == DType::bf16 ? 0x7f80 : 0x7c00;
  parallel_each(rows.rows(), 64, [&](size_t i) {
    const std::span<uint16_t> to(out + i * rows.cols(), rows.cols());
    narrow(type, rows.row(i), to);
    uint16_t largest = 0;
    for (const uint16_t bits : to) largest = std::max<uint16_t>(largest, bits & kMagnitude);
    if (largest >= infinity) narrow(type, clipped(type, rows.row(i)), to);
  });
}

Matrix<float> floats_of(const void* rows, size_t count, size_t width, DType type) {
  check_place(rows, type, "rows");
  Matrix<float> floats(count, width);
  const std::span out(floats.data(), floats.size());
  if (out.empty()) return floats;
  if (type == DType::f32)
    std::memcpy(out.data(), rows, out.size_bytes());
  else
    widen(type, {static_cast<const uint16_t*>(rows), out.size()}, out);
  return floats;
}

}  // namespace
}  // namespace kvcodec::cli

using namespace kvcodec;
using namespace kvcodec::cli;

/// A kv file or a codes file.
struct kvcodec_file {
  kvcodec_file(const std::string& name, const std::string& book)
      : cache(name, is_coded(name, book), book, nullptr) {}

  static bool is_coded(const std::string& name, const std::string& book) {
    const std::string type = identify(name).type;
    if (type == "kv" && !book.empty()) throw usage_error("{}: a kv file needs no book", name);
    if (type != "kv" && type != "codes")
      throw bad_input("{}: a {} file, where a kv or a codes file is wanted", name, type);
    return type == "codes";
  }

  const Documents& documents() const { return cache.documents(); }
  const ModelInfo& model() const { return cache.model(); }
  const std::string& name() const { return cache.name(); }

  void check_document(uint64_t document) const {
    if (document >= documents().count())
      throw usage_error("{}: there is no document {}; it holds {}", name(), document, documents().count());
  }
  /// The first token's number across all documents.
  uint64_t place_of(uint64_t document, uint64_t first, uint64_t count) const {
    check_document(document);
    const uint64_t length = documents().length(document);
    if (first > length || count > length - first)
      throw usage_error("{}: document {} has {} tokens; there are no {} from token {} on", name(), document,
                        length, count, first);
    return documents().offsets[document] + first;
  }
  LayerShape shape_of(int32_t layer) const {
    if (layer < 0 || layer >= model().num_layers)
      throw usage_error("{}: there is no layer {}; the model has {}", name(), layer, model().num_layers);
    return model().layer_shape(layer);
  }
  bool stores(int32_t layer) const { return std::ranges::binary_search(cache.layers(), layer); }

  void decode(uint64_t document, int32_t layer, Side side, uint64_t first, uint64_t count, DType type,
              std::byte* out) {
    const LayerShape shape = shape_of(layer);
    const uint64_t place = place_of(document, first, count),
                   left_out = documents().left_out_of(layer, document);
    if (!stores(layer) || shape.width(side) == 0)
      throw usage_error("{}: it holds no {}s of layer {}", name(), name_of(side), layer);
    if (first < left_out)
      throw usage_error("{}: layer {} does not hold the first {} tokens of document {}", name(), layer,
                        left_out, document);
    const size_t width = shape.width(side);
    if (const KvReader* const kv = cache.kv(); kv && type == kv->dtype())
      return kv->read_stored(side, layer, place, count, out);
    if (type == DType::f32)
      return cache.decode(side, layer, document, first,
                          MatrixView(reinterpret_cast<float*>(out), count, width));
    UnsetVector<float> floats(count * width);
    const MatrixView<float> rows(floats.data(), count, width);
    cache.decode(side, layer, document, first, rows);
    store(rows, type, reinterpret_cast<uint16_t*>(out));
  }

  StoredCache cache;
  std::string text[2];  // strings that were handed out
  StateTensor tensor;   // likewise
};

/// A cache that is being written, and where it goes.
struct kvcodec_writer {
  kvcodec_writer(const char* name, bool overwrite, const ModelInfo& described, DType type,
                 std::vector<int> layers, bool queries)
      : model(described) {
    if (!name) unnamed.emplace(temporary_folder(), "kvcodec-cache", 0600, "the cache to encode");
    output.emplace(name ? std::string(name) : unnamed->path().string(), overwrite || !name);
    writer.emplace(*output, model, type, std::move(layers), queries ? std::optional(type) : std::nullopt);
  }

  void finish(const char* made_by) {
    writer->finish({text_of(made_by).empty() ? "libkvcodec" : text_of(made_by), {}});
    output->commit();
  }

  ModelInfo model;
  std::optional<TemporaryFile> unnamed;  ///< for a cache that is only encoded
  std::optional<OutputFile> output;
  std::optional<KvWriter> writer;
  size_t documents = 0;
};

int kvcodec_interface(void) { return KVCODEC_INTERFACE; }
const char* kvcodec_release(void) { return kVersion; }
const char* kvcodec_error(void) { return last_error.c_str(); }

int kvcodec_set_threads(int count) {
  return guarded([&] {
    if (count < 0) throw usage_error("{} threads; 0 means as many as there are processors", count);
    set_num_threads(count);
  });
}

int kvcodec_open(const char* name, const char* book, kvcodec_file** file) {
  return guarded([&] {
    kvcodec_file*& opened = given(file, "file");
    opened = new kvcodec_file(&given(name, "name"), text_of(book));
  });
}

void kvcodec_close(kvcodec_file* file) { delete file; }

const char* kvcodec_codec(const kvcodec_file* file) {
  const CodesReader* const codes = file->cache.codes();
  return codes ? codes->info().codec.c_str() : "";
}

kvcodec_type kvcodec_stored_type(const kvcodec_file* file) { return type_for(file->cache.dtype()); }

int kvcodec_has_ids(const kvcodec_file* file) { return file->cache.has_tokens(); }

uint64_t kvcodec_documents(const kvcodec_file* file) { return file->documents().count(); }

int kvcodec_get_document(kvcodec_file* file, uint64_t document, kvcodec_document* facts) {
  return guarded([&] {
    file->check_document(document);
    const DocumentFacts known = file->documents().facts_of(document);
    file->text[0] = file->documents().names[document];
    file->text[1] = known.metadata;
    given(facts, "facts") = {file->text[0].c_str(), file->documents().length(document), known.time,
                             file->text[1].c_str()};
  });
}

int kvcodec_get_model(kvcodec_file* file, kvcodec_model* model) {
  return guarded([&] {
    const ModelInfo& info = file->model();
    given(model, "model") = {info.model.c_str(),  info.num_layers,           info.num_q_heads,
                             info.rope_theta,     info.rope_scaling.c_str(), info.key_state.c_str(),
                             info.source.c_str(), info.scores.c_str()};
  });
}

int kvcodec_get_layer(const kvcodec_file* file, int32_t layer, kvcodec_layer* shape, int* stored) {
  return guarded([&] {
    const LayerShape own = file->shape_of(layer);
    given(stored, "stored") = file->stores(layer);
    given(shape, "shape") = {static_cast<uint32_t>(own.heads), static_cast<uint32_t>(own.key_dim),
                             static_cast<uint32_t>(own.value_dim), own.values_in_keys, own.source};
  });
}

int kvcodec_left_out(const kvcodec_file* file, uint64_t document, int32_t layer, uint64_t* left_out) {
  return guarded([&] {
    file->check_document(document);
    (void)file->shape_of(layer);
    given(left_out, "left_out") = file->documents().left_out_of(layer, document);
  });
}

int kvcodec_ids(kvcodec_file* file, uint64_t document, uint64_t first, uint64_t count, uint32_t* out) {
  return guarded([&] {
    const uint64_t place = file->place_of(document, first, count);
    if (kvcodec_has_ids(file) == 0)
      throw usage_error("{}: the ids of its tokens are not known", file->name());
    if (count == 0) return;
    std::ranges::copy(file->cache.tokens(place, count), &given(out, "out"));
  });
}

int kvcodec_positions(kvcodec_file* file, uint64_t document, uint64_t first, uint64_t count, uint64_t* out) {
  return guarded([&] {
    const uint64_t place = file->place_of(document, first, count);
    if (count == 0) return;
    std::ranges::copy(file->cache.positions(place, count), &given(out, "out"));
  });
}

int kvcodec_decode(kvcodec_file* file, uint64_t document, int32_t layer, kvcodec_side side, uint64_t first,
                   uint64_t count, kvcodec_type type, void* out) {
  return guarded([&] {
    if (count > 0 && !out) throw usage_error("out is NULL");
    check_place(out, type_of(type), "out");
    file->decode(document, layer, side_of(side), first, count, type_of(type), static_cast<std::byte*>(out));
  });
}

int kvcodec_state_count(const kvcodec_file* file, uint64_t document, uint64_t* count) {
  return guarded([&] {
    file->check_document(document);
    given(count, "count") = file->documents().facts_of(document).state.size();
  });
}

int kvcodec_get_state(kvcodec_file* file, uint64_t document, uint64_t number, kvcodec_tensor* tensor,
                      void* out) {
  return guarded([&] {
    file->check_document(document);
    auto state = file->documents().facts_of(document).state;
    if (number >= state.size())
      throw usage_error("{}: the state of document {} has {} tensors; there is no {}", file->name(), document,
                        state.size(), number);
    file->tensor = std::move(state[number]);
    const StateTensor& own = file->tensor;
    given(tensor, "tensor") = {own.name.c_str(), name_of(own.type).data(),
                               static_cast<uint32_t>(own.shape.size()), own.shape.data(), own.bytes()};
    if (out) std::ranges::copy(own.load(), static_cast<std::byte*>(out));
  });
}

int kvcodec_create(const char* name, int overwrite, const kvcodec_model* model, const kvcodec_layer* layers,
                   kvcodec_type type, int with_queries, kvcodec_writer** writer) {
  return guarded([&] {
    const kvcodec_model& given_model = given(model, "model");
    kvcodec_writer*& begun = given(writer, "writer");
    if (given_model.layers < 1) throw usage_error("a model of {} layers", given_model.layers);
    ModelInfo info;
    info.model = text_of(given_model.name);
    info.num_layers = given_model.layers;
    info.num_q_heads = given_model.query_heads;
    info.rope_theta = given_model.rope_theta;
    info.rope_scaling = text_of(given_model.rope_scaling);
    if (given_model.key_state) info.key_state = given_model.key_state;
    if (info.key_state != "post-rope" && info.key_state != "pre-rope")
      throw usage_error("the state of keys is '{}'; post-rope and pre-rope are possible", info.key_state);
    if (info.num_q_heads < 1) throw usage_error("a model of {} query heads", info.num_q_heads);
    info.source = text_of(given_model.source);
    info.scores = text_of(given_model.scores);
    (void)score_forms(info);
    std::vector<LayerShape> shapes;
    std::vector<int> written;
    for (int i = 0; i < info.num_layers; ++i) {
      const kvcodec_layer& own = (&given(layers, "layers"))[i];
      for (const uint32_t number : {own.heads, own.key_dims, own.value_dims})
        if (number > INT32_MAX) throw usage_error("layer {}: {} heads or dimensions", i, number);
      shapes.push_back({.heads = static_cast<int>(own.heads),
                        .key_dim = static_cast<int>(own.key_dims),
                        .value_dim = static_cast<int>(own.value_dims),
                        .values_in_keys = own.values_in_keys != 0,
                        .source = own.source});
      info.num_kv_heads = std::max(info.num_kv_heads, shapes.back().heads);
      info.head_dim = std::max(info.head_dim, shapes.back().key_dim);
      if (own.heads == 0) continue;
      written.push_back(i);
      if (info.num_q_heads % shapes.back().heads != 0)
        throw usage_error("layer {}: {} query heads do not share {} heads evenly", i, info.num_q_heads,
                          own.heads);
    }
    begun = new kvcodec_writer(name, overwrite != 0, with_layer_shapes(info, std::move(shapes)),
                               type_of(type), std::move(written), with_queries != 0);
  });
}

int kvcodec_add(kvcodec_writer* writer, const kvcodec_document* facts, const uint32_t* ids,
                const uint64_t* positions, const uint64_t* left_out) {
  return guarded([&] {
    const kvcodec_document& own = given(facts, "facts");
    DocumentFacts known{.digest = {}, .metadata = text_of(own.metadata), .time = own.time};
    if (own.tokens > 0) given(positions, "positions");
    const std::span<const uint32_t> tokens(ids, ids ? own.tokens : 0);
    if (!tokens.empty()) known.digest = token_digest(tokens);
    writer->writer->add_document(text_of(own.name), tokens, {positions, own.tokens},
                                 {left_out, left_out ? as_size(writer->model.num_layers) : 0}, known);
    ++writer->documents;
  });
}

int kvcodec_set_state(kvcodec_writer* writer, uint64_t count, const kvcodec_tensor* tensors,
                      const void* const* bytes) {
  return guarded([&] {
    if (writer->documents == 0) throw usage_error("a state is of a document, and none was added");
    std::vector<StateTensor> state;
    for (uint64_t i = 0; i < count; ++i) {
      const kvcodec_tensor& own = (&given(tensors, "tensors"))[i];
      const auto type = value_named<DType>(text_of(own.type));
      if (!type) throw usage_error("there is no type '{}'", text_of(own.type));
      if (own.dims > 0) given(own.shape, "shape");
      const auto* from = static_cast<const std::byte*>((&given(bytes, "bytes"))[i]);
      if (own.bytes > 0) given(from, "bytes of a tensor");
      state.push_back(state_tensor(text_of(own.name), *type, {own.shape, own.shape + own.dims},
                                   {from, from + own.bytes}));
    }
    writer->writer->set_state(writer->documents - 1, state);
  });
}

int kvcodec_append(kvcodec_writer* writer, int32_t layer, kvcodec_side side, kvcodec_type type,
                   uint64_t count, const void* rows) {
  return guarded([&] {
    if (layer < 0 || layer >= writer->model.num_layers) throw usage_error("there is no layer {}", layer);
    if (count > 0 && !rows) throw usage_error("rows is NULL");
    writer->writer->append(
        side_of(side), layer,
        floats_of(rows, count, writer->model.layer_shape(layer).width(side_of(side)), type_of(type)));
  });
}

int kvcodec_append_queries(kvcodec_writer* writer, int32_t layer, const uint64_t* tokens, kvcodec_type type,
                           uint64_t count, const void* rows) {
  return guarded([&] {
    if (layer < 0 || layer >= writer->model.num_layers) throw usage_error("there is no layer {}", layer);
    if (count > 0 && (!rows || !tokens)) throw usage_error("rows or tokens is NULL");
    const size_t width =
        as_size(writer->model.num_q_heads) * as_size(writer->model.layer_shape(layer).key_dim);
    writer->writer->append_queries(layer, {tokens, count}, floats_of(rows, count, width, type_of(type)));
  });
}

int kvcodec_finish(kvcodec_writer* writer, const char* made_by) {
  const std::unique_ptr<kvcodec_writer> own(writer);
  return guarded([&] { given(writer, "writer").finish(made_by); });
}

int kvcodec_encode(kvcodec_writer* writer, const char* made_by, int count, const char* const* arguments) {
  const std::unique_ptr<kvcodec_writer> own(writer);
  return guarded([&] {
    given(writer, "writer").finish(made_by);
    std::vector<std::string> words = words_of(count, arguments);
    words.insert(words.begin(), {"encode", own->output->target()});
    ProgramRun run;
    (void)run_words(std::move(words), alone(), run);
  });
}

void kvcodec_discard(kvcodec_writer* writer) { delete writer; }

int kvcodec_run(int count, const char* const* arguments, const char** printed) {
  ProgramRun run;
  const int failed = guarded([&] {
    last_printed = run_words(words_of(count, arguments), alone(), run);
    if (printed) *printed = last_printed.c_str();
  });
  return failed != 0 ? failed : run.status;
}
