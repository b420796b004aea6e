#include "lib/sparse/omp_kernels.hpp"

#include <cmath>
#include <cstdlib>

#include "lib/core/cpu.hpp"

namespace kvcodec::omp_kernels {
namespace scalar {
namespace {

/// Adds the lanes as a tree: the upper half onto the lower half until one is left.
template <class T, size_t kLanes>
T sum_of(T (&lanes)[kLanes]) {
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

float screened(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
               float scale, size_t atom) {
  uint32_t sum = 0;  // unsigned: wraps around by definition
  for (size_t i = 0; i < pairs; ++i) {
    const auto low = static_cast<int16_t>(weights[i] & 0xffff), high = static_cast<int16_t>(weights[i] >> 16);
    sum += static_cast<uint32_t>(rows[2 * i][atom] * low);
    sum += static_cast<uint32_t>(rows[2 * i + 1][atom] * high);
  }
  return std::abs(start[atom] - scale * static_cast<float>(static_cast<int32_t>(sum)));
}

void screen_tile(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
                 float scale, size_t first, float* out) {
  for (size_t j = 0; j < kTile; ++j) out[j] = screened(start, rows, weights, pairs, scale, first + j);
}

void screen(const float* start, const int16_t* const* rows, const uint32_t* weights, size_t pairs,
            float scale, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kTile; ++tile) {
    float peak = 0;
    for (size_t j = tile * kTile; j < (tile + 1) * kTile; ++j) {
      const float value = screened(start, rows, weights, pairs, scale, j);
      if (value > peak) peak = value;  // false for NaN
    }
    peaks[tile] = peak;
  }
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  for (size_t i = 0; i < count; ++i) {
    float lanes[kFloatLanes] = {};
    for (size_t c = 0; c < m; ++c) lanes[c % kFloatLanes] += rows[i][c] * x[c];
    out[i] = sum_of(lanes);
  }
}

void residual(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
              double* out) {
  for (size_t c = 0; c < m; ++c) {
    double value = y[c];
    for (size_t i = 0; i < count; ++i) value -= x[i] * rows[i][c];
    out[c] = value;
  }
}

void dots_double(const float* const* rows, size_t count, const double* r, size_t m, double* out) {
  for (size_t i = 0; i < count; ++i) {
    double lanes[kDoubleLanes] = {};
    for (size_t c = 0; c < m; ++c) lanes[c % kDoubleLanes] += rows[i][c] * r[c];
    out[i] = sum_of(lanes);
  }
}

void apply_both(const double* u, size_t stride, size_t k, const double* g, double* v, double* w) {
  for (size_t i = 0; i < stride; ++i) v[i] = w[i] = 0;
  for (size_t j = 0; j < k; ++j) {
    const double* column = u + j * stride;
    const size_t length = (j / kDoubleLanes + 1) * kDoubleLanes;
    double lanes[kDoubleLanes] = {};
    for (size_t i = 0; i < length; ++i) lanes[i % kDoubleLanes] += column[i] * g[i];
    v[j] = sum_of(lanes);
    for (size_t i = 0; i < length; ++i) w[i] += column[i] * v[j];
  }
}

void combine(const float* slice, const uint32_t* ids, const float* coefficients, const uint64_t* offsets,
             size_t signals, size_t width, float* out, size_t stride) {
  for (size_t i = 0; i < signals; ++i)
    for (size_t c = 0; c < width; ++c) {
      float sums[4] = {};
      for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
        float& sum = sums[(k - offsets[i]) % 4];
        sum = std::fma(coefficients[k], slice[size_t{ids[k]} * kFloatLanes + c], sum);
      }
      out[i * stride + c] = sum_of(sums);
    }
}

int16_t peak_but(const int16_t* row, size_t n, size_t skip) {
  int peak = 0;
  for (size_t j = 0; j < n; ++j) {
    const int value = std::abs(row[j]);
    if (j != skip && value > peak) peak = value;
  }
  return static_cast<int16_t>(peak);
}

void round_to_words(const float* in, float scale, size_t n, int16_t* out) {
  for (size_t j = 0; j < n; ++j) out[j] = static_cast<int16_t>(std::nearbyint(in[j] * scale));
}

}  // namespace

const Kernels kernels = {screen,     screen_tile, dots,     residual,      dots_double,
                         apply_both, combine,     peak_but, round_to_words};

}  // namespace scalar

const Kernels& best() {
  switch (simd_level()) {
    case SimdLevel::avx512:
      return avx512::kernels;
    case SimdLevel::avx2:
      return avx2::kernels;
    case SimdLevel::scalar:
      break;
  }
  return scalar::kernels;
}

}  // namespace kvcodec::omp_kernels
