// Which codec reaches a goal best: every codec worth trying is tried on a sample of a cache, with the options that reach
// the goal. For kvcodec choose, and for encode --codec auto.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/frame/progress.hpp"
#include "cli/search/choice.hpp"
#include "cli/search/goal.hpp"
#include "formats/cache/kv_file.hpp"

namespace kvcodec::cli {

struct SearchOptions {
  GoalOptions goal;  ///< its model and texts judge any goal here
  std::vector<std::string> books = {};
  std::string codecs = {};   ///< a list of names; "": those worth trying
  std::string weights = {};  ///< sensitivity file for codecs that weigh errors; "": none
  double time = 600;         ///< seconds after which no measurement is begun

  Judge judge() const;
  std::string goal_text() const;
  /// Throws Error(usage) without a goal, and for goals that exclude each other or lack what they need.
  void check_goal() const;
  /// Reads the books. Throws Error(usage) for names that no codec has, and for books that none of the codecs takes.
  void check_books() const;
};

/// Codecs that are tried unless others are named, the most promising first.
std::vector<std::string_view> codecs_worth_trying();

/// Whether the codec of that name is among those that are tried.
bool tries_codec(const SearchOptions& options, std::string_view name);

/// What is to be encoded, and what codecs are tried on.
struct SearchedCache {
  const KvReader& kv;
  std::vector<size_t> documents, sampled;
  std::vector<int> layers;
};

struct SearchResult {
  std::vector<Attempt> attempts;  ///< in the order in which they were made
  size_t choice = 0;              ///< the best of them, which reaches the goal
  uint64_t tokens = 0;            ///< of the sample

  const Attempt& chosen() const { return attempts[choice]; }
};

/// Notes on standard error what decides, and which codecs were left out because the time was over. since: when the time
/// began. Throws Error(usage) where no codec reaches the goal, with what came nearest.
SearchResult search_codecs(const SearchOptions& options, const SearchedCache& cache,
                           const CommonOptions& common, const Stopwatch& since);

}  // namespace kvcodec::cli
