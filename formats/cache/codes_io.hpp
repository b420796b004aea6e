// What reading and writing codes files share: the objects of such a file and the reader's insides. Inside
// formats/ only.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/header_io.hpp"
#include "formats/cache/part.hpp"
#include "formats/cache/stream_layout.hpp"
#include "formats/hdf5/hdf5.hpp"

namespace kvcodec {

inline constexpr char kDataPath[] = "/data";  ///< u8: all parts, in any order
inline constexpr char kPartsPath[] =
    "/parts";  ///< u64 [documents + 1, sides, 2]: where each part begins, its size
/// A root attribute: row 0 of the table again, which a reader of one document would else have to fetch from far away. Only
/// a file with a large table whose documents share streams has it.
inline constexpr char kSharedParts[] = "shared_parts";
inline constexpr char kTotalsPath[] = "/totals";  ///< u64 [streams of all sides, 2]: rows, bytes
inline constexpr char kBookPath[] = "/book";
inline constexpr char kIndexCategory[] = "index";  ///< of tokens and positions, in the last layout
inline constexpr char kTokens[] = "tokens", kPositions[] = "positions";

/// The columns of the table of parts: of each group its sides, one or two, and behind them that of tokens and
/// positions.
class Columns {
 public:
  Columns() = default;
  explicit Columns(const CodesInfo& info) {
    for (const int layer : info.groups)
      for (const Side side : info.sides(layer)) columns_.push_back({layer, side});
  }

  uint64_t count() const { return columns_.size() + 1; }
  uint64_t index() const { return count() - 1; }
  /// The column of a side; std::nullopt if no group begins at that layer or the group has no streams of that
  /// side. If both sides are coded together, either side gives their common column.
  std::optional<uint64_t> find(Side side, int first_layer) const {
    const auto found = std::find_if(columns_.begin(), columns_.end(), [&](const Column& column) {
      return column.layer == first_layer && (column.side == side || column.side == Side::both);
    });
    if (found == columns_.end()) return std::nullopt;
    return static_cast<uint64_t>(found - columns_.begin());
  }
  Side side(uint64_t column) const { return columns_[column].side; }
  int layer(uint64_t column) const { return columns_[column].layer; }
  std::string path(uint64_t column) const {
    return column == index() ? "" : layer_path(layer(column), name_of(side(column)));
  }

 private:
  struct Column {
    int layer;
    Side side;
  };
  std::vector<Column> columns_;
};

/// The streams of one column.
struct SideLayout {
  Layout all, own, shared;  ///< in the file's list; of those, in each document's part; and in the shared part

  SideLayout() = default;
  explicit SideLayout(Layout layout) : all(std::move(layout)) {
    for (const StoredSpec& stream : all) (stream.spec.shared ? shared : own).push_back(stream);
  }
};

/// Tokens and positions as they are stored.
Layout index_layout(bool has_tokens, DType position_type);

GroupShape shape_of(const CodesInfo& info, int first_layer, Side side);
/// Of a column that is one of a group's.
inline GroupShape shape_of(const CodesInfo& info, const Columns& columns, uint64_t column) {
  return shape_of(info, columns.layer(column), columns.side(column));
}

struct CodesReader::Impl {
  /// All streams of one column of the table of parts, over all documents.
  struct Total {
    uint64_t rows = 0, bytes = 0;
  };

  FileType type;
  h5::File file;
  CodesInfo info;
  std::optional<h5::Dataset> data, parts;
  std::vector<SideLayout> layouts;         // the distinct ones
  std::vector<size_t> layout_number;       // per column
  std::vector<std::vector<Total>> totals;  // per column, stream by stream

  explicit Impl(const std::string& name);

  const Columns& columns() const { return columns_; }
  uint64_t index_column() const { return columns().index(); }
  const SideLayout& layout(uint64_t column) const { return layouts[layout_number[column]]; }
  /// Throws Error(bad_input) if no group begins at that layer.
  uint64_t column_of(Side side, int first_layer) const;
  std::string side_path(uint64_t column) const { return columns().path(column); }
  bool has_tokens() const { return layout(index_column()).own.size() > 1; }

  /// Where a part lies, as the table of parts says.
  PartPlace place(const PartName& name) const { return (*row(name.row))[name.side]; }
  /// Holds what the attribute kSharedParts says against the table.
  void check_first_row(const std::function<void(const Error& fault)>& fault) const;
  /// The whole table, row by row.
  std::vector<PartPlace> all_places() const;
  /// Throws Error(bad_input) for a place outside of /data.
  PartPlace check_place(uint64_t row, uint64_t column, const PartPlace& place) const;
  /// Opens a part: the streams of a document, or in row 0 those that all documents share.
  std::unique_ptr<Part> part(const PartName& name) const;
  /// The part of what all documents of a column share; opened once.
  const Part& shared_part(uint64_t column) const;

  /// The part of a document's tokens and positions; the last one asked for is kept.
  std::shared_ptr<const Part> index_part(size_t document) const;

  /// Bytes of all footers: what the parts have beyond their streams. Throws Error(bad_input) if parts overlap,
  /// or if those of a column are smaller or larger than the totals of its streams allow.
  uint64_t footer_bytes() const;

 private:
  using Row = std::vector<PartPlace>;  // of the table of parts

  void read_attributes();
  void read_layouts();
  void read_totals();
  void open_parts();
  std::shared_ptr<const Row> row(uint64_t number) const;
  Row read_row(uint64_t number) const;

  Columns columns_;
  std::optional<Row> first_row_;  // what the attribute kSharedParts says
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, std::shared_ptr<const Row>> rows_;           // the last ones read
  mutable std::map<uint64_t, std::unique_ptr<const Part>> shared_parts_;  // by column
  mutable std::shared_ptr<const Part> index_part_;
};

}  // namespace kvcodec
