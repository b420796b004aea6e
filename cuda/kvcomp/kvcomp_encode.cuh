// Launchers of the kernels of kvcomp_encode.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kvcomp/kvcomp.cuh"
#include "cuda/runtime/status.hpp"
#include "lib/core/host_device.hpp"

namespace kvcodec::cuda {

/// Bounds for the quantization of blocks, as in ErrorBound (lib/quant/error_bounded.hpp).
struct KvcompBound {
  double range, absolute, magnitude;
};

/// Values [rows * tokens][heads * dims] in 16 bits and the results for them; blocks as in KvcompStore. A
/// block's symbols are [tokens][dims], its steps `steps`, its origins dims.
struct KvcompValues {
  const uint16_t* values;
  uint8_t* symbols;
  float* steps;
  int16_t* origins;  ///< of keys
  uint32_t rows, heads, tokens, dims, steps_per_block;
  bool by_channel, channel_steps, has_origins, brain;

  KVCODEC_HD uint64_t blocks() const { return uint64_t{rows} * heads; }
  KVCODEC_HD uint32_t runs() const { return by_channel ? dims : tokens; }
  KVCODEC_HD uint32_t run_length() const { return by_channel ? tokens : dims; }
};

/// Chooses steps and origins and quantizes, as quantize_bounded does.
[[nodiscard]] Status run_kvcomp_quantize(const KvcompValues& values, const KvcompBound& bound,
                                         StreamHandle stream);

/// counts[s] += the number of symbols s; s < 256.
[[nodiscard]] Status run_kvcomp_histogram(const uint8_t* symbols, size_t size, unsigned long long* counts,
                                          StreamHandle stream);

/// Codes of symbols: the code in bits 16-31, its length in bits 0-3; bit 4: the value is stored behind the
/// codes (the code is the escape's).
inline constexpr uint32_t kKvcompExact = 16;

/// Sizes of a block's part of each stream.
struct KvcompSizes {
  uint32_t payload, counts, origins, steps;
  uint32_t base;  ///< bits of the shortest run
  int16_t min_origin;
  uint8_t mode, origin_bits;
};

/// The codes of symbols, and the sizes and places of coded blocks.
struct KvcompCoding {
  const uint32_t* codes = nullptr;       ///< (256)
  uint32_t* run_bits = nullptr;          ///< [block][runs]
  KvcompSizes* sizes = nullptr;          ///< [block]
  KvcompPlace* places = nullptr;         ///< [block]
  unsigned long long* totals = nullptr;  ///< sizes of payload, counts, origins and steps: 4
};
/// Fills all but the codes.
[[nodiscard]] Status run_kvcomp_sizes(const KvcompValues& values, const KvcompCoding& coding,
                                      StreamHandle stream);

/// Streams to write: bytes in whole words, which are all zero before.
struct KvcompOut {
  uint32_t *payload, *counts, *origins;
  uint16_t* steps;
};
[[nodiscard]] Status run_kvcomp_write(const KvcompValues& values, const KvcompCoding& coding,
                                      const KvcompOut& out, StreamHandle stream);

}  // namespace kvcodec::cuda
