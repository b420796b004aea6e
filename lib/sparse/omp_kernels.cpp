#include "lib/sparse/omp_kernels.hpp"

#include <algorithm>
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

float screened(const float* start, const WordRows& rows, size_t atom) {
  uint32_t sum = 0;  // unsigned: wraps around by definition
  for (size_t i = 0; i < rows.pairs; ++i) {
    const auto low = static_cast<int16_t>(rows.weights[i] & 0xffff),
               high = static_cast<int16_t>(rows.weights[i] >> 16);
    sum += static_cast<uint32_t>(rows.rows[2 * i][atom] * low);
    sum += static_cast<uint32_t>(rows.rows[2 * i + 1][atom] * high);
  }
  return start[atom] - rows.scale * static_cast<float>(static_cast<int32_t>(sum));
}

void screen_tile(const float* start, const WordRows& rows, size_t first, float* out) {
  for (size_t j = 0; j < kTile; ++j) out[j] = std::abs(screened(start, rows, first + j));
}

/// The largest value of a tile, NaNs left out.
float peak_of(const float (&tile)[kTile]) {
  float peak = 0;
  for (const float value : tile)
    if (value > peak) peak = value;
  return peak;
}

void screen(const float* start, const WordRows& rows, size_t n, float* peaks) {
  float values[kTile];
  for (size_t tile = 0; tile < n / kTile; ++tile) {
    screen_tile(start, rows, tile * kTile, values);
    peaks[tile] = peak_of(values);
  }
}

void rebase(float* start, const WordRows& rows, size_t n, float* peaks) {
  screen(start, rows, n, peaks);
  for (size_t j = 0; j < n; ++j) start[j] = screened(start, rows, j);
}

/// Where a row of bytes has atom `atom`.
size_t byte_of(size_t atom) { return atom / 64 * 64 + atom / 4 % 4 * 16 + atom / 16 % 4 * 4 + atom % 4; }

size_t panel_of(const ByteRows& rows, size_t atom, size_t quad) {
  return ((atom / kTile * rows.panel_quads + quad) * kTile + atom % kTile) * 4;
}

void screen_bytes_tile(const float* start, const ByteRows& rows, size_t first, float* out) {
  for (size_t atom = first; atom < first + kTile; ++atom) {
    int32_t high = rows.high_sum, low = rows.low_sum;
    for (size_t quad = 0; quad <= rows.full; ++quad)
      for (size_t i = 0; i < 4; ++i) {
        const int entry =
            quad < rows.full ? rows.panels[panel_of(rows, atom, quad) + i] : rows.last[i][byte_of(atom)];
        high += entry * static_cast<int8_t>(rows.high[quad] >> (8 * i));
        low += entry * static_cast<int8_t>(rows.low[quad] >> (8 * i));
      }
    out[atom - first] = std::abs(start[atom] - rows.scale * static_cast<float>(high * kDigit + low));
  }
}

void screen_bytes(const float* start, const ByteRows& rows, size_t n, float* peaks) {
  float values[kTile];
  for (size_t tile = 0; tile < n / kTile; ++tile) {
    screen_bytes_tile(start, rows, tile * kTile, values);
    peaks[tile] = peak_of(values);
  }
  if (!rows.keep) return;
  for (size_t atom = 0; atom < n; ++atom)
    for (size_t i = 0; i < 4; ++i)
      rows.panels[panel_of(rows, atom, rows.full) + i] = rows.last[i][byte_of(atom)];
}

void correlate(const int16_t* atoms, size_t n, size_t pairs, const uint32_t* signals, size_t count,
               const float* scales, float* out, size_t out_stride) {
  for (size_t i = 0; i < count; ++i)
    for (size_t first = 0; first < n; first += kTile) {
      uint32_t sums[kTile] = {};  // unsigned: wraps around by definition
      for (size_t pair = 0; pair < pairs; ++pair) {
        const int16_t* column = atoms + (first * pairs + pair * kTile) * 2;
        const uint32_t word = signals[i * pairs + pair];
        const auto low = static_cast<int16_t>(word & 0xffff), high = static_cast<int16_t>(word >> 16);
        for (size_t j = 0; j < kTile; ++j) {
          sums[j] += static_cast<uint32_t>(column[2 * j] * low);
          sums[j] += static_cast<uint32_t>(column[2 * j + 1] * high);
        }
      }
      for (size_t j = 0; j < kTile; ++j)
        out[i * out_stride + first + j] = scales[i] * static_cast<float>(static_cast<int32_t>(sums[j]));
    }
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  for (size_t i = 0; i < count; ++i) {
    float lanes[kFloatLanes] = {};
    for (size_t c = 0; c < m; ++c) lanes[c % kFloatLanes] += rows[i][c] * x[c];
    out[i] = sum_of(lanes);
  }
}

void residual(const float* y, const float* const* rows, const float* x, size_t count, size_t m, float* out) {
  for (size_t c = 0; c < m; ++c) {
    float value = y[c];
    for (size_t i = 0; i < count; ++i) value -= x[i] * rows[i][c];
    out[c] = value;
  }
}

void residual_double(const float* y, const float* const* rows, const double* x, size_t count, size_t m,
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

void combine(const float* slice, size_t row, const uint32_t* ids, const float* coefficients,
             const uint64_t* offsets, size_t signals, size_t width, float* out, size_t stride) {
  for (size_t i = 0; i < signals; ++i)
    for (size_t c = 0; c < width; ++c) {
      float sum = 0;
      for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k)
        sum = std::fma(coefficients[k], slice[size_t{ids[k]} * row + c], sum);
      out[i * stride + c] = sum;
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

void words_to_bytes(const int16_t* words, int16_t factor, size_t n, uint8_t* out) {
  for (size_t j = 0; j < n; ++j) {
    const int value = (words[j] * factor + (1 << 14)) >> 15;
    out[byte_of(j)] = static_cast<uint8_t>(std::clamp(value, -128, 127) + kByteOffset);
  }
}

void at_least(const float* values, float limit, uint64_t* out) {
  out[0] = out[1] = 0;
  for (size_t j = 0; j < kTile; ++j) out[j / 64] |= uint64_t{values[j] >= limit} << (j % 64);
}

}  // namespace

const Kernels kernels = {.screen = screen,
                         .screen_tile = screen_tile,
                         .rebase = rebase,
                         .screen_bytes = screen_bytes,
                         .screen_bytes_tile = screen_bytes_tile,
                         .at_least = at_least,
                         .correlate = correlate,
                         .dots = dots,
                         .residual = residual,
                         .residual_double = residual_double,
                         .dots_double = dots_double,
                         .apply_both = apply_both,
                         .combine = combine,
                         .peak_but = peak_but,
                         .round_to_words = round_to_words,
                         .words_to_bytes = words_to_bytes};

}  // namespace scalar

const Kernels& best() {
  switch (simd_level()) {
    case SimdLevel::avx512: {
      static const bool vnni = __builtin_cpu_supports("avx512vnni");
      return vnni ? avx512::kernels_vnni : avx512::kernels;
    }
    case SimdLevel::avx2:
      return avx2::kernels;
    case SimdLevel::scalar:
      break;
  }
  return scalar::kernels;
}

}  // namespace kvcodec::omp_kernels
