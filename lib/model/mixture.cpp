#include "lib/model/mixture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

size_t rows_for(const ModelConfig& config, size_t rows) { return config.mixture.experts > 0 ? rows : 0; }

void softmax(std::span<float> scores) {
  const float most = *std::max_element(scores.begin(), scores.end());
  for (float& score : scores) score -= most;
  exp_nonpositive(scores);
  scale(scores, 1 / std::accumulate(scores.begin(), scores.end(), 0.0f));
}

void sigmoid(std::span<float> scores) {
  for (float& score : scores) score = 1 / (1 + std::exp(-score));
}

/// The places of the largest scores.
std::vector<size_t> largest(std::span<const float> scores, size_t count) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(
      order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
      [&](size_t a, size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  order.resize(count);
  return order;
}

}  // namespace

MixtureSteps::MixtureSteps(const ModelConfig& config, size_t rows)
    : config_(config),
      scores_(rows_for(config, rows), as_size(config.mixture.experts)),
      gathered_(scores_.rows(), as_size(config.hidden_size)),
      inner_(scores_.rows(), as_size(config.mixture.width)),
      result_(scores_.rows(), as_size(config.hidden_size)),
      shared_inner_(config.mixture.shared_width > 0 ? scores_.rows() : 0,
                    as_size(config.mixture.shared_width)),
      shares_(as_size(config.mixture.experts)) {}

size_t MixtureSteps::floats_per_row(const ModelConfig& config) {
  const Mixture& mixture = config.mixture;
  if (mixture.experts == 0) return 0;
  const size_t shares = as_size(mixture.chosen) * sizeof(Share) / sizeof(float);
  return as_size(mixture.experts) + as_size(mixture.width) + as_size(mixture.shared_width) +
         2 * as_size(config.hidden_size) + shares;
}

std::vector<size_t> MixtureSteps::choose(std::span<const float> scores,
                                         std::span<const float> correction) const {
  const Mixture& mixture = config_.mixture;
  if (mixture.groups == 1 && correction.empty()) return largest(scores, as_size(mixture.chosen));
  std::vector<float> corrected(scores.begin(), scores.end());
  for (size_t i = 0; i < correction.size(); ++i) corrected[i] += correction[i];
  if (mixture.groups > 1) {
    const size_t size = corrected.size() / as_size(mixture.groups);
    std::vector<float> groups;
    for (size_t first = 0; first < corrected.size(); first += size) {
      const auto group = std::span<const float>(corrected).subspan(first, size);
      float sum = 0;
      for (const size_t i : largest(group, as_size(mixture.group_best))) sum += group[i];
      groups.push_back(sum);
    }
    std::vector<bool> open(groups.size());
    for (const size_t group : largest(groups, as_size(mixture.chosen_groups))) open[group] = true;
    for (size_t i = 0; i < corrected.size(); ++i)
      if (!open[i / size]) corrected[i] = -std::numeric_limits<float>::infinity();
  }
  return largest(corrected, as_size(mixture.chosen));
}

void MixtureSteps::route(const LlamaLayer& layer, MatrixView<const float> x, WorkerScratch& scratch) {
  const MatrixView<float> scores = scores_.view().rows(0, x.rows());
  const LinearOutput router{&layer.router, scores};
  apply(x, {&router, 1}, Write::replace, scratch);
  for (std::vector<Share>& shares : shares_) shares.clear();
  for (size_t row = 0; row < x.rows(); ++row) {
    const std::span<float> own = scores.row(row);
    if (config_.mixture.scores == RouterScores::sigmoid)
      sigmoid(own);
    else
      softmax(own);
    const std::vector<size_t> chosen = choose(own, layer.router_correction);
    float sum = 0;
    for (const size_t expert : chosen) sum += own[expert];
    // All may be too small for float where each is a sigmoid.
    const float divisor = config_.mixture.normalised && sum > 0 ? sum : 1;
    const auto factor = static_cast<float>(config_.mixture.scale);
    for (const size_t expert : chosen) shares_[expert].push_back({row, own[expert] / divisor * factor});
  }
}

void MixtureSteps::run_expert(const Mlp& expert, const std::vector<Share>& shares, MatrixView<const float> x,
                              MatrixView<float> out, WorkerScratch& scratch) {
  const size_t count = shares.size();
  const MatrixView<float> gathered = gathered_.view().rows(0, count), inner = inner_.view().rows(0, count),
                          result = result_.view().rows(0, count);
  for (size_t i = 0; i < count; ++i) std::ranges::copy(x.row(shares[i].row), gathered.row(i).begin());
  apply_activated(gathered, expert, config_.activation, inner, scratch);
  const LinearOutput down{&expert.down, result};
  apply(inner, {&down, 1}, Write::replace, scratch);
  for (size_t i = 0; i < count; ++i) {
    scale(result.row(i), shares[i].weight);
    add_to(out.row(shares[i].row), result.row(i));
  }
}

void MixtureSteps::run(const LlamaLayer& layer, MatrixView<const float> x, MatrixView<float> out,
                       WorkerScratch& scratch) {
  route(layer, x, scratch);
  for (size_t row = 0; row < out.rows(); ++row) std::ranges::fill(out.row(row), 0.0f);
  for (size_t i = 0; i < shares_.size(); ++i)
    if (!shares_[i].empty()) run_expert(layer.experts[i], shares_[i], x, out, scratch);
  if (layer.shared_expert.up.empty()) return;
  const MatrixView<float> inner = shared_inner_.view().rows(0, x.rows());
  apply_activated(x, layer.shared_expert, config_.activation, inner, scratch);
  const LinearOutput down{&layer.shared_expert.down, out};
  apply(inner, {&down, 1}, Write::add, scratch);
}

}  // namespace kvcodec
