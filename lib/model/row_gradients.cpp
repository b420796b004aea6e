#include "lib/model/row_gradients.hpp"

#include <cmath>
#include <numbers>

#include "lib/core/error.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

void check_same_size(size_t a, size_t b) {
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

void rms_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                   std::span<float> gradient) {
  check_same_size(x.size(), weight.size());
  check_same_size(x.size(), gradient.size());
  const auto count = static_cast<double>(x.size());
  const double factor = 1 / std::sqrt(dot(x, x) / count + epsilon);
  for (size_t i = 0; i < x.size(); ++i) gradient[i] *= weight[i];
  // What a longer x would do to all of them.
  const double along = dot(x, gradient) / count * factor * factor;
  for (size_t i = 0; i < x.size(); ++i)
    gradient[i] = static_cast<float>(factor * (double{gradient[i]} - along * double{x[i]}));
}

void layer_norm_back(std::span<const float> x, std::span<const float> weight, double epsilon,
                     std::span<float> gradient) {
  check_same_size(x.size(), weight.size());
  check_same_size(x.size(), gradient.size());
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

bool has_derivative(Activation activation) { return activation != Activation::clamped_swiglu; }

void activate_back(Activation activation, std::span<const float> gradient, std::span<float> x,
                   std::span<float> up) {
  check_same_size(x.size(), gradient.size());
  if (!up.empty()) check_same_size(x.size(), up.size());
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
