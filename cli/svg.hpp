// Plots as SVG: points with error bars over an axis of bits, and tables of coloured cells. Plain shapes and
// text, no script, no font or picture from elsewhere. Colours are told apart by shapes as well.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcodec::cli {

/// Text as it may stand between tags and in quoted attributes.
std::string escaped_markup(std::string_view text);

struct PlotPoint {
  double x = 0, y = 0;
  std::optional<double> half_width;  ///< of a 95% interval
  std::string label;
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;  ///< joined by a line in the order of x
};

struct Plot {
  std::string title, x_label, y_label;
  bool bits_x = true;  ///< x is a rate: positive, on a logarithmic axis; else any number, on a plain one
  bool log_y = true;
  /// With log_y: points at or below this stand on the floor of the plot, hollow; 0: the smallest point there
  /// is.
  double floor = 0;
  std::string floor_note;  ///< what it means to stand there
  /// The same series have the same colour and shape in all plots that are given the same list.
  std::vector<std::string> palette;
  std::vector<PlotSeries> series;
};

/// An <svg> element of its own, complete as a file too. Points that are not finite are left out.
std::string svg_of(const Plot& plot);

struct HeatRow {
  std::string label;
  std::vector<double> values;
};

struct HeatMap {
  std::string title, unit;
  std::vector<std::string> columns;  ///< one per value; empty ones are not written
  std::vector<HeatRow> rows;
  bool with_numbers = true;  ///< write the values into the cells
};

/// Low values dark red, high ones dark blue, over the range of all finite values.
std::string svg_of(const HeatMap& map);

}  // namespace kvcodec::cli
