// Where values lie on the axes of plots, and what is written at them.
#include "cli/reporting/axis.hpp"

#include <cmath>

#include "test/test.hpp"

namespace kvcodec::cli {
namespace {

constexpr double kExact = 1e-12;

TEST_CASE(
    "a symmetric-logarithmic axis is linear within its band, and a decade is as long as the band beyond") {
  const Axis axis(Scale::symlog, {-1, 1000}, 0.1);
  const double band = axis.place(0.1) - axis.place(0);
  CHECK_GT(band, 0);
  CHECK_LT(std::abs(axis.place(0.05) - axis.place(0) - band / 2), kExact);
  CHECK_LT(std::abs(axis.place(0) - axis.place(-0.1) - band), kExact);
  CHECK_LT(std::abs(axis.place(-0.1) - axis.place(-1) - band), kExact);
  CHECK_LT(std::abs(axis.place(1) - axis.place(0.1) - band), kExact);
  CHECK_LT(std::abs(axis.place(1000) - axis.place(0.1) - 4 * band), kExact);
}

TEST_CASE("all values lie within the ends, in their order") {
  const std::vector<double> values = {-3e-7, 0, 1e-9, 2e-5, 0.004, 0.5, 80};
  for (const double linear : {1e-8, 1e-4, 1.0, 1e3}) {
    const Axis axis(Scale::symlog, values, linear);
    double last = -1;
    for (const double value : values) {
      CHECK(axis.holds(value));
      CHECK_GT(axis.place(value), last);
      last = axis.place(value);
    }
    CHECK_LT(last, 1);
    CHECK(!axis.holds(-1e6));
    CHECK(!axis.holds(1e6));
  }
}

TEST_CASE("a logarithmic axis has a strip for what is not positive, only where there is some") {
  const Axis none(Scale::log, {0.01, 1});
  CHECK(!none.has_strip());
  CHECK(!none.holds(0));
  const Axis some(Scale::log, {0, 0.01, 1});
  CHECK(some.holds(0));
  CHECK_LT(some.place(0), some.strip());
  CHECK_LT(some.place(-5), some.strip());
  CHECK_GT(some.place(0.01), some.strip());
  CHECK_LT(std::abs(some.place(0.1) - (some.place(0.01) + some.place(1)) / 2), kExact);
}

TEST_CASE("labels lie on the axis, ascend, and keep their distance") {
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
                                   {Scale::log, {1e-12, 40}, 1},
                                   {Scale::log, {0.2, 0.3}, 1},
                                   {Scale::log, {0, 0}, 1},
                                   {Scale::log, {1e17, 1e17 + 64}, 1},
                                   {Scale::symlog, {-0.004, 0.9}, 1e-3},
                                   {Scale::symlog, {-0.1, 0.2}, 1},
                                   {Scale::symlog, {0, 0}, 1},
                                   {Scale::symlog, {-1e6, 1e6}, 1},
                                   {Scale::symlog, {-0.003, 0.0201}, 0.01}};
  for (const auto& [scale, values, linear] : cases) {
    const Axis axis(scale, values, linear);
    const std::vector<double> ticks = axis.ticks(0.06);
    CHECK_GE(ticks.size(), 2);
    for (size_t i = 0; i < ticks.size(); ++i) {
      CHECK(axis.holds(ticks[i]));
      if (i > 0) CHECK_GE(axis.place(ticks[i]) - axis.place(ticks[i - 1]), 0.06);
    }
  }
}

TEST_CASE("the linear part is about as wide as what cannot be told from 0") {
  CHECK_LT(
      std::abs(linear_part({{-0.0008, 0, 0.0008}, {-0.01, 0.02, 0.05}, {-0.0007, 0.0005, 0.0017}}) - 1e-3),
      kExact);
  // A rise that is clear and smaller must be told from 0 on the plot too.
  CHECK_LT(std::abs(linear_part({{-0.3, 0.1, 0.5}, {0.0005, 0.0009, 0.0013}}) - 1e-3), kExact);
  CHECK_LT(std::abs(linear_part({{0, 0, 0}, {-0.012, -0.011, -0.010}}) - 1e-2), kExact);
  CHECK_EQ(linear_part({{0, 0, 0}}), 1);
  CHECK_EQ(linear_part({}), 1);
  CHECK_LT(std::abs(linear_part({{1e-15, 2e-15, 3e-15}, {5, 6, 10}}) - 1e-5),
           kExact);  // a millionth of the largest
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
}  // namespace kvcodec::cli
