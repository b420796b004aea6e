#include "lib/sparse/omp_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "lib/core/cpu.hpp"

namespace kvcodec::omp_kernels {
namespace scalar {
namespace {

/// The larger one, or `peak` if value is NaN.
float larger(float value, float peak) { return value > peak ? value : peak; }

void peaks_of_tiles(const float* values, size_t n, float* peaks) {
  for (size_t tile = 0; tile < n / kScreen; ++tile) {
    peaks[tile] = 0;
    for (size_t j = 0; j < kScreen; ++j)
      peaks[tile] = larger(std::abs(values[tile * kScreen + j]), peaks[tile]);
  }
}

float screen(const float* start, const int16_t* panel, const uint32_t* weights, size_t pairs, float scale,
             float* values) {
  float peak = 0;
  for (size_t j = 0; j < kScreen; ++j) {
    uint32_t sum = 0;  // unsigned: wraps around by definition
    for (size_t i = 0; i < pairs; ++i) {
      const auto low = static_cast<int16_t>(weights[i] & 0xffff),
                 high = static_cast<int16_t>(weights[i] >> 16);
      sum += static_cast<uint32_t>(panel[2 * i * kScreen + j] * low);
      sum += static_cast<uint32_t>(panel[(2 * i + 1) * kScreen + j] * high);
    }
    values[j] = start[j] - scale * static_cast<float>(static_cast<int32_t>(sum));
    peak = larger(std::abs(values[j]), peak);
  }
  return peak;
}

void apply_row(const GramRow& row, float* values, float* spread, float* peaks, float* spreads) {
  for (size_t tile = 0; tile < row.n / kScreen; ++tile) {
    peaks[tile] = spreads[tile] = 0;
    for (size_t j = tile * kScreen; j < (tile + 1) * kScreen; ++j) {
      const auto word = static_cast<float>(row.words[j]);
      const float part = row.factor * word, product = row.unit * word;
      values[j] -= part;
      spread[j] += product * product;
      peaks[tile] = larger(std::abs(values[j]), peaks[tile]);
      spreads[tile] = larger(spread[j], spreads[tile]);
    }
    spreads[tile] = std::sqrt(spreads[tile]);
  }
}

/// The place of an atom in a row of bytes.
size_t byte_of(size_t atom) { return atom / 64 * 64 + atom / 4 % 4 * 16 + atom / 16 % 4 * 4 + atom % 4; }

size_t quad_of(const ByteRows& rows, size_t atom, size_t quad) {
  return ((atom / kTile * rows.capacity + quad) * kTile + atom % kTile) * 4;
}

void screen_bytes(const float* start, const ByteRows& rows, size_t first, size_t last, float* values,
                  float* peaks) {
  for (size_t tile = first / kTile; tile < last / kTile; ++tile) peaks[tile] = 0;
  for (size_t atom = first; atom < last; ++atom) {
    int32_t high = rows.high_sum, low = rows.low_sum;
    for (size_t quad = 0; quad <= rows.full; ++quad)
      for (size_t i = 0; i < 4; ++i) {
        const int entry =
            quad < rows.full ? rows.quads[quad_of(rows, atom, quad) + i] : rows.last[i][byte_of(atom)];
        high += entry * static_cast<int8_t>(rows.high[quad] >> (8 * i));
        low += entry * static_cast<int8_t>(rows.low[quad] >> (8 * i));
      }
    const float value = start[atom] - rows.scale * static_cast<float>(high * kDigit + low);
    peaks[atom / kTile] = larger(std::abs(value), peaks[atom / kTile]);
    if (values) values[atom] = value;
  }
  if (!rows.keep) return;
  for (size_t atom = first; atom < last; ++atom)
    for (size_t i = 0; i < 4; ++i)
      rows.quads[quad_of(rows, atom, rows.full) + i] = rows.last[i][byte_of(atom)];
}

void dots(const float* const* rows, size_t count, const float* x, size_t m, float* out) {
  for (size_t i = 0; i < count; ++i) {
    float lanes[kFloatLanes] = {};
    for (size_t c = 0; c < m; ++c) lanes[c % kFloatLanes] += rows[i][c] * x[c];
    for (size_t half = kFloatLanes / 2; half > 0; half /= 2)
      for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    out[i] = lanes[0];
  }
}

void residual(const float* y, const float* const* rows, const float* x, size_t count, size_t m, float* out) {
  for (size_t c = 0; c < m; ++c) {
    out[c] = y[c];
    for (size_t i = 0; i < count; ++i) out[c] -= x[i] * rows[i][c];
  }
}

void combine(const Slice& slice, const Codes& codes, float* out, size_t stride) {
  for (size_t i = 0; i < codes.signals; ++i)
    for (size_t c = 0; c < slice.width; ++c) {
      float sum = 0;
      for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k)
        sum = std::fma(codes.coefficients[k], slice.values[size_t{codes.ids[k]} * slice.row + c], sum);
      out[i * stride + c] = sum;
    }
}

void words_to_bytes(const int16_t* words, int16_t factor, size_t n, uint8_t* out) {
  for (size_t j = 0; j < n; ++j) {
    const int value = (words[j] * factor + (1 << 14)) >> 15;
    out[byte_of(j)] = static_cast<uint8_t>(std::clamp(value, -128, 127) + kByteOffset);
  }
}

uint32_t at_least(const float* values, float limit) {
  uint32_t found = 0;
  for (size_t j = 0; j < kScreen; ++j) found |= uint32_t{std::abs(values[j]) >= limit} << j;
  return found;
}

}  // namespace

const Kernels& table() {
  static constexpr Kernels kTable = {peaks_of_tiles, at_least, screen,  apply_row,     screen_bytes,
                                     dots,           residual, combine, words_to_bytes};
  return kTable;
}

}  // namespace scalar

const Kernels& best() { return pick(scalar::table, avx2::table, avx512::table, avx512_vnni::table)(); }

}  // namespace kvcodec::omp_kernels
