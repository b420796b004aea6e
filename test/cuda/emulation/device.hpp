// cuda/runtime/kernel.cuh for a C++ compiler: CUDA's names over the emulation. Only those that the kernels use.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/runtime/status.hpp"
#include "lib/core/half_bits.hpp"
#include "test/cuda/emulation/emulation.hpp"
#include "test/cuda/emulation/matrix_units.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define KVCODEC_VECTORS(type, name)                                \
  struct alignas(2 * sizeof(type)) name##2 {                       \
    type x, y;                                                     \
  };                                                               \
  struct alignas(16) name##4 {                                     \
    type x, y, z, w;                                               \
  };                                                               \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
KVCODEC_VECTORS(float, float)
KVCODEC_VECTORS(int, int)
KVCODEC_VECTORS(unsigned, uint)
#undef KVCODEC_VECTORS

#define threadIdx (::kvcodec::emulation::place.thread)
#define blockIdx (::kvcodec::emulation::place.block)
#define blockDim (::kvcodec::emulation::place.block_size)
#define gridDim (::kvcodec::emulation::place.grid_size)

inline void __syncthreads() { kvcodec::emulation::sync_block(); }
inline int __syncthreads_count(int yes) { return kvcodec::emulation::count_block(yes != 0); }
inline int __syncthreads_or(int yes) { return kvcodec::emulation::count_block(yes != 0) > 0; }
inline void __threadfence() {}

namespace kvcodec::emulation {

template <class T>
T value_of_lane(const std::byte* slots, unsigned lane) {
  T value;
  std::memcpy(&value, slots + lane * kSlot, sizeof(T));
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, unsigned from) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  const std::byte* slots = meet(Meeting::shuffle, mask, &value, sizeof(T));
  if (!(mask >> from & 1)) throw Fault("a lane reads from one that is not in the mask");
  return value_of_lane<T>(slots, from);
}

}  // namespace kvcodec::emulation

inline void __syncwarp(unsigned mask = ~0u) {
  (void)kvcodec::emulation::meet(kvcodec::emulation::Meeting::sync, mask, nullptr, 0);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned own = kvcodec::emulation::lane(), w = static_cast<unsigned>(width);
  return kvcodec::emulation::shuffle(mask, value, own / w * w + static_cast<unsigned>(from) % w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const unsigned own = kvcodec::emulation::lane(), w = static_cast<unsigned>(width);
  const unsigned from = own ^ static_cast<unsigned>(with);
  return kvcodec::emulation::shuffle(mask, value, from / w == own / w ? from : own);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = kvcodec::emulation::lane(), w = static_cast<unsigned>(width);
  return kvcodec::emulation::shuffle(mask, value, own % w >= by ? own - by : own);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned own = kvcodec::emulation::lane(), w = static_cast<unsigned>(width);
  return kvcodec::emulation::shuffle(mask, value, own % w + by < w ? own + by : own);
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
  namespace emulation = kvcodec::emulation;
  const std::byte* slots = emulation::meet(emulation::Meeting::vote, mask, &yes, sizeof(yes));
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (mask >> i & 1) votes |= unsigned{emulation::value_of_lane<int>(slots, i) != 0} << i;
  return votes;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  namespace emulation = kvcodec::emulation;
  const std::byte* slots = emulation::meet(emulation::Meeting::match, mask, &value, sizeof(value));
  unsigned same = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (mask >> i & 1) same |= unsigned{emulation::value_of_lane<T>(slots, i) == value} << i;
  return same;
}

// Fibers change only where they wait, so that nothing comes between.
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  const T old = *to;
  *to = static_cast<T>(old + value);
  return old;
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  const T old = *to;
  if (value > old) *to = value;
  return old;
}
template <class T>
T atomicMin(T* to, std::type_identity_t<T> value) {
  const T old = *to;
  if (value < old) *to = value;
  return old;
}
template <class T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  const T old = *to;
  *to = old | value;
  return old;
}
template <class T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  const T old = *to;
  *to = value;
  return old;
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *to;
  if (old == expected) *to = value;
  return old;
}

inline int __popc(unsigned value) { return std::popcount(value); }
inline int __popcll(unsigned long long value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline unsigned __brev(unsigned value) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (value >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = which >> (4 * i) & 15;
    auto byte = static_cast<unsigned>(bytes >> (8 * (pick & 7)) & 0xff);
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>(((uint64_t{high} << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (by & 31));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
/// Two 16-bit integers of a times the two lower, or upper, bytes of b.
inline int __dp2a_lo(int a, int b, int c) {
  return c + static_cast<int16_t>(a) * static_cast<int8_t>(b) +
         static_cast<int16_t>(a >> 16) * static_cast<int8_t>(b >> 8);
}
inline int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }
template <class T>
T __ldg(const T* from) {
  return *from;
}

namespace kvcodec::cuda {

namespace detail {
template <class T>
void check_argument(const T& argument) {
  if constexpr (std::is_pointer_v<T>) emulation::check_device_pointer(argument);
}
}  // namespace detail

template <class... Parameters, class... Arguments>
Status launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
              StreamHandle stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
  if (emulation::launches_fail()) return 1;
  (detail::check_argument(static_cast<Parameters>(arguments)), ...);
  emulation::enqueue(reinterpret_cast<emulation::Stream*>(stream), [=] {
    emulation::run_grid({grid.x, grid.y, grid.z}, threads, shared_bytes, shared_bytes > kSharedUnasked,
                        [&] { kernel(static_cast<Parameters>(arguments)...); });
  });
  return 0;
}

template <class T = unsigned char>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::dynamic_shared_memory());
}
#define KVCODEC_SHARED_ARRAY(type, name, count) \
  static char name##_key;                       \
  auto* const name =                            \
      reinterpret_cast<type*>(::kvcodec::emulation::shared_array(&name##_key, sizeof(type) * (count)))

inline void copy_async16(void* shared, const void* global, unsigned bytes = 16) {
  emulation::copy_later(shared, global, bytes);
}
inline void copy_async_commit() { emulation::commit_copies(); }
template <int kGroups>
void copy_async_wait() {
  emulation::wait_copies(kGroups);
}

namespace detail {
inline void load_matrices(uint32_t (&registers)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
    throw emulation::Fault("a matrix row is not aligned to 16 bytes");
  const std::byte* slots = emulation::meet(emulation::Meeting::load_matrices, ~0u, &row, sizeof(row));
  const unsigned lane = emulation::lane(), first = lane / 4, second = lane % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned r, unsigned c) -> uint32_t {
      return emulation::value_of_lane<const uint16_t*>(slots, 8 * i + r)[c];
    };
    registers[i] = transposed ? element(second, first) | element(second + 1, first) << 16
                              : element(first, second) | element(first, second + 1) << 16;
  }
}

template <float (*kWiden)(uint16_t)>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  const Operands own{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const std::byte* slots = emulation::meet(emulation::Meeting::multiply, ~0u, &own, sizeof(own));
  const auto half = [](uint32_t pair, unsigned upper) {
    return kWiden(static_cast<uint16_t>(upper ? pair >> 16 : pair));
  };
  const unsigned lane = emulation::lane();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + (i / 2) * 8, column = lane % 4 * 2 + i % 2;
    for (unsigned block = 0; block < 2; ++block) {
      double products[emulation::kProductsAtOnce];
      for (unsigned pair = 0; pair < 4; ++pair) {
        const auto of_row =
            emulation::value_of_lane<Operands>(slots, row % 8 * 4 + pair).a[row / 8 + block * 2];
        const auto of_column = emulation::value_of_lane<Operands>(slots, column * 4 + pair).b[block];
        for (unsigned upper = 0; upper < 2; ++upper)
          products[2 * pair + upper] = double{half(of_row, upper)} * double{half(of_column, upper)};
      }
      c[i] = emulation::add_products(c[i], products);
    }
  }
}
}  // namespace detail

inline void load_matrices(uint32_t (&registers)[4], const void* row) {
  detail::load_matrices(registers, row, false);
}
inline void load_matrices_transposed(uint32_t (&registers)[4], const void* row) {
  detail::load_matrices(registers, row, true);
}
inline void multiply_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  detail::multiply<f16_to_float>(c, a, b0, b1);
}
inline void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  detail::multiply<bf16_to_float>(c, a, b0, b1);
}

inline uint32_t pack_bf16(float low, float high) {
  return bf16_from_float(low) | uint32_t{bf16_from_float(high)} << 16;
}

}  // namespace kvcodec::cuda
