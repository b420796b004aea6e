// Blocks of the codec transform (lib/transform/level_coder.hpp, levels.hpp, basis.hpp): symbols by rANS, levels and what
// they stand for, and the vectors that these are components of.
//
// rANS goes from symbol to symbol, so what runs side by side are blocks, one to a warp, and in each of them its eight
// lanes. Escapes' values lie behind a block's words, whose end is known when all symbols are: a second kernel takes them
// up. Vectors are sums in the order of the components, with the products fused as lib does it: no matrix unit adds so.
#include "cuda/runtime/kernel.cuh"
#include "cuda/transform/transform.cuh"

namespace kvcodec::cuda {

namespace transform_detail {

constexpr unsigned kLanes = 8;  ///< of a block
constexpr unsigned kSymbolWarps = 1, kValueWarps = 8;
constexpr uint32_t kLowestState = 1u << 16;
constexpr unsigned kEscape = kTransformSymbols - 1;
constexpr int kLargest = static_cast<int>(kEscape) / 2;
/// Sizes of levels are below this.
constexpr int32_t kMostLevel = 1 << (8 * kTransformEscapeBytes - 1);

/// A tile of vectors: a warp has some of its tokens, a lane some of its columns, kWarp from one to the next.
constexpr unsigned kVectorWarps = 8, kOwnTokens = 8, kTileTokens = kVectorWarps * kOwnTokens;
constexpr unsigned kDepth = 16;  ///< components that it takes in at a time

__device__ __forceinline__ uint32_t lanes_sum(uint32_t value) {
  for (unsigned step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

}  // namespace transform_detail

/// A warp for each block, whose lanes do four times what eight of them do: what one symbol waits for is what this
/// takes, and blocks side by side in a warp would wait for each other's lines of tables and payload. The payload's
/// words come long before they are asked for: a lane has one of the next 32, and one of the 32 behind them.
__global__ void __launch_bounds__(transform_detail::kSymbolWarps* kWarp)
    transform_symbols(TransformTables tables, TransformBlocks blocks) {
  using namespace transform_detail;
  const unsigned of_warp = threadIdx.x % kWarp, lane = of_warp % kLanes;
  const uint64_t block = uint64_t{blockIdx.x} * kSymbolWarps + threadIdx.x / kWarp;
  if (block >= blocks.count) return;  // the whole warp
  const bool writes = of_warp < kLanes;
  const uint8_t* const bytes = blocks.payload + blocks.begins[block];
  const auto end = static_cast<uint32_t>(blocks.begins[block + 1] - blocks.begins[block]) - blocks.low_bytes;
  const auto load_word = [&](uint32_t at) {
    return at + 2 <= end ? static_cast<uint32_t>(bytes[at]) | static_cast<uint32_t>(bytes[at + 1]) << 8 : 0;
  };
  uint32_t word = 4 * kLanes, escapes = 0;
  uint32_t loaded = word;  // where the words that lanes have begin
  uint32_t ahead = load_word(loaded + 2 * of_warp), behind = load_word(loaded + 2 * (kWarp + of_warp));
  uint32_t state = static_cast<uint32_t>(bytes[4 * lane]) | static_cast<uint32_t>(bytes[4 * lane + 1]) << 8 |
                   static_cast<uint32_t>(bytes[4 * lane + 2]) << 16 |
                   static_cast<uint32_t>(bytes[4 * lane + 3]) << 24;
  bool damaged = state < kLowestState;
  uint8_t* const symbols = blocks.symbols + block * tables.components * blocks.tokens;
  for (unsigned c = 0; c < tables.components; ++c) {
    const uint32_t before = lanes_sum(escapes);
    if (of_warp == 0) blocks.escapes_before[block * tables.components + c] = before;
    const TransformClass& level_class = tables.classes[tables.component_class[c]];
    const uint8_t* const slots = tables.slots + level_class.first_slot;
    const uint32_t scale = level_class.scale, mask = (1u << scale) - 1;
    for (unsigned first = 0; first < blocks.tokens; first += kLanes) {
      const unsigned t = first + lane;
      bool needs = false;
      if (t < blocks.tokens) {
        const uint32_t slot = state & mask, symbol = slots[slot];
        const SymbolRange range = level_class.ranges[symbol];
        state = range.frequency * (state >> scale) + slot - range.start;
        needs = state < kLowestState;
        escapes += symbol == kEscape;
        if (writes) symbols[size_t{c} * blocks.tokens + t] = static_cast<uint8_t>(symbol);
      }
      const unsigned votes = __ballot_sync(kAllLanes, needs) & ((1u << kLanes) - 1);
      const unsigned rank = static_cast<unsigned>(__popc(votes & ((1u << lane) - 1)));
      const unsigned place = (word - loaded) / 2 + rank;
      const uint32_t near_word = __shfl_sync(kAllLanes, ahead, place % kWarp),
                     far_word = __shfl_sync(kAllLanes, behind, place % kWarp);
      if (needs) {
        state = state << 16 | (place < kWarp ? near_word : far_word);
        damaged |= word + 2 * rank + 2 > end;
      }
      // Words behind the end are not read, and how many are missing does not matter.
      word += 2 * static_cast<uint32_t>(__popc(votes));
      if (word > end) word = end + 2;
      if (word - loaded >= 2 * kWarp) {  // by all lanes
        loaded += 2 * kWarp;
        ahead = behind;
        behind = load_word(loaded + 2 * (kWarp + of_warp));
      }
    }
  }
  const uint32_t all = lanes_sum(escapes);
  if (!writes) return;
  if (damaged || state != kLowestState || word > end || end - word != all * kTransformEscapeBytes)
    atomicOr(blocks.damaged, 1u);
  if (lane == 0) blocks.raw_begins[block] = word;
}

/// A warp for each component of a block.
__global__ void __launch_bounds__(transform_detail::kValueWarps* kWarp)
    transform_values(TransformTables tables, TransformBlocks blocks) {
  using namespace transform_detail;
  const unsigned lane = threadIdx.x % kWarp;
  const uint64_t row = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  if (row >= uint64_t{blocks.count} * tables.components) return;
  const auto c = static_cast<unsigned>(row % tables.components);
  const uint64_t block = row / tables.components, total = uint64_t{blocks.count} * blocks.tokens;
  const TransformClass& level_class = tables.classes[tables.component_class[c]];
  const unsigned shift = level_class.shift;
  const float unit = tables.units[c];
  const uint8_t* const symbols = blocks.symbols + row * blocks.tokens;
  const uint8_t* const raw = blocks.payload + blocks.begins[block] + blocks.raw_begins[block];
  const uint8_t* const low = blocks.payload + blocks.begins[block + 1] - blocks.low_bytes;
  const uint64_t first_bit = uint64_t{tables.low_before[c]} * blocks.tokens;
  float* const values = blocks.values + c * total + block * blocks.tokens;
  uint32_t escapes = blocks.escapes_before[row];
  for (unsigned first = 0; first < blocks.tokens; first += kWarp) {
    const unsigned t = first + lane;
    const bool there = t < blocks.tokens;
    const unsigned symbol = there ? symbols[t] : 0;
    const bool escaped = there && symbol == kEscape;
    const unsigned votes = __ballot_sync(kAllLanes, escaped);
    if (there) {
      int32_t high = static_cast<int32_t>(symbol) - kLargest;
      if (escaped) {
        const uint8_t* const at =
            raw + size_t{kTransformEscapeBytes} *
                      (escapes + static_cast<uint32_t>(__popc(votes & ((1u << lane) - 1))));
        high = from_zigzag(static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 8 |
                           static_cast<uint32_t>(at[2]));
        if (high < -(kMostLevel >> shift) || high > (kMostLevel - 1) >> shift) atomicOr(blocks.damaged, 1u);
      }
      uint32_t bits = 0;
      for (unsigned i = 0; i < shift; ++i) {
        const uint64_t bit = first_bit + uint64_t{t} * shift + i;
        bits = bits << 1 | (low[bit / 8] >> (7 - bit % 8) & 1u);
      }
      const auto level = static_cast<int32_t>(static_cast<uint32_t>(high) << shift | bits);
      if (level == -kMostLevel) atomicOr(blocks.damaged, 1u);
      values[t] = value_of_level(level, level_class.shrink, unit);
    }
    escapes += static_cast<uint32_t>(__popc(votes));
  }
}

/// A tile of tokens and columns. All lanes of a warp have the same tokens: a value is read once for all, and none
/// goes its own way at a value of 0.
template <unsigned kOwnColumns>
__global__ void __launch_bounds__(transform_detail::kVectorWarps* kWarp)
    transform_vectors(TransformTables tables, const float* values, uint64_t tokens, float* out) {
  using namespace transform_detail;
  constexpr unsigned kThreads = kVectorWarps * kWarp, kTileColumns = kWarp * kOwnColumns;
  KVCODEC_SHARED_ARRAY(float4, of_tokens, kDepth * kTileTokens / 4);
  KVCODEC_SHARED_ARRAY(float, of_columns, kDepth* kTileColumns);
  const uint64_t first_token = uint64_t{blockIdx.x} * kTileTokens;
  const unsigned first_column = blockIdx.y * kTileColumns;
  const unsigned lane = threadIdx.x % kWarp, token = threadIdx.x / kWarp * kOwnTokens;
  const unsigned loaded_token = threadIdx.x % kTileTokens, loaded_column = threadIdx.x % kTileColumns;
  auto* const values_of_tile = reinterpret_cast<float*>(of_tokens);
  float sums[kOwnTokens][kOwnColumns];
#pragma unroll
  for (unsigned j = 0; j < kOwnColumns; ++j) {
    const unsigned c = first_column + lane + j * kWarp;
    const float mean = c < tables.width ? tables.mean[c] : 0;
#pragma unroll
    for (unsigned i = 0; i < kOwnTokens; ++i) sums[i][j] = mean;
  }
  for (unsigned begin = 0; begin < tables.components; begin += kDepth) {
    const unsigned depth = tables.components - begin < kDepth ? tables.components - begin : kDepth;
#pragma unroll 4
    for (unsigned k = threadIdx.x / kTileTokens; k < depth; k += kThreads / kTileTokens)
      values_of_tile[k * kTileTokens + loaded_token] =
          first_token + loaded_token < tokens ? values[(begin + k) * tokens + first_token + loaded_token] : 0;
#pragma unroll 4
    for (unsigned k = threadIdx.x / kTileColumns; k < depth; k += kThreads / kTileColumns)
      of_columns[k * kTileColumns + loaded_column] =
          first_column + loaded_column < tables.width
              ? tables.rows[size_t{begin + k} * tables.width + first_column + loaded_column]
              : 0;
    __syncthreads();
    for (unsigned k = 0; k < depth; ++k) {
      float row[kOwnColumns];
#pragma unroll
      for (unsigned j = 0; j < kOwnColumns; ++j) row[j] = of_columns[k * kTileColumns + lane + j * kWarp];
#pragma unroll
      for (unsigned i = 0; i < kOwnTokens; i += 4) {
        const float4 four = of_tokens[(k * kTileTokens + token + i) / 4];
        const float own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (unsigned m = 0; m < 4; ++m)
          if (own[m] != 0) {
#pragma unroll
            for (unsigned j = 0; j < kOwnColumns; ++j) sums[i + m][j] = fmaf(own[m], row[j], sums[i + m][j]);
          }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (unsigned i = 0; i < kOwnTokens; ++i)
#pragma unroll
    for (unsigned j = 0; j < kOwnColumns; ++j) {
      const uint64_t t = first_token + token + i;
      const unsigned c = first_column + lane + j * kWarp;
      if (t < tokens && c < tables.width) out[t * tables.width + c] = sums[i][j];
    }
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

unsigned blocks_for(uint64_t warps, unsigned of_block) {
  return static_cast<unsigned>((warps + of_block - 1) / of_block);
}

}  // namespace

Status run_transform_symbols(const TransformTables& tables, const TransformBlocks& blocks,
                             StreamHandle stream) {
  using namespace transform_detail;
  return launch(transform_symbols, dim3(blocks_for(blocks.count, kSymbolWarps)), kSymbolWarps * kWarp, 0,
                stream, tables, blocks);
}

Status run_transform_values(const TransformTables& tables, const TransformBlocks& blocks,
                            StreamHandle stream) {
  using namespace transform_detail;
  return launch(transform_values, dim3(blocks_for(uint64_t{blocks.count} * tables.components, kValueWarps)),
                kValueWarps * kWarp, 0, stream, tables, blocks);
}

Status run_transform_vectors(const TransformTables& tables, const float* values, uint64_t tokens, float* out,
                             StreamHandle stream) {
  using namespace transform_detail;
  const unsigned own_columns = tables.width > 4 * kWarp ? 8 : 4;
  const dim3 grid(static_cast<unsigned>((tokens + kTileTokens - 1) / kTileTokens),
                  (tables.width + own_columns * kWarp - 1) / (own_columns * kWarp));
  return launch(own_columns == 8 ? transform_vectors<8> : transform_vectors<4>, grid, kVectorWarps * kWarp, 0,
                stream, tables, values, tokens, out);
}

}  // namespace kvcodec::cuda
