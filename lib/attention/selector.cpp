#include "lib/attention/selector.hpp"

#include <algorithm>

#include "lib/attention/attention.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// One row of scores for a group.
std::vector<float> share(MatrixView<const float> scores, Share by) {
  std::vector<float> shared(scores.row(0).begin(), scores.row(0).end());
  for (size_t q = 1; q < scores.rows(); ++q)
    for (size_t t = 0; t < scores.cols(); ++t)
      shared[t] = by == Share::max ? std::max(shared[t], scores(q, t)) : shared[t] + scores(q, t);
  if (by == Share::mean)
    for (float& score : shared) score /= static_cast<float>(scores.rows());
  return shared;
}

}  // namespace

void check_group(MatrixView<const float> queries, Share by) {
  if (queries.rows() == 0) throw failed("a selection for a group of no queries");
  if (by != Share::max && by != Share::mean) throw failed("one selection for a group by '{}'", by);
}

std::vector<uint32_t> ids_in_order(std::span<const Scored> selected) {
  std::vector<uint32_t> ids(selected.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = selected[i].id;
  if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<Scored> Selector::select(std::span<const float> query, size_t budget, Order order) const {
  std::vector<float> all(tokens());
  scores({query.data(), 1, query.size()}, {all.data(), 1, all.size()});
  return top_k(all, budget, order);
}

std::vector<Scored> Selector::select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                            Order order) const {
  check_group(queries, by);
  Matrix<float> all(queries.rows(), tokens());
  scores(queries, all);
  return top_k(share(all, by), budget, order);
}

void OracleSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  dot_products(queries, rows_, out);
}

SignSelector::SignSelector(const SignCodebook& codebook, const SignIndex& index)
    : codebook_(codebook), index_(index) {
  if (codebook.dims() != index.dims())
    throw failed("a codebook of {} dimensions for codes of {}", codebook.dims(), index.dims());
}

void SignSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  if (out.rows() != queries.rows())
    throw failed("{} rows of scores for {} queries", out.rows(), queries.rows());
  for (size_t q = 0; q < queries.rows(); ++q) index_.scores(SignTable(codebook_, queries.row(q)), out.row(q));
}

std::vector<Scored> SignSelector::select(std::span<const float> query, size_t budget, Order order) const {
  return index_.top_k(SignTable(codebook_, query), budget, order);
}

std::vector<Scored> SignSelector::select_shared(MatrixView<const float> queries, Share by, size_t budget,
                                                Order order) const {
  check_group(queries, by);
  if (by == Share::mean) {
    std::vector<float> mean(queries.cols());
    for (size_t q = 0; q < queries.rows(); ++q)
      for (size_t j = 0; j < mean.size(); ++j) mean[j] += queries(q, j);
    for (float& value : mean) value /= static_cast<float>(queries.rows());
    return select(mean, budget, order);
  }
  std::vector<SignTable> tables;
  for (size_t q = 0; q < queries.rows(); ++q) tables.emplace_back(codebook_, queries.row(q));
  std::vector<SignQuery> each;
  each.reserve(tables.size());
  for (const SignTable& table : tables) each.push_back({&index_, &table});
  // A token among the best of the group is among the best of the query that gives it its score.
  std::vector<Scored> all;
  for (const auto& best : top_k(each, budget, Order::by_id)) all.insert(all.end(), best.begin(), best.end());
  std::sort(all.begin(), all.end(),
            [](const Scored& a, const Scored& b) { return a.id != b.id ? a.id < b.id : a.score > b.score; });
  const auto same = [](const Scored& a, const Scored& b) { return a.id == b.id; };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  keep_top(all, budget, order);
  return all;
}

QuestSelector::QuestSelector(size_t dims, size_t page) : dims_(dims), page_(page) {
  if (page == 0) throw usage_error("a page of 0 tokens; at least 1 is needed");
}

void QuestSelector::append(MatrixView<const float> keys) {
  if (keys.cols() != dims_) throw failed("keys of {} dimensions, not {}", keys.cols(), dims_);
  const size_t total = checked_add(tokens_, keys.rows());
  bounds_.resize(checked_mul((total + page_ - 1) / page_, 2 * dims_));
  for (size_t i = 0; i < keys.rows(); ++i) {
    const size_t token = tokens_ + i;
    float* largest = bounds_.data() + token / page_ * 2 * dims_;
    float* smallest = largest + dims_;
    const float* key = keys.row(i).data();
    for (size_t j = 0; j < dims_; ++j) {
      const bool first = token % page_ == 0;
      largest[j] = first ? key[j] : std::max(largest[j], key[j]);
      smallest[j] = first ? key[j] : std::min(smallest[j], key[j]);
    }
  }
  tokens_ = total;
}

void QuestSelector::scores(MatrixView<const float> queries, MatrixView<float> out) const {
  if (queries.cols() != dims_ || out.rows() != queries.rows() || out.cols() != tokens_)
    throw failed("queries ({}, {}) and scores ({}, {}) do not fit {} keys of {} dimensions", queries.rows(),
                 queries.cols(), out.rows(), out.cols(), tokens_, dims_);
  // max(q min, q max) is q max where q >= 0 and q min elsewhere: a product of rows.
  Matrix<float> parts(queries.rows(), 2 * dims_);
  for (size_t q = 0; q < queries.rows(); ++q)
    for (size_t j = 0; j < dims_; ++j) {
      parts(q, j) = std::max(queries(q, j), 0.0f);
      parts(q, dims_ + j) = std::min(queries(q, j), 0.0f);
    }
  const size_t pages = (tokens_ + page_ - 1) / page_;
  const MatrixView<const float> bounds(bounds_.data(), pages, 2 * dims_);
  Matrix<float> page_scores(queries.rows(), pages);
  dot_products(parts, CacheRows(bounds, bounds), page_scores);
  for (size_t q = 0; q < queries.rows(); ++q)
    for (size_t t = 0; t < tokens_; ++t) out(q, t) = page_scores(q, t / page_);
}

}  // namespace kvcodec
