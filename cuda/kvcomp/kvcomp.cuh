// Launchers of the kernels of kvcomp.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/entropy/huffman_step.hpp"

namespace kvcodec::cuda {

/// Offsets of the parts of a block: bytes into payload, counts and origins; values into steps.
struct KvcompPlace {
  uint64_t payload, counts, origins, steps;
  uint32_t payload_bytes;
  uint8_t mode, origin_bits;
};

/// Kernels read up to this number of bytes behind the end of payload, counts and origins. These must be zeros.
inline constexpr size_t kKvcompPadding = 64;

/// Blocks of one side (lib/kvcomp/block.hpp), coded with one Huffman book, or as bytes (KvcompBytes). Block b of head h of block row r
/// is places[r * heads + h]; there are less than 2^31. Values (by_channel) have a step per token; keys one
/// per channel (channel_steps) or one, and origins per channel.
struct KvcompStore {
  WordStream payload, counts, origins;  ///< aligned to 16 bytes
  const uint16_t* steps;                ///< f16
  const KvcompPlace* places;
  const uint32_t* table;  ///< huffman_step.hpp
  uint32_t rows, heads, tokens, dims;
  uint32_t largest_payload;  ///< maximum bytes of a coded block
  bool by_channel, channel_steps, has_origins;
  bool brain;  ///< exact values are bf16, otherwise f16
};

/// For each of the 2^scale slots of a rANS model (lib/entropy/rans.hpp): the symbol whose range it is in; and that symbol's
/// frequency, and shifted by 16 how far into the range it is.
struct KvcompRans {
  const uint8_t* symbols;
  const uint32_t* ranges;
  unsigned scale;
};

/// Segments of rANS become blocks whose codes are bytes, the symbols themselves: kernels then take them like any other. Reads
/// the segment at each place that is not raw, in `payload`, which holds those of `store`. Writes the block to `payload` from
/// targets[i] on, room for its symbols and for as many bytes as the segment has; its counts to `counts`, from i * (2 + 2 runs)
/// on; and its new place. A segment that no encoder writes becomes a block without a payload, which kernels refuse.
/// symbols, words: scratch, one byte for each symbol of all blocks, and one for each block.
struct KvcompBytes {
  KvcompStore store;
  KvcompRans rans;
  const uint64_t* targets;
  uint8_t *payload, *counts, *symbols;
  uint32_t* words;
  KvcompPlace* places;  ///< those of `store`
};
[[nodiscard]] Status run_kvcomp_bytes(const KvcompBytes& work, StreamHandle stream);

/// Tokens [first, end), counted from the first token of the first block row.
struct KvcompRange {
  uint64_t first, end;
};

/// Division of work among launches and blocks of threads. Tests make these numbers small, so that few blocks take every path.
struct KvcompCuts {
  /// Limits in bytes of shared memory of a block of threads; the kernels' own arrays may take 1 KiB more.
  /// shared_together: up to it several teams (the threads of one coded block) make up a block of threads; several of
  /// these must fit a multiprocessor (the largest holds four). shared_staged: up to it a payload is copied to shared
  /// memory at all. shared_max: up to it eight queries at a time are multiplied with keys.
  size_t shared_together = 55 * 1024, shared_staged = 96 * 1024, shared_max = 162 * 1024;
  /// Blocks of threads: as many as a large device holds at once (an H100's 132 multiprocessors four each), so that each
  /// loads the table once and no last, half empty round remains.
  uint32_t max_blocks = 528;
  uint32_t max_key_blocks = 924;  ///< the same where keys are multiplied: seven each, of half as many threads
  /// Maximum number of teams' partial sums of values, from which follows how many block rows each covers (at most 16): twice
  /// the number that a device works on at once (an H100's 132 multiprocessors, five blocks of threads of two teams each), so
  /// that a block that ends early takes another sum. With half as many, values took 44.7 us instead of 43.4 (32,768 tokens)
  /// and 164 instead of 148 (131,072). Partial sums must be added up, so there should not be many.
  uint32_t max_sums = 2640;
};

/// The work of launchers, and their options. They lower `damaged` to the number of the first block that no encoder writes, if
/// there is one. The caller sets it to ~0 before; the results for such a block mean nothing.
struct KvcompWork {
  KvcompStore store;
  KvcompRange range;
  uint32_t* damaged;
  StreamHandle stream;
  KvcompCuts cuts = {};
};

/// out[(t - first) * stride + head * dims + c] = value of token t.
[[nodiscard]] Status run_kvcomp_decode(const KvcompWork& work, float* out, size_t stride);

/// Keys: out[q * stride + t - first] = query q . key of token t of head q / per_head; queries (heads *
/// per_head, dims), their magnitudes at most 2^64.
[[nodiscard]] Status run_kvcomp_keys(const KvcompWork& work, const float* queries, unsigned per_head,
                                     float* out, size_t stride);

/// Number of floats that run_kvcomp_values needs at `partial`.
size_t kvcomp_partial_sums(const KvcompWork& work, unsigned per_head);
/// Values: out[q * dims + c] = sum over tokens t of weights[q * stride + t - first] * channel c of token t of
/// head q / per_head; out (heads * per_head, dims).
[[nodiscard]] Status run_kvcomp_values(const KvcompWork& work, const float* weights, size_t stride,
                                       unsigned per_head, float* partial, float* out);

}  // namespace kvcodec::cuda
