#include "cli/frame/measures.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace kvcodec::cli {

Measure number_of(const char* key, Table::Column column, uint64_t number) {
  return {key, number, std::move(column), grouped(number)};
}

Measure rounded(const char* key, Table::Column column, double value, int digits) {
  return {key, value, std::move(column), significant(value, digits)};
}

Measure decimal(const char* key, Table::Column column, double value, int digits) {
  return {key, value, std::move(column), std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits)};
}

Measure word(const char* key, Table::Column column, std::string_view text) {
  return {key, text, std::move(column), std::string(text)};
}

Measure layers_measure(const std::vector<int>& layers) {
  return {"layers", layers, {"layers"}, ranges_text(layers)};
}

Measure time_measure(double seconds) { return {"seconds", seconds, {"time"}, time_text(seconds)}; }

Measures joined(Measures first, const Measures& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Measures only(const Measures& measures, std::initializer_list<std::string_view> keys) {
  Measures chosen;
  for (const std::string_view key : keys)
    std::ranges::copy_if(measures, std::back_inserter(chosen),
                         [&](const Measure& measure) { return measure.key && measure.key == key; });
  return chosen;
}

Measures grouped_as(const std::string& group, Measures measures) {
  for (Measure& measure : measures) measure.column.group = group;
  return measures;
}

Json json_of(const Measures& measures) {
  Json json = Json::object();
  for (const Measure& measure : measures)
    if (measure.key) json[measure.key] = measure.value;
  return json;
}

std::string one_row(const Measures& measures, bool json) {
  if (json) return text_of(json_of(measures));
  std::vector<Table::Column> columns;
  std::vector<std::string> cells;
  for (const Measure& measure : measures)
    if (!measure.column.title.empty()) columns.push_back(measure.column), cells.push_back(measure.text);
  Table table(columns);
  table.row(cells);
  return table.text();
}

void MeasureTable::row(std::string label, const Measures& measures) {
  const bool first = rows_.empty();
  std::vector<std::string> cells{std::move(label)};
  for (const Measure& measure : measures) {
    if (measure.column.title.empty()) continue;
    if (first) columns_.push_back(measure.column);
    cells.push_back(measure.text);
  }
  rows_.push_back(std::move(cells));
}

std::string MeasureTable::text() const {
  Table table(columns_);
  for (const auto& row : rows_) row.empty() ? table.rule() : table.row(row);
  return table.text();
}

}  // namespace kvcodec::cli
