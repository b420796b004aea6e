// A model's prefill: causal attention and the products of activations and weights, both of floats taken apart
// into bf16, and one layer as a whole.
#include <cmath>

#include "cuda/blas.hpp"
#include "cuda/prefill.cuh"
#include "cuda/prefill.hpp"
#include "lib/core/bf16_parts.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/llama.hpp"
#include "test/bench/cuda/device_bench.hpp"
#include "test/unit/naive_llama.hpp"

namespace kvcodec::bench {
namespace {

struct Keys final : PrefillSink {
  std::vector<float> values;
  void layer(const LayerChunk& chunk) override {
    for (size_t i = 0; i < chunk.key.rows(); ++i)
      values.insert(values.end(), chunk.key.row(i).begin(), chunk.key.row(i).end());
  }
  void logits(size_t, MatrixView<const float> rows) override {
    for (size_t i = 0; i < rows.rows(); ++i)
      values.insert(values.end(), rows.row(i).begin(), rows.row(i).end());
  }
};

/// Throws unless a small model with these heads gives what lib gives.
void verify_heads(unsigned q_heads, unsigned kv_heads, unsigned dims) {
  const ModelConfig config = test::make_config(2, 32, 48, static_cast<int>(q_heads),
                                               static_cast<int>(kv_heads), static_cast<int>(dims));
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 1);
  LlamaModel model(config, weights);
  Rng rng(2);
  std::vector<uint32_t> tokens(80);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.below(50));
  const std::vector<uint64_t> offsets = {0, 80};
  PrefillOptions options;
  options.logits = LogitRows::all;
  Keys expected, found;
  model.prefill({tokens, offsets}, options, expected);
  model.use(cuda::make_prefill_engine(model.weights()));
  model.prefill({tokens, offsets}, options, found);
  verify(found.values.size() == expected.values.size(), "prefill hands out as much");
  double error = 0, size = 0;
  for (size_t i = 0; i < found.values.size(); ++i) {
    error += std::pow(double{found.values[i]} - double{expected.values[i]}, 2);
    size += std::pow(double{expected.values[i]}, 2);
  }
  // As test/cuda/prefill_test.cpp.
  verify(std::sqrt(error / size) <= 2e-6, fmt::format("prefill is off by {:.2g}", std::sqrt(error / size)));
}

/// Parts of random floats.
cuda::DeviceBuffer<uint16_t> random_parts(uint64_t seed, size_t count, unsigned parts,
                                          const cuda::Stream& stream) {
  const std::vector<float> values = random_floats(seed, count);
  std::vector<uint16_t> all(count * parts);
  for (size_t i = 0; i < count; ++i)
    for (unsigned p = 0; p < parts; ++p) all[p * count + i] = bf16_parts(values[i]).part[p];
  cuda::DeviceBuffer<uint16_t> out(all, stream);
  stream.synchronize();
  return out;
}

void attention_case(DeviceBench& bench, size_t tokens, unsigned q_heads, unsigned kv_heads, unsigned dims) {
  const std::string name = "prefill/attention";
  if (!bench.wanted(name)) return;
  verify_heads(bench.small() ? 4 : q_heads, bench.small() ? 2 : kv_heads, dims);
  const unsigned padded = cuda::attention_padded(dims);
  const size_t queries = tokens * q_heads * padded, keys = tokens * kv_heads * padded;
  auto query = random_parts(1, queries, 3, bench.stream()), key = random_parts(2, keys, 3, bench.stream()),
       value = random_parts(3, keys, 3, bench.stream());
  cuda::DeviceBuffer<uint16_t> out(3 * tokens * q_heads * dims);
  const unsigned rows = cuda::attention_rows(padded), size = rows / std::min(rows, q_heads / kv_heads);
  std::vector<cuda::AttentionTile> tiles;
  for (size_t first = tokens; first > 0; first -= std::min<size_t>(size, first)) {
    const size_t count = std::min<size_t>(size, first), begin = first - count;
    tiles.push_back(
        {static_cast<uint32_t>(begin), 0, static_cast<uint32_t>(begin), static_cast<uint32_t>(count)});
  }
  const cuda::DeviceBuffer<cuda::AttentionTile> device_tiles(tiles, bench.stream());
  cuda::CausalAttention attention;
  attention.query = {query.data(), queries}, attention.key = {key.data(), keys};
  attention.value = {value.data(), keys}, attention.out = {out.data(), tokens * q_heads * dims};
  attention.tiles = device_tiles.data(), attention.tile_count = static_cast<unsigned>(tiles.size());
  attention.q_heads = q_heads, attention.kv_heads = kv_heads, attention.dims = dims,
  attention.padded = padded;
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  const double of_floats = 4 * pairs * q_heads * dims;  // scores and sums; six products of parts each
  bench.measure(name, fmt::format("{} tokens, {}/{} x {}", tokens, q_heads, kv_heads, dims),
                {.operations = 6 * of_floats, .reported = of_floats, .unit = "TFLOP/s"}, 1, [&](size_t) {
                  cuda::check(cuda::run_causal_attention(attention, bench.stream().handle()), "attention");
                });
}

void product_case(DeviceBench& bench, size_t n, size_t outputs, size_t inputs) {
  const std::string name = "prefill/product";
  if (!bench.wanted(name)) return;
  const auto x = random_parts(4, n * inputs, 3, bench.stream()),
             weight = random_parts(5, outputs * inputs, 1, bench.stream());
  cuda::DeviceBuffer<float> out(n * outputs);
  const cuda::Blas blas(bench.stream());
  const auto run = [&](size_t) {
    for (unsigned p = 3; p-- > 0;)
      blas.products(x.data() + p * n * inputs, weight.data(), n, outputs, inputs, p != 2, out.data(),
                    p == 0 ? cuda::kPreciseStretch : inputs);
  };
  run(0);
  std::vector<float> found(out.size());
  out.download(found, bench.stream());
  bench.stream().synchronize();
  const std::vector<float> rows = random_floats(4, n * inputs),
                           of_weight = random_floats(5, outputs * inputs);
  double error = 0, whole = 0;
  for (size_t i = 0; i < n; i += std::max<size_t>(1, n / 16))
    for (size_t c = 0; c < outputs; c += std::max<size_t>(1, outputs / 64)) {
      double sum = 0;
      for (size_t j = 0; j < inputs; ++j)
        sum +=
            double{rows[i * inputs + j]} * double{bf16_to_float(bf16_from_float(of_weight[c * inputs + j]))};
      error += std::pow(found[i * outputs + c] - sum, 2), whole += sum * sum;
    }
  // Roundings of sums of `inputs` products in float, towards zero where the hardware truncates. With two
  // parts only it would be 1.3e-6 even of short sums.
  const double relative = std::sqrt(error / whole),
               bound = 0x1p-23 * std::sqrt(static_cast<double>(inputs)) + 4e-7;
  verify(relative <= bound, fmt::format("products are off by {:.2g}", relative));
  const double operations =
      2.0 * static_cast<double>(n) * static_cast<double>(outputs) * static_cast<double>(inputs);
  bench.measure(name, fmt::format("{} x {} x {}, bf16 weights", n, outputs, inputs),
                {.operations = 3 * operations, .reported = operations, .unit = "TFLOP/s"}, 1, run);
}

}  // namespace

void prefill_cases(DeviceBench& bench) {
  const bool small = bench.small();
  bench.attempt("prefill/attention", [&] {
    // Llama 3.1 8B and SmolLM2 1.7B.
    attention_case(bench, small ? 70 : 8192, small ? 4 : 32, small ? 2 : 8, 128);
    attention_case(bench, small ? 70 : 8192, small ? 4 : 32, small ? 4 : 32, 64);
  });
  bench.attempt("prefill/product", [&] {
    product_case(bench, small ? 20 : 1024, small ? 30 : 14336, small ? 40 : 4096);
    product_case(bench, small ? 20 : 1024, small ? 30 : 4096, small ? 40 : 14336);
  });
}

}  // namespace kvcodec::bench
