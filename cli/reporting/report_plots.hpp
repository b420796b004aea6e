// The plots of a report.
#pragma once

#include <vector>

#include "cli/reporting/report_results.hpp"
#include "cli/reporting/svg.hpp"

namespace kvcodec::cli {

/// Rise of the negative log-likelihood: as measured, with its intervals, negative ones too.
Plot rise_plot(const Results& results, const ModelRun& run);
Plot divergence_plot(const Results& results, const ModelRun& run);
Plot recall_plot(const Results& results, const RecallRun& run);
/// Of results with attention; without, a plot with no point.
Plot attention_plot(const Results& results);
Plot probe_plot(const ProbeLine& line);
Plot sensitivity_plot(const SensitivityLines& lines);
HeatMap layer_map(const Results& results);
HeatMap dimension_map(const Results& results, bool keys);

}  // namespace kvcodec::cli
