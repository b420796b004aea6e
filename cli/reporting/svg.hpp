// Plots as SVG: points with their intervals over an axis, and tables of coloured cells. Plain shapes and
// text, no script, no font or picture from elsewhere. The drawing is 480 units wide, for letters that can be
// read on a page of 480 pixels. Colours are told apart by shapes as well, and follow the reader's choice of a
// light or a dark page.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/reporting/axis.hpp"

namespace kvcodec::cli {

/// Text as it may stand between tags and in quoted attributes.
std::string escaped_markup(std::string_view text);

/// What a point looks like: one of kMarkerColors colours, one of kMarkerShapes shapes, filled or hollow.
struct Marker {
  size_t color = 0, shape = 0;
  bool hollow = false;
};
constexpr size_t kMarkerColors = 7, kMarkerShapes = 8;

struct PlotPoint {
  double x = 0, y = 0;
  std::optional<double> low = {}, high = {};  ///< ends of the interval
  Marker marker = {};
  std::string label, about = {};  ///< about: what else there is to say of it where the pointer rests
};

/// Points in the order of x, joined by a line if there are several.
using PlotSeries = std::vector<PlotPoint>;

struct LegendEntry {
  std::string label;
  Marker marker;
};

struct Plot {
  std::string title, x_label, y_label;
  std::string note = {};  ///< sentences below the plot
  Scale x = Scale::rate, y = Scale::linear;
  double linear = 1;  ///< of Scale::symlog: where y is linear, below it and above its negative
  /// Points with what is not finite, or no rate on an axis of rates, are left out.
  std::vector<PlotSeries> series = {};
  std::vector<LegendEntry> legend = {};
};

struct HeatRow {
  std::string label;
  std::vector<double> values;
};

struct HeatMap {
  std::string title, unit;
  std::vector<std::string> columns = {};  ///< one per value; as many are written as there is room for
  std::vector<HeatRow> rows = {};
};

/// An <svg> element for a page that has drawing_style() among its styles.
std::string svg_of(const Plot& plot);
/// Low values dark red, high ones dark blue, over the range of all finite values.
std::string svg_of(const HeatMap& map);
/// The same as a file of its own.
std::string svg_file(const Plot& plot);

/// A marker by itself, as large as a letter.
std::string svg_of(const Marker& marker);

/// The style sheet that the elements' classes refer to, for light and dark pages.
std::string drawing_style();

}  // namespace kvcodec::cli
