// Plots: positions of values on axes, and the text at axes and lines.
#include "cli/reporting/plot.hpp"

#include <cmath>

#include "test/test.hpp"

namespace kvcodec::cli::plot_test {
namespace {

TEST_CASE("a wide axis is symmetric, linear around 0, and as long for each decade beyond") {
  const Axis axis(Scale::wide, {-1, 1000}, 0.001);
  const auto length = [&](double from, double to) { return axis.place(to) - axis.place(from); };
  CHECK_LT(std::abs(length(0, 1e-5) - length(1e-5, 2e-5)), 1e-3 * length(0, 1e-5));
  CHECK_LT(std::abs(length(0, 0.7) - length(-0.7, 0)), 1e-12);
  CHECK_LT(std::abs(length(1, 10) - length(100, 1000)), 1e-3 * length(1, 10));
  CHECK_GT(length(0.0005, 0.001), 0);
}

TEST_CASE("labels lie on the axis, ascend, and keep their distance, and all values lie within the ends") {
  struct Case {
    Scale scale;
    std::vector<double> values;
    double linear;
  };
  const std::vector<Case> cases = {{Scale::linear, {3, 97}, 1},
                                   {Scale::linear, {-4, 0}, 1},
                                   {Scale::linear, {}, 1},
                                   {Scale::rate, {0.43, 16}, 1},
                                   {Scale::rate, {2.1, 2.9}, 1},
                                   {Scale::rate, {4}, 1},
                                   {Scale::rate, {}, 1},
                                   {Scale::wide, {}, 1},
                                   {Scale::wide, {1e-12, 40}, 1e-5},
                                   {Scale::wide, {0.2, 0.3}, 0.1},
                                   {Scale::wide, {1e17, 1e17 + 64}, 1e17},
                                   {Scale::wide, {-0.004, 0.9}, 1e-3},
                                   {Scale::wide, {-0.1, 0.2}, 1},
                                   {Scale::wide, {0, 0}, 1},
                                   {Scale::wide, {-1e6, 1e6}, 1},
                                   {Scale::wide, {-0.003, 0.0201}, 0.01}};
  for (const auto& [scale, values, linear] : cases) {
    const Axis axis(scale, values, linear);
    for (const double value : values) CHECK(std::abs(axis.place(value) - 0.5) <= 0.5);
    const std::vector<double> ticks = axis.ticks(0.06);
    CHECK_GE(ticks.size(), 2);
    for (size_t i = 0; i < ticks.size(); ++i) {
      CHECK(std::abs(axis.place(ticks[i]) - 0.5) <= 0.5 + 1e-9);
      if (i > 0) CHECK_GE(axis.place(ticks[i]) - axis.place(ticks[i - 1]), 0.06);
    }
  }
}

/// A plot of points with such intervals and their centres.
Plot plot_of(const std::vector<std::pair<double, double>>& intervals) {
  Plot plot{.title = "", .x_label = "", .y_label = "", .y = Scale::wide, .lines = {{.label = "line"}}};
  for (const auto& [low, high] : intervals)
    plot.lines[0].points.push_back({.x = 1.0 + static_cast<double>(plot.lines[0].points.size()),
                                    .y = (low + high) / 2,
                                    .low = low,
                                    .high = high,
                                    .label = {}});
  return plot;
}

TEST_CASE("an axis is linear up to the smallest size that a point surely does not exceed") {
  const auto is = [](const Plot& plot, double wanted) {
    return std::abs(linear_part(plot) - wanted) < 1e-9 * wanted;
  };
  CHECK(is(plot_of({{-0.0008, 0.0008}, {-0.01, 0.05}, {-0.0007, 0.0017}}), 1e-3));
  // A smaller, clear rise must also be told from 0.
  CHECK(is(plot_of({{-0.3, 0.5}, {0.0005, 0.0013}}), 1e-3));
  CHECK(is(plot_of({{0, 0}, {-0.012, -0.010}}), 1e-2));
  CHECK(is(plot_of({{0, 0}}), 1));
  CHECK(is(plot_of({}), 1));
  CHECK(is(plot_of({{1e-15, 3e-15}, {5, 10}}), 1e-5));  // a millionth of the largest
}

TEST_CASE("each line of a plot has one label") {
  Plot plot = plot_of({{0.1, 0.1}, {0.2, 0.2}});
  plot.lines.push_back({.label = "other", .color = 1});
  for (const double x : {1.0, 2.0})
    plot.lines[1].points.push_back({.x = x, .y = 0.01 * x, .label = "a point"});
  const std::string svg = svg_of(plot, true);
  for (const char* label : {">line</text>", ">other</text>"}) {
    CHECK(svg.find(label) != std::string::npos);
    CHECK_EQ(svg.find(label), svg.rfind(label));
  }
}

TEST_CASE("numbers at axes are short and have a true minus sign") {
  CHECK_EQ(tick_text(0), "0");
  CHECK_EQ(tick_text(1.5), "1.5");
  CHECK_EQ(tick_text(-0.001), "\u22120.001");
  CHECK_EQ(tick_text(1e-4), "0.0001");
  CHECK_EQ(tick_text(5e-4), "0.0005");
  CHECK_EQ(tick_text(1e-5), "1e\u22125");
  CHECK_EQ(tick_text(-2e-7), "\u22122e\u22127");
}

}  // namespace
}  // namespace kvcodec::cli::plot_test
