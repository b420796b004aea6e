// The survey of the codec `transform`: it fits an adaptation (lib/transform/adaptation.hpp) to the tokens that are about to
// be coded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/transform/adaptation.hpp"
#include "lib/transform/codec/part.hpp"

namespace kvcodec {

/// Looks at a sample: all of the first 1,024 tokens, and 512 more with each doubling of their number, in runs of 64
/// spread evenly.
class TransformSurvey final : public Survey {
 public:
  /// The part outlives it. stream: gets the adaptation, if it pays. lead: how many first tokens of each document are not
  /// coded in blocks, and so not surveyed. unbias: of the book.
  TransformSurvey(const TransformPart& part, std::string_view stream, uint64_t lead, double unbias);

  void observe_ids(std::span<const uint32_t> ids) override { ids_.assign(ids.begin(), ids.end()); }
  Look look(uint64_t left) override;
  void observe(MatrixView<const float> rows) override;
  void end_document() override;
  void finish(StreamStore& document) override;

 private:
  uint32_t weight_of_next() const;
  void pass();
  void keep(std::span<const float> row, uint32_t weight);
  void count_batch();

  const TransformPart& part_;
  std::string stream_;
  uint64_t lead_;
  Analysis analysis_;
  Scores scores_;
  AdaptationSurvey survey_;
  Matrix<float> rows_, features_;  // of those kept
  std::vector<uint32_t> weights_;
  std::vector<uint32_t> ids_;      // of the document in work
  uint64_t token_ = 0, seen_ = 0;  // in the document; in all
};

}  // namespace kvcodec
