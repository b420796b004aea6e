// Plots as SVG: points with their intervals, joined by lines, each with a colour and a label. They contain plain shapes and text, no
// script, no external font or picture. Colours follow the reader's choice of a light or a dark page.
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

/// Maps values to an axis: 0 at its low end, 1 at its high end.
class Axis {
 public:
  /// values: all that must lie on the axis, finite; positive for a rate. linear: the linear part of a wide axis, positive.
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

/// A number as axes are labelled: "0.001", "1e-5", with a true minus sign.
std::string tick_text(double value);

struct PlotPoint {
  double x = 0, y = 0;
  std::optional<double> low = {}, high = {};  ///< ends of the interval
  std::string label, about = {};              ///< shown where the pointer rests
};

/// Points of one colour, joined in the order of x, with one name.
struct PlotLine {
  std::string label;
  size_t color = 0;  ///< an index into kPlotColors colours, which repeat
  std::vector<PlotPoint> points = {};
};
constexpr size_t kPlotColors = 7;

struct Plot {
  std::string title, x_label, y_label;
  std::string note = {};  ///< sentences below the plot
  Scale x = Scale::rate, y = Scale::linear;
  /// Points that are not finite, or not positive on an axis of rates, are left out.
  std::vector<PlotLine> lines = {};
};

/// The end of the linear part of a wide y axis: the smallest magnitude of a point, its interval included, but at least a millionth of
/// the largest, rounded to a power of ten. So points that cannot be told from 0 do not fill the plot.
double linear_part(const Plot& plot);

/// An <svg> element for a page that includes plot_style(); a separate file includes the styles itself.
std::string svg_of(const Plot& plot, bool own_file);

/// The style sheet of the classes, including those of the colours (c0 …).
std::string plot_style();

/// Text that is safe between tags and in quoted attributes.
std::string escaped_markup(std::string_view text);

}  // namespace kvcodec::cli
