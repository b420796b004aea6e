// `index` files: semantic clusters of the keys of every layer, document and head (FORMAT.md, "index").
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/record.hpp"

namespace kvcodec {

/// Everything about an index file except the clusters.
struct IndexInfo {
  ModelInfo model;
  Record parameters;                              ///< how the clusters were made: ClusterOptions, seed
  uint64_t sink = 0;                              ///< first tokens of each document that are in no cluster
  Documents documents;                            ///< each as long as what is indexed of it
  std::vector<std::vector<uint64_t>> batch_ends;  ///< of each document: tokens after the last of each batch
};

class IndexReader {
 public:
  /// Throws Error(bad_input) for a file whose sizes do not fit together.
  explicit IndexReader(const std::string& file);
  ~IndexReader();
  IndexReader(IndexReader&&) noexcept;
  IndexReader& operator=(IndexReader&&) noexcept;

  const std::string& name() const;
  const FileType& type() const;
  const IndexInfo& info() const;
  const std::vector<int>& layers() const;  ///< those there are, ascending
  bool has_tokens() const;
  /// Ids and positions of tokens [first, first + count), counted through all documents.
  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const;
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const;
  uint64_t clusters(int layer) const;  ///< of all documents and heads
  uint64_t file_bytes() const;

  /// The clusters of one head. Throws Error(bad_input) unless they are a partition of the document's tokens.
  ClusterIndex read(int layer, size_t document, size_t head) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes an index file layer by layer.
class IndexWriter {
 public:
  /// tokens: ids of all tokens of the documents, or empty if they are not known; positions: of all.
  IndexWriter(OutputFile& output, IndexInfo info, std::span<const uint32_t> tokens,
              std::span<const uint64_t> positions);
  ~IndexWriter();
  IndexWriter(const IndexWriter&) = delete;
  IndexWriter& operator=(const IndexWriter&) = delete;

  /// indices: (documents, key/value heads), each of its document's tokens and batches.
  void add_layer(int layer, std::span<const ClusterIndex> indices);

  /// Adds the attributes and closes the file; the caller commits the OutputFile.
  void finish(const Provenance& provenance);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
