#include "cli/reporting/svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "cli/frame/text.hpp"

namespace kvcodec::cli {
namespace {

// In units of the drawing, which is scaled to the page.
constexpr double kWidth = 480, kLeft = 62, kRight = 12, kTop = 50, kHeight = 290, kBelow = 42;
constexpr double kLine = 17;         ///< from one line of text to the next
constexpr double kLetter = 6.4;      ///< a letter of 12 units in the wider fonts of systems
constexpr size_t kNoteLetters = 82;  ///< of 11 units, in a line
constexpr double kHeatLeft = 124, kRowHeight = 20;

/// A class of elements: what it paints and in which colours.
struct Paint {
  const char *name, *light, *dark;
};
/// Okabe and Ito's colours without yellow, which white paper swallows; colour-blind readers can tell them
/// apart. On dark paper they are lighter.
constexpr Paint kColors[kMarkerColors] = {{"c0", "#0072b2", "#3f95e8"}, {"c1", "#d55e00", "#f47c3c"},
                                          {"c2", "#009e73", "#1fbf92"}, {"c3", "#cc79a7", "#e29cc3"},
                                          {"c4", "#56b4e9", "#9bd8ff"}, {"c5", "#e69f00", "#f5bc3d"},
                                          {"c6", "#111111", "#f4f4f4"}};
constexpr Paint kFills[] = {{"paper", "#ffffff", "#17191d"},
                            {"band", "#eef2f8", "#22262e"},
                            {"ink", "#1d1f23", "#e8e8e6"},
                            {"soft", "#565b64", "#a9aeb8"}};
constexpr Paint kStrokes[] = {{"grid", "#dfe1e5", "#33373f"}, {"axis", "#6a6f78", "#8b919c"}};

std::string styles_of(bool dark) {
  std::string css;
  const auto color = [&](const Paint& paint) { return dark ? paint.dark : paint.light; };
  const char* const paper = color(kFills[0]);
  for (const Paint& paint : kFills) css += fmt::format(".{}{{fill:{}}}", paint.name, color(paint));
  for (const Paint& paint : kStrokes) css += fmt::format(".{}{{stroke:{}}}", paint.name, color(paint));
  for (const Paint& paint : kColors)  // a rim of paper keeps markers apart that lie on each other
    css += fmt::format(
        ".{0}{{fill:{1};stroke:{2}}}.{0}.line{{fill:none;stroke:{1}}}.{0}.hollow{{fill:{2};stroke:{1}}}",
        paint.name, color(paint), paper);
  return css;
}

double text_width(std::string_view text, double size = 12) {
  const auto letters = std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
  return static_cast<double>(letters) * kLetter * size / 12;
}

/// As much of a text as there is room for; its head, with dots if something is missing.
std::string elided(const std::string& text, double room, double size = 12) {
  if (text_width(text, size) <= room) return text;
  const double least = room - text_width("…", size);
  std::string out;
  for (size_t end = 0; end < text.size();) {
    do ++end;
    while (end < text.size() && (text[end] & 0xc0) == 0x80);
    if (text_width(text.substr(0, end), size) > least) break;
    out = text.substr(0, end);
  }
  return out + "…";
}

std::string head(double height, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n",
      kWidth, height, escaped_markup(title));
}

std::string background(double height) {
  return fmt::format("<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", kWidth, height);
}

struct TextStyle {
  const char* anchor = "middle";
  const char* name = "ink";
  std::string more = {};
};

std::string text_at(double x, double y, const std::string& text, const TextStyle& style = {}) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n",
                     style.name, x, y, style.anchor, style.more, escaped_markup(text));
}

std::string title_text(const std::string& title) {
  return text_at(12, 20, elided(title, kWidth - 24, 14),
                 {"start", "ink", " font-size=\"14\" font-weight=\"600\""});
}

std::string line(double x1, double y1, double x2, double y2, const std::string& name,
                 const std::string& more = "") {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"{}/>\n", name,
                     x1, y1, x2, y2, more);
}

std::string color_of(const Marker& marker) { return kColors[marker.color % kMarkerColors].name; }

/// Around (0, 0), all of about the same weight.
constexpr std::array<const char*, kMarkerShapes> kShapes = {
    "M-4.8 0a4.8 4.8 0 1 0 9.6 0a4.8 4.8 0 1 0 -9.6 0z",  // disc
    "M-4.3 -4.3h8.6v8.6h-8.6z",
    "M0 -5.8l5.5 9.6h-11z",
    "M0 -6l6 6l-6 6l-6 -6z",
    "M0 5.8l5.5 -9.6h-11z",
    "M-1.9 -5.6h3.8v3.7h3.7v3.8h-3.7v3.7h-3.8v-3.7h-3.7v-3.8h3.7z",  // plus
    "M0 -2.7l3.1 -3.1l2.7 2.7l-3.1 3.1l3.1 3.1l-2.7 2.7l-3.1 -3.1l-3.1 3.1l-2.7 -2.7l3.1 -3.1l-3.1 -3.1l2.7 -2.7z",
    "M-2.4 -5.4h4.8l2.9 5.4l-2.9 5.4h-4.8l-2.9 -5.4z"};  // hexagon

std::string shape_at(const Marker& marker, double x, double y) {
  return fmt::format(
      "<path class=\"{}{}\" stroke-width=\"{}\" transform=\"translate({:.1f} {:.1f})\" d=\"{}\"/>",
      color_of(marker), marker.hollow ? " hollow" : "", marker.hollow ? 1.8 : 0.9, x, y,
      kShapes[marker.shape % kMarkerShapes]);
}

/// The points of a plot that can be drawn, and where.
class Frame {
 public:
  explicit Frame(const Plot& plot)
      : x_(plot.x, values_of(plot, true)), y_(plot.y, values_of(plot, false), plot.linear) {}

  static bool shown(const Plot& plot, const PlotPoint& point) {
    return std::isfinite(point.x) && std::isfinite(point.y) && (plot.x != Scale::rate || point.x > 0);
  }
  const Axis& x_axis() const { return x_; }
  const Axis& y_axis() const { return y_; }
  double x(double value) const { return kLeft + x_.place(value) * (kWidth - kLeft - kRight); }
  double y(double value) const { return y_at(y_.place(value)); }
  static double y_at(double place) { return kTop + (1 - place) * kHeight; }

 private:
  /// What the axis must reach. A logarithmic one goes a decade below the lowest point, no further: the lower
  /// ends of intervals come as near to 0 as they like.
  static std::vector<double> values_of(const Plot& plot, bool x) {
    std::vector<double> values, ends;
    for (const PlotSeries& series : plot.series)
      for (const PlotPoint& point : series) {
        if (!shown(plot, point)) continue;
        values.push_back(x ? point.x : point.y);
        ends.push_back(point.low.value_or(point.y));
        ends.push_back(point.high.value_or(point.y));
      }
    if (x) return values;
    if (plot.y == Scale::log) {
      double lowest = INFINITY;
      for (const double value : values)
        if (value > 0) lowest = std::min(lowest, value);
      std::erase_if(ends, [&](double end) { return !(end >= lowest / 10); });
    }
    values.insert(values.end(), ends.begin(), ends.end());
    return values;
  }

  Axis x_, y_;
};

std::string x_axis(const Plot& plot, const Frame& frame) {
  std::string out;
  const double bottom = kTop + kHeight, right = kWidth - kRight;
  for (const double tick : frame.x_axis().ticks(0.085)) {
    out += line(frame.x(tick), kTop, frame.x(tick), bottom, "grid");
    out += text_at(frame.x(tick), bottom + 16, tick_text(tick));
  }
  return out + text_at((kLeft + right) / 2, bottom + 34, plot.x_label, {.name = "soft"});
}

/// A label of the axis of y; its value stands beside it as data, for who reads the plot by program.
std::string y_tick(const Frame& frame, double tick) {
  const double y = frame.y(tick);
  return line(kLeft, y, kWidth - kRight, y, tick == 0 ? "axis" : "grid") +
         text_at(
             kLeft - 7, y + 4, tick_text(tick),
             {.anchor = "end", .more = fmt::format(" data-tick=\"{:.17g}\" data-at=\"{:.1f}\"", tick, y)});
}

/// The strip for what is not positive, set off from the logarithmic axis.
std::string strip(const Plot& plot, const Frame& frame) {
  if (!frame.y_axis().has_strip()) return {};
  bool negative = false;
  for (const PlotSeries& series : plot.series)
    for (const PlotPoint& point : series) negative |= Frame::shown(plot, point) && point.y < 0;
  const double top = Frame::y_at(frame.y_axis().strip());
  return line(kLeft, top, kWidth - kRight, top, "axis", " stroke-dasharray=\"4 3\"") +
         text_at(kLeft - 7, Frame::y_at(frame.y_axis().strip_middle()) + 4, negative ? "0 or less" : "0",
                 {.anchor = "end"});
}

std::string band(const Plot& plot, const Frame& frame) {
  if (plot.y != Scale::symlog) return {};
  const double top = frame.y(plot.linear), bottom = frame.y(-plot.linear);
  return fmt::format(
      "<rect class=\"band\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" data-linear=\"{:.17g}\"/>\n",
      kLeft, top, kWidth - kRight - kLeft, bottom - top, plot.linear);
}

std::string axes(const Plot& plot, const Frame& frame) {
  const double bottom = kTop + kHeight;
  std::string out = band(plot, frame) + x_axis(plot, frame);
  for (const double tick : frame.y_axis().ticks(0.06)) out += y_tick(frame, tick);
  out += strip(plot, frame);
  out += line(kLeft, bottom, kWidth - kRight, bottom, "axis") + line(kLeft, kTop, kLeft, bottom, "axis");
  return out + text_at(12, 39, plot.y_label, {.anchor = "start", .name = "soft"});
}

/// The interval, with a bar at each end that is on the plot and a point of an arrow where it goes on.
std::string interval(const Frame& frame, const PlotPoint& point) {
  if (!point.low || !point.high) return {};
  const std::string name = color_of(point.marker) + " line", width = " stroke-width=\"1.3\"";
  const double x = frame.x(point.x), high = frame.y(*point.high);
  // What stands in the strip has its interval there too; from elsewhere 0 is out of reach.
  const bool within = *point.low > 0 || point.y <= 0 || frame.y_axis().scale() != Scale::log;
  const bool ends = within && frame.y_axis().holds(*point.low);
  const double low = ends ? frame.y(*point.low) : Frame::y_at(0) - 1;
  std::string out = line(x, low, x, high, name, width) + line(x - 3.5, high, x + 3.5, high, name, width);
  if (ends) return out + line(x - 3.5, low, x + 3.5, low, name, width);
  return out + line(x - 4, low - 5, x, low, name, width) + line(x + 4, low - 5, x, low, name, width);
}

std::string interval_text(const PlotPoint& point) {
  if (!point.low || !point.high) return {};
  return fmt::format(" (95%: {:.4g} to {:.4g})", *point.low, *point.high);
}

std::string point_text(const Plot& plot, const PlotPoint& point) {
  std::string text = point.label;
  if (plot.x == Scale::rate) text += fmt::format(": {:.3f} bits", point.x);
  text += fmt::format("{} {:.4g}{}", plot.x == Scale::rate ? "," : ":", point.y, interval_text(point));
  return point.about.empty() ? text : text + "; " + point.about;
}

std::string point_data(const Frame& frame, const PlotPoint& point) {
  std::string out = fmt::format(" data-y=\"{:.17g}\" data-at=\"{:.1f}\"", point.y, frame.y(point.y));
  if (point.low && point.high)
    out += fmt::format(" data-low=\"{:.17g}\" data-high=\"{:.17g}\"", *point.low, *point.high);
  return out;
}

/// One colour where all points have it; else a grey.
std::string path_of(const Frame& frame, const PlotSeries& series) {
  if (series.size() < 2) return {};
  std::string path;
  bool same = true;
  for (const PlotPoint& point : series) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", frame.x(point.x), frame.y(point.y));
    same &= point.marker.color == series[0].marker.color && point.marker.hollow == series[0].marker.hollow;
  }
  return fmt::format("<path class=\"{}\" d=\"{}\" fill=\"none\" stroke-width=\"1.2\" opacity=\"0.6\"/>\n",
                     same ? color_of(series[0].marker) + " line" : "axis", path);
}

std::string drawn(const Plot& plot, const Frame& frame) {
  std::string lines, intervals, points;
  for (PlotSeries series : plot.series) {
    std::erase_if(series, [&](const PlotPoint& point) { return !Frame::shown(plot, point); });
    std::ranges::stable_sort(series, {}, &PlotPoint::x);
    lines += path_of(frame, series);
    for (const PlotPoint& point : series) {
      intervals += interval(frame, point);
      points +=
          fmt::format("<g data-label=\"{}\"{}>{}<title>{}</title></g>\n", escaped_markup(point.label),
                      point_data(frame, point), shape_at(point.marker, frame.x(point.x), frame.y(point.y)),
                      escaped_markup(point_text(plot, point)));
    }
  }
  return lines + intervals + points;
}

/// Below the plot, in as many columns as the longest label leaves. Moves y below itself.
std::string legend_of(const std::vector<LegendEntry>& legend, double& y) {
  if (legend.empty()) return {};
  constexpr double kSign = 20, kGap = 12, kAll = kWidth - 24;
  double widest = 0;
  for (const LegendEntry& entry : legend) widest = std::max(widest, text_width(entry.label) + kSign + kGap);
  const auto columns = static_cast<size_t>(std::clamp(std::floor(kAll / widest), 1.0, 6.0));
  const double width = kAll / static_cast<double>(columns);
  std::string out;
  // Down the columns, as one reads a list.
  const size_t rows = (legend.size() + columns - 1) / columns;
  for (size_t i = 0; i < legend.size(); ++i) {
    const size_t column = i / rows, row = i % rows;
    const double x = 18 + static_cast<double>(column) * width, at = y + static_cast<double>(row) * kLine;
    out += shape_at(legend[i].marker, x, at - 4) +
           text_at(x + 11, at, elided(legend[i].label, width - kSign), {.anchor = "start"});
  }
  y += static_cast<double>(rows) * kLine + 4;
  return out;
}

std::string note_lines(const std::string& note, double& y) {
  if (note.empty()) return {};
  const std::string text = wrapped(note, kNoteLetters, 0);
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += text_at(12, y, text.substr(begin, end - begin),
                   {.anchor = "start", .name = "soft", .more = " font-size=\"11\""});
    y += 15;
    begin = end + 1;
  }
  return out;
}

struct Drawing {
  double height = 0;
  std::string inside, title;
};

Drawing draw(const Plot& plot) {
  const Frame frame(plot);
  std::string inside = title_text(plot.title) + axes(plot, frame) + drawn(plot, frame);
  double y = kTop + kHeight + kBelow + 16;
  inside += legend_of(plot.legend, y);
  inside += note_lines(plot.note, y);
  return {y, std::move(inside), plot.title};
}

/// Of 0..1: dark red, pale, dark blue.
std::string heat_color(double place) {
  constexpr double kStops[5][3] = {
      {165, 32, 38}, {244, 139, 92}, {250, 246, 228}, {120, 180, 214}, {34, 82, 148}};
  const double scaled = std::clamp(place, 0.0, 1.0) * 4;
  const auto at = std::min<size_t>(3, static_cast<size_t>(scaled));
  std::array<int, 3> color{};
  for (size_t c = 0; c < 3; ++c)
    color[c] = static_cast<int>(std::lround(kStops[at][c] + (scaled - static_cast<double>(at)) *
                                                                (kStops[at + 1][c] - kStops[at][c])));
  return fmt::format("#{:02x}{:02x}{:02x}", color[0], color[1], color[2]);
}

/// What the cells of a map share.
struct HeatFrame {
  double low = INFINITY, high = -INFINITY, cell = 0;

  explicit HeatFrame(const HeatMap& map) {
    for (const HeatRow& row : map.rows)
      for (const double value : row.values)
        if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    if (!(low <= high)) low = 0, high = 1;
    cell = std::min(60.0,
                    (kWidth - kHeatLeft - 12) / static_cast<double>(std::max<size_t>(map.columns.size(), 1)));
  }
  double place(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
  double x(size_t column) const { return kHeatLeft + static_cast<double>(column) * cell; }
  bool with_numbers() const { return cell >= 32; }
};

std::string heat_cell(const HeatMap& map, const HeatFrame& frame, const HeatRow& row, size_t column,
                      double y) {
  const double value = row.values[column], place = frame.place(value), x = frame.x(column);
  const bool finite = std::isfinite(value);
  const std::string where = column < map.columns.size() ? ", " + map.columns[column] : "";
  const std::string what = finite ? fmt::format("{:.2f} {}", value, map.unit) : "no finite number";
  std::string out = fmt::format(
      "<g><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/><title>{}</title>",
      x, y, frame.cell - (frame.with_numbers() ? 1 : 0), kRowHeight - 1,
      finite ? heat_color(place) : "#9a9a9a", escaped_markup(row.label + where + ": " + what));
  if (frame.with_numbers())
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{}\">{}</text>",
        x + frame.cell / 2, y + 14, finite && (place < 0.2 || place > 0.8) ? "#fff" : "#222",
        finite ? fmt::format("{:.1f}", value) : "-");
  return out + "</g>\n";
}

/// As many as there is room for, evenly.
std::string heat_columns(const HeatMap& map, const HeatFrame& frame) {
  double widest = 0;
  for (const std::string& column : map.columns) widest = std::max(widest, text_width(column, 11) + 4);
  size_t step = 1;
  while (static_cast<double>(step) * frame.cell < widest && step < map.columns.size()) step *= 2;
  std::string out;
  for (size_t c = 0; c < map.columns.size(); c += step)
    out += text_at(frame.x(c) + frame.cell / 2, 44, map.columns[c],
                   {.name = "soft", .more = " font-size=\"11\""});
  return out;
}

std::string heat_scale(const HeatMap& map, const HeatFrame& frame, double y) {
  constexpr int kSteps = 40;
  std::string out;
  for (int i = 0; i < kSteps; ++i)
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"4\" height=\"10\" fill=\"{}\"/>",
                       kHeatLeft + i * 4.0, y + 10, heat_color((i + 0.5) / kSteps));
  return out +
         text_at(kHeatLeft - 8, y + 19, fmt::format("{:.1f} {}", frame.low, map.unit), {.anchor = "end"}) +
         text_at(kHeatLeft + kSteps * 4 + 8, y + 19, fmt::format("{:.1f} {}", frame.high, map.unit),
                 {.anchor = "start"});
}

}  // namespace

std::string escaped_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string svg_of(const Plot& plot) {
  const Drawing drawing = draw(plot);
  return head(drawing.height, drawing.title) + background(drawing.height) + drawing.inside + "</svg>\n";
}

std::string svg_file(const Plot& plot) {
  const Drawing drawing = draw(plot);
  return head(drawing.height, drawing.title) + "<style>\n" + drawing_style() + "</style>\n" +
         background(drawing.height) + drawing.inside + "</svg>\n";
}

std::string svg_of(const HeatMap& map) {
  const HeatFrame frame(map);
  const double height = 52 + kRowHeight * static_cast<double>(map.rows.size()) + 32;
  std::string out =
      head(height, map.title) + background(height) + title_text(map.title) + heat_columns(map, frame);
  double y = 52;
  for (const HeatRow& row : map.rows) {
    out += text_at(kHeatLeft - 8, y + 14, elided(row.label, kHeatLeft - 14), {.anchor = "end"});
    for (size_t c = 0; c < row.values.size(); ++c) out += heat_cell(map, frame, row, c, y);
    y += kRowHeight;
  }
  return out + heat_scale(map, frame, y) + "</svg>\n";
}

std::string svg_of(const Marker& marker) {
  return "<svg class=\"sign\" viewBox=\"-7 -7 14 14\" width=\"14\" height=\"14\" aria-hidden=\"true\">" +
         shape_at(marker, 0, 0) + "</svg>";
}

std::string drawing_style() {
  return styles_of(false) + "\n@media (prefers-color-scheme: dark){" + styles_of(true) + "}\n";
}

}  // namespace kvcodec::cli
