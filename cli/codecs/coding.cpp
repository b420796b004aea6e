#include "cli/codecs/coding.hpp"

#include <algorithm>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"
#include "lib/core/finite.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cli {

const CodecEntry& codec_entry(const CodesReader& codes) {
  if (const CodecEntry* entry = known_codec(codes.info().codec)) return *entry;
  throw bad_input("{}: it was made by the codec '{}', which this kvcodec does not have", codes.name(),
                  codes.info().codec);
}

CodecOfFile::CodecOfFile(const CodesReader& codes, const std::string& book_file, Engine* engine)
    : entry_(codec_entry(codes)) {
  const CodesInfo& info = codes.info();
  if (entry_.book_type.empty()) {
    if (!book_file.empty())
      throw usage_error("{}: the codec {} takes no book; leave out --book", codes.name(), entry_.name);
  } else if (!book_file.empty()) {
    BookFile file = read_book(book_file, entry_.book_type, false);
    if (file.digest != info.book_digest)
      throw bad_input("{}: the digest of this {} is {}; {} was made with {}", book_file, entry_.book_type,
                      file.digest, codes.name(), info.book_digest);
    book_ = std::move(file.book);
    book_history_ = std::move(file.type.history);
  } else {
    book_ = codes.embedded_book();
    if (!book_)
      throw usage_error("{} needs the {} with digest {}; name its file with --book", codes.name(),
                        entry_.book_type, info.book_digest);
  }
  CodecContext context = context_of(info.model, info.documents, info.storage, book_ ? &*book_ : nullptr);
  context.engine = engine_for(entry_, engine);
  codec_ = with_context(codes.name(), [&] { return codec_from_record(entry_, info.parameters, context); });
  codes.check_streams(*codec_);
}

bool CodecOfFile::multiplies(Side side) const {
  return entry_.of(side).capabilities.multiplies &&
         (side == Side::value || rope_in(codec_->parameters()) == RopeChoice::keep);
}

CodecContext context_of(const ModelInfo& model, const Documents& documents, DType storage, const Book* book) {
  return {.num_layers = model.num_layers,
          .heads = model.num_kv_heads,
          .head_dim = model.head_dim,
          .one_shape = model.one_shape() && documents.whole(),
          .query_heads = model.num_q_heads,
          .storage = storage,
          .book = book,
          .rope = key_rope_of(model)};
}

Engine* engine_for(const CodecEntry& entry, Engine* engine) {
  if (engine && !entry.capabilities.device_twin) {
    engine->fall_back(fmt::format("the codec {}", entry.name));
    return nullptr;
  }
  return engine;
}

Engine* coding_engine(const CodecEntry& entry, DeviceChoice choice, Engine* engine) {
  return choice == DeviceChoice::automatic && !entry.capabilities.device_pays ? nullptr
                                                                              : engine_for(entry, engine);
}
Engine* coding_engine(const CodecEntry& entry, const CommonOptions& options) {
  return coding_engine(entry, options.device, options.engine());
}

bool has_side(const CodesInfo& info, int first_layer, Side side) {
  const auto sides = info.sides(first_layer);
  return std::find(sides.begin(), sides.end(), side) != sides.end();
}

void check_one_shape(const std::string& file, const ModelInfo& model, const Documents& documents,
                     const char* what) {
  if (!model.one_shape())
    throw bad_input(
        "{}: {} takes caches whose keys and values have the same heads in all layers; here they differ", file,
        what);
  if (!documents.whole())
    throw bad_input(
        "{}: {} takes caches whose layers hold all tokens; here some leave out what their windows do not need",
        file, what);
}

void check_token_ids(const KvReader& kv, const Codec& codec) {
  if (codec.predicts_from() > 0 && !kv.has_tokens())
    throw bad_input("{}: it has no token ids, and the book predicts keys and values from them", kv.name());
}

std::vector<int> whole_groups(const std::vector<int>& layers, int layer_group, ErrorKind kind,
                              const std::string& what) {
  std::vector<int> groups = groups_of(layers, layer_group);
  for (const int first : groups)
    for (int layer = first; layer < first + layer_group; ++layer)
      if (std::find(layers.begin(), layers.end(), layer) == layers.end())
        throw Error(
            kind, fmt::format("{} {} do not fill whole groups of {} layers: layers {}-{} are coded together "
                              "and {} is missing",
                              what, ranges_text(layers), layer_group, first, first + layer_group - 1, layer));
  return groups;
}

std::vector<int> stored_layers(const CodesInfo& info) {
  std::vector<int> layers;
  for (const int group : info.groups)
    for (int i = 0; i < info.layer_group; ++i) layers.push_back(group + i);
  return layers;
}

std::vector<int> groups_of(const std::vector<int>& layers, int layer_group) {
  std::vector<int> groups;
  for (const int layer : layers)
    if (const int first = layer - layer % layer_group; groups.empty() || groups.back() != first)
      groups.push_back(first);
  return groups;
}

namespace {

void check_length(const CodesReader& codes, const DocumentView& view, size_t document) {
  const uint64_t stored = view.tokens(),
                 length = codes.info().documents.held(view.shape().first_layer, document);
  if (stored != length)
    throw bad_input("document {} has {} tokens stored; the tables of documents say {}", document, stored,
                    length);
}

}  // namespace

std::unique_ptr<DocumentView> open_document(const CodesReader& codes, const Codec& codec,
                                            const GroupShape& shape, size_t document,
                                            const StreamReader& streams) {
  auto view = codec.open(shape, streams);
  check_length(codes, *view, document);
  return view;
}

StoredSides::StoredSides(const CodesReader& codes, const Codec& codec, const GroupShape& shape,
                         size_t document) {
  const auto streams = [&](Side side) { return codes.document(side, shape.first_layer, document); };
  const auto open = [&](Side side, const StreamReader& of_side_streams) {
    return open_document(codes, codec, of_side(shape, side), document, of_side_streams);
  };
  const auto at = [&](Side side, const auto& body) {
    at_dataset(codes.name(), side, shape.first_layer, body);
  };
  if (codec.joint()) {
    at(Side::both, [&] {
      keys_ = streams(Side::key);
      views_ = codec.open_sides(shape, *keys_, *keys_);
      check_length(codes, *views_.keys, document);
    });
    return;
  }
  at(Side::key, [&] { keys_ = streams(Side::key), views_.keys = open(Side::key, *keys_); });
  at(Side::value, [&] { values_ = streams(Side::value), views_.values = open(Side::value, *values_); });
}

namespace {

/// One side of a group of one document.
void decode_document(const CodesReader& codes, const Codec& codec, const GroupShape& shape, size_t document,
                     uint64_t budget) {
  const StoredDocument stored(codes, codec, shape, document);
  // Codecs that code several layers together take caches that hold all tokens.
  const uint64_t length = codes.info().documents.held(shape.first_layer, document);
  const size_t chunk = chunk_rows(budget, shape.width() * sizeof(float) + codec.scratch_bytes_per_row(shape));
  Matrix<float> rows(static_cast<size_t>(std::min<uint64_t>(chunk, length)), shape.width());
  for (uint64_t first = 0; first < length; first += rows.rows()) {
    const auto piece =
        rows.view().rows(0, static_cast<size_t>(std::min<uint64_t>(rows.rows(), length - first)));
    stored->decode(first, piece);
    for (size_t i = 0; i < piece.rows(); ++i)
      if (find_non_finite(MatrixView<const float>(piece).row(i)))
        throw bad_input("document {}: token {} decodes to what is not finite", document, first + i);
  }
}

}  // namespace

void decode_all(const CodesReader& codes, const Codec& codec, uint64_t budget,
                const std::function<void(double done)>& progress) {
  const CodesInfo& info = codes.info();
  size_t sides = 0, done = 0;
  for (const int group : info.groups) sides += info.sides(group).size();
  for (const int group : info.groups)
    for (const Side side : info.sides(group)) {
      const GroupShape shape = group_shape(info.model, group, info.layer_group, side);
      for (size_t document = 0; document < info.documents.count(); ++document) {
        at_dataset(codes.name(), side, group,
                   [&] { decode_document(codes, codec, shape, document, budget); });
        progress((static_cast<double>(done) +
                  static_cast<double>(document + 1) / static_cast<double>(info.documents.count())) /
                 static_cast<double>(sides));
      }
      ++done;
    }
}

std::string dataset_name(Side side, int first_layer) {
  return fmt::format("/layers/{}/{}", first_layer, name_of(side));
}

}  // namespace kvcodec::cli
