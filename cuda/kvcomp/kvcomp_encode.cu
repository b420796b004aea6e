// Encoding of blocks of keys and values (KVComp, section 3.2): quantization, the histogram that the book is
// made from, and, once there is a book, the bits of every run, a prefix sum over the runs of a block and one
// over all blocks, and the codes themselves, each where it belongs. Nothing is placed by atomics: they only
// put together words that two neighbours share.
//
// What is decided for a unit and done to a value is lib/quant/error_bounded_value.hpp, so the streams are
// those of the CPU.
#include "cuda/kvcomp/kvcomp_encode.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/quant/error_bounded_value.hpp"

namespace kvcodec::cuda {

namespace kvcomp_detail {

namespace kernels = error_bounded_kernels;

/// One block of one head.
struct BlockValues {
  const uint16_t* values;
  size_t stride;
  bool brain;

  __device__ __forceinline__ uint16_t half(unsigned t, unsigned c) const { return values[t * stride + c]; }
  __device__ __forceinline__ float operator()(unsigned t, unsigned c) const {
    return brain ? bf16_to_float(half(t, c)) : f16_to_float(half(t, c));
  }
};

__device__ __forceinline__ BlockValues block_values(const KvcompValues& v, uint64_t block) {
  const size_t stride = size_t{v.heads} * v.dims;
  return {v.values + block / v.heads * v.tokens * stride + block % v.heads * v.dims, stride, v.brain};
}

__device__ __forceinline__ kernels::Grid grid_of(float step, float bound, int origin) {
  return {step, step > 0 ? 1 / step : 0.0f, bound, static_cast<float>(kernels::kZeroLevelSymbol - origin)};
}

__device__ __forceinline__ bool value_fails(float x, const kernels::Grid& grid, bool brain) {
  return kernels::fails(x, kernels::level_of(x, grid.inverse), grid, brain);
}
__device__ __forceinline__ unsigned value_symbol(float x, const kernels::Grid& grid, bool brain) {
  const float level = kernels::level_of(x, grid.inverse);
  return kernels::symbol_of(level, kernels::fails(x, level, grid, brain), grid);
}

/// The step of a unit of n values; failures(grid) counts those that do not come back.
template <class Failures>
__device__ __forceinline__ float fit_step(const kernels::Extremes& unit, double limit, float bound, size_t n,
                                          bool brain, Failures&& failures) {
  const float widest = kernels::widest_step(unit, limit);
  if (widest == 0) return 0;
  kernels::StepSearch search(widest, kernels::spacing_at(unit.magnitude(), brain), n,
                             failures(grid_of(widest, bound, 0)));
  while (const float step = search.next()) search.tried(step, failures(grid_of(step, bound, 0)));
  return search.best();
}

__device__ __forceinline__ double limit_of(const KvcompBound& bound, const kernels::Extremes& unit) {
  return kernels::bound_of(bound.range, bound.absolute, bound.magnitude, unit);
}

__device__ __forceinline__ float smaller(float a, float b) { return b < a ? b : a; }
__device__ __forceinline__ float larger(float a, float b) { return b > a ? b : a; }

/// Extremes over all lanes.
__device__ __forceinline__ kernels::Extremes warp_extremes(kernels::Extremes own) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    own.low = smaller(__shfl_xor_sync(kAllLanes, own.low, step), own.low);
    own.high = larger(__shfl_xor_sync(kAllLanes, own.high, step), own.high);
  }
  return own;
}

__device__ __forceinline__ void take_in(kernels::Extremes& extremes, float value) {
  extremes.low = smaller(value, extremes.low);
  extremes.high = larger(value, extremes.high);
}

/// Extremes of n values, and their sum where it is asked for.
struct Moments {
  kernels::Extremes extremes;
  float sum = 0;
};
template <bool kSum, class Value>
__device__ __forceinline__ Moments moments_of(unsigned n, const Value& value_at) {
  Moments moments;
#pragma unroll 8
  for (unsigned i = 0; i < n; ++i) {
    const float value = value_at(i);
    take_in(moments.extremes, value);
    if (kSum) moments.sum += value;
  }
  return moments;
}

/// The origin of channel c, also stored.
__device__ __forceinline__ int choose_origin(const KvcompValues& v, uint64_t block, unsigned c,
                                             const Moments& moments, float step) {
  if (!v.has_origins) return 0;
  const int16_t origin =
      kernels::origin_of(moments.extremes, moments.sum, v.tokens, step > 0 ? 1 / step : 0.0f);
  v.origins[block * v.dims + c] = origin;
  return origin;
}

/// Halfs from one row of staged values to the next: an odd number of words, so that neither a row nor a column
/// has two values in a bank.
KVCODEC_HD unsigned staged_stride(unsigned columns) { return ((columns + 1) / 2 | 1) * 2; }

/// Copies rows of values to shared memory, for a warp. A lane stays in a column of parts of rows, so that it has
/// many loads under way.
__device__ __forceinline__ void stage(const uint16_t* values, size_t stride, unsigned rows, unsigned columns,
                                      uint16_t* tile) {
  const unsigned lane = threadIdx.x % kWarp, staged = staged_stride(columns);
  const auto each_part = [&](unsigned parts, auto&& copy) {
    const unsigned across = parts < kWarp ? parts : kWarp, together = kWarp / across;
    if (lane / across < together)
      for (unsigned part = lane % across; part < parts; part += across) {
#pragma unroll 8
        for (unsigned row = lane / across; row < rows; row += together) copy(row, part);
      }
  };
  __syncwarp();  // what was there is done with
  if (columns % 4 == 0 && stride % 4 == 0)
    each_part(columns / 4, [&](unsigned row, unsigned part) {
      const uint2 four = *reinterpret_cast<const uint2*>(values + row * stride + 4 * part);
      auto* const to = reinterpret_cast<uint32_t*>(tile + row * staged + 4 * part);
      to[0] = four.x, to[1] = four.y;
    });
  else
    each_part(columns,
              [&](unsigned row, unsigned part) { tile[row * staged + part] = values[row * stride + part]; });
  __syncwarp();
}

/// Values by units: columns, or rows.
template <bool kColumns, bool kBrain>
struct UnitValues {
  const uint16_t* values;
  size_t stride;

  __device__ __forceinline__ float operator()(unsigned unit, unsigned i) const {
    const uint16_t half = kColumns ? values[i * stride + unit] : values[unit * stride + i];
    return kBrain ? bf16_to_float(half) : f16_to_float(half);
  }
};

__device__ __forceinline__ kernels::Grid grid_of_lane(const kernels::Grid& own, unsigned lane) {
  return {__shfl_sync(kAllLanes, own.step, lane), __shfl_sync(kAllLanes, own.inverse, lane),
          __shfl_sync(kAllLanes, own.bound, lane), own.offset};
}

/// The step of each lane's unit of n values. What decides on steps is in double, so each lane does it for its own
/// unit; all lanes together then count what fails of the units that have another step to try, which are few.
template <bool kColumns, bool kBrain>
__device__ __forceinline__ float fit_unit_steps(const UnitValues<kColumns, kBrain>& x, unsigned own_unit,
                                                unsigned n, const kernels::Extremes& extremes, double limit,
                                                float bound) {
  const unsigned lane = threadIdx.x % kWarp;
  const float widest = kernels::widest_step(extremes, limit);
  kernels::Grid grid = grid_of(widest, bound, 0);
  unsigned failures = 0;
#pragma unroll 8
  for (unsigned i = 0; i < n; ++i) failures += value_fails(x(own_unit, i), grid, kBrain);
  kernels::StepSearch search(widest, kernels::spacing_at(extremes.magnitude(), kBrain), n, failures);
  const bool real = widest > 0 && lane == own_unit;
  float step = real ? search.next() : 0;
  while (const unsigned trying = __ballot_sync(kAllLanes, step > 0)) {
    grid = grid_of(step, bound, 0);
    for (unsigned left = trying; left != 0; left &= left - 1) {
      const unsigned who = static_cast<unsigned>(__ffs(static_cast<int>(left))) - 1;
      const kernels::Grid tried = grid_of_lane(grid, who);
      unsigned count = 0;
#pragma unroll 4
      for (unsigned from = 0; from < n; from += kWarp) {
        const bool there = from + lane < n;
        const bool fails = value_fails(x(who, there ? from + lane : 0), tried, kBrain) && there;
        count += static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, fails)));
      }
      if (lane == who) failures = count;
    }
    if (step > 0) {
      search.tried(step, failures);
      step = search.next();
    }
  }
  return widest > 0 ? search.best() : 0;
}

/// Symbols of a row, by all lanes.
template <bool kBrain>
__device__ __forceinline__ void quantize_row(const UnitValues<false, kBrain>& x, unsigned unit, unsigned n,
                                             const kernels::Grid& grid, uint8_t* symbols) {
  const unsigned lane = threadIdx.x % kWarp;
  const auto symbol = [&](unsigned i) { return value_symbol(x(unit, i), grid, kBrain); };
  if (n % 4 == 0)
    for (unsigned i = 4 * lane; i < n; i += 4 * kWarp)
      *reinterpret_cast<uint32_t*>(symbols + i) =
          symbol(i) | symbol(i + 1) << 8 | symbol(i + 2) << 16 | symbol(i + 3) << 24;
  else
    for (unsigned i = lane; i < n; i += kWarp) symbols[i] = static_cast<uint8_t>(symbol(i));
}

}  // namespace kvcomp_detail

/// Keys with a step per channel (kColumns), or values with one per token: a lane per unit, and a block of threads
/// for each warp, so that the compiler knows that what decides on its way is the same for all lanes. kStaged: the
/// values of a warp's units are brought to shared memory, which there is room for; they are looked at three times
/// and more.
template <bool kColumns, bool kBrain, bool kStaged>
__global__ void __launch_bounds__(kWarp) kvcomp_quantize_units(KvcompValues v, KvcompBound bound) {
  using namespace kvcomp_detail;
  const unsigned lane = threadIdx.x;
  const unsigned units = kColumns ? v.dims : v.tokens, n = kColumns ? v.tokens : v.dims;
  const unsigned groups = (units + kWarp - 1) / kWarp;
  const uint64_t items = v.blocks() * groups;
  for (uint64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const uint64_t block = item / groups;
    const unsigned first = static_cast<unsigned>(item % groups) * kWarp;
    const unsigned count = units - first < kWarp ? units - first : kWarp;
    const BlockValues there = block_values(v, block);
    UnitValues<kColumns, kBrain> x{there.values + (kColumns ? first : first * there.stride), there.stride};
    if constexpr (kStaged) {
      auto* const tile = dynamic_shared<uint16_t>();
      const unsigned columns = kColumns ? count : n;
      stage(x.values, x.stride, kColumns ? n : count, columns, tile);
      x = {tile, staged_stride(columns)};
    }
    const bool real = lane < count;
    const unsigned own = real ? lane : count - 1;
    const Moments moments = moments_of<kColumns>(n, [&](unsigned i) { return x(own, i); });
    const double limit = limit_of(bound, moments.extremes);
    const float float_bound = kernels::float_below(limit);
    const float step = fit_unit_steps(x, own, n, moments.extremes, limit, float_bound);
    if (real) v.steps[block * units + first + lane] = step;
    uint8_t* const symbols = v.symbols + block * v.tokens * v.dims + (kColumns ? first : size_t{first} * n);
    if constexpr (kColumns) {
      if (!real) continue;
      const int origin = choose_origin(v, block, first + lane, moments, step);
      const kernels::Grid grid = grid_of(step, float_bound, origin);
#pragma unroll 8
      for (unsigned t = 0; t < n; ++t)
        symbols[size_t{t} * v.dims + lane] = static_cast<uint8_t>(value_symbol(x(lane, t), grid, kBrain));
    } else {
      const kernels::Grid grid = grid_of(step, float_bound, 0);
      for (unsigned unit = 0; unit < count; ++unit)
        quantize_row(x, unit, n, grid_of_lane(grid, unit), symbols + size_t{unit} * n);
    }
  }
}

/// Keys with one step: a block of threads per block.
__global__ void kvcomp_quantize_blocks(KvcompValues v, KvcompBound bound) {
  using namespace kvcomp_detail;
  KVCODEC_SHARED_ARRAY(float, extremes, 32);
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const uint64_t blocks = v.blocks();
  for (uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const BlockValues x = block_values(v, block);
    const auto for_values = [&](auto&& body) {
      for (unsigned t = warp; t < v.tokens; t += warps)
        for (unsigned c = lane; c < v.dims; c += kWarp) body(x(t, c));
    };
    kernels::Extremes own;
    for_values([&](float value) { take_in(own, value); });
    own = warp_extremes(own);
    kernels::Extremes unit;
    unit.low =
        over_warps<0>(own.low, extremes, [](float all, float of_warp) { return smaller(of_warp, all); });
    unit.high =
        over_warps<0>(own.high, extremes, [](float all, float of_warp) { return larger(of_warp, all); });
    const double limit = limit_of(bound, unit);
    const float float_bound = kernels::float_below(limit);
    const float step = fit_step(
        unit, limit, float_bound, size_t{v.tokens} * v.dims, v.brain, [&](const kernels::Grid& grid) {
          unsigned failures = 0;
          for_values([&](float value) { failures += value_fails(value, grid, v.brain); });
          return over_warps<0>(sum_of_lanes(failures), sums, [](unsigned a, unsigned b) { return a + b; });
        });
    if (threadIdx.x == 0) v.steps[block] = step;
    for (unsigned c = threadIdx.x; c < v.dims; c += blockDim.x) {
      const auto value = [&](unsigned t) { return x(t, c); };
      const int origin = choose_origin(v, block, c, moments_of<true>(v.tokens, value), step);
      const kernels::Grid grid = grid_of(step, float_bound, origin);
      uint8_t* const to = v.symbols + block * v.tokens * v.dims + c;
      for (unsigned t = 0; t < v.tokens; ++t)
        (void)kernels::quantize(value(t), grid, v.brain, to[size_t{t} * v.dims]);
    }
  }
}

/// One table of counts for each block of threads, added to `counts` at the end. A thread takes 16 symbols at a
/// time: symbol by symbol, it did nothing but wait for memory. symbols: aligned to 16 bytes.
__global__ void kvcomp_histogram(const uint8_t* symbols, size_t size, unsigned long long* counts) {
  KVCODEC_SHARED_ARRAY(unsigned, table, 256);
  for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) table[i] = 0;
  __syncthreads();
  const auto* const groups = reinterpret_cast<const uint4*>(symbols);
  const size_t whole = size / 16, first = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto count = [&](uint32_t word) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) atomicAdd(table + (word >> (8 * i) & 255), 1u);
  };
#pragma unroll 4
  for (size_t i = first; i < whole; i += size_t{gridDim.x} * blockDim.x) {
    const uint4 group = groups[i];
    count(group.x), count(group.y), count(group.z), count(group.w);
  }
  if (first < size % 16) atomicAdd(table + symbols[whole * 16 + first], 1u);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
    if (table[i] > 0) atomicAdd(counts + i, static_cast<unsigned long long>(table[i]));
}

namespace kvcomp_detail {

/// Bits of a symbol with this code.
__device__ __forceinline__ unsigned code_bits(uint32_t code) {
  static_assert(kKvcompExact == 16);  // the bits of an exact value, behind a length in bits 0-3
  return code & 31;
}

/// Symbols of a run that a lane takes at a time. One at a time, it waited for memory at each of them, and the
/// lanes of keys, whose runs are rows, asked for 32 cache lines each time.
constexpr unsigned kTogether = 16;
/// The symbol behind the end of a run: a code of no bits.
constexpr unsigned kNoSymbol = 256, kCodes = kNoSymbol + 1;

/// Maximum number of threads of a block.
constexpr unsigned kMaxThreads = 256;
/// Words of a payload that is put together in shared memory: 4 KB, so that a multiprocessor has room for 32 blocks.
constexpr unsigned kStagedWords = 1024;

/// Fills a block's table of codes, kCodes of them.
__device__ __forceinline__ void load_codes(const uint32_t* codes, uint32_t* table) {
  for (unsigned i = threadIdx.x; i < kCodes; i += blockDim.x) table[i] = i < kNoSymbol ? codes[i] : 0;
  __syncthreads();
}

/// The symbols of a run of a block. kWide: a run is a row of whole groups of kTogether.
template <bool kWide>
struct RunSymbols {
  const uint8_t* first;
  unsigned stride, count;

  __device__ __forceinline__ RunSymbols(const KvcompValues& v, uint64_t block, unsigned run)
      : first(v.symbols + block * v.tokens * v.dims + (v.by_channel ? run : size_t{run} * v.dims)),
        stride(v.by_channel ? v.dims : 1),
        count(v.run_length()) {}

  /// Calls body(i, symbols) for each group; symbols[k] is symbol i + k.
  template <class Body>
  __device__ __forceinline__ void each_group(Body&& body) const {
    if constexpr (kWide) {
      // Two groups, a sector of memory, are asked for at once: when the second one's turn comes, the first level
      // cache has long had other sectors to keep.
      for (unsigned i = 0; i < count; i += 2 * kTogether) {
        const bool second = i + kTogether < count;
        const uint4 group = *reinterpret_cast<const uint4*>(first + i),
                    next = *reinterpret_cast<const uint4*>(first + i + (second ? kTogether : 0));
        each_of(group, i, body);
        if (second) each_of(next, i + kTogether, body);
      }
    } else {
      for (unsigned i = 0; i < count; i += kTogether) {
        unsigned symbols[kTogether];
        const uint8_t* from = first + size_t{i} * stride;
#pragma unroll
        for (unsigned k = 0; k < kTogether; ++k, from += stride)
          symbols[k] = i + k < count ? *from : kNoSymbol;
        body(i, symbols);
      }
    }
  }

 private:
  template <class Body>
  static __device__ __forceinline__ void each_of(const uint4& group, unsigned i, Body&& body) {
    const uint32_t words[4] = {group.x, group.y, group.z, group.w};
    unsigned symbols[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) symbols[k] = words[k / 4] >> (k % 4 * 8) & 255;
    body(i, symbols);
  }
};

/// ceil(log2 n) for n > 0: index_bits.
__device__ __forceinline__ unsigned bits_for(uint32_t n) {
  return n <= 1 ? 0 : 32 - static_cast<unsigned>(__clz(static_cast<int>(n - 1)));
}

/// Sum, least and most.
struct Range {
  int64_t sum;
  int least, most;
};
__device__ __forceinline__ Range no_range() { return {0, 0x7fffffff, -0x7fffffff}; }
__device__ __forceinline__ Range join(const Range& a, const Range& b) {
  return {a.sum + b.sum, a.least < b.least ? a.least : b.least, a.most > b.most ? a.most : b.most};
}
/// Over a block of threads. ranges: shared, one for each warp.
__device__ __forceinline__ Range block_range(Range own, Range* ranges) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    own =
        join(own, {__shfl_xor_sync(kAllLanes, static_cast<long long>(own.sum), step),
                   __shfl_xor_sync(kAllLanes, own.least, step), __shfl_xor_sync(kAllLanes, own.most, step)});
  return over_warps<0>(own, ranges, [](const Range& a, const Range& b) { return join(a, b); });
}

__device__ __forceinline__ uint32_t swapped16(uint32_t value) {
  return (value >> 8 & 0xff) | (value & 0xff) << 8;
}

/// Sets bits of a stream that are zero: the low `width` (1..32) of value, from bit `bit` on.
__device__ __forceinline__ void set_bits(uint32_t* words, uint64_t bit, uint32_t value, unsigned width) {
  const uint64_t both = uint64_t{value} << (64 - width) >> (bit % 32);
  const uint32_t high = static_cast<uint32_t>(both >> 32), low = static_cast<uint32_t>(both);
  if (high != 0) atomicOr(words + bit / 32, __byte_perm(high, 0, 0x0123));
  if (low != 0) atomicOr(words + bit / 32 + 1, __byte_perm(low, 0, 0x0123));
}

/// Writes bits one behind the other. Words that it fills from their first bit on are its own; the first and
/// the last may be shared with neighbours.
class BitPen {
 public:
  __device__ __forceinline__ BitPen(uint32_t* words, uint64_t bit)
      : word_(words + bit / 32), used_(static_cast<unsigned>(bit % 32)), shared_(true) {}
  /// Up to 32 bits.
  __device__ __forceinline__ void put(uint32_t value, unsigned width) {
    bits_ = bits_ << width | value;
    used_ += width;
    if (used_ < 32) return;
    used_ -= 32;
    const uint32_t full = __byte_perm(static_cast<uint32_t>(bits_ >> used_), 0, 0x0123);
    if (shared_)
      atomicOr(word_, full);
    else
      *word_ = full;
    shared_ = false;
    ++word_;
  }
  __device__ __forceinline__ void finish() {
    if (used_ > 0) atomicOr(word_, __byte_perm(static_cast<uint32_t>(bits_) << (32 - used_), 0, 0x0123));
  }

 private:
  uint32_t* word_;
  unsigned used_;  ///< bits of *word_ that are there: the lowest of bits_; what is above them is written
  bool shared_;
  uint64_t bits_ = 0;
};

/// Codes of a run's symbols, then its exact values.
template <bool kWide>
__device__ __forceinline__ void write_run(const KvcompValues& v, uint64_t block, unsigned run,
                                          const uint32_t* table, BitPen pen) {
  uint32_t all = 0;
  const RunSymbols<kWide> symbols_of_run(v, block, run);
  symbols_of_run.each_group([&](unsigned, const unsigned(&symbols)[kTogether]) {
#pragma unroll
    for (unsigned k = 0; k < kTogether; k += 2) {  // a code has at most 15 bits
      const uint32_t code = table[symbols[k]], next = table[symbols[k + 1]];
      all |= code | next;
      pen.put(code >> 16 << (next & 15) | next >> 16, (code & 15) + (next & 15));
    }
  });
  if (all & kKvcompExact)
    symbols_of_run.each_group([&](unsigned i, const unsigned(&symbols)[kTogether]) {
      uint32_t exact = 0;
#pragma unroll
      for (unsigned k = 0; k < kTogether; ++k) exact |= (table[symbols[k]] & kKvcompExact) << k;
      for (exact /= kKvcompExact; exact != 0; exact &= exact - 1) {
        const unsigned at = i + static_cast<unsigned>(__ffs(static_cast<int>(exact))) - 1;
        pen.put(v.by_channel ? block_values(v, block).half(at, run) : block_values(v, block).half(run, at),
                16);
      }
    });
  pen.finish();
}

}  // namespace kvcomp_detail

/// A block of threads per block, a thread per run.
template <bool kWide>
__global__ void __launch_bounds__(kvcomp_detail::kMaxThreads, kWide ? 8 : 5)
    kvcomp_sizes(KvcompValues v, KvcompCoding coding) {
  using namespace kvcomp_detail;
  KVCODEC_SHARED_ARRAY(uint32_t, table, kCodes);
  KVCODEC_SHARED_ARRAY(Range, ranges, 32);
  load_codes(coding.codes, table);
  const unsigned runs = v.runs();
  const uint64_t blocks = v.blocks();
  for (uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    Range own = no_range();
    for (unsigned run = threadIdx.x; run < runs; run += blockDim.x) {
      unsigned bits = 0;
      RunSymbols<kWide>(v, block, run).each_group([&](unsigned, const unsigned(&symbols)[kTogether]) {
#pragma unroll
        for (unsigned k = 0; k < kTogether; ++k) bits += code_bits(table[symbols[k]]);
      });
      coding.run_bits[block * runs + run] = bits;
      own = join(own, {bits, static_cast<int>(bits), static_cast<int>(bits)});
    }
    const Range all = block_range(own, ranges);
    Range origins = no_range();
    if (v.has_origins) {
      for (unsigned c = threadIdx.x; c < v.dims; c += blockDim.x) {
        const int origin = v.origins[block * v.dims + c];
        origins = join(origins, {0, origin, origin});
      }
      origins = block_range(origins, ranges);
    }
    if (threadIdx.x != 0) continue;
    KvcompSizes size{};
    size.mode = static_cast<uint8_t>(bits_for(static_cast<uint32_t>(all.most - all.least) + 1));
    size.base = static_cast<uint32_t>(all.least);
    size.counts = 2 + (runs * size.mode + 7) / 8;
    size.payload = static_cast<uint32_t>((all.sum + 7) / 8);
    size.steps = v.steps_per_block;
    if (v.has_origins) {
      size.min_origin = static_cast<int16_t>(origins.least);
      size.origin_bits =
          static_cast<uint8_t>(bits_for(static_cast<uint32_t>(origins.most - origins.least) + 1));
      size.origins = 2 + (v.dims * size.origin_bits + 7) / 8;
    }
    // Bytes that a raw block saves: its size, steps, origins and their bits.
    const uint64_t side = 4 + 2 * uint64_t{size.steps} + (v.has_origins ? 1 + size.origins : 0);
    const uint64_t raw = 2 * uint64_t{v.tokens} * v.dims;
    if (uint64_t{size.counts} + size.payload + side >= raw) {
      size = {};
      size.payload = static_cast<uint32_t>(raw);
      size.mode = 255;
    }
    coding.sizes[block] = size;
  }
}

/// One block of threads, each with a stretch of blocks: prefix sums of the four sizes.
__global__ void kvcomp_places(uint64_t blocks, KvcompCoding coding) {
  using Sum = unsigned long long;
  KVCODEC_SHARED_ARRAY(Sum, sums, 32);
  const uint64_t share = (blocks + blockDim.x - 1) / blockDim.x;
  const uint64_t first = share * threadIdx.x < blocks ? share * threadIdx.x : blocks;
  const uint64_t end = first + share < blocks ? first + share : blocks;
  Sum own[4] = {}, start[4];
  const auto add = [](Sum(&to)[4], const KvcompSizes& size) {
    to[0] += size.payload, to[1] += size.counts, to[2] += size.origins, to[3] += size.steps;
  };
#pragma unroll 4
  for (uint64_t block = first; block < end; ++block) add(own, coding.sizes[block]);
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    Sum total;
    start[k] = prefix_sum(own[k], sums, total);
    if (threadIdx.x == 0) coding.totals[k] = total;
  }
#pragma unroll 4
  for (uint64_t block = first; block < end; ++block) {
    const KvcompSizes size = coding.sizes[block];
    coding.places[block] = {start[0],     start[1],  start[2],        start[3],
                            size.payload, size.mode, size.origin_bits};
    add(start, size);
  }
}

/// A block of threads per block, a thread per run. Payloads that fit are put together in shared memory and written as
/// they lie: with the words of runs one by one to where they belong, 32 lanes wrote to 32 sectors each time, and all
/// first and last words, half of them for values, were atomics (keys took 140 us of 32,768 tokens, values 120).
template <bool kWide>
__global__ void __launch_bounds__(kvcomp_detail::kMaxThreads, kWide ? 8 : 6)
    kvcomp_write(KvcompValues v, KvcompCoding coding, KvcompOut out) {
  using namespace kvcomp_detail;
  KVCODEC_SHARED_ARRAY(uint32_t, table, kCodes);
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  KVCODEC_SHARED_ARRAY(uint32_t, staged, kStagedWords);
  load_codes(coding.codes, table);
  const unsigned runs = v.runs();
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const uint64_t blocks = v.blocks();
  for (uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const KvcompPlace place = coding.places[block];
    const KvcompSizes size = coding.sizes[block];
    const BlockValues x = block_values(v, block);
    if (place.mode == 255) {
      for (unsigned t = warp; t < v.tokens; t += warps)
        for (unsigned c = lane; c < v.dims; c += kWarp)
          set_bits(out.payload, (place.payload + 2 * (uint64_t{t} * v.dims + c)) * 8, swapped16(x.half(t, c)),
                   16);
      continue;  // all threads of the block do
    }
    for (unsigned i = threadIdx.x; i < v.steps_per_block; i += blockDim.x)
      out.steps[place.steps + i] = f16_from_float(v.steps[block * v.steps_per_block + i]);
    const uint64_t counts = place.counts * 8, origins = place.origins * 8;
    if (threadIdx.x == 0) {
      set_bits(out.counts, counts, swapped16(size.base), 16);
      if (v.has_origins)
        set_bits(out.origins, origins, swapped16(static_cast<uint16_t>(size.min_origin)), 16);
    }
    if (v.has_origins && size.origin_bits > 0)
      for (unsigned c = threadIdx.x; c < v.dims; c += blockDim.x)
        set_bits(out.origins, origins + 16 + uint64_t{c} * size.origin_bits,
                 static_cast<uint32_t>(v.origins[block * v.dims + c] - size.min_origin), size.origin_bits);
    // The words of the payload, of which the first and the last are shared with other blocks.
    uint32_t* const words = out.payload + place.payload / 4;
    const unsigned count = static_cast<unsigned>(place.payload % 4 + place.payload_bytes + 3) / 4;
    const bool fits = count <= kStagedWords;
    if (fits)  // each thread its own words, from block to block; barriers follow
      for (unsigned i = threadIdx.x; i < count; i += blockDim.x) staged[i] = 0;
    uint32_t bit = static_cast<uint32_t>(place.payload % 4) * 8;
    for (unsigned first = 0; first < runs; first += blockDim.x) {
      const unsigned run = first + threadIdx.x;
      const unsigned bits = run < runs ? coding.run_bits[block * runs + run] : 0;
      unsigned total;
      const uint32_t start = bit + prefix_sum(bits, sums, total);
      bit += total;
      if (run >= runs) continue;
      if (size.mode > 0)
        set_bits(out.counts, counts + 16 + uint64_t{run} * size.mode, bits - size.base, size.mode);
      if (fits)
        write_run<kWide>(v, block, run, table, BitPen(staged, start));
      else
        write_run<kWide>(v, block, run, table, BitPen(words, start));
    }
    if (!fits) continue;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
      if (i == 0 || i == count - 1)
        atomicOr(words + i, staged[i]);
      else
        words[i] = staged[i];
  }
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

/// Threads of a block of threads: as many as there is something to do for, whole warps.
unsigned threads_for(size_t items) {
  constexpr size_t kMax = kvcomp_detail::kMaxThreads;
  const size_t whole = size_t{divide_up(items, kWarp)} * kWarp;
  return static_cast<unsigned>(whole < kWarp ? kWarp : whole < kMax ? whole : kMax);
}

/// Blocks of threads, which take turns where there are more items.
unsigned blocks_for(uint64_t items) {
  constexpr uint64_t kMax = 1 << 16;
  return static_cast<unsigned>(items < kMax ? items : kMax);
}

bool wide(const KvcompValues& values) {
  return !values.by_channel && values.dims % kvcomp_detail::kTogether == 0;
}

/// Shared memory for the values of 32 units: what is longer is read from far away.
constexpr size_t kMaxStaged = 32 * 1024;

}  // namespace

Status run_kvcomp_quantize(const KvcompValues& values, const KvcompBound& bound, StreamHandle stream) {
  using Kernel = void (*)(KvcompValues, KvcompBound);
  if (!values.by_channel && !values.channel_steps)
    return launch(kvcomp_quantize_blocks, blocks_for(values.blocks()), threads_for(values.dims), 0, stream,
                  values, bound);
  const uint32_t units = values.channel_steps ? values.dims : values.tokens;
  const size_t rows = values.channel_steps ? values.tokens : kWarp;
  const uint32_t columns = values.channel_steps ? kWarp : values.dims;
  const size_t staged = sizeof(uint16_t) * rows * kvcomp_detail::staged_stride(columns);
  const bool fits = staged <= kMaxStaged;
  constexpr Kernel kKernels[2][2][2] = {
      {{kvcomp_quantize_units<false, false, false>, kvcomp_quantize_units<false, false, true>},
       {kvcomp_quantize_units<false, true, false>, kvcomp_quantize_units<false, true, true>}},
      {{kvcomp_quantize_units<true, false, false>, kvcomp_quantize_units<true, false, true>},
       {kvcomp_quantize_units<true, true, false>, kvcomp_quantize_units<true, true, true>}}};
  return launch(kKernels[values.channel_steps][values.brain][fits],
                blocks_for(values.blocks() * divide_up(units, kWarp)), kWarp, fits ? staged : 0, stream,
                values, bound);
}

Status run_kvcomp_histogram(const uint8_t* symbols, size_t size, unsigned long long* counts,
                            StreamHandle stream) {
  // A block of threads counts in 32 bits, and clears and adds up its table once for many symbols.
  constexpr size_t kSymbols = size_t{1} << 15;
  return launch(kvcomp_histogram, blocks_for(divide_up(size, kSymbols)), 256, 0, stream, symbols, size,
                counts);
}

Status run_kvcomp_sizes(const KvcompValues& values, const KvcompCoding& coding, StreamHandle stream) {
  const uint64_t blocks = values.blocks();
  const Status status = launch(wide(values) ? kvcomp_sizes<true> : kvcomp_sizes<false>, blocks_for(blocks),
                               threads_for(values.runs()), 0, stream, values, coding);
  if (status != 0) return status;
  return launch(kvcomp_places, 1, blocks > 256 ? 512 : 64, 0, stream, blocks, coding);
}

Status run_kvcomp_write(const KvcompValues& values, const KvcompCoding& coding, const KvcompOut& out,
                        StreamHandle stream) {
  return launch(wide(values) ? kvcomp_write<true> : kvcomp_write<false>, blocks_for(values.blocks()),
                threads_for(values.runs()), 0, stream, values, coding, out);
}

}  // namespace kvcodec::cuda
