#include "cli/reporting/report_page.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "cli/frame/text.hpp"
#include "cli/reporting/report_plots.hpp"
#include "cli/reporting/report_words.hpp"

namespace kvcodec::cli {
namespace {

// Tables -------------------------------------------------------------------------------------------

struct Cells {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  ///< a setting's label first
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

bool has_books(const ModelRun& run) {
  return std::ranges::any_of(run.lines,
                             [](const ModelLine& line) { return line.bits_with_book > line.bits; });
}

Cells model_cells(const ModelRun& run) {
  Cells cells{{"setting", "bits/value", "NLL rise", "+-", "KL", "+-", "KL 99th pct", "same top-1 %", "+-"},
              {}};
  const bool books = has_books(run);
  if (books) cells.head.insert(cells.head.begin() + 2, "with book");
  for (const ModelLine& line : run.lines) {
    std::vector<std::string> row = {line.label,
                                    fixed(line.bits, 3),
                                    fixed(line.rise.mean, 5),
                                    half(line.rise, 5),
                                    fixed(line.divergence.mean, 5),
                                    half(line.divergence, 5),
                                    fixed(line.divergence_99, 4),
                                    fixed(100 * line.same.mean, 2),
                                    half(line.same, 2, 100)};
    if (books) row.insert(row.begin() + 2, fixed(line.bits_with_book, 3));
    cells.rows.push_back(std::move(row));
  }
  return cells;
}

/// A column for each length and depth that any line has.
Cells recall_cells(const RecallRun& run) {
  Cells cells{{"setting", "bits/value", "right %", "from", "to"}, {}};
  std::set<RecallLine::Place> places;
  for (const RecallLine& line : run.lines)
    for (const auto& [place, share] : line.cells) places.insert(place);
  for (const auto& [length, depth] : places)
    cells.head.push_back(fmt::format("{:g} at {:.2f}", length, depth));
  for (const RecallLine& line : run.lines) {
    std::vector<std::string> row = {line.label, fixed(line.bits, 3), fixed(100 * line.share, 1),
                                    fixed(100 * line.low, 1), fixed(100 * line.high, 1)};
    for (const RecallLine::Place& place : places) {
      const auto own = line.cells.find(place);
      row.push_back(own == line.cells.end() ? "-" : fixed(100 * own->second, 0));
    }
    cells.rows.push_back(std::move(row));
  }
  return cells;
}

Cells recon_cells(const Results& results) {
  Cells cells{{"reconstruction", "bits/value", "keys SNR dB", "above bound", "values SNR dB", "above bound",
               "attention KL", "output error", "top kept %"},
              {}};
  for (const ReconLine& line : results.recon) {
    std::vector<std::string>& row = cells.rows.emplace_back();
    row = {line.label, fixed(line.bits, 3)};
    for (const ReconLine::SideMeasures* side : {&line.key, line.value ? &*line.value : nullptr}) {
      row.push_back(side ? fixed(side->snr, 2) : "-");
      row.push_back(side ? fixed(side->gap, 2) : "-");
    }
    row.insert(row.end(), {fixed(line.weights_kl, 5), fixed(line.output_error, 4),
                           fixed(line.top_kept ? std::optional(100 * *line.top_kept) : std::nullopt, 1)});
  }
  return cells;
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

/// The sign and the label of a setting; its words come up where the pointer rests.
std::string setting_cell(const Setting& setting) {
  std::string words;
  for (const std::string& one : setting.words) words += (words.empty() ? "" : " | ") + one;
  return fmt::format("<th scope=\"row\" title=\"{}\">{}{}</th>", escaped_markup(words),
                     svg_of(setting.marker), escaped_markup(setting.label));
}

std::string html_table(const Results& results, const std::string& caption, const Cells& cells) {
  std::string out =
      fmt::format("<div class=\"scroll\"><table><caption>{}</caption>\n<tr>", escaped_markup(caption));
  for (const std::string& title : cells.head)
    out += fmt::format("<th scope=\"col\">{}</th>", escaped_markup(in_print(title)));
  out += "</tr>\n";
  for (const auto& row : cells.rows) {
    out += "<tr>" + setting_cell(results.setting(row[0]));
    for (size_t c = 1; c < row.size(); ++c)
      out += fmt::format("<td>{}</td>", escaped_markup(in_print(row[c])));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// Parts of the page --------------------------------------------------------------------------------

std::string paragraph(const std::string& text) { return "<p>" + escaped_markup(text) + "</p>\n"; }

std::string figure(const std::string& svg) { return "<figure>\n" + svg + "</figure>\n"; }

std::string figures(const std::string& inside) {
  return inside.empty() ? "" : "<div class=\"figures\">\n" + inside + "</div>\n";
}

/// What the model loses, of one run: conclusion, plots, table.
std::string run_part(const Results& results, const ModelRun& run, double loss) {
  std::string out = "<h2>What the model loses</h2>\n";
  out += paragraph(fmt::format("{}. With its uncompressed cache the model needs {} nats per token.", run.what,
                               interval_text(run.nll)));
  out += "<div class=\"conclusion\">\n";
  for (const std::string& sentence : conclusion(run, loss)) out += paragraph(sentence);
  out += "</div>\n";
  return out +
         figures(figure(svg_of(rise_plot(results, run))) + figure(svg_of(divergence_plot(results, run)))) +
         html_table(results, "Nats per token, with 95% intervals by document", model_cells(run));
}

std::string recall_part(const Results& results, const RecallRun& run) {
  return "<h2>Planted facts</h2>\n" + paragraph(run.what + ".") +
         figures(figure(svg_of(recall_plot(results, run)))) +
         html_table(results, "Found again, in %, with 95% intervals; then by length and depth",
                    recall_cells(run));
}

std::string recon_part(const Results& results) {
  if (results.recon.empty()) return {};
  std::string inside;
  if (std::ranges::any_of(results.recon, [](const ReconLine& line) { return line.output_error.has_value(); }))
    inside += figure(svg_of(attention_plot(results)));
  inside += figure(svg_of(layer_map(results))) + figure(svg_of(dimension_map(results, true)));
  if (std::ranges::any_of(results.recon, [](const ReconLine& line) { return line.value.has_value(); }))
    inside += figure(svg_of(dimension_map(results, false)));
  return "<h2>What becomes of keys and values</h2>\n" + figures(inside) +
         html_table(results, "Keys, values and attention over them; distances to the Gaussian bound in dB",
                    recon_cells(results));
}

std::string probe_part(const Results& results) {
  std::string inside;
  for (const ProbeLine& line : results.probes) inside += figure(svg_of(probe_plot(line)));
  return inside.empty() ? "" : "<h2>Codebooks</h2>\n" + figures(inside);
}

std::string sensitivity_part(const Results& results) {
  std::string inside;
  for (const SensitivityLines& lines : results.sensitivities)
    inside += figure(svg_of(sensitivity_plot(lines)));
  return inside.empty() ? "" : "<h2>Where errors hurt</h2>\n" + figures(inside);
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
    ".sign{vertical-align:-2px;margin-right:7px}\n"
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
      name + "</title>\n<style>\n" + kStyle + drawing_style() + "</style>\n</head>\n<body>\n<main>\n<h1>" +
      name + "</h1>\n";
  for (const ModelRun& run : results.runs) out += run_part(results, run, text.loss);
  for (const RecallRun& run : results.recalls) out += recall_part(results, run);
  out += recon_part(results) + sensitivity_part(results) + probe_part(results) + settings_part(results) +
         sources_part(results, text.made);
  return out + "</main>\n</body>\n</html>\n";
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
