// Caches in files of other programs (INTEROP.md describes the files): one interface for all formats, consisting of a reader and a
// writer, and the table of formats.
//
// To add a format:
//   1. a file here with its reader, its writer and how it is recognised, and a function that gives its ForeignFormat;
//   2. that function's name in foreign.cpp;
//   3. a section in INTEROP.md, and one in man/kvcodec-interop.7;
//   4. a file of it in test/golden/interop, and a row in the tests' tables of formats.
//
// Nothing in a foreign file is trusted: counts and offsets are checked against the size of the file before anything is allocated.
// Errors are Error(bad_input) and begin with the file's name.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/cache/header.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/view.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec::interop {

/// Rows [first, first + out.rows()) of one side of a layer of a document, (n, heads * dimensions) floats.
using ReadRows = std::function<void(uint64_t first, MatrixView<float> out)>;

/// The rows of a layer of a document in a foreign file: those of its last tokens.
struct ForeignLayer {
  uint64_t rows = 0;
  std::array<ReadRows, 2> sides = {};  ///< keys, values; values may be empty where they lie in keys
};

struct ForeignDocument {
  std::string name;
  std::vector<uint32_t> tokens = {};     ///< ids; empty if they are not known
  std::vector<uint64_t> positions = {};  ///< one per token, rising
  std::map<int, ForeignLayer> layers = {};
  std::vector<StateTensor> state = {};
};

/// The description of a cache; its rows are read from the mapped files on request.
struct ForeignCache {
  ModelInfo model;
  DType dtype = DType::f32;  ///< the narrowest type that holds all its values as they are
  std::vector<ForeignDocument> documents;
  std::vector<std::string> notes = {};  ///< what was guessed, and what cannot be kept; a sentence each
  std::vector<std::string> doubts =
      {};  ///< notes that are needless once the cache was compared with its model
};

/// How to read files that do not describe themselves completely. Zero and empty mean: not given.
struct ImportOptions {
  std::optional<ModelInfo> model;           ///< of --model
  std::vector<int64_t> windows;             ///< with it: of each layer, its sliding window; 0 = none
  int latent = 0;                           ///< with it: dimensions of the latent vector of its attention
  std::vector<std::vector<uint32_t>> ids;   ///< token ids of the documents
  std::string layout;                       ///< names of axes, slowest first, or a name that stands for them
  std::string type;                         ///< of elements, where a file does not say it
  int heads = 0, head_dim = 0, layers = 0;  ///< shape of the cache
  uint64_t page_tokens = 0;                 ///< tokens of a page
  std::optional<std::array<size_t, 2>>
      rotated;                     ///< size of the Hadamard blocks of keys and values; 0 = not turned
  std::vector<int> window_layers;  ///< layers of the second cache of a llama.cpp state
  std::optional<PairOrder> pairs;  ///< of keys in the file; else by the family of the model
};

/// A cache to export: a kv file, or codes that are decoded during the export.
class CacheSource : public TokenFile {
 public:
  virtual const ModelInfo& model() const = 0;
  virtual DType dtype() const = 0;
  virtual const std::vector<int>& layers() const = 0;
  /// Tokens [first, first + out.rows()) of a document, all of which the layer holds; out: (n, heads * stored_dim).
  virtual void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const = 0;
};

/// Choices that a format leaves open. Empty and zero: like the file from which the cache was imported, else the format's usual
/// choice.
struct ExportOptions {
  std::string key_type, value_type;       ///< of elements
  std::string layout;                     ///< as of ImportOptions
  int version = 0;                        ///< of the file
  std::string kind;                       ///< which of a format's files
  std::optional<bool> transposed_values;  ///< llama.cpp's v_trans
  int bits = 0, group = 0;                ///< mlx-lm: quantized so
  uint64_t page_tokens = 0;
  std::optional<std::array<size_t, 2>> rotated;  ///< as of ImportOptions
  std::vector<int> window_layers;
  std::optional<PairOrder> pairs;
};

struct ExportJob {
  std::vector<size_t> documents;
  ExportOptions options;
  std::string path;
  bool overwrite = false;
  std::vector<std::string> keep = {};             ///< files that an output in a folder must not replace
  const KeyRope* turn = nullptr;                  ///< turns keys that are from before the rotary embedding
  PairOrder pairs = PairOrder::halves;            ///< of keys, as pairs_to_write() finds it
  uint64_t buffer_bytes = uint64_t{64} << 20;     ///< for rows on their way
  std::function<void(uint64_t rows)> count = {};  ///< told of rows of layers and sides that are written
};

struct ExportResult {
  std::vector<std::string> files;
  uint64_t bytes = 0;
  std::vector<std::string> notes;
};

/// A program keeps the two dimensions that the rotary embedding turns together as transformers does it, half of the dimensions
/// apart; as the model's weights have them; or as llama.cpp's weights have them.
enum class PairRule : uint8_t { halves, of_weights, of_llama_cpp };

struct ForeignFormat {
  std::string_view name, summary;
  /// Returns true only if the file certainly has this format; returns false or throws Error for others. nullptr: the format is raw
  /// bytes, which nothing identifies.
  bool (*is_of)(const std::string& file) = nullptr;
  ForeignCache (*open)(const std::vector<std::string>& files, const ImportOptions& options) = nullptr;
  ExportResult (*write)(const CacheSource& source, const ExportJob& job) = nullptr;
  /// The members of ImportOptions and ExportOptions that it uses, among those that not all formats use; by the names of their
  /// options on the command line.
  std::vector<std::string_view> import_options = {}, export_options = {};
  bool writes_folder = false;  ///< the output is a folder of files
  bool writes_state = false;   ///< beside keys and values
  PairRule pairs = PairRule::halves;

  /// Whether the file certainly has this format.
  bool recognises(const std::string& file) const {
    try {
      return is_of && is_of(file);
    } catch (const Error&) {
      return false;
    }
  }
};

const std::vector<ForeignFormat>& foreign_formats();

/// Throws Error(usage) if there is no format of that name.
const ForeignFormat& foreign_format(std::string_view name);

/// The format of a file whose content identifies it. Otherwise throws Error(usage) with a list of the formats.
const ForeignFormat& guess_format(const std::string& file);

// Helpers of readers --------------------------------------------------------------------------------

/// The shape of a cache with these layers, combined with the data of --model; shapes[i] is the shape of layer i. source: for
/// people. Adds a note if the model has another shape.
ModelInfo model_of(std::vector<LayerShape> shapes, const ImportOptions& options, const std::string& source,
                   std::vector<std::string>& notes);

/// The type that represents the values of both types exactly; a: std::nullopt at first.
inline DType wider(std::optional<DType> a, DType b) { return !a || *a == b ? b : DType::f32; }

/// Checks a number of heads or dimensions. Throws Error(bad_input) for 0, and for more than any cache has. what: its name.
int plausible(uint64_t count, const std::string& what);

/// Documents of several files as one cache. open: opens one file. Throws Error(bad_input) unless they have the same shape.
ForeignCache joined(const std::vector<std::string>& files,
                    const std::function<ForeignCache(const std::string& file)>& open);

/// Puts the user's token ids (options.ids) into the documents and checks that the documents fit together. If ids are known for only
/// some documents, it drops all ids and adds a note. Throws Error(usage) for ids that do not fit, Error(bad_input) for documents
/// that do not. file: for messages.
void settle(ForeignCache& cache, const ImportOptions& options, const std::string& file);

/// Lets keys be read in the order of kv files, halves, where the file has pairs side by side. Adds a note where nothing says how they
/// lie, and to `imported` what an export has to know.
void settle_pairs(ForeignCache& cache, const ForeignFormat& format, const ImportOptions& options);

/// The name of a document: the name of its file without folders and extension.
std::string document_name(const std::string& file);

/// For each layer of the model, the number of the document's first tokens that the cache does not hold.
std::vector<uint64_t> left_out_of(const ForeignCache& cache, const ForeignDocument& document);

// Helpers of writers -------------------------------------------------------------------------------

/// True if the layer holds only the last tokens of some document.
inline bool leaves_out(const CacheSource& source, int layer) {
  return source.documents().held(layer) < source.documents().tokens();
}

/// Tokens of one side of a layer of a document, counted from the first one that the layer holds.
struct RowsOf {
  Side side;
  int layer;
  size_t document;
  uint64_t first = 0, count = UINT64_MAX;  ///< count: at most
};

/// Changes the order of the turned dimensions of keys (n, heads * key_dim) from the other one to `to`.
void order_pairs(PairOrder to, const LayerShape& shape, MatrixView<float> keys);

/// Calls visit(first, rows) for these tokens in pieces that fit the job's buffer; first is relative to the first of these tokens.
void for_each_piece(const CacheSource& source, const ExportJob& job, const RowsOf& which,
                    const std::function<void(uint64_t first, MatrixView<float> rows)>& visit);

/// The order in which a file of that format has the pairs of this cache's keys. Throws Error(usage) if nothing says it. Adds a note
/// if the cache came from a llama.cpp state of which nothing said it.
PairOrder pairs_to_write(const CacheSource& source, const ForeignFormat& format, const ExportOptions& options,
                         std::vector<std::string>& notes);

/// Throws Error(usage) unless the cache has all layers of its model, which `what` requires.
void require_all_layers(const CacheSource& source, const char* what);

/// The shape that all layers have. Throws Error(usage) unless they, and their keys and values, have one shape and hold all tokens,
/// and values lie in keys only if that is allowed. otherwise: a hint for the message.
LayerShape only_shape(const CacheSource& source, bool may_lie_in_keys, const char* otherwise);

/// The only chosen document. Throws Error(usage) if there are others; what: the name of the file's content that has room for only one.
size_t only_document(const CacheSource& source, const ExportJob& job, const char* what);
/// The same for a file without positions. Throws Error(usage) unless those of the document are 0, 1, 2 …, as the file will be read.
size_t only_counted_document(const CacheSource& source, const ExportJob& job, const char* what);

/// The error for a document whose positions a file cannot hold. what: the file.
Error lost_positions(const CacheSource& source, size_t document, const char* what);

}  // namespace kvcodec::interop
