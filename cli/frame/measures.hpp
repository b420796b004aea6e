// Measures of a command, declared once: the same list gives columns and cells of its table, and fields of its JSON.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/json.hpp"
#include "cli/frame/text.hpp"

namespace kvcodec::cli {

struct Measure {
  const char* key;            ///< of JSON; nullptr: only the table has it
  Json value = {};            ///< as JSON says it
  Table::Column column = {};  ///< without a title: only JSON has it
  std::string text = {};      ///< as the table says it
};
using Measures = std::vector<Measure>;

/// "1,234"
Measure number_of(const char* key, Table::Column column, uint64_t number);
/// With so many significant digits.
Measure rounded(const char* key, Table::Column column, double value, int digits);
/// With so many digits behind the point; "-" if not a number.
Measure decimal(const char* key, Table::Column column, double value, int digits);
Measure word(const char* key, Table::Column column, std::string_view text);
Measure layers_measure(const std::vector<int>& layers);
Measure time_measure(double seconds);

Measures joined(Measures first, const Measures& second);
/// Those with these keys, in that order.
Measures only(const Measures& measures, std::initializer_list<std::string_view> keys);
/// With a line above their columns that all of them share.
Measures grouped_as(const std::string& group, Measures measures);

Json json_of(const Measures& measures);
/// The result of a command as JSON, or as a table of one row.
std::string one_row(const Measures& measures, bool json);

/// A table whose rows, each under a label, are measures of the same kinds.
class MeasureTable {
 public:
  explicit MeasureTable(std::string label) : columns_{{std::move(label)}} {}

  void row(std::string label, const Measures& measures);
  void rule() { rows_.emplace_back(); }
  std::string text() const;

 private:
  std::vector<Table::Column> columns_;
  std::vector<std::vector<std::string>> rows_;  ///< an empty one is a rule
};

}  // namespace kvcodec::cli
