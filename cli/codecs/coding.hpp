// Shared by encode and decode: books, codecs from files, whole layer groups, weights of errors.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "formats/cache/book_file.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/results/results.hpp"
#include "lib/codec/codec.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

/// The codec that made a codes file. Throws Error(bad_input) if there is no such codec.
const CodecEntry& codec_entry(const CodesReader& codes);

/// Throws Error(bad_input) unless the codes were made with that book. name: its file.
inline void check_same_book(const std::string& name, const BookFile& book, const CodesReader& codes) {
  if (book.digest != codes.info().book_digest)
    throw bad_input("{}: the digest of this {} is {}; {} was made with {}", name, book.type.type, book.digest,
                    codes.name(), codes.info().book_digest);
}

/// The codec of a codes file, ready to decode or to append, with the book it needs.
class CodecOfFile {
 public:
  /// book_file: the value of --book; empty = the embedded one, or none needed. Throws Error(usage) if a book is missing or not
  /// accepted, Error(bad_input) if the codes were made with another book. engine: the device to compute on, or nullptr; outlives
  /// this object.
  CodecOfFile(const CodesReader& codes, const std::string& book_file, Engine* engine = nullptr);

  const Codec& codec() const { return *codec_; }
  const CodecEntry& entry() const { return entry_; }
  /// True if the products with keys, or values, use their stored form; keys that were turned back do not allow this.
  bool multiplies(Side side) const {
    return entry_.of(side).capabilities.multiplies &&
           (side == Side::value || rope_in(codec_->parameters()) == RopeChoice::keep);
  }
  bool multiplies() const { return multiplies(Side::key) && multiplies(Side::value); }
  /// History of the file named with --book; empty otherwise.
  const std::vector<std::string>& book_history() const { return book_history_; }

 private:
  const CodecEntry& entry_;
  std::optional<Book> book_;
  std::vector<std::string> book_history_;
  std::unique_ptr<Codec> codec_;
};

/// The context from which a codec for this cache is made.
CodecContext context_of(const ModelInfo& model, DType storage, const Book* book);

/// The engine to make a codec with. If the codec has no CUDA implementation: nullptr, and the engine notes that the codec runs on
/// the CPU.
Engine* engine_for(const CodecEntry& entry, Engine* engine);

/// The same for encoding or decoding whole documents: with --device auto, nullptr without a note for a codec that is faster on the
/// CPU.
inline Engine* coding_engine(const CodecEntry& entry, DeviceChoice choice, Engine* engine) {
  return choice == DeviceChoice::automatic && !entry.capabilities.device_pays ? nullptr
                                                                              : engine_for(entry, engine);
}
inline Engine* coding_engine(const CodecEntry& entry, const CommonOptions& options) {
  return coding_engine(entry, options.device, options.engine());
}

/// True if the codes have streams of that side in the group that begins at that layer.
inline bool has_side(const CodesInfo& info, int first_layer, Side side) {
  return std::ranges::count(info.sides(first_layer), side) > 0;
}

/// Throws Error(bad_input) for a cache without the token ids that the codec predicts from.
inline void check_token_ids(const KvReader& kv, const Codec& codec) {
  if (codec.predicts_from() > 0 && !kv.has_tokens())
    throw bad_input("{}: it has no token ids, and the book predicts keys and values from them", kv.name());
}

/// Stored queries of some tokens.
struct TokenQueries {
  std::vector<uint64_t> tokens;  ///< counted from the first of these tokens
  MatrixView<const float> rows;  ///< of each of them
};
/// Those of tokens [first, first + count) of the file; `all` outlives the result.
TokenQueries queries_of(const KvReader::Queries& all, uint64_t first, uint64_t count);

/// The groups that `layers` (ascending) fills, as a book or a codec makes them (Codec::group_of). Throws an Error of that kind if they do
/// not fill whole groups; `what`: the source of the list of layers.
using GroupOf = std::function<std::vector<int>(int layer)>;
std::vector<std::vector<int>> whole_groups(const std::vector<int>& layers, const GroupOf& group_of,
                                           ErrorKind kind, const std::string& what);
inline GroupOf groups_by(const Codec& codec) {
  return [&codec](int layer) { return codec.group_of(layer); };
}

/// The layers that a codes file holds, ascending.
std::vector<int> stored_layers(const CodesInfo& info);

/// First layers of the groups that hold any of these layers (ascending).
std::vector<int> groups_of(const std::vector<int>& layers, const CodesInfo& info);

/// Opens a document of one side of a group, whose streams are `streams`; codec and streams outlive the view. Throws
/// Error(bad_input) unless they hold as many tokens as the table of documents gives.
std::unique_ptr<DocumentView> open_document(const CodesReader& codes, const Codec& codec,
                                            const GroupShape& shape, size_t document,
                                            const StreamReader& streams);

/// A document of a codes file, opened with its streams.
class StoredDocument {
 public:
  StoredDocument(const CodesReader& codes, const Codec& codec, const GroupShape& shape, size_t document)
      : streams_(codes.document(shape.side, shape.first_layer(), document)),
        view_(open_document(codes, codec, shape, document, *streams_)) {}
  const DocumentView& operator*() const { return *view_; }
  const DocumentView* operator->() const { return view_.get(); }

 private:
  std::unique_ptr<StreamReader> streams_;
  std::unique_ptr<DocumentView> view_;
};

/// Both sides of a group, opened together: sides that are coded together are decoded once. Errors name file and dataset.
class StoredSides {
 public:
  /// shape: that of one of the sides.
  StoredSides(const CodesReader& codes, const Codec& codec, const GroupShape& shape, size_t document);
  const DocumentView& keys() const { return *views_.keys; }
  const DocumentView& values() const { return *views_.values; }

 private:
  std::unique_ptr<StreamReader> keys_, values_;
  SideViews views_;
};

/// Decodes all codes, with at most `budget` bytes of rows at a time, and throws Error(bad_input) for undecodable data and for
/// values that are not finite. progress(share done).
void decode_all(const CodesReader& codes, const Codec& codec, uint64_t budget,
                const std::function<void(double done)>& progress);

/// "/layers/3/key", the form in files and messages.
inline std::string dataset_name(Side side, int first_layer) {
  return fmt::format("/layers/{}/{}", first_layer, name_of(side));
}

/// Runs body(); adds file and dataset to an Error that leaves it, unless its message has them already, as those of readers do.
template <class Body>
decltype(auto) at_dataset(const std::string& file, Side side, int first_layer, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(file + ": ")) throw;
    throw error.at(file + ": " + dataset_name(side, first_layer));
  }
}

// Sensitivities: costs of errors in each layer's cache, from a file of kvcodec sensitivity, as weights and as tables.

/// A file of sensitivities and its name, for messages.
struct Weights {
  std::string name;
  SensitivityFile file;

  /// The cost of a unit of error energy there, in nats. Throws Error(bad_input) if it is not positive.
  double cost(Side side, int layer) const;
  LayerWeights by_layer() const {
    std::vector<std::array<double, 2>> costs(as_size(file.info.model.num_layers));
    for (size_t layer = 0; layer < costs.size(); ++layer)
      costs[layer] = {cost(Side::key, static_cast<int>(layer)), cost(Side::value, static_cast<int>(layer))};
    return LayerWeights(costs);
  }
};

/// Throws Error(bad_input) unless the file is of a model of that shape, and with the same weights if both are known. cache: the
/// file of that model, for messages.
Weights read_weights(const std::string& name, const ModelInfo& model, const std::string& cache);

/// The same for a codec's context, which only contains the shape.
Weights read_weights(const std::string& name, const CodecContext& context);

/// By layer, keys and values, what was measured: by noise the nats per unit of variance with their 95% interval and the noise that costs
/// 0.01 nats relative to the standard deviation of the values; nats per unit of variance by Fisher matrices.
std::string sensitivity_table(const SensitivityInfo& info);
Json sensitivity_json(const SensitivityInfo& info);

}  // namespace kvcodec::cli
