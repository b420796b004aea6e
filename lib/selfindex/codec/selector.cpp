#include <algorithm>
#include <utility>

#include "lib/attention/row_source.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/selfindex/codec/view.hpp"

namespace kvcodec::selfindex {

namespace {

/// A selector with all it looks at.
class OwnedSignSelector final : public Selector {
 public:
  /// on_device: the same index there, or nullptr.
  OwnedSignSelector(SignCodebook codebook, SignIndex index, std::unique_ptr<SignIndexEngine> on_device)
      : codebook_(std::move(codebook)),
        index_(std::move(index)),
        on_device_(std::move(on_device)),
        selector_(codebook_, index_) {}
  size_t tokens() const override { return selector_.tokens(); }
  size_t dims() const override { return selector_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    if (on_device_ && tokens() > 0) {
      std::vector<SignTable> tables;
      for (size_t i = 0; i < queries.rows(); ++i) tables.emplace_back(codebook_, queries.row(i));
      if (on_device_->scores(tables, out)) return;
    }
    selector_.scores(queries, out);
  }
  std::vector<Scored> select(std::span<const float> query, size_t budget, Order order) const override {
    if (on_device_ && tokens() > 0)
      if (auto best = on_device_->top_k(SignTable(codebook_, query), budget, order)) return *best;
    return selector_.select(query, budget, order);
  }
  std::vector<Scored> select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                    Order order) const override {
    return selector_.select_shared(queries, by, budget, order);
  }

 private:
  SignCodebook codebook_;
  SignIndex index_;
  std::unique_ptr<SignIndexEngine> on_device_;
  SignSelector selector_;
};

/// For documents that were not worth coding: their keys are all there.
class ExactSelector final : public Selector {
 public:
  explicit ExactSelector(Matrix<float> keys) : keys_(std::move(keys)), rows_(keys_, keys_), oracle_(rows_) {}
  size_t tokens() const override { return oracle_.tokens(); }
  size_t dims() const override { return oracle_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    oracle_.scores(queries, out);
  }

 private:
  Matrix<float> keys_;
  CacheRows rows_;
  OracleSelector oracle_;
};

}  // namespace

std::unique_ptr<Selector> SelfIndexView::selector(size_t head, bool signs_only) const {
  if (shape().side != Side::key || head >= form_.heads)
    throw failed("no index of {} {}", name_of(shape().side), head);
  const uint64_t count = tokens();
  if (!reader_.is_coded()) {
    Matrix<float> all(count * form_.heads, form_.dims), own(count, form_.dims);
    read_exact(kExact, form_.storage, document(), 0, all);
    for (size_t t = 0; t < count; ++t) std::ranges::copy(all.row(t * form_.heads + head), own.row(t).begin());
    return std::make_unique<ExactSelector>(std::move(own));
  }
  const size_t sign_bytes = form_.sign_bytes();
  const auto signs = document().read<uint8_t>(kSigns, 0, count, form_.heads * sign_bytes);
  SignIndex index(form_.dims);
  const MatrixView<const uint8_t> codes(signs.data() + head * sign_bytes, count, sign_bytes,
                                        form_.heads * sign_bytes);
  index.append(codes);
  const SignEngine* const device = engine_ ? engine_->make<SignEngine>() : nullptr;
  auto on_device = device ? device->index(form_.dims, codes) : nullptr;
  SignCodebook codebook = reader_.codebooks()[head];
  if (signs_only) {  // every centroid at the corner its signs name
    Matrix<float>& centroids = codebook.centroids;
    for (size_t channel = 0; channel < form_.dims; ++channel)
      for (size_t code = 0; code < kSignCodes; ++code)
        centroids(channel, code) = code >> (kSignGroup - 1 - channel % kSignGroup) & 1 ? 1.0f : -1.0f;
  }
  return std::make_unique<OwnedSignSelector>(std::move(codebook), std::move(index), std::move(on_device));
}

std::vector<uint32_t> SelfIndexView::kept_whole(size_t head) const {
  std::vector<uint32_t> kept;
  if (!reader_.is_coded()) return kept;
  for (const HeadToken& place : reader_.exact_places(0, tokens()))
    if (place.head == head) kept.push_back(place.token);
  return kept;
}

}  // namespace kvcodec::selfindex
