// Launchers of the kernels of reconstruct.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"

namespace kvcodec::cuda {

/// Atoms in rows of `stride` floats: a multiple of 4, zeros behind the width.
struct DeviceAtoms {
  const float* rows = nullptr;
  uint32_t count = 0, width = 0, stride = 0;
};

inline constexpr unsigned kLevelChannels = 16;   ///< of a slice of atoms of 8 bits
inline constexpr unsigned kMaxLevelPairs = 512;  ///< of a signal, whose sums of 32 bits are exact

/// Atoms of 8 bits in slices of kLevelChannels channels, one slice behind the other: (slices, count,
/// kLevelChannels), zeros behind the width.
struct DeviceLevels {
  const int8_t* slices = nullptr;
  const float* scales = nullptr;  ///< of the atoms
  uint32_t count = 0, width = 0;
};

/// Pairs of all signals, one behind the other.
struct DeviceCodes {
  const uint32_t* ids = nullptr;
  const float* coefficients = nullptr;
  const uint64_t* offsets = nullptr;  ///< signals + 1 places, or nullptr:
  uint32_t each = 0;                  ///< pairs of every signal
  size_t first = 0;                   ///< signals begin at this one
};

/// Operations on sums, in this order, each rounded: times the signal's gain, times the channel's scale, plus
/// the channel's mean. nullptr: the operation is left out.
struct DeviceFinishing {
  const float* gains = nullptr;
  const float* scale = nullptr;
  const float* mean = nullptr;
};

/// The output of signals: out[i * stride + j].
struct DeviceSignals {
  float* out = nullptr;
  size_t count = 0, stride = 0;
};

/// *bad becomes the lowest place of a pair whose id is no atom or whose coefficient is no finite number;
/// it must be the largest value before.
[[nodiscard]] Status run_reconstruct(const DeviceAtoms& atoms, const DeviceCodes& codes,
                                     const DeviceFinishing& finishing, const DeviceSignals& signals,
                                     unsigned long long* bad, StreamHandle stream);

/// Codes for sums of levels. Signals stand in tiles of 32; each tile has `quads` times 32 times four pairs,
/// so that a warp reads the same four of all its signals at once. Sums of integers are the same in any
/// order: a signal's pairs are ordered by their banks of shared memory.
struct LevelCodes {
  uint32_t* pairs = nullptr;   ///< (tiles, quads, 32, 4) id << 16 | weight, for up to 2^16 atoms, or
  uint32_t* ids = nullptr;     ///< the same with ids apart from
  int32_t* weights = nullptr;  ///< weights
  float* units = nullptr;      ///< per signal
  uint32_t* used = nullptr;    ///< quads of a signal
  uint32_t quads = 0;
};
/// Rounds the weights of `count` signals of up to kMaxLevelPairs pairs. quads: enough for each.
[[nodiscard]] Status run_prepare_levels(const DeviceLevels& atoms, const DeviceCodes& codes, size_t count,
                                        const LevelCodes& prepared, unsigned long long* bad,
                                        StreamHandle stream);
/// Slices that fit the device's shared memory stay there.
[[nodiscard]] Status run_combine_levels(const DeviceLevels& atoms, const LevelCodes& prepared,
                                        const DeviceFinishing& finishing, const DeviceSignals& signals,
                                        const Limits& device, StreamHandle stream);

}  // namespace kvcodec::cuda
