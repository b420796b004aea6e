// kvcodec_bench_rows: the row-by-row work of a forward pass, and of loading a model's weights, on one core, with every instruction
// set of the machine. Nanoseconds per value: medians with (smallest .. largest).
#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/packed_gemm.hpp"
#include "lib/model/row_ops.hpp"
#include "lib/model/tensor_type.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr int kRepeats = 41;
// A tile of attention (lib/model/causal_attention.cpp) and of an MLP.
constexpr size_t kRows = 192, kKeys = 512, kHidden = 576, kInner = 1536;

std::vector<float> normals(size_t count) {
  Rng rng(1);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(3 * rng.normal());
  return values;
}

template <class Body>
void row(SimdLevel level, std::string_view what, size_t values, const Body& body) {
  const bench::Times times = bench::measure(kRepeats, body);
  const double to_ns = 1e9 / static_cast<double>(values);
  fmt::print("{:<12} {:<28} {:.3f} ({:.3f} .. {:.3f})\n", name_of(level), what, times.median() * to_ns,
             times.min() * to_ns, times.max() * to_ns);
  std::fflush(stdout);
}

void softmax_rows(SimdLevel level) {
  const std::vector<float> scores = normals(kRows * kKeys);
  std::vector<float> weights(scores.size());
  std::vector<uint16_t> rounded(scores.size());
  const auto of = [](auto& values, size_t i) { return std::span(values).subspan(i * kKeys, kKeys); };
  std::vector<SoftmaxState> states(kRows);
  const auto in_floats = [&](size_t i) {
    states[i] = {};
    std::ranges::copy(of(scores, i), of(weights, i).begin());
    softmax_block(of(weights, i), states[i]);
  };
  row(level, "softmax, with a copy", scores.size(), [&] {
    for (size_t i = 0; i < kRows; ++i) in_floats(i);
  });
  row(level, "the same, then rounded", scores.size(), [&] {
    for (size_t i = 0; i < kRows; ++i) in_floats(i), narrow(DType::bf16, of(weights, i), of(rounded, i));
  });
}

void other_rows(SimdLevel level) {
  const std::vector<float> x = normals(64 * kInner);
  std::vector<float> gate(x.size());
  std::vector<uint16_t> rounded(x.size());
  const auto of = [](auto& values, size_t i) { return std::span(values).subspan(i * kInner, kInner); };
  row(level, "silu times, with a copy", x.size(), [&] {
    for (size_t i = 0; i < 64; ++i) {
      std::ranges::copy(of(x, i), of(gate, i).begin());
      activate(Activation::silu, of(gate, i), of(x, i));
    }
  });
  row(level, "rounding to bf16", x.size(), [&] { narrow(DType::bf16, x, rounded); });
  const std::vector<float> ones(kHidden, 1);
  row(level, "RMS norm", kHidden * 64, [&] {
    for (size_t i = 0; i < 64; ++i)
      rms_norm(std::span(x).subspan(i * kHidden, kHidden), ones, 1e-5,
               std::span(gate).subspan(i * kHidden, kHidden));
  });
}

void weights(SimdLevel level) {
  constexpr size_t kValues = 65536;
  Rng rng(2);
  for (const TensorType type :
       {TensorType::q4_0, TensorType::q4_1, TensorType::q5_0, TensorType::q5_1, TensorType::q8_0,
        TensorType::q2_k, TensorType::q3_k, TensorType::q4_k, TensorType::q5_k, TensorType::q6_k,
        TensorType::iq4_nl, TensorType::iq4_xs, TensorType::mxfp4}) {
    const BlockLayout block = block_of(type);
    std::vector<std::byte> blocks(kValues / block.values * block.bytes);
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(rng.below(256));
    std::vector<float> values(kValues), expected(kValues);
    limit_simd(SimdLevel::scalar);
    dequantize(type, blocks, expected);
    limit_simd(level);
    row(level, fmt::format("{} to floats", name_of(type)), kValues,
        [&] { dequantize(type, blocks, values); });
    size_t different = 0;
    for (size_t i = 0; i < kValues; ++i)
      different += std::isnan(expected[i]) ? !std::isnan(values[i]) : values[i] != expected[i];
    bench::check(different == 0, "values that differ between levels");
  }
}

template <class T>
void pack_rows(const char* what, DType type) {
  const Matrix<T> w(kInner, kHidden);
  const PackedMatrix::Shape shape{kInner, kHidden};
  PackedMatrix packed = PackedMatrix::of(type, {&shape, 1}).front();
  row(simd_level(), what, kInner * kHidden, [&] {
    for (size_t i = 0; i < kInner; i += packed.row_step())
      packed.set(i, w.view().rows(i, std::min(packed.row_step(), kInner - i)));
  });
}

}  // namespace

int main() {
  bench::print_header("rows");
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512}) {
    if (level > machine_simd()) continue;
    limit_simd(level);
    softmax_rows(level);
    other_rows(level);
    weights(level);
  }
  limit_simd(kWidestSimd);
  if (packs_floats()) pack_rows<float>("packing floats", DType::f32);
  if (why_no_bf16().empty()) pack_rows<uint16_t>("packing bf16", DType::bf16);
}
