// The scalar reference of attention_kernels.hpp.
#include <cmath>
#include <cstring>

#include "lib/attention/attention_kernels.hpp"
#include "lib/core/half.hpp"

#define KVCODEC_INLINE inline

namespace kvcodec::attention_kernels {
namespace {

struct Floats {
  float lanes[kLanes];
};

inline Floats zero() { return {}; }
inline Floats load(const float* from) {
  Floats value;
  std::memcpy(value.lanes, from, sizeof(value.lanes));
  return value;
}
inline void store(const Floats& value, float* to) { std::memcpy(to, value.lanes, sizeof(value.lanes)); }
inline Floats spread(float value) {
  Floats all;
  for (float& lane : all.lanes) lane = value;
  return all;
}
inline Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  Floats sum;
  for (size_t i = 0; i < kLanes; ++i) sum.lanes[i] = std::fma(a.lanes[i], b.lanes[i], c.lanes[i]);
  return sum;
}

inline void fold(const Floats* vectors, float* out) {
  for (size_t v = 0; v < kLanes; ++v) {
    Floats sum = vectors[v];
    for (size_t width = kLanes / 2; width > 0; width /= 2)
      for (size_t i = 0; i < width; ++i) sum.lanes[i] += sum.lanes[i + width];
    out[v] = sum.lanes[0];
  }
}

inline float as_float(RowType, float value) { return value; }
inline float as_float(RowType type, uint16_t bits) {
  return type == kF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

template <RowType kType, class T>
struct AnyRow {
  template <size_t kVectors>
  struct Slice {
    const T* elements;
    Slice(const void* row, size_t from) : elements(static_cast<const T*>(row) + from) {}
    Floats some(size_t v, size_t n) const {
      Floats value = {};
      for (size_t i = 0; i < n; ++i) value.lanes[i] = as_float(kType, elements[v * kLanes + i]);
      return value;
    }
    Floats all(size_t v) const { return some(v, kLanes); }
  };
  template <size_t kVectors>
  static void ask(const void*, size_t) {}
};

template <bool kSigned>
struct LevelRow {
  template <size_t kVectors>
  struct Slice {
    const CodedRow& coded;
    size_t from;
    Slice(const void* row, size_t first) : coded(*static_cast<const CodedRow*>(row)), from(first) {}
    Floats some(size_t v, size_t n) const {
      Floats value = {};
      for (size_t i = 0; i < n; ++i) value.lanes[i] = element(from + v * kLanes + i);
      return value;
    }
    Floats all(size_t v) const { return some(v, kLanes); }

    float element(size_t j) const {
      const auto level = static_cast<float>((coded.levels[j / 4] >> (6 - 2 * (j % 4))) & 3);
      const float magnitude = f16_to_float(coded.zeros[j / 32]) + level * f16_to_float(coded.scales[j / 32]);
      const bool negative = kSigned && !((coded.signs[j / 8] >> (7 - j % 8)) & 1);
      return negative ? -magnitude : magnitude;
    }
  };
  template <size_t kVectors>
  static void ask(const void*, size_t) {}
};

template <RowType>
struct Row;
template <>
struct Row<kF32> : AnyRow<kF32, float> {};
template <>
struct Row<kF16> : AnyRow<kF16, uint16_t> {};
template <>
struct Row<kBf16> : AnyRow<kBf16, uint16_t> {};
template <>
struct Row<kTwoBit> : LevelRow<false> {};
template <>
struct Row<kSignedTwoBit> : LevelRow<true> {};

}  // namespace
}  // namespace kvcodec::attention_kernels

#include "lib/attention/attention_kernels_body.hpp"

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::scalar::table() { return kTable; }
