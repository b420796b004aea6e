#include "lib/metrics/selection.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/error.hpp"

namespace kvcodec {

double selection_recall(std::span<const uint32_t> selected, std::span<const uint32_t> wanted) {
  if (wanted.empty()) return 1;
  std::vector<uint32_t> found(selected.begin(), selected.end()), sought(wanted.begin(), wanted.end()), both;
  std::sort(found.begin(), found.end());
  std::sort(sought.begin(), sought.end());
  std::ranges::set_intersection(found, sought, std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(sought.size());
}

double mass_covered(std::span<const float> logits, std::span<const uint32_t> selected) {
  if (logits.empty() && selected.empty()) return 1;
  const double max = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  double all = 0, covered = 0;
  for (const float logit : logits) all += std::exp(logit - max);
  for (const uint32_t id : selected) {
    if (id >= logits.size()) throw failed("token {} of {}", id, logits.size());
    covered += std::exp(logits[id] - max);
  }
  return covered / all;
}

double relative_error(std::span<const float> output, std::span<const float> reference) {
  if (output.size() != reference.size())
    throw failed("{} values against {} of a reference", output.size(), reference.size());
  double error = 0, energy = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    const double difference = double{output[i]} - double{reference[i]};
    error += difference * difference;
    energy += double{reference[i]} * double{reference[i]};
  }
  if (error == 0) return 0;
  return energy == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / energy);
}

double largest_relative_error(MatrixView<const float> outputs, MatrixView<const float> references,
                              size_t dims) {
  if (outputs.rows() != references.rows() || outputs.cols() != references.cols() || dims == 0 ||
      outputs.cols() % dims != 0)
    throw failed("{} x {} values against {} x {} of a reference, in vectors of {}", outputs.rows(),
                 outputs.cols(), references.rows(), references.cols(), dims);
  double largest = 0;
  for (size_t i = 0; i < outputs.rows(); ++i)
    for (size_t first = 0; first < outputs.cols(); first += dims)
      largest = std::max(largest, relative_error(outputs.row(i).subspan(first, dims),
                                                 references.row(i).subspan(first, dims)));
  return largest;
}

}  // namespace kvcodec
