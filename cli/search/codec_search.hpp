// The search for the best codec for a goal: every promising codec is tried on a sample of a cache, with the options that reach the
// goal. For kvcodec choose, and for encode --codec auto.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/search/goal.hpp"
#include "lib/core/record.hpp"

namespace kvcodec::cli {

/// A codec and the result of its trial.
struct Attempt {
  std::string codec, book = {};
  /// The options that reach the goal, as words of a command line; "": the defaults reach it, or nothing does.
  std::string options = {};
  std::optional<Record> settings = {};  ///< all options with which it was reached
  std::string weights = {};             ///< the sensitivity file that these options need
  bool reached = false;
  std::optional<double> bits = {}, snr_db = {};  ///< of the sample; bits per value
  std::optional<double> attention_db = {};       ///< Probe::judged_db(), if there are queries
  std::optional<Loss> loss = {};                 ///< if there is a model
  /// The nearest value of the goal's measure, if the goal was missed.
  std::optional<double> nearest = {};
  double seconds = 0;
  std::string reason = {};  ///< why it did not reach the goal; "" if it did
};

/// The measure that decides between attempts that reach the goal.
enum class Judge : uint8_t { bits, loss, attention, snr };

/// The best attempt that reaches the goal, the first of equals; std::nullopt if none does.
std::optional<size_t> best_of(std::span<const Attempt> attempts, Judge judge);

/// The nearest of those that missed the goal; std::nullopt if none was measured.
std::optional<size_t> nearest_of(std::span<const Attempt> attempts);

/// Codecs that were not tried because the time was over.
std::vector<std::string> untried(std::span<const Attempt> attempts);
inline constexpr const char* kNoTimeLeft = "not tried: the time was over";

/// The part of the cache to encode, as it was given.
struct EncodedPart {
  std::string input, documents, layers;
};

/// "kvcodec encode kv.h5 --codec kvcomp --key-rel 0.3 -o codes.h5"
std::string encode_command(const Attempt& attempt, const EncodedPart& part);

/// Documents from which a book is learned, and those on which codecs are tried: every other one. A single document is both.
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

  std::string goal_text() const {
    return goal.of_rate() ? fmt::format("--total-bits is {}", goal.total_bits)
                          : fmt::format("--max-nll is {}", goal.max_nll);
  }
  /// Throws Error(usage) without a goal, and for goals that exclude each other or lack a required option.
  void check_goal() const;
  /// Reads the books. Throws Error(usage) for unknown names of codecs, and for books that none of the codecs uses.
  void check_books() const;
};

/// Codecs that are tried by default, the most promising first.
std::vector<std::string_view> codecs_worth_trying();

/// True if the codec of that name is tried.
bool tries_codec(const SearchOptions& options, std::string_view name);

struct SearchResult {
  std::vector<Attempt> attempts;  ///< in the order in which they were made
  size_t choice = 0;              ///< the best of them, which reaches the goal
  Judge judge = Judge::bits;      ///< what decided
  uint64_t tokens = 0;            ///< of the sample

  const Attempt& chosen() const { return attempts[choice]; }
};

/// Notes on standard error which measure decides, and which codecs were not tried because the time was over. since: the beginning
/// of the time. Throws Error(usage) if no codec reaches the goal, naming the nearest.
SearchResult search_codecs(const SearchOptions& options, const SearchedCache& cache,
                           const CommonOptions& common, const Stopwatch& since);

}  // namespace kvcodec::cli
