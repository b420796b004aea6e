// `codes` files: a cache as encoded by any codec (FORMAT.md, "codes"). They are written and read without knowledge of the codec:
// the streams of one document and one side of a group lie together in one part, so that reading a document costs little more than
// its streams. Index streams may be bit-packed; the reader unpacks them on the fly.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
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
  int layer_group = 1;               ///< layers of a group, at most
  bool joint = false;                ///< keys and values are coded together: Codec::joint()
  std::vector<int> groups;           ///< first layer of each stored group, ascending
  /// For each layer of the model the first layer of its group; -1: it is in none. Empty: groups are layer_group consecutive layers.
  std::vector<int> group_of_layer = {};
  std::string book_type;  ///< empty = none
  std::string book_digest;
  uint64_t book_bytes = 0;  ///< Book::size_bytes of the book it needs
  bool packed = false;      ///< index streams are bit-packed
  Documents documents;      ///< layers of a group hold the same tokens

  /// The first layer of a stored layer's group; and the layers of a group, rising, by its first one.
  int group_of(int layer) const {
    return group_of_layer.empty() ? layer - layer % layer_group : group_of_layer[static_cast<size_t>(layer)];
  }
  std::vector<int> layers_of(int group) const;
  /// The rows of a group, by its first layer.
  GroupShape shape(int group, Side side) const { return group_shape(model, layers_of(group), side); }
  /// Sets groups, group_of_layer and layer_group. layers: of each group, in any order.
  void set_groups(std::vector<std::vector<int>> layers);

  /// The sides for which the group that begins at that layer has streams: keys and values; keys alone if the values lie in the
  /// keys; or Side::both if they are coded together.
  std::span<const Side> sides(int first_layer) const {
    if (joint) return kJointly;
    return std::span<const Side>(kSides).first(model.layer_shape(first_layer).values_in_keys ? 1 : 2);
  }
  /// The sides for which any group has streams.
  std::span<const Side> sides() const {
    if (joint) return kJointly;
    const bool values = std::ranges::any_of(groups, [&](int group) { return sides(group).size() > 1; });
    return std::span<const Side>(kSides).first(values ? 2 : 1);
  }
};

/// One stream of one side of a group, for all documents.
struct StoredStream {
  StreamSpec spec;
  unsigned packed_bits = 0;  ///< 0 = plain; else bits of an element, each document padded to whole bytes
  uint64_t rows = 0;
  uint64_t bytes = 0;  ///< as stored, maybe packed
};

/// Bytes per line of the ledger, for all layers and both sides together, and the bytes of the file beyond them.
struct Ledger {
  uint64_t values = 0;             ///< numbers encoded: all that the cache stores in these layers
  std::vector<uint64_t> category;  ///< bytes per Category, in the order of kCategories
  uint64_t index_bytes = 0;  ///< tokens, positions, document names and offsets, tables and footers of parts
  uint64_t state_bytes = 0;  ///< of documents' states
  uint64_t embedded_book_bytes = 0;
  uint64_t file_bytes = 0;        ///< size of the file; what is in none of the lines above is file overhead
  uint64_t stored_bytes() const;  ///< all categories together: what the codec itself stores
};

class CodesReader final : public TokenFile {
 public:
  explicit CodesReader(const std::string& file);
  ~CodesReader() override;
  CodesReader(CodesReader&&) noexcept;
  CodesReader& operator=(CodesReader&&) noexcept;

  const std::string& name() const override;
  const FileType& type() const;
  const CodesInfo& info() const;
  const Documents& documents() const override { return info().documents; }
  /// Calls to the system so far, including those that opened the file, and the bytes that they read.
  uint64_t reads() const;
  uint64_t bytes_read() const;

  bool has_tokens() const override;
  /// Both throw Error(bad_input) for a document whose number of tokens differs from the table of documents.
  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const override;
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const override;

  /// The book inside the file (--embed-book), if any.
  std::optional<Book> embedded_book() const;

  /// Checks that the stored streams have the names, types and shapes that the codec declares. The number of tokens of a document is
  /// checked when it is read. Throws Error(bad_input).
  void check_streams(const Codec& codec) const;

  /// Reads the streams of one side of a group that all documents share, if there are any. Throws Error(bad_input).
  void check_shared(Side side, int first_layer) const;

  /// Reads all parts completely. progress(bytes of parts so far); fault(error) is called for each part that is damaged, lies in a
  /// forbidden place, or is missing.
  void check_parts(const std::function<void(uint64_t bytes)>& progress,
                   const std::function<void(const Error& fault)>& fault) const;

  /// The streams of one document and one side of a group, or of both sides if they are coded together. Data are verified when they
  /// are read, small parts at once; messages name file, stream and document. The result must not outlive the reader.
  std::unique_ptr<StreamReader> document(Side side, int first_layer, size_t document) const;

  /// The streams of one side of a group for all documents, in the order in which they lie in a part.
  std::vector<StoredStream> streams(Side side, int first_layer) const;
  /// Bytes of the parts of each document. Reads the whole table of parts.
  std::vector<uint64_t> document_bytes() const;
  /// Reads the whole table of parts and checks it against the totals.
  Ledger ledger() const;

  struct Impl;  // formats/cache/codes_io.hpp
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Ids (empty if they are not known) and positions of tokens.
struct TokenRun {
  std::span<const uint32_t> ids;
  std::span<const uint64_t> positions;
};

class CodesWriter {
 public:
  /// Makes a new file. info.groups and info.documents describe the content. embed_book: a book to store in the file; nullptr = none.
  /// alike: codes of the same codec, options and layers, whose shared streams are copied into this file, so that no survey is
  /// needed; nullptr = none. They stay open while this object writes.
  CodesWriter(OutputFile& output, const CodesInfo& info, const Codec& codec, const TokenRun& tokens,
              const Book* embed_book = nullptr, const CodesReader* alike = nullptr);
  /// Extends `base`: its last document may grow, and new documents may follow. Writes to a copy of the file, or to the file itself
  /// if the output is changed in place. info.documents describes the result: first the documents of `base`, the last of which may
  /// be longer. tokens: only the added ones.
  CodesWriter(OutputFile& output, const CodesReader& base, const CodesInfo& info, const Codec& codec,
              const TokenRun& tokens);
  /// True if the file can be extended in place by tokens at these positions.
  static bool can_change_in_place(const CodesReader& base, std::span<const uint64_t> positions);
  ~CodesWriter();
  CodesWriter(const CodesWriter&) = delete;
  CodesWriter& operator=(const CodesWriter&) = delete;

  /// The streams of a document, for appending. Finish one side of one group (CodesInfo::sides) before the next, and take its
  /// documents in ascending order: each call closes and writes the previous document, so that memory holds one document at a time.
  StreamStore& document(Side side, int first_layer, size_t document);

  /// Flushes, checks, writes ledger and root attributes, and closes the file. The caller commits the OutputFile.
  void finish(const Provenance& provenance);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct RepackResult {
  uint64_t index_bytes_before = 0, index_bytes_after = 0;
};
/// Rewrites a codes file with its index streams packed or unpacked, losslessly. The caller commits the OutputFile.
RepackResult repack_indices(const CodesReader& input, OutputFile& output, bool pack,
                            const Provenance& provenance);

}  // namespace kvcodec
