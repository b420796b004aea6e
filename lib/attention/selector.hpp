// The tokens of a key/value head that attention should use: the one interface behind all methods. A selector
// scores tokens for a query; choose_tokens() is the one rule that turns scores into a choice.
// lib/pipeline/selection.hpp measures recall and other qualities.
//
// How to add one: derive from Selector, or from GrowingSelector where tokens may be added later; implement
// scores().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/attention/attention.hpp"
#include "lib/cluster/cluster_index.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_index.hpp"

namespace kvcodec {

/// The way in which query heads that share a key/value head agree on tokens: by the mean of the attention weights
/// expected from their scores, by the largest score, by the mean score, or not at all: each has its own tokens.
/// Scores of heads differ in scale, weights do not: with weights the same budget holds more of the attention.
enum class Share : uint8_t { weight, max, mean, each };
constexpr auto names_of(Share) { return std::to_array<std::string_view>({"weight", "max", "mean", "each"}); }

/// Queries that agree on one selection.
struct TokenChoice {
  MatrixView<const float> queries;  ///< (n, dims)
  uint64_t visible = 0;             ///< they see tokens [from, visible)
  uint64_t budget = 0;              ///< tokens to choose of these; all if there are fewer
  /// Tokens that are chosen whatever their score, up to the budget: the first `sink` tokens, then the last
  /// `newest` tokens, newest first (kept_anyway), then those of `heavy`, in their order. `heavy` names no
  /// token twice.
  uint64_t newest = 0, sink = 0;
  std::span<const uint32_t> heavy = {};
  /// Number of the newest tokens without a score from the selector yet. Those of them that are not
  /// chosen anyway are scored by the products of queries and keys.
  uint64_t unscored = 0;
  uint64_t from = 0;    ///< above 0 where layers have windows
  ScoreForm form = {};  ///< of the attention weights that scores stand for
};

/// Rules for choosing tokens from scores.
struct ChoosingRule {
  Share share = Share::weight;
  /// The best tokens by score, `candidates` times the budget of them, are scored again by the products of
  /// queries and keys, which then decide. 1: the selector's scores decide alone.
  uint64_t candidates = 1;
  /// Fewer tokens than the budget are chosen if they already have this share of the attention weights. The
  /// weights come from products where these were computed, otherwise from scores. 0: the whole budget is
  /// used. Only for Share::weight and Share::each.
  double mass = 0;
};

/// The tokens of one choice, best first by the score that decided, equal ones by id. With Share::weight the
/// returned scores are mean attention weights, with Share::mean means, of which the sums decide. scores: the selector's estimates of the products of queries
/// and keys, (n, at least visible); they are overwritten. keys: (at least visible, dims), to compute products of
/// candidates, of unscored tokens, and of tokens that are chosen anyway. Throws Error(failed) for shapes that do
/// not fit.
std::vector<Scored> choose_tokens(const TokenChoice& choice, const ChoosingRule& rule,
                                  MatrixView<const float> keys, MatrixView<float> scores);

/// A device's function that chooses for many queries at a time in place of a selector's scores: chosen[i] = the
/// result of choose_tokens() for choices[i] without candidates and mass, by Share::max if largest, else by
/// Share::mean. Returns false if it declines; nothing is written then.
using TokenChooser = std::function<bool(std::span<const TokenChoice> choices, bool largest,
                                        std::span<std::vector<Scored>> chosen)>;
/// For Engine::make: selection by the clusters of this index of a document of so many tokens. The engine and the index
/// must outlive the function.
struct ClusterChoice {
  using Factory = TokenChooser(const ClusterIndex&, uint64_t tokens);
};

/// True if a TokenChooser, by an index of that sink, makes these choices as choose_tokens() does: it keeps the index's
/// own first tokens and all that wait for a cluster, knows no heavy tokens, and sees all from the first on.
bool can_choose_elsewhere(std::span<const TokenChoice> choices, const ChoosingRule& rule, uint64_t sink);

/// Tokens that a selection keeps whatever their score.
struct KeptAnyway {
  uint64_t first = 0;   ///< tokens [0, first): of the sink
  uint64_t newest = 0;  ///< and the last so many: those that wait for a cluster, or were asked for

  bool operator==(const KeptAnyway&) const = default;
};

/// The one rule if `budget` may be too small for all of them: the sink first, since nearly every query
/// attends to it, then the newest of the `newest` last tokens, the oldest of them left out. Scored tokens
/// get the rest of the budget. Sink and newest tokens may overlap, or be more than `tokens`.
inline KeptAnyway kept_anyway(uint64_t tokens, uint64_t sink, uint64_t newest, uint64_t budget) {
  const uint64_t first = std::min({sink, budget, tokens});
  return {first, std::min({newest, budget - first, tokens - first})};
}

/// The score of a token that waits for its cluster, of `tokens`: above any product of vectors within
/// kLargestNorm, higher for newer tokens (of the newest 2^20; older ones are equal), the same for all queries.
float waiting_score(uint64_t tokens, uint64_t token);

/// The ids of a selection, rising: the fastest order for attention to read rows in.
std::vector<uint32_t> ids_in_order(std::span<const Scored> selected);

class Selector {
 public:
  virtual ~Selector() = default;
  virtual size_t tokens() const = 0;

  /// out[i, t] = the product that query i, of (n, dims), expects with token t < tokens(); comparable
  /// within a row only. Throws Error(failed) for shapes that do not fit.
  virtual void scores(MatrixView<const float> queries, MatrixView<float> out) const = 0;
};

/// A selector to which tokens are added while it is in use. Derive from this one to follow a model that continues.
class GrowingSelector : public Selector {
 public:
  /// Adds tokens behind those at hand; keys: (n, dims).
  virtual void append(MatrixView<const float> keys) = 0;
  /// First tokens that are always attended to, and newest ones that have no score yet.
  virtual uint64_t sink() const { return 0; }
  virtual uint64_t waiting() const { return 0; }
  /// True if appending the next key leaves the choices of queries that see only the present tokens unchanged.
  /// As long as this stays true, callers may ask scores() for fewer tokens: as many as the selector had at an
  /// earlier step.
  virtual bool is_steady() const { return false; }
  /// The function of a device that makes so many choices at once in place of scores(); empty: there is none.
  virtual TokenChooser chooser(size_t /*choices*/) const { return {}; }
};

/// The oracle: scores are q . k of the keys themselves, (tokens, dims).
class OracleSelector final : public GrowingSelector {
 public:
  /// Keys that outlive it, or that it owns. It owns all of them from the first that is appended on.
  explicit OracleSelector(MatrixView<const float> keys) : keys_(keys) {}
  explicit OracleSelector(Matrix<float>&& keys) : own_(std::move(keys)), keys_(own_) {}
  void append(MatrixView<const float> keys) override;
  size_t tokens() const override { return keys_.rows(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override {
    dot_products(queries, keys_, out);
  }

 private:
  Matrix<float> own_;
  MatrixView<const float> keys_;
};

/// The meaning of one head's sign codes: the mean that keys are centred by, and the codebook.
struct SignFit {
  SignCodebook codebook;
  std::vector<float> center;  ///< (dims)

  /// Those of keys (tokens, dims). Throws Error(bad_input) unless dims is a positive multiple of 4.
  static SignFit of(MatrixView<const float> keys);
};

/// Scores of sign codes (Self-Indexing KVCache). The codes are of centred keys: that shifts all scores of a
/// query alike, which changes neither softmax nor the selection.
class SignSelector final : public GrowingSelector {
 public:
  /// on_device: makes the same index on a device, when it first scores; may be empty. Throws Error(failed) if fit and index differ in dims.
  SignSelector(SignFit fit, SignIndex index, std::function<SignScorer()> on_device = nullptr);
  void append(MatrixView<const float> keys) override;
  size_t tokens() const override { return index_.tokens(); }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;

 private:
  SignFit fit_;
  SignIndex index_;
  std::function<SignScorer()> make_on_device_;
  Lazy<SignScorer> on_device_;
};

/// Quest (Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML 2024):
/// the score of a page of consecutive tokens is the bound sum over channels of max(q min, q max) on its
/// products, from the channel's smallest and largest key in the page; tokens have their page's score. So pages
/// are taken whole, best first, the last one trimmed to the budget.
class QuestSelector final : public GrowingSelector {
 public:
  static constexpr size_t kPage = 16;  ///< tokens, as in the paper: 2 bits per key value at 16-bit bounds

  explicit QuestSelector(size_t dims, size_t page = kPage);
  void append(MatrixView<const float> keys) override;
  size_t tokens() const override { return tokens_; }
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;

 private:
  size_t dims_, page_, tokens_ = 0;
  std::vector<float> bounds_;  // (pages, 2 * dims): the largest of each channel, then the smallest
};

/// Selection by semantic clusters (ClusterKV). A token's score is the product of the query with its cluster's
/// centroid, so the best tokens are those of the best clusters, the last one trimmed. Tokens of the sink, and those
/// behind the index's end, which wait for their cluster, come before all of them. Up to m - 1 tokens wait
/// (ClusterOptions::batch).
class ClusterSelector final : public Selector {
 public:
  /// index must outlive it. tokens: of the document, at least index.end().
  ClusterSelector(const ClusterIndex& index, uint64_t tokens);
  size_t tokens() const override { return tokens_; }
  /// Scores are infinite for the sink, and waiting_score() for tokens that wait.
  void scores(MatrixView<const float> queries, MatrixView<float> out) const override;

 private:
  const ClusterIndex& index_;
  size_t tokens_;
};

/// SnapKV's (Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", 2024): weights of the last so
/// many queries, averaged over so many neighbouring tokens.
inline constexpr size_t kObservedQueries = 32;
inline constexpr size_t kPooledTokens = 5;

/// Softmax weights that some queries of one head give to tokens, summed over the queries: the first pass
/// finds the sums of exponentials, the second the weights. Token by token, so that pieces do not matter.
/// Self-Indexing KVCache keeps the tokens whole that the last queries of a prompt attend to most.
class AttentionSums {
 public:
  /// queries: (n, dims); query_tokens: the token of each query, which sees no later tokens.
  AttentionSums(Matrix<float> queries, std::vector<uint64_t> query_tokens);
  /// The sums of the `group` query heads that share key/value head `head`. queries: (tokens.size(), query heads * dims).
  static AttentionSums of_head(MatrixView<const float> queries, std::span<const uint64_t> tokens, size_t head,
                               size_t group, size_t dims);

  /// For models whose scores are not plain, and layers whose queries see the last `window` tokens alone (0: all). Before the first
  /// pass. form.sinks: of the query heads that share the head.
  void set_form(const ScoreForm& form, uint64_t window);
  /// Squares of weights are summed instead. Before the second pass.
  void sum_squares() { squares_ = true; }

  /// The keys of tokens from `first` on, (any, dims); each pass in the order of the tokens.
  void first_pass(uint64_t first, MatrixView<const float> keys);
  void second_pass(uint64_t first, MatrixView<const float> keys);
  /// Weights of the tokens so far; after both passes.
  const std::vector<double>& weights() const { return weights_; }

 private:
  template <class Body>
  void for_each_score(uint64_t first, MatrixView<const float> keys, const Body& body) const;

  Matrix<float> queries_;
  std::vector<uint64_t> query_tokens_;
  std::vector<double> largest_, sums_, weights_;
  double cap_ = 0;
  uint64_t window_ = 0;
  bool squares_ = false;
};

/// The `count` tokens of the largest weights, each summed over `pooled` (odd) neighbours, rising; all if there are fewer.
std::vector<uint32_t> heaviest_tokens(std::span<const double> weights, size_t count,
                                      size_t pooled = kPooledTokens);

}  // namespace kvcodec
