#include "lib/metrics/reconstruction.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/finite.hpp"
#include "lib/core/parallel.hpp"
#include "lib/metrics/interval.hpp"

namespace kvcodec {
namespace {

/// Calls body(index) for one index, or for all below count.
template <class Body>
void for_chosen(std::optional<int> chosen, int count, const char* what, const Body& body) {
  if (chosen && (*chosen < 0 || *chosen >= count))
    throw failed("{} {} is not one of {}", what, *chosen, count);
  const int first = chosen.value_or(0), last = chosen.value_or(count - 1);
  for (int i = first; i <= last; ++i) body(i);
}

void check_finite(const char* what, uint64_t first_token, size_t head_dim, MatrixView<const float> rows) {
  for (size_t i = 0; i < rows.rows(); ++i)
    if (const auto bad = find_non_finite(rows.row(i)))
      throw bad_input("{}: token {}, head {}, dimension {} is {}; keys and values are finite", what,
                      first_token + i, *bad / head_dim, *bad % head_dim, rows(i, *bad));
}

}  // namespace

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

size_t ReconstructionMeter::head_index(int layer, int head) const {
  return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
}

uint64_t ReconstructionMeter::tokens(int layer) const { return tokens_.at(static_cast<size_t>(layer)); }

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
  parallel_for(static_cast<size_t>(heads.count), 1, [&](size_t begin, size_t end, int) {
    for (size_t head = begin; head < end; ++head) {
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

}  // namespace kvcodec
