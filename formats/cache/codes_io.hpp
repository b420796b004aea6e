// Internals of codes files (FORMAT.md, "codes"): layouts of streams, parts, the state of the reader, and the file that is being
// written. Only formats/cache uses this header.
//
// A part holds the streams of one document and one side, one after the other, followed by a footer with the part's name, the number of
// rows of each stream, and the digests of their bytes in pieces of 64 KiB. A reader uses nothing from a part that it has not verified.
#pragma once

#include <list>
#include <map>
#include <mutex>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/header_io.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec {

inline constexpr char kDataPath[] = "/data";    ///< u8: all parts, in any order
inline constexpr char kPartsPath[] = "/parts";  ///< u64 [documents + 1, columns, 2]: each part's begin, size
/// A root attribute: a copy of row 0 of the table, so that a reader of one document need not fetch that row from far away. Only a
/// file with a large table whose documents share streams has it.
inline constexpr char kSharedParts[] = "shared_parts";
/// A root attribute: CodesInfo::group_of_layer, where it is not empty.
inline constexpr char kGroupOfLayer[] = "group_of_layer";
inline constexpr char kTotalsPath[] = "/totals";  ///< u64 [streams of all sides, 2]: rows, bytes
inline constexpr char kBookPath[] = "/book";
inline constexpr char kIndexCategory[] = "index";  ///< of tokens and positions, in the last layout
inline constexpr char kTokens[] = "tokens", kPositions[] = "positions";

/// Bytes handled at a time when streams are copied, packed or unpacked.
inline constexpr uint64_t kBlockBytes = h5::kChunkBytes;

/// Calls body(first, count) for all rows of [0, rows), in runs of `step` rows.
template <class Body>
void for_each_run(uint64_t rows, uint64_t step, const Body& body) {
  for (uint64_t first = 0; first < rows; first += step) body(first, std::min(step, rows - first));
}

// Layouts ----------------------------------------------------------------------------------------------

/// A stream as it is stored.
struct StoredSpec {
  StreamSpec spec;
  unsigned packed_bits = 0;  ///< 0 = plain; else each element takes this many bits, most significant first

  /// Bytes of that many rows of one document. Throws Error(bad_input) if they do not fit 64 bits.
  uint64_t bytes(uint64_t rows) const;
  /// Rows in a block of at most kBlockBytes; at least one.
  uint64_t block_rows() const { return std::max<uint64_t>(1, kBlockBytes / spec.row_bytes()); }
  bool operator==(const StoredSpec&) const = default;
};

/// The streams of a side, in the order in which they are stored.
using Layout = std::vector<StoredSpec>;

/// A codec's streams as a file stores them, with index streams packed or not. Throws Error(failed) for forbidden names and for rows
/// without bytes.
Layout layout_of(const std::vector<StreamSpec>& specs, bool packed);
/// Tokens and positions as they are stored.
Layout index_layout(bool has_tokens, DType position_type);

/// Bits per element of that stream where index streams are packed; 0 = the stream is not packed.
unsigned packed_width(const StreamSpec& spec);

/// A JSON array of one object per stream. category: replaces the categories of all of them; empty = each has its own.
std::string to_json_text(const Layout& layout, std::string_view category = {});
/// Throws Error(bad_input) naming the stream and the invalid field.
Layout layout_from_json(const std::string& text, std::string_view category = {});

/// Packs elements of an index stream, of spec.type, in `bits` bits each.
std::vector<std::byte> pack_elements(const StreamSpec& spec, std::span<const std::byte> in, unsigned bits);

/// The streams of one column of the table of parts.
struct SideLayout {
  Layout all, own, shared;  ///< in the file's list; of those, in each document's part; and in the shared part

  SideLayout() = default;
  explicit SideLayout(Layout layout) : all(std::move(layout)) {
    for (const StoredSpec& stream : all) (stream.spec.shared ? shared : own).push_back(stream);
  }
  /// row: the row of the table of parts.
  const Layout& of_row(uint64_t row) const { return row == 0 ? shared : own; }
};

// Parts ------------------------------------------------------------------------------------------------

/// Identifies a part of a file by its place in the table of parts.
struct PartName {
  uint64_t row = 0;     ///< 0: what all documents share; else the document's number + 1
  uint64_t column = 0;  ///< of the table of parts (Columns)
  bool operator==(const PartName&) const = default;
};

/// The location of a part in the file's data. No part has size 0: size 0 means that the part does not exist.
struct PartPlace {
  uint64_t begin = 0, size = 0;
  bool operator==(const PartPlace&) const = default;
};

/// Bytes that share one digest; the last piece of a part has fewer.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 16;

/// The smallest and the largest size of a footer, in bytes, for a part of that size with that many streams.
uint64_t min_footer_bytes(uint64_t streams);
uint64_t max_footer_bytes(uint64_t streams, uint64_t part_size);

/// Writes parts one after the other. Holds at most 1 MiB.
class PartWriter {
 public:
  /// data: a column of bytes without checksums; outlives the writer.
  explicit PartWriter(h5::DatasetWriter& data) : data_(data) {}

  /// The next bytes of the current part, of any stream.
  void append(std::span<const std::byte> bytes);
  /// Ends the part with its footer, which holds the rows of its streams. Returns its location.
  PartPlace finish(const PartName& name, std::span<const uint64_t> rows);

 private:
  void flush();

  h5::DatasetWriter& data_;
  std::vector<std::byte> block_;    // whole pieces, and at the end of a part less than one
  std::vector<Digest128> digests_;  // of the pieces that have left the block
  uint64_t body_ = 0;               // bytes of the current part
};

/// A part that is read. Opening it reads and verifies the footer, and all of a small part. All functions may be called from any
/// thread.
class Part {
 public:
  /// layout: that of the streams of this part; outlives it. where: file and side, for messages ("codes.h5: /layers/3/key"). Throws
  /// Error(bad_input) for a part that is damaged or is not the requested one.
  Part(h5::Dataset data, const PartName& name, const PartPlace& place, const Layout& layout,
       std::string where);

  const PartName& name() const { return name_; }
  const Layout& layout() const { return layout_; }
  std::span<const uint64_t> rows() const { return rows_; }
  uint64_t body_bytes() const { return offsets_.back(); }  ///< of all streams

  /// Reads rows of a stream (its number in the layout), unpacked; out: count * row_bytes. Throws Error(bad_input) for damaged bytes
  /// and for rows that do not exist.
  void read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const;
  /// Bytes of all streams as they lie in the part.
  void read_body(uint64_t first, std::span<std::byte> out) const;
  /// Passes all of them to body(bytes), block by block.
  template <class Body>
  void visit_body(const Body& body) const {
    std::vector<std::byte> block;
    for_each_run(body_bytes(), 16 * kBlockBytes, [&](uint64_t first, uint64_t count) {
      block.resize(count);
      read_body(first, block);
      body(std::span<const std::byte>(block));
    });
  }

 private:
  using Bytes = UnsetVector<std::byte>;
  std::string where(std::string_view stream) const;
  template <class... Args>
  Error error(std::string_view stream, fmt::format_string<Args...> format, Args&&... args) const;
  void parse_footer(std::span<const std::byte> end);
  void verify(uint64_t piece, std::span<const std::byte> bytes) const;
  uint64_t piece_bytes(uint64_t piece) const {
    return std::min(kPieceBytes, body_bytes() - piece * kPieceBytes);
  }
  void read_piece(uint64_t piece, std::span<std::byte> out) const;
  std::shared_ptr<const Bytes> cached_piece(uint64_t piece) const;

  h5::Dataset data_;
  PartName name_;
  PartPlace place_;
  const Layout& layout_;
  std::string where_;
  std::vector<uint64_t> rows_,
      offsets_;  // per stream; offsets_: first byte of each, and the end of the last one
  std::vector<Digest128> digests_;
  Bytes whole_;  // all bytes of a small part
  // Pieces of a large part of which only some bytes were requested, the latest first: the next requested rows are mostly in them.
  mutable std::mutex mutex_;
  mutable std::list<std::pair<uint64_t, std::shared_ptr<const Bytes>>> cache_;
};

// Files ------------------------------------------------------------------------------------------------

/// The columns of the table of parts: one or two sides of each group, and after them the column of tokens and positions.
class Columns {
 public:
  Columns() = default;
  explicit Columns(const CodesInfo& info) {
    for (const int layer : info.groups)
      for (const Side side : info.sides(layer)) columns_.push_back({layer, side});
  }

  uint64_t count() const { return columns_.size() + 1; }
  uint64_t index() const { return count() - 1; }
  /// The column of a side; std::nullopt if no group begins at that layer or the group has no streams of that side. If both sides
  /// are coded together, either side gives their common column.
  std::optional<uint64_t> find(Side side, int first_layer) const {
    const auto found = std::ranges::find_if(columns_, [&](const Column& column) {
      return column.layer == first_layer && (column.side == side || column.side == Side::both);
    });
    if (found == columns_.end()) return std::nullopt;
    return static_cast<uint64_t>(found - columns_.begin());
  }
  int layer(uint64_t column) const { return columns_[column].layer; }
  std::string path(uint64_t column) const {
    return column == index() ? "" : layer_path(layer(column), name_of(columns_[column].side));
  }
  /// The column must belong to a group.
  GroupShape shape(const CodesInfo& info, uint64_t column) const {
    return info.shape(layer(column), columns_[column].side);
  }

 private:
  struct Column {
    int layer;
    Side side;
  };
  std::vector<Column> columns_;
};

/// Number of values of the cache in a file: for all tokens, in the layers that the file stores.
uint64_t values_of(const CodesInfo& info);

/// All streams of one kind in one column of the table of parts, for all documents.
struct StreamTotal {
  uint64_t rows = 0, bytes = 0;
};

struct CodesReader::Impl {
  FileType type;
  h5::File file;
  StateData state;
  CodesInfo info;
  std::optional<h5::Dataset> data, parts;
  std::vector<SideLayout> layouts;               // the distinct ones
  std::vector<size_t> layout_number;             // per column
  std::vector<std::vector<StreamTotal>> totals;  // per column, stream by stream
  Columns columns;

  explicit Impl(const std::string& name);

  uint64_t index_column() const { return columns.index(); }
  const SideLayout& layout(uint64_t column) const { return layouts[layout_number[column]]; }
  /// Throws Error(bad_input) if no group begins at that layer.
  uint64_t column_of(Side side, int first_layer) const;
  bool has_tokens() const { return layout(index_column()).own.size() > 1; }

  /// The location of a part according to the table of parts.
  PartPlace place(const PartName& name) const { return (*row(name.row))[name.column]; }
  /// Throws Error(bad_input) if the attribute kSharedParts exists and differs from the table.
  void check_first_row() const;
  /// The whole table, row by row.
  std::vector<PartPlace> all_places() const;
  /// Throws Error(bad_input) for a location outside of /data.
  PartPlace check_place(uint64_t row, uint64_t column, const PartPlace& place) const;
  /// Opens a part: the streams of a document, or in row 0 those that all documents share.
  std::unique_ptr<Part> part(const PartName& name) const;
  /// The part that all documents of a column share; opened once.
  const Part& shared_part(uint64_t column) const;

  /// The part with a document's tokens and positions; the part of the latest call is kept.
  std::shared_ptr<const Part> index_part(size_t document) const;

  /// Bytes of the tables of parts, totals and documents.
  uint64_t table_bytes() const;
  /// Bytes of all footers, which are the bytes of parts beyond their streams. Throws Error(bad_input) if parts overlap, or if those
  /// of a column are smaller or larger than the totals of its streams allow.
  uint64_t footer_bytes() const;

 private:
  using Row = std::vector<PartPlace>;  // of the table of parts

  void read_attributes();
  void read_group_of_layer();
  void check_in_group(int layer, int group) const;
  void read_layouts();
  void read_totals();
  void open_parts();
  std::shared_ptr<const Row> row(uint64_t number) const;
  Row read_row(uint64_t number) const;

  std::optional<Row> first_row_;  // content of the attribute kSharedParts
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, std::shared_ptr<const Row>> rows_;           // the latest ones
  mutable std::map<uint64_t, std::unique_ptr<const Part>> shared_parts_;  // by column
  mutable std::shared_ptr<const Part> index_part_;
};

/// A codes file that is being written: first its parts, at the end everything outside of parts.
class CodesFile {
 public:
  /// layouts: per column of the table of parts. before: the previous file if the output is changed in place, else nullptr. Its
  /// parts stay; info and layouts must equal its own, except for documents after its last one.
  CodesFile(const OutputFile& output, const CodesInfo& info, std::vector<Layout> layouts,
            const CodesReader* before = nullptr);

  const SideLayout& layout(uint64_t column) const { return columns_[column]; }

  /// Reads rows [first, first + count) of a part's stream (its number in the layout of the part), unpacked.
  using ReadRows =
      std::function<void(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out)>;
  /// Writes a part: its streams, in the order of its layout; rows: the number of each stream. An earlier part with that name is
  /// replaced; its bytes stay in the file, as overhead.
  void write(const PartName& name, std::span<const uint64_t> rows, const ReadRows& read);
  /// Copies the bytes of a part of another file with the same layout, unchanged.
  void copy(const PartName& name, const Part& part);
  /// Writes token ids, if the layout has them, and positions of a document.
  void write_index(size_t document, std::span<const uint32_t> tokens, std::span<const uint64_t> positions);

  /// Writes the state of a document.
  void write_state(size_t document, const DocumentFacts& facts) { state_.put(document, facts.state); }

  void embed(const Book& book) { ledger_.embedded_book_bytes = write_book_at(file_, kBookPath, book, false); }
  void finish(const Provenance& provenance);

  uint64_t bytes_of(uint64_t column, size_t stream) const { return totals_[column][stream].bytes; }

 private:
  h5::DatasetWriter open_data();
  uint64_t chunk_bytes() const;
  void take_over(const CodesReader& before);
  PartPlace& place(const PartName& name) { return places_[name.row * columns_.size() + name.column]; }
  void count(const PartName& name, std::span<const uint64_t> rows, uint64_t size, bool add);
  void finish_part(const PartName& name, std::span<const uint64_t> rows);
  void write_tables();
  void write_layouts();
  void write_shared_places();
  Record ledger_record() const;

  h5::File file_;
  CodesInfo info_;
  Columns numbering_;  // of the table of parts
  const CodesReader* before_;
  uint64_t written_values_ = 0, written_bytes_ = 0;  // in parts that are finished
  h5::DatasetWriter data_;
  PartWriter parts_;
  std::vector<SideLayout> columns_;
  std::vector<PartPlace> places_;  // row by row
  std::vector<std::vector<StreamTotal>> totals_;
  Ledger ledger_;
  StateWriter state_;
  std::vector<std::byte> block_;
};

}  // namespace kvcodec
