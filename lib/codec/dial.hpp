// One scale for each codec on which its options go from its lowest rate to its highest: what a search for a rate or a loss
// turns (cli/goal.hpp). Rates rise with places, except for what blocks and groups take of short documents.
#pragma once

#include <string_view>
#include <vector>

#include "lib/codec/codec.hpp"

namespace kvcodec {

struct Dial {
  std::string_view codec;
  std::vector<std::string_view> sets =
      {};  ///< options that are the search's alone; it takes others as they are
  double least = 0, most = 0;
  bool whole = false;  ///< only whole places differ
  /// Sets options, which otherwise are as they were given. weighed: errors are weighed by layer and side.
  void (*turn)(Options& options, double place, bool weighed) = nullptr;
  std::string_view why_not = {};  ///< of a codec whose rate is fixed: what fixes it; then `turn` is null
};

/// Every codec has one.
const Dial& dial_of(const CodecEntry& codec);

}  // namespace kvcodec
