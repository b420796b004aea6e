// The output of commands. Text for people: wrapped paragraphs, aligned tables, sizes and counts. JSON: the parts that several
// subcommands share; keys are stable, new ones may be added. Measures are declared once: the same list gives columns and cells of a
// table, and fields of JSON.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/frame/command.hpp"
#include "formats/cache/header.hpp"
#include "lib/core/names.hpp"
#include "lib/core/record.hpp"
#include "lib/metrics/next_token.hpp"

/// Enums are printed by their names, not by the numbers that the library would print.
template <kvcodec::NamedEnum E>
struct nlohmann::adl_serializer<E> {
  template <class AnyJson>
  static void to_json(AnyJson& json, E value) {
    json = kvcodec::name_of(value);
  }
};

namespace kvcodec::cli {

/// Text broken at spaces to `width` columns; lines after the first are indented. Line feeds stay, blank lines too. There is no line
/// feed at the end.
std::string wrapped(std::string_view text, size_t width, size_t indent);

/// Text for a terminal, on one line: control characters, and bytes that are not UTF-8, as \n, \t or \x1b.
std::string printable(std::string_view text);
/// A message in this form, without the passwords in URLs (shown_text). The middle of a very long one, which repeats what a user
/// or a file gave, is replaced by the number of its bytes.
std::string message_text(std::string_view text);

/// The parts of a list, empty ones too.
std::vector<std::string> split(std::string_view text, char separator);

/// "1,234,567"
inline std::string grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

/// "1 document", "2,000 documents"
inline std::string counted(uint64_t number, std::string_view what) {
  return fmt::format("{} {}{}", grouped(number), what, number == 1 ? "" : "s");
}

/// "0 B", "999 B", "1.5 MiB": at most three significant digits.
std::string size_text(uint64_t bytes);

/// "0.4 s", "12 s", "3 min 20 s", "2 h 5 min"
std::string time_text(double seconds);

/// A number with `digits` significant digits, in plain or exponential notation, whichever reads better; "-" if not a number.
std::string significant(double number, int digits);

/// "0-3,5" for ascending numbers.
std::string ranges_text(const std::vector<int>& numbers);

/// Columns of text: one or two header lines, a rule, rows. The first column is left-aligned, numbers are right-aligned.
class Table {
 public:
  struct Column {
    std::string title;
    std::string unit = {};   ///< second header line; empty = none
    bool left = false;       ///< left-aligned
    std::string group = {};  ///< a line above spans neighbours with the same group
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {
    if (!columns_.empty()) columns_[0].left = true;
  }

  /// As many cells as columns.
  void row(std::vector<std::string> cells) {
    cells.resize(columns_.size());
    for (std::string& cell : cells) cell = printable(cell);  // names come from files
    rows_.push_back(std::move(cells));
  }
  void rule() { rows_.emplace_back(); }

  /// All lines, each indented and with a line feed at the end, no trailing spaces.
  std::string text(size_t indent = 0) const;

 protected:
  std::vector<Column> columns_;

 private:
  std::vector<std::vector<std::string>> rows_;  ///< an empty one is a rule
};

// JSON, and measures

using Json = nlohmann::ordered_json;

Json to_json(const Record& record);
Json to_json(const ModelInfo& model);
Json to_json(const Documents& documents);
/// A mean and half of its 95% interval, which is null if there is only one document.
inline Json to_json(const Estimate& estimate) {
  return {{"mean", estimate.mean},
          {"half_width_95", std::isfinite(estimate.half_width) ? Json(estimate.half_width) : Json(nullptr)}};
}

/// Indented, with one line feed at the end. Numbers that are not finite become null; invalid UTF-8 is repaired.
std::string text_of(const Json& json);

/// The first fields of every result that other programs read (`kvcodec report`): the program, the time and the command line that
/// made it, in the form of files (FORMAT.md, "Every file").
inline Json made_by(const Command& command) {
  return {{"generator", generator()}, {"created", timestamp()}, {"command", command.history_line()}};
}

struct Measure {
  const char* key;            ///< of JSON; nullptr: only the table has it
  Json value = {};            ///< as JSON says it
  Table::Column column = {};  ///< without a title: only JSON has it
  std::string text = {};      ///< as the table says it
};
using Measures = std::vector<Measure>;

/// "1,234"
inline Measure number_of(const char* key, Table::Column column, uint64_t number) {
  return {key, number, std::move(column), grouped(number)};
}
/// With that many significant digits.
inline Measure rounded(const char* key, Table::Column column, double value, int digits) {
  return {key, value, std::move(column), significant(value, digits)};
}
/// With that many digits after the point; "-" if not a number.
inline Measure decimal(const char* key, Table::Column column, double value, int digits) {
  return {key, value, std::move(column), std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits)};
}
inline Measure word(const char* key, Table::Column column, std::string_view text) {
  return {key, text, std::move(column), std::string(text)};
}
inline Measure layers_measure(const std::vector<int>& layers) {
  return {"layers", layers, {"layers"}, ranges_text(layers)};
}
inline Measure time_measure(double seconds) { return {"seconds", seconds, {"time"}, time_text(seconds)}; }

inline Measures joined(Measures first, const Measures& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
/// The measures with these keys, in that order.
Measures only(const Measures& measures, std::initializer_list<std::string_view> keys);
/// Puts a common heading above the columns of these measures.
inline Measures grouped_as(const std::string& group, Measures measures) {
  for (Measure& measure : measures) measure.column.group = group;
  return measures;
}

Json json_of(const Measures& measures);
/// The result of a command as JSON, or as a table of one row.
std::string one_row(const Measures& measures, bool json);

/// A table whose rows, each under a label, are measures of the same kinds.
struct MeasureTable : Table {
  explicit MeasureTable(std::string label) : Table(std::vector<Column>{{std::move(label)}}) {}

  void row(std::string label, const Measures& measures) {
    if (columns_.size() == 1) columns(measures);
    std::vector<std::string> cells{std::move(label)};
    for (const Measure& measure : measures)
      if (!measure.column.title.empty()) cells.push_back(measure.text);
    Table::row(std::move(cells));
  }
  /// Sets the columns, for a table without rows.
  void columns(const Measures& measures) {
    for (const Measure& measure : measures)
      if (!measure.column.title.empty()) columns_.push_back(measure.column);
  }
};

}  // namespace kvcodec::cli
