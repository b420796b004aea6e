#include "lib/pipeline/closed_loop.hpp"

#include <algorithm>
#include <mutex>
#include <optional>

#include "lib/codec/encoded.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/pipeline/importance.hpp"

namespace kvcodec {
namespace {

/// The setting's view of a model, and what all its documents share.
struct Plan {
  LoopSetting setting;
  CodedLayout layout;
  WindowLayers window_layers;
  std::vector<CodedDocument::Shared> shared = {};  ///< of each part; the survey fills it

  Plan(const LoopSetting& of, const ModelConfig& model, WindowLayers windows)
      : setting(of), layout(*of.codec, model, of.dtype), window_layers(windows) {}

  /// True if any of its parts surveys the documents of a file.
  bool surveys() const {
    for (size_t part = 0; part < layout.parts(); ++part)
      if (setting.codec->survey_scope(layout.shape(part)) == SurveyScope::file) return true;
    return false;
  }

  /// Number of a prefix's first tokens that do not go through the codec.
  size_t left_out(const GroupShape& shape, size_t tokens) const {
    return tokens - tokens_kept(window_layers, layout.config(), shape.first_layer(), tokens);
  }
  CodedDocument document(const LoopDocument& of) const {
    std::vector<size_t> left_out_of_parts;
    left_out_of_parts.reserve(layout.parts());
    for (size_t part = 0; part < layout.parts(); ++part)
      left_out_of_parts.push_back(left_out(layout.shape(part), of.prefix));
    return {layout, of.tokens, std::move(left_out_of_parts)};
  }
};

/// A prefix that waits to be surveyed, in the type of the cache where that is of 16 bits.
class KeptPrefix {
 public:
  KeptPrefix(Prefix prefix, DType type) : type_(type), kept_(std::move(prefix)) {
    if (type == DType::f32) return;
    for (const Side side : kSides)
      for (Matrix<float>& rows : kept_.rows.of(side)) {
        tokens_ = rows.rows();
        std::vector<uint16_t>& halves = halves_[static_cast<size_t>(side)].emplace_back(rows.size());
        narrow(type, {rows.data(), rows.size()}, halves);
        rows = Matrix<float>();
      }
  }

  Matrix<float> rows_of(const Plan& plan, const GroupShape& shape, size_t first) const {
    if (type_ == DType::f32)
      return plan.layout.rows_of(kept_.rows, shape, first, kept_.rows.keys.front().rows());
    Matrix<float> out(tokens_ - first, shape.width());
    CodedLayout::for_each_layer(shape, out, [&](Side side, size_t layer, MatrixView<float> to) {
      const auto& halves = halves_[static_cast<size_t>(side)][layer];
      for (size_t t = 0; t < to.rows(); ++t)
        widen(type_, std::span(halves).subspan((first + t) * to.cols(), to.cols()), to.row(t));
    });
    return out;
  }

  const Prefix& prefix() const { return kept_; }

 private:
  DType type_;
  Prefix kept_;  ///< its rows are empty where they are kept as halves
  std::array<std::vector<std::vector<uint16_t>>, 2> halves_;
  size_t tokens_ = 0;
};

/// The progress of all threads together.
class TokenMeter {
 public:
  /// Outlived by progress, of `total` tokens.
  TokenMeter(const Progress& progress, uint64_t total)
      : progress_(progress), total_(static_cast<double>(total)) {}

  /// For a run of the model: counts what each report adds to the one before.
  Progress run() {
    return [this, before = 0.0](double done, double, std::string_view) mutable {
      add(done - before);
      before = done;
    };
  }
  void add(double tokens) {
    const std::lock_guard lock(mutex_);
    done_ += tokens;
    report(progress_, done_, total_);
  }

 private:
  const Progress& progress_;
  std::mutex mutex_;
  double done_ = 0, total_;
};

/// A document's continuation under one setting.
struct SettingRun {
  CodedDocument codes;
  std::vector<Judged> judged;
  SelectionCount selected = {};
};

/// The caches of a batch: one setting's each.
class BatchCache final : public PastCache {
 public:
  BatchCache(std::span<CodedDocument* const> documents, const Prefix& prefix)
      : documents_(documents), prefix_(prefix) {}
  void read(int layer, size_t document, MatrixView<float> keys, MatrixView<float> values) override {
    documents_[document]->read(layer, keys, values);
  }
  std::span<const float> state(int layer, size_t) const override { return prefix_.states[as_size(layer)]; }

 private:
  std::span<CodedDocument* const> documents_;
  const Prefix& prefix_;
};

LoopScore score_of(std::span<const Judged> judged) {
  LoopScore score{sums_of(judged), {}, {}, {}, {}};
  for (const Judged& one : judged) {
    score.right.push_back(one.right);
    score.divergences.push_back(static_cast<float>(one.divergence));
  }
  return score;
}

}  // namespace

struct ClosedLoop::Impl {
  const LlamaModel& model;
  LoopOptions options;
  std::vector<Plan> plans;

  const ModelConfig& config() const { return model.config(); }

  uint64_t tokens_to_read(std::span<const LoopDocument> documents) const {
    uint64_t tokens = 0;
    for (size_t i = 0; surveys() && i < surveyed_documents(documents); ++i) tokens += documents[i].prefix;
    for (const LoopDocument& document : documents) {
      const uint64_t all = document.tokens.size() - (document.questions.empty() ? 1 : 0);
      tokens += all + plans.size() * (all - document.prefix);
      for (const LoopQuestion& question : document.questions)
        tokens += (plans.size() + 1) * (question.tokens.size() + question.written - 1);
    }
    return tokens;
  }

  size_t surveyed_documents(std::span<const LoopDocument> documents) const {
    return std::min(documents.size(), options.survey_documents);
  }

  bool surveys() const {
    return std::ranges::any_of(plans, [](const Plan& plan) { return plan.surveys(); });
  }

  /// The type that surveyed prefixes are kept in: that to which all codecs that survey round them, if it is one.
  DType surveyed_type() const {
    std::optional<DType> type;
    for (const Plan& plan : plans)
      if (plan.surveys()) type = !type || *type == plan.setting.dtype ? plan.setting.dtype : DType::f32;
    return type.value_or(DType::f32);
  }

  uint64_t cache_values(uint64_t tokens) const {
    return tokens * as_size(config().num_layers) * as_size(config().cache_width());
  }

  /// About what the survey takes in memory: the caches of all prefixes, and either the model's run over one
  /// of them or one as the codecs read it.
  uint64_t survey_bytes(std::span<const LoopDocument> documents) const {
    if (!surveys()) return 0;
    uint64_t tokens = 0, longest = 0, model_bytes = 0;
    for (const LoopDocument& document : documents.first(surveyed_documents(documents))) {
      tokens += document.prefix;
      longest = std::max<uint64_t>(longest, document.prefix);
      model_bytes = std::max(model_bytes,
                             prefill_bytes(config(), {}, document.prefix, document.prefix, num_threads(), 0));
    }
    const uint64_t one = cache_values(longest) * sizeof(float);
    return cache_values(tokens) * size_of(surveyed_type()) + one + std::max(model_bytes, one);
  }

  /// About what a document takes in memory.
  uint64_t bytes_of(const LoopDocument& document) const {
    const uint64_t codes = cache_values(document.size()) * sizeof(uint16_t);
    if (!document.questions.empty())  // one setting at a time; the prefix, and a document that grows
      return prefill_bytes(config(), {}, document.prefix, document.prefix, num_threads(), 0) +
             3 * cache_values(document.size()) * sizeof(float) + codes;
    return ReferenceRun::bytes(config(), document, plans.size()) + plans.size() * codes;
  }

  void survey(std::span<const LoopDocument> documents, TokenMeter& meter) {
    // Prefixes run one after the other, each on all threads: the model's own buffers then exist once.
    std::vector<KeptPrefix> prefixes;
    for (size_t i = 0; surveys() && i < surveyed_documents(documents); ++i)
      prefixes.emplace_back(run_prefix(model, documents[i], options.queries, meter.run()), surveyed_type());
    for (Plan& plan : plans) {
      const Codec& codec = *plan.setting.codec;
      plan.shared.assign(plan.layout.parts(), {});
      if (!plan.surveys()) continue;
      parallel_each(plan.layout.parts(), 1, [&](size_t part) {
        const GroupShape shape = plan.layout.shape(part);
        if (codec.survey_scope(shape) != SurveyScope::file) return;
        Matrix<float> rows;  // of one document at a time
        const auto document = [&](size_t i) {
          const size_t first = plan.left_out(shape, documents[i].prefix);
          rows = prefixes[i].rows_of(plan, codec.surveyed(shape), first);
          DocumentRows surveyed = surveyed_rows(codec, prefixes[i].prefix(), shape, rows, first);
          surveyed.token_ids = documents[i].tokens;
          return surveyed;
        };
        Encoded encoded(codec.streams(shape));
        run_survey(*codec.survey(shape), prefixes.size(), document, encoded.add_document());
        for (const StreamSpec& spec : encoded.specs()) {
          const auto bytes = encoded.bytes(spec.name);
          if (spec.shared) plan.shared[part].emplace_back(spec.name, std::vector(bytes.begin(), bytes.end()));
        }
      });
    }
  }

  /// Runs the continuation under some of the settings, all in one batch.
  void go_on(const LoopDocument& document, ReferenceRun& run, std::span<const size_t> members,
             std::vector<SettingRun>& settings, TokenMeter& meter) const {
    std::vector<CodedDocument*> documents;
    std::vector<std::vector<Judged>*> own_judged;
    for (const size_t member : members) {
      documents.push_back(&settings[member].codes);
      own_judged.push_back(&settings[member].judged);
    }
    std::optional<SelectedAttention> selected;
    if (plans[members.front()].setting.selection.by != SelectBy::all) {
      std::vector<SelectionRule> rules;
      for (const size_t member : members) rules.push_back(plans[member].setting.selection);
      selected.emplace(config(), std::move(rules), document.prefix, &run.prefix(), options.engine,
                       [&documents](size_t which, int layer, size_t head) {
                         return documents[which]->index(layer, head);
                       });
    }
    const size_t piece = options.stream == 0 ? run.judged() : options.stream;
    for (size_t first = 0; first < run.judged(); first += piece) {
      const size_t count = std::min(piece, run.judged() - first);
      std::vector<LayerRows> rows;
      for (size_t i = 0; options.stream > 0 && i < members.size(); ++i) rows.emplace_back(config(), count);
      BatchCache cache(documents, run.prefix());
      run.go_on({first, count, cache, own_judged, rows, selected ? &*selected : nullptr}, meter.run());
      for (size_t i = 0; i < rows.size(); ++i) documents[i]->append(rows[i], 0, count);
    }
    for (size_t i = 0; selected && i < members.size(); ++i)
      settings[members[i]].selected = selected->count(i);
  }

  /// The prefix as it is compressed, if that is not as the model read it.
  std::optional<Prefix> joined(const LoopDocument& document, const Prefix& own) const {
    if (options.joining.pieces < 2) return {};
    return Prefix{read_in_pieces(model, std::span(document.tokens).first(document.prefix), options.joining),
                  own.query_tokens, own.queries};
  }

  /// Weights of its tokens, if a codec weighs them.
  std::vector<float> weights_of(const Prefix& prefix) const {
    if (std::ranges::none_of(plans, [](const Plan& plan) { return plan.setting.codec->weighs_tokens(); }))
      return {};
    return token_weights(prefix, config(), options.scores);
  }

  /// The tokens that the model writes. codes: of the prefix, which grow if streamed; nullptr: behind the prefix as it is.
  std::vector<uint32_t> answer(const LoopQuestion& question, const Prefix& prefix, CodedDocument* codes,
                               AttentionMethod* attention, TokenMeter& meter) const {
    const size_t past = prefix.rows.keys.front().rows(), asked = question.tokens.size(),
                 room = asked + question.written;
    GrowingDocument growing(model, past + room);
    growing.rows() = prefix.rows;
    growing.states() = prefix.states;
    growing.start(past);
    std::vector<uint32_t> text = question.tokens;
    size_t read = 0, coded = past;
    const auto decode = [&] {
      for (int layer = 0; codes && layer < config().num_layers; ++layer)
        if (LayerRows& rows = growing.rows(); config().has_cache(layer))
          codes->read(layer, rows.keys[as_size(layer)].view().rows(0, coded),
                      rows.values[as_size(layer)].view().rows(0, coded));
    };
    decode();
    const bool streamed = codes && options.stream > 0;
    Rng rng(0);
    while (true) {
      const size_t count = std::min(streamed ? options.stream : asked, text.size() - read);
      const auto logits = growing.read(std::span(text).subspan(read, count), meter.run(), attention);
      read += count;
      if (streamed && growing.tokens() - coded >= options.stream) {
        codes->append(growing.rows(), coded, growing.tokens(),
                      std::span(text).subspan(coded - past, growing.tokens() - coded));
        coded = growing.tokens();
        decode();
      }
      if (read < text.size()) continue;
      text.push_back(choose_token(logits, {}, rng));
      if (text.size() == room || question.whole(std::span(text).subspan(asked))) break;
    }
    meter.add(static_cast<double>(room - text.size()));
    return {text.begin() + static_cast<std::ptrdiff_t>(asked), text.end()};
  }

  LoopResult ask(const LoopDocument& document, TokenMeter& meter) const {
    const Prefix own = run_prefix(model, document, options.queries, meter.run());
    const std::optional<Prefix> joined_prefix = joined(document, own);
    const Prefix& prefix = joined_prefix ? *joined_prefix : own;
    const std::vector<float> weights = weights_of(prefix);
    LoopResult result;
    for (const LoopQuestion& question : document.questions)
      result.reference.answers.push_back(answer(question, own, nullptr, nullptr, meter));
    for (const Plan& plan : plans) {
      LoopScore& score = result.settings.emplace_back();
      std::optional<CodedDocument> codes;
      for (const LoopQuestion& question : document.questions) {
        const bool fresh = !codes || options.stream > 0;
        if (fresh) codes.emplace(plan.document(document)).encode(prefix, plan.shared, weights);
        std::optional<SelectedAttention> selected;
        if (const SelectionRule& rule = plan.setting.selection; rule.by != SelectBy::all)
          selected.emplace(config(), std::vector{rule}, document.prefix, &own, options.engine,
                           [&codes](size_t, int layer, size_t head) { return codes->index(layer, head); });
        score.answers.push_back(answer(question, prefix, &*codes, selected ? &*selected : nullptr, meter));
        if (fresh) score.stored.add(codes->stored(codes->tokens()));
        if (selected) score.selected.add(selected->count(0));
      }
    }
    return result;
  }

  LoopResult run(const LoopDocument& document, TokenMeter& meter) const {
    if (!document.questions.empty()) return ask(document, meter);
    ReferenceRun run(model, document, options.queries, meter.run());
    if (plans.empty()) run.judge_itself();

    std::vector<SettingRun> settings;
    for (const Plan& plan : plans)
      settings.push_back({plan.document(document), std::vector<Judged>(run.judged())});
    const std::optional<Prefix> joined_prefix = joined(document, run.prefix());
    const Prefix& prefix = joined_prefix ? *joined_prefix : run.prefix();
    const std::vector<float> weights = weights_of(prefix);
    for (size_t i = 0; i < plans.size(); ++i) settings[i].codes.encode(prefix, plans[i].shared, weights);
    for (const bool selects : {false, true}) {
      std::vector<size_t> members;
      for (size_t i = 0; i < plans.size(); ++i)
        if ((plans[i].setting.selection.by != SelectBy::all) == selects) members.push_back(i);
      for (size_t first = 0; first < members.size(); first += run.together())
        go_on(
            document, run,
            std::span<const size_t>(members).subspan(first, std::min(run.together(), members.size() - first)),
            settings, meter);
    }
    LoopResult result{score_of(run.own()), {}};
    const size_t stored = options.stream > 0 ? document.tokens.size() - 1 : document.prefix;
    for (size_t i = 0; i < plans.size(); ++i) {
      LoopScore& score = result.settings.emplace_back(score_of(settings[i].judged));
      score.stored = settings[i].codes.stored(stored);
      score.selected = settings[i].selected;
    }
    return result;
  }
};

ClosedLoop::ClosedLoop(const LlamaModel& model, const std::vector<LoopSetting>& settings,
                       const LoopOptions& options)
    : impl_(new Impl{model, options, {}}) {
  if (options.stream > 0 && !model.config().delta.layers.empty())
    throw usage_error(
        "the model has layers that keep a state instead of keys and values: a continuation in pieces would need it");
  if (options.joining.pieces > 1) (void)rope_to_join(model.config());
  for (const LoopSetting& setting : settings) {
    // A document's view refuses to select by codes that have no index.
    const StoredIndex views = [](size_t, int, size_t) { return std::unique_ptr<GrowingSelector>(); };
    if (setting.selection.by != SelectBy::all)
      (void)SelectedAttention(model.config(), {setting.selection}, 0, nullptr, nullptr, views);
    impl_->plans.emplace_back(setting, model.config(), options.window_layers);
  }
}

ClosedLoop::~ClosedLoop() = default;

std::vector<LoopResult> ClosedLoop::run(std::span<const LoopDocument> documents, const Progress& progress) {
  uint64_t largest = 0;
  for (const LoopDocument& document : documents) {
    if (document.questions.empty()) check_document(document);
    const uint64_t bytes = impl_->bytes_of(document);
    if (impl_->options.memory > 0 && bytes > impl_->options.memory)
      throw usage_error(
          "a document of {} tokens with {} settings takes about {} bytes of memory; {} are allowed",
          document.size(), impl_->plans.size(), bytes, impl_->options.memory);
    largest = std::max(largest, bytes);
  }
  if (const uint64_t bytes = impl_->survey_bytes(documents);
      impl_->options.memory > 0 && bytes > impl_->options.memory)
    throw usage_error(
        "the survey of {} documents takes about {} bytes of memory; {} are allowed: survey fewer, or give more",
        impl_->surveyed_documents(documents), bytes, impl_->options.memory);
  TokenMeter meter(progress, impl_->tokens_to_read(documents));
  impl_->survey(documents, meter);
  std::vector<LoopResult> results(documents.size());
  const auto run_one = [&](size_t i) {
    results[i] = with_context(fmt::format("document {}", i), [&] { return impl_->run(documents[i], meter); });
  };
  // A document per thread, or all threads in one document.
  const auto threads = static_cast<uint64_t>(num_threads());
  if (documents.size() >= threads &&
      (impl_->options.memory == 0 || largest <= impl_->options.memory / threads))
    parallel_each(documents.size(), 1, [&](size_t i) { run_one(i); });
  else
    for (size_t i = 0; i < documents.size(); ++i) run_one(i);
  return results;
}

StoredBits ClosedLoop::shared(size_t setting) const {
  const Plan& plan = impl_->plans.at(setting);
  StoredBits result;
  for (size_t part = 0; part < plan.shared.size(); ++part)
    for (const StreamSpec& spec : plan.setting.codec->streams(plan.layout.shape(part)))
      for (const auto& [name, bytes] : plan.shared[part])
        if (name == spec.name)
          result.category[static_cast<size_t>(spec.category)] += stream_bits(spec, bytes.size());
  return result;
}

}  // namespace kvcodec
