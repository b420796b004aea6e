#include "lib/pipeline/sensitivity.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"

namespace kvcodec {
namespace {

/// Deviation of the pilot's noise, as a fraction of the values' own: small enough for the layer that tolerates least in
/// any model that was tried, large enough for its effect to be seen in all of them.
constexpr double kPilot = 0.1;

/// Bounds of the larger noise's deviation, as fractions of the values' own: where a layer hardly matters, the target alone
/// would ask for noise that drowns it.
constexpr double kLeast = 0.005, kMost = 0.5;

/// The noise of one continuation: its deviation, on one side of one layer.
struct Noise {
  size_t layer = 0, side = 0;
  double deviation = 0;
};

/// The cache of a prefix for each of several continuations, one side of one layer of it noisy.
class NoisyCache final : public PastCache {
 public:
  NoisyCache(const Prefix& prefix, std::span<const Noise> noises, uint64_t sink, uint64_t seed,
             size_t document)
      : prefix_(prefix), noises_(noises), sink_(sink), seed_(seed), document_(document) {}

  void read(int layer, size_t continuation, MatrixView<float> keys, MatrixView<float> values) override {
    const auto place = static_cast<size_t>(layer);
    for (const Side side : kSides) {
      const Matrix<float>& rows = prefix_.rows.of(side)[place];
      const MatrixView<float>& out = side == Side::key ? keys : values;
      for (size_t t = 0; t < rows.rows(); ++t) std::ranges::copy(rows.row(t), out.row(t).begin());
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

/// Mean square of the rows' distance from their mean.
double variance_of(const Matrix<float>& rows, uint64_t sink) {
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
        sides_(2 * static_cast<size_t>(model.config().num_layers)),
        sums_(2 * sides_),
        total_(static_cast<double>(sides_ * (1 + 2 * documents.size()))) {}

  std::vector<std::array<Sensitivity, 2>> run() {
    for (size_t i = 0; i < documents_.size(); ++i)
      with_context(fmt::format("document {}", i), [&] {
        ReferenceRun run(model_, documents_[i], 0);
        if (i == 0) choose_deviations(run);
        measure(run, i);
      });
    return results();
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
      run.go_on(0, run.judged(), cache, places, {});
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
      const double part = std::clamp(kPilot * std::sqrt(options_.target / cost), kLeast, kMost);
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

  std::vector<std::array<Sensitivity, 2>> results() const {
    std::vector<std::array<Sensitivity, 2>> all;
    for (size_t i = 0; i < sides_; i += 2) all.push_back({sensitivity(i), sensitivity(i + 1)});
    return all;
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

std::vector<OptionField> SensitivityOptions::fields() {
  return {{"noise-target", "nats that the larger of two noises is to cost, about", &target, 1e-5, 1},
          {"sink", "first tokens of each prefix that get no noise", &sink, 0, 1 << 20}};
}

void check_sensitivities(const ModelConfig& config, std::span<const LoopDocument> documents,
                         const SensitivityOptions& options) {
  if (documents.empty()) throw failed("sensitivities of no documents");
  for (const LoopDocument& document : documents) {
    check_document(document);
    check_sink(document, options.sink);
    check_memory(document, ReferenceRun::bytes(config, document, 4 * static_cast<size_t>(config.num_layers)),
                 options.memory);
  }
}

std::vector<std::array<Sensitivity, 2>> measure_sensitivities(const LlamaModel& model,
                                                              std::span<const LoopDocument> documents,
                                                              const SensitivityOptions& options,
                                                              const Progress& progress) {
  check_sensitivities(model.config(), documents, options);
  return Measurement(model, documents, options, progress).run();
}

}  // namespace kvcodec
