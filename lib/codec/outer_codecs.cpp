// Codecs around other codecs: first tokens kept exactly, keys turned back.
#include "lib/codec/outer_codecs.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// A survey that shows an inner one other rows.
class OuterSurvey final : public Survey {
 public:
  /// Shows the inner survey rows whose first token has that index in its document.
  using Show = std::function<void(Survey& inner, uint64_t first, MatrixView<const float> rows)>;
  using TurnQueries = std::function<Matrix<float>(std::span<const uint64_t>, MatrixView<const float>)>;

  /// turn: empty: the inner one gets queries as they are, and looks at every token, which may come in another place.
  OuterSurvey(std::unique_ptr<Survey> inner, Show show, TurnQueries turn = {})
      : inner_(std::move(inner)), show_(std::move(show)), turn_(std::move(turn)) {}

  int passes() const override { return inner_->passes(); }
  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    if (turn_)
      inner_->observe_queries(tokens, turn_(tokens, queries));
    else
      inner_->observe_queries(tokens, queries);
  }
  void observe_ids(std::span<const uint32_t> ids) override { inner_->observe_ids(ids); }
  Look look(uint64_t left) override {
    const Look look = turn_ ? inner_->look(left) : Survey::look(left);
    tokens_ += look.skipped;
    return look;
  }
  void observe(MatrixView<const float> rows) override {
    show_(*inner_, tokens_, rows);
    tokens_ += rows.rows();
  }
  void end_document() override {
    inner_->end_document();
    tokens_ = 0;
  }
  void end_pass() override { inner_->end_pass(); }
  void finish(StreamStore& document) override { inner_->finish(document); }

 private:
  std::unique_ptr<Survey> inner_;
  Show show_;
  TurnQueries turn_;
  uint64_t tokens_ = 0;  // of the document in work
};

/// Views and codecs around an inner one: their members forward to it, except those that the outer one overrides.
class OuterView : public DocumentView {
 public:
  std::vector<uint64_t> symbol_counts() const override { return inner_->symbol_counts(); }

 protected:
  OuterView(ViewPtr inner, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), inner_(std::move(inner)) {}
  const DocumentView& inner() const { return *inner_; }
  uint64_t take_in() override {
    inner_->refresh();
    return inner_->tokens();
  }
  Block block_of(uint64_t token) const override { return DocumentView::block_of(*inner_, token); }

 private:
  ViewPtr inner_;
};

class OuterCodec : public Codec {
 public:
  Record parameters() const override { return inner_->parameters(); }
  int layer_group() const override { return inner_->layer_group(); }
  bool joint() const override { return inner_->joint(); }
  std::optional<LearnedRate> learned_rate() const override { return inner_->learned_rate(); }
  uint64_t predicts_from() const override { return inner_->predicts_from(); }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override { return inner_->streams(shape); }
  /// That of the inner codec, and the copy of the rows that it gets.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return inner_->scratch_bytes_per_row(shape) + shape.width() * sizeof(float);
  }
  SurveyScope survey_scope(const GroupShape& shape) const override { return inner_->survey_scope(shape); }
  GroupShape surveyed(const GroupShape& shape) const override { return inner_->surveyed(shape); }
  bool wants_queries() const override { return inner_->wants_queries(); }
  std::string without_queries() const override { return inner_->without_queries(); }
  std::string needs_rope() const override { return inner_->needs_rope(); }
  bool rounds() const override { return inner_->rounds(); }
  uint64_t clipped() const override { return inner_->clipped(); }

 protected:
  explicit OuterCodec(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}
  const Codec& inner() const { return *inner_; }

 private:
  std::unique_ptr<Codec> inner_;
};

// First tokens --------------------------------------------------------------------------------------

/// Rows as the inner codec gets them. `rows` begin with token `first`, at or before token `sink`, and hold token `sink`.
/// The result begins with token 0: `sink` copies of token `sink`, then that token and those behind it.
Matrix<float> with_stand_ins(MatrixView<const float> rows, uint64_t first, uint64_t sink) {
  const auto skipped = static_cast<size_t>(sink - first), copies = static_cast<size_t>(sink);
  Matrix<float> out(copies + rows.rows() - skipped, rows.cols());
  for (size_t i = 0; i < out.rows(); ++i)
    std::ranges::copy(rows.row(i < copies ? skipped : skipped + i - copies), out.row(i).begin());
  return out;
}

class SinkView final : public OuterView {
 public:
  SinkView(ViewPtr inner, DType storage, uint64_t sink, const GroupShape& shape, const StreamReader& document)
      : OuterView(std::move(inner), shape, document), storage_(storage), sink_(sink) {}

 protected:
  uint64_t take_in() override {
    const uint64_t coded = OuterView::take_in();
    firsts_ = document().rows(kSink);
    if (firsts_ > sink_ || (coded > 0 && (firsts_ < sink_ || coded <= sink_)))
      throw bad_input("stream '{}' has {} rows, and {} tokens are coded; {} are kept", kSink, firsts_, coded,
                      sink_);
    return coded > 0 ? coded : firsts_;
  }

  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    const size_t exact = count_before(firsts_, first, out.rows());
    if (exact > 0) read_exact(kSink, storage_, document(), first, out.rows(0, exact));
    if (exact < out.rows()) inner().decode(first + exact, out.rows(exact, out.rows() - exact));
  }

  void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const override {
    const bool keys = shape().side == Side::key;
    const size_t count = keys ? out.cols() : factors.cols(), exact = count_before(firsts_, first, count),
                 rest = count - exact;
    if (keys) {
      if (exact > 0) multiply_key_rows(firsts(first, exact), factors, out.columns(0, exact));
      if (rest > 0) inner().multiply(first + exact, factors, out.columns(exact, rest));
      return;
    }
    if (rest > 0)
      inner().multiply(first + exact, factors.columns(exact, rest), out);
    else
      for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
    if (exact > 0) multiply_value_rows(firsts(first, exact), factors.columns(0, exact), out);
  }

  Block block_of(uint64_t token) const override {
    return token < firsts_ ? Block{token, token + 1} : OuterView::block_of(token);
  }

 private:
  Matrix<float> firsts(uint64_t first, size_t count) const {
    Matrix<float> rows(count, shape().width());
    read_exact(kSink, storage_, document(), first, rows);
    return rows;
  }

  DType storage_;
  uint64_t sink_;
  uint64_t firsts_ = 0;
};

class SinkCodec final : public OuterCodec {
 public:
  SinkCodec(std::unique_ptr<Codec> inner, uint64_t sink, DType storage)
      : OuterCodec(std::move(inner)), sink_(sink), storage_(storage) {}

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    auto specs = inner().streams(shape);
    specs.push_back(sink_stream(shape, storage_));
    return specs;
  }

  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return std::make_unique<OuterSurvey>(
        inner().survey(shape), [sink = sink_](Survey& inner, uint64_t first, MatrixView<const float> rows) {
          if (first > sink)
            inner.observe(rows);
          else if (first + rows.rows() > sink)
            inner.observe(with_stand_ins(rows, first, sink));
        });
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const uint64_t before = open(shape, document)->tokens();
    if (before > sink_) return inner().append(shape, rows, document);
    const auto firsts = static_cast<size_t>(std::min<uint64_t>(rows.rows(), sink_ - before));
    // Values that cannot be stored are refused before anything is stored.
    const auto kept = to_storage(storage_, rows.rows(0, firsts));
    if (firsts < rows.rows()) inner().append(shape, with_stand_ins(rows, before, sink_), document);
    document.append_values<uint16_t>(kSink, kept);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<SinkView>(Codec::view_of(inner(), shape, document), storage_, sink_, shape,
                                      document);
  }

 private:
  uint64_t sink_;
  DType storage_;
};

// Channels centred ----------------------------------------------------------------------------------

constexpr std::string_view kMeans = "means";

/// Rows of a side that is centred, without the means, in the cache's type.
class Means {
 public:
  Means(std::vector<float> means, DType storage) : means_(std::move(means)), storage_(storage) {}
  Means(const GroupShape& shape, const StreamReader& document, DType storage)
      : Means(document.read<float>(kMeans, 0, 1, shape.width()), storage) {
    for (const float mean : means_)
      if (!std::isfinite(mean)) throw bad_input("stream '{}': {} is not finite", kMeans, mean);
  }

  std::span<const float> of(size_t begin, size_t count) const {
    return std::span(means_).subspan(begin, count);
  }

  /// The first `exact` rows keep their means.
  Matrix<float> taken_from(MatrixView<const float> rows, size_t exact) const {
    Matrix<float> out(rows.rows(), rows.cols());
    parallel_each(rows.rows(), std::max<size_t>(1, kPieceValues / rows.cols()), [&](size_t i) {
      std::vector<uint16_t> halves(rows.cols());
      const auto to = out.row(i);
      std::ranges::copy(rows.row(i), to.begin());
      for (size_t j = 0; i >= exact && j < to.size(); ++j) to[j] -= means_[j];
      if (storage_ == DType::f32) return;
      store_row(storage_, to, i, halves);
      widen(storage_, halves, to);
    });
    return out;
  }

  void add_to(MatrixView<float> rows) const {
    parallel_each(rows.rows(), std::max<size_t>(1, kPieceValues / rows.cols()), [&](size_t i) {
      const auto to = rows.row(i);
      for (size_t j = 0; j < to.size(); ++j) to[j] += means_[j];
    });
  }

 private:
  static constexpr size_t kPieceValues = 1 << 14;

  std::vector<float> means_;
  DType storage_;
};

/// Finds the means in a first pass, then shows an inner survey, if there is one, the rows without them.
class MeansSurvey final : public Survey {
 public:
  MeansSurvey(std::unique_ptr<Survey> inner, size_t width, size_t exact, DType storage)
      : inner_(std::move(inner)), exact_(exact), storage_(storage), sums_(width) {}

  int passes() const override { return 1 + (inner_ ? inner_->passes() : 0); }
  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    if (means_) inner_->observe_queries(tokens, queries);
  }
  void observe_ids(std::span<const uint32_t> ids) override {
    if (means_) inner_->observe_ids(ids);
  }
  Look look(uint64_t left) override {
    if (means_) return Survey::look(left);
    const uint64_t skipped = std::min(left, token_ < kFirst ? kFirst - token_ : 0),
                   shown =
                       std::min(left - skipped, end_counted() - std::min(end_counted(), token_ + skipped));
    token_ += shown > 0 ? skipped : left;
    return {shown > 0 ? skipped : left, shown};
  }
  void observe(MatrixView<const float> rows) override {
    if (means_) {
      inner_->observe(means_->taken_from(rows, count_before(exact_, token_, rows.rows())));
    } else {
      for (size_t i = 0; i < rows.rows(); ++i) {
        if (token_ + i < kFirst || token_ + i >= end_counted()) continue;
        for (size_t j = 0; j < sums_.size(); ++j) sums_[j] += static_cast<double>(rows(i, j));
        ++counted_;
      }
    }
    token_ += rows.rows();
  }
  void end_document() override {
    if (means_) inner_->end_document();
    token_ = 0;
    counted_before_ = counted_;
  }
  void end_pass() override {
    if (means_) return inner_->end_pass();
    std::vector<float> means;
    for (const double sum : sums_)
      means.push_back(counted_ > 0 ? static_cast<float>(sum / static_cast<double>(counted_)) : 0.0f);
    means_.emplace(std::move(means), storage_);
  }
  void finish(StreamStore& document) override {
    document.append_values<float>(kMeans, means_->of(0, sums_.size()));
    if (inner_) inner_->finish(document);
  }

 private:
  /// Tokens of a document that count: not its first one, which is unlike all others, and no more than make the means sure.
  static constexpr uint64_t kFirst = 1, kOfDocument = 1024, kOfFile = 16384;
  uint64_t end_counted() const {
    return kFirst + std::min(kOfDocument, kOfFile - std::min(kOfFile, counted_before_));
  }

  std::unique_ptr<Survey> inner_;
  size_t exact_;
  DType storage_;
  std::vector<double> sums_;
  std::optional<Means> means_;                             // once the first pass is over
  uint64_t token_ = 0, counted_ = 0, counted_before_ = 0;  // before the document in work
};

class CenteredView final : public OuterView {
 public:
  CenteredView(ViewPtr inner, size_t exact, const GroupShape& shape, const StreamReader& document)
      : OuterView(std::move(inner), shape, document), exact_(exact) {}

 protected:
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    inner().decode(first, out);
    const size_t exact = count_before(exact_, first, out.rows());
    if (exact < out.rows()) means().add_to(out.rows(exact, out.rows() - exact));
  }

  void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const override {
    inner().multiply(first, factors, out);
    const bool keys = shape().side == Side::key;
    const size_t count = keys ? out.cols() : factors.cols(), exact = count_before(exact_, first, count),
                 dims = shape().dims(), heads = shape().width() / dims, of_head = factors.rows() / heads;
    for (size_t i = 0; i < factors.rows() && exact < count; ++i) {
      const auto mean = means().of(i / of_head * dims, dims);
      const auto given = factors.row(i);
      if (keys) {
        float product = 0;
        for (size_t j = 0; j < dims; ++j) product += given[j] * mean[j];
        for (float& value : out.row(i).subspan(exact)) value += product;
        continue;
      }
      float weight = 0;
      for (const float one : given.subspan(exact)) weight += one;
      for (size_t j = 0; j < dims; ++j) out(i, j) += weight * mean[j];
    }
  }

 private:
  const Means& means() const {
    return means_.get([&] { return Means(shape(), document(), DType::f32); });
  }

  size_t exact_;
  Lazy<Means> means_;
};

class CenteredCodec final : public OuterCodec {
 public:
  CenteredCodec(std::unique_ptr<Codec> inner, Centered center, DType storage)
      : OuterCodec(std::move(inner)),
        center_(center),
        exact_(static_cast<size_t>(sink_in(OuterCodec::parameters()))),
        storage_(storage) {}

  bool rounds() const override { return true; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    auto specs = inner().streams(shape);
    if (centers(shape.side))
      specs.push_back({std::string(kMeans), DType::f32, row_shape_of(shape), Category::scales, 0, true});
    return specs;
  }
  SurveyScope survey_scope(const GroupShape& shape) const override {
    return centers(shape.side) ? SurveyScope::file : inner().survey_scope(shape);
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    const SurveyScope scope = inner().survey_scope(shape);
    if (!centers(shape.side)) return inner().survey(shape);
    if (scope == SurveyScope::document || inner().surveyed(shape).side != shape.side)
      throw failed("a codec that surveys documents, or another side, cannot be centred");
    return std::make_unique<MeansSurvey>(scope == SurveyScope::none ? nullptr : inner().survey(shape),
                                         shape.width(), exact_, storage_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    if (!centers(shape.side)) return inner().append(shape, rows, document);
    const uint64_t before = exact_ > 0 ? inner().open(shape, document)->tokens() : 0;
    const Means means(shape, document, storage_);
    inner().append(shape, means.taken_from(rows, count_before(exact_, before, rows.rows())), document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    auto view = Codec::view_of(inner(), shape, document);
    if (!centers(shape.side)) return view;
    return std::make_unique<CenteredView>(std::move(view), exact_, shape, document);
  }

 private:
  bool centers(Side side) const { return center_ == Centered::both || side == Side::key; }

  Centered center_;
  size_t exact_;  // first tokens that the inner codec keeps
  DType storage_;
};

// Keys turned back ----------------------------------------------------------------------------------

/// Values per piece of parallel work: 64 KiB of floats.
constexpr size_t kTurnedValues = 1 << 14;

/// Turns keys back and rounds them: inner codecs see values of the cache's type, so
/// that what they keep exactly and take up again later is what they were given.
class Turning {
 public:
  Turning(const KeyRope& rope, DType storage) : rope_(rope), storage_(storage) {}

  /// rows: of tokens first, first + 1 … Values beside the keys stay as they are.
  Matrix<float> back(const GroupShape& shape, uint64_t first, MatrixView<const float> rows) const {
    check_width(shape, rows.cols());
    Matrix<float> turned(rows.rows(), rows.cols());
    // A few rows at a time, which stay in the cache on their way.
    const size_t grain = std::max<size_t>(1, kTurnedValues / rows.cols());
    parallel_for(rows.rows(), grain, [&](size_t begin, size_t end, int) {
      std::vector<uint16_t> halves(rows.cols());
      for (size_t i = begin; i < end; ++i) std::ranges::copy(rows.row(i), turned.row(i).begin());
      rope_.turn(TurnWay::back, shape.first_layer, shape.layers, first + begin,
                 keys_of(shape, turned.view().rows(begin, end - begin)));
      if (storage_ == DType::f32) return;
      for (size_t i = begin; i < end; ++i) {
        store_row(storage_, turned.row(i), i, halves);
        widen(storage_, halves, turned.row(i));
      }
    });
    return turned;
  }

  Matrix<float> queries_back(const GroupShape& shape, std::span<const uint64_t> tokens,
                             MatrixView<const float> queries) const {
    Matrix<float> turned(queries.rows(), queries.cols());
    for (size_t i = 0; i < queries.rows(); ++i) std::ranges::copy(queries.row(i), turned.row(i).begin());
    rope_.turn(TurnWay::back, shape.first_layer, shape.layers, tokens, turned);
    return turned;
  }

  void forward(const GroupShape& shape, uint64_t first, MatrixView<float> rows) const {
    rope_.turn(TurnWay::forward, shape.first_layer, shape.layers, first, keys_of(shape, rows));
  }

 private:
  static MatrixView<float> keys_of(const GroupShape& shape, MatrixView<float> rows) {
    return rows.columns(shape.column_of(Side::key), shape.side_width());
  }

  KeyRope rope_;
  DType storage_;
};

class RopeView final : public OuterView {
 public:
  RopeView(ViewPtr inner, const Turning& turning, const GroupShape& shape, const StreamReader& document)
      : OuterView(std::move(inner), shape, document), turning_(turning) {}

 protected:
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    inner().decode(first, out);
    turning_.forward(shape(), first, out);
  }

 private:
  const Turning& turning_;  // of the codec
};

class RopeCodec final : public OuterCodec {
 public:
  RopeCodec(std::unique_ptr<Codec> inner, const CodecContext& context)
      : OuterCodec(std::move(inner)),
        turning_(context.rope, OuterCodec::rounds() ? DType::f32 : context.storage) {}

  Record parameters() const override {
    Record record = inner().parameters();
    set_rope(record, RopeChoice::undo);
    return record;
  }

  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    // Documents are shown from their first token on.
    return std::make_unique<OuterSurvey>(
        inner().survey(shape),
        [this, surveyed = inner().surveyed(shape)](Survey& inner, uint64_t first,
                                                   MatrixView<const float> rows) {
          if (surveyed.side == Side::value) return inner.observe(rows);
          inner.observe(turning_.back(surveyed, first, rows));
        },
        [this, keys = of_side(shape, Side::key)](std::span<const uint64_t> tokens,
                                                 MatrixView<const float> queries) {
          return turning_.queries_back(keys, tokens, queries);
        });
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    if (shape.side == Side::value) return inner().append(shape, rows, document);
    const uint64_t before = inner().open(shape, document)->tokens();
    inner().append(shape, turning_.back(shape, before, rows), document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    auto view = Codec::view_of(inner(), shape, document);
    if (shape.side == Side::value) return view;
    return std::make_unique<RopeView>(std::move(view), turning_, shape, document);
  }

 private:
  Turning turning_;
};

/// "--rope undo" is not for this.
Error cannot_undo(std::string_view why) {
  return usage_error("rope is undo, and keys cannot be turned back: {}", why);
}

}  // namespace

StreamSpec sink_stream(const GroupShape& shape, DType storage) { return exact_stream(kSink, shape, storage); }

int64_t sink_in(const Record& parameters) {
  if (!parameters.find(kSink)) return 0;
  const int64_t sink = parameters.get_int(kSink);
  if (sink < 0) throw bad_input("parameter {} is {}; it is a number of tokens", kSink, sink);
  return sink;
}

void copy_first_tokens(const StreamSpec& stream, const StreamReader& document, StreamStore& out) {
  const uint64_t rows = document.rows(stream.name);
  out.append_values<std::byte>(stream.name,
                               document.read<std::byte>(stream.name, 0, rows, stream.row_bytes()));
}

std::unique_ptr<Codec> keep_first_tokens(std::unique_ptr<Codec> inner, int64_t sink, DType storage) {
  if (sink == 0) return inner;
  return std::make_unique<SinkCodec>(std::move(inner), static_cast<uint64_t>(sink), storage);
}

std::unique_ptr<Codec> center_channels(std::unique_ptr<Codec> inner, Centered center, DType storage) {
  if (center == Centered::none) return inner;
  return std::make_unique<CenteredCodec>(std::move(inner), center, storage);
}

RopeChoice choose_rope(const CodecEntry& entry, std::optional<RopeChoice> asked,
                       const CodecContext& context) {
  if (context.book && !entry.of(Side::key).book_type.empty()) {
    const RopeChoice trained = rope_in(context.book->parameters);
    if (asked && *asked != trained)
      throw usage_error(
          "rope is {}, but the {} was trained on keys {} (rope is {}): leave rope out, or train another",
          name_of(*asked), entry.book_type,
          trained == RopeChoice::undo ? "before the rotary embedding" : "as the cache has them",
          name_of(trained));
    // Keys that were never turned are what such a book is for.
    return context.rope.before() ? RopeChoice::keep : trained;
  }
  if (asked) return *asked;
  return entry.before_rope && context.rope.turns() ? RopeChoice::undo : RopeChoice::keep;
}

void check_can_undo(const KeyRope& rope) {
  if (!rope.known()) throw cannot_undo(rope.why_not());
  if (!rope.turns()) throw cannot_undo("the model does not turn them");
}

std::unique_ptr<Codec> make_codec(const CodecEntry& entry, const Options& options,
                                  const CodecContext& context, RopeChoice rope) {
  if (!context.one_shape && !entry.capabilities.any_shape)
    throw usage_error(
        "the codec {} takes caches whose layers all have the same heads and hold all tokens; here they differ",
        entry.name);
  if (!context.weights.alike() && !entry.capabilities.takes_weights)
    throw usage_error(
        "the codec {} takes no weights: {}", entry.name,
        entry.book_type.empty() ? "its errors follow the values" : "they are trained into its book");
  auto codec = entry.make(options, context);
  return rope == RopeChoice::undo ? undo_rope(std::move(codec), context) : std::move(codec);
}

std::unique_ptr<Codec> undo_rope(std::unique_ptr<Codec> inner, const CodecContext& context) {
  if (const std::string why = inner->needs_rope(); !why.empty()) throw cannot_undo(why);
  check_can_undo(context.rope);
  if (context.rope.layers() != as_size(context.num_layers))
    throw failed("{} layers turn keys; the model has {}", context.rope.layers(), context.num_layers);
  return std::make_unique<RopeCodec>(std::move(inner), context);
}

}  // namespace kvcodec
