// Launchers of the kernels of rvq.cu. All pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/status.hpp"
#include "lib/entropy/huffman_step.hpp"

namespace kvcodec::cuda {

/// Bounds for the rough scores of a stage, in which halves / scale stand for entry e.
struct RvqScreen {
  float scale;     ///< a power of two
  float norm;      ///< maximum |e|
  float rounding;  ///< maximum |e - halves / scale|
  float bias;      ///< maximum |bias|
};

/// Entries of a tile of rough scores.
inline constexpr unsigned kRvqTile = 64;
/// Maximum number of dimensions: a warp keeps its rows in registers.
inline constexpr unsigned kRvqMaxDims = 256;

/// Codebooks, in the layout of kvcodec::Codebooks, and additional data for encoding.
struct RvqBooks {
  const float* entries;      ///< [stages][count][padded]
  const float* bias;         ///< [stages][tiles * kRvqTile], -infinity behind the entries
  const uint16_t* halves;    ///< [stages][tiles * kRvqTile][rvq_depth(padded)], f16, zeros behind
  const RvqScreen* screens;  ///< [stages]
  uint32_t stages, count, padded, tiles;
};

/// Dimensions of rough scores: a power of two times 16; padded is at most kRvqMaxDims.
constexpr unsigned rvq_depth(unsigned padded) {
  unsigned depth = 16;
  while (depth < padded) depth *= 2;
  return depth;
}

/// Packed ids, and the output of sums of their entries: element j of row i of out, which has `width` rounded up to a multiple
/// of 4, is the sum over stages s of element j of entry id(i, s), in that order. Ids are `bits` wide, id (i, s) the (i *
/// stages + s)-th of the stream, each below count.
struct RvqSums {
  WordStream ids;
  uint32_t bits, width;
  uint64_t rows;
  float* out;
};
[[nodiscard]] Status run_rvq_decode(const RvqBooks& books, const RvqSums& sums, StreamHandle stream);

/// ids[i * stages + s] by the greedy search of ResidualEncoder. residuals (rows, padded): the rows, zeros
/// behind their width; they are overwritten.
[[nodiscard]] Status run_rvq_encode(const RvqBooks& books, float* residuals, size_t rows, uint32_t* ids,
                                    StreamHandle stream);

/// Maximum number of hypotheses that a search keeps: ResidualEncoder::kMaxHypotheses.
inline constexpr unsigned kRvqMaxHypotheses = 64;

/// A beam search, of 2 to kRvqMaxHypotheses hypotheses.
struct RvqBeam {
  const float* rows = nullptr;  ///< (count, padded), zeros behind their width
  uint64_t count = 0;
  uint32_t beam = 0;
  float* residuals[2] = {nullptr, nullptr};  ///< (count, beam, padded) each, scratch
  uint32_t* paths[2] = {nullptr, nullptr};   ///< (count, beam, stages) each, scratch
  uint32_t* ids = nullptr;                   ///< (count, stages)
};
[[nodiscard]] Status run_rvq_beam(const RvqBooks& books, const RvqBeam& beam, StreamHandle stream);

/// out[i * m + j] = the sum over e < count of rows[e * n + i] * others[e * m + j], in rising order.
struct OuterSums {
  const double *rows, *others;
  uint32_t count, n, m;
  double* out;
};
[[nodiscard]] Status run_outer_sums(const OuterSums& sums, StreamHandle stream);

}  // namespace kvcodec::cuda
