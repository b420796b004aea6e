// Plots as SVG: points with their intervals, a colour and one label for each line of them. Plain shapes and text, no
// script, no font or picture from elsewhere. Colours follow the reader's choice of a light or a dark page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcodec::cli {

enum class Scale : uint8_t {
  linear,
  rate,  ///< logarithmic, labelled in powers of two: bits per value
  wide,  ///< by the inverse hyperbolic sine: linear around 0, logarithmic beyond in both directions
};

/// Along an axis: 0 at its low end, 1 at its high end.
class Axis {
 public:
  /// values: all that must lie on the axis, finite; those of a rate positive. linear: of a wide one, positive.
  Axis(Scale scale, const std::vector<double>& values, double linear = 1);

  double place(double value) const { return (stretched(value) - from_) / (to_ - from_); }
  /// Values to label, ascending, with at least `gap` (a share of the axis) between two.
  std::vector<double> ticks(double gap) const;

 private:
  double stretched(double value) const;
  double unstretched(double place) const;

  Scale scale_;
  double linear_;
  double from_ = 0, to_ = 1;  ///< ends as stretched() gives them
};

/// A number as an axis says it: "0.001", "1e-5", with a true minus sign.
std::string tick_text(double value);

struct PlotPoint {
  double x = 0, y = 0;
  std::optional<double> low = {}, high = {};  ///< ends of the interval
  std::string label, about = {};              ///< what to say of it where the pointer rests
};

/// Points of one colour, joined in the order of x, and named once.
struct PlotLine {
  std::string label;
  size_t color = 0;  ///< of kPlotColors, over again
  std::vector<PlotPoint> points = {};
  bool joined = true;
};
constexpr size_t kPlotColors = 7;

struct Plot {
  std::string title, x_label, y_label;
  std::string note = {};  ///< sentences below the plot
  Scale x = Scale::rate, y = Scale::linear;
  /// Points with what is not finite, or no rate on an axis of rates, are left out.
  std::vector<PlotLine> lines = {};
};

/// The end of the linear part of a wide axis of y: the power of ten next to the smallest size that a point surely does not
/// exceed, but no less than a millionth of the largest. So points that cannot be told from 0 do not fill the plot.
double linear_part(const Plot& plot);

/// An <svg> element for a page that has plot_style() among its styles; a file of its own has them itself.
std::string svg_of(const Plot& plot, bool own_file);

/// The style sheet that classes refer to, those of the colours (c0 …) too.
std::string plot_style();

/// Text as it may stand between tags and in quoted attributes.
std::string escaped_markup(std::string_view text);

}  // namespace kvcodec::cli
