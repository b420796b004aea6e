#include "lib/model/row_ops.hpp"

#include <cmath>
#include <numbers>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/model/row_kernels_body.hpp"

namespace kvcodec {
namespace {

const row_kernels::Table& kernels() {
  using namespace row_kernels;
  return pick(scalar::table, avx2::table, avx512::table)();
}

template <class... Sizes>
void check_same(size_t a, Sizes... others) {
  for (const size_t b : {others...})
    if (a != b) throw failed("rows of {} and {} values do not fit together", a, b);
}

/// An activation and its slope at one place.
struct Slope {
  float value, derivative;
};

/// x s(u(x)), s the logistic function; slope: u'(x).
Slope times_logistic(float x, float u, float slope) {
  const float s = 1 / (1 + std::exp(-u));
  return {x * s, s + x * s * (1 - s) * slope};
}

Slope silu_slope(float x) { return times_logistic(x, x, 1); }

Slope gelu_tanh_slope(float x) {
  const float twice = 2 * std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
  return times_logistic(x, twice * (x + 0.044715f * x * x * x), twice * (1 + 3 * 0.044715f * x * x));
}

Slope gelu_slope(float x) {
  const float share = 0.5f * std::erfc(x * -std::numbers::sqrt2_v<float> / 2);
  const float density =
      std::exp(-0.5f * x * x) * std::numbers::inv_sqrtpi_v<float> * std::numbers::sqrt2_v<float> / 2;
  return {x * share, share + x * density};
}

template <Slope (*slope_at)(float x)>
void go_back(std::span<const float> gradient, std::span<float> x, std::span<float> up) {
  for (size_t i = 0; i < x.size(); ++i) {
    const Slope slope = slope_at(x[i]);
    x[i] = gradient[i] * slope.derivative * (up.empty() ? 1 : up[i]);
    if (!up.empty()) up[i] = gradient[i] * slope.value;
  }
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, double epsilon, std::span<float> out) {
  check_same(x.size(), weight.size(), out.size());
  kernels().rms_norm(x.data(), weight.data(), epsilon, out.data(), x.size());
}

void layer_norm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
                double epsilon, std::span<float> out) {
  check_same(x.size(), weight.size(), bias.size(), out.size());
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
  check_same(frequencies.size(), cosines.size(), sines.size());
  kernels().cosines_sines(position, frequencies.data(), cosines.data(), sines.data(), frequencies.size());
}

float softmax_block(std::span<float> scores, SoftmaxState& state) {
  if (scores.size() % 16 != 0)
    throw failed("a softmax block of {} scores is not a multiple of 16", scores.size());
  return kernels().softmax_block(scores.data(), &state.max, &state.sum, scores.size());
}

void rms_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                   std::span<float> gradient) {
  check_same(x.size(), weight.size(), gradient.size());
  const auto count = static_cast<double>(x.size());
  const double factor = 1 / std::sqrt(dot(x, x) / count + epsilon);
  for (size_t i = 0; i < x.size(); ++i) gradient[i] *= weight[i];
  // The change of all outputs with the length of x.
  const double along = dot(x, gradient) / count * factor * factor;
  for (size_t i = 0; i < x.size(); ++i)
    gradient[i] = static_cast<float>(factor * (double{gradient[i]} - along * double{x[i]}));
}

void layer_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                     std::span<float> gradient) {
  check_same(x.size(), weight.size(), gradient.size());
  const auto count = static_cast<double>(x.size());
  const double mean = sum(x) / count;
  double squares = 0, along = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double apart = double{x[i]} - mean;
    gradient[i] *= weight[i];
    squares += apart * apart;
    along += apart * double{gradient[i]};
  }
  const double factor = 1 / std::sqrt(squares / count + epsilon);
  const double mean_gradient = sum(gradient) / count;
  along *= factor * factor / count;
  for (size_t i = 0; i < x.size(); ++i)
    gradient[i] =
        static_cast<float>(factor * (double{gradient[i]} - mean_gradient - along * (double{x[i]} - mean)));
}

void activate_back(Activation activation, std::span<const float> gradient, std::span<float> x,
                   std::span<float> up) {
  check_same(x.size(), gradient.size());
  if (!up.empty()) check_same(x.size(), up.size());
  switch (activation) {
    case Activation::silu:
      return go_back<silu_slope>(gradient, x, up);
    case Activation::gelu_tanh:
      return go_back<gelu_tanh_slope>(gradient, x, up);
    case Activation::gelu:
      return go_back<gelu_slope>(gradient, x, up);
    case Activation::clamped_swiglu:
      throw failed("there is no way back through this activation");
  }
}

}  // namespace kvcodec
