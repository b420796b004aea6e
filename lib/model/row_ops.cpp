#include "lib/model/row_ops.hpp"

#include <cmath>
#include <numbers>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/model/row_kernels_body.hpp"

namespace kvcodec {
namespace row_kernels::scalar {

const Table& table() { return kTable; }

}  // namespace row_kernels::scalar

namespace {

const row_kernels::Table& kernels() {
  using namespace row_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
}

void check_same(size_t a, size_t b) {
  if (a != b) throw failed("rows of {} and {} values do not fit together", a, b);
}

void check_block(size_t scores) {
  if (scores % 16 != 0) throw failed("a softmax block of {} scores is not a multiple of 16", scores);
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, double epsilon, std::span<float> out) {
  check_same(x.size(), weight.size());
  check_same(x.size(), out.size());
  kernels().rms_norm(x.data(), weight.data(), epsilon, out.data(), x.size());
}

void layer_norm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
                double epsilon, std::span<float> out) {
  check_same(x.size(), weight.size());
  check_same(x.size(), bias.size());
  check_same(x.size(), out.size());
  kernels().layer_norm(x.data(), weight.data(), bias.data(), epsilon, out.data(), x.size());
}

void activate(Activation activation, std::span<float> x, std::span<const float> up) {
  if (!up.empty()) check_same(x.size(), up.size());
  const float* const factors = up.empty() ? nullptr : up.data();
  switch (activation) {
    case Activation::silu:
      return kernels().silu_times(x.data(), factors, x.size());
    case Activation::gelu_tanh:
      return kernels().gelu_tanh_times(x.data(), factors, x.size());
    case Activation::clamped_swiglu:
      check_same(x.size(), up.size());
      return kernels().clamped_swiglu(x.data(), up.data(), x.size());
    case Activation::gelu:
      // erfc keeps the digits of small results. The library's function is no vector: the MLPs that use it spend
      // some percent of their time here.
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = 0.5f * x[i] * std::erfc(x[i] * -std::numbers::sqrt2_v<float> / 2) * (factors ? factors[i] : 1);
  }
}

void soft_cap(std::span<float> x, float cap) { kernels().soft_cap(x.data(), cap, x.size()); }

void silu_times(std::span<float> gate, std::span<const float> up) {
  check_same(gate.size(), up.size());
  kernels().silu_times(gate.data(), up.data(), gate.size());
}

void exp_nonpositive(std::span<float> x) { kernels().exp_nonpositive(x.data(), x.size()); }

void add_to(std::span<float> x, std::span<const float> addend) {
  check_same(x.size(), addend.size());
  kernels().add_to(x.data(), addend.data(), x.size());
}

void scale(std::span<float> x, float factor) { scale(x, factor, x); }

void scale(std::span<const float> x, float factor, std::span<float> out) {
  check_same(x.size(), out.size());
  kernels().scale(x.data(), factor, out.data(), x.size());
}

double sum(std::span<const float> x) { return kernels().sum(x.data(), x.size()); }

double dot(std::span<const float> x, std::span<const float> y) {
  check_same(x.size(), y.size());
  return kernels().dot(x.data(), y.data(), x.size());
}

void turn_pairs(std::span<float> head, std::span<const float> cosines, std::span<const float> sines) {
  check_same(head.size(), cosines.size() * 2);
  check_same(cosines.size(), sines.size());
  kernels().turn_pairs(head.data(), cosines.data(), sines.data(), cosines.size());
}

void cosines_sines(float position, std::span<const float> frequencies, std::span<float> cosines,
                   std::span<float> sines) {
  check_same(frequencies.size(), cosines.size());
  check_same(frequencies.size(), sines.size());
  kernels().cosines_sines(position, frequencies.data(), cosines.data(), sines.data(), frequencies.size());
}

float softmax_block(std::span<float> scores, SoftmaxState& state) {
  check_block(scores.size());
  return kernels().softmax_block(scores.data(), &state.max, &state.sum, scores.size());
}

float softmax_block(std::span<const float> scores, std::span<uint16_t> weights, SoftmaxState& state) {
  check_block(scores.size());
  check_same(scores.size(), weights.size());
  return kernels().softmax_block_bf16(scores.data(), weights.data(), &state.max, &state.sum, scores.size());
}

}  // namespace kvcodec
