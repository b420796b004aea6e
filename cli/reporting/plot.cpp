#include "cli/reporting/plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "cli/frame/text.hpp"

namespace kvcodec::cli {
namespace {

// Units of the drawing, which is scaled to the page.
constexpr double kWidth = 480, kLeft = 62, kTop = 50, kHeight = 290, kBelow = 42;
constexpr double kEnd = kWidth - 12, kBottom = kTop + kHeight;
constexpr double kLetter = 5.9;      ///< the width of a letter at font size 11 in wide system fonts
constexpr double kLineHeight = 15;   ///< from one line of small text to the next
constexpr size_t kNoteLetters = 82;  ///< in a line

/// Every step-th power of the base from `first` to `last`; with a step of 0, all powers and some multiples of them.
std::vector<double> powers(double base, double first, double last, int step) {
  std::vector<double> ticks;
  for (double tick = first; tick <= last && std::isfinite(tick); tick *= std::pow(base, std::max(step, 1)))
    for (const double factor : base == 2 ? std::vector{1.0, 1.5} : std::vector{1.0, 2.0, 5.0})
      if (factor == 1 || step == 0) ticks.push_back(factor * tick);
  return ticks;
}

/// Multiples of 1, 2 or 5 times a power of ten, about `count` over the range.
std::vector<double> even_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0) || !std::isfinite(raw)) return {};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double candidate : {5.0, 2.0, 1.0})
    if (candidate * power >= raw) step = candidate * power;
  std::vector<double> ticks;
  // Counted in whole steps, because sums of steps would drift.
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= count + 1; ++i) ticks.push_back((first + i) * step + 0.0);
  return ticks;
}

/// Classes, and their colours on light and on dark paper. Those of lines, which come first, are Okabe and Ito's without yellow,
/// which is invisible on white paper; colour-blind readers can tell them apart.
constexpr const char* kPaints[][3] = {
    {"c0", "#0072b2", "#3f95e8"},  {"c1", "#d55e00", "#f47c3c"},    {"c2", "#009e73", "#1fbf92"},
    {"c3", "#cc79a7", "#e29cc3"},  {"c4", "#56b4e9", "#9bd8ff"},    {"c5", "#e69f00", "#f5bc3d"},
    {"c6", "#111111", "#f4f4f4"},  {"paper", "#ffffff", "#17191d"}, {"band", "#eef2f8", "#22262e"},
    {"ink", "#1d1f23", "#e8e8e6"}, {"soft", "#565b64", "#a9aeb8"},  {"grid", "#dfe1e5", "#33373f"},
    {"axis", "#6a6f78", "#8b919c"}};

std::string styles_of(bool dark) {
  std::string css;
  for (const auto& paint : kPaints)
    css += fmt::format(".{0}{{fill:{1};stroke:{1};{2}}}", paint[0], paint[dark ? 2 : 1],
                       paint[0][0] == 'c' ? fmt::format("background:{}", paint[dark ? 2 : 1]) : "");
  return css;
}

std::string color_of(const PlotLine& line) { return kPaints[line.color % kPlotColors][0]; }

std::string text_at(double x, double y, const std::string& text, const char* anchor,
                    const std::string& more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, more,
                     escaped_markup(text));
}

std::string line(double x1, double y1, double x2, double y2, const std::string& name) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", name,
                     x1, y1, x2, y2);
}

/// The points of a line that can be shown, in the order of x.
std::vector<PlotPoint> shown_points(const Plot& plot, const PlotLine& line) {
  std::vector<PlotPoint> points = line.points;
  std::erase_if(points, [&](const PlotPoint& point) {
    return !std::isfinite(point.x) || !std::isfinite(point.y) || (plot.x == Scale::rate && point.x <= 0);
  });
  std::ranges::stable_sort(points, {}, &PlotPoint::x);
  return points;
}

std::vector<double> values_of(const Plot& plot, bool x) {
  std::vector<double> values;
  for (const PlotLine& line : plot.lines)
    for (const PlotPoint& point : shown_points(plot, line))
      if (x)
        values.push_back(point.x);
      else
        values.insert(values.end(), {point.y, point.low.value_or(point.y), point.high.value_or(point.y)});
  return values;
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

struct Drawing {
  explicit Drawing(const Plot& drawn)
      : plot(drawn),
        linear(linear_part(drawn)),
        x_axis(drawn.x, values_of(drawn, true)),
        y_axis(drawn.y, values_of(drawn, false), linear) {}

  double x(double value) const { return kLeft + x_axis.place(value) * (kEnd - kLeft); }
  double y(double value) const { return kTop + (1 - y_axis.place(value)) * kHeight; }

  const Plot& plot;
  double linear;
  Axis x_axis, y_axis;
};

std::string axes_of(const Drawing& drawing) {
  const Plot& plot = drawing.plot;
  std::string out;
  if (plot.y == Scale::wide) {
    const double top = std::max(drawing.y(drawing.linear), kTop);
    out = fmt::format(
        "<rect class=\"band\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" data-linear=\"{:.17g}\"/>\n",
        kLeft, top, kEnd - kLeft, std::min(drawing.y(-drawing.linear), kBottom) - top, drawing.linear);
  }
  for (const double tick : drawing.x_axis.ticks(0.085))
    out += line(drawing.x(tick), kTop, drawing.x(tick), kBottom, "grid") +
           text_at(drawing.x(tick), kBottom + 16, tick_text(tick), "middle", "class=\"ink\"");
  for (const double tick :
       drawing.y_axis.ticks(0.06)) {  // its value is data too, for programs that read the plot
    const double at = drawing.y(tick);
    out += line(kLeft, at, kEnd, at, tick == 0 ? "axis" : "grid") +
           text_at(kLeft - 7, at + 4, tick_text(tick), "end",
                   fmt::format("class=\"ink\" data-tick=\"{:.17g}\" data-at=\"{:.1f}\"", tick, at));
  }
  return out + line(kLeft, kBottom, kEnd, kBottom, "axis") + line(kLeft, kTop, kLeft, kBottom, "axis") +
         text_at((kLeft + kEnd) / 2, kBottom + 34, plot.x_label, "middle", "class=\"soft\"") +
         text_at(12, 39, plot.y_label, "start", "class=\"soft\"");
}

std::string point_of(const Drawing& drawing, const PlotPoint& point, const std::string& color) {
  const double x = drawing.x(point.x), y = drawing.y(point.y);
  std::string title = point.label, data, interval;
  title += drawing.plot.x == Scale::rate ? fmt::format(": {:.3f} bits, {:.4g}", point.x, point.y)
                                         : fmt::format(": {:.4g}", point.y);
  if (point.low && point.high) {
    title += fmt::format(" (95%: {:.4g} to {:.4g})", *point.low, *point.high);
    data = fmt::format(" data-low=\"{:.17g}\" data-high=\"{:.17g}\"", *point.low, *point.high);
    interval = line(x, drawing.y(*point.low), x, drawing.y(*point.high), color);
    interval.pop_back();  // a point is one line of the page
  }
  if (!point.about.empty()) title += "; " + point.about;
  return fmt::format(
      "<g data-label=\"{}\" data-y=\"{:.17g}\"{}>{}<circle class=\"{}\" cx=\"{:.1f}\" "
      "cy=\"{:.1f}\" r=\"3.6\"/><title>{}</title></g>\n",
      escaped_markup(point.label), point.y, data, interval, color, x, y, escaped_markup(title));
}

/// The place beside a point (right, left, above or below) where a label of that width hides least.
Box label_place(double width, const std::vector<std::pair<double, double>>& points,
                const std::vector<Box>& taken) {
  Box best{};
  int64_t fewest = INT64_MAX;
  const std::pair<double, double> sides[] = {{7, -6}, {-7 - width, -6}, {-width / 2, -19}, {-width / 2, 7}};
  for (const auto& [x, y] : points)
    for (const auto& [left, top] : sides) {
      const Box box{x + left, y + top, x + left + width, y + top + 12};
      const bool outside = box.left < kLeft || box.right > kWidth || box.top < kTop || box.bottom > kBottom;
      const int64_t covered =
          std::ranges::count_if(taken, [&](const Box& other) { return box.meets(other); }) +
          (outside ? 1000 : 0);
      if (covered < fewest) fewest = covered, best = box;
    }
  return best;
}

/// Lines, above them their points, and on top one label for each line.
std::string lines_of(const Drawing& drawing) {
  constexpr double kRound = 5;
  std::string paths, points, labels;
  std::vector<Box> taken;  // boxes of points and labels
  std::vector<std::vector<std::pair<double, double>>> places;
  for (const PlotLine& one : drawing.plot.lines) {
    std::string path;
    auto& own = places.emplace_back();
    for (const PlotPoint& point : shown_points(drawing.plot, one)) {
      const double x = drawing.x(point.x), y = drawing.y(point.y);
      points += point_of(drawing, point, color_of(one));
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
      own.emplace_back(x, y);
      taken.push_back({x - kRound, y - kRound, x + kRound, y + kRound});
    }
    if (own.size() > 1)  // dashes distinguish lines with the same colour
      paths += fmt::format("<path class=\"{}\" d=\"{}\" style=\"fill:none\" opacity=\"0.6\"{}/>\n",
                           color_of(one), path, one.color < kPlotColors ? "" : " stroke-dasharray=\"5 3\"");
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const PlotLine& one = drawing.plot.lines[i];
    if (places[i].empty() || one.label.empty()) continue;
    taken.push_back(label_place(kLetter * static_cast<double>(one.label.size()), places[i], taken));
    labels += text_at(taken.back().left, taken.back().bottom - 3, one.label, "start",
                      fmt::format("class=\"{}\" font-size=\"11\" font-weight=\"600\"", color_of(one)));
  }
  return paths + points + labels;
}

}  // namespace

Axis::Axis(Scale scale, const std::vector<double>& values, double linear) : scale_(scale), linear_(linear) {
  std::vector<double> shown = values;
  if (scale != Scale::rate) shown.push_back(0);
  if (values.empty()) shown.push_back(scale == Scale::rate ? 16 : 1);
  const auto [low, high] = std::ranges::minmax(shown);
  from_ = stretched(low), to_ = stretched(high);
  if (!(to_ - from_ > 1e-9 * std::abs(to_))) to_ += 0.3;
  const double room = 0.03 * (to_ - from_);
  // A plain axis begins at 0 if no value is below it.
  if (scale == Scale::rate || low < 0) from_ -= room;
  to_ += room;
}

double Axis::stretched(double value) const {
  if (scale_ == Scale::linear) return value;
  return scale_ == Scale::rate ? std::log2(value) : std::asinh(value / linear_);
}

double Axis::unstretched(double place) const {
  if (scale_ == Scale::linear) return place;
  return scale_ == Scale::rate ? std::exp2(place) : linear_ * std::sinh(place);
}

std::vector<double> Axis::ticks(double gap) const {
  constexpr std::array kSteps = {0, 1, 2, 4, 8, 16, 32};
  std::vector<std::vector<double>> choices;  // from the finest to the coarsest
  const double low = unstretched(from_), high = unstretched(to_);
  const double largest = std::max(std::abs(low), std::abs(high));
  for (const int step : kSteps) {
    if (scale_ == Scale::rate && high >= 3 * low)
      choices.push_back(powers(2, std::exp2(std::floor(std::log2(low))), high, step));
    if (scale_ != Scale::wide || largest <= 2 * linear_) continue;
    auto& ticks = choices.emplace_back(powers(10, linear_, largest, step));
    for (size_t i = ticks.size(); i-- > 0;) ticks.push_back(-ticks[i]);
    ticks.push_back(0);
    std::ranges::sort(ticks);
  }
  for (int count = 7; count > 0; --count) choices.push_back(even_ticks(low, high, count));
  for (std::vector<double>& ticks : choices) {
    std::erase_if(ticks, [&](double tick) { return !(place(tick) >= -1e-9 && place(tick) <= 1 + 1e-9); });
    const auto near = std::ranges::adjacent_find(
        ticks, [&](double one, double next) { return place(next) - place(one) < gap; });
    if (ticks.size() > 1 && near == ticks.end()) return ticks;
  }
  return {};
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  std::string text = fmt::format("{:g}", size);
  if (size > 0 && size < 0.99e-4) {
    const double power = std::floor(std::log10(size) + 1e-9);
    text = fmt::format("{:g}e\u2212{:g}", size / std::pow(10, power), -power);
  }
  return value < 0 ? "\u2212" + text : text;
}

double linear_part(const Plot& plot) {
  double smallest = INFINITY, largest = 0;
  for (const PlotLine& line : plot.lines)
    for (const PlotPoint& point : shown_points(plot, line)) {
      const double size =
          std::max({std::abs(point.y), std::abs(point.low.value_or(0)), std::abs(point.high.value_or(0))});
      if (size > 0) smallest = std::min(smallest, size);
      largest = std::max(largest, size);
    }
  return largest > 0 ? std::pow(10, std::round(std::log10(std::max({smallest, 1e-6 * largest, 1e-30})))) : 1;
}

std::string svg_of(const Plot& plot, bool own_file) {
  const Drawing drawing(plot);
  std::string inside =
      text_at(12, 20, plot.title, "start", "class=\"ink\" font-size=\"14\" font-weight=\"600\"") +
      axes_of(drawing) + lines_of(drawing);
  double height = kBottom + kBelow + 16;
  for (const std::string& words : split(wrapped(plot.note, kNoteLetters, 0), '\n')) {
    inside += text_at(12, height, words, "start", "class=\"soft\" font-size=\"11\"");
    height += kLineHeight;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" aria-label=\"{2}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n{3}<rect class=\"paper\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\"/>\n{4}</svg>\n",
      kWidth, height, escaped_markup(plot.title), own_file ? "<style>\n" + plot_style() + "</style>\n" : "",
      inside);
}

std::string plot_style() {
  return "text{stroke:none!important}\n" + styles_of(false) + "\n@media (prefers-color-scheme: dark){" +
         styles_of(true) + "}\n";
}

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

}  // namespace kvcodec::cli
