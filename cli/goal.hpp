// What encode is to reach, instead of options of a codec that lead there: a rate, a loss, or a quality. A search over the
// codec's dial (lib/codec/dial.hpp) on a sample of the cache finds the options, which then are as if they had been given.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/common.hpp"
#include "formats/kv_file.hpp"
#include "lib/codec/codec.hpp"
#include "lib/core/names.hpp"

namespace kvcodec::cli {

enum class Quality : uint8_t { low, medium, high, near_lossless };
constexpr auto names_of(Quality) {
  return std::to_array<std::string_view>({"low", "medium", "high", "near-lossless"});
}

struct GoalOptions final : Options {
  double total_bits = 0, max_nll = 0;
  std::optional<Quality> quality;
  std::string model;               ///< for max_nll
  std::vector<std::string> texts;  ///< likewise

  std::vector<OptionField> fields() override;
  void declare(Command& command);
  bool given() const { return total_bits > 0 || max_nll > 0 || quality.has_value(); }
  /// Throws Error(usage) for goals that exclude each other or lack what they need.
  void check_goal() const;
};

/// The codec with these options, for the cache that is to be encoded.
using MakeCodec = std::function<std::unique_ptr<Codec>(const Options&)>;

/// What a search has to know beside the goal.
struct GoalContext {
  const CodecEntry& codec;
  const KvReader& kv;
  std::vector<size_t> documents;  ///< of the cache, that are to be encoded
  std::vector<int> layers;        ///< likewise, ascending
  std::string weights;            ///< sensitivity file; empty: none
  const CommonOptions& common;
  MakeCodec make;
};

/// Whether weights are for this search alone: of codecs with bits for each layer, whose errors no option weighs.
bool allocates_bits(const CodecEntry& codec);

/// Throws Error(usage) where the codec has one rate only, and for options that were given and are the search's.
void check_goal_fits(const Command& command, const GoalOptions& goal, const CodecEntry& codec,
                     const std::string& word);

/// Sets options to what reaches the goal, as near as the codec can: the rate is not above total_bits, the loss on the texts
/// not above max_nll, the signal-to-noise ratio not below the quality's. Returns them as words of a command line, and says on
/// standard error what was found. Deterministic. Throws Error(usage) where no options reach it.
std::string settle(const GoalOptions& goal, const GoalContext& context, Options& options);

}  // namespace kvcodec::cli
