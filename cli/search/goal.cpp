#include "cli/search/goal.hpp"

#include <limits>
#include <map>

#include "cli/codecs/codec_spec.hpp"
#include "cli/inputs/model_runner.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/codec/registry.hpp"
#include "lib/pipeline/closed_loop.hpp"
#include "lib/pipeline/sensitivity.hpp"

namespace kvcodec::cli {

/// Number of documents on which a model is run for a loss, and their length.
constexpr size_t kLossDocuments = 6;
constexpr int64_t kLossTokens = 1024;
/// Fewer say nothing of an interval: Student's t of two documents is 12.7.
constexpr size_t kLeastDocuments = 4;

/// If a codec keeps more than the share kMuchExact of a prefix exactly, a note says so; a usual window and first tokens are less. If
/// it keeps kNearlyAll (even then the first token may be coded), hardly any loss can be measured.
constexpr double kMuchExact = 0.05, kNearlyAll = 0.9;

/// A share of tokens with ids that the judged documents do not have, above which the cache is of another kind: between two novels it is
/// 0.34 at most, between novels, C++ and technical prose 0.44 at least (SmolLM2, 4,096 to 6,144 judged tokens). Fewer say too little.
constexpr double kFarIds = 0.4;
constexpr size_t kLeastIds = 4096;

/// The samples' shares of the cache's tokens, for goals of a quality, whose errors take longer, and others; and limits of their numbers
/// of tokens. Rates of a codec that learns from text differ by 2% from one document of 1,024 tokens to another.
constexpr uint64_t kNarrowShare = 32, kLeastNarrow = 256, kMaxNarrow = 1024;
constexpr uint64_t kWideShare = 4, kWideShareOfErrors = 8, kLeastWide = 1024, kMaxWide = 16384;

/// The maximum number of values in the wide sample, in all layers: if a token has many values, it takes fewer tokens.
constexpr uint64_t kMaxSampledValues = uint64_t{1} << 28;

/// If a codec keeps more than this share of the narrow sample exactly, as a window does, it says too little of others.
constexpr double kMaxExact = 0.25;

/// Within this distance of the target a measure is nearly linear, and no setting between is tried: a share of a rate, decibels of a quality.
constexpr double kNear = 0.015, kNearDb = 0.25;
/// If rates were learned at whole settings, others lie at most kAround from one of them. Around it the rate's logarithm changes kSteepness times as
/// fast as from one whole setting to the next: 1.7 (SmolLM2) to 0.8 times (a small model at high rates). A step of kNearLearned hides that.
constexpr double kAround = 0.49, kSteepness = 1.5, kNearLearned = 0.15;
/// The same for decibels, which follow learned rates less closely and differ by half a decibel from one sample to another: two decibels.
constexpr double kNearLearnedDb = 2.5;
/// The decibels that a rate of r bits usually keeps, measured on three models: kDbAtOne + kDbByLog ln r + kDbByBit (r - 1). Caches differ by an
/// offset.
constexpr double kDbAtOne = 15.9, kDbByLog = 2.3, kDbByBit = 3.7;
/// The share of a rate that is aimed at: tables that are fitted to a sample serve it better than other tokens, by some thousandths.
constexpr double kAim = 0.998;
constexpr int kMaxTries = 30, kLossRounds = 5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr double kQualityDb[] = {10, 15, 20, 30};

/// Throws Error(bad_input) unless the cache could be the model's.
static void check_model(const std::string& model, ModelFiles& files, const KvReader& kv) {
  const ModelConfig& config = files.description().config;
  const ModelInfo& info = kv.model();
  const int heads = config.max_kv_heads(), dims = config.max_head_dim();
  if (config.num_layers != info.num_layers || heads != info.num_kv_heads || dims != info.head_dim)
    throw bad_input("{}: it has {} layers, {} key/value heads of {}; the cache has {}, {} of {}", model,
                    config.num_layers, heads, dims, info.num_layers, info.num_kv_heads, info.head_dim);
  if (!info.weights().empty())  // a digest requires reading all weights
    check_same_weights(model, model_info(model, files, false), kv.name(), info);
}

LossMeter::LossMeter(const GoalOptions& goal, const SearchedCache& cache, const CommonOptions& common)
    : cache_(cache), common_(common), files_(open_model(goal.model)), model_(make_model(*files_, common)) {
  check_model(goal.model, *files_, cache.kv);
  JudgedTextOptions judged;
  judged.chunk = std::min(document_length(judged, files_->description().config), kLossTokens);
  const Tokenizer tokenizer = make_tokenizer(*files_, common);
  documents_ = spread_documents(
      judged_texts(judged, common, tokenizer, read_texts(common, goal.texts), judged.chunk), kLossDocuments);
  keep_weights(model_, {.tokens = tokens_of(documents_)});
}

std::vector<Loss> LossMeter::losses(std::span<const Codec* const> codecs) const {
  const DType dtype = cache_.kv.dtype() == DType::f32 ? DType::bf16 : cache_.kv.dtype();
  std::vector<LoopSetting> settings;
  for (const Codec* const codec : codecs) settings.push_back({codec, dtype, {}});
  ClosedLoop loop(
      model_, settings,
      {.memory = common_.memory_bytes(), .engine = common_.engine(), .scores = score_forms(*files_)});
  const std::vector<LoopResult> results = loop.run(documents_);
  std::vector<Loss> losses;
  for (size_t i = 0; i < codecs.size(); ++i) {
    std::vector<PredictionSums> own, reference;
    StoredBits stored = loop.shared(i);
    for (const LoopResult& result : results) {
      stored.add(result.settings[i].stored);
      own.push_back(result.settings[i].sums);
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
    const double few = documents_.size() < kLeastDocuments ? kInfinity : 0;
    losses.push_back({estimates.rise.mean, estimates.divergence.mean, exact, few + estimates.rise.half_width,
                      few + estimates.divergence.half_width, stored.bits_per_value()});
  }
  return losses;
}

void LossMeter::note_limits(const Loss& loss, const std::string& codec) const {
  if (loss.exact > kMuchExact)
    common_.note(
        "the loss is measured behind {} tokens, of whose values {} keeps {:.0f}% exactly; documents of which it keeps less "
        "lose more",
        documents_.front().prefix, codec, 100 * loss.exact);
  if (!cache_.kv.has_tokens()) return;
  std::vector<uint32_t> judged;
  for (const LoopDocument& document : documents_)
    judged.insert(judged.end(), document.tokens.begin(), document.tokens.end());
  if (judged.size() < kLeastIds) return;
  std::ranges::sort(judged);
  uint64_t tokens = 0, unseen = 0;
  const size_t step = (cache_.documents.size() + kLossDocuments - 1) / kLossDocuments;
  for (size_t i = 0; i < cache_.documents.size(); i += step) {
    const Documents& documents = cache_.kv.documents();
    const size_t document = cache_.documents[i];
    for (const uint32_t id : cache_.kv.tokens(documents.offsets[document],
                                              std::min<uint64_t>(documents.length(document), kLossTokens)))
      ++tokens, unseen += !std::ranges::binary_search(judged, id);
  }
  if (const double share = static_cast<double>(unseen) / static_cast<double>(std::max<uint64_t>(tokens, 1));
      share > kFarIds)
    common_.note(
        "{}: {:.0f}% of its tokens do not occur in the text that the loss is measured on, which is of another kind: the cache "
        "may lose several times as much. Measure on text like it",
        cache_.kv.name(), 100 * share);
}

/// Tokens of the whole documents that a search may sample.
static uint64_t tokens_of(const SearchedCache& cache) {
  uint64_t tokens = 0;
  for (const size_t document : cache.sampled) tokens += cache.kv.documents().length(document);
  return tokens;
}

static uint64_t width_of(const SearchedCache& cache) {
  uint64_t width = 0;
  for (const int layer : cache.layers) width += cache.kv.model().layer_shape(layer).width();
  return std::max<uint64_t>(width, 1);
}

Samples::Samples(const SearchedCache& cache, const GoalOptions& goal, const CommonOptions& common)
    : narrow(cache.kv, cache.documents, cache.sampled, cache.layers,
             std::clamp(tokens_of(cache) / kNarrowShare, kLeastNarrow, kMaxNarrow)),
      wide(cache.kv, cache.documents, cache.sampled, cache.layers,
           std::max(std::min(std::clamp(tokens_of(cache) / (goal.quality ? kWideShareOfErrors : kWideShare),
                                        kLeastWide, kMaxWide),
                             kMaxSampledValues / width_of(cache)),
                    narrow.tokens())) {
  if (!goal.model.empty()) meter.emplace(goal, cache, common);
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

/// Settings that were measured, and their measures, which rise with them; infinite: there is no codec.
using Measured = std::map<double, double>;

/// The settings of a dial.
struct DialRange {
  double lowest = 0, highest = 0;
  double finest = 0;  ///< settings that differ by less count as equal; above 1e-3: only its multiples differ
};

/// The settings next to the one at which a rising measure passes a target: at `low` it is not above the target.
class Bracket {
 public:
  using Point = Measured::const_iterator;

  Bracket(const Measured& measured, double target) : measured_(&measured), target_(target) {
    high_ = std::ranges::find_if(measured, [&](const auto& point) { return point.second > target; });
  }
  bool has_low() const { return high_ != measured_->begin(); }
  bool has_high() const { return high_ != measured_->end(); }
  bool has_finite_high() const { return has_high() && std::isfinite(high()->second); }
  Point low() const { return std::prev(high_); }
  Point high() const { return high_; }

  /// True if both settings are known and one is within `near` of the target, or both within three times that: setting() needs no more.
  bool closes(double near) const {
    if (!has_low() || !has_finite_high()) return false;
    const double below = target_ - low()->second, above = high()->second - target_;
    return std::min(below, above) <= near || std::max(below, above) <= 3 * near;
  }

  /// The setting at which the measure, linear between the two, meets the target; the one that there is, where there are not two.
  double setting(const DialRange& range) const {
    if (!has_low()) return high()->first;
    const double crossing =
        has_high() ? crossing_of(low(), high(), target_).value_or(low()->first) : low()->first;
    return range.finest > 1e-3 ? std::floor(crossing / range.finest + 1e-6) * range.finest : crossing;
  }
  /// The measure there.
  double at_setting(const DialRange& range) const {
    if (!has_low()) return high()->second;
    return has_finite_high() && setting(range) != low()->first ? target_ : low()->second;
  }

  /// The next setting to try for a measure of `aim`; std::nullopt if there is none.
  std::optional<double> next(const DialRange& range, double aim) const {
    if (!has_low() || !has_high()) return beyond(range, aim);
    if (high()->first - low()->first <= range.finest) return std::nullopt;
    constexpr double kMargin = 0.02;
    const double at_low = low()->first, at_high = high()->first;
    auto crossing = crossing_of(low(), high(), aim);
    // The measure bends: two points on the nearer side say more than one that is far away.
    const bool low_nearer = aim - low()->second < high()->second - aim;
    if (low_nearer ? low() != measured_->begin() : std::next(high()) != measured_->end()) {
      const auto bent = low_nearer ? crossing_of(std::prev(low()), low(), aim)
                                   : crossing_of(high(), std::next(high()), aim);
      if (bent && *bent > at_low && *bent < at_high) crossing = bent;
    }
    const double setting =
        std::clamp(crossing.value_or((at_low + at_high) / 2), std::lerp(at_low, at_high, kMargin),
                   std::lerp(at_high, at_low, kMargin));
    return range.finest >= 1 ? std::clamp(std::round(setting), at_low + 1, at_high - 1) : setting;
  }

 private:
  static std::optional<double> crossing_of(Point a, Point b, double aim) {
    const double slope = (b->second - a->second) / (b->first - a->first);
    if (!std::isfinite(slope) || slope <= 0) return std::nullopt;
    return a->first + (aim - a->second) / slope;
  }

  /// Beyond all measured settings, on the side where the target is: at most eight times the last step away.
  std::optional<double> beyond(const DialRange& range, double aim) const {
    const Point end = has_low() ? low() : high();
    if (end->first == (has_low() ? range.highest : range.lowest)) return std::nullopt;
    double step = 1;
    if (measured_->size() > 1) {
      const Point other = has_low() ? std::prev(end) : std::next(end);
      const double last = std::abs(end->first - other->first);
      const auto crossing = crossing_of(other, end, aim);
      step = crossing ? std::clamp(1.05 * std::abs(*crossing - end->first), last / 8, 8 * last) : 2 * last;
    }
    const double setting = std::clamp(end->first + (has_low() ? step : -step), range.lowest, range.highest);
    if (range.finest < 1) return setting;
    return has_low() ? std::ceil(setting) : std::floor(setting);
  }

  const Measured* measured_;
  double target_;
  Point high_;
};

/// A search among codecs over one number, the setting of their dial. A pair has two dials; its settings lie on a path of pairs of
/// settings (best_pairs): setting i is the path's point i, and from each point to the next the dial whose bits gain most is turned.
class Search {
 public:
  Search(const GoalOptions& goal, const GoalContext& context, Options& base)
      : goal_(goal), context_(context), probe_(&context.samples.narrow), base_(to_record(base)) {
    const bool weighed = context.weights != nullptr, pair = context.codec.is_pair();
    if (!pair) dials_.emplace_back(context.codec, kSides, weighed);
    for (const Side& side : kSides)
      if (pair) dials_.emplace_back(context.codec.of(side), std::span(&side, 1), weighed);
    if (std::ranges::any_of(dials_, &LayerDial::by_layer)) find_costs();
    if (pair) find_path();
    find_learned();
  }

  FoundOptions run() {
    FoundOptions found;
    const double setting = goal_.of_loss()
                               ? find_loss(found.loss.emplace())
                               : find_sampled((goal_.of_rate() ? found.bits : found.db).emplace());
    found.options = options_at(setting);
    found.price = price_;
    return found;
  }

 private:
  /// The settings of a pair's two dials.
  using TwoSettings = std::array<double, 2>;

  /// The first setting at which a side takes more bits than this ends its curve.
  static constexpr double kMaxBits = 12;

  DialRange range() const {
    if (!path_.empty()) return {0, static_cast<double>(path_.size() - 1), 1e-3};
    return {dials_[0].dial().lowest, dials_[0].dial().highest, dials_[0].finest()};
  }

  /// Tries a codec on a sample: what is asked, or a side.
  template <class Asked>
  Probe::Trial measure(const Probe& probe, const Codec& codec, Asked asked) {
    const uint64_t before = probe.coded_values();
    Probe::Trial trial = probe.measure(codec, asked);
    price_.coded_values += probe.coded_values() - before, ++price_.tries;
    return trial;
  }

  std::unique_ptr<Options> options_at(const TwoSettings& settings) const {
    auto options = context_.codec.make_options();
    from_record(base_, *options);
    for (size_t i = 0; i < dials_.size(); ++i) dials_[i].turn(own(*options, i), settings[i]);
    return options;
  }

  std::unique_ptr<Options> options_at(double setting) const {
    if (goal_.of_loss() && !learned_.empty())
      setting = std::lerp(std::round(setting), setting, 1 / kSteepness);
    if (path_.empty()) return options_at(TwoSettings{setting, setting});
    const auto before = static_cast<size_t>(std::clamp(std::floor(setting), 0.0, range().highest));
    const size_t next = std::min(before + 1, path_.size() - 1);
    const double share = setting - static_cast<double>(before);
    return options_at(TwoSettings{std::lerp(path_[before][0], path_[next][0], share),
                                  std::lerp(path_[before][1], path_[next][1], share)});
  }

  /// The codec with these options, before a measurement; nullptr if they do not fit book or cache.
  std::unique_ptr<Codec> codec_with(const Options& options) {
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
    const auto tried = [](const LayerDial& dial) {
      return dial.by_layer() ? LayerDial::kTried : dial.dial().useful;
    };
    const auto codec = context_.make(*options_at(TwoSettings{tried(dials_.front()), tried(dials_.back())}));
    const Probe::Trial trial = measure(*probe_, *codec, Probe::Asked::errors);
    for (LayerDial& dial : dials_)
      if (dial.by_layer()) dial.find_costs(trial.errors, context_.weights);
  }

  /// The rate and the cost of one side at some settings of its dial.
  struct Curve {
    std::vector<double> settings;
    std::vector<RatePoint> points;
  };

  Curve curve_of(size_t i) {
    const Dial& dial = dials_[i].dial();
    Curve curve;
    double setting = dial.useful, step = 1;
    while (setting <= dial.highest) {
      TwoSettings settings{dials_[0].dial().useful, dials_[1].dial().useful};
      settings[i] = setting;
      const auto codec = codec_with(*options_at(settings));
      if (!codec) break;
      const Probe::Trial side = measure(*probe_, *codec, kSides[i]);
      curve.settings.push_back(setting);
      curve.points.push_back(
          {side.sides[i].bits * side.sides[i].width, side.cost(kSides[i], context_.weights)});
      if (!dial.turn || side.sides[i].bits > kMaxBits) break;
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

  /// The rates of the training data of the codec's book at whole settings, if the book says so.
  void find_learned() {
    if (!path_.empty()) return;
    const auto codec = codec_with(*options_at(range().lowest));
    if (const auto learned = codec ? codec->learned_rate() : std::nullopt)
      for (const double bits : learned->at) learned_.push_back(std::log(bits));
    if (learned_.size() < 2 || !std::ranges::is_sorted(learned_, std::ranges::less_equal())) learned_.clear();
  }

  /// The learned rate's logarithm at any setting, and its slope around whole ones.
  double learned_slope(double setting) const {
    const size_t upper = std::max<size_t>(as_size(std::lround(setting)), 1);
    return kSteepness * (learned_[upper] - learned_[upper - 1]);
  }
  double learned_at(double setting) const {
    return learned_[as_size(std::lround(setting))] + learned_slope(setting) * (setting - std::round(setting));
  }
  /// The setting for a learned rate, of those around the same whole one as `last` if one of them has it.
  double learned_setting(double rate, double last) const {
    const auto away = [&](double whole) { return (rate - learned_at(whole)) / learned_slope(whole); };
    double whole = std::round(last);
    if (std::abs(away(whole)) > kAround)
      whole = static_cast<double>(
          std::ranges::min_element(learned_, {}, [&](double at) { return std::abs(at - rate); }) -
          learned_.begin());
    return std::max(whole + std::clamp(away(whole), -kAround, kAround), 0.0);
  }

  Probe::Asked asked() const { return goal_.of_rate() ? Probe::Asked::rate : Probe::Asked::errors; }
  double target_db() const { return goal_.quality ? kQualityDb[static_cast<size_t>(*goal_.quality)] : 0; }
  /// The excess of a trial over the goal, which a search makes 0 and which rises with the setting: for a rate, by which share streams take more
  /// bits than the goal leaves to them, as a logarithm if rates were learned; for a quality, in decibels.
  double excess_of(const Probe::Trial& trial) {
    besides_ = trial.besides;
    if (!goal_.of_rate()) return Probe::judged_db(trial.errors) - target_db();
    const double ratio = (trial.bits - besides_) / bits_left();
    return learned_.empty() ? ratio - 1 : std::log(ratio);
  }
  double bits_left() const { return std::max(kAim * goal_.total_bits - besides_, 1e-9); }
  /// The rate or the decibels with that excess.
  double measure_at(double excess) const {
    if (!goal_.of_rate()) return target_db() + excess;
    return std::max(kAim * goal_.total_bits, besides_) +
           bits_left() * (learned_.empty() ? excess : std::expm1(excess));
  }

  /// Measures settings until that with this excess is known well enough, or no other is left: of bits by layer always, since their rates go
  /// in steps.
  Bracket find_bracket(double excess) {
    const bool by_layer = path_.empty() && dials_[0].by_layer();
    for (int tries = kMaxTries; tries > 0; --tries) {
      double setting = std::floor(range().highest / 2);
      if (path_.empty())
        setting = std::clamp(goal_.of_rate() && by_layer ? goal_.total_bits : dials_[0].dial().usual,
                             range().lowest, range().highest);
      if (!measured_.empty()) {
        const Bracket bracket(measured_, excess);
        const bool closed = !by_layer && bracket.closes(goal_.of_rate() ? kNear : kNearDb);
        const auto next = closed ? std::nullopt : bracket.next(range(), excess);
        if (!next || measured_.contains(*next)) break;
        setting = *next;
      }
      const auto codec = codec_with(*options_at(setting));
      measured_[setting] = codec ? try_codec(*codec) : kInfinity;
    }
    return Bracket(measured_, excess);
  }

  /// Throws GoalMissed; or, if no tried setting had a codec, the error of the last one: the given options do not fit.
  [[noreturn]] void miss(double nearest) const {
    if (refusal_ && !any_fits_) throw Error(*refusal_);
    const std::string with = "with these options " + context_.codec.name;
    throw GoalMissed(
        nearest,
        goal_.of_rate() ? fmt::format("--total-bits is {}; {} takes {:.2f} bits per value at least",
                                      goal_.total_bits, with, nearest)
        : goal_.of_loss()
            ? fmt::format("--max-nll is {}; {} was not found to lose so little", goal_.max_nll, with)
            : fmt::format("--quality asks for {} dB; {} reaches {:.1f}", target_db(), with, nearest));
  }

  /// A rate or a quality. Searches on the narrow sample; then what the wide one gives at the setting found corrects the target. expected:
  /// what the whole cache is expected to come to.
  double find_sampled(double& expected) {
    if (!learned_.empty()) return follow_learned(expected);
    double offset = 0;
    for (bool corrected = false;; corrected = true) {
      const Bracket found = find_bracket(-offset);
      const double setting = found.setting(range());
      expected = measure_at(found.at_setting(range()) + offset);
      if (goal_.of_rate() ? !found.has_low() : found.has_low() && !found.has_finite_high()) miss(expected);
      if (corrected || !has_wide()) return setting;
      const auto codec = codec_with(*options_at(setting));
      offset = excess_of(measure(context_.samples.wide, *codec, asked())) - found.at_setting(range());
    }
  }

  /// Rates are logarithms here.
  static double usual_db(double rate) { return kDbAtOne + kDbByLog * rate + kDbByBit * std::expm1(rate); }
  /// The rate with which they are those of `rate` and so many more.
  static double usual_rate(double rate, double more_db) {
    const double db = usual_db(rate) + more_db;
    for (int round = 0; round < 30; ++round)
      rate -= (usual_db(rate) - db) / (kDbByLog + kDbByBit * std::exp(rate));
    return rate;
  }

  /// The same where learned rates say how this cache's rate goes on from one setting, and so its decibels: one try on each sample is enough,
  /// unless the wide one asks for another setting far away. Attention to few tokens says too little: decibels take the wide one only.
  double follow_learned(double& expected) {
    const bool rate = goal_.of_rate();
    if (!rate) probe_ = &context_.samples.wide;
    double setting =
        learned_setting(rate ? std::log(bits_left()) : usual_rate(0, target_db() - usual_db(0)), 0);
    for (int tries = 5;; --tries) {
      const auto codec = codec_with(*options_at(setting));
      if (!codec) throw Error(*refusal_);
      const double excess = try_codec(*codec), now = learned_at(setting), last = setting;
      const double aim = rate ? now - excess : usual_rate(now, -excess);
      setting = learned_setting(aim, has_wide() ? 0 : last);
      if (!has_wide() && (tries == 1 || std::abs(setting - last) <= (rate ? kNearLearned : kNearLearnedDb))) {
        const double at = learned_at(setting);  // not `aim` beyond the outermost settings
        expected = measure_at(rate ? at - aim : usual_db(at) - usual_db(aim));
        if (rate ? at - aim > kNear : expected < target_db() - kNearDb) miss(expected);
        return setting;
      }
      probe_ = &context_.samples.wide;
    }
  }

  /// Tries a codec on the narrow sample. If that is so small that a window keeps much of it, the wide one takes its place.
  double try_codec(const Codec& codec) {
    const Probe::Trial trial = measure(*probe_, codec, asked());
    if (trial.exact <= kMaxExact || !has_wide()) return excess_of(trial);
    probe_ = &context_.samples.wide;
    measured_.clear();
    return try_codec(codec);
  }

  bool has_wide() const { return probe_->tokens() < context_.samples.wide.tokens(); }

  /// Losses are expensive to measure, but the model reads the documents once for several settings. The first ones surround the ratio of
  /// signal to noise that is usual for such a loss.
  double find_loss(Loss& reached) {
    const double target = measure_of(goal_.max_nll);
    double centre = find_bracket(std::clamp(5 - 5 * std::log10(goal_.max_nll), 8.0, 40.0)).setting(range());
    const bool whole = path_.empty() && dials_[0].dial().whole;
    const double step = std::max(range().finest, whole ? centre / 8 : 0.6);
    Measured measured;
    std::map<double, Loss> losses;
    for (int round = 0; round < kLossRounds; ++round) {
      const Bracket bracket(measured, target);
      const bool inside = bracket.has_low() && bracket.has_high();
      if (inside && bracket.high()->first - bracket.low()->first <= std::max(range().finest, 0.05)) break;
      if (!measured.empty()) {
        const auto next = bracket.next(range(), target + 0.03);
        if (!next) break;
        centre = *next;
      }
      const double spread = inside ? (bracket.high()->first - bracket.low()->first) / 8 : step;
      const auto places = inside ? std::vector<double>{-1, 0, 1} : std::vector<double>{-1.5, -0.5, 0.5, 1.5};
      measure_losses(centre, spread, places, measured, losses);
    }
    const Bracket found(measured, target);
    if (found.has_finite_high()) {
      reached = losses.at(found.high()->first);
      return found.high()->first;
    }
    double nearest = kInfinity;
    for (const auto& [setting, loss] : losses) {
      nearest = std::min(nearest, loss.worst());
      if (setting != losses.rbegin()->first || loss.worst() > goal_.max_nll) continue;
      reached = loss;  // although the interval reaches beyond the limit, which the note says
      return setting;
    }
    miss(nearest);
  }

  /// A loss as a measure that rises with the setting, nearly linearly.
  static double measure_of(double loss) { return -std::log(std::max(loss, 1e-9)); }

  /// Measures the losses of settings that were not measured yet: centre + spread * each place.
  void measure_losses(double centre, double spread, const std::vector<double>& places, Measured& measured,
                      std::map<double, Loss>& losses) {
    std::map<double, std::unique_ptr<Codec>> codecs;  // `places` rise, and so do the settings
    std::vector<const Codec*> tried;
    for (const double place : places) {
      double setting = std::clamp(centre + spread * place, range().lowest, range().highest);
      if (range().finest >= 1) setting = std::round(setting);
      if (!measured.try_emplace(setting, kInfinity).second) continue;
      if (auto codec = codec_with(*options_at(setting)))
        tried.push_back((codecs[setting] = std::move(codec)).get());
    }
    if (tried.empty()) return;
    const std::vector<Loss> found = context_.samples.meter->losses(tried);
    price_.tries += static_cast<int>(found.size());
    size_t i = 0;
    for (const auto& [setting, codec] : codecs) {
      measured[setting] = measure_of(found[i].upper());
      losses[setting] = found[i++];
    }
  }

  const GoalOptions& goal_;
  const GoalContext& context_;
  const Probe* probe_;
  Record base_;
  std::vector<LayerDial> dials_;   // one; of a pair, that of keys and that of values
  std::vector<TwoSettings> path_;  // of a pair
  std::vector<double> learned_;    // logarithms of rates at whole settings, rising; empty: not known
  Measured measured_;              // excesses on *probe_
  double besides_ = 0;             // Probe::Trial::besides of the last one
  SearchPrice price_;
  bool any_fits_ = false;  // of the settings tried
  std::optional<Error> refusal_;
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

FoundOptions settle(const GoalOptions& goal, const GoalContext& context, const CommonOptions& common,
                    Options& options) {
  const Samples& samples = context.samples;
  FoundOptions found = find_options(goal, context, options);
  if (goal.quality || (!context.weights && (allocates_bits(context.codec) || context.codec.is_pair())))
    samples.wide.note_energy_alone(common);
  if (found.words.empty()) found.words = "what was given";
  if (found.loss) samples.meter->note_limits(*found.loss, context.codec.name);
  const std::string about =
      found.bits ? fmt::format("a sample of {} tokens takes {:.3f} bits per value", samples.wide.tokens(),
                               *found.bits)
      : found.db ? fmt::format("a sample of {} tokens has {:.1f} dB", samples.wide.tokens(), *found.db)
                 : found.loss->text();
  common.note("{} {}: {}", context.codec.name, found.words, about);
  from_record(to_record(*found.options), options);
  return found;
}

}  // namespace kvcodec::cli
