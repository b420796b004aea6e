#include "cli/search/goal.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/weights.hpp"
#include "cli/inputs/matching.hpp"
#include "lib/codec/layer_numbers.hpp"
#include "lib/codec/pair_codec.hpp"
#include "lib/core/error.hpp"
#include "lib/pipeline/allocation.hpp"

namespace kvcodec::cli {
namespace {

/// Near enough to a rate, and to a ratio in dB.
constexpr double kNear = 0.003, kNearDb = 0.1;
constexpr int kMostTries = 30;
constexpr int kLossTries = 9;

double snr_of(Quality quality) {
  switch (quality) {
    case Quality::low:
      return 10;
    case Quality::medium:
      return 15;
    case Quality::high:
      return 20;
    case Quality::near_lossless:
      break;
  }
  return 30;
}

OptionField* find_field(std::vector<OptionField>& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &OptionField::name);
  return found == fields.end() ? nullptr : &*found;
}

/// Whether the dial sets bits by layer. Its settings are bits then; the fraction says how many layers and sides have one more.
bool has_layer_bits(const CodecEntry& codec) {
  const auto options = codec.make_options();
  auto fields = options->fields();
  return find_field(fields, "layer-bits") != nullptr;
}

/// The dial of a codec that codes these sides. Where it sets bits by layer, allocate_bits() divides them among layers and
/// sides by what errors cost there.
class LayerDial {
 public:
  LayerDial(const CodecEntry& codec, std::span<const Side> sides, size_t layers, bool weighed)
      : dial_(codec.dial),
        sides_(sides),
        layers_(layers),
        weighed_(weighed),
        by_layer_(has_layer_bits(codec)) {}

  const Dial& dial() const { return dial_; }
  bool by_layer() const { return by_layer_; }
  /// Settings nearer than this are the same.
  double finest() const {
    return by_layer_     ? 1 / static_cast<double>(std::max<size_t>(quantizers_.size(), 1))
           : dial_.whole ? 1
                         : 1e-3;
  }

  void turn(Options& options, double setting) const {
    if (!dial_.turn) return;
    dial_.turn(options, setting, weighed_);
    if (by_layer_ && !quantizers_.empty()) set_layer_bits(options, setting);
  }

  /// For the allocation of bits: what errors would cost at 0 bits, from energies measured at kTried bits.
  static constexpr double kTried = 3;
  void find_costs(const Probe::Energies& energies, const Weights* weights) {
    for (const Side side : sides_)
      for (size_t layer = 0; layer < energies.size(); ++layer) {
        const Probe::Energy& energy = energies[layer][side == Side::value];
        if (energy.signal <= 0) continue;
        quantizers_.push_back({layer, side});
        costs_.push_back(cost_of_errors(energy, side, layer, weights) * std::exp2(2 * kTried));
      }
  }

 private:
  /// One side of one layer, which has bits of its own.
  struct Quantizer {
    size_t layer;
    Side side;
  };

  void set_layer_bits(Options& options, double setting) const {
    auto fields = options.fields();
    const OptionField& bits = *find_field(fields, "bits");
    const auto least = static_cast<int64_t>(bits.min), most = static_cast<int64_t>(bits.max);
    const auto total =
        static_cast<int64_t>(std::floor(setting * static_cast<double>(quantizers_.size()) + 1e-6));
    const std::vector<int64_t> own = allocate_bits(costs_, total, least, most);
    if (std::ranges::all_of(own, [&](int64_t one) { return one == own.front(); })) {
      set_value(bits, own.front());
      return;
    }
    std::vector<int64_t> all(2 * layers_, std::get<int64_t>(value_of(bits)));
    for (size_t i = 0; i < own.size(); ++i)
      all[(quantizers_[i].side == Side::value ? layers_ : 0) + quantizers_[i].layer] = own[i];
    set_value(*find_field(fields, "layer-bits"), layer_numbers_text(all));
  }

  const Dial& dial_;
  std::span<const Side> sides_;
  size_t layers_;
  bool weighed_, by_layer_;
  std::vector<Quantizer> quantizers_;
  std::vector<double> costs_;
};

/// Codecs by one number, the setting of their dial. A pair has two dials; its settings lie on a path of pairs of settings
/// (best_pairs): setting i is the path's point i, and from each point to the next one dial is turned, that whose bits gain
/// most.
class DialScale {
 public:
  DialScale(const GoalContext& context, Options& base, const Probe& probe)
      : context_(context), base_(to_record(base)) {
    const auto layers = static_cast<size_t>(context_.kv.model().num_layers);
    const auto add = [&](const CodecEntry& codec, std::span<const Side> sides) {
      dials_.emplace_back(codec, sides, layers, context_.weights != nullptr);
    };
    if (!context_.codec.is_pair()) {
      add(context_.codec, kSides);
    } else {
      for (const Side& side : kSides) add(context_.codec.of(side), {&side, 1});
    }
    if (std::ranges::any_of(dials_, &LayerDial::by_layer)) find_costs(probe);
    if (context_.codec.is_pair()) find_path(probe);
  }

  double least() const { return path_.empty() ? dials_[0].dial().least : 0; }
  double most() const {
    return path_.empty() ? dials_[0].dial().most : static_cast<double>(path_.size() - 1);
  }
  bool whole() const { return path_.empty() && dials_[0].dial().whole; }
  /// Settings nearer than this are the same.
  double finest() const { return path_.empty() ? dials_[0].finest() : 1e-3; }

  std::unique_ptr<Options> options_at(double setting) const {
    if (path_.empty()) return options_at(std::array{setting, setting});
    const auto before = static_cast<size_t>(std::clamp(std::floor(setting), least(), most()));
    const size_t next = std::min(before + 1, path_.size() - 1);
    const double share = setting - static_cast<double>(before);
    return options_at(std::array{std::lerp(path_[before][0], path_[next][0], share),
                                 std::lerp(path_[before][1], path_[next][1], share)});
  }

  /// The codec at that setting; nullptr where its options do not fit book or cache.
  std::unique_ptr<Codec> codec_at(double setting) const { return codec_with(*options_at(setting)); }

  /// Throws why the last setting had no codec, if none that was tried had one: what was given does not fit.
  void check_any_fits() const {
    if (refusal_ && !any_fits_) throw Error(*refusal_);
  }

 private:
  /// The settings of a pair's two dials.
  using TwoSettings = std::array<double, 2>;

  /// The first setting at which a side takes more bits than this ends its curve.
  static constexpr double kMostBits = 12;

  std::unique_ptr<Options> options_at(const TwoSettings& settings) const {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i) dials_[i].turn(own(*options, i), settings[i]);
    return options;
  }

  std::unique_ptr<Codec> codec_with(const Options& options) const {
    try {
      auto codec = context_.make(options);
      any_fits_ = true;
      return codec;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      refusal_ = error;
      return nullptr;
    }
  }

  /// The options that dial i turns.
  Options& own(Options& all, size_t i) const {
    return context_.codec.is_pair() ? dynamic_cast<PairOptions&>(all).of(kSides[i]) : all;
  }

  void find_costs(const Probe& probe) {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i)
      if (dials_[i].by_layer()) dials_[i].turn(own(*options, i), LayerDial::kTried);
    const Probe::Energies energies = probe.energies(*context_.make(*options));
    for (LayerDial& dial : dials_)
      if (dial.by_layer()) dial.find_costs(energies, context_.weights);
  }

  /// What one side takes and what its errors cost at some settings of its dial.
  struct Curve {
    std::vector<double> settings;
    std::vector<RatePoint> points;
  };

  Curve curve_of(size_t i, const Probe& probe) const {
    const Dial& dial = dials_[i].dial();
    Curve curve;
    double setting = dial.useful, step = 1;
    while (setting <= dial.most) {
      context_.tell_try();
      TwoSettings settings{dials_[0].dial().useful, dials_[1].dial().useful};
      settings[i] = setting;
      const auto codec = codec_with(*options_at(settings));
      if (!codec) break;
      const Probe::OneSide side = probe.one_side(*codec, kSides[i]);
      curve.settings.push_back(setting);
      curve.points.push_back({side.bits * side.width, side.cost(context_.weights)});
      if (!dial.turn || side.bits > kMostBits) break;
      if (dial.whole) step = std::max(setting, 1.0);  // 1, 2, 4 …
      setting += step;
    }
    return curve;
  }

  void find_path(const Probe& probe) {
    const std::array<Curve, 2> curves{curve_of(0, probe), curve_of(1, probe)};
    if (curves[0].points.empty() || curves[1].points.empty()) {
      path_.push_back({dials_[0].dial().useful, dials_[1].dial().useful});
      return;
    }
    for (const auto& [key, value] : best_pairs({curves[0].points, curves[1].points}))
      path_.push_back({curves[0].settings[key], curves[1].settings[value]});
  }

  const GoalContext& context_;
  Record base_;
  std::vector<LayerDial> dials_;   // one, or of keys and of values
  std::vector<TwoSettings> path_;  // of a pair
  mutable bool any_fits_ = false;  // of the settings tried
  mutable std::optional<Error> refusal_;
};

/// Two settings between which a rising measure passes a target: at `low` it is not above the target; at `high` it is, or
/// there is no codec. Nothing: no such setting was found.
struct Bracket {
  std::optional<double> low, high;
  double at_low = 0, at_high = std::numeric_limits<double>::infinity();
};

/// The next setting to try, by linear interpolation of the measure (regula falsi), kept away from both ends.
double between(const Bracket& bracket, double target, bool whole) {
  constexpr double kMargin = 0.05;
  const double share =
      std::isfinite(bracket.at_high) ? (target - bracket.at_low) / (bracket.at_high - bracket.at_low) : 0.5;
  const double middle = std::lerp(*bracket.low, *bracket.high,
                                  std::clamp(std::isfinite(share) ? share : 0.5, kMargin, 1 - kMargin));
  return whole ? std::clamp(std::round(middle), *bracket.low + 1, *bracket.high - 1) : middle;
}

/// Searches all settings for a bracket of the target. measure(setting): infinite where there is no codec.
/// near(at_low, at_high): whether the bracket is near enough to the target to stop.
template <class Measure, class Near>
Bracket find_bracket(const DialScale& scale, double first_step, double target, int tries,
                     const Measure& measure, const Near& near) {
  Bracket bracket;
  const auto put = [&](double setting) {
    const double value = measure(setting);
    if (value <= target) {
      bracket.low = setting, bracket.at_low = value;
    } else {
      bracket.high = setting, bracket.at_high = value;
    }
    --tries;
  };
  put(scale.least());
  // Steps that double from the coarse end: fine settings, which take long, are not tried for a low target.
  for (double step = first_step; bracket.low && !bracket.high && *bracket.low < scale.most(); step *= 2)
    put(std::min(*bracket.low + step, scale.most()));
  while (bracket.low && bracket.high && tries > 0 && *bracket.high - *bracket.low > scale.finest() &&
         !near(bracket.at_low, bracket.at_high)) {
    put(between(bracket, target, scale.finest() >= 1));
  }
  return bracket;
}

/// The options that differ, as words of a command line: "--key-rel 0.3 --value-rel 0.18".
std::string words_of(Options& before, Options& after) {
  const Record old = to_record(before), now = to_record(after);
  std::string words;
  for (const auto& [name, value] : now.items()) {
    if (*old.find(name) == value) continue;
    const std::string text = to_text(value);
    words += fmt::format("{}--{} {}", words.empty() ? "" : " ", name,
                         text.find(' ') == std::string::npos ? text : "'" + text + "'");
  }
  return words;
}

double find_rate(const GoalOptions& goal, const GoalContext& context, const DialScale& scale,
                 const Probe& probe) {
  const auto bits = [&](double setting) {
    context.tell_try();
    const auto codec = scale.codec_at(setting);
    return codec ? probe.bits(*codec) : std::numeric_limits<double>::infinity();
  };
  const auto search = [&](double target) {
    return find_bracket(scale, 1, target, kMostTries, bits,
                        [&](double low, double) { return low >= target * (1 - kNear); });
  };
  const auto missed = [&](double least) {
    scale.check_any_fits();
    return GoalMissed(
        least, fmt::format("--total-bits is {}; with these options {} takes {:.2f} bits per value at least",
                           goal.total_bits, context.codec.name, least));
  };
  const Bracket found = search(goal.total_bits);
  if (!found.low) throw missed(found.at_high);
  if (!context.wide) return *found.low;
  // The larger sample takes `ratio` times as many bits: search for a target corrected by that.
  context.tell_try();
  const double ratio = context.wide->bits(*scale.codec_at(*found.low)) / found.at_low;
  if (std::abs(ratio - 1) <= kNear) return *found.low;
  const Bracket corrected = search(goal.total_bits / ratio);
  if (!corrected.low) throw missed(corrected.at_high * ratio);
  return *corrected.low;
}

/// The bracket in which the signal-to-noise ratio, which rises, passes the target.
Bracket snr_bracket(double target, const GoalContext& context, const DialScale& scale, const Probe& probe) {
  const auto snr = [&](double setting) {
    context.tell_try();
    const auto codec = scale.codec_at(setting);
    return codec ? Probe::snr_db(probe.energies(*codec)) : std::numeric_limits<double>::infinity();
  };
  return find_bracket(scale, 1, target, kMostTries, snr,
                      [&](double, double high) { return high <= target + kNearDb; });
}

/// The lowest setting found whose signal-to-noise ratio is not below the target.
double find_snr(double target, const GoalContext& context, const DialScale& scale, const Probe& probe) {
  const Bracket found = snr_bracket(target, context, scale, probe);
  if (!found.low) return scale.least();
  if (!found.high || !std::isfinite(found.at_high))
    throw GoalMissed(found.at_low,
                     fmt::format("--quality asks for {} dB; with these options {} reaches {:.1f}", target,
                                 context.codec.name, found.at_low));
  return *found.high;
}

/// The setting at which the signal-to-noise ratio is what it usually is for such a loss, or the finest one that the codec has.
double usual_setting(double loss, const GoalContext& context, const DialScale& scale, const Probe& probe) {
  const Bracket found = snr_bracket(std::clamp(5 - 5 * std::log10(loss), 8.0, 40.0), context, scale, probe);
  if (!found.low) return scale.least();
  return found.high && std::isfinite(found.at_high) ? *found.high : *found.low;
}

double find_loss(const GoalOptions& goal, const GoalContext& context, const DialScale& scale,
                 const Probe& probe, const LossMeter& meter, Loss& reached) {
  // Losses are dear to measure: the search begins where they are likely to be met.
  const double start = usual_setting(goal.max_nll, context, scale, probe);
  std::optional<double> low, high;  // more than is allowed; not more
  double least = std::numeric_limits<double>::infinity();
  double setting = start, step = std::max(scale.finest(), scale.whole() ? start / 4 : 0.5);
  for (int tries = kLossTries; tries > 0; --tries) {
    context.tell_try();
    const auto codec = scale.codec_at(setting);
    const Loss loss = codec ? meter.loss(*codec) : Loss();
    if (codec) least = std::min(least, loss.worst());
    if (codec && loss.worst() > goal.max_nll) {
      low = setting;
    } else {
      high = setting;
      if (codec) reached = loss;
    }
    if (low && high && *high - *low <= std::max(scale.finest(), 0.03)) break;
    if (low && *low >= scale.most()) break;
    if (high && *high <= scale.least()) break;
    if (low && high)
      setting = (*low + *high) / 2;
    else
      setting = std::clamp(high ? setting - step : setting + step, scale.least(), scale.most());
    if (scale.finest() >= 1) setting = std::round(setting);
    step *= 1.5;
  }
  if (!high || !scale.codec_at(*high)) {
    scale.check_any_fits();
    throw GoalMissed(least,
                     fmt::format("--max-nll is {}; with these options {} was not found to lose so little",
                                 goal.max_nll, context.codec.name));
  }
  return *high;
}

}  // namespace

std::vector<OptionField> GoalOptions::fields() {
  return {
      {.name = "total-bits",
       .help = "set the codec's options so that the file takes this many bits per value, everything counted "
               "except the book; --bits of kivi, q4 and transform counts codes alone (no default)",
       .target = &total_bits,
       .min = 0},
      {.name = "quality",
       .help = "set the codec's options for a signal-to-noise ratio of keys and values: low 10 dB, medium "
               "15, high 20, near-lossless 30 (no default)",
       .target = &quality},
      {.name = "max-nll",
       .help =
           "set the codec's options so that --model loses at most this many nats per token on --text, both "
           "in rise of the NLL and in KL divergence (no default)",
       .target = &max_nll,
       .min = 0},
      {.name = "model", .help = "model for --max-nll: a directory or a GGUF file", .target = &model}};
}

void GoalOptions::declare(Command& command) {
  command.group("A goal instead of a codec's options");
  command.options(*this, {{"model", "PATH"}});
  command.repeated("text", "text files and folders for --max-nll; not those that are to be encoded", texts,
                   "PATH");
}

void GoalOptions::check_goal() const {
  if (of_rate() + of_loss() + quality.has_value() > 1)
    throw usage_error("--total-bits, --max-nll and --quality exclude each other");
  if (of_loss() && (model.empty() || texts.empty()))
    throw usage_error("--max-nll needs a model and a text to measure on: give --model and --text");
  if (!of_loss() && (!model.empty() || !texts.empty()))
    throw usage_error("--model and --text are for --max-nll");
}

bool allocates_bits(const CodecEntry& codec) {
  return has_layer_bits(codec.of(Side::key)) || has_layer_bits(codec.of(Side::value));
}

void check_goal_fits(const Command& command, const GoalOptions& goal, const CodecEntry& codec,
                     const std::string& word) {
  if (!goal.given()) return;
  const char* asked = goal.of_rate() ? "--total-bits" : goal.of_loss() ? "--max-nll" : "--quality";
  if (!has_dial(codec))
    throw usage_error("the codec {} has no option that {} could set: {}", codec.name, asked,
                      codec.of(Side::key).dial.why_not);
  const auto in_word = keys_of(word);
  const auto check = [&](const CodecEntry& one, std::string_view prefix) {
    for (const std::string_view own : one.dial.sets)
      if (const std::string name = fmt::format("{}{}", prefix, own);
          command.given(name) || std::ranges::count(in_word, name) > 0)
        throw usage_error("--{} is set by {}; leave out one of them", name, asked);
  };
  if (!codec.is_pair()) return check(codec, "");
  for (const Side side : kSides) check(codec.of(side), pair_prefix(side));
}

FoundOptions find_options(const GoalOptions& goal, const GoalContext& context, const Probe& probe,
                          const LossMeter* meter, Options& given) {
  const DialScale scale(context, given, probe);
  FoundOptions found;
  Loss reached;
  const double setting = goal.of_rate()   ? find_rate(goal, context, scale, probe)
                         : goal.of_loss() ? find_loss(goal, context, scale, probe, *meter, reached)
                                          : find_snr(snr_of(*goal.quality), context, scale, probe);
  if (goal.of_loss()) found.loss = reached;
  found.options = scale.options_at(setting);
  found.words = words_of(given, *found.options);
  return found;
}

std::unique_ptr<const Probe> wide_probe(const Probe& narrow, const KvReader& kv,
                                        const std::vector<size_t>& documents,
                                        const std::vector<size_t>& sampled, const std::vector<int>& layers) {
  uint64_t width = 0;
  for (const int layer : layers) width += kv.model().layer_shape(layer).width();
  auto wide = std::make_unique<const Probe>(
      kv, documents, sampled, layers,
      std::min(kWideSampleTokens, kMostSampledValues / std::max<uint64_t>(width, 1)));
  return wide->tokens() > narrow.tokens() ? std::move(wide) : nullptr;
}

std::string settle(const GoalOptions& goal, const GoalContext& context, Options& options) {
  const Probe probe(context.kv, context.documents, context.layers, kSampleTokens);
  std::unique_ptr<const Probe> wide;
  if (!goal.quality)
    wide = wide_probe(probe, context.kv, context.documents, context.documents, context.layers);
  GoalContext held = context;
  held.wide = wide.get();
  const Probe& measured = wide ? *wide : probe;
  std::optional<LossMeter> meter;
  if (goal.of_loss()) meter.emplace(goal.model, goal.texts, context.kv, context.common);
  const FoundOptions found = find_options(goal, held, probe, meter ? &*meter : nullptr, options);
  std::string words = found.words.empty() ? "what was given" : found.words;
  const auto codec = context.make(*found.options);
  if (found.loss) meter->note_exact(*found.loss, context.codec.name);
  std::string about = fmt::format("{:.3f} bits per value", measured.bits(*codec));
  if (goal.quality) about += fmt::format(" and {:.1f} dB", Probe::snr_db(probe.energies(*codec)));
  if (found.loss) about += fmt::format("; the model loses {:.4f} nats per token", found.loss->worst());
  context.common.note("{} {}: a sample of {} tokens takes {}", context.codec.name, words, measured.tokens(),
                      about);
  from_record(to_record(*found.options), options);
  return words;
}

}  // namespace kvcodec::cli
