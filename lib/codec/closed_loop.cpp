#include "lib/codec/closed_loop.hpp"

#include <algorithm>
#include <mutex>
#include <optional>

#include "lib/codec/encoded.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Tokens of all settings' continuations that run together. Fixed, because how documents are packed can
/// change the last bit of a value.
constexpr size_t kBatchTokens = 16384;

size_t as_size(int value) { return static_cast<size_t>(value); }

/// Keys and values of consecutive tokens, layer by layer: (tokens, heads * head_dim) each.
struct LayerRows {
  std::vector<Matrix<float>> keys, values;

  LayerRows(const ModelConfig& config, size_t tokens) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      keys.emplace_back(tokens, as_size(config.key_width()));
      values.emplace_back(tokens, as_size(config.key_width()));
    }
  }
  const std::vector<Matrix<float>>& of(Side side) const { return side == Side::key ? keys : values; }
};

/// What the model made of a prefix: its cache, and queries of its last tokens.
struct Prefix {
  LayerRows rows;
  std::vector<uint64_t> query_tokens;
  std::vector<Matrix<float>> queries;  // per layer: (query_tokens.size(), num_q_heads * head_dim)
};

/// The setting's view of a model: shapes, groups of layers, and what all its documents share.
struct Plan {
  LoopSetting setting;
  const ModelConfig* config = nullptr;
  /// Of each group and side, the bytes of the shared streams by name; filled by the survey.
  std::vector<std::vector<std::pair<std::string, std::vector<std::byte>>>> shared;

  int group_layers() const { return setting.codec->layer_group(); }
  size_t parts() const { return 2 * as_size(config->num_layers / group_layers()); }
  GroupShape shape(size_t part) const {
    return {.first_layer = static_cast<int>(part / 2) * group_layers(),
            .layers = group_layers(),
            .heads = config->num_kv_heads,
            .head_dim = config->head_dim,
            .side = kSides[part % 2]};
  }

  /// Tokens of one side of a group, as the codec takes them: the layers side by side, in the cache's type.
  Matrix<float> rows_of(const LayerRows& rows, const GroupShape& shape) const {
    const std::vector<Matrix<float>>& layers = rows.of(shape.side);
    const size_t tokens = layers.front().rows(), width = as_size(config->key_width());
    Matrix<float> out(tokens, shape.width());
    for (size_t t = 0; t < tokens; ++t)
      for (size_t l = 0; l < as_size(shape.layers); ++l) {
        const std::span<float> to = out.row(t).subspan(l * width, width);
        std::ranges::copy(layers[as_size(shape.first_layer) + l].row(t), to.begin());
        round(to);
      }
    return out;
  }

  void round(std::span<float> values) const {
    if (setting.dtype == DType::f32) return;
    std::vector<uint16_t> halves(values.size());
    narrow(setting.dtype, values, halves);
    widen(setting.dtype, halves, values);
  }

  DocumentRows surveyed_rows(const Prefix& prefix, const GroupShape& shape,
                             MatrixView<const float> rows) const {
    DocumentRows result(rows);
    if (setting.codec->wants_queries() && !prefix.query_tokens.empty()) {
      result.query_tokens = prefix.query_tokens;
      result.queries = prefix.queries[as_size(shape.first_layer)];
    }
    return result;
  }
};

/// Bits of a stream's bytes in a file: ids packed.
uint64_t stored_bits(const StreamSpec& spec, uint64_t bytes) {
  const uint64_t elements = bytes / size_of(spec.type);
  return spec.index_bound > 0 ? elements * index_bits(spec.index_bound) : bytes * 8;
}

/// The codes of one document under one setting.
class CompressedDocument {
 public:
  explicit CompressedDocument(const Plan& plan) : plan_(plan) {
    for (size_t part = 0; part < plan.parts(); ++part) {
      encoded_.emplace_back(plan.setting.codec->streams(plan.shape(part)));
      stores_.push_back(&encoded_.back().add_document());
    }
  }

  /// The document's beginning: what is shared, what the codec wants to know of it first, and its tokens.
  void start(const Prefix& prefix) {
    const Codec& codec = *plan_.setting.codec;
    parallel_for(plan_.parts(), 1, [&](size_t part, size_t, int) {
      const GroupShape shape = plan_.shape(part);
      for (const auto& [name, bytes] : plan_.shared[part]) stores_[part]->append(name, bytes);
      const Matrix<float> rows = plan_.rows_of(prefix.rows, shape);
      if (codec.survey_scope() == SurveyScope::document) {
        const Matrix<float> surveyed = plan_.rows_of(prefix.rows, codec.surveyed(shape));
        const DocumentRows document = plan_.surveyed_rows(prefix, shape, surveyed);
        run_survey(*codec.survey(shape), {&document, 1}, *stores_[part]);
      }
      codec.append(shape, rows, *stores_[part]);
    });
  }

  void append(const LayerRows& rows) {
    parallel_for(plan_.parts(), 1, [&](size_t part, size_t, int) {
      const GroupShape shape = plan_.shape(part);
      plan_.setting.codec->append(shape, plan_.rows_of(rows, shape), *stores_[part]);
    });
  }

  /// The first keys.rows() tokens of a layer, decoded. A group of layers is decoded once for all of them.
  void read(int layer, MatrixView<float> keys, MatrixView<float> values) {
    const int group = layer / plan_.group_layers();
    if (layer % plan_.group_layers() == 0 || decoded_[0].rows() != keys.rows())
      parallel_for(2, 1, [&](size_t side, size_t, int) {
        const GroupShape shape = plan_.shape(2 * as_size(group) + side);
        Matrix<float>& rows = decoded_[side];
        rows = Matrix<float>(keys.rows(), shape.width());
        plan_.setting.codec->decode(shape, *stores_[2 * as_size(group) + side], 0, rows);
      });
    const size_t width = keys.cols(), first = as_size(layer % plan_.group_layers()) * width;
    for (size_t side = 0; side < 2; ++side)
      for (size_t t = 0; t < keys.rows(); ++t) {
        const std::span<float> to = side == 0 ? keys.row(t) : values.row(t);
        std::ranges::copy(decoded_[side].row(t).subspan(first, width), to.begin());
        plan_.round(to);
      }
    if (layer % plan_.group_layers() + 1 == plan_.group_layers()) decoded_ = {};
  }

  StoredBits stored(uint64_t tokens) const {
    StoredBits result;
    result.values = tokens * 2 * as_size(plan_.config->num_layers) * as_size(plan_.config->key_width());
    for (const Encoded& encoded : encoded_)
      for (const StreamSpec& spec : encoded.specs())
        if (!spec.shared)
          result.category[static_cast<size_t>(spec.category)] +=
              stored_bits(spec, encoded.bytes(spec.name).size());
    return result;
  }

 private:
  const Plan& plan_;
  std::vector<Encoded> encoded_;  // per part; documents stay where they are when these move
  std::vector<StreamStore*> stores_;
  std::array<Matrix<float>, 2> decoded_;
};

/// The caches of a batch: one setting's each.
class BatchCache final : public PastCache {
 public:
  explicit BatchCache(std::span<CompressedDocument* const> documents) : documents_(documents) {}
  void read(int layer, size_t document, MatrixView<float> keys, MatrixView<float> values) override {
    documents_[document]->read(layer, keys, values);
  }

 private:
  std::span<CompressedDocument* const> documents_;
};

/// Takes the prefix's cache and the continuation's logits from the run over the whole document.
class ReferenceSink final : public PrefillSink {
 public:
  ReferenceSink(const ModelConfig& config, size_t prefix, size_t judged, size_t queries)
      : prefix_{LayerRows(config, prefix), {}, {}},
        logits_(judged, judged == 0 ? 0 : as_size(config.vocabulary_size)) {
    for (size_t t = prefix - std::min(prefix, queries); t < prefix; ++t) prefix_.query_tokens.push_back(t);
    for (int layer = 0; layer < config.num_layers; ++layer)
      prefix_.queries.emplace_back(prefix_.query_tokens.size(), as_size(config.query_width()));
  }

  void layer(const LayerChunk& chunk) override {
    const size_t layer = as_size(chunk.layer), prefix = prefix_.rows.keys.front().rows();
    for (size_t i = 0; i < chunk.key.rows() && chunk.first + i < prefix; ++i) {
      const size_t token = chunk.first + i;
      std::ranges::copy(chunk.key.row(i), prefix_.rows.keys[layer].row(token).begin());
      std::ranges::copy(chunk.value.row(i), prefix_.rows.values[layer].row(token).begin());
      if (const size_t first = prefix - prefix_.query_tokens.size(); token >= first)
        std::ranges::copy(chunk.query.row(i), prefix_.queries[layer].row(token - first).begin());
    }
  }

  void logits(size_t first, MatrixView<const float> logits) override {
    for (size_t i = 0; i < logits.rows(); ++i)
      std::ranges::copy(logits.row(i), logits_.row(first + i - prefix_.rows.keys.front().rows()).begin());
  }

  Prefix& prefix() { return prefix_; }
  const Matrix<float>& logits() const { return logits_; }

 private:
  Prefix prefix_;
  Matrix<float> logits_;
};

/// One judged position.
struct Judged {
  double surprise = 0, divergence = 0;
  bool same_best = false, right = false;
};

LoopScore score_of(std::span<const Judged> judged) {
  LoopScore score;
  for (const Judged& one : judged) {
    score.sums.add({.tokens = 1,
                    .surprise = one.surprise,
                    .divergence = one.divergence,
                    .same_best = one.same_best,
                    .right = one.right});
    score.right.push_back(one.right);
  }
  return score;
}

/// Judges the logits of a batch of continuations of the same tokens, and keeps the keys and values computed,
/// if wanted.
class ContinuationSink final : public PrefillSink {
 public:
  /// first: of the piece in the continuation; targets, references: of the whole continuation. judged: of each
  /// member of the batch, (continuation).
  ContinuationSink(const ModelConfig& config, size_t first, size_t count, std::span<const uint32_t> targets,
                   std::span<const NextToken> references, std::vector<std::vector<Judged>*> judged,
                   bool keeps_rows)
      : first_(first), count_(count), targets_(targets), references_(references), judged_(std::move(judged)) {
    for (size_t i = 0; keeps_rows && i < judged_.size(); ++i) rows_.emplace_back(config, count);
  }

  void layer(const LayerChunk& chunk) override {
    if (rows_.empty()) return;
    const size_t layer = as_size(chunk.layer);
    for (size_t i = 0; i < chunk.key.rows(); ++i) {
      LayerRows& rows = rows_[(chunk.first + i) / count_];
      std::ranges::copy(chunk.key.row(i), rows.keys[layer].row((chunk.first + i) % count_).begin());
      std::ranges::copy(chunk.value.row(i), rows.values[layer].row((chunk.first + i) % count_).begin());
    }
  }

  void logits(size_t first, MatrixView<const float> logits) override {
    constexpr size_t kGrain = 16;  // rows: a fraction of a millisecond each
    parallel_for(logits.rows(), kGrain, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) {
        const size_t place = first_ + (first + i) % count_;
        const NextToken own(logits.row(i));
        const NextToken& reference = references_[place];
        (*judged_[(first + i) / count_])[place] = {.surprise = own.surprise(targets_[place]),
                                                   .divergence = divergence(reference, own),
                                                   .same_best = own.best() == reference.best(),
                                                   .right = own.best() == targets_[place]};
      }
    });
  }

  const LayerRows& rows(size_t member) const { return rows_[member]; }

 private:
  size_t first_, count_;
  std::span<const uint32_t> targets_;
  std::span<const NextToken> references_;
  std::vector<std::vector<Judged>*> judged_;
  std::vector<LayerRows> rows_;
};

void check_document(const LoopDocument& document) {
  if (document.prefix < 1 || document.tokens.size() < document.prefix + 2)
    throw failed("a document of {} tokens with a prefix of {}; there must be two tokens behind at least one",
                 document.tokens.size(), document.prefix);
}

}  // namespace

uint64_t StoredBits::bits() const {
  uint64_t total = 0;
  for (const uint64_t of_category : category) total += of_category;
  return total;
}

void StoredBits::add(const StoredBits& other) {
  for (size_t i = 0; i < category.size(); ++i) category[i] += other.category[i];
  values += other.values;
}

struct ClosedLoop::Impl {
  const LlamaModel& model;
  LoopOptions options;
  std::vector<Plan> plans;

  const ModelConfig& config() const { return model.config(); }

  PrefillOptions prefill_options(const LoopDocument& document) const {
    PrefillOptions prefill;
    prefill.logits = LogitRows::all;
    prefill.logits_from = document.prefix;
    return prefill;
  }

  /// The cache of a prefix alone.
  Prefix run_prefix(const LoopDocument& document) const {
    ReferenceSink sink(config(), document.prefix, 0, options.queries);
    const uint64_t offsets[] = {0, document.prefix};
    model.prefill({.tokens = std::span(document.tokens).first(document.prefix), .offsets = offsets}, {},
                  sink);
    return std::move(sink.prefix());
  }

  void survey(std::span<const LoopDocument> documents);
  LoopResult run(const LoopDocument& document) const;
  void go_on(const LoopDocument& document, std::span<const NextToken> references,
             std::span<const size_t> members, std::vector<CompressedDocument>& codes,
             std::vector<std::vector<Judged>>& judged) const;

  size_t surveyed_documents(std::span<const LoopDocument> documents) const {
    return std::min(documents.size(), options.survey_documents);
  }

  /// About what the survey takes in memory: the caches of all prefixes, once more as the codecs read them.
  uint64_t survey_bytes(std::span<const LoopDocument> documents) const {
    if (std::ranges::none_of(
            plans, [](const Plan& plan) { return plan.setting.codec->survey_scope() == SurveyScope::file; }))
      return 0;
    uint64_t tokens = 0, model_bytes = 0;
    for (const LoopDocument& document : documents.first(surveyed_documents(documents))) {
      tokens += document.prefix;
      model_bytes = std::max(model_bytes, prefill_bytes(config(), prefill_options(document), document.prefix,
                                                        document.prefix, num_threads(), 0));
    }
    const uint64_t cache =
        tokens * 2 * as_size(config().num_layers) * as_size(config().key_width()) * sizeof(float);
    return cache + std::max(model_bytes, cache);
  }

  /// About what a document takes in memory.
  uint64_t bytes_of(const LoopDocument& document) const {
    const uint64_t all = document.tokens.size(), rest = all - document.prefix, settings = plans.size();
    const uint64_t together = std::min<uint64_t>(settings, std::max<uint64_t>(1, kBatchTokens / rest));
    const uint64_t cache = all * 2 * as_size(config().num_layers) * as_size(config().key_width());
    return prefill_bytes(config(), prefill_options(document), rest * together, all, num_threads(),
                         all * together) +
           rest * as_size(config().vocabulary_size) * sizeof(float) + cache * sizeof(float) +
           settings * cache * sizeof(uint16_t);
  }
};

void ClosedLoop::Impl::survey(std::span<const LoopDocument> documents) {
  const bool any = std::ranges::any_of(
      plans, [](const Plan& plan) { return plan.setting.codec->survey_scope() == SurveyScope::file; });
  // One after the other, each with all threads: what the model takes for itself is there once.
  std::vector<std::optional<Prefix>> prefixes(any ? surveyed_documents(documents) : 0);
  for (size_t i = 0; i < prefixes.size(); ++i) prefixes[i].emplace(run_prefix(documents[i]));
  for (Plan& plan : plans) {
    const Codec& codec = *plan.setting.codec;
    plan.shared.assign(plan.parts(), {});
    if (codec.survey_scope() != SurveyScope::file) continue;
    parallel_for(plan.parts(), 1, [&](size_t part, size_t, int) {
      const GroupShape shape = plan.shape(part);
      std::vector<Matrix<float>> rows;
      for (const auto& prefix : prefixes) rows.push_back(plan.rows_of(prefix->rows, codec.surveyed(shape)));
      std::vector<DocumentRows> surveyed;
      for (size_t i = 0; i < rows.size(); ++i)
        surveyed.push_back(plan.surveyed_rows(*prefixes[i], shape, rows[i]));
      Encoded encoded(codec.streams(shape));
      run_survey(*codec.survey(shape), surveyed, encoded.add_document());
      for (const StreamSpec& spec : encoded.specs()) {
        const auto bytes = encoded.bytes(spec.name);
        if (spec.shared) plan.shared[part].emplace_back(spec.name, std::vector(bytes.begin(), bytes.end()));
      }
    });
  }
}

/// Runs the continuation under some of the settings, all in one batch.
void ClosedLoop::Impl::go_on(const LoopDocument& document, std::span<const NextToken> references,
                             std::span<const size_t> members, std::vector<CompressedDocument>& codes,
                             std::vector<std::vector<Judged>>& judged) const {
  const auto inputs = std::span(document.tokens).subspan(document.prefix, references.size());
  const auto targets = std::span(document.tokens).subspan(document.prefix + 1, references.size());
  PrefillOptions prefill;
  prefill.logits = LogitRows::all;
  std::optional<SelectedAttention> selected;
  if (plans[members.front()].setting.selection.by != "all") {
    std::vector<StepSelection> selections;
    for (const size_t member : members) selections.push_back(plans[member].setting.selection);
    prefill.attention = &selected.emplace(config(), std::move(selections), document.prefix);
  }
  std::vector<CompressedDocument*> documents;
  std::vector<std::vector<Judged>*> own_judged;
  for (const size_t member : members) {
    documents.push_back(&codes[member]);
    own_judged.push_back(&judged[member]);
  }
  const size_t piece = options.stream == 0 ? inputs.size() : options.stream;
  for (size_t first = 0; first < inputs.size(); first += piece) {
    const size_t count = std::min(piece, inputs.size() - first);
    std::vector<uint32_t> tokens;
    std::vector<uint64_t> offsets = {0};
    for (size_t i = 0; i < members.size(); ++i) {
      tokens.insert(tokens.end(), inputs.begin() + static_cast<ptrdiff_t>(first),
                    inputs.begin() + static_cast<ptrdiff_t>(first + count));
      offsets.push_back(tokens.size());
    }
    const std::vector<uint64_t> past(members.size(), document.prefix + first);
    BatchCache cache(documents);
    ContinuationSink sink(config(), first, count, targets, references, own_judged, options.stream > 0);
    model.prefill({.tokens = tokens, .offsets = offsets, .past = past, .cache = &cache}, prefill, sink);
    for (size_t i = 0; options.stream > 0 && i < members.size(); ++i) documents[i]->append(sink.rows(i));
  }
}

LoopResult ClosedLoop::Impl::run(const LoopDocument& document) const {
  const size_t judged_tokens = document.tokens.size() - 1 - document.prefix;
  ReferenceSink reference(config(), document.prefix, judged_tokens, options.queries);
  const uint64_t offsets[] = {0, document.tokens.size() - 1};
  model.prefill({.tokens = std::span(document.tokens).first(offsets[1]), .offsets = offsets},
                prefill_options(document), reference);
  std::vector<NextToken> references;
  std::vector<Judged> own;
  for (size_t i = 0; i < judged_tokens; ++i) {
    const NextToken& next = references.emplace_back(reference.logits().row(i));
    const uint32_t target = document.tokens[document.prefix + 1 + i];
    own.push_back({.surprise = next.surprise(target), .same_best = true, .right = next.best() == target});
  }
  LoopResult result{score_of(own), {}};

  std::vector<CompressedDocument> codes;
  for (const Plan& plan : plans) codes.emplace_back(plan);
  for (CompressedDocument& each : codes) each.start(reference.prefix());
  std::vector<std::vector<Judged>> judged(plans.size(), std::vector<Judged>(judged_tokens));
  const size_t together = std::max<size_t>(1, kBatchTokens / judged_tokens);
  for (const bool selects : {false, true}) {
    std::vector<size_t> members;
    for (size_t i = 0; i < plans.size(); ++i)
      if ((plans[i].setting.selection.by != "all") == selects) members.push_back(i);
    for (size_t first = 0; first < members.size(); first += together)
      go_on(document, references,
            std::span<const size_t>(members).subspan(first, std::min(together, members.size() - first)),
            codes, judged);
  }
  const size_t stored = options.stream > 0 ? document.tokens.size() - 1 : document.prefix;
  for (size_t i = 0; i < plans.size(); ++i) {
    result.settings.push_back(score_of(judged[i]));
    result.settings.back().stored = codes[i].stored(stored);
  }
  return result;
}

ClosedLoop::ClosedLoop(const LlamaModel& model, std::vector<LoopSetting> settings, const LoopOptions& options)
    : impl_(new Impl{model, options, {}}) {
  for (LoopSetting& setting : settings) {
    const int layers = model.config().num_layers, group = setting.codec->layer_group();
    if (layers % group != 0)
      throw usage_error("a codec of groups of {} layers for a model of {}", group, layers);
    if (setting.selection.by != "all") (void)SelectedAttention(model.config(), {setting.selection}, 0);
    impl_->plans.push_back({std::move(setting), &model.config(), {}});
  }
}

ClosedLoop::~ClosedLoop() = default;

std::vector<LoopResult> ClosedLoop::run(std::span<const LoopDocument> documents, const Progress& progress) {
  uint64_t largest = 0;
  for (const LoopDocument& document : documents) {
    check_document(document);
    const uint64_t bytes = impl_->bytes_of(document);
    if (impl_->options.memory > 0 && bytes > impl_->options.memory)
      throw usage_error(
          "a document of {} tokens with {} settings takes about {} bytes of memory; {} are allowed",
          document.tokens.size(), impl_->plans.size(), bytes, impl_->options.memory);
    largest = std::max(largest, bytes);
  }
  if (const uint64_t bytes = impl_->survey_bytes(documents);
      impl_->options.memory > 0 && bytes > impl_->options.memory)
    throw usage_error(
        "the survey of {} documents takes about {} bytes of memory; {} are allowed: survey fewer, or give "
        "more",
        impl_->surveyed_documents(documents), bytes, impl_->options.memory);
  impl_->survey(documents);
  std::vector<LoopResult> results(documents.size());
  std::mutex mutex;
  size_t done = 0;
  const auto run_one = [&](size_t i) {
    results[i] = with_context(fmt::format("document {}", i), [&] { return impl_->run(documents[i]); });
    const std::lock_guard lock(mutex);
    report(progress, static_cast<double>(++done), static_cast<double>(documents.size()));
  };
  // A document per thread, or all threads in one document.
  const auto threads = static_cast<uint64_t>(num_threads());
  if (documents.size() >= threads &&
      (impl_->options.memory == 0 || largest <= impl_->options.memory / threads))
    parallel_for(documents.size(), 1, [&](size_t i, size_t, int) { run_one(i); });
  else
    for (size_t i = 0; i < documents.size(); ++i) run_one(i);
  return results;
}

StoredBits ClosedLoop::shared(size_t setting) const {
  const Plan& plan = impl_->plans.at(setting);
  StoredBits result;
  for (size_t part = 0; part < plan.shared.size(); ++part)
    for (const StreamSpec& spec : plan.setting.codec->streams(plan.shape(part)))
      for (const auto& [name, bytes] : plan.shared[part])
        if (name == spec.name)
          result.category[static_cast<size_t>(spec.category)] += stored_bits(spec, bytes.size());
  return result;
}

}  // namespace kvcodec
