// Encoded documents of one group side in memory: for tests, benchmarks and programs that use lib/ without files.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/stream.hpp"

namespace kvcodec {

class Encoded {
 public:
  explicit Encoded(std::vector<StreamSpec> specs);
  Encoded(Encoded&&) noexcept = default;
  Encoded& operator=(Encoded&&) noexcept = default;

  /// Starts the next document; the one before it is closed for good. The reference lives as long as the
  /// Encoded. token_ids: of the document's later tokens; empty if they are not known.
  StreamStore& add_document(std::vector<uint32_t> token_ids = {});
  size_t documents() const;
  const StreamReader& document(size_t index) const;

  const std::vector<StreamSpec>& specs() const;
  /// All bytes of one stream over all documents, as a file would store them, unpacked.
  std::span<const std::byte> bytes(std::string_view stream) const;

 private:
  struct Document;
  struct State;
  std::shared_ptr<State> state_;  // documents refer to it; shared, so that its type need not be known here
};

/// A document to be encoded in memory.
struct DocumentRows {
  DocumentRows(MatrixView<const float> all) : rows(all), surveyed(all) {}
  MatrixView<const float> rows;      ///< (tokens, width) of the side to encode
  MatrixView<const float> surveyed;  ///< of the side that Codec::surveyed asks for
  std::vector<uint64_t> query_tokens = {};
  MatrixView<const float> queries = {};  ///< (query_tokens.size(), query_heads * head_dim)
  std::vector<uint32_t> token_ids = {};  ///< (tokens), or empty: not known
  std::vector<float> weights = {};       ///< StreamStore::token_weight
};

/// Documents of one side of one group, surveyed and encoded as a new file would be.
Encoded encode_in_memory(const Codec& codec, const GroupShape& shape,
                         std::span<const DocumentRows> documents);

/// Runs a survey over these documents and stores its results.
void run_survey(Survey& survey, std::span<const DocumentRows> documents, StreamStore& document);

/// The same for documents that are not all in memory: document_rows(i), i < documents, is called when document
/// i is needed, once in each pass; its earlier results are not used again.
void run_survey(Survey& survey, size_t documents, const std::function<DocumentRows(size_t)>& document_rows,
                StreamStore& document);

}  // namespace kvcodec
