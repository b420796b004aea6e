// Caches in files of other programs (INTEROP.md says what is in them): one interface for all formats, which is a reader
// and a writer, and the table of formats.
//
// To add a format:
//   1. a file here with its reader, its writer and how it is recognised, and a function that gives its ForeignFormat;
//   2. that function's name in foreign.cpp;
//   3. a section in INTEROP.md, and one in man/kvcodec-interop.7;
//   4. a file of it in test/golden/interop, and a row in the tests' tables of formats.
//
// Nothing in a foreign file is trusted: counts and offsets are checked against the bytes that are there before anything
// is allocated. Errors are Error(bad_input), the file's name first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/cache/header.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec::interop {

/// Rows [first, first + out.rows()) of one side of a layer of a document, (n, heads * dimensions) floats.
using ReadRows = std::function<void(uint64_t first, MatrixView<float> out)>;

/// The rows that a foreign file holds of a layer of a document: those of its last tokens.
struct ForeignLayer {
  uint64_t rows = 0;
  std::array<ReadRows, 2> sides = {};  ///< keys, values; values may be empty where they lie in keys
};

struct ForeignDocument {
  std::string name;
  std::vector<uint32_t> tokens = {};     ///< ids; empty if they are not known
  std::vector<uint64_t> positions = {};  ///< one per token, rising
  std::map<int, ForeignLayer> layers = {};
};

/// A cache, described; its rows are read from the mapped files as they are asked for.
struct ForeignCache {
  ModelInfo model;
  DType dtype = DType::f32;  ///< the narrowest type that holds all its values as they are
  std::vector<ForeignDocument> documents;
  std::vector<std::string> notes;  ///< what was guessed, and what cannot be kept; a sentence each
};

/// How to read files that do not say everything themselves. Zero and empty: not given.
struct ImportOptions {
  std::optional<ModelInfo> model;           ///< of --model
  std::vector<int64_t> windows;             ///< with it: of each layer, its sliding window; 0 = none
  int latent = 0;                           ///< with it: dimensions of the latent vector of its attention
  std::vector<std::vector<uint32_t>> ids;   ///< token ids of the documents
  std::string layout;                       ///< names of axes, slowest first, or a name that stands for them
  std::string type;                         ///< of elements, where a file does not say it
  int heads = 0, head_dim = 0, layers = 0;  ///< shape of the cache
  uint64_t page_tokens = 0;                 ///< tokens of a page
  std::array<size_t, 2> rotated = {0, 0};  ///< size of the Hadamard blocks of keys and values; 0 = not turned
  std::vector<int> window_layers;          ///< layers of the second cache of a llama.cpp state
};

/// A cache to export: a kv file, or codes that are decoded on the way.
class CacheSource {
 public:
  virtual ~CacheSource() = default;
  virtual const std::string& name() const = 0;
  virtual const ModelInfo& model() const = 0;
  virtual DType dtype() const = 0;
  virtual const std::vector<int>& layers() const = 0;
  virtual const Documents& documents() const = 0;
  virtual bool has_tokens() const = 0;
  virtual std::vector<uint32_t> tokens(size_t document) const = 0;
  virtual std::vector<uint64_t> positions(size_t document) const = 0;
  /// Tokens [first, first + out.rows()) of a document, all of which the layer holds; out: (n, heads * stored_dim).
  virtual void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const = 0;
};

/// Choices that a format may leave open. Empty and zero: as the file was that the cache was imported from, else the format's
/// usual choice.
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
};

/// One export.
struct ExportJob {
  std::vector<size_t> documents;
  ExportOptions options;
  std::string path;
  bool overwrite = false;
  std::vector<std::string> keep = {};             ///< files that an output in a folder must not replace
  uint64_t buffer_bytes = uint64_t{64} << 20;     ///< for rows on their way
  std::function<void(uint64_t rows)> count = {};  ///< told of rows of layers and sides that are written
};

/// The output of an export.
struct ExportResult {
  std::vector<std::string> files;
  uint64_t bytes = 0;
  std::vector<std::string> notes;
};

struct ForeignFormat {
  std::string_view name, summary;
  /// Whether the file is of this format for certain; never throws for what it does not know. nullptr: raw bytes, which look
  /// like anything.
  bool (*recognise)(const std::string& file) = nullptr;
  ForeignCache (*open)(const std::vector<std::string>& files, const ImportOptions& options) = nullptr;
  ExportResult (*write)(const CacheSource& source, const ExportJob& job) = nullptr;
  /// Which members of ImportOptions and ExportOptions it heeds, by the names of their options on the command line, of
  /// those that not all formats do.
  std::vector<std::string_view> import_options = {}, export_options = {};
  bool writes_folder = false;  ///< the output is a folder of files
};

const std::vector<ForeignFormat>& foreign_formats();

/// Throws Error(usage) where there is none of that name.
const ForeignFormat& foreign_format(std::string_view name);

/// The format of a file, where its content says it for certain. Throws Error(usage) that lists the formats otherwise.
const ForeignFormat& guess_format(const std::string& file);

// Helpers of readers --------------------------------------------------------------------------------

/// The shape of the cache whose layers these are, with what --model says; shapes[i] is layer i's. source: for people.
/// Adds a note where the model says something else of the shape.
ModelInfo model_of(std::vector<LayerShape> shapes, const ImportOptions& options, const std::string& source,
                   std::vector<std::string>& notes);

/// The type that holds values of both types as they are; a: nothing yet.
DType wider(std::optional<DType> a, DType b);

/// Heads or dimensions, which `what` of the file says. Throws Error(bad_input) for 0, and for more than any cache has.
int plausible(uint64_t count, const std::string& what);

/// Documents of several files as one cache. open: of one of them. Throws Error(bad_input) unless they are of one shape.
ForeignCache joined(const std::vector<std::string>& files,
                    const std::function<ForeignCache(const std::string& file)>& open);

/// Puts the user's token ids (options.ids) into the documents and checks the documents against each other. If
/// ids of only some documents are known, it drops them all and adds a note. Throws Error(usage) for ids that
/// do not fit, Error(bad_input) for documents that do not. file: for messages.
void settle(ForeignCache& cache, const ImportOptions& options, const std::string& file);

/// The name of a document: that of its file without folders and ending.
std::string document_name(const std::string& file);

/// Says of each layer of the model how many of the document's first tokens the cache does not hold.
std::vector<uint64_t> left_out_of(const ForeignCache& cache, const ForeignDocument& document);

// Helpers of writers -------------------------------------------------------------------------------

/// Whether the layer holds only the last tokens of some document.
bool leaves_out(const CacheSource& source, int layer);

/// Tokens of one side of a layer of a document, counted from the first one that the layer holds.
struct RowsOf {
  Side side;
  int layer;
  size_t document;
  uint64_t first = 0, count = UINT64_MAX;  ///< count: at most
};

/// Calls visit(first, rows) for these tokens in pieces that fit the job's buffer; first is counted from the first of them.
void for_each_piece(const CacheSource& source, const ExportJob& job, const RowsOf& which,
                    const std::function<void(uint64_t first, MatrixView<float> rows)>& visit);

/// Throws Error(usage) unless the cache has all layers of its model, as `what` has.
void require_all_layers(const CacheSource& source, const char* what);

/// The shape that all layers have. Throws Error(usage) unless they, and their keys and values, have one and hold all
/// tokens, and values lie in keys where they may. otherwise: of what has one shape, or what to do.
LayerShape only_shape(const CacheSource& source, bool may_lie_in_keys, const char* otherwise);

/// The one chosen document. Throws Error(usage) if there are others; what: of what the file holds only one.
size_t only_document(const CacheSource& source, const ExportJob& job, const char* what);

}  // namespace kvcodec::interop
