#include "cli/frame/text.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lib/tokenizer/unicode.hpp"

namespace kvcodec::cli {
namespace {

/// Columns a UTF-8 text takes; wide characters are counted as one.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

std::string without_trailing_space(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t end = text.find_first_of(" \n");
    const std::string_view word = text.substr(0, end);
    if (column > 0 && column + 1 + word.size() > width && !word.empty()) {
      out += '\n';
      out.append(indent, ' ');
      column = 0;
    }
    if (!word.empty()) {
      if (column > 0) out += ' ', ++column;
      out += word;
      column += word.size();
    }
    if (end == std::string_view::npos) break;
    if (text[end] == '\n') {
      out += "\n";
      if (end + 1 < text.size() && text[end + 1] != '\n') out.append(indent, ' ');
      column = 0;
    }
    text.remove_prefix(end + 1);
  }
  return out;
}

std::string indented(std::string_view text, size_t columns) {
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!line.empty()) out.append(columns, ' ').append(line);
    out += '\n';
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    for (size_t i = 0; i < std::max<size_t>(good, 1); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      // U+0080 to U+009F are control characters too: 0xc2 and one of these.
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

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string counted(uint64_t number, std::string_view what) {
  return fmt::format("{} {}{}", grouped(number), what, number == 1 ? "" : "s");
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

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  if (!columns_.empty()) columns_[0].left = true;
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = printable(cell);  // names come from files
  rows_.push_back(std::move(cells));
}

void Table::rule() { rows_.emplace_back(); }

std::string Table::text(size_t indent) const {
  constexpr size_t kGap = 2;
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(std::max(width_of(columns_[c].title), width_of(columns_[c].unit)));
    for (const auto& row : rows_)
      if (!row.empty()) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  size_t total = 0;
  for (const size_t width : widths) total += width + kGap;
  if (total >= kGap) total -= kGap;

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

}  // namespace kvcodec::cli
