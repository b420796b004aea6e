// Codecs around other codecs: first tokens kept exactly, keys turned back.
#include "lib/codec/outer_codecs.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/kinds.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Rows that are written before they are read.
class UnsetMatrix {
 public:
  UnsetMatrix(UnsetMatrix&&) = default;  // the values stay where they are
  UnsetMatrix(size_t rows, size_t cols) : values_(rows * cols), view_(values_.data(), rows, cols) {}
  MatrixView<float> view() const { return view_; }
  operator MatrixView<const float>() const { return view_; }

 private:
  UnsetVector<float> values_;
  MatrixView<float> view_;
};

/// Codecs around an inner one: their members forward to it, except those that the outer one overrides.
class OuterCodec : public Codec {
 public:
  Record parameters() const override { return inner_->parameters(); }
  std::vector<int> group_of(int layer) const override { return inner_->group_of(layer); }
  bool joint() const override { return inner_->joint(); }
  std::optional<LearnedRate> learned_rate() const override { return inner_->learned_rate(); }
  uint64_t predicts_from() const override { return inner_->predicts_from(); }
  bool weighs_tokens() const override { return inner_->weighs_tokens(); }
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

/// The rows that the inner codec codes: it gets a copy of row `sink` of the document for each row before it, which are stored exactly.
/// `rows` begin with row `first` <= sink of the document, and hold row `sink`.
UnsetMatrix with_stand_ins(MatrixView<const float> rows, uint64_t first, uint64_t sink) {
  const auto at_sink = static_cast<size_t>(sink - first), copies = static_cast<size_t>(sink);
  UnsetMatrix out(copies + rows.rows() - at_sink, rows.cols());
  for (size_t i = 0; i < out.view().rows(); ++i) {
    const size_t source = i < copies ? at_sink : at_sink + (i - copies);
    std::ranges::copy(rows.row(source), out.view().row(i).begin());
  }
  return out;
}

/// Shows an inner survey the rows that its codec gets.
class SinkSurvey final : public Survey {
 public:
  SinkSurvey(std::unique_ptr<Survey> inner, uint64_t sink) : inner_(std::move(inner)), sink_(sink) {}

  int passes() const override { return inner_->passes(); }
  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    inner_->observe_queries(tokens, queries);
  }
  void observe_ids(std::span<const uint32_t> ids) override { inner_->observe_ids(ids); }
  void observe(MatrixView<const float> rows) override {
    const uint64_t first = tokens_;
    tokens_ += rows.rows();
    if (tokens_ <= sink_) return;
    if (first > sink_) return inner_->observe(rows);
    inner_->observe(with_stand_ins(rows, first, sink_));
  }
  void end_document() override {
    inner_->end_document();
    tokens_ = 0;
  }
  void end_pass() override { inner_->end_pass(); }
  void finish(StreamStore& document) override { inner_->finish(document); }

 private:
  std::unique_ptr<Survey> inner_;
  uint64_t sink_;
  uint64_t tokens_ = 0;  // of the document in work
};

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
    return std::make_unique<SinkSurvey>(inner().survey(shape), sink_);
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

// Keys turned back, channels centred ----------------------------------------------------------------

constexpr std::string_view kMeans = "means";

/// Values per piece of parallel work: 64 KiB of floats, which stay in the cache on their way.
constexpr size_t kPreparedValues = 1 << 14;

/// Calls body(begin, rows) for pieces of rows, the first of which is row `begin`.
template <class Body>
void for_pieces(MatrixView<float> rows, const Body& body) {
  parallel_for(rows.rows(), std::max<size_t>(1, kPreparedValues / std::max<size_t>(1, rows.cols())),
               [&](size_t begin, size_t end, int) { body(begin, rows.rows(begin, end - begin)); });
}

/// A side's rows as an inner codec gets them, and back. Each step is optional.
struct Preparation {
  GroupShape shape;
  const KeyRope* rope = nullptr;  ///< turns keys; values beside them stay as they are
  std::vector<float> means = {};  ///< taken from all tokens behind the first `exact`; none: nothing is taken
  size_t exact = 0;
  /// The type that rows are rounded to: inner codecs see values of the cache's type, so that what they keep exactly and take up again later is
  /// what they were given. f32: they are not rounded.
  DType storage = DType::f32;

  bool changes_rows() const { return rope || !means.empty(); }

  /// rows: of tokens first, first + 1 …
  UnsetMatrix prepared(uint64_t first, MatrixView<const float> rows) const {
    check_width(shape, rows.cols());
    UnsetMatrix out(rows.rows(), rows.cols());
    for_pieces(out.view(), [&](size_t begin, MatrixView<float> piece) {
      for (size_t i = 0; i < piece.rows(); ++i) std::ranges::copy(rows.row(begin + i), piece.row(i).begin());
      if (rope) turn(TurnWay::back, first + begin, piece);
      std::vector<uint16_t> halves(piece.cols());
      for (size_t i = 0; i < piece.rows(); ++i) {
        const auto row = piece.row(i);
        if (first + begin + i >= exact)
          for (size_t j = 0; j < means.size(); ++j) row[j] -= means[j];
        if (storage == DType::f32) continue;
        store_row(storage, row, begin + i, halves);
        widen(storage, halves, row);
      }
    });
    return out;
  }

  /// The inverse, but for the rounding.
  void undo(uint64_t first, MatrixView<float> rows) const {
    for_pieces(rows, [&](size_t begin, MatrixView<float> piece) {
      for (size_t i = count_before(exact, first + begin, piece.rows()); i < piece.rows(); ++i)
        for (size_t j = 0; j < means.size(); ++j) piece(i, j) += means[j];
      if (rope) turn(TurnWay::forward, first + begin, piece);
    });
  }

 private:
  void turn(TurnWay way, uint64_t first, MatrixView<float> rows) const {
    rope->turn(way, shape.layers, first,
               rows.columns(shape.column_of(Side::key), shape.side_width(Side::key)));
  }
};

/// Shows an inner survey, if there is one, prepared rows. If they are to be centred, finds the means in a first pass.
class PreparedSurvey final : public Survey {
 public:
  /// rows: without means yet; centers: finds them.
  PreparedSurvey(std::unique_ptr<Survey> inner, Preparation rows, const KeyRope* queries, bool centers)
      : inner_(std::move(inner)),
        prepare_(std::move(rows)),
        queries_(queries),
        finds_(centers),
        sums_(centers ? prepare_.shape.width() : 0) {}

  int passes() const override { return (sums_.empty() ? 0 : 1) + (inner_ ? inner_->passes() : 0); }
  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    if (finds_) return;
    if (!queries_) return inner_->observe_queries(tokens, queries);
    Matrix<float> turned(queries.rows(), queries.cols());
    for (size_t i = 0; i < queries.rows(); ++i) std::ranges::copy(queries.row(i), turned.row(i).begin());
    queries_->turn(TurnWay::back, prepare_.shape.layers, tokens, turned);
    inner_->observe_queries(tokens, turned);
  }
  void observe_ids(std::span<const uint32_t> ids) override {
    if (!finds_) inner_->observe_ids(ids);
  }
  Look look(uint64_t left) override {
    if (!finds_) {
      const Look look = inner_->look(left);
      token_ += look.skipped;
      return look;
    }
    const uint64_t skipped = std::min(left, token_ < kFirst ? kFirst - token_ : 0),
                   shown =
                       std::min(left - skipped, end_counted() - std::min(end_counted(), token_ + skipped));
    token_ += shown > 0 ? skipped : left;
    return {shown > 0 ? skipped : left, shown};
  }
  void observe(MatrixView<const float> rows) override {
    if (finds_) {
      const size_t begin = count_before(kFirst, token_, rows.rows()),
                   end = std::max(begin, count_before(end_counted(), token_, rows.rows()));
      count(token_ + begin, rows.rows(begin, end - begin));
    } else if (prepare_.changes_rows()) {
      inner_->observe(prepare_.prepared(token_, rows));
    } else {
      inner_->observe(rows);
    }
    token_ += rows.rows();
  }
  void end_document() override {
    if (!finds_) inner_->end_document();
    token_ = 0;
    counted_before_ = counted_;
  }
  void end_pass() override {
    if (!finds_) return inner_->end_pass();
    for (const double sum : sums_)
      prepare_.means.push_back(counted_ > 0 ? static_cast<float>(sum / static_cast<double>(counted_)) : 0.0f);
    finds_ = false;
  }
  void finish(StreamStore& document) override {
    if (!sums_.empty()) document.append_values<float>(kMeans, prepare_.means);
    if (inner_) inner_->finish(document);
  }

 private:
  /// Tokens of a document that count: not its first one, which is unlike all others, and no more than make the means sure.
  static constexpr uint64_t kFirst = 1, kOfDocument = 1024, kOfFile = 16384;
  uint64_t end_counted() const {
    return kFirst + std::min(kOfDocument, kOfFile - std::min(kOfFile, counted_before_));
  }
  /// Adds all rows, of tokens from `first` on, to the sums.
  void count(uint64_t first, MatrixView<const float> rows) {
    counted_ += rows.rows();
    if (!prepare_.rope) return add(rows);
    Preparation unrounded = prepare_;
    unrounded.storage = DType::f32;
    add(unrounded.prepared(first, rows));
  }
  void add(MatrixView<const float> rows) {
    for (size_t i = 0; i < rows.rows(); ++i) {
      const auto row = rows.row(i);
      for (size_t j = 0; j < sums_.size(); ++j) sums_[j] += static_cast<double>(row[j]);
    }
  }

  std::unique_ptr<Survey> inner_;
  Preparation prepare_;
  const KeyRope* queries_;    // turns queries of a cache whose keys are turned back; else null
  bool finds_;                // this pass
  std::vector<double> sums_;  // none: rows are not centred
  uint64_t token_ = 0, counted_ = 0, counted_before_ = 0;  // before the document in work
};

std::vector<float> read_means(const GroupShape& shape, const StreamReader& document) {
  auto means = document.read<float>(kMeans, 0, 1, shape.width());
  for (const float mean : means)
    if (!std::isfinite(mean)) throw bad_input("stream '{}': {} is not finite", kMeans, mean);
  return means;
}

class PreparedView final : public OuterView {
 public:
  /// rows: without means yet; centers: they stand in the document.
  PreparedView(ViewPtr inner, Preparation rows, bool centers, const StreamReader& document)
      : OuterView(std::move(inner), rows.shape, document), rows_(std::move(rows)), centers_(centers) {}

 protected:
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    inner().decode(first, out);
    prepared().undo(first, out);
  }

  void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const override {
    // Turning the query instead of keys would take one query for each token.
    if (rows_.rope) return DocumentView::multiply_range(first, factors, out);
    inner().multiply(first, factors, out);
    const bool keys = shape().side == Side::key;
    const size_t count = keys ? out.cols() : factors.cols(), exact = count_before(rows_.exact, first, count),
                 dims = shape().dims(), heads = shape().all_heads(), of_head = factors.rows() / heads;
    for (size_t i = 0; i < factors.rows() && exact < count; ++i) {
      const auto mean = std::span(prepared().means).subspan(i / of_head * dims, dims);
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
  const Preparation& prepared() const {
    return whole_.get([&] {
      Preparation whole = rows_;
      if (centers_) whole.means = read_means(shape(), document());
      return whole;
    });
  }

  Preparation rows_;
  bool centers_;
  Lazy<Preparation> whole_;
};

class PreparedCodec final : public OuterCodec {
 public:
  PreparedCodec(std::unique_ptr<Codec> inner, Centered center, DType storage)
      : OuterCodec(std::move(inner)),
        center_(center),
        exact_(static_cast<size_t>(sink_in(OuterCodec::parameters()))),
        storage_(storage) {}

  /// Turns keys back, too.
  void turn(const KeyRope& rope) { rope_ = rope; }

  Record parameters() const override {
    Record record = inner().parameters();
    if (rope_) set_rope(record, RopeChoice::undo);
    return record;
  }
  bool rounds() const override { return center_ != Centered::none || inner().rounds(); }
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
    const GroupShape surveyed = inner().surveyed(shape);
    if (centers(shape.side) && (scope == SurveyScope::document || surveyed.side != shape.side))
      throw failed("a codec that surveys documents, or another side, cannot be centred");
    return std::make_unique<PreparedSurvey>(scope == SurveyScope::none ? nullptr : inner().survey(shape),
                                            preparation(surveyed), rope_ ? &*rope_ : nullptr,
                                            centers(shape.side));
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    Preparation prepare = preparation(shape);
    if (!prepare.rope && !centers(shape.side)) return inner().append(shape, rows, document);
    const uint64_t before = inner().open(shape, document)->tokens();
    if (centers(shape.side)) prepare.means = read_means(shape, document);
    inner().append(shape, prepare.prepared(before, rows), document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    auto view = Codec::view_of(inner(), shape, document);
    Preparation prepare = preparation(shape);
    if (!prepare.rope && !centers(shape.side)) return view;
    return std::make_unique<PreparedView>(std::move(view), std::move(prepare), centers(shape.side), document);
  }

 private:
  bool centers(Side side) const {
    return center_ == Centered::both || (center_ == Centered::keys && side == Side::key);
  }
  /// Without means.
  Preparation preparation(const GroupShape& shape) const {
    const bool rounded = !centers(shape.side) && inner().rounds();
    return {shape,
            rope_ && shape.side != Side::value ? &*rope_ : nullptr,
            {},
            exact_,
            rounded ? DType::f32 : storage_};
  }

  std::optional<KeyRope> rope_;
  Centered center_;
  size_t exact_;  // first tokens that the inner codec keeps
  DType storage_;
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

std::unique_ptr<Codec> keep_first_tokens(std::unique_ptr<Codec> inner, int64_t sink, DType storage) {
  if (sink == 0) return inner;
  return std::make_unique<SinkCodec>(std::move(inner), static_cast<uint64_t>(sink), storage);
}

std::unique_ptr<Codec> center_channels(std::unique_ptr<Codec> inner, Centered center, DType storage) {
  if (center == Centered::none) return inner;
  return std::make_unique<PreparedCodec>(std::move(inner), center, storage);
}

RopeChoice choose_rope(const CodecEntry& entry, std::optional<RopeChoice> asked,
                       const CodecContext& context) {
  if (context.book && !context.book->program && !entry.of(Side::key).book_type.empty()) {
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
  if (!context.weights.alike() && !entry.capabilities.takes_weights)
    throw usage_error(
        "the codec {} takes no weights: {}", entry.name,
        entry.book_type.empty() ? "its errors follow the values" : "they are trained into its book");
  auto codec = make_for_kinds(entry, options, context);
  return rope == RopeChoice::undo ? undo_rope(std::move(codec), context) : std::move(codec);
}

std::unique_ptr<Codec> undo_rope(std::unique_ptr<Codec> inner, const CodecContext& context) {
  if (const std::string why = inner->needs_rope(); !why.empty()) throw cannot_undo(why);
  check_can_undo(context.rope);
  if (context.rope.layers() != as_size(context.num_layers))
    throw failed("{} layers turn keys; the model has {}", context.rope.layers(), context.num_layers);
  if (!dynamic_cast<PreparedCodec*>(inner.get()))
    inner = std::make_unique<PreparedCodec>(std::move(inner), Centered::none, context.storage);
  dynamic_cast<PreparedCodec&>(*inner).turn(context.rope);
  return inner;
}

}  // namespace kvcodec
