// What reading and writing codes files share: the objects of such a file and the reader's insides. Inside
// formats/ only.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/codes_file.hpp"
#include "formats/h5.hpp"
#include "formats/part.hpp"
#include "formats/stream_layout.hpp"

namespace kvcodec {

inline constexpr char kDataPath[] = "/data";  ///< u8: all parts, in any order
inline constexpr char kPartsPath[] =
    "/parts";  ///< u64 [documents + 1, sides, 2]: where each part begins, its size
inline constexpr char kTotalsPath[] = "/totals";  ///< u64 [streams of all sides, 2]: rows, bytes
inline constexpr char kBookPath[] = "/book";
inline constexpr char kIndexCategory[] = "index";  ///< of tokens and positions, in the last layout
inline constexpr char kTokens[] = "tokens", kPositions[] = "positions";

/// One side of one group: the number of its column in the table of parts.
inline uint64_t side_number(size_t group, Side side) { return 2 * group + (side == Side::value); }

/// Columns of the table of parts: the sides, and behind them that of tokens and positions.
inline uint64_t columns_of(size_t groups) { return 2 * groups + 1; }

/// A side's streams: as they are listed, and apart, as they lie in parts.
struct SideLayout {
  Layout all, own, shared;  ///< own: of each document; shared: of all of them together

  SideLayout() = default;
  explicit SideLayout(Layout layout) : all(std::move(layout)) {
    for (const StoredSpec& stream : all) (stream.spec.shared ? shared : own).push_back(stream);
  }
};

/// Tokens and positions as they are stored.
Layout index_layout(bool has_tokens, DType position_type);

GroupShape shape_of(const CodesInfo& info, int first_layer, Side side);

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

  size_t columns() const { return layout_number.size(); }
  uint64_t index_column() const { return columns() - 1; }
  const SideLayout& layout(uint64_t column) const { return layouts[layout_number[column]]; }
  /// Throws Error(bad_input) if no group begins at that layer.
  uint64_t column_of(Side side, int first_layer) const;
  std::string side_path(uint64_t column) const;

  /// Streams of a document of that column; row 0: those of all documents.
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
  PartPlace check_place(uint64_t row, uint64_t column, const PartPlace& place) const;

  mutable std::mutex mutex_;
  mutable std::map<uint64_t, std::shared_ptr<const Row>> rows_;           // the last ones read
  mutable std::map<uint64_t, std::unique_ptr<const Part>> shared_parts_;  // by column
  mutable std::shared_ptr<const Part> index_part_;
};

}  // namespace kvcodec
