// What a report concludes, in sentences made from its numbers.
#pragma once

#include <string>
#include <vector>

#include "cli/reporting/report_results.hpp"

namespace kvcodec::cli {

/// How far settings may be trusted with this model and these documents. loss: nats per token that are taken
/// for little. Claims nothing that the intervals do not hold: which setting is the smallest whose interval
/// lies below the loss, which is the smallest that cannot be told from no loss and what it may lose all the
/// same, which ones lose for certain.
std::vector<std::string> conclusion(const ModelRun& run, double loss);

/// "0.00123 ± 0.00045"; without an interval the mean alone.
std::string interval_text(const Interval& interval);

}  // namespace kvcodec::cli
