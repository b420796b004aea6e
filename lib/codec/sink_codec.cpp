#include "lib/codec/sink_codec.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/outer_codec.hpp"
#include "lib/codec/products.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// Rows as the inner codec gets them. `rows` begin with token `first`, at or before token `sink`, and hold token `sink`.
/// The result begins with token 0: `sink` copies of token `sink`, then that token and those behind it.
Matrix<float> with_stand_ins(MatrixView<const float> rows, uint64_t first, uint64_t sink) {
  const auto skipped = static_cast<size_t>(sink - first), copies = static_cast<size_t>(sink);
  Matrix<float> out(copies + rows.rows() - skipped, rows.cols());
  for (size_t i = 0; i < out.rows(); ++i)
    std::ranges::copy(rows.row(i < copies ? skipped : skipped + i - copies), out.row(i).begin());
  return out;
}

/// Shows a survey what the codec will get.
class SinkSurvey final : public OuterSurvey {
 public:
  SinkSurvey(std::unique_ptr<Survey> inner, uint64_t sink) : OuterSurvey(std::move(inner)), sink_(sink) {}

 protected:
  void observe_from(uint64_t first, MatrixView<const float> rows) override {
    if (first > sink_)
      inner().observe(rows);
    else if (first + rows.rows() > sink_)
      inner().observe(with_stand_ins(rows, first, sink_));
  }

 private:
  uint64_t sink_;
};

class SinkView final : public DocumentView {
 public:
  SinkView(std::unique_ptr<DocumentView> inner, DType storage, uint64_t sink, const GroupShape& shape,
           const StreamReader& document)
      : DocumentView(shape, document), inner_(std::move(inner)), storage_(storage), sink_(sink) {}

  std::vector<uint64_t> symbol_counts() const override { return inner_->symbol_counts(); }

 protected:
  uint64_t take_in() override {
    inner_->refresh();
    firsts_ = document().rows(kSink);
    const uint64_t coded = inner_->tokens();
    if (firsts_ > sink_ || (coded > 0 && (firsts_ < sink_ || coded <= sink_)))
      throw bad_input("stream '{}' has {} rows, and {} tokens are coded; {} are kept", kSink, firsts_, coded,
                      sink_);
    return coded > 0 ? coded : firsts_;
  }

  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    const size_t exact = exact_of(first, out.rows());
    if (exact > 0) read_exact(kSink, storage_, document(), first, out.rows(0, exact));
    if (exact < out.rows()) inner_->decode(first + exact, out.rows(exact, out.rows() - exact));
  }

  void multiply_key_range(uint64_t first, MatrixView<const float> queries,
                          MatrixView<float> out) const override {
    const size_t exact = exact_of(first, out.cols());
    if (exact > 0) multiply_key_rows(firsts(first, exact), queries, out.columns(0, exact));
    if (exact < out.cols())
      inner_->multiply_keys(first + exact, queries, out.columns(exact, out.cols() - exact));
  }

  void multiply_value_range(uint64_t first, MatrixView<const float> weights,
                            MatrixView<float> out) const override {
    const size_t exact = exact_of(first, weights.cols());
    if (exact < weights.cols())
      inner_->multiply_values(first + exact, weights.columns(exact, weights.cols() - exact), out);
    else
      for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
    if (exact > 0) multiply_value_rows(firsts(first, exact), weights.columns(0, exact), out);
  }

  Block block_of(uint64_t token) const override {
    return token < firsts_ ? DocumentView::block_of(token) : DocumentView::block_of(*inner_, token);
  }

 private:
  /// How many of tokens [first, first + count) are kept exactly.
  size_t exact_of(uint64_t first, size_t count) const {
    return first < firsts_ ? static_cast<size_t>(std::min<uint64_t>(firsts_ - first, count)) : 0;
  }
  Matrix<float> firsts(uint64_t first, size_t count) const {
    Matrix<float> rows(count, shape().width());
    read_exact(kSink, storage_, document(), first, rows);
    return rows;
  }

  std::unique_ptr<DocumentView> inner_;
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
    // What cannot be stored is known before anything is.
    const std::vector<uint16_t> kept = to_storage(storage_, rows.rows(0, firsts));
    if (firsts < rows.rows()) inner().append(shape, with_stand_ins(rows, before, sink_), document);
    document.append_values<uint16_t>(kSink, kept);
  }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<SinkView>(Codec::view_of(inner(), shape, document), storage_, sink_, shape,
                                      document);
  }

 private:
  uint64_t sink_;
  DType storage_;
};

}  // namespace

StreamSpec sink_stream(const GroupShape& shape, DType storage) {
  return exact_stream(std::string(kSink), shape, storage, Category::exempt);
}

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

}  // namespace kvcodec
