#include "cli/sensitivity_text.hpp"

#include <cmath>

#include "cli/text.hpp"

namespace kvcodec::cli {
namespace {

constexpr double kShownCost = 0.01;  // nats

/// Of the noise that costs kShownCost, the deviation in percent of the values' own; "-" where noise costs nothing.
std::string tolerated(const Sensitivity& side) {
  if (!(side.nats.mean > 0) || !(side.variance > 0)) return "-";
  return significant(100 * std::sqrt(kShownCost / side.nats.mean / side.variance), 3);
}

}  // namespace

std::string sensitivity_table(std::span<const std::array<Sensitivity, 2>> layers) {
  std::vector<Table::Column> columns = {{"layer"}};
  for (const char* side : {"keys", "values"})
    for (const char* what : {"nats/unit", "+- 95%", "0.01 at %", "growth"})
      columns.push_back({.title = what, .unit = "", .group = side});
  Table table(columns);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<std::string> cells = {fmt::format("{}", layer)};
    for (const Sensitivity& side : layers[layer]) {
      cells.push_back(significant(side.nats.mean, 3));
      cells.push_back(std::isfinite(side.nats.half_width) ? significant(side.nats.half_width, 2) : "-");
      cells.push_back(tolerated(side));
      cells.push_back(std::isfinite(side.growth()) ? significant(side.growth(), 3) : "-");
    }
    table.row(std::move(cells));
  }
  return table.text() +
         "\nnats/unit: what noise of variance 1 would cost for each judged token, if cost went on growing with the "
         "variance;\n0.01 at %: the noise that costs 0.01 nats, in percent of the deviation of the keys or values "
         "themselves;\ngrowth: what noise of twice the deviation costs, of four times as much: near 1 the divergence is "
         "quadratic, and the\nsensitivity holds.\n";
}

Json sensitivity_json(std::span<const std::array<Sensitivity, 2>> layers) {
  Json all = Json::array();
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    Json one = {{"layer", layer}};
    for (const Side side : kSides) {
      const Sensitivity& of = layers[layer][static_cast<size_t>(side)];
      Json probes = Json::array();
      for (const auto& probe : of.probes)
        probes.push_back({{"deviation", probe.deviation}, {"divergence", to_json(probe.divergence)}});
      one[std::string(name_of(side))] = {
          {"variance", of.variance}, {"nats", to_json(of.nats)}, {"probes", probes}};
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace kvcodec::cli
