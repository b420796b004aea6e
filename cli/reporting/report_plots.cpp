#include "cli/reporting/report_plots.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

namespace kvcodec::cli {
namespace {

constexpr const char* kBits = "bits per value, without books";

/// The point of a line, without what the page says of its setting.
struct PlotValue {
  double x = 0, y = 0;
  std::optional<double> low, high;
};

/// Joins the points of a family, and lists each setting once.
template <class Lines, class ValueOf>
void add_lines(Plot& plot, const Results& results, const Lines& lines, const ValueOf& value_of) {
  std::vector<std::string> families;
  for (const auto& line : lines) {
    const Setting& setting = results.setting(line.label);
    auto place = std::ranges::find(families, setting.family);
    if (place == families.end()) {
      families.push_back(setting.family);
      plot.series.emplace_back();
      place = families.end() - 1;
    }
    const PlotValue at = value_of(line);
    plot.series[static_cast<size_t>(place - families.begin())].push_back(
        {.x = at.x,
         .y = at.y,
         .low = at.low,
         .high = at.high,
         .marker = setting.marker,
         .label = line.label,
         .about = setting.words.empty() ? "" : setting.words[0]});
    if (std::ranges::find(plot.legend, line.label, &LegendEntry::label) == plot.legend.end())
      plot.legend.push_back({line.label, setting.marker});
  }
}

PlotValue value_of(double bits, const Interval& interval) {
  return {bits, interval.mean, interval.low(), interval.high()};
}

/// Says whose rate would be higher with the book.
void note_books(Plot& plot, const ModelRun& run) {
  std::string labels;
  for (const ModelLine& line : run.lines)
    if (line.bits_with_book > line.bits) labels += (labels.empty() ? "" : ", ") + line.label;
  if (!labels.empty()) plot.note += fmt::format(" With their books these take more: {}.", labels);
}

/// Says what is missing from a plot.
void note_missing(Plot& plot) {
  std::string labels;
  for (const PlotSeries& series : plot.series)
    for (const PlotPoint& point : series)
      if (!std::isfinite(point.x) || !std::isfinite(point.y) || point.x <= 0)
        labels += (labels.empty() ? "" : ", ") + point.label;
  if (!labels.empty())
    plot.note += fmt::format(" Not shown, without a finite value or without a rate: {}.", labels);
}

std::vector<Span> rise_spans(const ModelRun& run) {
  std::vector<Span> spans;
  for (const ModelLine& line : run.lines)
    if (std::isfinite(line.rise.mean) && std::isfinite(line.bits) && line.bits > 0)
      spans.push_back({line.rise.low().value_or(line.rise.mean), line.rise.mean,
                       line.rise.high().value_or(line.rise.mean)});
  return spans;
}

bool any_zero(const Plot& plot) {
  for (const PlotSeries& series : plot.series)
    for (const PlotPoint& point : series)
      if (point.y <= 0) return true;
  return false;
}

}  // namespace

Plot rise_plot(const Results& results, const ModelRun& run) {
  Plot plot{.title = "Rise of the negative log-likelihood",
            .x_label = kBits,
            .y_label = "nats per token, with 95% intervals; above 0: the model loses",
            .y = Scale::symlog};
  add_lines(plot, results, run.lines, [](const ModelLine& line) { return value_of(line.bits, line.rise); });
  plot.linear = linear_part(rise_spans(run));
  const std::string linear = tick_text(plot.linear);
  plot.note = fmt::format(
      "All values as measured. In the tinted band, from \u2212{} to {}, the axis is linear, beyond it logarithmic; "
      "the band is about as wide as the intervals of what cannot be told from 0.",
      linear, linear);
  note_books(plot, run);
  note_missing(plot);
  return plot;
}

Plot divergence_plot(const Results& results, const ModelRun& run) {
  Plot plot{.title = "Divergence of the next-token distributions (KL)",
            .x_label = kBits,
            .y_label = "nats per token, with 95% intervals",
            .y = Scale::log};
  add_lines(plot, results, run.lines,
            [](const ModelLine& line) { return value_of(line.bits, line.divergence); });
  plot.note = "Logarithmic. An interval that ends in an arrow goes on below the axis.";
  if (any_zero(plot)) plot.note += " What has no logarithm stands in the strip at the foot.";
  note_books(plot, run);
  note_missing(plot);
  return plot;
}

Plot recall_plot(const Results& results, const RecallRun& run) {
  Plot plot{.title = "Planted facts found again",
            .x_label = kBits,
            .y_label = "right answers in %, with 95% intervals",
            .y = Scale::linear};
  add_lines(plot, results, run.lines, [](const RecallLine& line) {
    const bool interval = std::isfinite(line.low) && std::isfinite(line.high);
    return PlotValue{line.bits, 100 * line.share, interval ? std::optional(100 * line.low) : std::nullopt,
                     interval ? std::optional(100 * line.high) : std::nullopt};
  });
  note_missing(plot);
  return plot;
}

Plot attention_plot(const Results& results) {
  Plot plot{.title = "Error of the attention output",
            .x_label = kBits,
            .y_label = "relative error",
            .y = Scale::log};
  std::vector<ReconLine> measured = results.recon;
  std::erase_if(measured, [](const ReconLine& line) { return !line.output_error; });
  add_lines(plot, results, measured, [](const ReconLine& line) {
    return PlotValue{line.bits, *line.output_error, {}, {}};
  });
  if (any_zero(plot)) plot.note = "Logarithmic; what has no error stands in the strip at the foot.";
  note_missing(plot);
  return plot;
}

Plot probe_plot(const ProbeLine& line) {
  constexpr Marker kLow{.color = 0, .shape = 0, .hollow = false},
      kHigh{.color = 1, .shape = 1, .hollow = false};
  Plot plot{.title = "Error of the probe quantizer by dimension of keys",
            .x_label = "dimension",
            .y_label = "mean squared error",
            .note = line.file,
            .x = Scale::linear,
            .y = Scale::linear,
            .legend = {{"low", kLow}, {"high", kHigh}}};
  for (size_t j = 0; j < line.errors.size();
       ++j)  // each by itself: neighbours have nothing to do with each other
    plot.series.push_back({{.x = static_cast<double>(j),
                            .y = line.errors[j],
                            .marker = line.high[j] ? kHigh : kLow,
                            .label = fmt::format("dimension {}", j)}});
  return plot;
}

Plot sensitivity_plot(const SensitivityLines& lines) {
  constexpr Marker kKeys{.color = 0, .shape = 0, .hollow = false},
      kValues{.color = 1, .shape = 1, .hollow = false};
  Plot plot{.title = "What noise in the cache costs, by layer",
            .x_label = "layer",
            .y_label = "nats per token for noise of variance 1, with 95% intervals",
            .x = Scale::linear,
            .y = Scale::log,
            .legend = {{"keys", kKeys}, {"values", kValues}}};
  const auto add = [&](const char* what, const std::vector<Interval>& layers, double beside, Marker marker) {
    PlotSeries& series = plot.series.emplace_back();
    for (size_t layer = 0; layer < layers.size(); ++layer)
      series.push_back({.x = static_cast<double>(layer) + beside,
                        .y = layers[layer].mean,
                        .low = layers[layer].low(),
                        .high = layers[layer].high(),
                        .marker = marker,
                        .label = fmt::format("{} of layer {}", what, layer)});
  };
  constexpr double kBeside = 0.12;  // so that intervals of the two do not hide each other
  add("keys", lines.key, -kBeside, kKeys);
  add("values", lines.value, kBeside, kValues);
  plot.note =
      fmt::format("{}. Logarithmic. An interval that ends in an arrow goes on below the axis.", lines.model);
  if (any_zero(plot)) plot.note += " What has no logarithm stands in the strip at the foot.";
  return plot;
}

HeatMap layer_map(const Results& results) {
  HeatMap map{.title = "Signal-to-noise ratio by layer, keys and values", .unit = "dB"};
  // Columns are layers that any of the reconstructions has; they may have different ones.
  const auto add_side = [&](const char* letter, const auto& layers_of) {
    std::set<int> all;
    for (const ReconLine& line : results.recon)
      for (const auto& [layer, snr] : layers_of(line)) all.insert(layer);
    for (const int layer : all) map.columns.push_back(fmt::format("{} {}", letter, layer));
    for (size_t i = 0; i < results.recon.size(); ++i) {
      const std::map<int, double> own = layers_of(results.recon[i]);
      for (const int layer : all) {
        const auto place = own.find(layer);
        map.rows[i].values.push_back(place == own.end() ? std::nan("") : place->second);
      }
    }
  };
  map.rows.reserve(results.recon.size());
  for (const ReconLine& line : results.recon) map.rows.push_back({line.label, {}});
  add_side("K", [](const ReconLine& line) { return line.key.layers; });
  add_side("V",
           [](const ReconLine& line) { return line.value ? line.value->layers : std::map<int, double>(); });
  return map;
}

HeatMap dimension_map(const Results& results, bool keys) {
  HeatMap map{
      .title = fmt::format("Signal-to-noise ratio by dimension of a head, {}", keys ? "keys" : "values"),
      .unit = "dB"};
  for (const ReconLine& line : results.recon) {
    if (!keys && !line.value) continue;
    const std::vector<double>& values = (keys ? line.key : *line.value).dimensions;
    map.rows.push_back({line.label, values});
    while (map.columns.size() < values.size()) map.columns.push_back(fmt::format("{}", map.columns.size()));
  }
  return map;
}

}  // namespace kvcodec::cli
