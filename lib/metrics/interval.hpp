// Confidence intervals of means over documents. Documents count as independent; tokens of one document are
// not, so an interval computed from single tokens could be too narrow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcodec {

/// A mean and half the width of its 95% interval.
struct Estimate {
  double mean = 0;
  double half_width = 0;  ///< infinite for fewer than two documents
};

/// The mean per token of all documents together, sum of sums over sum of counts, and its interval by the
/// usual approximation for a ratio (Cochran, "Sampling Techniques", section 2.11): the spread of sums[i] -
/// mean * counts[i] over the documents, times Student's t. Documents with a count of 0 are left out; NaN
/// without any. Throws Error(failed) for spans of different sizes.
Estimate mean_by_document(std::span<const double> sums, std::span<const double> counts);

/// The share of successes of independent trials, and its 95% interval by Wilson's score (1927), which holds
/// for shares near 0 and 1 too. 0 to 1 without trials.
struct ShareEstimate {
  double share = 0, low = 0, high = 1;
};
ShareEstimate share_of(uint64_t successes, uint64_t trials);

/// The value at `fraction` (0..1) of the sorted values, linear between neighbours. Reorders them; there is at
/// least one.
double quantile(std::vector<float>& values, double fraction);

/// The 97.5% point of Student's t distribution, to 0.2%: exact for 1 and 2 degrees of freedom, by the
/// expansion in their inverse (Fisher 1941; Abramowitz and Stegun 26.7.5) for more. Infinite for 0.
double student_975(uint64_t degrees);

}  // namespace kvcodec
