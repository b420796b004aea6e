#include "lib/pipeline/sensitivity.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/model/cache_gradients.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

namespace {

/// Deviation of the pilot's noise, as a fraction of the values' own: small enough for the layer that tolerates least in
/// any model that was tried, large enough for its effect to be seen in all of them.
constexpr double kPilot = 0.1;

/// Bounds of the larger noise's deviation, as fractions of the values' own: where a layer hardly matters, the target alone
/// would ask for noise that drowns it.
constexpr double kLeast = 0.005, kMax = 0.5;

/// The noise of one continuation: its deviation, on one side of one layer.
struct Noise {
  size_t layer = 0, side = 0;
  double deviation = 0;
};

/// Throws as check_fisher() and check_sensitivities() say. bytes_of: what a document takes in memory.
template <class BytesOf>
void check_documents(std::span<const LoopDocument> documents, int64_t sink, uint64_t memory,
                     const BytesOf& bytes_of) {
  for (const LoopDocument& document : documents) {
    check_document(document);
    if (document.prefix <= as_size(sink))
      throw usage_error("a prefix of {} tokens, and the first {} get no noise; there must be more",
                        document.prefix, sink);
    if (const uint64_t bytes = bytes_of(document); memory > 0 && bytes > memory)
      throw usage_error("a document of {} tokens takes about {} bytes of memory; {} are allowed",
                        document.tokens.size(), bytes, memory);
  }
}

/// The cache of a prefix for each of several continuations, one side of one layer of it noisy; without noises as it is.
class NoisyCache final : public PastCache {
 public:
  explicit NoisyCache(const Prefix& prefix, std::span<const Noise> noises = {}, uint64_t sink = 0,
                      uint64_t seed = 0, size_t document = 0)
      : prefix_(prefix), noises_(noises), sink_(sink), seed_(seed), document_(document) {}

  void read(int layer, size_t continuation, MatrixView<float> keys, MatrixView<float> values) override {
    const auto place = as_size(layer);
    for (const Side side : kSides) {
      const Matrix<float>& rows = prefix_.rows.of(side)[place];
      const MatrixView<float>& out = side == Side::key ? keys : values;
      for (size_t t = 0; t < rows.rows(); ++t) std::ranges::copy(rows.row(t), out.row(t).begin());
      if (noises_.empty()) continue;
      const Noise& noise = noises_[continuation];
      if (noise.layer == place && noise.side == static_cast<size_t>(side)) add(noise, out);
    }
  }

 private:
  /// The same random numbers for noise of any size.
  void add(const Noise& noise, MatrixView<float> rows) const {
    Rng rng(seed_, (document_ << 32) + 2 * noise.layer + noise.side);
    for (size_t t = sink_; t < rows.rows(); ++t)
      for (float& value : rows.row(t)) value += static_cast<float>(noise.deviation * rng.normal());
  }

  const Prefix& prefix_;
  std::span<const Noise> noises_;
  uint64_t sink_, seed_;
  size_t document_;
};

/// Mean square of the rows' distance from their mean; 0 of a layer without keys and values.
double variance_of(const Matrix<float>& rows, uint64_t sink) {
  if (rows.cols() == 0) return 0;
  std::vector<double> sums(rows.cols()), squares(rows.cols());
  for (size_t t = sink; t < rows.rows(); ++t)
    for (size_t c = 0; c < rows.cols(); ++c) {
      sums[c] += double{rows(t, c)};
      squares[c] += double{rows(t, c)} * double{rows(t, c)};
    }
  const auto count = static_cast<double>(rows.rows() - sink);
  double total = 0;
  for (size_t c = 0; c < rows.cols(); ++c) total += squares[c] / count - sums[c] / count * (sums[c] / count);
  return std::max(total / static_cast<double>(rows.cols()), 0.0);
}

/// One measurement over all documents, for each side of each layer.
class Measurement {
 public:
  Measurement(const LlamaModel& model, std::span<const LoopDocument> documents,
              const SensitivityOptions& options, const Progress& progress)
      : model_(model),
        documents_(documents),
        options_(options),
        progress_(progress),
        sides_(2 * as_size(model.config().num_layers)),
        sums_(2 * sides_),
        total_(static_cast<double>(sides_ * (1 + 2 * documents.size()))) {}

  std::vector<std::array<Sensitivity, 2>> run() {
    for (size_t i = 0; i < documents_.size(); ++i)
      with_context(fmt::format("document {}", i), [&] {
        ReferenceRun run(model_, documents_[i], 0);
        if (i == 0) choose_deviations(run);
        measure(run, i);
      });
    std::vector<std::array<Sensitivity, 2>> all;
    for (size_t i = 0; i < sides_; i += 2) all.push_back({sensitivity(i), sensitivity(i + 1)});
    return all;
  }

 private:
  uint64_t sink() const { return static_cast<uint64_t>(options_.sink); }

  /// Sums of divergences over the judged tokens of each continuation.
  std::vector<double> divergences(ReferenceRun& run, size_t document, std::span<const Noise> noises) {
    std::vector<double> sums;
    for (size_t first = 0; first < noises.size(); first += run.together()) {
      const auto some = noises.subspan(first, std::min(run.together(), noises.size() - first));
      NoisyCache cache(run.prefix(), some, sink(), static_cast<uint64_t>(options_.seed), document);
      std::vector<std::vector<Judged>> judged(some.size(), std::vector<Judged>(run.judged()));
      std::vector<std::vector<Judged>*> places;
      places.reserve(judged.size());
      for (auto& each : judged) places.push_back(&each);
      run.go_on({.count = run.judged(), .cache = cache, .judged = places});
      for (const auto& each : judged) sums.push_back(sums_of(each).divergence);
      report(progress_, done_ += static_cast<double>(some.size()), total_);
    }
    return sums;
  }

  /// Sets the larger noise's deviations so that each layer and side costs about the target: a divergence grows with the
  /// square of the deviation.
  void choose_deviations(ReferenceRun& run) {
    std::vector<Noise> pilots;
    for (size_t i = 0; i < sides_; ++i) {
      variances_.push_back(variance_of(run.prefix().rows.of(kSides[i % 2])[i / 2], sink()));
      pilots.push_back({i / 2, i % 2, kPilot * std::sqrt(variances_[i])});
    }
    const std::vector<double> sums = divergences(run, 0, pilots);
    for (size_t i = 0; i < sides_; ++i) {
      const double cost = std::max(sums[i] / static_cast<double>(run.judged()), 1e-12);
      const double part = std::clamp(kPilot * std::sqrt(options_.target / cost), kLeast, kMax);
      deviations_.push_back(part * std::sqrt(variances_[i]));
    }
  }

  void measure(ReferenceRun& run, size_t document) {
    std::vector<Noise> noises;
    for (size_t i = 0; i < sides_; ++i)
      for (const double part : {0.5, 1.0}) noises.push_back({i / 2, i % 2, part * deviations_[i]});
    const std::vector<double> sums = divergences(run, document, noises);
    for (size_t i = 0; i < sums.size(); ++i) sums_[i].push_back(sums[i]);
    counts_.push_back(static_cast<double>(run.judged()));
  }

  Sensitivity sensitivity(size_t side) const {
    const std::vector<double>&small = sums_[2 * side], &large = sums_[2 * side + 1];
    Sensitivity result{.variance = variances_[side], .probes = {}, .nats = {}};
    result.probes[0] = {deviations_[side] / 2, mean_by_document(small, counts_)};
    result.probes[1] = {deviations_[side], mean_by_document(large, counts_)};
    const double variance = result.probes[0].deviation * result.probes[0].deviation;
    if (variance > 0)
      result.nats = {result.probes[0].divergence.mean / variance,
                     result.probes[0].divergence.half_width / variance};
    return result;
  }

  const LlamaModel& model_;
  std::span<const LoopDocument> documents_;
  const SensitivityOptions& options_;
  const Progress& progress_;
  size_t sides_;  // of all layers
  std::vector<double> variances_, deviations_;
  std::vector<std::vector<double>> sums_;  // [side, smaller or larger noise][document]
  std::vector<double> counts_;             // judged tokens of each document
  double done_ = 0, total_;
};

}  // namespace

void check_sensitivities(const ModelConfig& config, std::span<const LoopDocument> documents,
                         const SensitivityOptions& options) {
  if (documents.empty()) throw failed("sensitivities of no documents");
  check_documents(documents, options.sink, options.memory, [&](const LoopDocument& document) {
    return ReferenceRun::bytes(config, document, 4 * as_size(config.num_layers));
  });
}

std::vector<std::array<Sensitivity, 2>> measure_sensitivities(const LlamaModel& model,
                                                              std::span<const LoopDocument> documents,
                                                              const SensitivityOptions& options,
                                                              const Progress& progress) {
  check_sensitivities(model.config(), documents, options);
  return Measurement(model, documents, options, progress).run();
}

namespace {

/// Draws a token of softmax(logits), and writes the derivative of its log-probability by the logits: 1 at the token,
/// less the probabilities.
void draw_target(Rng rng, std::span<const float> logits, std::span<float> derivative) {
  const float largest = *std::ranges::max_element(logits);
  std::ranges::transform(logits, derivative.begin(), [largest](float logit) { return logit - largest; });
  exp_nonpositive(derivative);
  const double total = sum(derivative), drawn = rng.uniform() * total;
  double below = 0;
  size_t target = 0, i = 0;
  for (; i < derivative.size() && below <= drawn; ++i)
    if (derivative[i] > 0) below += double{derivative[i]}, target = i;
  scale(derivative, static_cast<float>(-1 / total));
  derivative[target] += 1;
}

/// Sums over documents.
class Sums {
 public:
  explicit Sums(const ModelConfig& config)
      : heads_(as_size(config.num_kv_heads)),
        sums_(2 * as_size(config.num_layers) * heads_,
              Matrix<double>(as_size(config.head_dim), as_size(config.head_dim))) {}

  /// Adds factor * sum over rows of g g^T of each head.
  void add(int layer, Side side, MatrixView<const float> rows, float factor) {
    const size_t dim = sums_.front().rows();
    parallel_each(heads_, 1, [&](size_t head) {
      const MatrixView<const float> of_head = rows.columns(head * dim, dim);
      Matrix<float> product(dim, dim);
      gemm(factor, transposed(of_head), of_head, 0, product);
      Matrix<double>& sum = of(side, layer, head);
      for (size_t i = 0; i < dim; ++i)  // both halves alike, which the product's roundings need not be
        for (size_t j = 0; j < dim; ++j) sum(i, j) += (double{product(i, j)} + double{product(j, i)}) / 2;
    });
  }

  void write(double documents, Fisher& fisher) {
    for (const Side side : kSides)
      for (int layer = 0; layer < fisher.layers; ++layer)
        for (size_t head = 0; head < heads_; ++head) {
          const Matrix<double>& sum = of(side, layer, head);
          Matrix<float>& mean =
              fisher.matrices[static_cast<size_t>(side)].emplace_back(sum.rows(), sum.cols());
          for (size_t i = 0; i < sum.size(); ++i)
            mean.data()[i] = static_cast<float>(sum.data()[i] / documents);
          if (const auto place = find_non_finite({mean.data(), mean.size()}))
            throw failed("layer {}, {}s of head {}: the Fisher information is {}", layer, side, head,
                         mean.data()[*place]);
        }
  }

 private:
  Matrix<double>& of(Side side, int layer, size_t head) {
    return sums_[(2 * as_size(layer) + static_cast<size_t>(side)) * heads_ + head];
  }

  size_t heads_;
  std::vector<Matrix<double>> sums_;
};

/// One document's share.
class DocumentShare final : public Differentiated {
 public:
  DocumentShare(const FisherOptions& options, size_t document, size_t judged, Sums& sums)
      : options_(options), document_(document), judged_(judged), sums_(sums) {}

  void by_logits(size_t first, MatrixView<const float> logits, MatrixView<float> derivatives) override {
    constexpr size_t kGrain = 4;  // rows: of a vocabulary each
    parallel_each(logits.rows(), kGrain,
                  [&](size_t i) { draw_target(rng(first + i), logits.row(i), derivatives.row(i)); });
  }

  void by_cache(int layer, MatrixView<const float> keys, MatrixView<const float> values) override {
    const auto sink = as_size(options_.sink);
    const float factor = 1 / static_cast<float>(judged_);
    sums_.add(layer, Side::key, keys.rows(sink, keys.rows() - sink), factor);
    sums_.add(layer, Side::value, values.rows(sink, values.rows() - sink), factor);
  }

 private:
  /// Streams of noise (sensitivity.cpp) count from the other end.
  Rng rng(size_t position) const {
    return Rng(static_cast<uint64_t>(options_.seed), ~((uint64_t{document_} << 32) + position));
  }

  const FisherOptions& options_;
  size_t document_, judged_;
  Sums& sums_;
};

uint64_t bytes_of(const ModelConfig& config, const LoopDocument& document) {
  const uint64_t prefix = document.prefix, judged = document.tokens.size() - 1 - prefix;
  const uint64_t sides = 2 * as_size(config.num_layers) * as_size(config.key_width());
  const uint64_t kept =
      checked_add(checked_mul(prefix, sides * sizeof(float)),
                  checked_mul(sides, as_size(config.head_dim) * (sizeof(double) + sizeof(float))));
  return checked_add(kept, std::max(prefill_bytes(config, {}, prefix, prefix, num_threads()),
                                    gradient_bytes(config, judged, prefix, num_threads())));
}

}  // namespace

void check_fisher(const ModelConfig& config, std::span<const LoopDocument> documents,
                  const FisherOptions& options) {
  if (const std::string why = beyond_gradients(config); !why.empty())
    throw usage_error("the model has {}, through which derivatives are not taken", why);
  if (documents.empty()) throw failed("the Fisher information of no documents");
  check_documents(documents, options.sink, options.memory,
                  [&](const LoopDocument& document) { return bytes_of(config, document); });
}

double Fisher::nats(Side side, int layer) const {
  double trace = 0;
  for (int head = 0; head < heads; ++head) {
    const Matrix<float>& matrix = of(side, layer, head);
    for (size_t i = 0; i < matrix.rows(); ++i) trace += double{matrix(i, i)};
  }
  return trace / 2;
}

Fisher measure_fisher(const LlamaModel& model, std::span<const LoopDocument> documents,
                      const FisherOptions& options, const Progress& progress) {
  const ModelConfig& config = model.config();
  check_fisher(config, documents, options);
  Fisher fisher{.layers = config.num_layers,
                .heads = config.num_kv_heads,
                .keys_before_rope = KeyRope::of(config).known(),
                .matrices = {}};
  Sums sums(config);
  const auto total = static_cast<double>(documents.size());
  for (size_t i = 0; i < documents.size(); ++i)
    with_context(fmt::format("document {}", i), [&] {
      const Prefix prefix = run_prefix(model, documents[i], 0);
      NoisyCache cache(prefix);
      const auto tokens = std::span(documents[i].tokens).subspan(documents[i].prefix);
      const Continued continued{.tokens = tokens.first(tokens.size() - 1),
                                .past = documents[i].prefix,
                                .cache = &cache,
                                .before_rope = fisher.keys_before_rope};
      DocumentShare share(options, i, continued.tokens.size(), sums);
      differentiate(model, continued, share, [&](double done, double of, std::string_view) {
        report(progress, static_cast<double>(i) + done / of, total);
      });
    });
  sums.write(total, fisher);
  return fisher;
}

std::vector<int64_t> allocate_bits(std::span<const double> costs, int64_t total, int64_t lowest,
                                   int64_t highest) {
  std::vector<int64_t> bits(costs.size(), lowest);
  // The next bit gains less than the last one did, so taking the largest gain each time is optimal.
  using Gain = std::pair<double, size_t>;
  const auto after = [](const Gain& a, const Gain& b) {
    return a.first < b.first || (a.first == b.first && a.second > b.second);
  };
  std::priority_queue<Gain, std::vector<Gain>, decltype(after)> gains(after);
  const auto gain = [&](size_t i) { return costs[i] * std::exp2(-2.0 * static_cast<double>(bits[i])); };
  for (size_t i = 0; i < costs.size(); ++i)
    if (lowest < highest) gains.emplace(gain(i), i);
  for (int64_t left = total - lowest * static_cast<int64_t>(costs.size()); left > 0 && !gains.empty();
       --left) {
    const size_t i = gains.top().second;
    gains.pop();
    if (++bits[i] < highest) gains.emplace(gain(i), i);
  }
  return bits;
}

/// The gain of a bit from one point to another; none unless it costs more and loses less.
static double slope(const RatePoint& from, const RatePoint& to) {
  return to.bits > from.bits ? (from.cost - to.cost) / (to.bits - from.bits) : 0;
}

/// The lower convex hull, from the fewest bits to the lowest cost.
static std::vector<size_t> hull_of(const std::vector<RatePoint>& curve) {
  const auto fewer = [](const RatePoint& a, const RatePoint& b) {
    return a.bits < b.bits || (a.bits == b.bits && a.cost < b.cost);
  };
  std::vector<size_t> hull{static_cast<size_t>(std::ranges::min_element(curve, fewer) - curve.begin())};
  for (bool found = true; found;) {
    found = false;
    const RatePoint& last = curve[hull.back()];
    size_t next = 0;
    for (size_t i = 0; i < curve.size(); ++i) {
      const double gain = slope(last, curve[i]), best = found ? slope(last, curve[next]) : 0;
      if (gain > best || (found && gain == best && curve[i].bits > curve[next].bits)) next = i, found = true;
    }
    if (found) hull.push_back(next);
  }
  return hull;
}

std::vector<std::array<size_t, 2>> best_pairs(const std::array<std::vector<RatePoint>, 2>& curves) {
  const std::array<std::vector<size_t>, 2> hulls{hull_of(curves[0]), hull_of(curves[1])};
  std::array<size_t, 2> at{};
  std::vector<std::array<size_t, 2>> pairs;
  const auto gain = [&](size_t q) {
    const auto& hull = hulls[q];
    return at[q] + 1 < hull.size() ? slope(curves[q][hull[at[q]]], curves[q][hull[at[q] + 1]]) : -1.0;
  };
  pairs.push_back({hulls[0][0], hulls[1][0]});
  while (gain(0) > 0 || gain(1) > 0) {
    ++at[gain(1) > gain(0)];
    pairs.push_back({hulls[0][at[0]], hulls[1][at[1]]});
  }
  return pairs;
}

}  // namespace kvcodec
