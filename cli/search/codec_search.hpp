// Which codec reaches a goal best: every codec worth trying is tried on a sample of a cache, with the options that reach
// the goal. For kvcodec choose, and for encode --codec auto.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/search/goal.hpp"
#include "lib/core/record.hpp"

namespace kvcodec::cli {

/// Rate and errors of one side, coded by itself.
struct SideTrial {
  double bits = 0;  ///< of its streams, per value of this side
  double cost = 0;  ///< of its errors, by what errors are weighed with
};

/// A codec and what became of it.
struct Attempt {
  std::string codec, book = {};
  /// The options that reach the goal, as words of a command line; "": the defaults do, or nothing does.
  std::string options = {};
  std::optional<Record> settings = {};  ///< all options with which it was reached
  std::string weights = {};             ///< the sensitivity file that these options need
  bool reached = false;
  std::optional<double> bits = {}, snr_db = {};  ///< of what was measured; bits per value
  std::optional<Loss> loss = {};                 ///< where there is a model
  /// The nearest value of the goal's measure, where the goal was missed.
  std::optional<double> nearest = {};
  /// Keys and values by themselves, where a pair may code one of them like that: measured, and coded apart.
  std::optional<std::array<SideTrial, 2>> sides = {};
  int layer_group = 1;
  double seconds = 0;
  std::string reason = {};  ///< why it did not reach the goal; "" if it did
};

/// The measure that decides between attempts that reach the goal.
enum class Judge : uint8_t { bits, loss, snr };

/// The best of those that reach the goal, the first of equals; nothing where none does.
std::optional<size_t> best_of(std::span<const Attempt> attempts, Judge judge);

/// The nearest of those that missed it; nothing where none was measured.
std::optional<size_t> nearest_of(std::span<const Attempt> attempts);

/// Two attempts whose codecs may do better together: keys like the one, values like the other.
struct PairPromise {
  size_t keys = 0, values = 0;
};

/// Pairs that promise more than any single codec did, the one that promises most first, `most` at most. The estimate takes
/// each bit to cut the cost of errors to a quarter. Then bits and costs of each side, measured at any rate, say what the
/// pair costs where bits are divided best. Only attempts with the same layer group, and of which at most one has a book,
/// make a pair.
std::vector<PairPromise> promising_pairs(std::span<const Attempt> attempts, size_t most);

/// Codecs that were left out because the time was over.
std::vector<std::string> untried(std::span<const Attempt> attempts);
inline constexpr const char* kNoTimeLeft = "not tried: the time was over";

/// The part of the cache that is to be encoded, as it was given.
struct EncodedPart {
  std::string input, documents, layers;
};

/// "kvcodec encode kv.h5 --codec kvcomp --key-rel 0.3 -o codes.h5"
std::string encode_command(const Attempt& attempt, const EncodedPart& part);

/// Documents that a book is learned from, and those that codecs are tried on: every other one. A single document is both.
struct LearningSplit {
  std::vector<size_t> learned, tried;
};
LearningSplit split_for_learning(const std::vector<size_t>& documents);

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
