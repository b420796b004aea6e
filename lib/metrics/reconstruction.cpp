#include "lib/metrics/reconstruction.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/metrics/next_token.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

/// Calls body(index) for one index, or for all below count.
template <class Body>
static void for_chosen(std::optional<int> chosen, int count, const char* what, const Body& body) {
  if (chosen && (*chosen < 0 || *chosen >= count))
    throw failed("{} {} is not one of {}", what, *chosen, count);
  const int first = chosen.value_or(0), last = chosen.value_or(count - 1);
  for (int i = first; i <= last; ++i) body(i);
}

static void check_finite(const char* what, uint64_t first_token, size_t head_dim,
                         MatrixView<const float> rows) {
  for (size_t i = 0; i < rows.rows(); ++i)
    if (const auto bad = find_non_finite(rows.row(i)))
      throw bad_input("{}: token {}, head {}, dimension {} is {}; keys and values are finite", what,
                      first_token + i, *bad / head_dim, *bad % head_dim, rows(i, *bad));
}

double ErrorSums::snr_db() const { return -10 * std::log10(nmse()); }

double cosine_similarity(std::span<const float> a, std::span<const float> b) {
  double product = 0, energy_a = 0, energy_b = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    const double x = a[j], y = b[j];
    product += x * y;
    energy_a += x * x;
    energy_b += y * y;
  }
  if (energy_a == 0 || energy_b == 0) return energy_a == energy_b ? 1 : 0;
  // Apart: the product of the energies would overflow or vanish for loud or faint vectors. Rounding may leave
  // [-1, 1].
  return std::clamp(product / (std::sqrt(energy_a) * std::sqrt(energy_b)), -1.0, 1.0);
}

ReconstructionMeter::ReconstructionMeter(int layers, int heads, int head_dim)
    : ReconstructionMeter(
          std::vector(static_cast<size_t>(std::max(layers, 0)), Heads{.count = heads, .dim = head_dim})) {
  if (layers < 1 || heads < 1 || head_dim < 1)
    throw failed("{} layers of {} heads of {} dimensions: all must be at least 1", layers, heads, head_dim);
}

ReconstructionMeter::ReconstructionMeter(std::vector<Heads> layers) : layers_(std::move(layers)) {
  for (const Heads& layer : layers_)
    heads_ = std::max(heads_, layer.count), head_dim_ = std::max(head_dim_, layer.dim);
  const size_t all_heads = layers_.size() * static_cast<size_t>(heads_);
  tokens_.resize(layers_.size());
  sums_.resize(all_heads * static_cast<size_t>(head_dim_));
  cosines_.resize(all_heads);
}

void ReconstructionMeter::add(int layer, MatrixView<const float> original,
                              MatrixView<const float> reconstructed) {
  if (layer < 0 || layer >= layers()) throw failed("layer {} is not one of {}", layer, layers());
  const Heads& heads = layers_[static_cast<size_t>(layer)];
  const auto dims = static_cast<size_t>(heads.dim);
  const size_t width = static_cast<size_t>(heads.count) * dims;
  if (original.cols() != width || reconstructed.cols() != width || original.rows() != reconstructed.rows())
    throw failed("{} x {} original and {} x {} reconstructed values; both must be tokens x {}",
                 original.rows(), original.cols(), reconstructed.rows(), reconstructed.cols(), width);
  check_finite("original", tokens(layer), dims, original);
  check_finite("reconstructed", tokens(layer), dims, reconstructed);
  const size_t count = original.rows();
  // Heads are independent of each other; within a head the tokens go in order.
  parallel_each(static_cast<size_t>(heads.count), 1, [&](size_t head) {
    const size_t index = head_index(layer, static_cast<int>(head));
    Sums* sums = sums_.data() + index * static_cast<size_t>(head_dim_);
    for (size_t i = 0; i < count; ++i) {
      const auto x = original.row(i).subspan(head * dims, dims),
                 y = reconstructed.row(i).subspan(head * dims, dims);
      for (size_t j = 0; j < dims; ++j) {
        const double signal = x[j], error = signal - y[j];
        sums[j].error_energy += error * error;
        sums[j].signal_energy += signal * signal;
        sums[j].max_error = std::max(sums[j].max_error, std::abs(error));
      }
      cosines_[index].push_back(static_cast<float>(cosine_similarity(x, y)));
    }
  });
  tokens_[static_cast<size_t>(layer)] += count;
}

ErrorSums ReconstructionMeter::errors(std::optional<int> layer, std::optional<int> head,
                                      std::optional<int> dimension) const {
  ErrorSums total;
  for_chosen(layer, layers(), "layer", [&](int l) {
    const Heads& own = layers_[static_cast<size_t>(l)];
    for_chosen(head, heads_, "head", [&](int h) {
      for_chosen(dimension, head_dim_, "dimension", [&](int j) {
        if (h >= own.count || j >= own.dim) return;
        const Sums& sums = sums_[head_index(l, h) * static_cast<size_t>(head_dim_) + static_cast<size_t>(j)];
        total.values += tokens(l);
        total.error_energy += sums.error_energy;
        total.signal_energy += sums.signal_energy;
        total.max_error = std::max(total.max_error, sums.max_error);
      });
    });
  });
  return total;
}

CosineSummary ReconstructionMeter::cosine(std::optional<int> layer, std::optional<int> head) const {
  std::vector<float> all;
  for_chosen(layer, layers(), "layer", [&](int l) {
    for_chosen(head, heads_, "head", [&](int h) {
      const std::vector<float>& cosines = cosines_[head_index(l, h)];
      all.insert(all.end(), cosines.begin(), cosines.end());
    });
  });
  if (all.empty()) return {};
  double sum = 0;
  for (const float value : all) sum += value;
  const double mean = sum / static_cast<double>(all.size());
  return {.vectors = all.size(), .mean = mean, .first_percentile = quantile(all, 0.01)};
}

/// Turns logits to their softmax beside a sink's score. Returns what a logit exceeds the logarithm of its weight by.
static double soften(std::span<float> logits, float sink) {
  const float largest = std::max(*std::ranges::max_element(logits), sink);
  for (float& logit : logits) logit -= largest;
  exp_nonpositive(logits);
  double sum = std::exp(static_cast<double>(sink) - static_cast<double>(largest));
  for (const float weight : logits) sum += weight;
  for (float& weight : logits) weight = static_cast<float>(weight / sum);
  return static_cast<double>(largest) + std::log(sum);
}

static std::vector<uint32_t> top_ids(std::span<const float> logits, size_t count) {
  return mapped<uint32_t>(top_k(logits, count), &Scored::id);
}

/// One query over the tokens it sees; logits become weights. sink: a score beside both; -infinity: none.
static AttentionErrorSums compare(std::span<float> logits, std::span<float> other, float sink, size_t top) {
  AttentionErrorSums sums;
  sums.queries = 1;
  sums.logits = logits.size();
  const size_t count = std::min(top, logits.size());
  if (count > 0) sums.overlap = selection_recall(top_ids(other, count), top_ids(logits, count));
  std::vector<double> differences(logits.size());
  for (size_t t = 0; t < logits.size(); ++t) {
    differences[t] = static_cast<double>(logits[t]) - static_cast<double>(other[t]);
    sums.logit_error += differences[t] * differences[t];
  }
  const double own = soften(logits, sink), shift = soften(other, sink) - own;
  for (size_t t = 0; t < logits.size(); ++t)
    sums.divergence += static_cast<double>(logits[t]) * (differences[t] + shift);
  sums.divergence += std::exp(static_cast<double>(sink) - own) * shift;
  sums.divergence = std::max(sums.divergence, 0.0);  // in this order a NaN stays one
  return sums;
}

void AttentionErrorSums::add(const AttentionErrorSums& other) {
  queries += other.queries;
  logits += other.logits;
  logit_error += other.logit_error;
  divergence += other.divergence;
  output_error += other.output_error;
  output_noise += other.output_noise;
  output_energy += other.output_energy;
  overlap += other.overlap;
}

double AttentionErrorSums::logit_rms() const {
  return logits == 0 ? 0 : std::sqrt(logit_error / static_cast<double>(logits));
}

AttentionErrorMeter::AttentionErrorMeter(int layers, int query_heads, size_t top)
    : layers_(layers), query_heads_(query_heads), top_(top) {
  if (layers < 1 || query_heads < 1)
    throw failed("{} layers, {} query heads do not fit", layers, query_heads);
  sums_.resize(as_size(layers) * as_size(query_heads));
}

void AttentionErrorMeter::add(int layer, const Rows& rows) {
  if (rows.heads < 1 || query_heads_ % rows.heads != 0)
    throw failed("layer {}: {} query heads and {} heads do not fit", layer, query_heads_, rows.heads);
  const size_t d = rows.keys.cols() / as_size(rows.heads), value_d = rows.values.cols() / as_size(rows.heads),
               n = rows.queries.rows();
  const auto fits = [&](MatrixView<const float> part, size_t dims) {
    return part.rows() == rows.keys.rows() && dims > 0 && part.cols() == as_size(rows.heads) * dims;
  };
  if (layer < 0 || layer >= layers_ || !fits(rows.keys, d) || !fits(rows.values, value_d) ||
      !fits(rows.other_keys, d) || !fits(rows.other_values, value_d) ||
      rows.queries.cols() != as_size(query_heads_) * d || rows.visible.size() != n ||
      (!rows.from.empty() && rows.from.size() != n) ||
      (!rows.sinks.empty() && rows.sinks.size() != as_size(query_heads_)))
    throw failed("layer {}: {} x {} keys and {} x {} queries do not fit", layer, rows.keys.rows(),
                 rows.keys.cols(), n, rows.queries.cols());
  const auto from_of = [&](size_t query) { return rows.from.empty() ? 0 : as_size(rows.from[query]); };
  for (size_t i = 0; i < n; ++i)
    if (rows.visible[i] <= from_of(i) || rows.visible[i] > rows.keys.rows())
      throw failed("a query sees tokens {} to {} of {}", from_of(i), rows.visible[i], rows.keys.rows());
  const size_t group = as_size(query_heads_ / rows.heads);
  parallel_each(as_size(query_heads_), 1, [&](size_t head) {
    const size_t first = head / group * d, first_value = head / group * value_d;
    const auto queries = rows.queries.columns(head * d, d);
    const auto values = rows.values.columns(first_value, value_d),
               other_values = rows.other_values.columns(first_value, value_d);
    AttentionErrorSums& sums = sums_[as_size(layer) * as_size(query_heads_) + head];
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    const float sink = rows.sinks.empty() ? -std::numeric_limits<float>::infinity() : rows.sinks[head];
    // Some at a time: their logits are to be few megabytes.
    constexpr size_t kQueries = 32;
    Matrix<float> logits(std::min(kQueries, n), rows.keys.rows()), other = logits;
    Matrix<float> output(logits.rows(), value_d), other_output = output;
    for (size_t i = 0; i < n; i += kQueries) {
      const size_t count = std::min(kQueries, n - i);
      gemm(scale, queries.rows(i, count), transposed(rows.keys.columns(first, d)), 0,
           logits.view().rows(0, count));
      gemm(scale, queries.rows(i, count), transposed(rows.other_keys.columns(first, d)), 0,
           other.view().rows(0, count));
      for (size_t k = 0; k < count; ++k) {
        const size_t from = from_of(i + k), seen = rows.visible[i + k] - from;
        for (Matrix<float>* each : {&logits, &other}) {
          if (rows.cap > 0) soft_cap(each->row(k).subspan(from, seen), rows.cap);
          std::ranges::fill(each->row(k).first(from), 0.0F);
          std::ranges::fill(each->row(k).subspan(from + seen), 0.0F);
        }
        sums.add(compare(logits.row(k).subspan(from, seen), other.row(k).subspan(from, seen), sink, top_));
      }
      gemm(1, logits.view().rows(0, count), values, 0, output.view().rows(0, count));
      gemm(1, other.view().rows(0, count), other_values, 0, other_output.view().rows(0, count));
      for (size_t k = 0; k < count; ++k) {
        sums.output_error += relative_error(other_output.row(k), output.row(k));
        for (size_t c = 0; c < value_d; ++c) {
          const double o = output(k, c), difference = o - static_cast<double>(other_output(k, c));
          sums.output_noise += difference * difference;
          sums.output_energy += o * o;
        }
      }
    }
  });
}

AttentionErrorSums AttentionErrorMeter::sums(std::optional<int> layer, std::optional<int> head) const {
  AttentionErrorSums total;
  for (int l = layer.value_or(0); l <= layer.value_or(layers_ - 1); ++l)
    for (int h = head.value_or(0); h <= head.value_or(query_heads_ - 1); ++h)
      total.add(sums_.at(as_size(l) * as_size(query_heads_) + as_size(h)));
  return total;
}

double selection_recall(std::span<const uint32_t> selected, std::span<const uint32_t> wanted) {
  if (wanted.empty()) return 1;
  std::vector<uint32_t> found(selected.begin(), selected.end()), sought(wanted.begin(), wanted.end()), both;
  std::sort(found.begin(), found.end());
  std::sort(sought.begin(), sought.end());
  std::ranges::set_intersection(found, sought, std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(sought.size());
}

double mass_covered(std::span<const float> logits, std::span<const uint32_t> selected) {
  if (logits.empty() && selected.empty()) return 1;
  const double max = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  double all = 0, covered = 0;
  for (const float logit : logits) all += std::exp(logit - max);
  for (const uint32_t id : selected) {
    if (id >= logits.size()) throw failed("token {} of {}", id, logits.size());
    covered += std::exp(logits[id] - max);
  }
  return covered / all;
}

double relative_error(std::span<const float> output, std::span<const float> reference) {
  if (output.size() != reference.size())
    throw failed("{} values against {} of a reference", output.size(), reference.size());
  double error = 0, energy = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    const double difference = double{output[i]} - double{reference[i]};
    error += difference * difference;
    energy += double{reference[i]} * double{reference[i]};
  }
  if (error == 0) return 0;
  return energy == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / energy);
}

double largest_relative_error(MatrixView<const float> outputs, MatrixView<const float> references,
                              size_t dims) {
  if (outputs.rows() != references.rows() || outputs.cols() != references.cols() || dims == 0 ||
      outputs.cols() % dims != 0)
    throw failed("{} x {} values against {} x {} of a reference, in vectors of {}", outputs.rows(),
                 outputs.cols(), references.rows(), references.cols(), dims);
  double largest = 0;
  for (size_t i = 0; i < outputs.rows(); ++i)
    for (size_t first = 0; first < outputs.cols(); first += dims)
      largest = std::max(largest, relative_error(outputs.row(i).subspan(first, dims),
                                                 references.row(i).subspan(first, dims)));
  return largest;
}

double gaussian_distortion(std::span<const double> variances, double bits) {
  if (variances.empty()) return 0;
  std::vector<double> sorted(variances.begin(), variances.end());
  for (double& value : sorted) value = std::max(value, 0.0);
  std::ranges::sort(sorted, std::greater<>());
  const auto n = static_cast<double>(sorted.size());
  // With the k largest above the water: log2(level) = mean of their logarithms - 2 bits n / k; right for the
  // largest k whose smallest member is above it.
  double logs = 0, level = 0;
  size_t above = 0;
  for (size_t k = 1; k <= sorted.size() && sorted[k - 1] > 0; ++k) {
    logs += std::log2(sorted[k - 1]);
    const double candidate = std::exp2((logs - 2 * bits * n) / static_cast<double>(k));
    if (candidate > sorted[k - 1]) break;
    level = candidate;
    above = k;
  }
  double error = level * static_cast<double>(above);
  for (size_t i = above; i < sorted.size(); ++i) error += sorted[i];
  return error / n;
}

}  // namespace kvcodec
