// The steps of a prefill between its matrix products, and causal attention (lib/model).
#include "cuda/prefill/prefill.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/core/half_bits.hpp"

namespace kvcodec::cuda {

constexpr unsigned kPrefillThreads = 256;
constexpr unsigned kHeadWarps = 8;  ///< heads of a block of place_heads

namespace prefill_detail {

__device__ __forceinline__ void write_parts(const FloatParts& to, size_t at, float value) {
  const Bf16Parts parts = bf16_parts(value);
#pragma unroll
  for (unsigned p = 0; p < kFloatParts; ++p) to.data[p * to.plane + at] = parts.part[p];
}

/// As rms_norm: 1 / sqrt(mean + epsilon), in double up to here.
__device__ __forceinline__ float norm_factor(double squares, unsigned n, double epsilon) {
  return static_cast<float>(1.0 / sqrt(squares / static_cast<double>(n) + epsilon));
}

__device__ __forceinline__ float widen(RawFloat type, const void* raw, size_t i) {
  if (type == RawFloat::f32) return static_cast<const float*>(raw)[i];
  const uint16_t half = static_cast<const uint16_t*>(raw)[i];
  return type == RawFloat::f16 ? f16_to_float(half) : bf16_to_float(half);
}

}  // namespace prefill_detail

__global__ void __launch_bounds__(kPrefillThreads)
    split_floats(RawFloat type, const void* raw, uint64_t count, unsigned parts, FloatParts out) {
  const uint64_t threads = uint64_t{gridDim.x} * kPrefillThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kPrefillThreads + threadIdx.x; i < count; i += threads) {
    const Bf16Parts all = bf16_parts(prefill_detail::widen(type, raw, i));
#pragma unroll
    for (unsigned p = 0; p < kFloatParts; ++p)
      if (p < parts) out.data[p * out.plane + i] = all.part[p];
  }
}

/// A block per row.
__global__ void __launch_bounds__(kPrefillThreads) norm_rows(NormRows norm) {
  KVCODEC_SHARED_ARRAY(double, sums, kPrefillThreads / kWarp);
  const unsigned width = norm.width;
  const size_t first = size_t{blockIdx.x} * width;
  double squares = 0;
  for (unsigned j = threadIdx.x; j < width; j += kPrefillThreads) {
    const double value = norm.x[first + j];
    squares += value * value;
  }
  squares = over_warps<kPrefillThreads / kWarp>(sum_of_lanes(squares), sums,
                                                [](double a, double b) { return a + b; });
  const float factor = prefill_detail::norm_factor(squares, width, norm.epsilon);
  for (unsigned j = threadIdx.x; j < width; j += kPrefillThreads) {
    const float value = norm.x[first + j] * factor * norm.weight[j];
    if (norm.out) norm.out[first + j] = value;
    if (norm.parts.data) prefill_detail::write_parts(norm.parts, first + j, value);
  }
}

__global__ void __launch_bounds__(kPrefillThreads)
    bias_rows(const float* bias, uint64_t count, unsigned width, bool add, float* out) {
  const uint64_t threads = uint64_t{gridDim.x} * kPrefillThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kPrefillThreads + threadIdx.x; i < count; i += threads) {
    const float value = bias[i % width];
    out[i] = add ? out[i] + value : value;
  }
}

/// With e = exp(-|x|): x / (1 + e) for x >= 0, x e / (1 + e) below, as silu_times of lib/model.
__global__ void __launch_bounds__(kPrefillThreads)
    silu_rows(const float* gate, const float* up, uint64_t count, FloatParts out) {
  const uint64_t threads = uint64_t{gridDim.x} * kPrefillThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kPrefillThreads + threadIdx.x; i < count; i += threads) {
    const float x = gate[i], e = expf(-fabsf(x));
    prefill_detail::write_parts(out, i, x * (x < 0 ? e : 1.0f) / (e + 1.0f) * up[i]);
  }
}

/// A warp per head of a row; a lane has pairs (j, j + dims / 2), which are turned together.
__global__ void __launch_bounds__(kHeadWarps* kWarp) place_heads(HeadRows heads, uint64_t count) {
  const uint64_t at = uint64_t{blockIdx.x} * kHeadWarps + threadIdx.x / kWarp;
  if (at >= count * heads.heads) return;  // a whole warp
  const unsigned lane = threadIdx.x % kWarp, half = heads.dims / 2;
  const uint64_t row = at / heads.heads;
  float* const head = heads.rows + at * heads.dims;
  float factor = 1;
  if (heads.norm) {
    double squares = 0;
    for (unsigned j = lane; j < heads.dims; j += kWarp) squares += double{head[j]} * double{head[j]};
    factor = prefill_detail::norm_factor(sum_of_lanes(squares), heads.dims, heads.epsilon);
  }
  const uint64_t part_row = heads.part_rows ? heads.part_rows[row] : row;
  const size_t part = (part_row * heads.heads + at % heads.heads) * heads.padded;
  for (unsigned j = lane; j < half; j += kWarp) {
    float first = head[j], second = head[j + half];
    if (heads.norm) {
      first = first * factor * heads.norm[j];
      second = second * factor * heads.norm[j + half];
    }
    if (heads.before) {
      heads.before[at * heads.dims + j] = first;
      heads.before[at * heads.dims + j + half] = second;
    }
    if (heads.cosines) {
      const size_t angle = size_t{heads.positions[row]} * half + j;
      const float cosine = heads.cosines[angle], sine = heads.sines[angle];
      const float turned = first * cosine - second * sine;
      second = second * cosine + first * sine;
      first = turned;
    }
    head[j] = first;
    head[j + half] = second;
    prefill_detail::write_parts(heads.parts, part + j, first * heads.scale);
    prefill_detail::write_parts(heads.parts, part + j + half, second * heads.scale);
  }
  for (unsigned j = heads.dims + lane; j < heads.padded; j += kWarp)
    prefill_detail::write_parts(heads.parts, part + j, 0);
}

// Attention
// --------------------------------------------------------------------------------------------------------

/// A size that attention is compiled for. Keys and queries are of three parts; with the 8 elements behind a
/// row, eight rows, which are read together, lie in different banks.
template <unsigned kPadded>
struct AttentionShape {
  static constexpr unsigned kRows = attention_rows(kPadded), kWarps = kRows / 16;
  static constexpr unsigned kThreads = kWarps * kWarp;
  static constexpr unsigned kKeys = kPadded <= 64 ? 64 : kPadded <= 128 ? 32 : 16;
  static constexpr unsigned kStride = kPadded + 8;
  /// Steps of scores that are unrolled: the outputs of the widest heads take half of all registers, and two
  /// blocks of those of 64 dimensions share them; more steps would be spilled.
  static constexpr unsigned kUnrolled = kPadded == 128 ? kPadded / 16 : 2;
  /// Blocks of 8 columns that are multiplied together. A product waits for the one before it in the same sum, and
  /// with two warps a scheduler the matrix units rested most of the time while this was 2: they were busy for
  /// 41% of it on an H100, at 128 dimensions.
  static constexpr unsigned kTogether = kPadded <= 128 ? 4 : 2;
  static constexpr size_t kShared = size_t{kFloatParts} * (kRows + 2 * kKeys) * kStride * sizeof(uint16_t);
  static_assert(kShared <= 163 * 1024);
};

namespace prefill_detail {

/// c += the products of floats of three parts each, for kTogether blocks of 8 columns, of which load_matrices
/// gives two at a time: those products of parts that are not below 2^-24 of the largest, the small ones first.
/// The matrix units truncate what they add, which c, a sum of thousands of products, must not see: these are
/// summed by themselves, and added with rounding to nearest.
template <unsigned kTogether>
__device__ __forceinline__ void multiply_parts(float (*c)[4], const uint32_t (&a)[3][4],
                                               const uint32_t (&b)[kTogether / 2][3][4]) {
  constexpr unsigned kOfA[6] = {2, 1, 0, 1, 0, 0}, kOfB[6] = {0, 1, 2, 0, 1, 0};
  float sums[kTogether][4] = {};
#pragma unroll
  for (unsigned i = 0; i < 6; ++i)
#pragma unroll
    for (unsigned block = 0; block < kTogether; ++block) {
      const uint32_t(&parts)[4] = b[block / 2][kOfB[i]];
      multiply_bf16(sums[block], a[kOfA[i]], parts[block % 2 * 2], parts[block % 2 * 2 + 1]);
    }
#pragma unroll
  for (unsigned block = 0; block < kTogether; ++block)
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) c[block][i] += sums[block][i];
}

/// Keys [begin, end) of its document that the token at `position` sees.
__device__ __forceinline__ unsigned first_seen(unsigned position, unsigned window) {
  return window != 0 && position + 1 > window ? position + 1 - window : 0;
}

}  // namespace prefill_detail

/// A block takes a tile of queries (row r is query r / heads, head r % heads of those of the key/value head)
/// and goes over the keys they see, by tiles; a warp has 16 rows, their scores, maxima, sums and outputs.
/// Grid: (tiles, key/value heads, parts of the group of at most kRows heads).
template <unsigned kPadded>
__global__ void __launch_bounds__(AttentionShape<kPadded>::kWarps* kWarp, kPadded == 64 ? 2 : 0)
    causal_attention_tiles(CausalAttention attention) {
  using namespace prefill_detail;
  using Shape = AttentionShape<kPadded>;
  constexpr unsigned kRows = Shape::kRows, kKeys = Shape::kKeys, kStride = Shape::kStride;
  constexpr unsigned kTogether = Shape::kTogether;
  constexpr unsigned kPieces = kPadded / 8;  // of 16 bytes
  constexpr unsigned kRowsAtOnce = Shape::kThreads / kPieces;
  static_assert(kKeys % kRowsAtOnce == 0);
  auto* const queries = dynamic_shared<uint16_t>();
  uint16_t* const keys = queries + kFloatParts * kRows * kStride;
  uint16_t* const values = keys + kFloatParts * kKeys * kStride;
  const AttentionTile tile = attention.tiles[blockIdx.x];
  const unsigned group = attention.q_heads / attention.kv_heads, first_head = blockIdx.z * kRows;
  const unsigned heads = group - first_head < kRows ? group - first_head : kRows;
  const unsigned rows = tile.tokens * heads;
  const unsigned lane = threadIdx.x % kWarp, own = threadIdx.x / kWarp * 16;
  const unsigned end = tile.position + tile.tokens;

  for (unsigned i = threadIdx.x; i < kFloatParts * kRows * kPieces; i += blockDim.x) {
    const unsigned part = i / (kRows * kPieces), row = i / kPieces % kRows, piece = i % kPieces;
    const unsigned token = row < rows ? row / heads : 0, head = row < rows ? row % heads : 0;
    const size_t from =
        (size_t{tile.row + token} * attention.q_heads + blockIdx.y * group + first_head + head) * kPadded +
        piece * 8;
    copy_async16(queries + (part * kRows + row) * kStride + piece * 8,
                 attention.query.data + part * attention.query.plane + from, row < rows ? 16 : 0);
  }
  const auto load = [&](const FloatParts& parts, uint16_t* to, unsigned block) {
    const unsigned piece = threadIdx.x % kPieces * 8;
#pragma unroll
    for (unsigned first = 0; first < kKeys; first += kRowsAtOnce) {
      const unsigned row = first + threadIdx.x / kPieces;
      const bool there = block + row < end;  // behind: zeros, as nobody wrote them yet
      const uint16_t* const from =
          parts.data +
          (size_t{tile.key_first + (there ? block + row : 0)} * attention.kv_heads + blockIdx.y) * kPadded +
          piece;
#pragma unroll
      for (unsigned part = 0; part < kFloatParts; ++part)
        copy_async16(to + (part * kKeys + row) * kStride + piece, from + part * parts.plane, there ? 16 : 0);
    }
  };

  unsigned seen[2], last[2];  // keys [seen, last] of this lane's two rows; none for rows that are none
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = own + lane / 4 + 8 * half;
    const unsigned position = tile.position + row / heads;
    seen[half] = row < rows ? first_seen(position, attention.window) : 1;
    last[half] = row < rows ? position : 0;
  }
  const unsigned all_seen = first_seen(end - 1, attention.window);  // by all rows, up to tile.position
  float sums[kPadded / 8][4] = {};                                  // of values, weighted
  float limit[2] = {-INFINITY, -INFINITY}, total[2] = {};

  const unsigned begin = first_seen(tile.position, attention.window) / kKeys * kKeys;
  load(attention.key, keys, begin);
  copy_async_commit();
  for (unsigned block = begin; block < end; block += kKeys) {
    load(attention.value, values, block);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    float scores[kKeys / 8][4] = {};
#pragma unroll(Shape::kUnrolled)
    for (unsigned k = 0; k < kPadded; k += 16) {
      uint32_t a[3][4];
#pragma unroll
      for (unsigned part = 0; part < kFloatParts; ++part)
        load_matrices(a[part], queries + (part * kRows + own + lane % 16) * kStride + k + lane / 16 * 8);
#pragma unroll
      for (unsigned column = 0; column < kKeys; column += 8 * kTogether) {
        uint32_t b[kTogether / 2][3][4];
#pragma unroll
        for (unsigned part = 0; part < kFloatParts; ++part)
#pragma unroll
          for (unsigned i = 0; i < kTogether / 2; ++i)
            load_matrices(b[i][part],
                          keys + (part * kKeys + column + i * 16 + lane / 16 * 8 + lane % 8) * kStride + k +
                              lane / 8 % 2 * 8);
        multiply_parts<kTogether>(scores + column / 8, a, b);
      }
    }
    __syncthreads();  // the keys were read
    if (block + kKeys < end) load(attention.key, keys, block + kKeys);
    copy_async_commit();

    // Most blocks of keys are seen by all rows; those that are none may see them too.
    if (block < all_seen || block + kKeys - 1 > tile.position) {
#pragma unroll
      for (unsigned column = 0; column < kKeys; column += 8)
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned key = block + column + lane % 4 * 2 + i % 2;
          if (key < seen[i / 2] || key > last[i / 2]) scores[column / 8][i] = -INFINITY;
        }
    }
    float highest[2] = {limit[0], limit[1]};
#pragma unroll
    for (unsigned column = 0; column < kKeys / 8; ++column)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) highest[i / 2] = fmaxf(highest[i / 2], scores[column][i]);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      highest[half] = largest_of_lanes<4>(highest[half]);  // the lanes of a row
      if (highest[half] == limit[half]) continue;          // the factor is 1, or nothing was seen so far
      const float factor = expf(limit[half] - highest[half]);
      limit[half] = highest[half];
      total[half] *= factor;
#pragma unroll
      for (unsigned column = 0; column < kPadded / 8; ++column) {
        sums[column][2 * half] *= factor;
        sums[column][2 * half + 1] *= factor;
      }
    }
    float of_tile[2] = {};
    const float base[2] = {limit[0] == -INFINITY ? 0 : limit[0],  // nothing seen: weights are zeros
                           limit[1] == -INFINITY ? 0 : limit[1]};
#pragma unroll
    for (unsigned column = 0; column < kKeys / 8; ++column)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        float& score = scores[column][i];
        score = expf(score - base[i / 2]);
        of_tile[i / 2] += score;
      }
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) total[half] += of_tile[half];

    copy_async_wait<1>();
    __syncthreads();
#pragma unroll
    for (unsigned k = 0; k < kKeys; k += 16) {
      uint32_t a[3][4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {  // what a product leaves in a lane is what the next one takes of it
        const float* const pair = scores[k / 8 + i / 2] + i % 2 * 2;
        float low = pair[0], high = pair[1];
#pragma unroll
        for (unsigned part = 0; part < kFloatParts; ++part) {  // bf16_parts of both
          a[part][i] = pack_bf16(low, high);
          low -= float_of(a[part][i] << 16);
          high -= float_of(a[part][i] & 0xffff0000u);
        }
      }
#pragma unroll
      for (unsigned column = 0; column < kPadded; column += 8 * kTogether) {
        uint32_t b[kTogether / 2][3][4];
#pragma unroll
        for (unsigned part = 0; part < kFloatParts; ++part)
#pragma unroll
          for (unsigned i = 0; i < kTogether / 2; ++i)
            load_matrices_transposed(b[i][part], values + (part * kKeys + k + lane % 16) * kStride + column +
                                                     i * 16 + lane / 16 * 8);
        multiply_parts<kTogether>(sums + column / 8, a, b);
      }
    }
    __syncthreads();  // the values were read
  }

#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    for (int step = 1; step <= 2; step *= 2) total[half] += __shfl_xor_sync(kAllLanes, total[half], step);
    const unsigned row = own + lane / 4 + 8 * half;
    if (row >= rows) continue;
    const float inverse = 1 / total[half];
    const size_t to =
        (size_t{tile.row + row / heads} * attention.q_heads + blockIdx.y * group + first_head + row % heads) *
        attention.dims;
#pragma unroll
    for (unsigned column = 0; column < kPadded / 8; ++column) {
      const unsigned j = column * 8 + lane % 4 * 2;
      if (j >= attention.dims) continue;
      write_parts(attention.out, to + j, sums[column][2 * half] * inverse);
      write_parts(attention.out, to + j + 1, sums[column][2 * half + 1] * inverse);
    }
  }
}

// Launchers ---------------------------------------------------------------------------------------

/// Blocks that give each of `count` elements a thread, but no more than keep a device busy.
static unsigned blocks_of(size_t count) {
  constexpr size_t kMax = 4096;
  const size_t blocks = (count + kPrefillThreads - 1) / kPrefillThreads;
  return static_cast<unsigned>(blocks < kMax ? blocks : kMax);
}

Status run_split(RawFloat type, const void* raw, size_t count, unsigned parts, const FloatParts& out,
                 StreamHandle stream) {
  return launch(split_floats, blocks_of(count), kPrefillThreads, 0, stream, type, raw, uint64_t{count}, parts,
                out);
}

Status run_norm_rows(const NormRows& norm, StreamHandle stream) {
  return launch(norm_rows, static_cast<unsigned>(norm.rows), kPrefillThreads, 0, stream, norm);
}

Status run_bias(const float* bias, size_t rows, unsigned width, bool add, float* out, StreamHandle stream) {
  return launch(bias_rows, blocks_of(rows * width), kPrefillThreads, 0, stream, bias, uint64_t{rows} * width,
                width, add, out);
}

Status run_silu(const float* gate, const float* up, size_t count, const FloatParts& out,
                StreamHandle stream) {
  return launch(silu_rows, blocks_of(count), kPrefillThreads, 0, stream, gate, up, uint64_t{count}, out);
}

Status run_place_heads(const HeadRows& heads, size_t count, StreamHandle stream) {
  return launch(place_heads, divide_up(count * heads.heads, kHeadWarps), kHeadWarps * kWarp, 0, stream, heads,
                uint64_t{count});
}

Status run_causal_attention(const CausalAttention& attention, StreamHandle stream) {
  const unsigned group = attention.q_heads / attention.kv_heads, rows = attention_rows(attention.padded);
  const dim3 grid(attention.tile_count, attention.kv_heads, (group + rows - 1) / rows);
  return for_size<32, 64, 128, 256>(attention.padded, [&]<unsigned kPadded>() {
    using Shape = AttentionShape<kPadded>;
    return launch(causal_attention_tiles<kPadded>, grid, Shape::kWarps * kWarp, Shape::kShared, stream,
                  attention);
  });
}

}  // namespace kvcodec::cuda
