#include "cli/goal.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/codec_spec.hpp"
#include "cli/matching.hpp"
#include "cli/weights.hpp"
#include "lib/codec/dial.hpp"
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
  const auto place = std::ranges::find(fields, name, &OptionField::name);
  return place == fields.end() ? nullptr : &*place;
}

/// Whether the dial's places are bits, whose fractions are how many layers and sides have one more.
bool has_layer_bits(const CodecEntry& codec) {
  const auto options = codec.make_options();
  auto fields = options->fields();
  return find_field(fields, "layer-bits") != nullptr;
}

/// The dial of a codec that codes these sides. Where it sets bits, those of each layer and side are chosen by what errors
/// cost there.
class LayerDial {
 public:
  LayerDial(const CodecEntry& codec, std::span<const Side> sides, size_t layers, bool weighed)
      : dial_(dial_of(codec)),
        sides_(sides),
        layers_(layers),
        weighed_(weighed),
        by_layer_(has_layer_bits(codec)) {}

  const Dial& dial() const { return dial_; }
  std::span<const Side> sides() const { return sides_; }
  bool by_layer() const { return by_layer_; }
  /// Places nearer than this are the same.
  double finest() const {
    return by_layer_ ? 1 / static_cast<double>(std::max<size_t>(places_.size(), 1)) : dial_.whole ? 1 : 1e-3;
  }

  void turn(Options& options, double place) const {
    if (!dial_.turn) return;
    dial_.turn(options, place, weighed_);
    if (by_layer_ && !places_.empty()) set_layer_bits(options, place);
  }

  /// Where bits are allocated: what errors cost that no bits leave, by what those of kTried bits are.
  static constexpr double kTried = 3;
  template <class Cost>
  void find_costs(const Probe::Energies& energies, const Cost& cost) {
    for (const Side side : sides_)
      for (size_t layer = 0; layer < energies.size(); ++layer) {
        const Probe::Energy& energy = energies[layer][side == Side::value];
        if (energy.signal <= 0) continue;
        places_.push_back({layer, side});
        costs_.push_back(cost(side, layer, energy) * energy.error * std::exp2(2 * kTried));
      }
  }

 private:
  struct Place {
    size_t layer;
    Side side;
  };

  void set_layer_bits(Options& options, double place) const {
    auto fields = options.fields();
    const OptionField& bits = *find_field(fields, "bits");
    const auto least = static_cast<int64_t>(bits.min), most = static_cast<int64_t>(bits.max);
    const auto total = static_cast<int64_t>(std::floor(place * static_cast<double>(places_.size()) + 1e-6));
    const std::vector<int64_t> own = allocate_bits(costs_, total, least, most);
    if (std::ranges::all_of(own, [&](int64_t one) { return one == own.front(); })) {
      set_value(bits, own.front());
      return;
    }
    std::vector<int64_t> all(2 * layers_, std::get<int64_t>(value_of(bits)));
    for (size_t i = 0; i < own.size(); ++i)
      all[(places_[i].side == Side::value ? layers_ : 0) + places_[i].layer] = own[i];
    set_value(*find_field(fields, "layer-bits"), layer_numbers_text(all));
  }

  const Dial& dial_;
  std::span<const Side> sides_;
  size_t layers_;
  bool weighed_, by_layer_;
  std::vector<Place> places_;
  std::vector<double> costs_;
};

/// Codecs by their place on the dial. A pair has two dials, and its places lie on a path over both: from each of its stations
/// to the next one dial is turned, that whose bits gain most (best_pairs).
class DialScale {
 public:
  DialScale(const GoalContext& context, Options& base, const Probe& probe)
      : context_(context), base_(to_record(base)) {
    if (!context_.weights.empty()) weights_ = read_weights(context_.weights, context_.kv.model());
    const auto layers = static_cast<size_t>(context_.kv.model().num_layers);
    const auto add = [&](const CodecEntry& codec, std::span<const Side> sides) {
      dials_.emplace_back(codec, sides, layers, weights_.has_value());
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
  /// Places nearer than this are the same.
  double finest() const { return path_.empty() ? dials_[0].finest() : 1e-3; }

  std::unique_ptr<Options> options_at(double place) const {
    if (path_.empty()) return options_at(std::array{place, place});
    const auto before = static_cast<size_t>(std::clamp(std::floor(place), least(), most()));
    const size_t next = std::min(before + 1, path_.size() - 1);
    const double share = place - static_cast<double>(before);
    return options_at(std::array{std::lerp(path_[before][0], path_[next][0], share),
                                 std::lerp(path_[before][1], path_[next][1], share)});
  }

  /// The codec there; nullptr where its options fit neither book nor cache.
  std::unique_ptr<Codec> codec_at(double place) const { return codec_with(*options_at(place)); }

 private:
  /// A pair's places on its two dials.
  using Places = std::array<double, 2>;

  /// Most places of a side that are looked at, and bits behind which there are none.
  static constexpr size_t kMostStations = 14;
  static constexpr double kMostBits = 12;

  std::unique_ptr<Options> options_at(const Places& places) const {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i) dials_[i].turn(own(*options, i), places[i]);
    return options;
  }

  std::unique_ptr<Codec> codec_with(const Options& options) const {
    try {
      return context_.make(options);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      return nullptr;
    }
  }

  /// The options that dial i turns.
  Options& own(Options& all, size_t i) const {
    return context_.codec.is_pair() ? dynamic_cast<PairOptions&>(all).of(kSides[i]) : all;
  }

  double cost_of(Side side, size_t layer, const Probe::Energy& energy) const {
    return weights_ ? weights_->cost(side, static_cast<int>(layer)) : 1 / energy.signal;
  }

  void find_costs(const Probe& probe) {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i)
      if (dials_[i].by_layer()) dials_[i].turn(own(*options, i), LayerDial::kTried);
    const Probe::Energies energies = probe.energies(*context_.make(*options));
    for (LayerDial& dial : dials_)
      if (dial.by_layer())
        dial.find_costs(energies, [this](Side side, size_t layer, const Probe::Energy& energy) {
          return cost_of(side, layer, energy);
        });
  }

  /// What one side takes and what its errors cost along its dial, and where.
  struct Curve {
    std::vector<double> places;
    std::vector<RatePoint> points;
  };

  Curve curve_of(size_t i, const Probe& probe) const {
    const Dial& dial = dials_[i].dial();
    Curve curve;
    double step = 1;
    for (double place = dial.useful; curve.points.size() < kMostStations && place <= dial.most;
         place += step) {
      context_.tell_try();
      Places places{dials_[0].dial().useful, dials_[1].dial().useful};
      places[i] = place;
      const auto codec = codec_with(*options_at(places));
      if (!codec) break;
      const Probe::OneSide side = probe.one_side(*codec, kSides[i]);
      RatePoint point{side.bits * static_cast<double>(side.width), 0};
      for (size_t layer = 0; layer < side.energies.size(); ++layer)
        if (const Probe::Energy& energy = side.energies[layer][i]; energy.signal > 0)
          point.cost += cost_of(kSides[i], layer, energy) * energy.error;
      curve.places.push_back(place);
      curve.points.push_back(point);
      if (!dial.turn || side.bits > kMostBits) break;
      if (dial.whole) step = place;  // 1, 2, 4 …
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
      path_.push_back({curves[0].places[key], curves[1].places[value]});
  }

  const GoalContext& context_;
  Record base_;
  std::optional<Weights> weights_;
  std::vector<LayerDial> dials_;  // one, or of keys and of values
  std::vector<Places> path_;      // of a pair
};

/// The two neighbouring places between which a measure that rises passes a target: low is not above it, high is, or is
/// not to be had. Nothing measured there: none was.
struct Bracket {
  std::optional<double> low, high;
  double at_low = 0, at_high = std::numeric_limits<double>::infinity();
};

/// A place between the two, nearer to that whose measure is nearer to the target: measures are nearly straight lines.
double between(const Bracket& bracket, double target, bool whole) {
  constexpr double kMargin = 0.05;
  const double share =
      std::isfinite(bracket.at_high) ? (target - bracket.at_low) / (bracket.at_high - bracket.at_low) : 0.5;
  const double middle = std::lerp(*bracket.low, *bracket.high,
                                  std::clamp(std::isfinite(share) ? share : 0.5, kMargin, 1 - kMargin));
  return whole ? std::clamp(std::round(middle), *bracket.low + 1, *bracket.high - 1) : middle;
}

/// measure: infinite where there is no codec. near(value): whether that is near enough to stop.
template <class Measure, class Near>
Bracket find_bracket(const DialScale& scale, double first_step, double target, int tries,
                     const Measure& measure, const Near& near) {
  Bracket bracket;
  const auto put = [&](double place) {
    const double value = measure(place);
    if (value <= target) {
      bracket.low = place, bracket.at_low = value;
    } else {
      bracket.high = place, bracket.at_high = value;
    }
    --tries;
  };
  put(scale.least());
  // Steps that double: what costs much is not tried where little is wanted.
  for (double step = first_step; bracket.low && !bracket.high && *bracket.low < scale.most(); step *= 2)
    put(std::min(*bracket.low + step, scale.most()));
  while (bracket.low && bracket.high && tries > 0 && *bracket.high - *bracket.low > scale.finest() &&
         !near(bracket.at_low, bracket.at_high)) {
    put(between(bracket, target, scale.finest() >= 1));
  }
  return bracket;
}

/// "--key-rel 0.3 --value-rel 0.18": options that are other than they were.
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
  const auto bits = [&](double place) {
    context.tell_try();
    const auto codec = scale.codec_at(place);
    return codec ? probe.bits(*codec) : std::numeric_limits<double>::infinity();
  };
  const auto search = [&](double target) {
    return find_bracket(scale, 1, target, kMostTries, bits,
                        [&](double low, double) { return low >= target * (1 - kNear); });
  };
  const Bracket found = search(goal.total_bits);
  if (!found.low)
    throw GoalMissed(
        found.at_high,
        fmt::format("--total-bits is {}; with these options {} takes {:.2f} bits per value at least",
                    goal.total_bits, context.codec.name, found.at_high));
  if (!context.wide) return *found.low;
  // Documents differ: the search aims as far from the goal as its sample is from the larger one.
  context.tell_try();
  const double ratio = context.wide->bits(*scale.codec_at(*found.low)) / found.at_low;
  if (std::abs(ratio - 1) <= kNear) return *found.low;
  return search(goal.total_bits / ratio).low.value_or(*found.low);
}

/// Where signal-to-noise ratios, which rise, pass the target.
Bracket snr_bracket(double target, const GoalContext& context, const DialScale& scale, const Probe& probe) {
  const auto snr = [&](double place) {
    context.tell_try();
    const auto codec = scale.codec_at(place);
    return codec ? Probe::snr_db(probe.energies(*codec)) : std::numeric_limits<double>::infinity();
  };
  return find_bracket(scale, 1, target, kMostTries, snr,
                      [&](double, double high) { return high <= target + kNearDb; });
}

/// The place of the first ratio that is not below the target.
double find_snr(double target, const GoalContext& context, const DialScale& scale, const Probe& probe) {
  const Bracket found = snr_bracket(target, context, scale, probe);
  if (!found.low) return scale.least();
  if (!found.high || !std::isfinite(found.at_high))
    throw GoalMissed(found.at_low,
                     fmt::format("--quality asks for {} dB; with these options {} reaches {:.1f}", target,
                                 context.codec.name, found.at_low));
  return *found.high;
}

/// Where errors are what they usually are for a loss like that, or the finest place that the codec has.
double usual_place(double loss, const GoalContext& context, const DialScale& scale, const Probe& probe) {
  const Bracket found = snr_bracket(std::clamp(5 - 5 * std::log10(loss), 8.0, 40.0), context, scale, probe);
  if (!found.low) return scale.least();
  return found.high && std::isfinite(found.at_high) ? *found.high : *found.low;
}

double find_loss(const GoalOptions& goal, const GoalContext& context, const DialScale& scale,
                 const Probe& probe, const LossMeter& meter, Loss& reached) {
  // Losses are dear to measure: the search begins where they are likely to be met.
  const double start = usual_place(goal.max_nll, context, scale, probe);
  std::optional<double> low, high;  // more than is allowed; not more
  double least = std::numeric_limits<double>::infinity();
  double place = start, step = std::max(scale.finest(), scale.whole() ? start / 4 : 0.5);
  for (int tries = kLossTries; tries > 0; --tries) {
    context.tell_try();
    const auto codec = scale.codec_at(place);
    const Loss loss = codec ? meter.loss(*codec) : Loss();
    if (codec) least = std::min(least, loss.worst());
    if (codec && loss.worst() > goal.max_nll) {
      low = place;
    } else {
      high = place;
      if (codec) reached = loss;
    }
    if (low && high && *high - *low <= std::max(scale.finest(), 0.03)) break;
    if (low && *low >= scale.most()) break;
    if (high && *high <= scale.least()) break;
    if (low && high)
      place = (*low + *high) / 2;
    else
      place = std::clamp(high ? place - step : place + step, scale.least(), scale.most());
    if (scale.finest() >= 1) place = std::round(place);
    step *= 1.5;
  }
  if (!high || !scale.codec_at(*high))
    throw GoalMissed(least,
                     fmt::format("--max-nll is {}; with these options {} was not found to lose so little",
                                 goal.max_nll, context.codec.name));
  return *high;
}

}  // namespace

std::vector<OptionField> GoalOptions::fields() {
  return {
      {.name = "total-bits",
       .help = "set the codec's options so that the file takes this many bits per value, everything counted "
               "except the book (--bits of kivi, q4 and transform counts codes alone)",
       .target = &total_bits,
       .min = 0},
      {.name = "quality",
       .help = "set the codec's options for a signal-to-noise ratio of keys and values: low 10 dB, medium "
               "15, high 20, near-lossless 30 (no default)",
       .target = &quality},
      {.name = "max-nll",
       .help =
           "set the codec's options so that --model loses at most this many nats per token on --text, both "
           "in rise of the NLL and in KL divergence",
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
  if ((total_bits > 0) + (max_nll > 0) + quality.has_value() > 1)
    throw usage_error("--total-bits, --max-nll and --quality exclude each other");
  if (max_nll > 0 && (model.empty() || texts.empty()))
    throw usage_error("--max-nll needs a model and a text to measure on: give --model and --text");
  if (max_nll == 0 && (!model.empty() || !texts.empty()))
    throw usage_error("--model and --text are for --max-nll");
}

bool allocates_bits(const CodecEntry& codec) {
  return has_layer_bits(codec.of(Side::key)) || has_layer_bits(codec.of(Side::value));
}

void check_goal_fits(const Command& command, const GoalOptions& goal, const CodecEntry& codec,
                     const std::string& word) {
  if (!goal.given()) return;
  const char* asked = goal.total_bits > 0 ? "--total-bits" : goal.max_nll > 0 ? "--max-nll" : "--quality";
  if (!has_dial(codec))
    throw usage_error("the codec {} has no option that {} could set: {}", codec.name, asked,
                      dial_of(codec.of(Side::key)).why_not);
  const auto in_word = keys_of(word);
  const auto check = [&](const CodecEntry& one, std::string_view prefix) {
    for (const std::string_view own : dial_of(one).sets)
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
  const double place = goal.total_bits > 0 ? find_rate(goal, context, scale, probe)
                       : goal.max_nll > 0  ? find_loss(goal, context, scale, probe, *meter, reached)
                                           : find_snr(snr_of(*goal.quality), context, scale, probe);
  if (goal.max_nll > 0) found.loss = reached;
  found.options = scale.options_at(place);
  found.words = words_of(given, *found.options);
  return found;
}

std::string settle(const GoalOptions& goal, const GoalContext& context, Options& options) {
  const Probe probe(context.kv, context.documents, context.layers, kSampleTokens);
  GoalContext held = context;
  const Probe wide(context.kv, context.documents, context.layers, kWideSampleTokens);
  if (wide.tokens() > probe.tokens()) held.wide = &wide;
  const Probe& measured = goal.total_bits > 0 ? wide : probe;
  std::optional<LossMeter> meter;
  if (goal.max_nll > 0) meter.emplace(goal.model, goal.texts, context.kv, context.common);
  const FoundOptions found = find_options(goal, held, probe, meter ? &*meter : nullptr, options);
  std::string words = found.words.empty() ? "what was given" : found.words;
  const auto codec = context.make(*found.options);
  std::string about = fmt::format("{:.3f} bits per value", measured.bits(*codec));
  if (goal.quality) about += fmt::format(" and {:.1f} dB", Probe::snr_db(probe.energies(*codec)));
  if (found.loss) about += fmt::format("; the model loses {:.4f} nats per token", found.loss->worst());
  context.common.note("{} {}: a sample of {} tokens takes {}", context.codec.name, words, measured.tokens(),
                      about);
  from_record(to_record(*found.options), options);
  return words;
}

}  // namespace kvcodec::cli
