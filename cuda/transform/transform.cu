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
constexpr unsigned kMostSymbolWarps = 8, kValueWarps = 8;
/// So many blocks of threads decode symbols before any has a second warp: the multiprocessors of a large device.
constexpr unsigned kSymbolBlocks = 132;
/// Guides up to this size lie in shared memory: those of 35 classes.
constexpr uint32_t kMostGuideBytes = 35u << kTransformGuideBits;
constexpr unsigned kWindow = 2 * kWarp;  ///< words of a block that are looked up ahead
constexpr uint32_t kLowestState = 1u << 16;
constexpr unsigned kEscape = kTransformSymbols - 1;
constexpr int kLargest = static_cast<int>(kEscape) / 2;
/// Sizes of levels are below this.
constexpr int32_t kMostLevel = 1 << (8 * kTransformEscapeBytes - 1);

/// A tile of vectors: a warp has some of its tokens, a lane some of its columns, kWarp from one to the next.
constexpr unsigned kVectorWarps = 8, kOwnTokens = 8, kTileTokens = kVectorWarps * kOwnTokens;
constexpr unsigned kDepth = 16;  ///< components that it takes in at a time

/// A symbol, and its range of slots as in TransformClass.
struct FoundSymbol {
  uint32_t symbol, range;
};

/// What finds the symbols of a class.
struct SymbolFinder {
  const uint8_t* guide;
  const uint32_t* ranges;
  uint32_t scale;

  __device__ __forceinline__ uint32_t slot(uint32_t state) const { return state & ((1u << scale) - 1); }
  __device__ __forceinline__ uint32_t guess(uint32_t state) const {
    return guide[slot(state) >> (scale > kTransformGuideBits ? scale - kTransformGuideBits : 0)];
  }
  /// From what guess() gave.
  __device__ __forceinline__ FoundSymbol find(uint32_t guess, uint32_t state) const {
    FoundSymbol found;
    found.symbol = guess % kTransformSymbols;
    found.range = ranges[found.symbol];
    if (guess >= kTransformSeveral)  // few are
      while (slot(state) - (found.range & 0xffff) >= found.range >> 16) found.range = ranges[++found.symbol];
    return found;
  }
  __device__ __forceinline__ FoundSymbol find(uint32_t state) const { return find(guess(state), state); }
  __device__ __forceinline__ uint32_t next(uint32_t state, uint32_t range) const {
    return (range >> 16) * (state >> scale) + (slot(state) - (range & 0xffff));
  }
};

}  // namespace transform_detail

/// A warp for each block, whose lanes do four times what eight of them do: what one symbol waits for is what this
/// takes. That was 237 ns with a table of all slots, 64 KB for some classes, in global memory, which a state asked
/// only when it had its word. Now the tables are small and in shared memory (kStaged), and the words that come next
/// lie in a window with what they stand for as the lowest bits of a state, so that a lane looks up what it needs if it
/// takes in no word while the others are asked whether they do. Words are loaded a warp's at a time, long before.
template <bool kStaged>
__global__ void __launch_bounds__(transform_detail::kMostSymbolWarps* kWarp)
    transform_symbols(TransformTables tables, TransformBlocks blocks) {
  using namespace transform_detail;
  KVCODEC_SHARED_ARRAY(uint32_t, ranges, kTransformClasses * kTransformSymbols);
  KVCODEC_SHARED_ARRAY(uint2, windows, kMostSymbolWarps * kWindow);
  for (unsigned i = threadIdx.x; i < kTransformClasses * kTransformSymbols; i += blockDim.x)
    ranges[i] = tables.classes[i / kTransformSymbols].ranges[i % kTransformSymbols];
  const uint8_t* guides = tables.guides;
  if constexpr (kStaged) {
    auto* const staged = dynamic_shared<uint8_t>();
    for (unsigned i = 16 * threadIdx.x; i < tables.guide_bytes; i += 16 * blockDim.x)
      copy_async16(staged + i, tables.guides + i);
    copy_async_commit();
    copy_async_wait<0>();
    guides = staged;
  }
  __syncthreads();
  const unsigned of_warp = threadIdx.x % kWarp, lane = of_warp % kLanes, below = (1u << lane) - 1;
  const unsigned warp = threadIdx.x / kWarp;
  const uint64_t block = uint64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  if (block >= blocks.count) return;  // the whole warp
  uint2* const window = windows + warp * kWindow;
  const uint8_t* const bytes = blocks.payload + blocks.begins[block];
  const auto end = static_cast<uint32_t>(blocks.begins[block + 1] - blocks.begins[block]) - blocks.low_bytes;
  const uint32_t words = (end - 4 * kLanes) / 2;
  const uint8_t* const first_word = bytes + 4 * kLanes;
  const auto load_word =
      [&](uint32_t at) {  // words behind the end are not read: how many are missing does not matter
        return at < words ? static_cast<uint32_t>(first_word[size_t{2} * at]) |
                                static_cast<uint32_t>(first_word[size_t{2} * at + 1]) << 8
                          : 0;
      };
  // The window has words [loaded, loaded + kWindow): near and far of all lanes. `ahead` of it is the next one.
  uint32_t loaded = 0, ahead = 0, escapes = 0;
  uint32_t near = load_word(of_warp), far = load_word(kWarp + of_warp), behind = load_word(kWindow + of_warp);
  uint32_t state = static_cast<uint32_t>(bytes[4 * lane]) | static_cast<uint32_t>(bytes[4 * lane + 1]) << 8 |
                   static_cast<uint32_t>(bytes[4 * lane + 2]) << 16 |
                   static_cast<uint32_t>(bytes[4 * lane + 3]) << 24;
  const bool low_start = state < kLowestState;
  uint8_t* const symbols = blocks.symbols + block * tables.components * blocks.tokens;
  unsigned next_class = tables.components > 0 ? tables.component_class[0] : 0;
  for (unsigned c = 0; c < tables.components; ++c) {
    if (of_warp == 0) blocks.escapes_before[block * tables.components + c] = escapes;
    const TransformClass& level_class = tables.classes[next_class];
    const SymbolFinder finder{guides + level_class.first_guide, ranges + next_class * kTransformSymbols,
                              level_class.scale};
    if (c + 1 < tables.components) next_class = tables.component_class[c + 1];
    const auto place = [&](uint32_t word, uint32_t at) {
      const FoundSymbol found = finder.find(word);
      uint2 both;
      both.x = word | found.symbol << 16, both.y = found.range;
      window[at] = both;
    };
    __syncwarp();
    place(near, of_warp), place(far, kWarp + of_warp);
    FoundSymbol found = finder.find(state);
    __syncwarp();
    // A lane's symbol; its state, and the symbol of that, go on.
    const auto take = [&](bool there) {
      const uint32_t symbol = found.symbol, next = finder.next(state, found.range);
      const uint32_t guess = finder.guess(next);
      const bool needs = there && next < kLowestState;
      const unsigned votes = __ballot_sync(kAllLanes, needs) & ((1u << kLanes) - 1);
      const uint2 entry = window[ahead + static_cast<unsigned>(__popc(votes & below))];
      const FoundSymbol own = finder.find(guess, next);
      if (there) {
        state = needs ? next << 16 | (entry.x & 0xffff) : next;
        found.symbol = needs ? entry.x >> 16 : own.symbol;
        found.range = needs ? entry.y : own.range;
      }
      ahead += static_cast<unsigned>(__popc(votes));
      return symbol;
    };
    for (unsigned first = 0; first < blocks.tokens; first += kWarp) {
      // Of a warp's symbols each lane keeps one, and a warp takes in a word for each at most.
      unsigned symbol = 0;
      if (first + kWarp <= blocks.tokens) {
#pragma unroll
        for (unsigned group = 0; group < kWarp / kLanes; ++group) {
          const unsigned of_lane = take(true);
          if (of_warp / kLanes == group) symbol = of_lane;
        }
      } else {
        for (unsigned group = 0; group < kWarp / kLanes; ++group) {
          const unsigned of_lane = take(first + group * kLanes + lane < blocks.tokens);
          if (of_warp / kLanes == group) symbol = of_lane;
        }
      }
      const bool there = first + of_warp < blocks.tokens;
      if (there) symbols[size_t{c} * blocks.tokens + first + of_warp] = static_cast<uint8_t>(symbol);
      escapes += static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, there && symbol == kEscape)));
      if (ahead >= kWarp) {  // by all lanes
        loaded += kWarp, ahead -= kWarp;
        near = far, far = behind;
        __syncwarp();
        window[of_warp] = window[kWarp + of_warp];
        place(far, kWarp + of_warp);
        __syncwarp();
        behind = load_word(loaded + kWindow + of_warp);
      }
    }
  }
  const uint32_t taken = loaded + ahead, raw_begin = 4 * kLanes + 2 * taken;
  if (low_start || state != kLowestState || taken > words ||
      end - raw_begin != escapes * kTransformEscapeBytes)
    atomicOr(blocks.damaged, 1u);
  if (of_warp == 0) blocks.raw_begins[block] = raw_begin;
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
  if (blocks.count == 0) return launch(transform_symbols<false>, dim3(0), kWarp, 0, stream, tables, blocks);
  const unsigned wanted = blocks_for(blocks.count, kSymbolBlocks);
  const unsigned warps = wanted < kMostSymbolWarps ? wanted : kMostSymbolWarps;
  const bool staged = tables.guide_bytes <= kMostGuideBytes;
  return launch(staged ? transform_symbols<true> : transform_symbols<false>,
                dim3(blocks_for(blocks.count, warps)), warps * kWarp, staged ? tables.guide_bytes : 0, stream,
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
  const unsigned own_columns = tables.width > 4 * kWarp ? 8 : 4;
  const dim3 grid(static_cast<unsigned>((tokens + kTileTokens - 1) / kTileTokens),
                  (tables.width + own_columns * kWarp - 1) / (own_columns * kWarp));
  return launch(own_columns == 8 ? transform_vectors<8> : transform_vectors<4>, grid, kVectorWarps * kWarp, 0,
                stream, tables, values, tokens, out);
}

}  // namespace kvcodec::cuda
