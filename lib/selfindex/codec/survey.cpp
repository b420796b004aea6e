// The survey of the codec `selfindex`: it learns from a document's prefill before the document is coded.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/selfindex/codec/document.hpp"

namespace kvcodec::selfindex {
namespace {

/// The median of every column of 16-bit floats, exactly, in two passes over them: which high byte the middle
/// value has, then which low byte.
class ColumnMedians {
 public:
  explicit ColumnMedians(size_t columns)
      : columns_(columns), counts_(columns * 256), high_(columns), rank_(columns) {}

  void count_high(std::span<const uint16_t> row) {
    ++rows_;
    for (size_t j = 0; j < columns_; ++j) ++counts_[j * 256 + (ordered(row[j]) >> 8)];
  }
  /// Between the passes.
  void choose_high() {
    for (size_t j = 0; j < columns_; ++j) {
      rank_[j] = rows_ > 0 ? (rows_ - 1) / 2 : 0;
      high_[j] = find(j);
    }
    std::ranges::fill(counts_, 0);
  }
  void count_low(std::span<const uint16_t> row) {
    for (size_t j = 0; j < columns_; ++j) {
      const uint16_t value = ordered(row[j]);
      if (value >> 8 == high_[j]) ++counts_[j * 256 + (value & 255)];
    }
  }
  uint16_t median(size_t column) {
    if (rows_ == 0) return 0;
    return restored(static_cast<uint16_t>(high_[column] << 8 | find(column)));
  }

 private:
  /// Patterns of floats in the order of their values, and back.
  static uint16_t ordered(uint16_t bits) {
    return static_cast<uint16_t>(bits & 0x8000 ? ~bits : bits | 0x8000);
  }
  static uint16_t restored(uint16_t value) {
    return static_cast<uint16_t>(value & 0x8000 ? value & 0x7fff : ~value);
  }
  /// The byte that holds the value of rank_[column]; the rank becomes that within it.
  uint8_t find(size_t column) {
    size_t byte = 0;
    while (byte < 255 && rank_[column] >= counts_[column * 256 + byte])
      rank_[column] -= counts_[column * 256 + byte++];
    return static_cast<uint8_t>(byte);
  }

  size_t columns_;
  uint64_t rows_ = 0;
  std::vector<uint64_t> counts_;
  std::vector<uint8_t> high_;
  std::vector<uint64_t> rank_;
};

/// Learns the tables of the keys, and which tokens are kept exactly, from a document's prefill. It sees keys, whichever side it is for.
class PrefillSurvey final : public Survey {
 public:
  PrefillSurvey(const Form& form, const Form& own, Engine* engine, const GroupShape& shape,
                const ScoreForms& scores)
      : form_(form),
        own_(own),
        by_median_(form.options.center == KeyCenter::median),
        engine_(engine),
        side_(shape.side),
        layer_(shape.first_layer()),
        scores_(scores),
        medians_(needs_tables() && by_median_ ? form.width() : 0),
        sums_(form.width()),
        alpha_(form.width()),
        sums_of_codes_(form.heads, form.dims) {
    center_.resize(form.width());
  }

  /// The median takes one pass more than the mean before keys can be centred.
  int passes() const override { return needs_tables() && by_median_ ? 3 : 2; }

  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    if (pass_ > 0 || !form_.wants_queries()) return;
    const size_t d = form_.dims, per_head = form_.query_heads / form_.heads;
    if (queries.cols() != form_.query_heads * d || queries.rows() != tokens.size())
      throw failed("{} x {} queries of {} tokens for {} query heads of {} dimensions", queries.rows(),
                   queries.cols(), tokens.size(), form_.query_heads, d);
    const size_t used =
        std::min<size_t>(form_.options.exact_by == ExactBy::attention ? kObservedQueries : 1, tokens.size());
    const size_t first = tokens.size() - used;
    const ScoreForm form = scores_.of(layer_);
    for (size_t head = 0; head < form_.heads; ++head) {
      attention_.push_back(
          AttentionSums::of_head(queries.rows(first, used), tokens.subspan(first), head, per_head, d));
      attention_.back().set_form(form.of_heads(head * per_head, per_head), scores_.window(layer_));
    }
  }

  void observe(MatrixView<const float> rows) override {
    const auto halves = to_storage(form_.storage, rows);
    const size_t width = form_.width();
    Matrix<float> keys(rows.rows(), width);
    widen(form_.storage, halves, {keys.data(), keys.size()});
    parallel_each(attention_.size(), 1, [&](size_t head) {
      const auto of_head = keys.view().columns(head * form_.dims, form_.dims);
      if (pass_ == 0) attention_[head].first_pass(seen_, of_head);
      if (pass_ == 1) attention_[head].second_pass(seen_, of_head);
    });
    if (needs_tables()) observe_keys(halves, keys);
    seen_ += rows.rows();
  }

  void end_document() override {
    tokens_ = seen_;
    seen_ = 0;
  }

  void end_pass() override {
    if (needs_tables() && !by_median_ && pass_ == 0)
      for (size_t j = 0; j < sums_.size(); ++j)
        center_[j] = tokens_ > 0 ? static_cast<float>(sums_[j] / static_cast<double>(tokens_)) : 0;
    if (needs_tables() && by_median_) {
      if (pass_ == 0) medians_.choose_high();
      if (pass_ == 1)
        for (size_t j = 0; j < center_.size(); ++j) {
          const uint16_t half = medians_.median(j);
          widen(form_.storage, {&half, 1}, {&center_[j], 1});
        }
    }
    ++pass_;
  }

  void finish(StreamStore& document) override {
    if (tokens_ == 0 || !own_.has_choice(side_) || !own_.pays(side_, tokens_)) return;
    const uint8_t coded = 1;
    document.append_values<uint8_t>(kCoded, {&coded, 1});
    if (needs_tables()) {
      for (float& alpha : alpha_)
        if (!(alpha > 0)) alpha = 1;  // a constant channel: tokens appended later need not be
      document.append_values<float>(kCenter, center_);
      document.append_values<float>(kAlpha, alpha_);
      const std::vector<SignCodebook> codebooks =
          codebooks_.empty() ? sums_of_codes_.codebooks() : codebooks_;
      std::vector<float> relative;
      for (size_t head = 0; head < codebooks.size(); ++head)
        for (size_t group = 0; group < codebooks[head].groups(); ++group)
          for (size_t code = 0; code < kSignCodes; ++code)
            for (size_t i = 0; i < kSignGroup; ++i) {
              const size_t channel = group * kSignGroup + i;
              relative.push_back(codebooks[head].centroids(channel, code) /
                                 alpha_[head * form_.dims + channel]);
            }
      std::vector<uint16_t> halves(relative.size());
      narrow(DType::f16, relative, halves);
      document.append_values<uint16_t>(kCodebooks, halves);
    }
    if (!form_.has_levels()) return;
    Matrix<uint32_t> ids(form_.exact_of(tokens_), form_.heads);
    for (size_t head = 0; head < form_.heads; ++head) {  // those of the largest pooled weight, else the first
      auto chosen = numbers_below<uint32_t>(ids.rows());
      if (!attention_.empty())
        chosen = heaviest_tokens(attention_[head].weights(), ids.rows(),
                                 form_.options.exact_by == ExactBy::attention ? kPooledTokens : 1);
      for (size_t i = 0; i < chosen.size(); ++i) ids(i, head) = chosen[i];
    }
    document.append_values<uint32_t>(kExactIds, {ids.data(), ids.size()});
  }

 private:
  bool needs_tables() const { return side_ == Side::key; }
  void observe_keys(std::span<const uint16_t> halves, MatrixView<float> keys) {
    const size_t width = form_.width();
    if (by_median_ && pass_ < 2) {
      for (size_t t = 0; t < keys.rows(); ++t)
        pass_ == 0 ? medians_.count_high(halves.subspan(t * width, width))
                   : medians_.count_low(halves.subspan(t * width, width));
      return;
    }
    if (pass_ == 0) {
      for (size_t t = 0; t < keys.rows(); ++t)
        for (size_t j = 0; j < width; ++j) sums_[j] += static_cast<double>(keys(t, j));
      return;
    }
    for (size_t t = 0; t < keys.rows(); ++t)
      for (size_t j = 0; j < width; ++j) {
        keys(t, j) -= center_[j];
        alpha_[j] = std::max(alpha_[j], std::abs(keys(t, j)));
      }
    // A device makes codebooks of rows that are all there.
    if (engine_ && keys.rows() == tokens_)
      if (auto codebooks = engine_->make<SignCodebooksOnDevice>(keys, form_.heads)) {
        codebooks_ = std::move(*codebooks);
        return;
      }
    if (engine_ && keys.rows() != tokens_)
      engine_->fall_back("selfindex: codebooks of documents that come in several pieces");
    Matrix<uint8_t> codes(keys.rows(), form_.heads * form_.sign_bytes());
    encode_signs(keys, form_.heads, codes);
    sums_of_codes_.add(keys, codes);
  }

  Form form_, own_;  // of the keys, and of its side
  bool by_median_;   // what keys are centred by; otherwise by the mean
  Engine* engine_;
  Side side_;
  int layer_;
  const ScoreForms& scores_;
  int pass_ = 0;
  uint64_t seen_ = 0, tokens_ = 0;
  ColumnMedians medians_;
  std::vector<double> sums_;
  std::vector<float> center_, alpha_;
  CodebookSums sums_of_codes_;
  std::vector<SignCodebook> codebooks_;   // of a device
  std::vector<AttentionSums> attention_;  // per head; empty without queries
};

}  // namespace

std::unique_ptr<Survey> make_survey(const Form& keys, const Form& own, Engine* engine,
                                    const GroupShape& shape, const ScoreForms& scores) {
  return std::make_unique<PrefillSurvey>(keys, own, engine, shape, scores);
}

}  // namespace kvcodec::selfindex
