// Text for people: wrapped paragraphs, aligned tables, sizes and counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcodec::cli {

/// Text broken at spaces to `width` columns; lines after the first are indented. Line feeds in it stay, blank
/// lines too. No line feed at the end.
std::string wrapped(std::string_view text, size_t width, size_t indent);

/// Every line moved right; ends with a line feed.
std::string indented(std::string_view text, size_t columns);

/// Text for a terminal, on one line: control characters, and bytes that are not UTF-8, as \n, \t or \x1b.
std::string printable(std::string_view text);

/// The parts of a list, empty ones too.
std::vector<std::string> split(std::string_view text, char separator);

/// "1,234,567"
std::string grouped(uint64_t number);

/// "1 document", "2,000 documents"
std::string counted(uint64_t number, std::string_view what);

/// "0 B", "999 B", "1.5 MiB": three significant digits at most.
std::string size_text(uint64_t bytes);

/// "0.4 s", "12 s", "3 min 20 s", "2 h 5 min"
std::string time_text(double seconds);

/// A number with `digits` significant digits, in plain or exponential notation, whichever reads better; "-"
/// if not a number.
std::string significant(double number, int digits);

/// "0-3,5" for ascending numbers.
std::string ranges_text(const std::vector<int>& numbers);

/// Columns of text: a header line or two, a rule, rows. Numbers stand right, the first column left.
class Table {
 public:
  struct Column {
    std::string title;
    std::string unit = {};   ///< second header line; empty = none
    bool left = false;       ///< left-aligned
    std::string group = {};  ///< a line above spans neighbours with the same group
  };
  explicit Table(std::vector<Column> columns);

  /// As many cells as columns.
  void row(std::vector<std::string> cells);
  void rule();

  /// All lines, each indented and with a line feed at the end, no trailing spaces.
  std::string text(size_t indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  ///< an empty one is a rule
};

}  // namespace kvcodec::cli
