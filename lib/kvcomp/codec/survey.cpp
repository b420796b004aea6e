#include "lib/kvcomp/codec/survey.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <optional>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/kvcomp/codec/reader.hpp"
#include "lib/kvcomp/codec/rows.hpp"

namespace kvcodec::kvcomp {
namespace {

/// About the mean spread, largest less smallest, of so many values of a normal distribution, in its deviations: 4.8 of 64.
/// The largest value's limit distribution is Gumbel's (Cramer, "Mathematical Methods of Statistics", section 28.6).
double spread_of_normal(size_t values) {
  if (values < 3) return 1;
  constexpr double kLogOf4Pi = 2.5310242, kEuler = 0.5772157;
  const double log = std::log(static_cast<double>(values)), root = std::sqrt(2 * log);
  return 2 * (root - (std::log(log) + kLogOf4Pi - 2 * kEuler) / (2 * root));
}

/// Counts the symbols of all tokens. It counts a document's last, incomplete block too: append will code those
/// tokens in a block when the document grows.
class HistogramSurvey final : public Survey {
 public:
  HistogramSurvey(Quantizer quantizer, const KvcompOptions& options)
      : quantizer_(quantizer),
        layout_(quantizer_.layout()),
        choice_(options.entropy),
        max_logit_error_(options.max_logit_error),
        counts_(256) {}

  /// Limits come from the queries of all documents, before the first token is quantized.
  int passes() const override { return quantizer_.has_limits() ? 2 : 1; }

  void observe_queries(std::span<const uint64_t>, MatrixView<const float> queries) override {
    if (!quantizer_.has_limits() || pass_ > 0) return;
    const size_t d = layout_.block.dims, group = queries.cols() / layout_.width();
    largest_.resize(quantizer_.limits());
    for (size_t i = 0; i < queries.rows(); ++i)
      for (size_t query_head = 0; query_head < layout_.heads * group; ++query_head) {
        const auto query = queries.row(i).subspan(query_head * d, d);
        const size_t head = query_head / group;
        if (layout_.unit == UnitShape::column) {
          for (size_t c = 0; c < d; ++c)
            largest_[head * d + c] = std::max<double>(largest_[head * d + c], std::abs(query[c]));
        } else {
          double sum = 0;
          for (const float value : query) sum += std::abs(static_cast<double>(value));
          largest_[head] = std::max(largest_[head], sum);
        }
      }
  }

  void end_pass() override {
    if (quantizer_.has_limits() && pass_++ == 0) set_limits();
  }

  void observe(MatrixView<const float> rows) override {
    if (pass_ + 1 < passes()) return;
    const TokenQueue queue(quantizer_.storage(), waiting_, rows);
    const size_t whole = queue.tokens() / layout_.block.tokens;
    count(queue, whole, layout_.block.tokens);
    waiting_ = queue.from(whole * layout_.block.tokens);
  }

  void end_document() override {
    if (!waiting_.empty()) {
      const Matrix<float> none(0, layout_.width());
      const TokenQueue queue(quantizer_.storage(), waiting_, none);
      count(queue, 1, queue.tokens());
    }
    waiting_.clear();
  }

  void finish(StreamStore& document) override {
    const double spread = spread_of_normal(layout_.unit == UnitShape::row      ? layout_.block.dims
                                           : layout_.unit == UnitShape::column ? layout_.block.tokens
                                                                               : layout_.block.symbols());
    const double rel = 2 * quantizer_.bound().range;
    const double deviation = rel > 0 ? 1 / (rel * spread) : 8;
    if (quantizer_.has_limits()) document.append_values<float>(kLimits, limits_);
    document.append_values<uint8_t>(
        kBook, BlockCoder::from_counts(counts_, deviation, choice_, layout_.block).write());
  }

 private:
  /// |q . error| <= sum over channels c of |q[c]| * limit[c]. Where channels have steps of their own, each is given the
  /// same share of the bound; where a head has one step, its channels are given the same limit.
  void set_limits() {
    if (largest_.empty())
      throw bad_input("there are no queries, which --max-logit-error needs; see dump-kv --queries");
    const double d = static_cast<double>(layout_.block.dims);
    const double shares = layout_.unit == UnitShape::column ? d : 1;
    for (const double largest : largest_) {
      const double limit = max_logit_error_ * std::sqrt(d) / (shares * largest);
      limits_.push_back(limit < FLT_MAX ? std::nextafter(static_cast<float>(limit), 0.0f) : FLT_MAX);
    }
  }

  void count(const TokenQueue& queue, size_t blocks, size_t tokens) {
    const BlockEngine* engine = quantizer_.device();
    if (engine && blocks > 0 && tokens == layout_.block.tokens) {
      Matrix<uint16_t> values(blocks * tokens, layout_.width());
      queue.read(0, {values.data(), values.size()});
      if (const auto counts =
              engine->count_symbols(layout_, quantizer_.storage(), quantizer_.bound(), values)) {
        for (size_t symbol = 0; symbol < 256; ++symbol) counts_[symbol] += (*counts)[symbol];
        return;
      }
    }
    std::vector<std::vector<uint64_t>> counts(blocks);
    std::vector<std::optional<RowScratch>> scratch(static_cast<size_t>(num_threads()));
    parallel_for(blocks, 1, [&](size_t i, size_t, int worker) {
      auto& row = scratch[static_cast<size_t>(worker)];
      if (!row) row.emplace(layout_, tokens);
      row->read(queue, i * tokens);
      quantizer_.quantize(limits_, row->values, row->steps, row->origins, row->symbols);
      counts[i] = histogram({row->symbols.data(), row->symbols.size()}, 256);
    });
    for (const auto& of_block : counts)
      for (size_t symbol = 0; symbol < 256; ++symbol) counts_[symbol] += of_block[symbol];
  }

  Quantizer quantizer_;
  Layout layout_;
  EntropyChoice choice_;
  double max_logit_error_;
  std::vector<uint64_t> counts_;
  std::vector<uint16_t> waiting_;  // tokens short of a block
  int pass_ = 0;
  std::vector<double> largest_;  // |q| of a channel, or the sum of |q| of a head, over all queries
  std::vector<float> limits_;
};

}  // namespace

std::unique_ptr<Survey> make_survey(Quantizer quantizer, const KvcompOptions& options) {
  return std::make_unique<HistogramSurvey>(quantizer, options);
}

}  // namespace kvcodec::kvcomp
