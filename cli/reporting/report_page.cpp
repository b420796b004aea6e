#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "cli/frame/text.hpp"
#include "cli/reporting/report.hpp"
#include "lib/core/mapped.hpp"

namespace kvcodec::cli {
namespace {

constexpr const char* kSideWords[] = {"keys", "values"};

std::string interval_text(const Interval& interval) {
  if (!std::isfinite(interval.mean)) return "-";
  const std::string mean = fmt::format("{:.5f}", interval.mean);
  return interval.half_width ? fmt::format("{} ± {:.5f}", mean, *interval.half_width) : mean;
}

bool with_book(const ModelLine& line) { return line.bits_with_book > line.bits; }

using Lines = std::vector<const ModelLine*>;

/// The lines with an interval for whose rise wanted() is true.
template <class Wanted>
Lines chosen(const ModelRun& run, const Wanted& wanted) {
  Lines lines;
  for (const ModelLine& line : run.lines)
    if (line.rise.half_width && std::isfinite(line.rise.mean) && wanted(line.rise)) lines.push_back(&line);
  return lines;
}

/// The line with the fewest bits; nullptr if none has a rate.
const ModelLine* smallest(const Lines& lines) {
  const ModelLine* best = nullptr;
  for (const ModelLine* line : lines)
    if (std::isfinite(line->bits) && (!best || line->bits < best->bits)) best = line;
  return best;
}

std::string named(const ModelLine& line) {
  const std::string book =
      with_book(line) ? fmt::format(" ({:.3f} with its book over these documents)", line.bits_with_book) : "";
  return fmt::format("{} with {:.3f} bits per value{}, rise {}", line.label, line.bits, book,
                     interval_text(line.rise));
}

/// The labels; if there are many, their number.
std::string labels(const Lines& lines) {
  constexpr size_t kFew = 8;
  if (lines.size() > kFew) return counted(lines.size(), "setting");
  std::string text;
  for (const ModelLine* line : lines) text += (text.empty() ? "" : ", ") + line->label;
  return text;
}

std::string small_loss_sentence(const ModelRun& run, size_t settings, double loss) {
  const Lines lines = chosen(run, [&](const Interval& rise) { return *rise.high() < loss; });
  const ModelLine* best = smallest(lines);
  if (!best)
    return fmt::format(
        "No setting has a 95% interval of the rise that lies wholly below a loss of {:g} nats per token.",
        loss);
  return fmt::format(
      "Of {}, {} {} a 95% interval of the rise that lies wholly below a loss of {:g} nats per token; the smallest is {}.",
      counted(settings, "setting"), lines.size(), lines.size() == 1 ? "has" : "have", loss, named(*best));
}

std::string unclear_sentence(const ModelRun& run) {
  const Lines lines = chosen(run, [](const Interval& rise) { return rise.holds_zero(); });
  const ModelLine* best = smallest(lines);
  if (!best) return "No interval holds 0: each setting can be told from no loss.";
  return fmt::format(
      "{} cannot be told from no loss: the interval holds 0. The smallest is {}. That does not show that it loses "
      "nothing: these documents would fit a loss of up to {:.2g} nats per token as well.",
      counted(lines.size(), "setting"), named(*best), *best->rise.high());
}

std::string clear_sentences(const ModelRun& run) {
  const Lines worse = chosen(run, [](const Interval& rise) { return *rise.low() > 0; });
  const Lines better = chosen(run, [](const Interval& rise) { return *rise.high() < 0; });
  std::string text;
  if (!worse.empty()) text = fmt::format("The interval lies wholly above 0, a loss, for {}.", labels(worse));
  if (!better.empty())
    text += fmt::format(
        "{}It lies wholly below 0 for {}: the text became likelier, which is a change too, and no gain to count on.",
        text.empty() ? "" : " ", labels(better));
  return text;
}

/// The cells of a line with their headings, the label first.
using Cells = std::vector<std::pair<std::string, std::string>>;

std::string fixed(const std::optional<double>& value, int digits, double factor = 1) {
  return value && std::isfinite(*value) ? fmt::format("{:.{}f}", factor * *value, digits) : "-";
}

std::vector<Cells> model_cells(const ModelRun& run) {
  std::vector<Cells> rows;
  const bool books = std::ranges::any_of(run.lines, with_book);
  for (const ModelLine& line : run.lines) {
    Cells& cells = rows.emplace_back(Cells{{"setting", line.label}, {"bits/value", fixed(line.bits, 3)}});
    const auto add = [&](const char* title, const Interval& interval, int digits, double factor = 1) {
      cells.emplace_back(title, fixed(interval.mean, digits, factor));
      cells.emplace_back("+-", fixed(interval.half_width, digits, factor));
    };
    if (books) cells.emplace_back("with book", fixed(line.bits_with_book, 3));
    add("NLL rise", line.rise, 5);
    add("KL", line.divergence, 5);
    cells.emplace_back("KL 99th pct", fixed(line.divergence_99, 4));
    add("same top-1 %", line.same, 2, 100);
  }
  return rows;
}

/// Rows with a column for each length and depth that any line has.
std::vector<Cells> recall_cells(const RecallRun& run) {
  std::set<RecallLine::Place> places;
  for (const RecallLine& line : run.lines)
    for (const auto& [place, share] : line.cells) places.insert(place);
  std::vector<Cells> rows;
  for (const RecallLine& line : run.lines) {
    Cells& cells = rows.emplace_back(Cells{{"setting", line.label},
                                           {"bits/value", fixed(line.bits, 3)},
                                           {"right %", fixed(line.share, 1, 100)},
                                           {"from", fixed(line.low, 1, 100)},
                                           {"to", fixed(line.high, 1, 100)}});
    for (const RecallLine::Place& place : places) {
      const auto own = line.cells.find(place);
      cells.emplace_back(place.second < 0 ? fmt::format("{:g} tokens", place.first)
                                          : fmt::format("{:g} at {:.2f}", place.first, place.second),
                         own == line.cells.end() ? "-" : fixed(own->second, 0, 100));
    }
  }
  return rows;
}

std::vector<Cells> recon_cells(const Results& results) {
  std::vector<Cells> rows;
  for (const ReconLine& line : results.recon) {
    Cells& cells =
        rows.emplace_back(Cells{{"reconstruction", line.label}, {"bits/value", fixed(line.bits, 3)}});
    for (const size_t side : {0u, 1u}) {
      const auto& own = line.sides[side];
      cells.emplace_back(side == 0 ? "keys SNR dB" : "values SNR dB", own ? fixed(own->snr, 2) : "-");
      cells.emplace_back("above bound", own ? fixed(own->gap, 2) : "-");
    }
    cells.emplace_back("attention KL", fixed(line.weights_kl, 5));
    cells.emplace_back("output error", fixed(line.output_error, 4));
    cells.emplace_back("top kept %", fixed(line.top_kept, 1, 100));
  }
  return rows;
}

std::string text_table(const std::vector<Cells>& rows) {
  if (rows.empty()) return {};
  std::vector<Table::Column> columns;
  for (const auto& [title, text] : rows[0]) columns.push_back({title});
  Table table(columns);
  for (const Cells& row : rows) {
    std::vector<std::string> texts;
    for (const auto& [title, text] : row) texts.push_back(text);
    table.row(std::move(texts));
  }
  return table.text();
}

/// With a mark before each of these characters.
std::string marked(const std::string& text, std::string_view characters, const char* mark) {
  std::string out;
  for (const char c : text) out += fmt::format("{}{}", characters.find(c) == characters.npos ? "" : mark, c);
  return out;
}

std::string formed_cell(const std::string& text, TableForm form) {
  if (form == TableForm::latex) return text == "+-" ? "$\\pm$" : marked(text, "%&#_$", "\\");
  const bool quoted = form == TableForm::csv && text.find_first_of(",\"") != text.npos;
  return quoted ? '"' + marked(text, "\"", "\"") + '"' : text;
}

std::string formed_table(const std::vector<Cells>& rows, TableForm form) {
  if (form == TableForm::text || rows.empty()) return text_table(rows);
  const auto line = [&](const Cells& row, auto member) {
    std::vector<std::string> cells;
    for (const auto& cell : row) cells.push_back(formed_cell(cell.*member, form));
    if (form == TableForm::markdown) return fmt::format("| {} |\n", fmt::join(cells, " | "));
    if (form == TableForm::latex) return fmt::format("{} \\\\\n", fmt::join(cells, " & "));
    return fmt::format("{}\n", fmt::join(cells, ","));
  };
  const size_t numbers = rows[0].size() - 1;
  std::string head = line(rows[0], &Cells::value_type::first), body;
  for (const Cells& row : rows) body += line(row, &Cells::value_type::second);
  if (form == TableForm::markdown)
    head += fmt::format("| --- |{}\n", fmt::join(std::vector<std::string>(numbers, " ---: |"), ""));
  if (form != TableForm::latex) return head + body;
  return fmt::format("\\begin{{tabular}}{{l{}}}\n\\toprule\n{}\\midrule\n{}\\bottomrule\n\\end{{tabular}}\n",
                     std::string(numbers, 'r'), head, body);
}

/// "+-" as "±", and "-12" with a true minus sign.
std::string in_print(std::string text) {
  if (text == "+-") return "±";
  if (text.size() > 1 && text[0] == '-' && text.find_first_not_of("0123456789.", 1) == std::string::npos)
    text.replace(0, 1, "\u2212");
  return text;
}

/// The colour and the label of a setting; its words appear under the pointer.
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

std::string html_table(const Results& results, const std::string& caption, const std::vector<Cells>& rows) {
  std::vector<std::string> head;
  std::string body;
  for (const Cells& row : rows) {
    body += "<tr>" + setting_cell(results.setting(row[0].second));
    head.clear();
    for (const auto& [title, text] : row) {
      if (!head.empty()) body += fmt::format("<td>{}</td>", escaped_markup(in_print(text)));
      head.push_back(title);
    }
    body += "</tr>\n";
  }
  return table_start("", caption, head) + body + "</table></div>\n";
}

struct Map {
  std::string title;
  std::vector<std::string> columns = {};
  std::vector<std::pair<std::string, std::vector<double>>> rows = {};  ///< of a label
};

/// A table of coloured cells, from dark red for the lowest value of all to dark blue for the highest.
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
  for (const size_t side : {0u, 1u}) {
    std::set<int> all;  // layers of any reconstruction; they may differ
    for (const ReconLine& line : results.recon)
      if (line.sides[side])
        for (const auto& [layer, snr] : line.sides[side]->layers) all.insert(layer);
    for (const int layer : all) {
      map.columns.push_back(fmt::format("{} {}", side == 0 ? "K" : "V", layer));
      for (size_t i = 0; i < results.recon.size(); ++i) {
        const auto& own = results.recon[i].sides[side];
        map.rows[i].second.push_back(own && own->layers.contains(layer) ? own->layers.at(layer)
                                                                        : std::nan(""));
      }
    }
  }
  return map;
}

Map dimension_map(const Results& results, size_t side) {
  Map map{.title = fmt::format("Signal-to-noise ratio by dimension of a head, {}", kSideWords[side])};
  for (const ReconLine& line : results.recon) {
    if (!line.sides[side]) continue;
    map.rows.push_back({line.label, line.sides[side]->dimensions});
    while (map.columns.size() < map.rows.back().second.size())
      map.columns.push_back(fmt::format("{}", map.columns.size()));
  }
  return map;
}

constexpr const char* kBits = "bits per value, without books";

/// Adds the points of `lines`, joined by family. at(line): the point, to which rate, label and words of the setting are added.
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

/// Plots a loss of a run's model over the rate.
Plot loss_plot(const Results& results, const ModelRun& run, const char* title, const char* y_label,
               Interval ModelLine::*loss) {
  Plot plot{.title = title, .x_label = kBits, .y_label = y_label, .y = Scale::wide};
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

Plot divergence_plot(const Results& results, const ModelRun& run) {
  return loss_plot(results, run, "Divergence of the next-token distributions (KL)",
                   "nats per token, with 95% intervals", &ModelLine::divergence);
}

Plot recall_plot(const Results& results, const RecallRun& run) {
  Plot plot{
      .title = "Questions answered", .x_label = kBits, .y_label = "right answers in %, with 95% intervals"};
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

Plot sensitivity_plot(const SensitivityLines& lines) {
  constexpr double kBeside = 0.12;  // so that intervals of keys and values do not hide each other
  Plot plot{.title = "What noise in the cache costs, by layer",
            .x_label = "layer",
            .y_label = "nats per token for noise of variance 1, with 95% intervals",
            .note = lines.model + ".",
            .x = Scale::linear,
            .y = Scale::wide};
  for (const size_t side : {0u, 1u}) {
    PlotLine& line = plot.lines.emplace_back(PlotLine{.label = kSideWords[side], .color = side});
    for (const Interval& layer : lines.sides[side]) {
      const size_t number = line.points.size();
      line.points.push_back({.x = static_cast<double>(number) + (side == 0 ? -kBeside : kBeside),
                             .y = layer.mean,
                             .low = layer.low(),
                             .high = layer.high(),
                             .label = fmt::format("{} of layer {}", line.label, number)});
    }
  }
  return plot;
}

std::string paragraph(const std::string& text) { return "<p>" + escaped_markup(text) + "</p>\n"; }

std::string figures(const std::vector<Plot>& plots) {
  std::string out = "<div class=\"figures\">\n";
  for (const Plot& plot : plots) out += "<figure>\n" + svg_of(plot, false) + "</figure>\n";
  return out + "</div>\n";
}

std::string recon_part(const Results& results) {
  if (results.recon.empty()) return {};
  std::string out = "<h2>What becomes of keys and values</h2>\n";
  if (std::ranges::any_of(results.recon, [](const ReconLine& line) { return line.output_error.has_value(); }))
    out += figures({attention_plot(results)});
  out += html_map(results, layer_map(results));
  for (const size_t side : {0u, 1u})
    if (const Map map = dimension_map(results, side); !map.rows.empty()) out += html_map(results, map);
  return out + html_table(results,
                          "Keys, values and attention over them; distances to the Gaussian bound in dB",
                          recon_cells(results));
}

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

std::vector<std::string> conclusion(const ModelRun& run, double loss) {
  const size_t settings = chosen(run, [](const Interval&) { return true; }).size();
  if (settings == 0)
    return {
        "There is no interval for any setting, since one document alone says nothing about others: "
        "what is lost cannot be told from chance."};
  std::vector<std::string> sentences{
      small_loss_sentence(run, settings, loss), unclear_sentence(run), clear_sentences(run),
      fmt::format(
          "A 95% interval misses its true value in one of twenty cases{}. It speaks of documents like these only.",
          settings >= 10 ? fmt::format(": about {:.0f} of these {} do",
                                       std::ceil(static_cast<double>(settings) / 20), settings)
                         : "")};
  std::erase(sentences, "");
  if (const size_t without = run.lines.size() - settings; without > 0)
    sentences.push_back(fmt::format("{} {} no interval and {} left out of this.", counted(without, "setting"),
                                    without == 1 ? "has" : "have", without == 1 ? "is" : "are"));
  return sentences;
}

Plot rise_plot(const Results& results, const ModelRun& run) {
  return loss_plot(results, run, "Rise of the negative log-likelihood",
                   "nats per token, with 95% intervals; above 0: the model loses", &ModelLine::rise);
}

std::string html_page(const Results& results, const std::string& title, double loss, const Source& made) {
  const std::string name = escaped_markup(title);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      name + "</title>\n<style>\n" + kStyle + plot_style() + "</style>\n</head>\n<body>\n<main>\n<h1>" +
      name + "</h1>\n";
  for (const ModelRun& run : results.runs) {
    out += "<h2>What the model loses</h2>\n";
    out += paragraph(fmt::format("{}. With its uncompressed cache the model needs {} nats per token.",
                                 run.what, interval_text(run.own)));
    out += "<div class=\"conclusion\">\n";
    for (const std::string& sentence : conclusion(run, loss)) out += paragraph(sentence);
    out += "</div>\n" + figures({rise_plot(results, run), divergence_plot(results, run)}) +
           html_table(results, "Nats per token, with 95% intervals by document", model_cells(run));
  }
  for (const RecallRun& run : results.recalls)
    out += "<h2>Answers</h2>\n" + paragraph(run.what + ".") + figures({recall_plot(results, run)}) +
           html_table(results, "Found again, in %, with 95% intervals; then by length and depth",
                      recall_cells(run));
  out += recon_part(results);
  if (!results.sensitivities.empty())
    out += "<h2>Where errors hurt</h2>\n" + figures(mapped<Plot>(results.sensitivities, sensitivity_plot));
  out += settings_part(results) + "<h2>Where this comes from</h2>\n<ul class=\"sources\">\n";
  for (const Source& source : results.sources) out += source_part(source);
  return out +
         fmt::format("</ul>\n<p class=\"made\">This page: {}</p>\n<p class=\"made\"><code>{}</code></p>\n",
                     escaped_markup(made_text(made)), escaped_markup(made.command)) +
         "</main>\n</body>\n</html>\n";
}

std::string tables(const Results& results, TableForm form, std::optional<double> loss) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : "\n") + part; };
  for (const ModelRun& run : results.runs) {
    if (loss && results.runs.size() > 1) add(run.what + "\n");
    add(formed_table(model_cells(run), form));
    if (!loss) continue;
    std::string words;
    for (const std::string& sentence : conclusion(run, *loss)) words += wrapped(sentence, 100, 0) + "\n";
    add(words);
  }
  for (const RecallRun& run : results.recalls) {
    if (loss && results.recalls.size() > 1) add(run.what + "\n");
    add(formed_table(recall_cells(run), form));
  }
  if (!results.recon.empty()) add(formed_table(recon_cells(results), form));
  return out;
}

}  // namespace kvcodec::cli
