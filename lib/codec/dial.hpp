// A dial for each codec: one number, the dial's setting, sets the codec's options, from its lowest rate to its
// highest. A search for a rate or a loss turns it (cli/search/goal.hpp). A higher setting means a higher rate, except
// where the overhead of blocks and groups dominates in short documents.
#pragma once

#include <string_view>
#include <vector>

#include "lib/core/options.hpp"

namespace kvcodec {

struct Dial {
  /// Options that the user cannot give together with a search. For all others the search starts from the
  /// user's values.
  std::vector<std::string_view> sets = {};
  double least = 0, most = 0;
  double useful = least;  ///< the lowest setting that a search on one side alone looks at
  bool whole = false;     ///< only whole settings differ
  /// Sets options of the codec, which otherwise are as they were given. weighed: errors are weighed by layer and side.
  void (*turn)(Options& options, double setting, bool weighed) = nullptr;
  std::string_view why_not = {};  ///< of a codec whose rate is fixed: what fixes it; then `turn` is null
};

/// Rounded to three digits, so that the option can be typed as it was used.
double rounded_setting(double x);

struct CodecEntry;

/// Whether a search can set the rate: of a pair (pair_codec.hpp), that of either side.
bool has_dial(const CodecEntry& codec);

}  // namespace kvcodec
