// Root attributes that every kvcodec file carries (FORMAT.md, "Every file").
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/text_list.hpp"

namespace kvcodec {

/// The group whose attributes describe a file.
inline constexpr char kRoot[] = "/";

/// How a file was made; written to every output.
struct Provenance {
  std::string command;               ///< the command line of this run, one line
  std::vector<std::string> history;  ///< the commands that led to the inputs, oldest first
};

/// The words of a command for a line of a history: on one line, with the middle cut out if they take more than 4,000 bytes.
std::string history_words(std::string words);
/// A line for a history; it has room for history_words() and for the text that follows them.
std::string history_line(std::string line);

/// The model of the cache and the state of its keys; `kv` files have it, and `codes` and `dictionary` files repeat it.
struct ModelInfo {
  std::string model;        ///< name, usually the model folder's
  std::string family = {};  ///< model_type of its config.json; empty = unknown
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;      ///< per layer; the maximum if layers differ
  int head_dim = 0;          ///< of keys and values; the largest one of keys if these or layers differ
  double rope_theta = 0;     ///< 0 = unknown
  std::string rope_scaling;  ///< JSON, see FORMAT.md; empty = none
  std::string key_state = "post-rope";  ///< "post-rope" or "pre-rope"
  std::string source;       ///< where the cache came from: digest of the weights, files of the text
  std::string scores = {};  ///< JSON, see score_forms.hpp; empty = unknown
  /// The shape of each layer; empty if every layer has num_kv_heads heads with head_dim dimensions in keys
  /// and in values.
  std::vector<LayerShape> layer_shapes = {};
  /// If the cache was imported from a file of another program: a JSON object with the data that an export to the same format needs
  /// to restore that file; else empty.
  std::string imported = {};

  /// The digest of the model's weights, taken from `source`; empty if it is not known.
  std::string_view weights() const {
    constexpr std::string_view kWeights = "weights ";
    return source.starts_with(kWeights) ? std::string_view(source).substr(kWeights.size())
                                        : std::string_view();
  }

  bool one_shape() const { return layer_shapes.empty(); }
  LayerShape layer_shape(int layer) const {
    return one_shape() ? usual_layer(num_kv_heads, head_dim) : layer_shapes[static_cast<size_t>(layer)];
  }

  bool operator==(const ModelInfo&) const = default;
};

/// One side of some layers, or both sides, in the form that codecs take. Throws Error(failed) if the layers differ in shape, or if
/// a row would be empty.
GroupShape group_shape(const ModelInfo& model, std::vector<int> layers, Side side);

/// The model with these shapes of layers; if all equal the usual one, layer_shapes is empty.
ModelInfo with_layer_shapes(ModelInfo model, std::vector<LayerShape> shapes);

/// Throws Error(bad_input) if both files identify the weights of their model and these differ.
void check_same_weights(const std::string& name, const ModelInfo& model, const std::string& other_name,
                        const ModelInfo& other);
/// Throws Error(bad_input) unless both files are of a cache of the same model, with keys in the same state. Models are compared by
/// the digests of their weights or, if one is not known, by their names.
void check_same_model(const std::string& name, const ModelInfo& model, const std::string& other_name,
                      const ModelInfo& other);

/// A tensor of a document's state: what a model goes on with, behind the last token, beside keys and values (FORMAT.md, "State"). Its
/// numbers mean nothing here.
struct StateTensor {
  std::string name;
  DType type = DType::f32;
  std::vector<uint64_t> shape = {};
  Digest128 digest = {};  ///< of its bytes
  /// Its bytes, row-major and little-endian; of a file that is open. Throws Error(bad_input) if they are damaged.
  std::function<std::vector<std::byte>()> load = {};
  uint64_t begin = 0;  ///< in that file's /state/data

  uint64_t bytes() const;
  bool operator==(const StateTensor& other) const;  ///< by name, type, shape and digest
};
/// A tensor in memory. Throws Error(usage) for a name that files do not hold, and for bytes that the shape does not have.
StateTensor state_tensor(std::string name, DType type, std::vector<uint64_t> shape,
                         std::vector<std::byte> bytes);
uint64_t bytes_of(std::span<const StateTensor> state);

/// Facts about a document besides its tokens.
struct DocumentFacts {
  std::optional<Digest128> digest;  ///< of its token ids: token_digest()
  std::string metadata;             ///< a JSON object of the user's; empty = none
  uint64_t time = 0;                ///< when its cache was computed, in seconds since 1970; 0 = unknown
  std::vector<StateTensor> state = {};
  bool operator==(const DocumentFacts&) const = default;
};

/// The facts of all documents, a column for each kind. A column is empty if no document has a fact of its kind.
class FactsTable {
 public:
  std::vector<Digest128> digests;  ///< zeros: unknown
  std::vector<uint64_t> times;     ///< 0: unknown
  TextList metadata;               ///< "": none
  std::vector<std::vector<StateTensor>> states;

  bool empty() const { return digests.empty() && times.empty() && metadata.empty() && states.empty(); }
  DocumentFacts of(size_t i) const;
  /// Adds facts of the document that follows `count` others.
  void add(size_t count, const DocumentFacts& facts);
  bool operator==(const FactsTable&) const = default;
};

/// XXH3 with 128 bits of the ids, 4 bytes each, little-endian.
inline Digest128 token_digest(std::span<const uint32_t> ids) { return digest_of(std::as_bytes(ids)); }

/// Documents lie one after the other along the token axis: document i is tokens [offsets[i], offsets[i + 1]).
struct Documents {
  TextList names;
  std::vector<uint64_t> offsets{0};
  /// Number of first tokens of each document that each layer of the model does not hold, because they lie before the layer's
  /// window. Empty if all layers hold all tokens.
  std::vector<std::vector<uint64_t>> left_out = {};
  FactsTable facts = {};

  size_t count() const { return names.size(); }
  uint64_t tokens() const { return offsets.back(); }
  uint64_t length(size_t i) const { return offsets[i + 1] - offsets[i]; }
  /// True if all layers hold all tokens.
  bool whole() const { return left_out.empty(); }
  uint64_t left_out_of(int layer, size_t i) const {
    return whole() ? 0 : left_out[i][static_cast<size_t>(layer)];
  }
  /// Number of tokens of document i that the layer holds, which are its last ones; and the sum over all documents.
  uint64_t held(int layer, size_t i) const { return length(i) - left_out_of(layer, i); }
  uint64_t held(int layer) const;
  /// The tokens that the layer holds, numbered across all documents, as runs [first, end). Each run is contiguous in a kv file's
  /// dataset and is read at once.
  std::vector<std::pair<uint64_t, uint64_t>> held_runs(int layer) const;
  DocumentFacts facts_of(size_t i) const { return facts.of(i); }
  /// left_out: per layer; empty if no layer leaves out tokens.
  void add(std::string_view name, uint64_t length, std::span<const uint64_t> left_out_of_layers = {},
           const DocumentFacts& known = {});
  /// Makes the last document longer.
  void extend_last(uint64_t length, const DocumentFacts& known);
  /// Adds document i of another table at the end.
  void add(const Documents& other, size_t i) {
    add(other.names[i], other.length(i), other.whole() ? std::span<const uint64_t>() : other.left_out[i],
        other.facts_of(i));
  }
  void add(const Documents& other, std::span<const size_t> numbers) {
    for (const size_t i : numbers) add(other, i);
  }
};

/// A file with documents of tokens, which all have positions, and ids if these are known.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  virtual const std::string& name() const = 0;  ///< for messages
  virtual const Documents& documents() const = 0;
  virtual bool has_tokens() const = 0;
  /// Ids and positions of tokens [first, first + count), numbered across all documents.
  virtual std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const = 0;
  virtual std::vector<uint64_t> positions(uint64_t first, uint64_t count) const = 0;

  /// Those of a document.
  std::vector<uint32_t> tokens_of(size_t document) const {
    return tokens(documents().offsets[document], documents().length(document));
  }
  std::vector<uint64_t> positions_of(size_t document) const {
    return positions(documents().offsets[document], documents().length(document));
  }
};

/// This program's name and version in outputs: "kvcodec 1.2.3".
std::string generator();

/// The current time, or the time that SOURCE_DATE_EPOCH sets, in seconds since 1970. Throws Error(usage) if that is no number.
int64_t now();

/// Seconds since 1970 as 2026-01-31T12:00:00Z.
std::string date_text(int64_t seconds);
/// now() in this form.
inline std::string timestamp() { return date_text(now()); }

/// Attributes that every file has.
struct FileType {
  std::string type;  ///< "kv", "dictionary", "codes" …
  int version = 0;
  std::string generator, created;
  std::vector<std::string> history;
};

/// Reads the type of any kvcodec file. Throws Error(bad_input) if it is not a kvcodec file, or if its version is newer than this
/// program supports.
FileType identify(const std::string& file);

}  // namespace kvcodec
