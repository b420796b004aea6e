// Which tokens of a key/value head attention should look at: the one interface behind all methods. A selector
// scores tokens for a query; the best ones up to a budget are selected. Recall and the rest are measured in
// lib/metrics/selection.hpp.
//
// How to add one: derive from Selector, or from GrowingSelector where tokens may be added later; implement
// scores(), and override select() where the best tokens can be had without scoring all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/attention/row_source.hpp"
#include "lib/attention/token_choice.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec {

class Selector {
 public:
  virtual ~Selector() = default;
  virtual size_t tokens() const = 0;
  virtual size_t dims() const = 0;

  /// out[i, t] = what query i, of (n, dims()), expects of token t < tokens(); comparable within a row only.
  virtual void scores(MatrixView<const float> queries, MatrixView<float> out) const = 0;

  /// The `budget` tokens of the highest scores, of equal ones the lower ids; all if there are fewer.
  virtual std::vector<Scored> select(std::span<const float> query, size_t budget,
                                     Order order = Order::by_score) const;

  /// One selection for all queries of a group, (n, dims()), n >= 1, by Share::max or Share::mean. choose_tokens()
  /// (token_choice.hpp) has the other ways to agree. Throws Error(failed) for those.
  virtual std::vector<Scored> select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                            Order order = Order::by_score) const;
};

/// A selector to which tokens are added while it is in use. Derive from this one to follow a model that goes on.
class GrowingSelector : public Selector {
 public:
  /// Adds tokens behind those at hand; keys: (n, dims()).
  virtual void append(MatrixView<const float> keys) = 0;
  /// First tokens that are always attended to, and newest ones that have no score yet.
  virtual uint64_t sink() const { return 0; }
  virtual uint64_t waiting() const { return 0; }
  /// Whether appending the next key leaves the choices of queries that see only the present tokens unchanged.
  /// As long as this stays true, callers may ask scores() for fewer tokens: as many as the selector had at an
  /// earlier step.
  virtual bool is_steady() const { return false; }
  /// The function of a device that makes so many choices at once in place of scores(); empty: there is none.
  virtual TokenChooser chooser(size_t /*choices*/) const { return {}; }
};

/// Throws Error(failed) for a group or a way to agree that select_shared() does not take.
void check_group(MatrixView<const float> queries, Share by);

/// The ids of a selection, rising: the order in which attention reads rows best.
std::vector<uint32_t> ids_in_order(std::span<const Scored> selected);

/// The oracle: scores are q . k of the keys themselves.
class OracleSelector final : public Selector {
 public:
  /// rows must outlive it.
  explicit OracleSelector(const RowSource& rows) : rows_(rows) {}
  size_t tokens() const override { return rows_.tokens(); }
  size_t dims() const override { return rows_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;

 private:
  const RowSource& rows_;
};

/// Scores of sign codes (Self-Indexing KVCache). The codes are of centred keys: that shifts all scores of a
/// query alike, which changes neither softmax nor the selection.
class SignSelector final : public Selector {
 public:
  /// Both must outlive it. Throws Error(failed) if they differ in dims.
  SignSelector(const SignCodebook& codebook, const SignIndex& index);
  size_t tokens() const override { return index_.tokens(); }
  size_t dims() const override { return index_.dims(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;
  std::vector<Scored> select(std::span<const float> query, size_t budget,
                             Order order = Order::by_score) const override;
  /// By the mean: the scores of the mean query, which are the mean scores except for rounding.
  std::vector<Scored> select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                    Order order = Order::by_score) const override;

 private:
  const SignCodebook& codebook_;
  const SignIndex& index_;
};

/// Quest (Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML 2024):
/// the score of a page of consecutive tokens is the bound sum over channels of max(q min, q max) on its
/// products, from the channel's smallest and largest key in the page; tokens have their page's score. Pages
/// are taken whole, best first, the last one trimmed to the budget.
class QuestSelector final : public GrowingSelector {
 public:
  static constexpr size_t kPage = 16;  ///< tokens, as in the paper: 2 bits per key value at 16-bit bounds

  explicit QuestSelector(size_t dims, size_t page = kPage);
  void append(MatrixView<const float> keys) override;
  size_t tokens() const override { return tokens_; }
  size_t dims() const override { return dims_; }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;

 private:
  size_t dims_, page_, tokens_ = 0;
  std::vector<float> bounds_;  // (pages, 2 * dims): the largest of each channel, then the smallest
};

}  // namespace kvcodec
