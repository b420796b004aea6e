// kvcodec report RESULT ... -o PAGE
//
//   RESULT              what eval-model, eval-recon and train-rvq print with --json
//   --plot FILE         also the first plot by itself, as an SVG file
//
//   kvcodec report model.json recall.json recon-*.json -o report.html
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/product.hpp"
#include "cli/subcommands.hpp"
#include "cli/svg.hpp"
#include "cli/text.hpp"
#include "formats/json_file.hpp"
#include "formats/output.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// Results are kilobytes; what is far larger is something else.
constexpr uint64_t kMostBytes = uint64_t{1} << 28;

/// Rises of the likelihood below this are taken for none: they are beyond what any text could show.
constexpr double kLeastRise = 1e-4;

struct ReportOptions final : Options {
  std::vector<std::string> inputs;
  std::string title = "What compression does to the cache, and to the model", plot;
  CommonOptions common;
  OutputOptions output;

  std::vector<OptionField> fields() override {
    return {{.name = "title", .help = "title of the page", .target = &title},
            {.name = "plot", .help = "also write the first plot by itself, as an SVG file", .target = &plot}};
  }
};

struct Interval {
  double mean = 0;
  std::optional<double> half_width;
};

/// A setting of eval-model, text.
struct ModelLine {
  std::string label, codec, file;
  double bits = 0, bits_with_book = 0;
  Interval nll, rise, divergence, same;
};

/// One of eval-model, recall.
struct RecallLine {
  std::string label, codec;
  double bits = 0, share = 0, low = 0, high = 0;
  struct Cell {
    double length, depth, share;
  };
  std::vector<Cell> cells;
};

/// A reconstruction of eval-recon.
struct ReconLine {
  std::string label, codec;
  double bits = 0;
  struct SideMeasures {
    double snr = 0;
    std::optional<double> gap;
    std::vector<double> layers, dimensions;  // SNR
  };
  SideMeasures key, value;
  std::optional<double> weights_kl, output_error, top_kept;
};

/// The probe of train-rvq: errors of the dimensions of keys, and how they were split.
struct ProbeLine {
  std::string file, split;
  std::vector<double> errors;
  std::vector<bool> high;
};

struct Results {
  std::vector<ModelLine> model;
  std::vector<RecallLine> recall;
  std::vector<ReconLine> recon;
  std::vector<ProbeLine> probes;
  std::vector<std::string> notes;  ///< what was measured, a line per file
  std::optional<Interval> uncompressed_nll;
};

// Reading ------------------------------------------------------------------------------------------

using Object = nlohmann::json;

const Object& at(const Object& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) throw bad_input("there is no '{}'", name);
  return object[name];
}

double number_at(const Object& object, const char* name) {
  const Object& value = at(object, name);
  if (value.is_null()) return std::nan("");  // how JSON says that a number is not finite
  if (!value.is_number()) throw bad_input("'{}' is no number", name);
  return value.get<double>();
}

std::string string_at(const Object& object, const char* name) {
  const Object& value = at(object, name);
  if (!value.is_string()) throw bad_input("'{}' is no text", name);
  return value.get<std::string>();
}

const Object& array_at(const Object& object, const char* name) {
  const Object& value = at(object, name);
  if (!value.is_array()) throw bad_input("'{}' is no list", name);
  return value;
}

Interval interval_at(const Object& object, const char* name) {
  const Object& value = at(object, name);
  Interval interval{number_at(value, "mean"), {}};
  if (const double half = number_at(value, "half_width_95"); std::isfinite(half)) interval.half_width = half;
  return interval;
}

void read_model(const Object& json, const std::string& file, Results& results) {
  const bool recall = string_at(json, "task") == "recall";
  const auto grouped_at = [&](const char* name) {
    return grouped(static_cast<uint64_t>(number_at(json, name)));
  };
  results.notes.push_back(fmt::format(
      "{}: model {}, task {}, {} documents of {} tokens together, {} judged, cache in {}{}", file,
      string_at(json, "model"), string_at(json, "task"), grouped_at("documents"), grouped_at("tokens"),
      grouped_at("judged_tokens"), string_at(json, "dtype"),
      number_at(json, "stream") > 0 ? fmt::format(", grown {} tokens at a time", number_at(json, "stream"))
                                    : ""));
  if (!recall) results.uncompressed_nll = interval_at(at(json, "uncompressed"), "nll");
  if (recall) {
    const Object& own = at(at(json, "uncompressed"), "recall");
    results.notes.back() +=
        fmt::format("; {:.1f}% right with the uncompressed cache", 100 * number_at(own, "share"));
  }
  for (const Object& setting : array_at(json, "settings")) {
    const std::string label = string_at(setting, "label"), codec = string_at(setting, "codec");
    const double bits = number_at(setting, "bits_per_value");
    if (recall) {
      const Object& share = at(setting, "recall");
      RecallLine line{label,
                      codec,
                      bits,
                      number_at(share, "share"),
                      number_at(share, "low_95"),
                      number_at(share, "high_95"),
                      {}};
      for (const Object& cell : array_at(share, "cells"))
        line.cells.push_back({number_at(cell, "length"), number_at(cell, "depth"), number_at(cell, "share")});
      results.recall.push_back(std::move(line));
    } else {
      results.model.push_back({label, codec, file, bits, number_at(setting, "bits_per_value_with_book"),
                               interval_at(setting, "nll"), interval_at(setting, "nll_rise"),
                               interval_at(setting, "kl"), interval_at(setting, "same_top1")});
    }
  }
}

ReconLine::SideMeasures side_of(const Object& recon, const char* side) {
  const Object& measures = at(recon, side);
  ReconLine::SideMeasures result;
  result.snr = number_at(measures, "snr_db");
  for (const Object& layer : array_at(measures, "layers"))
    result.layers.push_back(number_at(layer, "snr_db"));
  for (const Object& dimension : array_at(measures, "dimensions"))
    result.dimensions.push_back(number_at(dimension, "snr_db"));
  if (recon.contains("gaussian_bound"))
    result.gap = number_at(at(at(recon, "gaussian_bound"), side), "gap_db");
  return result;
}

void read_recon(const Object& json, const std::string& file, Results& results) {
  for (const Object& recon : array_at(json, "reconstructions")) {
    ReconLine line;
    line.label = std::filesystem::path(string_at(recon, "file")).stem().string();
    line.codec = line.label;
    line.bits = std::nan("");
    if (recon.contains("rate")) {
      line.codec = string_at(at(recon, "rate"), "codec");
      line.bits = number_at(at(recon, "rate"), "bits_per_value");
    }
    line.key = side_of(recon, "key");
    line.value = side_of(recon, "value");
    if (recon.contains("attention")) {
      const Object& attention = at(recon, "attention");
      line.weights_kl = number_at(attention, "weights_kl");
      line.output_error = number_at(attention, "output_error");
      line.top_kept = number_at(attention, "top_kept");
    }
    results.recon.push_back(std::move(line));
  }
  const std::string note = fmt::format("{}: {} reconstructions of {}", file,
                                       array_at(json, "reconstructions").size(), string_at(json, "original"));
  results.notes.push_back(note);
}

void read_probe(const Object& json, const std::string& file, Results& results) {
  ProbeLine line{file, string_at(json, "split"), {}, {}};
  for (const Object& error : array_at(json, "dimension_error")) {
    if (!error.is_number()) throw bad_input("'dimension_error' holds what is no number");
    line.errors.push_back(error.get<double>());
  }
  line.high.resize(line.errors.size());
  for (const Object& dimension : array_at(json, "high_dimensions")) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() >= line.high.size())
      throw bad_input("'high_dimensions' names one that is not among {}", line.high.size());
    line.high[dimension.get<size_t>()] = true;
  }
  results.notes.push_back(fmt::format("{}: codebooks of keys split as '{}', {} of {} dimensions high", file,
                                      line.split, std::ranges::count(line.high, true), line.high.size()));
  results.probes.push_back(std::move(line));
}

Results read_results(const std::vector<std::string>& files) {
  Results results;
  for (const std::string& file : files) {
    const Object json = read_json_object(file, kMostBytes);
    with_context(file, [&] {
      if (json.contains("reconstructions"))
        read_recon(json, file, results);
      else if (json.contains("settings") && json.contains("task"))
        read_model(json, file, results);
      else if (json.contains("dimension_error"))
        read_probe(json, file, results);
      else
        throw bad_input("this is no result of eval-model, eval-recon or train-rvq with --json");
    });
  }
  return results;
}

// Plots --------------------------------------------------------------------------------------------

/// What a label belongs to: itself without a number at its end ("kivi-2" to "kivi"), or the codec of a
/// setting that has no label.
std::string series_of(const std::string& label, const std::string& codec) {
  if (label.find(':') != std::string::npos) return codec;
  const size_t end = label.find_last_not_of("0123456789.");
  if (end != std::string::npos && end + 1 < label.size() && label[end] == '-' && end > 0)
    return label.substr(0, end);
  return label;
}

std::vector<std::string> palette_of(const Results& results) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& label, const std::string& codec) {
    const std::string name = series_of(label, codec);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const ModelLine& line : results.model) add(line.label, line.codec);
  for (const RecallLine& line : results.recall) add(line.label, line.codec);
  for (const ReconLine& line : results.recon) add(line.label, line.codec);
  return names;
}

template <class Lines, class Point>
std::vector<PlotSeries> series_from(const Lines& lines, const Point& point_of) {
  std::vector<PlotSeries> series;
  for (const auto& line : lines) {
    const std::string name = series_of(line.label, line.codec);
    auto place = std::ranges::find(series, name, &PlotSeries::name);
    if (place == series.end()) {
      series.push_back({name, {}});
      place = series.end() - 1;
    }
    place->points.push_back(point_of(line));
  }
  return series;
}

constexpr const char* kBits = "bits per value, everything stored";

Plot rise_plot(const Results& results, const std::vector<std::string>& palette) {
  return {.title = "Rise of the negative log-likelihood",
          .x_label = kBits,
          .y_label = "nats per token, with 95% intervals",
          .log_y = true,
          .floor = kLeastRise,
          .floor_note = "none to be seen",
          .palette = palette,
          .series = series_from(results.model, [](const ModelLine& line) {
            // A rise whose interval holds 0 is none that can be told from chance.
            const bool chance = line.rise.half_width && line.rise.mean - *line.rise.half_width <= 0;
            return PlotPoint{line.bits, chance ? std::min(line.rise.mean, kLeastRise) : line.rise.mean,
                             line.rise.half_width, line.label};
          })};
}

Plot divergence_plot(const Results& results, const std::vector<std::string>& palette) {
  return {.title = "Divergence of the next-token distributions",
          .x_label = kBits,
          .y_label = "KL in nats per token, with 95% intervals",
          .log_y = true,
          .floor = 1e-6,
          .floor_note = "below 1e-06",
          .palette = palette,
          .series = series_from(results.model, [](const ModelLine& line) {
            return PlotPoint{line.bits, line.divergence.mean, line.divergence.half_width, line.label};
          })};
}

Plot recall_plot(const Results& results, const std::vector<std::string>& palette) {
  return {.title = "Planted facts found again",
          .x_label = kBits,
          .y_label = "right answers in %",
          .log_y = false,
          .floor = 0,
          .floor_note = "",
          .palette = palette,
          .series = series_from(results.recall, [](const RecallLine& line) {
            return PlotPoint{line.bits, 100 * line.share, {}, line.label};
          })};
}

Plot attention_plot(const Results& results, const std::vector<std::string>& palette) {
  return {.title = "Error of the attention output",
          .x_label = kBits,
          .y_label = "relative error",
          .log_y = true,
          .floor = 1e-4,
          .floor_note = "none, or below 0.0001",
          .palette = palette,
          .series = series_from(results.recon, [](const ReconLine& line) {
            return PlotPoint{line.bits, line.output_error.value_or(std::nan("")), {}, line.label};
          })};
}

/// Rotary pairs are a dimension of each half: what turns alike stands twice.
Plot probe_plot(const ProbeLine& line) {
  Plot plot{.title = "Error of the probe quantizer by dimension of keys",
            .x_label = "dimension",
            .y_label = "mean squared error",
            .bits_x = false,
            .log_y = false,
            .floor = 0,
            .floor_note = "",
            .palette = {"low", "high"},
            .series = {{"low", {}}, {"high", {}}}};
  for (size_t j = 0; j < line.errors.size(); ++j)
    plot.series[line.high[j] ? 1 : 0].points.push_back(
        {static_cast<double>(j), line.errors[j], {}, fmt::format("dimension {}", j)});
  std::erase_if(plot.series, [](const PlotSeries& series) { return series.points.empty(); });
  return plot;
}

HeatMap layer_map(const Results& results) {
  HeatMap map{
      .title = "Signal-to-noise ratio by layer, keys and values", .unit = "dB", .columns = {}, .rows = {}};
  for (const ReconLine& line : results.recon) {
    HeatRow row{line.label, line.key.layers};
    row.values.insert(row.values.end(), line.value.layers.begin(), line.value.layers.end());
    if (map.columns.size() < row.values.size()) {
      map.columns.clear();
      for (size_t l = 0; l < line.key.layers.size(); ++l) map.columns.push_back(fmt::format("K {}", l));
      for (size_t l = 0; l < line.value.layers.size(); ++l) map.columns.push_back(fmt::format("V {}", l));
    }
    map.rows.push_back(std::move(row));
  }
  map.with_numbers = map.columns.size() <= 16;
  return map;
}

HeatMap dimension_map(const Results& results, bool keys) {
  HeatMap map{
      .title = fmt::format("Signal-to-noise ratio by dimension of a head, {}", keys ? "keys" : "values"),
      .unit = "dB",
      .columns = {},
      .rows = {},
      .with_numbers = false};
  for (const ReconLine& line : results.recon) {
    const std::vector<double>& values = (keys ? line.key : line.value).dimensions;
    map.rows.push_back({line.label, values});
    while (map.columns.size() < values.size())
      map.columns.push_back(map.columns.size() % 8 == 0 ? fmt::format("{}", map.columns.size()) : "");
  }
  return map;
}

// Tables -------------------------------------------------------------------------------------------

struct Cells {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

std::string fixed(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

std::string fixed(const std::optional<double>& value, int digits) {
  return value ? fixed(*value, digits) : "-";
}

std::string half(const Interval& interval, int digits, double factor = 1) {
  return interval.half_width ? fixed(factor * *interval.half_width, digits) : "-";
}

bool has_books(const Results& results) {
  return std::ranges::any_of(results.model,
                             [](const ModelLine& line) { return line.bits_with_book > line.bits; });
}

Cells model_cells(const Results& results) {
  Cells cells{{"setting", "bits/value", "NLL rise", "+-", "KL", "+-", "same top-1 %", "+-"}, {}};
  const bool books = has_books(results);
  if (books) cells.head.insert(cells.head.begin() + 2, "with book");
  for (const ModelLine& line : results.model) {
    std::vector<std::string> row = {line.label,
                                    fixed(line.bits, 3),
                                    fixed(line.rise.mean, 5),
                                    half(line.rise, 5),
                                    fixed(line.divergence.mean, 5),
                                    half(line.divergence, 5),
                                    fixed(100 * line.same.mean, 2),
                                    half(line.same, 2, 100)};
    if (books) row.insert(row.begin() + 2, fixed(line.bits_with_book, 3));
    cells.rows.push_back(std::move(row));
  }
  return cells;
}

Cells recall_cells(const Results& results) {
  Cells cells{{"setting", "bits/value", "right %", "from", "to"}, {}};
  for (const auto& cell : results.recall.empty() ? std::vector<RecallLine::Cell>() : results.recall[0].cells)
    cells.head.push_back(fmt::format("{:g} at {:.2f}", cell.length, cell.depth));
  for (const RecallLine& line : results.recall) {
    std::vector<std::string> row = {line.label, fixed(line.bits, 3), fixed(100 * line.share, 1),
                                    fixed(100 * line.low, 1), fixed(100 * line.high, 1)};
    for (const auto& cell : line.cells) row.push_back(fixed(100 * cell.share, 0));
    row.resize(cells.head.size(), "-");
    cells.rows.push_back(std::move(row));
  }
  return cells;
}

Cells recon_cells(const Results& results) {
  Cells cells{{"reconstruction", "bits/value", "keys SNR dB", "above bound", "values SNR dB", "above bound",
               "attention KL", "output error", "top kept %"},
              {}};
  for (const ReconLine& line : results.recon)
    cells.rows.push_back({line.label, fixed(line.bits, 3), fixed(line.key.snr, 2), fixed(line.key.gap, 2),
                          fixed(line.value.snr, 2), fixed(line.value.gap, 2), fixed(line.weights_kl, 5),
                          fixed(line.output_error, 4),
                          fixed(line.top_kept ? std::optional(100 * *line.top_kept) : std::nullopt, 1)});
  return cells;
}

std::string html_table(const std::string& caption, const Cells& cells) {
  std::string out =
      fmt::format("<div class=\"scroll\"><table><caption>{}</caption>\n<tr>", escaped_markup(caption));
  for (const std::string& title : cells.head) out += fmt::format("<th>{}</th>", escaped_markup(title));
  out += "</tr>\n";
  for (const auto& row : cells.rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += fmt::format("<td>{}</td>", escaped_markup(cell));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string text_table(const Cells& cells) {
  std::vector<Table::Column> columns;
  for (const std::string& title : cells.head) columns.push_back({title});
  Table table(columns);
  for (const auto& row : cells.rows) table.row(row);
  return table.text();
}

std::string page(const Results& results, const std::string& title) {
  const auto palette = palette_of(results);
  std::string figures, tables, notes;
  const auto figure = [&](const std::string& svg) { figures += "<figure>\n" + svg + "</figure>\n"; };
  if (!results.model.empty()) {
    figure(svg_of(rise_plot(results, palette)));
    figure(svg_of(divergence_plot(results, palette)));
    tables += html_table("What the model loses: nats per token, with 95% intervals by document",
                         model_cells(results));
  }
  if (!results.recall.empty()) {
    figure(svg_of(recall_plot(results, palette)));
    tables += html_table("Planted facts found again, by length and depth, in %", recall_cells(results));
  }
  if (!results.recon.empty()) {
    if (std::ranges::any_of(results.recon,
                            [](const ReconLine& line) { return line.output_error.has_value(); }))
      figure(svg_of(attention_plot(results, palette)));
    figure(svg_of(layer_map(results)));
    figure(svg_of(dimension_map(results, true)));
    figure(svg_of(dimension_map(results, false)));
    tables += html_table("Keys and values, and attention over them; distances to the Gaussian bound in dB",
                         recon_cells(results));
  }
  for (const ProbeLine& line : results.probes) figure(svg_of(probe_plot(line)));
  for (const std::string& note : results.notes) notes += "<li>" + escaped_markup(note) + "</li>\n";
  std::string lead;
  if (results.uncompressed_nll)
    lead = fmt::format("<p>With its uncompressed cache the model needs {} nats per token.</p>\n",
                       fixed(results.uncompressed_nll->mean, 4));
  const std::string name = escaped_markup(title);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         name +
         "</title>\n<style>\n"
         "body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #f6f6f4; margin: 0; }\n"
         "main { max-width: 1560px; margin: 0 auto; padding: 16px 20px 40px; }\n"
         "h1 { font-size: 22px; margin: 8px 0; }\n"
         ".figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); "
         "gap: 14px; }\n"
         "figure { margin: 0; background: #fff; border: 1px solid #ddd; border-radius: 6px; padding: 6px; "
         "align-self: start; overflow-x: auto; }\n"
         "svg { display: block; width: 100%; min-width: 480px; height: auto; }\n"
         ".scroll { overflow-x: auto; background: #fff; border: 1px solid #ddd; border-radius: 6px; margin: "
         "14px 0; }\n"
         "table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; font-size: "
         "13.5px; }\n"
         "caption { text-align: left; font-weight: 600; padding: 8px 10px; }\n"
         "th, td { text-align: right; padding: 3px 10px; white-space: nowrap; }\n"
         "th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }\n"
         "th { border-bottom: 1px solid #888; }\ntr:nth-child(odd) td { background: #fafaf8; }\n"
         "ul { font-size: 13px; color: #555; padding-left: 20px; }\n"
         "</style>\n</head>\n<body>\n<main>\n<h1>" +
         name + "</h1>\n" + lead + "<div class=\"figures\">\n" + figures + "</div>\n" + tables + "<ul>\n" +
         notes + "</ul>\n</main>\n</body>\n</html>\n";
}

void write_file(OutputFile& output, const std::string& text) {
  errno = 0;
  std::ofstream out(output.path(), std::ios::binary);
  out << text;
  out.close();
  if (!out) throw failed("{}: {}", output.target(), std::strerror(errno));
}

std::string summary_of(const Results& results) {
  std::string out;
  const auto add = [&](const Cells& cells) {
    if (cells.rows.empty()) return;
    if (!out.empty()) out += '\n';
    out += text_table(cells);
  };
  add(model_cells(results));
  add(recall_cells(results));
  add(recon_cells(results));
  return out;
}

std::string json_of(const Results& results, const ReportOptions& options) {
  return text_of({{"output", options.output.path},
                  {"settings", results.model.size()},
                  {"recall_settings", results.recall.size()},
                  {"reconstructions", results.recon.size()},
                  {"probes", results.probes.size()}});
}

}  // namespace

std::string report(Command& command) {
  ReportOptions options;
  command.describe(
      "RESULT ... -o PAGE [options]",
      "Makes one HTML page of results: what eval-model (text and recall), eval-recon and train-rvq print "
      "with "
      "--json. It plots the rate against what the model loses and against the error of attention, and shows "
      "errors by layer and dimension, and those that keys were split by, with tables below. The page stands "
      "alone: it needs no network, no script and no "
      "other file. The tables go to standard output as well.\n\n"
      "Settings whose labels differ only by a number at the end, as kivi-2 and kivi-4, are joined by a line.",
      "kvcodec eval-model --model data/demo-model --text docs/ --codec kivi:label=kivi-2 --json >model.json\n"
      "kvcodec eval-recon kv.h5 kivi-2.h5 --rate codes.h5 --attention --bound --json >recon.json\n"
      "kvcodec report model.json recon.json -o report.html");
  command.group("Input and output");
  command.inputs("RESULT", "JSON of eval-model, eval-recon or train-rvq", options.inputs);
  options.output.declare(command, "page to write");
  command.group("Page");
  command.options(options, {{"title", "TEXT"}, {"plot", "FILE"}});
  options.common.declare(command);
  command.parse();
  options.output.check(options.common);
  options.common.apply(command, false);

  const Results results = read_results(options.inputs);
  if (!options.plot.empty() && results.model.empty())
    throw bad_input("no result is one of eval-model over text, which --plot needs");
  const auto write_page = [&](OutputFile& output) {
    write_file(output, page(results, options.title));
    return true;
  };
  const auto make_page = [&] {
    return run_to_file(options.output, write_page, [&](bool) {
      return options.common.json ? json_of(results, options) : summary_of(results);
    });
  };
  if (options.plot.empty()) return make_page();
  return run_to_file(
      {.path = options.plot, .overwrite = options.output.overwrite},
      [&](OutputFile& plot) {
        write_file(plot, svg_of(rise_plot(results, palette_of(results))));
        return make_page();
      },
      [](const std::string& text) { return text; });
}

}  // namespace kvcodec::cli
