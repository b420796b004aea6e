#include "lib/pipeline/fisher.hpp"

#include <algorithm>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/finite.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/model/cache_gradients.hpp"
#include "lib/model/key_rope.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

/// The prefix's cache, as the model made it.
class OwnCache final : public PastCache {
 public:
  explicit OwnCache(const Prefix& prefix) : prefix_(prefix) {}
  void read(int layer, size_t, MatrixView<float> keys, MatrixView<float> values) override {
    copy(prefix_.rows.keys[as_size(layer)], keys);
    copy(prefix_.rows.values[as_size(layer)], values);
  }

 private:
  static void copy(const Matrix<float>& from, MatrixView<float> to) {
    for (size_t t = 0; t < from.rows(); ++t) std::ranges::copy(from.row(t), to.row(t).begin());
  }
  const Prefix& prefix_;
};

/// Draws a token of softmax(logits), and writes the derivative of its log-probability by the logits: 1 at the token,
/// less the probabilities.
void draw_target(Rng rng, std::span<const float> logits, std::span<float> derivative) {
  const float most = *std::ranges::max_element(logits);
  std::ranges::transform(logits, derivative.begin(), [most](float logit) { return logit - most; });
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
    parallel_for(heads_, 1, [&](size_t head, size_t, int) {
      const MatrixView<const float> of_head = rows.columns(head * dim, dim);
      Matrix<float> product(dim, dim);
      gemm(factor, of_head, Transpose::yes, of_head, Transpose::no, 0, product);
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
    parallel_for(logits.rows(), kGrain, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) draw_target(rng(first + i), logits.row(i), derivatives.row(i));
    });
  }

  void by_cache(int layer, MatrixView<const float> keys, MatrixView<const float> values) override {
    const auto sink = static_cast<size_t>(options_.sink);
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
  for (const LoopDocument& document : documents) {
    check_document(document);
    check_sink(document, options.sink);
    check_memory(document, bytes_of(config, document), options.memory);
  }
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
      OwnCache cache(prefix);
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

}  // namespace kvcodec
