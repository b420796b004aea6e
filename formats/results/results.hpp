// Files of results (FORMAT.md): `index`, semantic clusters of the keys of every layer, document and head; `outputs`, attention
// outputs for some queries; `selection`, the tokens selected for each query; `sensitivity`, how much a model suffers from errors in
// its cache, by layer and side.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "formats/io/output.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/record.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/pipeline/sensitivity.hpp"

namespace kvcodec {

// index ----------------------------------------------------------------------------------------------

/// Everything about an index file except the clusters.
struct IndexInfo {
  ModelInfo model;
  Record parameters;                              ///< how the clusters were made: ClusterOptions, seed
  uint64_t sink = 0;                              ///< first tokens of each document that are in no cluster
  Documents documents;                            ///< each as long as what is indexed of it
  std::vector<std::vector<uint64_t>> batch_ends;  ///< of each document: tokens up to each batch's end
};

class IndexReader final : public TokenFile {
 public:
  /// Throws Error(bad_input) for a file whose sizes do not fit together.
  explicit IndexReader(const std::string& file);

  const std::string& name() const override { return file_.name(); }
  const FileType& type() const { return type_; }
  const IndexInfo& info() const { return info_; }
  const Documents& documents() const override { return info_.documents; }
  const std::vector<int>& layers() const { return layer_numbers_; }  ///< those there are, ascending
  bool has_tokens() const override;
  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const override;
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const override;
  /// The number over all documents and heads.
  uint64_t clusters(int layer) const { return layers_.at(layer).first_cluster.back(); }
  uint64_t file_bytes() const { return file_.size(); }

  /// The clusters of one head. Throws Error(bad_input) unless they are a partition of the document's tokens.
  ClusterIndex read(int layer, size_t document, size_t head) const;

 private:
  struct Layer {
    h5::Dataset centroids, sizes, ends, tokens;
    std::vector<uint64_t> first_cluster;  // of each document and head, and the end
  };

  uint64_t heads(int layer) const { return static_cast<uint64_t>(info_.model.layer_shape(layer).heads); }
  void read_batches();
  Layer open_layer(int number) const;

  FileType type_;
  h5::File file_;
  IndexInfo info_;
  std::vector<int> layer_numbers_;
  std::map<int, Layer> layers_;
  std::vector<uint64_t> first_token_;  // of each document among the clustered tokens of one head, and the end
};

/// Writes an index file layer by layer.
class IndexWriter {
 public:
  /// tokens: ids of all tokens of the documents, or empty if they are not known; positions: of all tokens.
  IndexWriter(OutputFile& output, IndexInfo info, std::span<const uint32_t> tokens,
              std::span<const uint64_t> positions);

  /// indices: (documents, key/value heads of the layer), each with its document's number of tokens and batches.
  void add_layer(int layer, std::span<const ClusterIndex> indices);

  /// Adds the attributes and closes the file; the caller commits the OutputFile.
  void finish(const Provenance& provenance);

 private:
  h5::File file_;
  IndexInfo info_;
};

// outputs --------------------------------------------------------------------------------------------

/// Everything in an outputs file except the outputs.
struct OutputsInfo {
  ModelInfo model;
  std::string codec;        ///< of the codes whose keys and values were attended to
  std::vector<int> layers;  ///< ascending
  Documents documents;      ///< along the queries, not along the tokens
};

class OutputsReader {
 public:
  /// Checks every size against the content. Error messages begin with the file's name and the object.
  explicit OutputsReader(const std::string& file);

  const std::string& name() const { return file_.name(); }
  const FileType& type() const { return type_; }
  const OutputsInfo& info() const { return info_; }
  uint64_t queries() const { return info_.documents.tokens(); }
  uint64_t file_bytes() const { return file_.size(); }

  /// Position in its document of each query's token.
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const;
  /// Row of each query's token in the kv file that the queries came from.
  std::vector<uint64_t> token_rows(uint64_t first, uint64_t count) const;

  /// Outputs of queries [first, first + out.rows()) of a layer. out: (n, num_q_heads * dimensions of values). Throws Error(bad_input) for a
  /// missing layer, a wrong checksum, and values that are not finite.
  void read(int layer, uint64_t first, MatrixView<float> out) const;

 private:
  FileType type_;
  h5::File file_;
  OutputsInfo info_;
};

class OutputsWriter {
 public:
  /// positions, token_rows: one per query, in the order of the documents.
  OutputsWriter(OutputFile& output, const OutputsInfo& info, std::span<const uint64_t> positions,
                std::span<const uint64_t> token_rows);

  /// Appends the layer's next rows (n, num_q_heads * dimensions of values); layers may be interleaved in any way. Throws Error(bad_input) for
  /// values that are not finite.
  void append(int layer, MatrixView<const float> rows);

  /// Checks that every layer has all queries, adds the root attributes, and closes the file. The caller commits the OutputFile.
  /// Throws Error(failed) if anything could not be written.
  void finish(const Provenance& provenance);

 private:
  h5::File file_;
  OutputsInfo info_;
  std::map<int, h5::DatasetWriter> outputs_;
};

// selection ------------------------------------------------------------------------------------------

/// Stands for a missing token if fewer tokens were selected than the row has room for.
inline constexpr uint32_t kNoToken = 0xffffffff;

/// The selection in one layer: for each query (row of the kv file) and each head, best first. Token ids are relative to the query's
/// document.
struct LayerSelections {
  std::vector<std::vector<Scored>> chosen;  ///< (queries, heads), row by row
};

struct SelectionInfo {
  ModelInfo model;
  Record parameters;                 ///< how they were selected
  size_t heads = 0;                  ///< selections per query: key/value heads, or query heads
  std::vector<uint64_t> query_rows;  ///< the row of the kv file of each query
  Documents documents;               ///< of the queries, one behind the other
  std::vector<uint32_t> beside =
      {};  ///< of each query: so many newest tokens are beside the budget; empty: none
};

void write_selections(OutputFile& output, const SelectionInfo& info,
                      const std::map<int, LayerSelections>& layers, const Provenance& provenance);

/// Everything except the selections themselves.
struct SelectionFile {
  FileType type;
  SelectionInfo info;
  std::map<int, uint64_t> budgets;  ///< tokens for which a row has room, of the layers there are
};
SelectionFile read_selection_info(const std::string& file);

/// The selections of one layer. Throws Error(bad_input) for a missing layer, and for scores that are NaN.
LayerSelections read_selections(const std::string& file, int layer);

// sensitivity ----------------------------------------------------------------------------------------

struct SensitivityInfo {
  ModelInfo model;
  Record parameters;  ///< how it was measured
  /// By noise: keys, values; of all layers of the model, or empty if only derivatives were taken.
  std::vector<std::array<Sensitivity, 2>> layers;
  std::optional<Fisher> fisher;  ///< if it was measured; of all layers and heads
};

/// Throws Error(failed) if the numbers of layers, heads or dimensions differ from the model's.
void write_sensitivities(OutputFile& output, const SensitivityInfo& info, const Provenance& provenance);

struct SensitivityFile {
  FileType type;
  SensitivityInfo info;
};

/// Throws Error(bad_input) for shapes that do not fit together, for numbers that are not finite or are negative where
/// they cannot be (half widths may be infinite, as for one document), and for matrices that are not symmetric.
SensitivityFile read_sensitivities(const std::string& file);

}  // namespace kvcodec
