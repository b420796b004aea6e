// Blocks of the codec transform (lib/transform/levels.hpp, basis.hpp): symbols by rANS, levels and what
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
constexpr unsigned kMaxSymbolWarps = 8, kValueWarps = 8;
/// So many blocks of threads decode symbols before any has a second warp: the multiprocessors of a large device.
constexpr unsigned kSymbolBlocks = 132;
/// Guides up to this size lie in shared memory: those of 35 classes.
constexpr uint32_t kMaxGuideBytes = 35u << kTransformGuideBits;
constexpr unsigned kWindow = 2 * kWarp;  ///< words of a block that are looked up ahead
constexpr uint32_t kLowestState = 1u << 16;
constexpr unsigned kEscape = kTransformSymbols - 1;
constexpr int kLargest = static_cast<int>(kEscape) / 2;
/// Sizes of levels are below this.
constexpr int32_t kMaxLevel = 1 << (8 * kTransformEscapeBytes - 1);

/// A tile of vectors, as of any product of matrices: a warp has (32, 64) of it, its lanes lie (4, 8), and a lane has
/// two times two groups of four, so that what lanes read from shared memory are few different lines.
constexpr unsigned kTileTokens = 128, kTileColumns = 128, kTileRow = kTileTokens + kTileColumns;
constexpr unsigned kVectorWarps = 8, kOwn = 8;
constexpr unsigned kDepth = 16;  ///< components that it takes in at a time
constexpr size_t kVectorSharedBytes = size_t{2} * kDepth * kTileRow * sizeof(float);

/// A symbol, and its range of slots as in TransformClass.
struct FoundSymbol {
  uint32_t symbol, range;
};

/// Finds the symbols of a class.
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
__global__ void __launch_bounds__(transform_detail::kMaxSymbolWarps* kWarp)
    transform_symbols(TransformTables tables, TransformBlocks blocks) {
  using namespace transform_detail;
  KVCODEC_SHARED_ARRAY(uint32_t, ranges, kTransformClasses * kTransformSymbols);
  KVCODEC_SHARED_ARRAY(uint2, windows, kMaxSymbolWarps * kWindow);
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
      // Each lane keeps one of a warp's symbols, and a warp takes in at most a word for each.
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
  const uint64_t block = row / tables.components;
  const TransformClass& level_class = tables.classes[tables.component_class[c]];
  const unsigned shift = level_class.shift;
  const float unit = tables.units[c];
  const uint8_t* const symbols = blocks.symbols + row * blocks.tokens;
  const uint8_t* const raw = blocks.payload + blocks.begins[block] + blocks.raw_begins[block];
  const uint8_t* const low = blocks.payload + blocks.begins[block + 1] - blocks.low_bytes;
  const uint64_t first_bit = uint64_t{tables.low_before[c]} * blocks.tokens;
  float* const values = blocks.values + c * blocks.value_stride + block * blocks.tokens;
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
        if (high < -(kMaxLevel >> shift) || high > (kMaxLevel - 1) >> shift) atomicOr(blocks.damaged, 1u);
      }
      uint32_t bits = 0;
      for (unsigned i = 0; i < shift; ++i) {
        const uint64_t bit = first_bit + uint64_t{t} * shift + i;
        bits = bits << 1 | (low[bit / 8] >> (7 - bit % 8) & 1u);
      }
      const auto level = static_cast<int32_t>(static_cast<uint32_t>(high) << shift | bits);
      if (level == -kMaxLevel) atomicOr(blocks.damaged, 1u);
      values[t] = value_of_level(level, level_class.shrink, unit);
    }
    escapes += static_cast<uint32_t>(__popc(votes));
  }
}

namespace transform_detail {

/// The first token and column of a tile.
struct TilePlace {
  uint64_t token;
  unsigned column;
};

/// Brings components from `begin` on of a tile's tokens and columns to shared memory, zeros where there are none:
/// rows of kTileRow floats. They arrive later.
__device__ __forceinline__ void load_tile(const TransformTables& tables, const TokenValues& values,
                                          const TilePlace& tile_place, unsigned begin, float* tile) {
  constexpr unsigned kEach = 4, kParts = kTileRow / kEach;
  constexpr unsigned kTogether = kVectorWarps * kWarp / kParts;  // rows; a thread stays in its column
  const unsigned at = threadIdx.x % kParts * kEach, first = threadIdx.x / kParts;
  const bool of_tokens = at < kTileTokens;  // the same for all lanes
  const uint64_t place = of_tokens ? tile_place.token + at : tile_place.column + at - kTileTokens;
  const uint64_t size = of_tokens ? values.stride : tables.width;
  const float* const source = of_tokens ? values.values : tables.rows;
  const float* from = source + (begin + first) * size + place;
#pragma unroll
  for (unsigned k = first; k < first + kDepth; k += kTogether, from += kTogether * size) {
    const bool there = begin + k < tables.components && place < size;
    copy_async16(tile + k * kTileRow + at, there ? from : source, there ? 16 : 0);
  }
  copy_async_commit();
}

__device__ __forceinline__ void load_own(const float* from, unsigned apart, float (&own)[kOwn]) {
#pragma unroll
  for (unsigned i = 0; i < kOwn; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i / 4 * apart);
    own[i] = four.x, own[i + 1] = four.y, own[i + 2] = four.z, own[i + 3] = four.w;
  }
}

}  // namespace transform_detail

/// A tile of tokens and columns. While components are added the next ones are under way: without that, and with more
/// to read from shared memory for each sum, this took twice as long (1,129 us for 32768 x 384 x 1024).
__global__ void __launch_bounds__(transform_detail::kVectorWarps* kWarp, 2)
    transform_vectors(TransformTables tables, TokenValues values, float* out) {
  using namespace transform_detail;
  constexpr unsigned kStep = kDepth * kTileRow, kTokensApart = 16, kColumnsApart = 32;
  auto* const tiles = dynamic_shared<float>();
  // Tiles of the same tokens lie side by side, so that values come from memory once.
  const unsigned across = (tables.width + kTileColumns - 1) / kTileColumns;
  const TilePlace place{uint64_t{blockIdx.x / across} * kTileTokens, blockIdx.x % across * kTileColumns};
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned own_token = warp / 2 * 32 + lane / 8 * 4, own_column = warp % 2 * 64 + lane % 8 * 4;
  const auto token_of = [&](unsigned i) { return place.token + own_token + i / 4 * kTokensApart + i % 4; };
  const auto column_of = [&](unsigned j) {
    return place.column + own_column + j / 4 * kColumnsApart + j % 4;
  };
  float sums[kOwn][kOwn];
#pragma unroll
  for (unsigned j = 0; j < kOwn; ++j) {
    const float mean = column_of(j) < tables.width ? tables.mean[column_of(j)] : 0;
#pragma unroll
    for (unsigned i = 0; i < kOwn; ++i) sums[i][j] = mean;
  }
  load_tile(tables, values, place, 0, tiles);
  for (unsigned begin = 0; begin < tables.components; begin += kDepth) {
    const float* const tile = tiles + begin / kDepth % 2 * kStep;
    copy_async_wait<0>();
    __syncthreads();  // this tile is there, and the other one is done with
    if (begin + kDepth < tables.components)
      load_tile(tables, values, place, begin + kDepth, tiles + (begin / kDepth + 1) % 2 * kStep);
#pragma unroll 4
    for (unsigned k = 0; k < kDepth; ++k) {
      float own[kOwn], row[kOwn];
      load_own(tile + k * kTileRow + own_token, kTokensApart, own);
      load_own(tile + k * kTileRow + kTileTokens + own_column, kColumnsApart, row);
#pragma unroll
      for (unsigned i = 0; i < kOwn; ++i)
        if (own[i] != 0) {  // a sum of -0 stays that
#pragma unroll
          for (unsigned j = 0; j < kOwn; ++j) sums[i][j] = fmaf(own[i], row[j], sums[i][j]);
        }
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kOwn; ++i)
#pragma unroll
    for (unsigned j = 0; j < kOwn; j += 4) {
      const uint64_t t = token_of(i);
      const unsigned c = column_of(j);
      if (t >= values.tokens || c >= tables.width) continue;
      *reinterpret_cast<float4*>(out + t * tables.width + c) =
          make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
    }
}

// Launchers ---------------------------------------------------------------------------------------

Status run_transform_symbols(const TransformTables& tables, const TransformBlocks& blocks,
                             StreamHandle stream) {
  using namespace transform_detail;
  if (blocks.count == 0) return 0;
  const unsigned wanted = divide_up(blocks.count, kSymbolBlocks);
  const unsigned warps = wanted < kMaxSymbolWarps ? wanted : kMaxSymbolWarps;
  const bool staged = tables.guide_bytes <= kMaxGuideBytes;
  return launch(staged ? transform_symbols<true> : transform_symbols<false>, divide_up(blocks.count, warps),
                warps * kWarp, staged ? tables.guide_bytes : 0, stream, tables, blocks);
}

Status run_transform_values(const TransformTables& tables, const TransformBlocks& blocks,
                            StreamHandle stream) {
  using namespace transform_detail;
  return launch(transform_values, divide_up(uint64_t{blocks.count} * tables.components, kValueWarps),
                kValueWarps * kWarp, 0, stream, tables, blocks);
}

Status run_transform_vectors(const TransformTables& tables, const TokenValues& values, float* out,
                             StreamHandle stream) {
  using namespace transform_detail;
  const unsigned tiles = divide_up(values.tokens, kTileTokens) * divide_up(tables.width, kTileColumns);
  return launch(transform_vectors, tiles, kVectorWarps * kWarp, kVectorSharedBytes, stream, tables, values,
                out);
}

}  // namespace kvcodec::cuda
