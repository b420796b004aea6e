// The language of kernels: CUDA's own names for threads, barriers, shuffles and atomics, and a few functions
// for which CUDA has no portable name. A CUDA compiler turns them into instructions; for a C++ compiler
// KVCODEC_KERNEL_LAYER names a header that emulates them (test/cuda/emulation), so that every kernel runs,
// and is tested, without a device. An emulated kernel has not run on a device.
//
// Rules for kernels (cuda/README.md has the reasons):
//   - They stand in .cu files as `template <...> __global__ void name(...)` and get raw pointers, sizes and
//     small structs. The launchers of that file start them through launch(), and nothing else does.
//   - Shared memory comes from dynamic_shared() (its size from the launch) or KVCODEC_SHARED_ARRAY.
//   - Whole warps take part in operations of warps, with the full mask; blocks are whole warps.
//   - Only fmaf fuses multiplication and addition: the floats must be those of lib/.
//   - Kernels throw no errors: wrappers check all sizes and ids before, or a kernel writes a flag.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/core/half_bits.hpp"
#include "lib/core/host_device.hpp"

namespace kvcodec::cuda {

/// Dynamic shared memory up to which launch() does not request a limit. 48 KiB need no request, together
/// with the arrays of the kernel, which have the other 16 KiB.
inline constexpr size_t kSharedUnasked = 32 * 1024;

}  // namespace kvcodec::cuda

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace kvcodec::cuda {

/// Starts `kernel` for a grid of blocks of `threads` threads with `shared_bytes` of dynamic shared memory.
template <class... Parameters, class... Arguments>
Status launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
              StreamHandle stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;  // nothing to do; CUDA refuses it
  if (shared_bytes > kSharedUnasked) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(shared_bytes));
    if (status != cudaSuccess) return status;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  return status != cudaSuccess ? status : cudaPeekAtLastError();
}

/// The block's dynamic shared memory, aligned to 16 bytes; its content is undefined at first.
template <class T = unsigned char>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char kvcodec_dynamic_shared[];
  return reinterpret_cast<T*>(kvcodec_dynamic_shared);
}

/// An array of `count` elements that the block's threads share, not initialised.
#define KVCODEC_SHARED_ARRAY(type, name, count) __shared__ type name[count]

/// Copies 16 bytes from global to shared memory while the thread continues. Copies form groups, closed by
/// copy_async_commit(); after copy_async_wait<n>() all but the last n groups of this thread have arrived, and
/// after a barrier those of the others.
__device__ __forceinline__ void copy_async16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
/// The same for the first `bytes` (0 to 16) of them; the rest becomes zeros. Nothing is read for 0.
__device__ __forceinline__ void copy_async16(void* shared, const void* global, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kGroups>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

/// Loads 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + r gives the address of row r (16
/// bytes, aligned) of matrix i, and gets from it row lane / 4, columns 2 (lane % 4) and the next, in
/// registers[i].
__device__ __forceinline__ void load_matrices(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
/// The same with each matrix transposed: rows 2 (lane % 4) and the next of column lane / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// A warp's c += a b on the matrix units: a (16, 16), b (16, 8), c (16, 8). The products are exact; sums are
/// f32, in the hardware's order, and truncated: of 8 products (sm_80; 16 on sm_90) and c, all are cut off
/// below 2^-24 (2^-25) of the largest, then the sum is after 24 bits. In a long sum c the error grows with
/// the number of calls, and always toward zero. With group = lane / 4 and pair = lane % 4 a lane holds
///   a: {row group, columns 2 pair, +1}, {row group + 8, the same}, {row group, columns 2 pair + 8, +9},
///      {row group + 8, the same}; in each register the lower column in the lower half;
///   b: {rows 2 pair, +1, column group}, {rows 2 pair + 8, +9, column group};
///   c: row group, columns 2 pair, +1; row group + 8, the same.
/// load_matrices gives a from rows of a, matrices in the order top left, bottom left, top right, bottom
/// right, and b for two neighbouring blocks of 8 columns from rows of b transposed: columns 0-7 k 0-7,
/// columns 0-7 k 8-15, columns 8-15 k 0-7, columns 8-15 k 8-15.
__device__ __forceinline__ void multiply_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two floats rounded to bf16 as bf16_from_float does, but for the payload of NaNs: `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

}  // namespace kvcodec::cuda

#else
#include KVCODEC_KERNEL_LAYER
#endif

namespace kvcodec::cuda {

inline constexpr unsigned kWarp = 32;       ///< threads of a warp
inline constexpr unsigned kAllLanes = ~0u;  ///< the mask of a whole warp

/// Number of blocks of `by` items for n items.
constexpr unsigned divide_up(uint64_t n, uint64_t by) { return static_cast<unsigned>((n + by - 1) / by); }

/// Calls body.operator()<kSize>() for the one of these sizes that equals `size`, or for the last one.
template <unsigned kFirst, unsigned... kMore, class Body>
Status for_size(unsigned size, const Body& body) {
  if constexpr (sizeof...(kMore) == 0)
    return body.template operator()<kFirst>();
  else
    return size == kFirst ? body.template operator()<kFirst>() : for_size<kMore...>(size, body);
}

/// Elements that lie side by side, from an address on that is a multiple of 16 bytes, or of their size, by as few loads as
/// possible.
template <unsigned kCount>
__device__ __forceinline__ void load_vector(float (&to)[kCount], const float* from) {
  if constexpr (kCount % 4 == 0) {
    for (unsigned i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else if constexpr (kCount == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x, to[1] = two.y;
  } else {
    for (unsigned i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

/// The other way round.
template <unsigned kCount>
__device__ __forceinline__ void store_vector(float* to, const float (&from)[kCount]) {
  if constexpr (kCount % 4 == 0) {
    for (unsigned i = 0; i < kCount; i += 4)
      *reinterpret_cast<float4*>(to + i) = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
  } else {
    for (unsigned i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

/// The sum, and the largest, of the values of kLanes neighbouring lanes, for each of these lanes; sums in an order that is
/// always the same.
template <unsigned kLanes = kWarp, class T>
__device__ __forceinline__ T sum_of_lanes(T value) {
#pragma unroll
  for (unsigned step = kLanes / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(step));
  return value;
}
template <unsigned kLanes = kWarp>
__device__ __forceinline__ float largest_of_lanes(float value) {
#pragma unroll
  for (unsigned step = kLanes / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, static_cast<int>(step)));
  return value;
}

/// Combines `value`, the same in all lanes of a warp, over a block of kWarps warps (0: any number), in the order of warps.
/// scratch: shared, one for each warp. Begins with a barrier; all threads call it.
template <unsigned kWarps, class T, class Combine>
__device__ __forceinline__ T over_warps(T value, T* scratch, const Combine& combine) {
  __syncthreads();
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  const unsigned warps = kWarps > 0 ? kWarps : blockDim.x / kWarp;
  T all = scratch[0];
#pragma unroll
  for (unsigned i = 1; i < warps; ++i) all = combine(all, scratch[i]);
  return all;
}

/// Sum of `own` over the threads of the block before this one; total: over all of them. sums: shared, one for each
/// warp of the block, at most 32. Reads and writes of shared memory around it need barriers of their own.
template <class Sum>
__device__ __forceinline__ Sum prefix_sum(Sum own, Sum* sums, Sum& total) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Sum sum = own;
#pragma unroll
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const Sum below = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += below;
  }
  __syncthreads();  // the sums of the call before are read
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  Sum before = 0;
  total = 0;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before + sum - own;
}

/// A power of two that brings floats into the range of f16, and its inverse.
struct PeakScale {
  float up, down;
};

/// The scale that brings `peak`, the largest magnitude, to at least 2^top and below twice that, or as near
/// to it as powers of two with an inverse can.
__device__ __forceinline__ PeakScale peak_scale(float peak, int top) {
  int exponent = static_cast<int>(bits_of(peak) >> 23) - 127;
  if (exponent < -100) exponent = -100;
  const auto power_of_two = [](int by) { return float_of(static_cast<uint32_t>(by + 127) << 23); };
  return {power_of_two(top - exponent), power_of_two(exponent - top)};
}

}  // namespace kvcodec::cuda
