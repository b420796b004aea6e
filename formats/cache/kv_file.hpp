// `kv` files: keys, values and some queries of a model over documents (FORMAT.md, "kv").
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "formats/io/output.hpp"
#include "lib/codec/codec.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Reads a kv file of any size, piece by piece. Every size is checked against the content when the file is opened. Error messages
/// begin with the file's name and the dataset: "kv.h5: /layers/3/key: …".
class KvReader final : public TokenFile {
 public:
  explicit KvReader(const std::string& file);

  const std::string& name() const override { return file_.name(); }
  const FileType& type() const { return type_; }
  const ModelInfo& model() const { return model_; }
  const Documents& documents() const override { return documents_; }
  DType dtype() const { return dtype_; }                      ///< of keys and values: bf16, f16 or f32
  const std::vector<int>& layers() const { return layers_; }  ///< whose keys and values are there, ascending
  bool has_tokens() const override { return tokens_.has_value(); }
  /// Bytes of all documents' state.
  uint64_t state_bytes() const;
  uint64_t file_bytes() const { return file_.size(); }
  uint64_t data_bytes() const;  ///< of the rows of all datasets

  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const override;
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const override;

  /// Reads tokens [first, first + out.rows()) of one side of one layer, widened to float. out: (n, heads * stored_dim) of the
  /// layer's shape (for values that lie in keys: no columns, or those of the values); any stride, so that layers can lie side by side. If
  /// layers leave out tokens, all tokens must be of one document. Throws Error(bad_input) for a missing layer, tokens that it does
  /// not hold, a wrong checksum, and values that are not finite (naming layer, token, head and dimension).
  void read(Side side, int layer, uint64_t first, MatrixView<float> out) const;

  /// The same as they are stored, in dtype(), one behind the other; not of values that lie in keys.
  void read_stored(Side side, int layer, uint64_t first, size_t count, std::byte* out) const;

  /// Rows of a whole layer group, [layers][heads][head_dim] per token, in the form that codecs take. out: (n, shape.width()).
  void read(const GroupShape& shape, uint64_t first, MatrixView<float> out) const;

  /// Queries of a layer, if dumped.
  struct Queries {
    std::vector<uint64_t> token_rows;  ///< rows of the tokens in the file, rising; not positions in documents
    std::vector<float> values;         ///< (token_rows.size(), num_q_heads * key_dim of the keys they meet)
  };
  std::optional<Queries> queries(int layer) const;
  /// Number of tokens with stored queries, the same in every layer; 0 = none.
  uint64_t query_tokens() const;
  const std::vector<int>& query_layers() const { return query_layers_; }  ///< that have queries, ascending
  /// Type of all queries, or f32, which can represent all of them, if layers differ; std::nullopt if there are none.
  std::optional<DType> query_dtype() const { return query_dtype_; }
  /// Rows of the tokens that queries [first, first + count) belong to, ascending.
  std::vector<uint64_t> query_token_rows(uint64_t first, uint64_t count) const;
  /// Queries [first, first + out.rows()) of a layer, (n, num_q_heads * key_dim); otherwise like read().
  void read_queries(int layer, uint64_t first, MatrixView<float> out) const;

 private:
  friend class KvWriter;
  using ByLayer = std::map<int, h5::Dataset>;

  int query_dim(int layer) const;
  const h5::Dataset& find(const ByLayer& datasets, int layer, std::string_view name) const;
  uint64_t moved(Side side, int layer, uint64_t first, uint64_t number) const;

  FileType type_;
  h5::File file_;
  ModelInfo model_;
  std::shared_ptr<const h5::Dataset> state_;
  Documents documents_;
  DType dtype_ = DType::bf16;
  std::vector<int> layers_, query_layers_;
  ByLayer sides_[2], queries_;
  std::optional<DType> query_dtype_;
  std::optional<h5::Dataset> tokens_, positions_, query_position_;
  /// Number of tokens that layers leave out before each document; empty if all layers hold all tokens.
  std::map<int, std::vector<uint64_t>> left_out_before_;
};

/// Writes a kv file piece by piece. Rows of different layers may be interleaved in any way; within one dataset they come in token
/// order.
class KvWriter {
 public:
  /// dtype: of keys and values. layers: those that will be written, ascending. queries: their type, if they are also written.
  KvWriter(OutputFile& output, const ModelInfo& model, DType dtype, std::vector<int> layers,
           std::optional<DType> queries);
  /// Adds documents to a file that the output changes in place (OutputFile::in_place). They have the type and the layers of the
  /// file, and queries if it has queries. before: the file, open until finish(). Throws Error(bad_input) if it has queries of only
  /// some of its layers, or of several types.
  KvWriter(OutputFile& output, const KvReader& before);
  ~KvWriter();
  KvWriter(const KvWriter&) = delete;
  KvWriter& operator=(const KvWriter&) = delete;

  /// Announces documents that will be added, if they are known before the first row: then a new file has no half-empty chunks, and
  /// a growing file has chunks that suit its size. The caller need not add them. Documents that are added before the first row need
  /// no announcement.
  void expect(const Documents& documents);

  /// From now on, finite values beyond the type's range become its largest ones. Use it for approximations of values of a cache of
  /// this type: there it only makes the errors smaller.
  void clip();

  /// Starts the next document; its rows follow. tokens may be empty if they are not known (then for all documents). positions: one
  /// per token, rising. left_out: for each layer of the model, how many of the first tokens have no rows in it; empty = none. A
  /// layer without keys and values leaves out none.
  void add_document(std::string_view name, std::span<const uint32_t> tokens,
                    std::span<const uint64_t> positions, std::span<const uint64_t> left_out = {},
                    const DocumentFacts& facts = {});

  /// Writes the state of the document with that number, among all of the file, if add_document() had none among its facts.
  void set_state(size_t document, std::span<const StateTensor> state);

  /// Appends rows (n, heads * stored_dim) of the layer's shape, rounded to their type. Throws Error(bad_input) for
  /// values that are not finite, before or after rounding (but see clip()).
  void append(Side side, int layer, MatrixView<const float> rows);
  /// Appends query rows (n, num_q_heads * key_dim) of the tokens at these rows of the file, which rise, also across calls.
  void append_queries(int layer, std::span<const uint64_t> token_rows, MatrixView<const float> rows);

  /// Writes buffered rows, checks that every dataset has all tokens, adds the root attributes, and closes the file. The caller
  /// commits the OutputFile. Throws Error(failed) if anything could not be written.
  void finish(const Provenance& provenance);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
