// Blocks of the codec transform (lib/transform/level_coder.hpp, levels.hpp, basis.hpp): symbols by rANS, levels and what
// they stand for, and the vectors that these are components of.
//
// rANS goes from symbol to symbol, so what runs side by side are blocks, four to a warp, and in each of them its eight
// lanes. Escapes' values lie behind a block's words, whose end is known when all symbols are: a second kernel takes them
// up. Vectors are sums in the order of the components, with the products fused as lib does it: no matrix unit adds so.
#include "cuda/runtime/kernel.cuh"
#include "cuda/transform/transform.cuh"

namespace kvcodec::cuda {

namespace transform_detail {

constexpr unsigned kLanes = 8, kBlocksOfWarp = kWarp / kLanes;
constexpr unsigned kSymbolWarps = 2, kValueWarps = 8;
constexpr uint32_t kLowestState = 1u << 16;
constexpr unsigned kEscape = kTransformSymbols - 1;
constexpr int kLargest = static_cast<int>(kEscape) / 2;
/// Sizes of levels are below this.
constexpr int32_t kMostLevel = 1 << (8 * kTransformEscapeBytes - 1);

/// Tokens and columns of a tile, components that it takes in at a time, and what a thread has of it.
constexpr unsigned kTile = 64, kDepth = 16, kOwn = 4, kSide = kTile / kOwn;

__device__ __forceinline__ uint32_t lanes_sum(uint32_t value) {
  for (unsigned step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

}  // namespace transform_detail

__global__ void __launch_bounds__(transform_detail::kSymbolWarps* kWarp)
    transform_symbols(TransformTables tables, TransformBlocks blocks) {
  using namespace transform_detail;
  const unsigned lane = threadIdx.x % kLanes, part = threadIdx.x % kWarp / kLanes;
  const uint64_t warp = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const uint64_t own = warp * kBlocksOfWarp + part;
  const bool real = own < blocks.count;
  const uint64_t block = real ? own : 0;
  const uint8_t* const bytes = blocks.payload + blocks.begins[block];
  const auto end = static_cast<uint32_t>(blocks.begins[block + 1] - blocks.begins[block]) - blocks.low_bytes;
  uint32_t word = 4 * kLanes, escapes = 0;
  uint32_t state = static_cast<uint32_t>(bytes[4 * lane]) | static_cast<uint32_t>(bytes[4 * lane + 1]) << 8 |
                   static_cast<uint32_t>(bytes[4 * lane + 2]) << 16 |
                   static_cast<uint32_t>(bytes[4 * lane + 3]) << 24;
  bool damaged = state < kLowestState;
  uint8_t* const symbols = blocks.symbols + block * tables.components * blocks.tokens;
  for (unsigned c = 0; c < tables.components; ++c) {
    const uint32_t before = lanes_sum(escapes);
    if (real && lane == 0) blocks.escapes_before[block * tables.components + c] = before;
    const TransformClass& level_class = tables.classes[tables.component_class[c]];
    const uint8_t* const slots = tables.slots + level_class.first_slot;
    const uint32_t scale = level_class.scale, mask = (1u << scale) - 1;
    for (unsigned t = lane; t < blocks.tokens + lane; t += kLanes) {  // as often in each lane
      bool needs = false;
      if (t < blocks.tokens) {
        const uint32_t slot = state & mask, symbol = slots[slot];
        const SymbolRange range = level_class.ranges[symbol];
        state = range.frequency * (state >> scale) + slot - range.start;
        needs = state < kLowestState;
        escapes += symbol == kEscape;
        if (real) symbols[size_t{c} * blocks.tokens + t] = static_cast<uint8_t>(symbol);
      }
      const unsigned votes = __ballot_sync(kAllLanes, needs) >> (part * kLanes) & ((1u << kLanes) - 1);
      if (needs) {
        const uint32_t at = word + 2 * static_cast<uint32_t>(__popc(votes & ((1u << lane) - 1)));
        if (at + 2 <= end)
          state = state << 16 | static_cast<uint32_t>(bytes[at]) | static_cast<uint32_t>(bytes[at + 1]) << 8;
        else
          damaged = true;
      }
      // Words behind the end are not read, and how many are missing does not matter.
      word += 2 * static_cast<uint32_t>(__popc(votes));
      if (word > end) word = end + 2;
    }
  }
  const uint32_t all = lanes_sum(escapes);
  if (!real) return;
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

/// A tile of tokens and columns; a thread has kOwn neighbouring tokens, and every kSide-th column.
__global__ void __launch_bounds__(transform_detail::kSide* transform_detail::kSide)
    transform_vectors(TransformTables tables, const float* values, uint64_t tokens, float* out) {
  using namespace transform_detail;
  KVCODEC_SHARED_ARRAY(float, of_tokens, kDepth* kTile);
  KVCODEC_SHARED_ARRAY(float, of_columns, kDepth* kTile);
  const uint64_t first_token = uint64_t{blockIdx.x} * kTile;
  const unsigned first_column = blockIdx.y * kTile;
  const unsigned column = threadIdx.x % kSide, token = threadIdx.x / kSide * kOwn;
  float sums[kOwn][kOwn];
  for (unsigned j = 0; j < kOwn; ++j) {
    const unsigned c = first_column + column + j * kSide;
    const float mean = c < tables.width ? tables.mean[c] : 0;
    for (unsigned i = 0; i < kOwn; ++i) sums[i][j] = mean;
  }
  for (unsigned begin = 0; begin < tables.components; begin += kDepth) {
    const unsigned depth = tables.components - begin < kDepth ? tables.components - begin : kDepth;
    for (unsigned at = threadIdx.x; at < depth * kTile; at += blockDim.x) {
      const size_t component = begin + at / kTile;
      const uint64_t t = first_token + at % kTile;
      const unsigned c = first_column + at % kTile;
      of_tokens[at] = t < tokens ? values[component * tokens + t] : 0;
      of_columns[at] = c < tables.width ? tables.rows[component * tables.width + c] : 0;
    }
    __syncthreads();
    for (unsigned k = 0; k < depth; ++k) {
      float row[kOwn];
      for (unsigned j = 0; j < kOwn; ++j) row[j] = of_columns[k * kTile + column + j * kSide];
      for (unsigned i = 0; i < kOwn; ++i) {
        const float value = of_tokens[k * kTile + token + i];
        if (value == 0) continue;
        for (unsigned j = 0; j < kOwn; ++j) sums[i][j] = fmaf(value, row[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  for (unsigned i = 0; i < kOwn; ++i)
    for (unsigned j = 0; j < kOwn; ++j) {
      const uint64_t t = first_token + token + i;
      const unsigned c = first_column + column + j * kSide;
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
  const uint64_t warps = (uint64_t{blocks.count} + kBlocksOfWarp - 1) / kBlocksOfWarp;
  return launch(transform_symbols, dim3(blocks_for(warps, kSymbolWarps)), kSymbolWarps * kWarp, 0, stream,
                tables, blocks);
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
  const dim3 grid(static_cast<unsigned>((tokens + kTile - 1) / kTile), (tables.width + kTile - 1) / kTile);
  return launch(transform_vectors, grid, kSide * kSide, 0, stream, tables, values, tokens, out);
}

}  // namespace kvcodec::cuda
