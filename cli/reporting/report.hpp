// The input of a report: results that eval-model, eval-recon and sensitivity printed with --json, read, checked and put
// into one order; and its output: the page, its tables as text, and conclusions, sentences made from its numbers.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/reporting/plot.hpp"

namespace kvcodec::cli {

struct Interval {
  double mean = 0;
  std::optional<double> half_width;  ///< of 95%; none for a single document, which says nothing about others

  std::optional<double> low() const { return half_width ? std::optional(mean - *half_width) : std::nullopt; }
  std::optional<double> high() const { return half_width ? std::optional(mean + *half_width) : std::nullopt; }
  bool holds_zero() const { return half_width && *low() <= 0 && *high() >= 0; }
};

/// A setting of eval-model on text.
struct ModelLine {
  std::string label;
  double bits = 0, bits_with_book = 0;
  Interval rise, divergence, same;
  double divergence_99 = 0;  ///< NaN in older results
};

/// Settings that were measured with the same model over the same documents, and can be compared, from one run of eval-model or
/// several.
template <class Line>
struct RunOf {
  std::string what;  ///< model, documents, type of the cache; of tasks with answers also what was asked
  Interval own;      ///< NLL, or the share of right answers, with the uncompressed cache
  std::vector<Line> lines;
};
using ModelRun = RunOf<ModelLine>;

/// A setting of eval-model on a task with answers.
struct RecallLine {
  std::string label;
  double bits = 0, share = 0, low = 0, high = 0;  ///< share: of right answers, with its interval
  using Place = std::pair<double, double>;        ///< of a fact: tokens of the document, and depth, or -1
  std::map<Place, double> cells;                  ///< the share at each
};

/// Settings for which the same model answered the same questions.
using RecallRun = RunOf<RecallLine>;

/// A reconstruction of eval-recon.
struct ReconLine {
  std::string label;
  double bits = 0;
  struct SideMeasures {
    double snr = 0;
    std::optional<double> gap;
    std::map<int, double> layers;    ///< SNR by the layer's number
    std::vector<double> dimensions;  ///< SNR
  };
  std::array<std::optional<SideMeasures>, 2> sides;  ///< keys, and values unless they lie in keys
  std::optional<double> weights_kl, output_error, top_kept;
};

/// The result of sensitivity: for each layer, the cost of noise of variance 1, in nats per judged token.
struct SensitivityLines {
  std::string model;
  std::vector<Interval> sides[2];  ///< keys, values
};

/// The meaning of a label, on all of the page.
struct Setting {
  std::string label;
  std::string family;              ///< settings of one are joined by lines, and have one colour
  size_t color = 0;                ///< the number of the family
  std::vector<std::string> words;  ///< the full setting; more than one where results differ in it
};

/// The origin of results.
struct Source {
  std::string file, what;
  std::string generator, created, command;  ///< empty: the result does not say
  std::vector<std::string> history;         ///< commands that led to what was measured
};

struct Results {
  std::vector<ModelRun> runs;
  std::vector<RecallRun> recalls;
  std::vector<ReconLine> recon;
  std::vector<SensitivityLines> sensitivities;
  std::vector<Setting> settings;  ///< in the order of the page: as the files, in their order, name them first
  std::vector<Source> sources;

  /// The setting of a label that some line has.
  const Setting& setting(const std::string& label) const;
};

/// Lines of all kinds are in the order of the settings. Throws Error(bad_input) naming a file that is not a result.
Results read_results(const std::vector<std::string>& files);

/// Sentences on how far settings may be trusted with this model and these documents. loss: a loss in nats per token that counts as
/// small. They claim nothing that the intervals do not support: the smallest setting whose interval lies below the loss, the smallest
/// one that cannot be told from no loss and its possible loss, and the settings that certainly lose.
std::vector<std::string> conclusion(const ModelRun& run, double loss);

/// Rise of the negative log-likelihood, as measured, with its intervals; values may be negative.
Plot rise_plot(const Results& results, const ModelRun& run);

/// One HTML file without references to others. loss: as for conclusion(); made: the run that makes the page.
std::string html_page(const Results& results, const std::string& title, double loss, const Source& made);

enum class TableForm : uint8_t { text, csv, markdown, latex };
constexpr auto names_of(TableForm) {
  return std::to_array<std::string_view>({"text", "csv", "markdown", "latex"});
}

/// The tables, an empty line between two of them; with a loss also the conclusions of the page. latex: with lines of the package booktabs.
std::string tables(const Results& results, TableForm form, std::optional<double> loss = {});

}  // namespace kvcodec::cli
