#include "cli/reporting/report_page.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "cli/frame/text.hpp"
#include "cli/reporting/report_words.hpp"

namespace kvcodec::cli {
namespace {

// Tables -------------------------------------------------------------------------------------------

struct Cells {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  ///< a setting's label first
};

/// Columns of a table: a heading, and what is said of a line.
template <class Line>
using Columns = std::vector<std::pair<std::string, std::function<std::string(const Line&)>>>;

template <class Line>
Cells cells_of(const std::vector<Line>& lines, const Columns<Line>& columns) {
  Cells cells;
  for (const auto& [title, cell] : columns) cells.head.push_back(title);
  for (const Line& line : lines)
    for (auto& row = cells.rows.emplace_back(); const auto& [title, cell] : columns)
      row.push_back(cell(line));
  return cells;
}

std::string fixed(const std::optional<double>& value, int digits, double factor = 1) {
  return value && std::isfinite(*value) ? fmt::format("{:.{}f}", factor * *value, digits) : "-";
}

bool with_book(const ModelLine& line) { return line.bits_with_book > line.bits; }

Cells model_cells(const ModelRun& run) {
  using Line = ModelLine;
  Columns<Line> columns = {{"setting", [](const Line& line) { return line.label; }},
                           {"bits/value", [](const Line& line) { return fixed(line.bits, 3); }}};
  if (std::ranges::any_of(run.lines, with_book))
    columns.push_back({"with book", [](const Line& line) { return fixed(line.bits_with_book, 3); }});
  const auto add = [&](const char* title, Interval Line::*interval, int digits, double factor) {
    columns.push_back(
        {title, [=](const Line& line) { return fixed((line.*interval).mean, digits, factor); }});
    columns.push_back(
        {"+-", [=](const Line& line) { return fixed((line.*interval).half_width, digits, factor); }});
  };
  add("NLL rise", &Line::rise, 5, 1);
  add("KL", &Line::divergence, 5, 1);
  columns.push_back({"KL 99th pct", [](const Line& line) { return fixed(line.divergence_99, 4); }});
  add("same top-1 %", &Line::same, 2, 100);
  return cells_of(run.lines, columns);
}

/// A column for each length and depth that any line has.
Cells recall_cells(const RecallRun& run) {
  using Line = RecallLine;
  Columns<Line> columns = {{"setting", [](const Line& line) { return line.label; }},
                           {"bits/value", [](const Line& line) { return fixed(line.bits, 3); }},
                           {"right %", [](const Line& line) { return fixed(line.share, 1, 100); }},
                           {"from", [](const Line& line) { return fixed(line.low, 1, 100); }},
                           {"to", [](const Line& line) { return fixed(line.high, 1, 100); }}};
  std::set<Line::Place> places;
  for (const Line& line : run.lines)
    for (const auto& [place, share] : line.cells) places.insert(place);
  for (const Line::Place& place : places)
    columns.push_back({fmt::format("{:g} at {:.2f}", place.first, place.second), [place](const Line& line) {
                         const auto own = line.cells.find(place);
                         return own == line.cells.end() ? "-" : fixed(own->second, 0, 100);
                       }});
  return cells_of(run.lines, columns);
}

Cells recon_cells(const Results& results) {
  using Line = ReconLine;
  Columns<Line> columns = {{"reconstruction", [](const Line& line) { return line.label; }},
                           {"bits/value", [](const Line& line) { return fixed(line.bits, 3); }}};
  for (const bool keys : {true, false}) {
    const auto side = [keys](const Line& line) { return keys ? std::optional(line.key) : line.value; };
    columns.push_back({keys ? "keys SNR dB" : "values SNR dB",
                       [side](const Line& line) { return side(line) ? fixed(side(line)->snr, 2) : "-"; }});
    columns.push_back(
        {"above bound", [side](const Line& line) { return side(line) ? fixed(side(line)->gap, 2) : "-"; }});
  }
  columns.push_back({"attention KL", [](const Line& line) { return fixed(line.weights_kl, 5); }});
  columns.push_back({"output error", [](const Line& line) { return fixed(line.output_error, 4); }});
  columns.push_back({"top kept %", [](const Line& line) { return fixed(line.top_kept, 1, 100); }});
  return cells_of(results.recon, columns);
}

std::string text_table(const Cells& cells) {
  std::vector<Table::Column> columns;
  for (const std::string& title : cells.head) columns.push_back({title});
  Table table(columns);
  for (const auto& row : cells.rows) table.row(row);
  return table.text();
}

/// "+-" and "-12" as they are printed.
std::string in_print(std::string text) {
  if (text == "+-") return "±";
  if (text.size() > 1 && text[0] == '-' && text.find_first_not_of("0123456789.", 1) == std::string::npos)
    text.replace(0, 1, "\u2212");
  return text;
}

/// The colour and the label of a setting; its words come up where the pointer rests.
std::string setting_cell(const Setting& setting) {
  return fmt::format("<th scope=\"row\" title=\"{}\"><i class=\"c{}\"></i>{}</th>",
                     escaped_markup(fmt::format("{}", fmt::join(setting.words, " | "))),
                     setting.color % kPlotColors, escaped_markup(setting.label));
}

std::string table_start(const std::string& name, const std::string& caption,
                        const std::vector<std::string>& head) {
  std::string out = fmt::format("<div class=\"scroll\"><table{}><caption>{}</caption>\n<tr>", name,
                                escaped_markup(caption));
  for (const std::string& title : head)
    out += fmt::format("<th scope=\"col\">{}</th>", escaped_markup(in_print(title)));
  return out + "</tr>\n";
}

std::string html_table(const Results& results, const std::string& caption, const Cells& cells) {
  std::string out = table_start("", caption, cells.head);
  for (const auto& row : cells.rows) {
    out += "<tr>" + setting_cell(results.setting(row[0]));
    for (size_t c = 1; c < row.size(); ++c)
      out += fmt::format("<td>{}</td>", escaped_markup(in_print(row[c])));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// Maps: tables of coloured cells -------------------------------------------------------------------

struct Map {
  std::string title;
  std::vector<std::string> columns = {};
  std::vector<std::pair<std::string, std::vector<double>>> rows = {};  ///< of a label
};

/// The page of cells, low ones dark red, high ones dark blue, over the range of all.
std::string html_map(const Results& results, const Map& map) {
  constexpr size_t kColumnsWithNumbers = 16;
  double low = INFINITY, high = -INFINITY;
  for (const auto& [label, values] : map.rows)
    for (const double value : values)
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  const bool numbers = map.columns.size() <= kColumnsWithNumbers;
  std::vector<std::string> head{""};
  if (numbers) head.insert(head.end(), map.columns.begin(), map.columns.end());
  const std::string range = low <= high ? fmt::format(", {:.1f} (red) to {:.1f} dB (blue)", low, high) : "";
  std::string out = table_start(" class=\"map\"", map.title + range, head);
  for (const auto& [label, values] : map.rows) {
    out += "<tr>" + setting_cell(results.setting(label));
    for (size_t c = 0; c < values.size(); ++c) {
      const bool finite = std::isfinite(values[c]);
      const double place = high > low ? (values[c] - low) / (high - low) : 0.5;
      const std::string color = finite ? fmt::format("hsl({} 60% {:.0f}%)", place < 0.5 ? 10 : 215,
                                                     92 - 110 * std::abs(place - 0.5))
                                       : "#9a9a9a";
      const std::string said = finite ? fmt::format("{:.2f} dB", values[c]) : "no finite number";
      out += fmt::format("<td style=\"background:{};color:{}\" title=\"{}, {}: {}\">{}</td>", color,
                         finite && std::abs(place - 0.5) > 0.25 ? "#fff" : "#222", escaped_markup(label),
                         map.columns[c], said, numbers ? fixed(values[c], 1) : "");
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

Map layer_map(const Results& results) {
  Map map{.title = "Signal-to-noise ratio by layer, keys and values"};
  for (const ReconLine& line : results.recon) map.rows.push_back({line.label, {}});
  for (const bool keys : {true, false}) {
    const auto layers_of = [keys](const ReconLine& line) {
      return keys ? line.key.layers : line.value ? line.value->layers : std::map<int, double>();
    };
    std::set<int> all;  // layers that any of the reconstructions has; they may have different ones
    for (const ReconLine& line : results.recon)
      for (const auto& [layer, snr] : layers_of(line)) all.insert(layer);
    for (const int layer : all) map.columns.push_back(fmt::format("{} {}", keys ? "K" : "V", layer));
    for (size_t i = 0; i < results.recon.size(); ++i) {
      const std::map<int, double> own = layers_of(results.recon[i]);
      for (const int layer : all)
        map.rows[i].second.push_back(own.contains(layer) ? own.at(layer) : std::nan(""));
    }
  }
  return map;
}

Map dimension_map(const Results& results, bool keys) {
  Map map{.title = fmt::format("Signal-to-noise ratio by dimension of a head, {}", keys ? "keys" : "values")};
  for (const ReconLine& line : results.recon) {
    if (!keys && !line.value) continue;
    const std::vector<double>& values = (keys ? line.key : *line.value).dimensions;
    map.rows.push_back({line.label, values});
    while (map.columns.size() < values.size()) map.columns.push_back(fmt::format("{}", map.columns.size()));
  }
  return map;
}

// Plots --------------------------------------------------------------------------------------------

constexpr const char* kBits = "bits per value, without books";

/// Joins the points of a family. at: a line's place, without what the page says of its setting.
template <class Line>
void add_lines(Plot& plot, const Results& results, const std::vector<Line>& lines,
               const std::function<PlotPoint(const Line&)>& at) {
  std::vector<std::string> families;
  std::string missing;
  for (const Line& line : lines) {
    const Setting& setting = results.setting(line.label);
    const auto place = static_cast<size_t>(std::ranges::find(families, setting.family) - families.begin());
    if (place == families.size()) {
      families.push_back(setting.family);
      plot.lines.push_back({.label = setting.family, .color = setting.color});
    }
    PlotPoint point = at(line);
    point.x = line.bits;
    point.label = line.label;
    if (!setting.words.empty()) point.about = setting.words[0];
    if (!std::isfinite(point.x) || !std::isfinite(point.y) || point.x <= 0)
      missing += (missing.empty() ? "" : ", ") + point.label;
    plot.lines[place].points.push_back(std::move(point));
  }
  if (!missing.empty())
    plot.note += fmt::format(" Not shown, without a finite value or without a rate: {}.", missing);
}

/// A plot over the rate of what a run's model loses.
Plot loss_plot(const Results& results, const ModelRun& run, Plot plot, Interval ModelLine::*loss) {
  std::string labels;
  for (const ModelLine& line : run.lines)
    if (with_book(line)) labels += (labels.empty() ? "" : ", ") + line.label;
  if (!labels.empty()) plot.note += fmt::format(" With their books these take more: {}.", labels);
  add_lines<ModelLine>(plot, results, run.lines, [&](const ModelLine& line) {
    const Interval& interval = line.*loss;
    return PlotPoint{.y = interval.mean, .low = interval.low(), .high = interval.high(), .label = {}};
  });
  const std::string linear = tick_text(linear_part(plot));
  plot.note = fmt::format(
      "All values as measured. In the tinted band, from \u2212{} to {}, the axis is nearly linear, beyond it "
      "logarithmic.{}",
      linear, linear, plot.note);
  return plot;
}

}  // namespace

Plot rise_plot(const Results& results, const ModelRun& run) {
  return loss_plot(results, run,
                   {.title = "Rise of the negative log-likelihood",
                    .x_label = kBits,
                    .y_label = "nats per token, with 95% intervals; above 0: the model loses",
                    .y = Scale::wide},
                   &ModelLine::rise);
}

namespace {

Plot divergence_plot(const Results& results, const ModelRun& run) {
  return loss_plot(results, run,
                   {.title = "Divergence of the next-token distributions (KL)",
                    .x_label = kBits,
                    .y_label = "nats per token, with 95% intervals",
                    .y = Scale::wide},
                   &ModelLine::divergence);
}

Plot recall_plot(const Results& results, const RecallRun& run) {
  Plot plot{.title = "Planted facts found again",
            .x_label = kBits,
            .y_label = "right answers in %, with 95% intervals"};
  add_lines<RecallLine>(plot, results, run.lines, [](const RecallLine& line) {
    PlotPoint point{.y = 100 * line.share, .label = {}};
    if (std::isfinite(line.low) && std::isfinite(line.high))
      point.low = 100 * line.low, point.high = 100 * line.high;
    return point;
  });
  return plot;
}

Plot attention_plot(const Results& results) {
  Plot plot{.title = "Error of the attention output",
            .x_label = kBits,
            .y_label = "relative error",
            .y = Scale::wide};
  std::vector<ReconLine> measured = results.recon;
  std::erase_if(measured, [](const ReconLine& line) { return !line.output_error; });
  add_lines<ReconLine>(plot, results, measured,
                       [](const ReconLine& line) { return PlotPoint{.y = *line.output_error, .label = {}}; });
  return plot;
}

Plot probe_plot(const ProbeLine& line) {
  Plot plot{.title = "Error of the probe quantizer by dimension of keys",
            .x_label = "dimension",
            .y_label = "mean squared error",
            .note = line.file,
            .x = Scale::linear,
            .lines = {{.label = "low", .color = 0, .joined = false},
                      {.label = "high", .color = 1, .joined = false}}};
  for (size_t j = 0; j < line.errors.size(); ++j)
    plot.lines[line.high[j] ? 1 : 0].points.push_back(
        {.x = static_cast<double>(j), .y = line.errors[j], .label = fmt::format("dimension {}", j)});
  return plot;
}

Plot sensitivity_plot(const SensitivityLines& lines) {
  constexpr double kBeside = 0.12;  // so that intervals of the two do not hide each other
  Plot plot{.title = "What noise in the cache costs, by layer",
            .x_label = "layer",
            .y_label = "nats per token for noise of variance 1, with 95% intervals",
            .note = lines.model + ".",
            .x = Scale::linear,
            .y = Scale::wide};
  for (const bool keys : {true, false}) {
    PlotLine& line = plot.lines.emplace_back();
    line.label = keys ? "keys" : "values";
    line.color = keys ? 0 : 1;
    const std::vector<Interval>& layers = keys ? lines.key : lines.value;
    for (size_t layer = 0; layer < layers.size(); ++layer)
      line.points.push_back({.x = static_cast<double>(layer) + (keys ? -kBeside : kBeside),
                             .y = layers[layer].mean,
                             .low = layers[layer].low(),
                             .high = layers[layer].high(),
                             .label = fmt::format("{} of layer {}", line.label, layer)});
  }
  return plot;
}

// Parts of the page --------------------------------------------------------------------------------

std::string paragraph(const std::string& text) { return "<p>" + escaped_markup(text) + "</p>\n"; }

std::string figures(const std::vector<Plot>& plots) {
  std::string out = "<div class=\"figures\">\n";
  for (const Plot& plot : plots) out += "<figure>\n" + svg_of(plot, false) + "</figure>\n";
  return out + "</div>\n";
}

/// The loss of one model run: conclusion, plots, table.
std::string run_part(const Results& results, const ModelRun& run, double loss) {
  std::string out = "<h2>What the model loses</h2>\n";
  out += paragraph(fmt::format("{}. With its uncompressed cache the model needs {} nats per token.", run.what,
                               interval_text(run.nll)));
  out += "<div class=\"conclusion\">\n";
  for (const std::string& sentence : conclusion(run, loss)) out += paragraph(sentence);
  return out + "</div>\n" + figures({rise_plot(results, run), divergence_plot(results, run)}) +
         html_table(results, "Nats per token, with 95% intervals by document", model_cells(run));
}

std::string recall_part(const Results& results, const RecallRun& run) {
  return "<h2>Planted facts</h2>\n" + paragraph(run.what + ".") + figures({recall_plot(results, run)}) +
         html_table(results, "Found again, in %, with 95% intervals; then by length and depth",
                    recall_cells(run));
}

std::string recon_part(const Results& results) {
  if (results.recon.empty()) return {};
  const auto any = [&](const auto& member) {
    return std::ranges::any_of(results.recon,
                               [&](const ReconLine& line) { return (line.*member).has_value(); });
  };
  std::string out = "<h2>What becomes of keys and values</h2>\n";
  if (any(&ReconLine::output_error)) out += figures({attention_plot(results)});
  out += html_map(results, layer_map(results)) + html_map(results, dimension_map(results, true));
  if (any(&ReconLine::value)) out += html_map(results, dimension_map(results, false));
  return out + html_table(results,
                          "Keys, values and attention over them; distances to the Gaussian bound in dB",
                          recon_cells(results));
}

template <class Line>
std::string plots_part(const char* title, const std::vector<Line>& lines, Plot (*plot_of)(const Line&)) {
  std::vector<Plot> plots;
  for (const Line& line : lines) plots.push_back(plot_of(line));
  return plots.empty() ? "" : fmt::format("<h2>{}</h2>\n", title) + figures(plots);
}

/// Behind each label, the full setting.
std::string settings_part(const Results& results) {
  if (results.settings.empty()) return {};
  std::string out =
      "<h2>Settings</h2>\n<div class=\"scroll\"><table class=\"words\">\n"
      "<tr><th scope=\"col\">label</th><th scope=\"col\">full setting</th></tr>\n";
  for (const Setting& setting : results.settings) {
    out += "<tr>" + setting_cell(setting) + "<td>";
    for (const std::string& words : setting.words) out += "<code>" + escaped_markup(words) + "</code>";
    out += setting.words.empty() ? "the results do not say</td></tr>\n" : "</td></tr>\n";
  }
  return out + "</table></div>\n";
}

std::string made_text(const Source& source) {
  if (source.generator.empty() && source.created.empty()) return "Version and date are not recorded.";
  return fmt::format("Made by {}, {}.", source.generator.empty() ? "an unknown version" : source.generator,
                     source.created.empty() ? "date unknown" : source.created);
}

std::string source_part(const Source& source) {
  std::string out = fmt::format("<li><strong>{}</strong>: {}. {}\n", escaped_markup(source.file),
                                escaped_markup(source.what), escaped_markup(made_text(source)));
  out += source.command.empty() ? "The command line is not recorded.\n"
                                : "<code>" + escaped_markup(source.command) + "</code>\n";
  if (!source.history.empty()) {
    out += "<details><summary>Commands that led to it</summary>\n";
    for (const std::string& line : source.history) out += "<code>" + escaped_markup(line) + "</code>\n";
    out += "</details>\n";
  }
  return out + "</li>\n";
}

std::string sources_part(const Results& results, const Source& made) {
  std::string out = "<h2>Where this comes from</h2>\n<ul class=\"sources\">\n";
  for (const Source& source : results.sources) out += source_part(source);
  return out +
         fmt::format("</ul>\n<p class=\"made\">This page: {}</p>\n<p class=\"made\"><code>{}</code></p>\n",
                     escaped_markup(made_text(made)), escaped_markup(made.command));
}

constexpr const char* kStyle =
    ":root{color-scheme:light dark;--page:#f5f6f8;--paper:#fff;--stripe:#f7f8fa;--ink:#1d1f23;--soft:#565b64;--rule:#d5d8de}\n"
    "@media (prefers-color-scheme: dark){:root{--page:#0e1013;--paper:#17191d;--stripe:#1c1f24;--ink:#e8e8e6;--soft:#a9aeb8;"
    "--rule:#363a42}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0}\n"
    "main{max-width:1320px;margin:0 auto;padding:12px 12px 40px}\n"
    "h1{font-size:22px;line-height:1.25;margin:8px 0}h2{font-size:17px;margin:28px 0 8px}p{margin:6px 0;max-width:80ch}\n"
    ".conclusion{max-width:calc(80ch + 8px);border-left:4px solid #0072b2;background:var(--paper);padding:6px 14px;margin:12px 0}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:12px}\n"
    "figure{margin:0;background:var(--paper);border:1px solid var(--rule);border-radius:6px;padding:4px;"
    "align-self:start;max-width:720px}\n"
    "figure svg{display:block;width:100%;height:auto}\n"
    "i{display:inline-block;width:9px;height:9px;border-radius:5px;margin-right:7px}\n"
    ".map td{padding:0;height:19px;font-size:11px;text-align:center}\n"
    ".scroll{overflow-x:auto;background:var(--paper);border:1px solid var(--rule);border-radius:6px;margin:12px 0}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%;font-size:13.5px}\n"
    "caption{text-align:left;font-weight:600;padding:8px 10px}\n"
    "th,td{text-align:right;padding:3px 10px;white-space:nowrap;font-weight:400}\n"
    "th[scope=col]{font-weight:600;border-bottom:1px solid var(--soft)}\n"
    "th:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}\n"
    "tr:nth-child(odd)>*{background:var(--stripe)}\n"
    ".words td,.words th{text-align:left;vertical-align:top}.words td{white-space:normal}\n"
    "code{display:block;font:12.5px/1.45 ui-monospace,monospace;overflow-wrap:anywhere;color:var(--ink)}\n"
    ".sources{padding-left:18px;font-size:13.5px;color:var(--soft)}.sources li{margin:8px 0}.sources strong{color:var(--ink)}\n"
    ".made{font-size:13.5px;color:var(--soft)}\n";

}  // namespace

std::string html_page(const Results& results, const PageText& text) {
  const std::string name = escaped_markup(text.title);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      name + "</title>\n<style>\n" + kStyle + plot_style() + "</style>\n</head>\n<body>\n<main>\n<h1>" +
      name + "</h1>\n";
  for (const ModelRun& run : results.runs) out += run_part(results, run, text.loss);
  for (const RecallRun& run : results.recalls) out += recall_part(results, run);
  return out + recon_part(results) +
         plots_part("Where errors hurt", results.sensitivities, sensitivity_plot) +
         plots_part("Codebooks", results.probes, probe_plot) + settings_part(results) +
         sources_part(results, text.made) + "</main>\n</body>\n</html>\n";
}

std::string text_page(const Results& results, double loss) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : "\n") + part; };
  for (const ModelRun& run : results.runs) {
    if (results.runs.size() > 1) add(run.what + "\n");
    add(text_table(model_cells(run)));
    std::string words;
    for (const std::string& sentence : conclusion(run, loss)) words += wrapped(sentence, 100, 0) + "\n";
    add(words);
  }
  for (const RecallRun& run : results.recalls) {
    if (results.recalls.size() > 1) add(run.what + "\n");
    add(text_table(recall_cells(run)));
  }
  if (!results.recon.empty()) add(text_table(recon_cells(results)));
  return out;
}

}  // namespace kvcodec::cli
