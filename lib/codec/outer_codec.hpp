// Base classes of codecs and surveys that wrap another one: their members forward to the inner one. Derive
// from them and override what the wrapper changes; in a codec at least append and view_of.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/codec.hpp"

namespace kvcodec {

class OuterSurvey : public Survey {
 public:
  int passes() const override { return inner_->passes(); }
  void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
    inner_->observe_queries(tokens, queries);
  }
  void observe_ids(std::span<const uint32_t> ids) override { inner_->observe_ids(ids); }
  void observe(MatrixView<const float> rows) final {
    const uint64_t first = tokens_;
    tokens_ += rows.rows();
    observe_from(first, rows);
  }
  void end_document() override {
    inner_->end_document();
    tokens_ = 0;
  }
  void end_pass() override { inner_->end_pass(); }
  void finish(StreamStore& document) override { inner_->finish(document); }

 protected:
  explicit OuterSurvey(std::unique_ptr<Survey> inner) : inner_(std::move(inner)) {}
  Survey& inner() { return *inner_; }
  /// As observe(); first: the index of the first row's token in the document.
  virtual void observe_from(uint64_t first, MatrixView<const float> rows) = 0;
  /// look() for an outer survey that shows the inner one each token in its place.
  Look look_of_inner(uint64_t left) {
    const Look look = inner_->look(left);
    tokens_ += look.skipped;
    return look;
  }

 private:
  std::unique_ptr<Survey> inner_;
  uint64_t tokens_ = 0;  // of the document in work
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

 protected:
  explicit OuterCodec(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}
  const Codec& inner() const { return *inner_; }

 private:
  std::unique_ptr<Codec> inner_;
};

}  // namespace kvcodec
