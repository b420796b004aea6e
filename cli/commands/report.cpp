#include "cli/reporting/report.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"

namespace kvcodec::cli {
namespace {

struct ReportOptions final : CommandOptions {
  std::vector<std::string> inputs;
  std::string title = "What compression does to the cache, and to the model", plot;
  double loss = 0.01;  ///< 1% more perplexity, which readers hardly notice
  TableForm table = TableForm::text;

  std::vector<OptionField> fields() override {
    return {
        {"title", "title of the page", &title},
        {"loss",
         "rise of the negative log-likelihood, in nats per token, that the conclusion takes for small", &loss,
         0, 100},
        {"plot", "also write the first plot by itself, as an SVG file", &plot},
        {"table",
         "print the tables alone, in this form; without -o no page is made. latex needs the package booktabs",
         &table}};
  }
};

void write_file(OutputFile& output, const std::string& text) {
  errno = 0;
  std::ofstream out(output.path(), std::ios::binary);
  out << text;
  out.close();
  if (!out) throw failed("{}: {}", output.target(), std::strerror(errno));
}

std::string report(Command& command) {
  ReportOptions options;
  command.describe(
      "RESULT ... -o PAGE [options]   or: RESULT ... --table FORM [options]",
      "Makes one HTML page of results: what eval-model (text and recall), eval-recon and sensitivity "
      "print with --json. It says what the intervals allow to conclude, plots the rate against what the model loses "
      "and against the error of attention, and shows errors by layer and dimension "
      "and what noise costs in each layer, with tables, the full settings and the command lines. The page stands alone: it needs no "
      "network, no script and no other file. Tables and conclusion go to standard output as well.\n\n"
      "Settings whose labels differ only by a number at the end, as kivi-2 and kivi-4, are joined by a line.",
      "kvcodec eval-model --model DIR --text docs/ --codec kivi --json >model.json\n"
      "kvcodec eval-recon kv.h5 kivi.h5 --rate codes.h5 --bound --json >recon.json\n"
      "kvcodec report model.json recon.json -o report.html\n"
      "kvcodec report model.json --table latex");
  command.group("Input and output");
  command.inputs("RESULT", "JSON of eval-model, eval-recon or sensitivity", options.inputs);
  options.output.declare(command, "page to write");
  command.group("Page");
  command.options(options, {{"title", "TEXT"}, {"loss", "NATS"}, {"plot", "FILE"}});
  options.common.declare(command);
  command.parse();
  const bool alone = command.given("table");
  if (alone && options.output.path.empty()) {
    if (!options.plot.empty()) throw usage_error("--plot needs -o");
    options.common.apply(command, false);
    return tables(read_results(options.inputs), options.table);
  }
  options.check_files(command, options.inputs, false);
  options.output.differs_from(options.plot, "--plot");
  OutputOptions{.path = options.plot, .to = {}, .force = options.output.force}.keep(options.inputs);

  const Results results = read_results(options.inputs);
  if (!options.plot.empty() && results.runs.empty())
    throw bad_input("no result is one of eval-model over text, which --plot needs");
  const Source made{{}, {}, generator(), timestamp(), command.history_line(), {}};
  const auto write_page = [&](OutputFile& output) {
    write_file(output, html_page(results, options.title, options.loss, made));
    return true;
  };
  const auto make_page = [&] {
    return run_to_file(options.output, write_page, [&](bool) {
      if (alone) return tables(results, options.table);
      if (!options.common.json) return tables(results, TableForm::text, options.loss);
      Json conclusions = Json::array();
      size_t settings = 0, recalls = 0;
      for (const RecallRun& run : results.recalls) recalls += run.lines.size();
      for (const ModelRun& run : results.runs) {
        settings += run.lines.size();
        conclusions.push_back({{"of", run.what}, {"sentences", conclusion(run, options.loss)}});
      }
      return text_of({{"output", options.output.path},
                      {"settings", settings},
                      {"recall_settings", recalls},
                      {"reconstructions", results.recon.size()},
                      {"sensitivities", results.sensitivities.size()},
                      {"conclusions", conclusions}});
    });
  };
  if (options.plot.empty()) return make_page();
  return run_to_file(
      {.path = options.plot, .to = {}, .overwrite = options.output.replaces()},
      [&](OutputFile& plot) {
        write_file(plot, svg_of(rise_plot(results, results.runs[0]), true));
        return make_page();
      },
      [](const std::string& page) { return page; });
}

}  // namespace

CommandEntry report_command() {
  return {CommandGroup::look, 6, "report", "make a page of plots and tables from results", report};
}

}  // namespace kvcodec::cli
