#include "lib/codec/rope_codec.hpp"

#include <algorithm>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/outer_codec.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

/// Values per piece of parallel work: 64 KiB of floats.
constexpr size_t kPieceValues = 1 << 14;

/// How keys are turned back, and what they are rounded to then: inner codecs see values of the cache's type, so
/// that what they keep exactly and take up again later is what they were given.
class Turning {
 public:
  Turning(const KeyRope& rope, DType storage) : rope_(rope), storage_(storage) {}

  /// rows: of tokens first, first + 1 … Values beside the keys stay as they are.
  Matrix<float> back(const GroupShape& shape, uint64_t first, MatrixView<const float> rows) const {
    check_width(shape, rows.cols());
    Matrix<float> turned(rows.rows(), rows.cols());
    // A few rows at a time, which stay in the cache on their way.
    const size_t grain = std::max<size_t>(1, kPieceValues / rows.cols());
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

/// Shows a survey keys before rope. Documents are shown from their first token on.
class RopeSurvey final : public OuterSurvey {
 public:
  RopeSurvey(std::unique_ptr<Survey> inner, const Turning& turning, const GroupShape& surveyed,
             const GroupShape& key_shape)
      : OuterSurvey(std::move(inner)), turning_(turning), surveyed_(surveyed), key_shape_(key_shape) {}

  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    inner().observe_queries(tokens, turning_.queries_back(key_shape_, tokens, queries));
  }
  Look look(uint64_t left) override { return look_of_inner(left); }

 protected:
  void observe_from(uint64_t first, MatrixView<const float> rows) override {
    if (surveyed_.side == Side::value)
      inner().observe(rows);
    else
      inner().observe(turning_.back(surveyed_, first, rows));
  }

 private:
  const Turning& turning_;  // of the codec
  GroupShape surveyed_, key_shape_;
};

class RopeView final : public DocumentView {
 public:
  RopeView(std::unique_ptr<DocumentView> inner, const Turning& turning, const GroupShape& shape,
           const StreamReader& document)
      : DocumentView(shape, document), inner_(std::move(inner)), turning_(turning) {}

  std::vector<uint64_t> symbol_counts() const override { return inner_->symbol_counts(); }

 protected:
  uint64_t take_in() override {
    inner_->refresh();
    return inner_->tokens();
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    inner_->decode(first, out);
    turning_.forward(shape(), first, out);
  }
  Block block_of(uint64_t token) const override { return DocumentView::block_of(*inner_, token); }

 private:
  std::unique_ptr<DocumentView> inner_;
  const Turning& turning_;  // of the codec
};

class RopeCodec final : public OuterCodec {
 public:
  RopeCodec(std::unique_ptr<Codec> inner, const CodecContext& context)
      : OuterCodec(std::move(inner)), turning_(context.rope, context.storage) {}

  Record parameters() const override {
    Record record = inner().parameters();
    set_rope(record, RopeChoice::undo);
    return record;
  }

  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return std::make_unique<RopeSurvey>(inner().survey(shape), turning_, inner().surveyed(shape),
                                        of_side(shape, Side::key));
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    if (shape.side == Side::value) return inner().append(shape, rows, document);
    const uint64_t before = inner().open(shape, document)->tokens();
    inner().append(shape, turning_.back(shape, before, rows), document);
  }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
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
  if (context.rope.layers() != static_cast<size_t>(context.num_layers))
    throw failed("{} layers turn keys; the model has {}", context.rope.layers(), context.num_layers);
  return std::make_unique<RopeCodec>(std::move(inner), context);
}

}  // namespace kvcodec
