// Goals of encode instead of a codec's options: a rate, a loss, or a quality. A search over the codec's dial (lib/codec/codec.hpp)
// on a sample of the cache finds the options, which are then used as if they had been given.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/codecs/coding.hpp"
#include "cli/frame/command.hpp"
#include "cli/frame/common.hpp"
#include "cli/search/probe.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/models/model_files.hpp"
#include "lib/codec/codec.hpp"
#include "lib/core/error.hpp"
#include "lib/core/names.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec::cli {

enum class Quality : uint8_t { low, medium, high, near_lossless };
constexpr auto names_of(Quality) {
  return std::to_array<std::string_view>({"low", "medium", "high", "near-lossless"});
}

struct GoalOptions final : Options {
  /// No goal; 0 is a goal too, although it can hardly be reached.
  static constexpr double kNone = -1;
  double total_bits = kNone, max_nll = kNone;
  std::optional<Quality> quality;
  std::string model;               ///< for max_nll
  std::vector<std::string> texts;  ///< likewise

  std::vector<OptionField> fields() override;
  void declare(Command& command) {
    command.group("A goal instead of a codec's options");
    command.options(*this, {{"model", "PATH"}});
    command.repeated("text", "text files and folders for --max-nll; not those that are to be encoded", texts,
                     "PATH");
  }
  bool of_rate() const { return total_bits >= 0; }
  bool of_loss() const { return max_nll >= 0; }
  bool given() const { return of_rate() || of_loss() || quality.has_value(); }
  /// Throws Error(usage) for goals that exclude each other or lack a required option.
  void check_goal() const;
};

/// The part of a cache to encode, and the documents on which codecs are tried.
struct SearchedCache {
  const KvReader& kv;
  std::vector<size_t> documents, sampled;
  std::vector<int> layers;  ///< ascending
};

/// The loss that a codec causes in a model, in nats per judged token.
struct Loss {
  double rise = 0;        ///< of the NLL
  double divergence = 0;  ///< from the predictions with the model's own cache
  double exact = 0;       ///< share of the prefixes' values that the codec keeps exactly
  double rise_half = 0,
         divergence_half = 0;  ///< of the 95% intervals; infinite for fewer than four documents
  double bits = 0;             ///< of the prefixes' streams, per value
  /// The larger one: with few tokens the rise may be below 0 by chance; the divergence never is.
  double worst() const { return std::max(rise, divergence); }
  bool has_interval() const { return std::isfinite(rise_half + divergence_half); }
  /// The upper end of the interval; without one the loss itself.
  double upper() const {
    return has_interval() ? std::max(rise + rise_half, divergence + divergence_half) : worst();
  }
  /// "the model loses 0.0123 nats per token, at most 0.0151 with 95% confidence".
  std::string text() const {
    return fmt::format("the model loses {:.4f} nats per token, {}", worst(),
                       has_interval() ? fmt::format("at most {:.4f} with 95% confidence", upper())
                                      : "of which so few documents give no interval");
  }
};

/// Measures losses on texts by the closed loop (lib/pipeline/closed_loop.hpp) on few documents, because searches measure often.
class LossMeter {
 public:
  /// goal: its model, a directory or a GGUF file, made the cache. Throws Error(bad_input) for models of another shape, and with
  /// other weights if the cache identifies those of its model. cache.kv and common outlive this object.
  LossMeter(const GoalOptions& goal, const SearchedCache& cache, const CommonOptions& common);

  /// The model reads the documents once for all codecs together. Throws Error(usage) for a codec that keeps nearly all values of these
  /// documents exactly: hardly anything would be lost, whatever its other options.
  std::vector<Loss> losses(std::span<const Codec* const> codecs) const;

  /// Notes that a loss says little of the cache: if the codec keeps much of the judged documents exactly, and if the cache's tokens
  /// are not those of the judged text.
  void note_limits(const Loss& loss, const std::string& codec) const;

 private:
  SearchedCache cache_;
  const CommonOptions& common_;
  std::unique_ptr<ModelFiles> files_;
  LlamaModel model_;
  std::vector<LoopDocument> documents_;
};

/// Samples on which codecs are measured. Together they take less than half the time of an encode, unless the cache is small: a search
/// tries several settings on the narrow one, and one setting on the wide one, whose results correct the others.
struct Samples {
  /// goal: if a model is named, losses are measured.
  Samples(const SearchedCache& cache, const GoalOptions& goal, const CommonOptions& common);

  Probe narrow, wide;
  std::optional<LossMeter> meter;
};

/// Makes the codec with these options, for the cache to encode.
using MakeCodec = std::function<std::unique_ptr<Codec>(const Options&)>;

/// All data of a search except the goal.
struct GoalContext {
  const CodecEntry& codec;
  const Weights* weights;  ///< what errors cost; nullptr: they are weighed by the signal
  MakeCodec make;
  const Samples& samples;
  std::function<void()> before_try = [] {
  };  ///< called before each measurement; what it throws ends the search
};

/// The error (usage) if no options of a codec reach the goal.
struct GoalMissed : Error {
  GoalMissed(double least, const std::string& message) : Error(ErrorKind::usage, message), nearest(least) {}
  /// The nearest value in units of the goal: bits per value, nats per token or dB; infinite if nothing could be measured.
  double nearest;
};

/// The price of a search.
struct SearchPrice {
  int tries = 0;              ///< settings that were measured, on any sample
  uint64_t coded_values = 0;  ///< of all samples
};

struct FoundOptions {
  std::unique_ptr<Options> options;
  std::string words;  ///< what differs from what was given, as words of a command line; "" if nothing does
  std::optional<Loss> loss;  ///< if the goal is a loss
  std::optional<double> bits,
      db;  ///< what the whole cache is expected to come to, if the goal is a rate or a quality
  SearchPrice price;
};

/// The options that reach the goal, as near as the codec can: rate and quality by interpolation between two measured settings, which
/// may miss by a percent on either side; of losses the upper end of the interval on the texts is not above max_nll, if any setting achieves
/// that. given: where the search begins; it is not changed. Deterministic. Throws GoalMissed if no options reach the goal.
FoundOptions find_options(const GoalOptions& goal, const GoalContext& context, Options& given);

/// True if the search allocates bits to each layer and side, which it can for codecs with an option layer-bits. Then only the
/// search uses the sensitivities of --weights; the codec itself does not weight errors.
bool allocates_bits(const CodecEntry& codec);

/// Throws Error(usage) for a codec whose rate is fixed, and for options that the user gave but the search sets.
void check_goal_fits(const Command& command, const GoalOptions& goal, const CodecEntry& codec,
                     const std::string& word);

/// Sets options to the result of find_options(), and prints them on standard error.
FoundOptions settle(const GoalOptions& goal, const GoalContext& context, const CommonOptions& common,
                    Options& options);

}  // namespace kvcodec::cli
