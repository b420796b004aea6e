// A model's prefill: causal attention and the products of activations and weights, both of floats split into bf16 parts.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/prefill/blas.hpp"
#include "cuda/prefill/prefill.cuh"
#include "lib/core/half_bits.hpp"
#include "test/bench/cuda/device_bench.hpp"
#include "test/cuda/prefill_error.hpp"

namespace kvcodec::bench {
namespace {

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

/// Heads whose attention is checked: random_floats of these seeds.
struct AttentionHeads {
  size_t tokens, q_heads, kv_heads, dims;
  uint64_t query = 1, key = 2, value = 3;
};

/// Throws unless the attention of some heads of some tokens is near to sums in double. out: parts of (tokens, q_heads, dims).
void verify_attention(const AttentionHeads& heads, const std::vector<uint16_t>& out) {
  const size_t d = heads.dims, plane = out.size() / cuda::kFloatParts;
  const std::vector<float> query = random_floats(heads.query, heads.tokens * heads.q_heads * d),
                           key = random_floats(heads.key, heads.tokens * heads.kv_heads * d),
                           value = random_floats(heads.value, heads.tokens * heads.kv_heads * d);
  for (const size_t token : spread(heads.tokens, 8))
    for (const size_t head : spread(heads.q_heads, 3)) {
      const size_t kv_head = head * heads.kv_heads / heads.q_heads, row = (token * heads.q_heads + head) * d;
      std::vector<double> weights(token + 1), sums(d), sizes(d);
      double highest = -HUGE_VAL, total = 0, largest = 0;
      for (size_t i = 0; i <= token; ++i) {
        double magnitude = 0;
        for (size_t j = 0; j < d; ++j) {
          const double product = double{query[row + j]} * double{key[(i * heads.kv_heads + kv_head) * d + j]};
          weights[i] += product, magnitude += std::abs(product);
        }
        highest = std::max(highest, weights[i]), largest = std::max(largest, magnitude);
      }
      for (size_t i = 0; i <= token; ++i) {
        const double weight = std::exp(weights[i] - highest);
        total += weight;
        for (size_t j = 0; j < d; ++j) {
          const double part = weight * double{value[(i * heads.kv_heads + kv_head) * d + j]};
          sums[j] += part, sizes[j] += std::abs(part);
        }
      }
      // The error of a weight comes from its score and the highest one, and from the roundings of an exponential.
      const double of_weight =
                       2 * largest * test::prefill_sum_error(d, test::kAttentionStretch) + 8 * 0x1p-24,
                   bound = 2 * of_weight + test::prefill_sum_error(token + 1, test::kAttentionStretch) +
                           (static_cast<double>(token) / 16 + 20) * 0x1p-24;  // and of the weights' sum
      for (size_t j = 0; j < d; ++j) {
        double found = 0;
        for (size_t p = cuda::kFloatParts; p-- > 0;) found += double{bf16_to_float(out[p * plane + row + j])};
        verify(std::abs(found - sums[j] / total) <= bound * sizes[j] / total,
               fmt::format("attention of token {} is {}, not {}", token, found, sums[j] / total));
      }
    }
}

void attention_case(DeviceBench& bench, size_t tokens, unsigned q_heads, unsigned kv_heads, unsigned dims) {
  const std::string name = "prefill/attention";
  if (!bench.wanted(name)) return;
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
  const auto attend = [&](size_t) { bench.stream().run("attention", cuda::run_causal_attention, attention); };
  out.fill(0xff, bench.stream());
  attend(0);
  verify_attention({tokens, q_heads, kv_heads, dims}, read(out, bench.stream()));
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  const double of_floats = 4 * pairs * q_heads * dims;  // scores and sums; six products of parts each
  bench.measure(name, fmt::format("{} tokens, {}/{} x {}", tokens, q_heads, kv_heads, dims),
                {.operations = 6 * of_floats, .reported = of_floats, .unit = "TFLOP/s"}, 1, attend);
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
      blas.products({x.data() + p * n * inputs, weight.data(), n, outputs, inputs, p != 2, out.data()},
                    p == 0 ? cuda::kPreciseStretch : inputs);
  };
  run(0);
  const std::vector<float> found = read(out, bench.stream());
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
