// `codes` files: what any codec made of a cache (FORMAT.md, "codes"). Written and read without knowing the
// codec: streams are datasets /layers/<first layer of the group>/{key,value}/<stream>, documents one behind
// the other, with the row at which each document starts. Index streams may be kept bit-packed; the reader
// unpacks them on the fly.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/header.hpp"
#include "formats/output.hpp"
#include "lib/codec/book.hpp"
#include "lib/codec/codec.hpp"

namespace kvcodec {

/// Everything about a codes file that is not a stream.
struct CodesInfo {
  ModelInfo model;
  std::string codec;                 ///< registry name
  Record parameters;                 ///< Codec::parameters()
  DType storage = DType::bf16;       ///< CodecContext::storage
  DType source_dtype = DType::bf16;  ///< type of the kv file: the default for decode's output
  int layer_group = 1;
  std::vector<int> groups;  ///< first layer of each stored group, ascending
  std::string book_type;    ///< empty = none
  std::string book_digest;
  uint64_t book_bytes = 0;  ///< Book::size_bytes of the book it needs
  bool packed = false;      ///< index streams are bit-packed
  Documents documents;
};

/// How a stream lies in the file.
struct StoredStream {
  StreamSpec spec;
  unsigned packed_bits =
      0;               ///< 0 = plain; else elements take this many bits, each document padded to whole bytes
  uint64_t rows = 0;   ///< of all documents together
  uint64_t bytes = 0;  ///< logical bytes of the dataset, packed if it is
};

/// Bytes per line of the ledger, all layers and both sides together, and what the file weighs beyond them.
struct Ledger {
  uint64_t values = 0;             ///< numbers encoded: tokens * heads * head_dim * layers * 2
  std::vector<uint64_t> category;  ///< bytes per Category, in the order of kCategories
  uint64_t index_bytes = 0;        ///< tokens, positions, document names and offsets, row offsets of streams
  uint64_t embedded_book_bytes = 0;
  uint64_t file_bytes = 0;        ///< size of the file; what is in none of the lines above is file overhead
  uint64_t stored_bytes() const;  ///< all categories together: what the codec itself stores
};

class CodesReader {
 public:
  explicit CodesReader(const std::string& file);
  ~CodesReader();
  CodesReader(CodesReader&&) noexcept;
  CodesReader& operator=(CodesReader&&) noexcept;

  const std::string& name() const;
  const FileType& type() const;
  const CodesInfo& info() const;
  bool has_tokens() const;
  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const;
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const;

  /// The book inside the file (--embed-book), if any.
  std::optional<Book> embedded_book() const;

  /// Checks that what is stored is what the codec says it stores: names, types, shapes, document offsets.
  /// Throws Error(bad_input).
  void check_streams(const Codec& codec) const;

  /// The streams of a document of one side of a group. Reads lazily; messages name file and dataset.
  std::unique_ptr<StreamReader> document(Side side, int first_layer, size_t document) const;

  std::vector<StoredStream> streams(Side side, int first_layer) const;
  Ledger ledger() const;

 private:
  friend class CodesWriter;
  friend struct RepackResult repack_indices(const CodesReader&, OutputFile&, bool, const Provenance&);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class CodesWriter {
 public:
  /// A new file. info.groups and info.documents say what will be written. embed_book: goes into the file;
  /// nullptr = none.
  CodesWriter(OutputFile& output, const CodesInfo& info, const Codec& codec, std::span<const uint32_t> tokens,
              std::span<const uint64_t> positions, const Book* embed_book);
  /// A copy of an existing file that is then extended: its last document may grow and new ones follow.
  /// info.documents describes the result: the documents of `base` first, the last of them perhaps longer.
  /// tokens, positions: of the added tokens only.
  CodesWriter(OutputFile& output, const CodesReader& base, const CodesInfo& info, const Codec& codec,
              std::span<const uint32_t> tokens, std::span<const uint64_t> positions);
  ~CodesWriter();
  CodesWriter(const CodesWriter&) = delete;
  CodesWriter& operator=(const CodesWriter&) = delete;

  /// The streams of a document, to append to. For each side of each group call it with rising document
  /// numbers; the one before is closed by the call. Groups and sides one after the other: only the one in
  /// work is held in memory.
  StreamStore& document(Side side, int first_layer, size_t document);

  /// Flushes, checks, writes ledger and root attributes, closes. The caller commits the OutputFile.
  void finish(const Provenance& provenance);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Rewrites a codes file with its index streams packed (or plain again), losslessly.
struct RepackResult {
  uint64_t index_bytes_before = 0, index_bytes_after = 0;
};
RepackResult repack_indices(const CodesReader& input, OutputFile& output, bool pack,
                            const Provenance& provenance);

}  // namespace kvcodec
