// The page of a report, and its tables as text.
#pragma once

#include <string>

#include "cli/reporting/plot.hpp"
#include "cli/reporting/report_results.hpp"

namespace kvcodec::cli {

struct PageText {
  std::string title;
  double loss = 0;  ///< conclusion() says of what
  Source made;      ///< the run that makes the page
};

/// Rise of the negative log-likelihood: as measured, with its intervals, negative ones too.
Plot rise_plot(const Results& results, const ModelRun& run);

/// One HTML file that needs no other.
std::string html_page(const Results& results, const PageText& text);

/// The tables, and what the page concludes.
std::string text_page(const Results& results, double loss);

}  // namespace kvcodec::cli
