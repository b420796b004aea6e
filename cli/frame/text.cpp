#include "cli/frame/text.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "formats/io/http.hpp"
#include "kvcodec/version.hpp"
#include "lib/tokenizer/unicode.hpp"

namespace kvcodec::cli {

/// Columns that a UTF-8 text takes; a wide character counts as one.
static size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

static std::string padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

static std::string without_trailing_space(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  const std::string margin(indent, ' ');
  std::string out;
  for (bool first = true; const std::string& line : split(text, '\n')) {
    if (!first) out += line.empty() ? "\n" : "\n" + margin;
    first = false;
    size_t column = 0;
    for (const std::string& word : split(line, ' ')) {
      if (word.empty()) continue;
      if (column > 0 && column + 1 + word.size() > width) out += "\n" + margin, column = 0;
      if (column > 0) out += ' ', ++column;
      out += word;
      column += word.size();
    }
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    for (size_t i = 0; i < std::max<size_t>(good, 1); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      // U+0080 to U+009F are control characters too: 0xc2 and one of these bytes.
      const bool second_control =
          byte == 0xc2 && i + 1 < good && static_cast<unsigned char>(text[i + 1]) < 0xa0;
      if (text[i] == '\n')
        out += "\\n";
      else if (text[i] == '\t')
        out += "\\t";
      else if (byte < 0x20 || byte == 0x7f || good == 0)
        out += fmt::format("\\x{:02x}", byte);
      else if (second_control)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
      else
        out += text[i];
    }
    text.remove_prefix(std::max<size_t>(good, 1));
  }
  return out;
}

std::string message_text(std::string_view text) {
  constexpr size_t kMax = 8192, kEnd = 1024;
  std::string line = printable(shown_text(text));
  if (line.size() <= kMax) return line;
  size_t begin = kEnd, end = line.size() - kEnd;
  while (is_utf8_tail(line[begin])) ++begin;
  while (is_utf8_tail(line[end])) ++end;
  return fmt::format("{} ({} bytes left out) {}", line.substr(0, begin), end - begin, line.substr(end));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (size >= 1000 && unit + 1 < std::size(kUnits)) size /= 1024, ++unit;
  return fmt::format("{:.{}f} {}", size, size < 9.995 ? 2 : size < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string time_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string significant(double number, int digits) {
  if (std::isnan(number)) return "-";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  if (number == 0) return "0";
  const double magnitude = std::floor(std::log10(std::fabs(number)));
  if (magnitude < -4 || magnitude > 7) return fmt::format("{:.{}e}", number, digits - 1);
  return fmt::format("{:.{}f}", number, std::max(0, digits - 1 - static_cast<int>(magnitude)));
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    if (!out.empty()) out += ",";
    out += i == j ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[j]);
    i = j + 1;
  }
  return out;
}

std::string Table::text(size_t indent) const {
  constexpr size_t kGap = 2;
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(std::max(width_of(columns_[c].title), width_of(columns_[c].unit)));
    for (const auto& row : rows_)
      if (!row.empty()) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  size_t total = kGap * (std::max<size_t>(columns_.size(), 1) - 1);
  for (const size_t width : widths) total += width;

  const std::string margin(indent, ' ');
  std::string out;
  const auto line = [&](auto cell) {
    std::string text = margin;
    for (size_t c = 0; c < columns_.size(); ++c)
      text.append(c ? kGap : 0, ' ').append(padded(cell(c), widths[c], columns_[c].left));
    out += without_trailing_space(text) + "\n";
  };
  const auto any = [&](auto member) {
    return std::any_of(columns_.begin(), columns_.end(),
                       [&](const Column& c) { return !(c.*member).empty(); });
  };
  if (any(&Column::group)) {
    std::string text = margin;
    for (size_t c = 0; c < columns_.size();) {
      size_t end = c, width = 0;
      for (; end < columns_.size() && columns_[end].group == columns_[c].group; ++end)
        width += widths[end] + (end > c ? kGap : 0);
      std::string title = columns_[c].group;
      if (!title.empty() && width_of(title) + 2 < width) {  // "--- keys ---" over its columns
        const size_t dashes = width - width_of(title) - 2;
        title = fmt::format("{} {} {}", std::string(dashes / 2, '-'), title,
                            std::string(dashes - dashes / 2, '-'));
      }
      text.append(c ? kGap : 0, ' ').append(padded(title, width, true));
      c = end;
    }
    out += without_trailing_space(text) + "\n";
  }
  line([&](size_t c) { return columns_[c].title; });
  if (any(&Column::unit)) line([&](size_t c) { return columns_[c].unit; });
  for (const auto& row : rows_) {
    if (row.empty())
      out.append(margin).append(total, '-').append("\n");
    else
      line([&](size_t c) { return row[c]; });
  }
  return out;
}

// JSON, and measures ---------------------------------------------------------------------------------

/// The version of the schema of all results that --json prints; it increases when a key is removed or changes its meaning.
static constexpr int kResultSchema = 1;

Json to_json(const Record& record) {
  Json json = Json::object();
  for (const auto& [name, value] : record.items())
    std::visit([&json, &key = name](const auto& v) { json[key] = v; }, value);
  return json;
}

Json to_json(const ModelInfo& model) {
  Json json = {{"model", model.model},
               {"num_layers", model.num_layers},
               {"num_q_heads", model.num_q_heads},
               {"num_kv_heads", model.num_kv_heads},
               {"head_dim", model.head_dim},
               {"rope_theta", model.rope_theta},
               {"rope_scaling", model.rope_scaling},
               {"key_state", model.key_state},
               {"source", model.source}};
  for (int layer = 0; layer < model.num_layers && !model.one_shape(); ++layer) {
    const LayerShape shape = model.layer_shape(layer);
    json["layer_shapes"].push_back({{"layer", layer},
                                    {"heads", shape.heads},
                                    {"key_dim", shape.key_dim},
                                    {"value_dim", shape.value_dim},
                                    {"values_in_keys", shape.values_in_keys},
                                    {"source", shape.source < 0 ? Json(nullptr) : Json(shape.source)}});
  }
  if (!model.family.empty()) json["family"] = model.family;
  if (!model.imported.empty()) json["imported"] = model.imported;
  if (!model.scores.empty()) json["scores"] = Json::parse(model.scores);
  return json;
}

Json to_json(const Documents& documents) {
  Json json = Json::array();
  for (size_t i = 0; i < documents.count(); ++i)
    json.push_back({{"name", documents.names[i]}, {"tokens", documents.length(i)}});
  return json;
}

std::string text_of(const Json& json) {
  // The versions of the schema and of the program come first.
  Json whole = json;
  if (whole.is_object()) {
    whole = {{"schema", kResultSchema}, {"program_version", kVersion}};
    whole.update(json);
  }
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Measures only(const Measures& measures, std::initializer_list<std::string_view> keys) {
  Measures chosen;
  for (const std::string_view key : keys)
    std::ranges::copy_if(measures, std::back_inserter(chosen),
                         [&](const Measure& measure) { return measure.key && measure.key == key; });
  return chosen;
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

}  // namespace kvcodec::cli
