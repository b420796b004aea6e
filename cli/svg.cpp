#include "cli/svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace kvcodec::cli {
namespace {

// In units of the drawing, which is scaled to the page.
constexpr double kWidth = 760, kHeight = 430, kLeft = 74, kRight = 190, kTop = 38, kBottom = 52;
constexpr double kRowHeight = 20, kHeatLeft = 170;

/// Okabe and Ito's colours, which colour-blind readers can tell apart, and two more.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9",
                                "#e69f00", "#000000", "#8c564b", "#7f7f7f", "#5c3d99"};

std::string head(double width, double height, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n"
      "<text x=\"12\" y=\"20\" font-size=\"15\" font-weight=\"600\" fill=\"#222\">{}</text>\n",
      width, height, escaped_markup(title), width, height, escaped_markup(title));
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"#333\"{}>{}</text>\n", x, y,
                     anchor, more, escaped_markup(text));
}

std::string line(double x1, double y1, double x2, double y2, const std::string& color, double width = 1,
                 const std::string& more = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n",
      x1, y1, x2, y2, color, width, more);
}

/// The shape of a series' points: where colours begin again, the next one, so that fifty series differ.
size_t shape_of(size_t series) { return series + series / kColors.size(); }

/// A shape around a point.
std::string marker(size_t shape, double x, double y, const std::string& color, bool hollow) {
  const std::string paint = hollow ? fmt::format("fill=\"#fff\" stroke=\"{}\" stroke-width=\"1.6\"", color)
                                   : fmt::format("fill=\"{}\"", color);
  const double r = 4.6;
  switch (shape % 5) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" {}/>", x, y, r, paint);
    case 1:
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8.4\" height=\"8.4\" {}/>", x - 4.2,
                         y - 4.2, paint);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l5.4 9.4h-10.8z\" {}/>", x, y - 6, paint);
    case 3:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l5.8 5.8l-5.8 5.8l-5.8 -5.8z\" {}/>", x, y - 5.8, paint);
    default:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l-5.4 -9.4h10.8z\" {}/>", x, y + 6, paint);
  }
}

std::string tick_text(double value) { return fmt::format("{:g}", value); }

/// Steps of 1, 2 or 5 times a power of ten, about `count` over the range.
std::vector<double> linear_ticks(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double candidate : {1.0, 2.0, 5.0})
    if (candidate * power >= raw) {
      step = candidate * power;
      break;
    }
  std::vector<double> ticks;
  // In whole steps: what is added up would drift.
  for (double k = std::ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + 1e-12; ++k)
    ticks.push_back(k * step + 0.0);
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  for (double power = std::floor(std::log10(low)); power <= std::ceil(std::log10(high)); ++power)
    if (const double tick = std::pow(10, power); tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9))
      ticks.push_back(tick);
  return ticks;
}

/// Bits double from tick to tick, with one between.
std::vector<double> bit_ticks(double low, double high) {
  std::vector<double> ticks;
  for (double power = std::exp2(std::floor(std::log2(low))); power <= high; power *= 2)
    for (const double tick : {power, 1.5 * power})
      if (tick >= low && tick <= high) ticks.push_back(tick);
  return ticks;
}

/// Where a plot's values lie on the drawing.
class Frame {
 public:
  explicit Frame(const Plot& plot) : bits_(plot.bits_x), log_(plot.log_y), floor_(plot.floor) {
    double low_x = INFINITY, high_x = -INFINITY, low = INFINITY, high = -INFINITY;
    for (const PlotSeries& series : plot.series)
      for (const PlotPoint& point : series.points) {
        if (!shown(point)) continue;
        low_x = std::min(low_x, point.x);
        high_x = std::max(high_x, point.x);
        if (log_ && point.y <= floor_) continue;
        low = std::min(low, point.y);
        high = std::max(high, point.y + (log_ ? 0 : point.half_width.value_or(0)));
      }
    if (low_x <= high_x) {
      const double room = std::max(high_x - low_x, 1.0) * 0.02;
      low_x_ = bits_ ? low_x / 1.12 : low_x - room;
      high_x_ = bits_ ? high_x * 1.06 : high_x + room;
    }
    if (!(low <= high)) low = log_ ? (floor_ > 0 ? floor_ : 0.1) : 0, high = log_ ? 10 * low : 1;
    if (log_) {
      low_ = std::pow(10, std::floor(std::log10(floor_ > 0 ? floor_ : low) + 1e-9));
      high_ = std::max(high * 1.5, low_ * 10);
    } else {
      low_ = std::min(0.0, low);
      high_ = high > low_ ? high + (high - low_) * 0.05 : low_ + 1;
    }
  }

  bool shown(const PlotPoint& point) const {
    return std::isfinite(point.x) && (!bits_ || point.x > 0) && std::isfinite(point.y) &&
           (!log_ || point.y > 0 || floor_ > 0);
  }
  bool on_floor(const PlotPoint& point) const { return log_ && floor_ > 0 && point.y <= floor_; }
  double x(double value) const {
    const double place =
        bits_ ? std::log(value / low_x_) / std::log(high_x_ / low_x_) : (value - low_x_) / (high_x_ - low_x_);
    return kLeft + place * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double height = kHeight - kTop - kBottom;
    const double place = log_ ? std::log10(std::max(value, low_) / low_) / std::log10(high_ / low_)
                              : (value - low_) / (high_ - low_);
    return kHeight - kBottom - std::clamp(place, 0.0, 1.0) * height;
  }
  std::vector<double> x_ticks() const {
    if (bits_) return bit_ticks(low_x_, high_x_);
    std::vector<double> ticks = linear_ticks(low_x_, high_x_, 10);
    std::erase_if(ticks, [&](double tick) { return tick < low_x_ || tick > high_x_; });
    return ticks;
  }
  std::vector<double> y_ticks() const { return log_ ? log_ticks(low_, high_) : linear_ticks(low_, high_, 6); }

 private:
  bool bits_, log_;
  double floor_, low_x_ = 1, high_x_ = 16, low_ = 0, high_ = 1;
};

std::string axes(const Plot& plot, const Frame& frame) {
  std::string out;
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  for (const double tick : frame.x_ticks()) {
    out += line(frame.x(tick), kTop, frame.x(tick), bottom, "#eee");
    out += text_at(frame.x(tick), bottom + 17, "middle", tick_text(tick));
  }
  for (const double tick : frame.y_ticks()) {
    out += line(kLeft, frame.y(tick), right, frame.y(tick), "#e4e4e4");
    out += text_at(kLeft - 7, frame.y(tick) + 4, "end", tick_text(tick));
  }
  out += line(kLeft, bottom, right, bottom, "#444") + line(kLeft, kTop, kLeft, bottom, "#444");
  out += text_at((kLeft + right) / 2, kHeight - 14, "middle", plot.x_label);
  const double middle = (kTop + bottom) / 2;
  out += text_at(18, middle, "middle", plot.y_label,
                 fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle));
  return out;
}

std::string draw_series(const Frame& frame, PlotSeries series, size_t number, bool bits) {
  const std::string color = kColors[number % kColors.size()];
  std::erase_if(series.points, [&](const PlotPoint& point) { return !frame.shown(point); });
  std::ranges::stable_sort(series.points, {}, &PlotPoint::x);
  std::string path, out;
  for (const PlotPoint& point : series.points)  // as far as there is something to be seen
    if (!frame.on_floor(point))
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", frame.x(point.x), frame.y(point.y));
  if (path.find('L') != std::string::npos)
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.4\" opacity=\"0.75\"/>\n",
                       path, color);
  for (const PlotPoint& point : series.points) {
    const double x = frame.x(point.x);
    if (point.half_width && std::isfinite(*point.half_width) && !frame.on_floor(point))
      out +=
          line(x, frame.y(point.y - *point.half_width), x, frame.y(point.y + *point.half_width), color, 1.2);
    out += fmt::format(
        "<g>{}<title>{}</title></g>\n",
        marker(shape_of(number), x, frame.y(point.y), color, frame.on_floor(point)),
        escaped_markup(bits ? fmt::format("{}: {:.3f} bits, {:.4g}", point.label, point.x, point.y)
                            : fmt::format("{}: {:.4g}", point.label, point.y)));
  }
  return out;
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
  const Frame frame(plot);
  std::string out = head(kWidth, kHeight, plot.title) + axes(plot, frame);
  double legend = kTop + 10;
  bool any_on_floor = false;
  for (const PlotSeries& series : plot.series) {
    const auto place = std::ranges::find(plot.palette, series.name);
    const auto number = static_cast<size_t>(place - plot.palette.begin());
    out += draw_series(frame, series, number, plot.bits_x);
    for (const PlotPoint& point : series.points) any_on_floor |= frame.shown(point) && frame.on_floor(point);
    out +=
        marker(shape_of(number), kWidth - kRight + 24, legend - 4, kColors[number % kColors.size()], false) +
        text_at(kWidth - kRight + 38, legend, "start", series.name);
    legend += 20;
  }
  if (any_on_floor) {
    out += marker(0, kWidth - kRight + 24, legend + 8, "#444", true);
    out += text_at(kWidth - kRight + 38, legend + 12, "start", plot.floor_note);
  }
  return out + "</svg>\n";
}

std::string svg_of(const HeatMap& map) {
  double low = INFINITY, high = -INFINITY;
  for (const HeatRow& row : map.rows)
    for (const double value : row.values)
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  if (!(low <= high)) low = 0, high = 1;
  const double columns = static_cast<double>(std::max<size_t>(map.columns.size(), 1));
  const double cell = std::min(70.0, (kWidth - kHeatLeft - 20) / columns);
  const double height = 74 + kRowHeight * static_cast<double>(map.rows.size()) + 30;
  std::string out = head(kWidth, height, map.title);
  for (size_t c = 0; c < map.columns.size(); ++c)
    out += text_at(kHeatLeft + (static_cast<double>(c) + 0.5) * cell, 52, "middle", map.columns[c],
                   " font-size=\"11\"");
  double y = 60;
  for (const HeatRow& row : map.rows) {
    out += text_at(kHeatLeft - 8, y + 14, "end", row.label);
    for (size_t c = 0; c < row.values.size(); ++c) {
      const double value = row.values[c], place = high > low ? (value - low) / (high - low) : 0.5;
      const double x = kHeatLeft + static_cast<double>(c) * cell;
      out += fmt::format(
          "<g><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill=\"{}\"/><title>{}</title>",
          x, y, cell - (map.with_numbers ? 1 : 0), kRowHeight - 1,
          std::isfinite(value) ? heat_color(place) : "#ddd",
          escaped_markup(
              fmt::format("{}{}: {:.2f} {}", row.label,
                          c < map.columns.size() && !map.columns[c].empty() ? ", " + map.columns[c] : "",
                          value, map.unit)));
      if (map.with_numbers)
        out += fmt::format(
            "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{}\">{}</text>",
            x + cell / 2, y + 14, std::isfinite(value) && (place < 0.2 || place > 0.8) ? "#fff" : "#222",
            std::isfinite(value) ? fmt::format("{:.1f}", value) : "-");
      out += "</g>\n";
    }
    y += kRowHeight;
  }
  // The scale.
  constexpr int kSteps = 40;
  for (int i = 0; i < kSteps; ++i)
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"10\" fill=\"{}\"/>",
                       kHeatLeft + i * 5.0, y + 10, heat_color((i + 0.5) / kSteps));
  out += text_at(kHeatLeft - 8, y + 20, "end", fmt::format("{:.1f} {}", low, map.unit)) +
         text_at(kHeatLeft + kSteps * 5 + 8, y + 20, "start", fmt::format("{:.1f} {}", high, map.unit));
  return out + "</svg>\n";
}

}  // namespace kvcodec::cli
