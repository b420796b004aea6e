#include "cli/search/goal.hpp"

#include <cmath>
#include <limits>

#include "cli/codecs/codec_spec.hpp"
#include "cli/inputs/model_runner.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/codec/registry.hpp"
#include "lib/pipeline/closed_loop.hpp"
#include "lib/pipeline/sensitivity.hpp"

namespace kvcodec::cli {
namespace {

/// Number of documents on which a model is run for a loss, and their length.
constexpr size_t kLossDocuments = 6;
constexpr int64_t kLossTokens = 1024;

/// If a codec keeps more than the share kMuchExact of a prefix exactly, a note says so; a usual window and first tokens are less. If
/// it keeps kNearlyAll (even then the first token may be coded), hardly any loss can be measured.
constexpr double kMuchExact = 0.05, kNearlyAll = 0.9;

/// Number of tokens in the sample on which options are tried.
constexpr uint64_t kSampleTokens = 4096;

/// Number of tokens in the larger sample, on which the rate is checked: rates of four documents of 1,024 tokens differ by up to
/// 2.3% from those of sixteen.
constexpr uint64_t kWideSampleTokens = 4 * kSampleTokens;

/// The maximum number of values in the larger sample, in all layers: if a token has many values, it takes fewer tokens.
constexpr uint64_t kMaxSampledValues = uint64_t{1} << 28;

/// Tolerances: relative for a rate, and in dB for a ratio.
constexpr double kNear = 0.003, kNearDb = 0.1;
constexpr int kMaxTries = 30, kLossTries = 9;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr double kQualityDb[] = {10, 15, 20, 30};

/// Throws Error(bad_input) unless the cache could be the model's.
void check_model(const std::string& model, ModelFiles& files, const KvReader& kv) {
  const ModelConfig& config = files.description().config;
  const ModelInfo& info = kv.model();
  if (config.num_layers != info.num_layers || config.num_kv_heads != info.num_kv_heads ||
      config.head_dim != info.head_dim)
    throw bad_input("{}: it has {} layers, {} key/value heads of {}; the cache has {}, {} of {}", model,
                    config.num_layers, config.num_kv_heads, config.head_dim, info.num_layers,
                    info.num_kv_heads, info.head_dim);
  if (!info.weights().empty())  // a digest requires reading all weights
    check_same_weights(model, model_info(model, files, false), kv.name(), info);
}

}  // namespace

LossMeter::LossMeter(const GoalOptions& goal, const KvReader& kv, const CommonOptions& common)
    : kv_(kv), common_(common), files_(open_model(goal.model)), model_(make_model(*files_, common)) {
  check_model(goal.model, *files_, kv);
  JudgedTextOptions judged;
  judged.chunk = std::min(document_length(judged, files_->description().config), kLossTokens);
  const Tokenizer tokenizer = make_tokenizer(*files_, common);
  documents_ = spread_documents(
      judged_texts(judged, common, tokenizer, read_texts(common, goal.texts), judged.chunk), kLossDocuments);
  keep_weights(model_, {.tokens = tokens_of(documents_)});
}

Loss LossMeter::loss(const Codec& codec) const {
  ClosedLoop loop(model_, {{&codec, kv_.dtype() == DType::f32 ? DType::bf16 : kv_.dtype(), {}}},
                  {.memory = common_.memory_bytes(), .engine = common_.engine()});
  std::vector<PredictionSums> own, reference;
  StoredBits stored;
  for (const LoopResult& result : loop.run(documents_)) {
    stored.add(result.settings[0].stored);
    own.push_back(result.settings[0].sums);
    reference.push_back(result.reference.sums);
  }
  const PredictionEstimates estimates = estimate_predictions(own, reference);
  // Exempt streams take 16 bits per value. They may contain copies too (lib/codec/outer_codecs.hpp).
  const uint64_t exempt = stored.category[static_cast<size_t>(Category::exempt)] / 16;
  const double exact = static_cast<double>(std::min(exempt, stored.values)) /
                       static_cast<double>(std::max<uint64_t>(stored.values, 1));
  if (exact >= kNearlyAll)
    throw usage_error(
        "the loss is measured behind {} tokens, of whose values these options keep {:.0f}% exactly, so that hardly any can be "
        "seen: take a smaller window, sink or block",
        documents_.front().prefix, 100 * exact);
  return {estimates.rise.mean, estimates.divergence.mean, exact};
}

void LossMeter::note_exact(const Loss& loss, const std::string& codec) const {
  if (loss.exact > kMuchExact)
    common_.note(
        "the loss is measured behind {} tokens, of whose values {} keeps {:.0f}% exactly; documents of which it keeps less "
        "lose more",
        documents_.front().prefix, codec, 100 * loss.exact);
}

Samples::Samples(const SearchedCache& cache, const GoalOptions& goal, const CommonOptions& common)
    : probe(cache.kv, cache.documents, cache.sampled, cache.layers, kSampleTokens) {
  if (!goal.model.empty()) meter.emplace(goal, cache.kv, common);
  if (goal.quality) return;
  uint64_t width = 0;
  for (const int layer : cache.layers) width += cache.kv.model().layer_shape(layer).width();
  wide = std::make_unique<const Probe>(
      cache.kv, cache.documents, cache.sampled, cache.layers,
      std::min(kWideSampleTokens, kMaxSampledValues / std::max<uint64_t>(width, 1)));
  if (wide->tokens() <= probe.tokens()) wide.reset();
}

namespace {

OptionField* find_field(std::vector<OptionField>& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &OptionField::name);
  return found == fields.end() ? nullptr : &*found;
}

/// True if the dial sets bits by layer. Its settings are then mean bits of all layers and sides.
bool has_layer_bits(const CodecEntry& codec) {
  const auto options = codec.make_options();
  auto fields = options->fields();
  return find_field(fields, "layer-bits") != nullptr;
}

/// The dial of a codec that codes these sides. If it sets bits by layer, allocate_bits() divides them among layers and sides by the
/// cost of errors there.
class LayerDial {
 public:
  LayerDial(const CodecEntry& codec, std::span<const Side> sides, bool weighed)
      : dial_(codec.dial), sides_(sides), weighed_(weighed), by_layer_(has_layer_bits(codec)) {}

  const Dial& dial() const { return dial_; }
  bool by_layer() const { return by_layer_; }
  /// Settings that differ by less count as equal.
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

  /// For the allocation of bits: costs at 0 bits are extrapolated from errors measured at kTried bits.
  static constexpr double kTried = 3;
  void find_costs(const Probe::Errors& errors, const Weights* weights) {
    layers_ = errors.size();
    for (const Side side : sides_)
      for (size_t layer = 0; layer < layers_; ++layer) {
        const Probe::SideErrors& own = errors[layer][side == Side::value];
        if (own.signal <= 0) continue;
        quantizers_.push_back((side == Side::value ? layers_ : 0) + layer);
        costs_.push_back(cost_of_errors(own, side, layer, weights) * std::exp2(2 * kTried));
      }
  }

 private:
  void set_layer_bits(Options& options, double setting) const {
    auto fields = options.fields();
    const OptionField& bits = *find_field(fields, "bits");
    const auto total =
        static_cast<int64_t>(std::floor(setting * static_cast<double>(quantizers_.size()) + 1e-6));
    const std::vector<int64_t> own =
        allocate_bits(costs_, total, static_cast<int64_t>(bits.min), static_cast<int64_t>(bits.max));
    if (std::ranges::count(own, own.front()) == std::ssize(own)) return set_value(bits, own.front());
    std::vector<int64_t> all(2 * layers_, std::get<int64_t>(value_of(bits)));
    for (size_t i = 0; i < own.size(); ++i) all[quantizers_[i]] = own[i];
    set_value(*find_field(fields, "layer-bits"), layer_numbers_text(all));
  }

  const Dial& dial_;
  std::span<const Side> sides_;
  bool weighed_, by_layer_;
  size_t layers_ = 0;
  std::vector<size_t> quantizers_;  // sides of layers with bits of their own: keys of all layers, then values
  std::vector<double> costs_;       // of each
};

/// Two settings between which a rising measure passes a target: at `low` it is not above the target; at `high` it is, or there is
/// no codec. std::nullopt: no such setting was found.
struct Bracket {
  std::optional<double> low, high;
  double at_low = 0, at_high = kInfinity;

  /// The next setting to try, by linear interpolation of the measure (regula falsi), kept away from both ends.
  double between(double target, bool whole) const {
    constexpr double kMargin = 0.05;
    const double share = std::isfinite(at_high) ? (target - at_low) / (at_high - at_low) : 0.5;
    const double middle =
        std::lerp(*low, *high, std::clamp(std::isfinite(share) ? share : 0.5, kMargin, 1 - kMargin));
    return whole ? std::clamp(std::round(middle), *low + 1, *high - 1) : middle;
  }
};

/// A search among codecs over one number, the setting of their dial. A pair has two dials; its settings lie on a path of pairs of
/// settings (best_pairs): setting i is the path's point i, and from each point to the next the dial whose bits gain most is turned.
class Search {
 public:
  Search(const GoalOptions& goal, const GoalContext& context, Options& base)
      : goal_(goal), context_(context), probe_(context.samples.probe), base_(to_record(base)) {
    const bool weighed = context.weights != nullptr, pair = context.codec.is_pair();
    if (!pair) dials_.emplace_back(context.codec, kSides, weighed);
    for (const Side& side : kSides)
      if (pair) dials_.emplace_back(context.codec.of(side), std::span(&side, 1), weighed);
    if (std::ranges::any_of(dials_, &LayerDial::by_layer)) find_costs();
    if (pair) find_path();
  }

  FoundOptions run() const {
    FoundOptions found;
    found.options =
        options_at(goal_.of_rate()   ? find_rate()
                   : goal_.of_loss() ? find_loss(found.loss.emplace())
                                     : find_snr(kQualityDb[static_cast<size_t>(*goal_.quality)], false));
    return found;
  }

 private:
  /// The settings of a pair's two dials.
  using TwoSettings = std::array<double, 2>;

  /// The first setting at which a side takes more bits than this ends its curve.
  static constexpr double kMaxBits = 12;

  double lowest() const { return path_.empty() ? dials_[0].dial().lowest : 0; }
  double highest() const {
    return path_.empty() ? dials_[0].dial().highest : static_cast<double>(path_.size() - 1);
  }
  /// Settings that differ by less count as equal.
  double finest() const { return path_.empty() ? dials_[0].finest() : 1e-3; }

  std::unique_ptr<Options> options_at(const TwoSettings& settings) const {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i) dials_[i].turn(own(*options, i), settings[i]);
    return options;
  }

  std::unique_ptr<Options> options_at(double setting) const {
    if (path_.empty()) return options_at(TwoSettings{setting, setting});
    const auto before = static_cast<size_t>(std::clamp(std::floor(setting), lowest(), highest()));
    const size_t next = std::min(before + 1, path_.size() - 1);
    const double share = setting - static_cast<double>(before);
    return options_at(TwoSettings{std::lerp(path_[before][0], path_[next][0], share),
                                  std::lerp(path_[before][1], path_[next][1], share)});
  }

  /// The codec with these options, before a measurement; nullptr if they do not fit book or cache.
  std::unique_ptr<Codec> codec_with(const Options& options) const {
    context_.before_try();
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

  void find_costs() {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i)
      if (dials_[i].by_layer()) dials_[i].turn(own(*options, i), LayerDial::kTried);
    const Probe::Errors errors = probe_.errors(*context_.make(*options));
    for (LayerDial& dial : dials_)
      if (dial.by_layer()) dial.find_costs(errors, context_.weights);
  }

  /// The rate and the cost of one side at some settings of its dial.
  struct Curve {
    std::vector<double> settings;
    std::vector<RatePoint> points;
  };

  Curve curve_of(size_t i) const {
    const Dial& dial = dials_[i].dial();
    Curve curve;
    double setting = dial.useful, step = 1;
    while (setting <= dial.highest) {
      TwoSettings settings{dials_[0].dial().useful, dials_[1].dial().useful};
      settings[i] = setting;
      const auto codec = codec_with(*options_at(settings));
      if (!codec) break;
      const Probe::OneSide side = probe_.one_side(*codec, kSides[i]);
      curve.settings.push_back(setting);
      curve.points.push_back({side.bits * side.width, side.cost(context_.weights)});
      if (!dial.turn || side.bits > kMaxBits) break;
      if (dial.whole) step = std::max(setting, 1.0);  // 1, 2, 4 …
      setting += step;
    }
    return curve;
  }

  void find_path() {
    const std::array<Curve, 2> curves{curve_of(0), curve_of(1)};
    if (curves[0].points.empty() || curves[1].points.empty()) {
      path_.push_back({dials_[0].dial().useful, dials_[1].dial().useful});
      return;
    }
    for (const auto& [key, value] : best_pairs({curves[0].points, curves[1].points}))
      path_.push_back({curves[0].settings[key], curves[1].settings[value]});
  }

  /// Searches all settings for a bracket of the target. measure(codec) rises with the setting; near(bracket): true if it is near
  /// enough to the target to stop.
  template <class Measure, class Near>
  Bracket find_bracket(double target, const Measure& measure, const Near& near) const {
    Bracket bracket;
    int tries = kMaxTries;
    const auto put = [&](double setting) {
      const auto codec = codec_with(*options_at(setting));
      const double value = codec ? measure(*codec) : kInfinity;
      const bool low = value <= target;
      (low ? bracket.low : bracket.high) = setting;
      (low ? bracket.at_low : bracket.at_high) = value;
      --tries;
    };
    put(lowest());
    // Steps double from the coarse end: fine settings, which are slow, are not tried for a low target.
    for (double step = 1; bracket.low && !bracket.high && *bracket.low < highest(); step *= 2)
      put(std::min(*bracket.low + step, highest()));
    while (bracket.low && bracket.high && tries > 0 && *bracket.high - *bracket.low > finest() &&
           !near(bracket))
      put(bracket.between(target, finest() >= 1));
    return bracket;
  }

  /// Throws GoalMissed; or, if no tried setting had a codec, the error of the last one: the given options do not fit.
  template <class... Args>
  [[noreturn]] void miss(double nearest, fmt::format_string<Args...> format, Args&&... args) const {
    if (refusal_ && !any_fits_) throw Error(*refusal_);
    throw GoalMissed(nearest, fmt::format(format, std::forward<Args>(args)...));
  }

  double find_rate() const {
    const auto search = [&](double ratio) {
      const double target = goal_.total_bits / ratio;
      const Bracket found = find_bracket(
          target, [&](const Codec& codec) { return probe_.bits(codec); },
          [&](const Bracket& bracket) { return bracket.at_low >= target * (1 - kNear); });
      if (!found.low)
        miss(found.at_high * ratio,
             "--total-bits is {}; with these options {} takes {:.2f} bits per value at least",
             goal_.total_bits, context_.codec.name, found.at_high * ratio);
      return found;
    };
    const Bracket found = search(1);
    if (!context_.samples.wide) return *found.low;
    // The larger sample takes `ratio` times as many bits: search for a target corrected by that.
    const double ratio = context_.samples.wide->bits(*codec_with(*options_at(*found.low))) / found.at_low;
    return std::abs(ratio - 1) <= kNear ? *found.low : *search(ratio).low;
  }

  /// The lowest setting found whose signal-to-noise ratio is not below the target. If no setting reaches it: the finest one that
  /// has a codec if or_finest, else throws GoalMissed.
  double find_snr(double target, bool or_finest) const {
    const Bracket found = find_bracket(
        target, [&](const Codec& codec) { return Probe::judged_db(probe_.errors(codec)); },
        [&](const Bracket& bracket) { return bracket.at_high <= target + kNearDb; });
    if (!found.low) return lowest();
    if (found.high && std::isfinite(found.at_high)) return *found.high;
    if (or_finest) return *found.low;
    throw GoalMissed(found.at_low,
                     fmt::format("--quality asks for {} dB; with these options {} reaches {:.1f}", target,
                                 context_.codec.name, found.at_low));
  }

  double find_loss(Loss& reached) const {
    // Losses are expensive to measure: the search begins at the signal-to-noise ratio that is usual for such a loss.
    double setting = find_snr(std::clamp(5 - 5 * std::log10(goal_.max_nll), 8.0, 40.0), true);
    const bool whole = path_.empty() && dials_[0].dial().whole;
    std::optional<double> low, high;  // settings: low loses more than is allowed, high does not
    double nearest = kInfinity, step = std::max(finest(), whole ? setting / 4 : 0.5);
    bool has_codec = false;  // at high
    for (int tries = kLossTries; tries > 0; --tries) {
      const auto codec = codec_with(*options_at(setting));
      const Loss loss = codec ? context_.samples.meter->loss(*codec) : Loss();
      if (codec) nearest = std::min(nearest, loss.worst());
      if (codec && loss.worst() > goal_.max_nll) {
        low = setting;
      } else {
        high = setting;
        has_codec = codec != nullptr;
        if (codec) reached = loss;
      }
      if ((low && high && *high - *low <= std::max(finest(), 0.03)) || (low && *low >= highest()) ||
          (high && *high <= lowest()))
        break;
      if (low && high)
        setting = (*low + *high) / 2;
      else
        setting = std::clamp(high ? setting - step : setting + step, lowest(), highest());
      if (finest() >= 1) setting = std::round(setting);
      step *= 1.5;
    }
    if (!has_codec)
      miss(nearest, "--max-nll is {}; with these options {} was not found to lose so little", goal_.max_nll,
           context_.codec.name);
    return *high;
  }

  const GoalOptions& goal_;
  const GoalContext& context_;
  const Probe& probe_;
  Record base_;
  std::vector<LayerDial> dials_;   // one; of a pair, that of keys and that of values
  std::vector<TwoSettings> path_;  // of a pair
  mutable bool any_fits_ = false;  // of the settings tried
  mutable std::optional<Error> refusal_;
};

/// The options that differ, as words of a command line: "--key-rel 0.3 --value-rel 0.18".
std::string words_of(Options& before, Options& after) {
  const Record old = to_record(before), now = to_record(after);
  std::string words;
  for (const auto& [name, value] : now.items())
    if (*old.find(name) != value)
      words += fmt::format("{}--{} {}", words.empty() ? "" : " ", name, shell_quoted(to_text(value)));
  return words;
}

}  // namespace

std::vector<OptionField> GoalOptions::fields() {
  return {{"total-bits",
           "set the codec's options so that the file takes this many bits per value, everything counted "
           "except the book; --bits of kivi, q4 and transform counts codes alone (no default)",
           &total_bits, 0},
          {"quality",
           "set the codec's options for a signal-to-noise ratio of keys and values: low 10 dB, medium "
           "15, high 20, near-lossless 30 (no default)",
           &quality},
          {"max-nll",
           "set the codec's options so that --model loses at most this many nats per token on --text, both "
           "in rise of the NLL and in KL divergence (no default)",
           &max_nll, 0},
          {"model", "model for --max-nll: a directory or a GGUF file", &model}};
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
  for (const Side side : kSides)  // equal for a codec that is not a pair
    for (const std::string_view own : codec.of(side).dial.sets)
      if (const std::string name = fmt::format("{}{}", codec.is_pair() ? pair_prefix(side) : "", own);
          command.given(name) || std::ranges::count(in_word, name) > 0)
        throw usage_error("--{} is set by {}; leave out one of them", name, asked);
}

FoundOptions find_options(const GoalOptions& goal, const GoalContext& context, Options& given) {
  FoundOptions found = Search(goal, context, given).run();
  found.words = words_of(given, *found.options);
  return found;
}

std::string settle(const GoalOptions& goal, const GoalContext& context, const CommonOptions& common,
                   Options& options) {
  const Samples& samples = context.samples;
  const FoundOptions found = find_options(goal, context, options);
  if (goal.quality || (!context.weights && (allocates_bits(context.codec) || context.codec.is_pair())))
    samples.probe.note_energy_alone(common);
  std::string words = found.words.empty() ? "what was given" : found.words;
  const auto codec = context.make(*found.options);
  if (found.loss) samples.meter->note_exact(*found.loss, context.codec.name);
  std::string about = fmt::format("{:.3f} bits per value", samples.for_rates().bits(*codec));
  if (goal.quality) about += fmt::format(" and {:.1f} dB", Probe::judged_db(samples.probe.errors(*codec)));
  if (found.loss) about += fmt::format("; the model loses {:.4f} nats per token", found.loss->worst());
  common.note("{} {}: a sample of {} tokens takes {}", context.codec.name, words,
              samples.for_rates().tokens(), about);
  from_record(to_record(*found.options), options);
  return words;
}

}  // namespace kvcodec::cli
