// `outputs` files: what attention gave for some queries (FORMAT.md, "outputs").
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// Everything about an outputs file that is not an output.
struct OutputsInfo {
  ModelInfo model;
  std::string codec;        ///< of the codes whose keys and values were attended to
  std::vector<int> layers;  ///< ascending
  Documents documents;      ///< along the queries, not along the tokens
};

class OutputsReader {
 public:
  /// Checks every size against what is there. Error messages begin with the file's name and the object.
  explicit OutputsReader(const std::string& file);
  ~OutputsReader();
  OutputsReader(OutputsReader&&) noexcept;
  OutputsReader& operator=(OutputsReader&&) noexcept;

  const std::string& name() const;
  const FileType& type() const;
  const OutputsInfo& info() const;
  uint64_t queries() const { return info().documents.tokens(); }
  uint64_t file_bytes() const;

  /// Position in its document of each query's token.
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const;
  /// Row of each query's token in the kv file that the queries came from.
  std::vector<uint64_t> token_rows(uint64_t first, uint64_t count) const;

  /// Outputs of queries [first, first + out.rows()) of a layer. out: (n, num_q_heads * head_dim). Throws
  /// Error(bad_input) for a layer that is not there, a checksum that does not hold, values not finite.
  void read(int layer, uint64_t first, MatrixView<float> out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class OutputsWriter {
 public:
  /// positions, token_rows: one per query, in the order of the documents.
  OutputsWriter(OutputFile& output, const OutputsInfo& info, std::span<const uint64_t> positions,
                std::span<const uint64_t> token_rows);
  ~OutputsWriter();
  OutputsWriter(const OutputsWriter&) = delete;
  OutputsWriter& operator=(const OutputsWriter&) = delete;

  /// The layer's next rows (n, num_q_heads * head_dim); layers in any interleaving. Throws Error(bad_input)
  /// for values that are not finite.
  void append(int layer, MatrixView<const float> rows);

  /// Checks that every layer has all queries, adds the root attributes, closes the file. The caller commits
  /// the OutputFile. Throws Error(failed) if anything could not be written.
  void finish(const Provenance& provenance);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec
