// What encode is to reach, instead of options of a codec that lead there: a rate, a loss, or a quality. A search over the
// codec's dial (lib/codec/dial.hpp) on a sample of the cache finds the options, which then are as if they had been given.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/codecs/weights.hpp"
#include "cli/frame/command.hpp"
#include "cli/frame/common.hpp"
#include "cli/search/loss_meter.hpp"
#include "cli/search/probe.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/codec/codec.hpp"
#include "lib/core/error.hpp"
#include "lib/core/names.hpp"

namespace kvcodec::cli {

enum class Quality : uint8_t { low, medium, high, near_lossless };
constexpr auto names_of(Quality) {
  return std::to_array<std::string_view>({"low", "medium", "high", "near-lossless"});
}

struct GoalOptions final : Options {
  static constexpr double kNone =
      -1;  ///< no such goal; one of 0 is a goal too, if hardly one that is reached
  double total_bits = kNone, max_nll = kNone;
  std::optional<Quality> quality;
  std::string model;               ///< for max_nll
  std::vector<std::string> texts;  ///< likewise

  std::vector<OptionField> fields() override;
  void declare(Command& command);
  bool of_rate() const { return total_bits >= 0; }
  bool of_loss() const { return max_nll >= 0; }
  bool given() const { return of_rate() || of_loss() || quality.has_value(); }
  /// Throws Error(usage) for goals that exclude each other or lack what they need.
  void check_goal() const;
};

/// The codec with these options, for the cache that is to be encoded.
using MakeCodec = std::function<std::unique_ptr<Codec>(const Options&)>;

/// Tokens of the sample that options are tried on.
constexpr uint64_t kSampleTokens = 4096;

/// Tokens of the larger sample, on which the rate that was found is checked: rates of four documents of 1,024 tokens differ
/// by up to 2.3% from those of sixteen.
constexpr uint64_t kWideSampleTokens = 4 * kSampleTokens;

/// The most values of the larger sample, in all layers: where a token has many values, it takes fewer tokens.
constexpr uint64_t kMostSampledValues = uint64_t{1} << 28;

/// The larger sample; nullptr where it would be no larger than the other.
std::unique_ptr<const Probe> wide_probe(const Probe& narrow, const KvReader& kv,
                                        const std::vector<size_t>& documents,
                                        const std::vector<size_t>& sampled, const std::vector<int>& layers);

/// What a search has to know beside the goal.
struct GoalContext {
  const CodecEntry& codec;
  const KvReader& kv;
  std::vector<size_t> documents;  ///< of the cache, that are to be encoded
  std::vector<int> layers;        ///< likewise, ascending
  const Weights* weights;         ///< what errors cost; nullptr: they are weighed by the signal
  const CommonOptions& common;
  MakeCodec make;
  const Probe* wide = nullptr;            ///< a larger sample for rates, where there is one
  std::function<void()> before_try = {};  ///< called before each measurement; what it throws ends the search

  void tell_try() const {
    if (before_try) before_try();
  }
};

/// A goal (usage) that no options of a codec reach.
class GoalMissed : public Error {
 public:
  GoalMissed(double nearest, const std::string& message)
      : Error(ErrorKind::usage, message), nearest_(nearest) {}
  /// What came nearest, as the goal counts: bits per value, nats per token or dB; infinite where nothing could be measured.
  double nearest() const { return nearest_; }

 private:
  double nearest_;
};

struct FoundOptions {
  std::unique_ptr<Options> options;
  std::string words;  ///< what differs from what was given, as words of a command line; "" if nothing does
  std::optional<Loss> loss;  ///< where the goal is one
};

/// The options that reach the goal, as near as the codec can: the sample's rate is at most 0.3% above total_bits, the
/// loss on the texts not above max_nll, the signal-to-noise ratio not below the quality's. given: where the search begins, which stays as it is.
/// meter: for max_nll. Deterministic. Throws GoalMissed where no options reach it.
FoundOptions find_options(const GoalOptions& goal, const GoalContext& context, const Probe& probe,
                          const LossMeter* meter, Options& given);

/// Whether the search allocates bits to each layer and side, which it can for codecs with an option
/// layer-bits. Then only the search uses the sensitivities of --weights; the codec itself does not weight
/// errors.
bool allocates_bits(const CodecEntry& codec);

/// Throws Error(usage) for a codec whose rate is fixed, and for options that the user gave but the search
/// sets.
void check_goal_fits(const Command& command, const GoalOptions& goal, const CodecEntry& codec,
                     const std::string& word);

/// Sets options to what find_options() finds on a sample of the cache. Returns that as words of a command line, and says
/// it on standard error.
std::string settle(const GoalOptions& goal, const GoalContext& context, Options& options);

}  // namespace kvcodec::cli
