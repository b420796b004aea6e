// Launchers of the kernels of reconstruct_kernels.cuh. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/status.hpp"

namespace kvcodec::cuda {

enum class AtomType : uint8_t { f32, f16, bf16 };

/// Atoms in rows of `stride` elements: a multiple of 8, zeros behind the width.
struct DeviceAtoms {
  const void* rows = nullptr;
  uint32_t count = 0, width = 0, stride = 0;
};

/// Pairs of all signals, one behind the other.
struct DeviceCodes {
  const uint32_t* ids = nullptr;                ///< plain ids, or
  const uint32_t* packed = nullptr;             ///< a packed stream in whole words, one more than it needs
  unsigned bits = 0;                            ///< of a packed id; 0: all ids are 0
  const float* coefficients = nullptr;          ///< these or
  const uint16_t* half_coefficients = nullptr;  ///< f16
  const uint64_t* offsets = nullptr;            ///< signals + 1 places, or nullptr:
  uint32_t each = 0;                            ///< pairs of every signal
};

/// out[i * out_stride + j] of `signals` signals. *bad becomes the least place of a pair whose id is no atom;
/// it must be the largest value before.
[[nodiscard]] Status run_reconstruct(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes,
                                     size_t signals, float* out, size_t out_stride, unsigned long long* bad,
                                     StreamHandle stream);
/// The same, rounded to bf16: what a cache in device memory holds.
[[nodiscard]] Status run_reconstruct(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes,
                                     size_t signals, uint16_t* out, size_t out_stride,
                                     unsigned long long* bad, StreamHandle stream);

}  // namespace kvcodec::cuda
