#include "cli/codecs/sensitivity_text.hpp"

#include <cmath>

#include "cli/frame/text.hpp"

namespace kvcodec::cli {
namespace {

constexpr double kShownCost = 0.01;  // nats

/// Of the noise that costs kShownCost, the deviation in percent of the values' own; "-" where noise costs nothing.
std::string tolerated(const Sensitivity& side) {
  if (!(side.nats.mean > 0) || !(side.variance > 0)) return "-";
  return significant(100 * std::sqrt(kShownCost / side.nats.mean / side.variance), 3);
}

}  // namespace

std::string sensitivity_table(std::span<const std::array<Sensitivity, 2>> layers,
                              const std::optional<Fisher>& fisher) {
  std::vector<Table::Column> columns = {{"layer"}};
  for (const char* group : {"keys", "values"})
    for (const std::string_view what : {"nats/unit", "+- 95%", "Fisher", "0.01 at %", "growth"})
      if (fisher || what != "Fisher")
        columns.push_back({.title = std::string(what), .unit = "", .group = group});
  Table table(columns);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<std::string> cells = {fmt::format("{}", layer)};
    for (const Side side : kSides) {
      const Sensitivity& of = layers[layer][static_cast<size_t>(side)];
      cells.push_back(significant(of.nats.mean, 3));
      cells.push_back(std::isfinite(of.nats.half_width) ? significant(of.nats.half_width, 2) : "-");
      if (fisher) cells.push_back(significant(fisher->nats(side, static_cast<int>(layer)), 3));
      cells.push_back(tolerated(of));
      cells.push_back(std::isfinite(of.growth()) ? significant(of.growth(), 3) : "-");
    }
    table.row(std::move(cells));
  }
  return table.text() +
         "\nnats/unit: what noise of variance 1 would cost for each judged token, if cost went on growing with the "
         "variance;\n" +
         (fisher ? "Fisher: the same by the Fisher matrices, half of the sum of their traces;\n" : "") +
         "0.01 at %: the noise that costs 0.01 nats, in percent of the deviation of the keys or values "
         "themselves;\ngrowth: what noise of twice the deviation costs, over four times the cost of the "
         "smaller noise: near 1 the\ndivergence is quadratic, and the sensitivity holds.\n";
}

Json sensitivity_json(std::span<const std::array<Sensitivity, 2>> layers,
                      const std::optional<Fisher>& fisher) {
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
      if (fisher) one[std::string(name_of(side))]["fisher"] = fisher->nats(side, static_cast<int>(layer));
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace kvcodec::cli
