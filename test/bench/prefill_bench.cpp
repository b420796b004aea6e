// kvcodec_bench_prefill: the forward pass of dump-kv against OpenBLAS's own sgemm in the same run.
//
//   env -u OPENBLAS_CORETYPE kvcodec_bench_prefill
//
// Prints GFLOP/s of prefill on random-weight models, of one large sgemm that OpenBLAS spreads over the same
// threads, measured right before and after each prefill, and the ratio of the two. OPENBLAS_CORETYPE, where a
// shell exports it, can halve both. Where the machine multiplies bf16, prefill in bf16 stands beside the same sgemm:
// how much faster that is than floats can be.
#include <cmath>

#include <cblas.h>

#include "lib/core/rng.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/llama.hpp"
#include "test/bench/bench.hpp"
#include "test/lib/model/naive_llama.hpp"

using namespace kvcodec;

namespace {

constexpr int kVocabulary = 1000;

struct KeysOfLastLayer final : PrefillSink {
  explicit KeysOfLastLayer(int last) : last_layer(last) {}
  void layer(const LayerChunk& chunk) override {
    if (chunk.layer != last_layer) return;
    for (size_t i = 0; i < chunk.key.rows(); ++i)
      keys.insert(keys.end(), chunk.key.row(i).begin(), chunk.key.row(i).end());
  }
  int last_layer;
  std::vector<float> keys;
};

struct Nowhere final : PrefillSink {
  void layer(const LayerChunk&) override {}
};

struct Text {
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> offsets{0};
  Text(size_t documents, size_t length, uint32_t vocabulary) {
    Rng rng(7);
    for (size_t i = 0; i < documents; ++i) {
      for (size_t t = 0; t < length; ++t) tokens.push_back(static_cast<uint32_t>(rng.below(vocabulary)));
      offsets.push_back(tokens.size());
    }
  }
  PrefillBatch batch() const { return {tokens, offsets}; }
};

void check_answer(DType type, Compute compute) {
  const ModelConfig config = test::make_config(2, 320, 544, 6, 2, 64, kVocabulary);
  const WeightsInMemory weights = test::random_weights(config, type, 3);
  const Text text(1, 100, 1000);
  KeysOfLastLayer sink(1);
  LlamaModel model(config, weights);
  model.compute_in(compute);
  model.prefill(text.batch(), {}, sink);
  const auto expected = test::NaiveLlama(config, weights).run(text.tokens).key[1];
  double error = 0, size = 0;
  for (size_t t = 0, i = 0; t < expected.size(); ++t)
    for (const double value : expected[t])
      error += std::pow(sink.keys[i++] - value, 2), size += value * value;
  bench::check(std::sqrt(error / size) < (compute == Compute::f32 ? 1e-5 : 2e-2),
               "keys differ from sums in double");
}

/// One multiplication of 2048 x 2048 matrices by OpenBLAS with its own threads: its peak for our sizes.
class Peak {
 public:
  static constexpr int kSide = 2048;
  static constexpr double kFlops = 2.0 * kSide * kSide * kSide;
  double seconds() {
    const double start = bench::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSide, kSide, kSide, 1, a_.data(), kSide,
                b_.data(), kSide, 0, c_.data(), kSide);
    return bench::now() - start;
  }

 private:
  std::vector<float> a_ = std::vector<float>(size_t{kSide} * kSide, 0.5f), b_ = a_, c_ = a_;
};

/// Floating-point operations of products and scores of a prefill of whole documents with logits of their last tokens, for a
/// model of the Llama family without windows: attention counts pairs that are not masked.
double prefill_flops(const ModelConfig& config, std::span<const uint64_t> offsets) {
  const double hidden = config.hidden_size, query = config.query_width(), key = config.key_width();
  const double tokens = static_cast<double>(offsets.back()),
               documents = static_cast<double>(offsets.size() - 1);
  double pairs = 0;
  for (size_t i = 1; i < offsets.size(); ++i) {
    const auto length = static_cast<double>(offsets[i] - offsets[i - 1]);
    pairs += length * (length + 1) / 2;
  }
  const double per_token = hidden * (2 * query + 2 * key + 3.0 * config.intermediate_size);
  return 2 * (config.num_layers * (tokens * per_token + 2 * query * pairs) +
              documents * hidden * config.vocabulary_size);
}

void run(const char* name, const ModelConfig& config, const WeightsInMemory& weights, DType type,
         Compute compute, size_t documents, size_t length, int repeats) {
  LlamaModel model(config, weights);
  model.compute_in(compute);
  const Text text(documents, length, 1000);
  Nowhere sink;
  Peak peak;
  PrefillOptions options;
  options.logits = LogitRows::last;  // so that the last layer runs to its end
  const double flops = prefill_flops(config, text.offsets);
  bench::Times prefill, sgemm, ratio;
  peak.seconds();
  model.prefill(text.batch(), options, sink);
  for (int i = 0; i < repeats; ++i) {
    const double before = peak.seconds(), start = bench::now();
    model.prefill(text.batch(), options, sink);
    const double seconds = bench::now() - start, after = peak.seconds();
    const double best_peak = Peak::kFlops / std::min(before, after);
    prefill.add(seconds), sgemm.add(before), sgemm.add(after), ratio.add(best_peak / (flops / seconds));
  }
  fmt::print("{:<18} {:<7} {:<7} {:>3} x {:<5} {:>24} {:>24} {:>24}\n", name, name_of(type), name_of(compute),
             documents, length, bench::rate(prefill, flops, 1e9), bench::rate(sgemm, Peak::kFlops, 1e9),
             bench::rate(ratio, 100, 1));
  std::fflush(stdout);
}

/// In every way that the machine can multiply.
void run(const char* name, const ModelConfig& config, DType type, size_t documents, size_t length,
         int repeats) {
  const WeightsInMemory weights = test::random_weights(config, type, 5);
  run(name, config, weights, type, Compute::f32, documents, length, repeats);
  if (why_no_bf16().empty()) run(name, config, weights, type, Compute::bf16, documents, length, repeats);
}

}  // namespace

int main() {
  bench::print_header("prefill");
  fmt::print("OpenBLAS kernels: {}{}\n", openblas_get_corename(),
             std::getenv("OPENBLAS_CORETYPE") ? " (set by OPENBLAS_CORETYPE; unset it to measure)" : "");
  const std::string no_bf16 = why_no_bf16();
  if (!no_bf16.empty()) fmt::print("nothing in bf16: {}\n", no_bf16);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    check_answer(type, Compute::f32);
    if (no_bf16.empty()) check_answer(type, Compute::bf16);
  }
  fmt::print("{:<18} {:<7} {:<7} {:<11} {:>24} {:>24} {:>24}\n", "model", "weights", "compute", "documents",
             "prefill GFLOP/s", "sgemm GFLOP/s", "prefill/sgemm %");
  fmt::print("{:<18} {:<7} {:<7} {:<11} {:>24} {:>24} {:>24}\n", "", "", "", "", "median (min .. max)",
             "median (min .. max)", "median (min .. max)");
  const ModelConfig small = test::make_config(4, 1024, 2816, 16, 8, 64, kVocabulary),
                    large = test::make_config(2, 2048, 5632, 32, 8, 64, kVocabulary);
  const ModelConfig wide_heads = test::make_config(2, 2048, 8192, 16, 16, 128, kVocabulary);
  run("hidden 1024, d 64", small, DType::f32, 1, 1024, 7);
  run("hidden 1024, d 64", small, DType::bf16, 1, 1024, 7);
  run("hidden 2048, d 64", large, DType::f32, 1, 1024, 5);
  run("hidden 2048, d 64", large, DType::bf16, 1, 1024, 5);
  run("hidden 2048, d 64", large, DType::bf16, 16, 64, 5);
  run("hidden 2048, d 64", large, DType::bf16, 1, 6144, 3);
  run("hidden 2048, d 128", wide_heads, DType::f16, 1, 2048, 3);
}
