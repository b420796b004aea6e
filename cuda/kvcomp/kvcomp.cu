// Decoding of blocks of keys and values, alone and fused with the product (KVComp, sections 3.3.1 and 3.3.2).
//
// A block belongs to a team of whole warps, a run to a thread: a token's channels where keys are decoded, a
// channel's tokens of values. The team brings the block's payload to shared memory in 16-byte pieces, finds
// where its runs begin by a prefix sum of their bits, and steps through them together, two symbols of every
// run at a time. A step is a look-up in shared memory (lib/entropy/huffman_step.hpp). For values, the data of
// a position in the run (a step, weights) is the same for all threads, and each thread sums its own channel.
// For keys, the threads of a warp exchange symbols and multiply them on the matrix units. Runs with escapes,
// which are few, are decoded a second time for them.
//
// Several teams make up a block of threads and share the table. Threads that have nothing to do take part in
// all barriers.
#include <type_traits>

#include "cuda/kvcomp/kvcomp.cuh"
#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {

/// Symbols that are decoded between two checks for escapes. Those of keys are multiplied then.
constexpr unsigned kKeyStep = 16;

/// Symbols of a row of keys that are decoded before they are written out together, and the bytes from one
/// row to the next: 16 bytes of eight neighbouring rows lie in different banks.
constexpr unsigned kKeyChunk = 64, kKeyChunkStride = kKeyChunk + 16;

/// Products of query and step are scaled so that the largest is at least 2^kKeyTop: far from the overflow of f16,
/// while each loses at most 2^-(kKeyTop + 25) of the largest, half of the smallest f16.
constexpr int kKeyTop = 10;

constexpr unsigned kKvcompThreads = 256;  ///< maximum threads of a block of threads
/// The same where keys are multiplied. The registers of a multiprocessor are enough for seven such blocks, but not for
/// four of 256 threads: 98 us instead of 103 (131,072 tokens), and the same for 32,768.
constexpr unsigned kKeyThreads = 128;

/// Blocks of kKeyThreads that a multiprocessor must have registers for: while one warp waits for shared memory,
/// others go on.
constexpr unsigned kvcomp_together(unsigned queries, bool staged) { return queries > 4 || !staged ? 4 : 7; }

KVCODEC_HD constexpr unsigned round_up(unsigned value, unsigned to) { return (value + to - 1) / to * to; }

/// Division of a launch into teams, and its layout of shared memory:
///   table | stage of each team | counts of each team | (floats of each team) | (chunk of each thread)
struct KvcompTeams {
  unsigned teams, threads;  ///< of a block of threads, of a team
  unsigned stage_bytes;     ///< 0: payload is read where it lies
  unsigned count_bytes;     ///< of each team
  unsigned floats;          ///< of each team
  unsigned chunks;          ///< bytes of each thread
};

/// The work of a launch.
struct KvcompTask {
  KvcompStore store;
  KvcompTeams teams;
  KvcompRange range;
  uint32_t* damaged;
};

/// Queries, or weights, of a launch: `count` of them for each head, from first on of the per_head that there are.
struct KvcompVectors {
  const float* rows;
  size_t stride;  ///< of rows of tokens: scores, or weights
  unsigned per_head, first, count;
};

namespace kvcomp_detail {

struct Team {
  unsigned index, thread, threads, first_warp, warps;
};

__device__ __forceinline__ Team own_team(const KvcompTeams& teams) {
  const unsigned index = threadIdx.x / teams.threads;
  return {index, threadIdx.x - index * teams.threads, teams.threads, index * teams.threads / kWarp,
          teams.threads / kWarp};
}

struct Shared {
  uint32_t* table;
  unsigned char* stage;
  unsigned char* counts;
  float* floats;
  unsigned char* chunk;   // of this thread
  unsigned char* chunks;  // of its team
};

__device__ __forceinline__ Shared share(const KvcompTeams& teams, const Team& team) {
  unsigned char* at = dynamic_shared();
  Shared shared;
  shared.table = reinterpret_cast<uint32_t*>(at);
  at += sizeof(uint32_t) << kStepWindow;
  shared.stage = at + team.index * teams.stage_bytes;
  at += teams.teams * teams.stage_bytes;
  shared.counts = at + team.index * teams.count_bytes;
  at += teams.teams * teams.count_bytes;
  shared.floats = reinterpret_cast<float*>(at) + team.index * teams.floats;
  at += teams.teams * teams.floats * sizeof(float);
  shared.chunks = at + team.index * teams.threads * teams.chunks;
  shared.chunk = shared.chunks + team.thread * teams.chunks;
  return shared;
}

/// Starts copying the table to shared memory. It is there when the first payload is.
__device__ __forceinline__ void load_table(const KvcompStore& store, uint32_t* table) {
  for (unsigned i = 4 * threadIdx.x; i < 1u << kStepWindow; i += 4 * blockDim.x)
    copy_async16(table + i, store.table + i);
}

/// The payload of a block. It begins at `bit`, and no run begins behind `end`.
template <bool kStaged>
struct Payload {
  using Bit = std::conditional_t<kStaged, uint32_t, uint64_t>;  ///< also counts bits of runs, damaged or not
  std::conditional_t<kStaged, OpenWordStream, WordStream> stream;
  Bit bit, end;

  /// First bit of a run. start: by the counts, which may be damaged.
  __device__ __forceinline__ Bit run_at(Bit start) const { return start < end ? start : end; }
  /// True if runs that end before bit `behind` fill the payload.
  __device__ __forceinline__ bool is_all(Bit behind) const {
    return (behind - bit + 7) / 8 == (end - bit) / 8;
  }
};

/// A team's block, and the offsets of its parts, read at once. Later uses that are rare read them again from
/// `at`, which saves registers.
struct Block {
  const KvcompPlace* at = nullptr;
  KvcompPlace place{};
  bool raw = false, coded = false;  // neither: there is no block

  __device__ __forceinline__ Block(const KvcompStore& store, uint32_t item, bool is_there) {
    at = store.places + (is_there ? item : 0);
    if (!is_there) return;
    place = *at;
    raw = place.mode == 255, coded = !raw;
  }
};

/// Starts copying a coded block's payload to shared memory, if there is room for it.
template <bool kStaged>
__device__ __forceinline__ Payload<kStaged> open_payload(const KvcompStore& store, const Team& team,
                                                         const Block& block, unsigned char* stage) {
  const KvcompPlace& place = block.place;
  if constexpr (kStaged) {
    Payload<true> payload{{reinterpret_cast<const uint32_t*>(stage)}, 0, 0};
    if (block.coded) {
      const uint64_t first = place.payload / 16 * 16;
      const auto before = static_cast<unsigned>(place.payload - first);
      const auto* from = reinterpret_cast<const unsigned char*>(store.payload.words) + first;
      // 16 bytes more: a cursor looks ahead.
      for (unsigned i = 16 * team.thread; i < before + place.payload_bytes + 16; i += 16 * team.threads)
        copy_async16(stage + i, from + i);
      payload.bit = 8 * before;
      payload.end = 8 * (before + place.payload_bytes);
    }
    return payload;
  } else {
    return {store.payload, block.coded ? place.payload * 8 : 0,
            block.coded ? (place.payload + place.payload_bytes) * 8 : 0};
  }
}

/// Sum over the team's threads before this one; total: over all of them. sums: shared, one for each warp of
/// the block; a barrier separates earlier reads from this call. For all threads of all teams. Each lane reads
/// one warp's sum, of eight at most: prefix_sum, which takes them in turn, took 20 instructions for each.
__device__ __forceinline__ unsigned scan_team(unsigned value, const Team& team, unsigned* sums,
                                              unsigned& total) {
  constexpr unsigned kMaxWarps = kKvcompThreads / kWarp;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto sum_up = [&](unsigned own, unsigned count) {  // over the lanes up to this one, of `count`
#pragma unroll
    for (unsigned step = 1; step < count; step *= 2) {
      const unsigned below = __shfl_up_sync(kAllLanes, own, step);
      if (lane >= step) own += below;
    }
    return own;
  };
  const unsigned sum = sum_up(value, kWarp);
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  const unsigned of_warp = lane < team.warps ? sums[team.first_warp + lane] : 0;
  const unsigned up_to_warp = sum_up(of_warp, kMaxWarps);
  total = __shfl_sync(kAllLanes, up_to_warp, kMaxWarps - 1);
  const unsigned before =
      __shfl_sync(kAllLanes, up_to_warp - of_warp, static_cast<int>(warp - team.first_warp));
  return before + sum - value;
}

/// Up to 33 bits of a stream from `bit` on. The constructor starts the loads, their first use waits for them.
/// They can always be made, so that no branch makes them wait for each other.
class BitsAhead {
 public:
  template <class Words>
  __device__ __forceinline__ BitsAhead(const Words& stream, uint64_t bit)
      : first_(stream.stored(static_cast<uint32_t>(bit / 32))),
        second_(stream.stored(static_cast<uint32_t>(bit / 32) + 1)),
        shift_(static_cast<uint32_t>(bit % 32)) {}
  /// `width` of them, up to 32, behind the first `passed`.
  __device__ __forceinline__ uint32_t bits(unsigned width, unsigned passed = 0) const {
    const uint64_t both = uint64_t{swap_bytes(first_)} << 32 | swap_bytes(second_);
    return static_cast<uint32_t>((both << (shift_ + passed)) >> 32 >> (32 - width));
  }
  /// Two bytes, the lower one first.
  __device__ __forceinline__ uint32_t little_endian16() const {
    const uint32_t both = bits(16);
    return both >> 8 | (both & 0xff) << 8;
  }

 private:
  uint32_t first_, second_, shift_;
};

/// Starts copying the counts of a coded block's first runs, one for each thread of the team, to shared memory.
/// (There are no registers to read them early, and reading them late is another trip to memory.)
__device__ __forceinline__ void open_counts(const KvcompStore& store, const Team& team, const Block& block,
                                            unsigned runs, unsigned char* to) {
  if (!block.coded) return;
  const auto before = static_cast<unsigned>(block.place.counts % 16);
  const unsigned some = runs < team.threads ? runs : team.threads;
  // 8 bytes more: two words are read for each.
  const unsigned bytes = before + 2 + (some * block.place.mode + 7) / 8 + 8;
  const auto* from = reinterpret_cast<const unsigned char*>(store.counts.words) + block.place.counts - before;
  const unsigned own = 16 * team.thread;
  if (own < bytes) copy_async16(to + own, from + own);
}
/// Bytes of shared memory for them: a run has at most two.
constexpr unsigned kvcomp_count_bytes(unsigned threads) { return round_up(15 + 2 + 2 * threads + 8, 16); }

/// Bits of a run, from a block's counts at bit `counts`.
template <class Words>
__device__ __forceinline__ unsigned run_bits(const Words& words, uint64_t counts, unsigned mode,
                                             unsigned run) {
  const BitsAhead base(words, counts), more(words, counts + 16 + uint64_t{run} * mode);
  return base.little_endian16() + more.bits(mode);
}
/// Bits of a run of a coded block; the first ones' counts are in shared memory.
__device__ __forceinline__ unsigned run_bits(const KvcompStore& store, const Block& block,
                                             const Shared& shared, bool is_first, unsigned run) {
  if (!is_first) return run_bits(store.counts, block.at->counts * 8, block.at->mode, run);
  const OpenWordStream words{reinterpret_cast<const uint32_t*>(shared.counts)};
  const auto before = static_cast<unsigned>(block.place.counts % 16);
  return run_bits(words, before * 8, block.place.mode, run);
}

/// Levels of the origins of channels c and c + 1 of a coded block. The constructor starts the loads.
class Origins {
 public:
  __device__ __forceinline__ Origins(const KvcompStore& store, const KvcompPlace& place, unsigned c)
      : least_(store.origins, place.origins * 8),
        above_(store.origins, place.origins * 8 + 16 + uint64_t{c} * place.origin_bits) {}
  /// Level of channel c + k. The result is undefined behind the last channel.
  __device__ __forceinline__ float level(const KvcompStore& store, const KvcompPlace& place,
                                         unsigned k) const {
    if (!store.has_origins) return 0;
    return static_cast<float>(static_cast<int16_t>(least_.little_endian16()) +
                              static_cast<int>(above_.bits(place.origin_bits, k * place.origin_bits)));
  }

 private:
  BitsAhead least_, above_;  // the two together have 32 bits at most
};

__device__ __forceinline__ float step_of(const KvcompStore& store, const KvcompPlace& place, unsigned i) {
  return f16_to_float(store.steps[place.steps + i]);
}

__device__ __forceinline__ float from_storage(const KvcompStore& store, uint32_t bits) {
  const auto half = static_cast<uint16_t>(bits);
  return store.brain ? bf16_to_float(half) : f16_to_float(half);
}

__device__ __forceinline__ bool is_finite(float value) {
  return (bits_of(value) & 0x7f800000u) != 0x7f800000u;
}

__device__ __forceinline__ float raw_value(const KvcompStore& store, const KvcompPlace& place, unsigned t,
                                           unsigned c) {
  const uint32_t bits = store.payload.bits((place.payload + 2 * (uint64_t{t} * store.dims + c)) * 8, 16);
  return from_storage(store, bits >> 8 | (bits & 0xff) << 8);
}

/// The same column of the next row, by an addition. The compiler would multiply for each row of an unrolled loop.
template <class T>
__device__ __forceinline__ T* next_row(T* at, size_t stride) {
  at += stride;
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(at));
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}
/// The float 2^23 + byte kByte of four symbols: the byte becomes its last bits.
template <unsigned kByte>
__device__ __forceinline__ float byte_plus_2_23(uint32_t symbols) {
#ifdef __CUDA_ARCH__
  return float_of(__byte_perm(symbols, 0x4b000000u, 0x7440 + kByte));
#else
  return float_of(0x4b000000u | (symbols >> (8 * kByte) & 255));
#endif
}

/// BitCursor (test/lib/entropy/huffman_step_test.cpp) in fewer instructions: 12 instead of 17 for a look-up of two
/// symbols, as it advances in the same way after every entry and never resets `used`.
template <class Words>
class StepCursor {
 public:
  __device__ __forceinline__ StepCursor(const Words& words, uint64_t bit)
      : words_(words), next_(static_cast<uint32_t>(bit / 32) + 3), used_(static_cast<uint32_t>(bit % 32)) {
    high_ = words.word(next_ - 3), low_ = words.word(next_ - 2), ahead_ = words.stored(next_ - 1);
  }
  /// Passes over the next two entries, each of one or two codes. The caller checks for escapes. The 32 bits at hand are
  /// enough for both look-ups, as no entry has more than 12: there is one check for the next word.
  __device__ __forceinline__ void two_entries(const uint32_t* table, uint32_t& first, uint32_t& second) {
    const uint32_t bits = ahead();
    first = entry_of(table, bits);
    second = entry_of(table, __funnelshift_l(0, bits, first));  // by its last five bits
    pass(first + second);
  }
  /// Passes over the next code and returns its entry.
  __device__ __forceinline__ uint32_t one(const uint32_t* table) {
    const uint32_t entry = look(table);
    pass(entry >> 8);
    escapes_ += step_escapes(entry);
    return entry;
  }
  /// Passes over the next two codes and returns an entry with both symbols; its other bits mean nothing. If the first
  /// entry has one code, the 32 bits at hand are enough for the second, too: there is one check for the next word.
  __device__ __forceinline__ uint32_t two(const uint32_t* table) {
    const uint32_t bits = ahead();
    uint32_t entry = entry_of(table, bits), by = entry;
    if (step_alone(entry)) [[unlikely]] {
      const uint32_t second = entry_of(table, __funnelshift_l(0, bits, entry));  // by its last five bits
      escapes_ += step_escapes(entry) + step_escapes(second);
      by += second >> 8;
      entry = __byte_perm(entry, second, 0x6200);
    }
    pass(by);
    return entry;
  }
  /// Goes back to a bit of the same stream that was passed over, with no escapes since.
  __device__ __forceinline__ void back_to(uint64_t bit) {
    const unsigned escapes = escapes_;
    *this = StepCursor(words_, bit);
    escapes_ = escapes;
  }
  __device__ __forceinline__ unsigned escapes() const { return escapes_; }  ///< how many were passed over
  __device__ __forceinline__ const Words& words() const { return words_; }
  __device__ __forceinline__ uint64_t position() const { return uint64_t{next_ - 3} * 32 + (used_ & 31); }

 private:
  /// The next 32 bits.
  __device__ __forceinline__ uint32_t ahead() const {
    return __funnelshift_l(low_, high_, used_);  // by its last five bits
  }
  static __device__ __forceinline__ uint32_t entry_of(const uint32_t* table, uint32_t bits) {
    return table[bits >> (32 - kStepWindow)];
  }
  __device__ __forceinline__ uint32_t look(const uint32_t* table) const { return entry_of(table, ahead()); }
  /// Advances by the last five bits of `entry`; bit 5 is a zero.
  __device__ __forceinline__ void pass(uint32_t entry) {
    const uint32_t used = used_ + entry;
    if (((used ^ used_) & 32) != 0) {
      high_ = low_, low_ = swap_bytes(ahead_), ahead_ = words_.stored(next_);
      ++next_;
    }
    used_ = used;
  }

  Words words_;
  uint32_t next_;        // the word behind those at hand
  uint32_t used_;        // its last five bits: bits of high_; the sixth changes with the word
  uint32_t high_, low_;  // words in which the next code begins and ends
  uint32_t ahead_;       // the word behind them as it is stored, read early to hide its latency
  unsigned escapes_ = 0;
};

/// A place in a run before its first escape: symbol `index`, which begins at `bit`. Walking from the run's
/// first symbol for one escape took longer than all the rest of a small launch (keys of 8,192 tokens: 9 of 22 us).
template <class Bit>
struct Mark {
  Bit bit;
  unsigned index = 0;

  /// Moves to symbol i, where the cursor is, if no escape was passed.
  template <class Words>
  __device__ __forceinline__ void follow(const StepCursor<Words>& cursor, unsigned i) {
    if (cursor.escapes() == 0) bit = static_cast<Bit>(cursor.position()), index = i;
  }
};

/// Calls body(i, level) for the first n symbols of a run. Whether an entry has one code or two is checked before
/// the next is looked up: with eight looked up first, values took 57.6 us instead of 47.1 (32,768 tokens), and
/// decoding them 58.9 instead of 49.0.
template <class Words, class Bit, class Body>
__device__ __forceinline__ void walk(StepCursor<Words>& cursor, const uint32_t* table, unsigned n,
                                     Mark<Bit>& mark, Body&& body) {
  constexpr float kZero = 8388608.0f + kStepZero;
  const auto two = [&](unsigned i) {
    const uint32_t entry = cursor.two(table);
    body(i, byte_plus_2_23<2>(entry) - kZero);
    body(i + 1, byte_plus_2_23<3>(entry) - kZero);
  };
  unsigned i = 0;
#pragma unroll 1
  for (; i + kKeyStep <= n; i += kKeyStep) {
    mark.follow(cursor, i);
#pragma unroll
    for (unsigned k = 0; k < kKeyStep; k += 2) two(i + k);
  }
  mark.follow(cursor, i);
#pragma unroll 1
  for (; i + 2 <= n; i += 2) two(i);
  if (i < n) body(i, byte_plus_2_23<2>(cursor.one(table)) - kZero);
}

/// Calls body(i, value) for the values of a run that are stored exactly, all behind the mark. run: a cursor behind its codes.
/// Returns whether all values are finite.
template <class Words, class Bit, class Body>
__device__ __forceinline__ bool walk_exact(const KvcompStore& store, const StepCursor<Words>& run,
                                           const Mark<Bit>& mark, const uint32_t* table, Body&& body) {
  const Words& words = run.words();
  const unsigned escapes = run.escapes();
  uint64_t raw = run.position();
  StepCursor<Words> cursor(words, mark.bit);
  bool finite = true;
#pragma unroll 1
  for (unsigned i = mark.index; cursor.escapes() < escapes; ++i) {
    if (!step_escapes(cursor.one(table))) continue;
    const float value = from_storage(store, words.bits(raw, 16));
    raw += 16;
    finite &= is_finite(value);
    body(i, value);
  }
  return finite;
}

/// combine() of each of the values over the warp's lanes: lane i gets that of value i % kCount. Half of the
/// values go to the other half of the lanes at a time: 6 exchanges for four values, not 20.
template <unsigned kCount, class Combine>
__device__ __forceinline__ float reduce_each(float (&values)[kCount], Combine&& combine) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (unsigned half = kCount / 2; half > 0; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (unsigned i = 0; i < half; ++i) {
      const float kept = upper ? values[i + half] : values[i], given = upper ? values[i] : values[i + half];
      values[i] = combine(kept, __shfl_xor_sync(kAllLanes, given, half));
    }
  }
#pragma unroll
  for (unsigned step = kCount; step < kWarp; step *= 2)
    values[0] = combine(values[0], __shfl_xor_sync(kAllLanes, values[0], step));
  return values[0];
}

/// The next n (up to kKeyStep) symbols of a run, from symbol `first` on, zeros behind them.
template <class Words, class Bit>
__device__ __forceinline__ void next_few(StepCursor<Words>& cursor, const uint32_t* table, Mark<Bit>& mark,
                                         unsigned first, unsigned n, uint4* to) {
  mark.follow(cursor, first);
  constexpr uint32_t kZeros = kStepZero * 0x01010101u;
  *to = make_uint4(kZeros, kZeros, kZeros, kZeros);
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  unsigned i = 0;
#pragma unroll 1
  for (; i + 2 <= n; i += 2) {
    const uint32_t entry = cursor.two(table);
    bytes[i] = StepSymbol<2>{entry}.symbol(), bytes[i + 1] = StepSymbol<3>{entry}.symbol();
  }
  if (i < n) bytes[i] = StepSymbol<2>{cursor.one(table)}.symbol();
}

/// The next kKeyStep symbols. Codes of keys mostly share entries: all look-ups are made before the check for
/// entries with one code, which all escapes are.
template <class Words, class Bit>
__device__ __forceinline__ void next_step(StepCursor<Words>& cursor, const uint32_t* table, Mark<Bit>& mark,
                                          unsigned first, uint4* to) {
  const auto begin = static_cast<Bit>(cursor.position());
  uint32_t words[kKeyStep / 4], seen = 0;
#pragma unroll
  for (uint32_t& word : words) {
    uint32_t first_two, second_two;
    cursor.two_entries(table, first_two, second_two);
    word = __byte_perm(first_two, second_two, 0x7632);
    seen |= first_two | second_two;
  }
  if (!step_alone(seen)) [[likely]] {
    *to = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    cursor.back_to(begin);
    next_few(cursor, table, mark, first, kKeyStep, to);
  }
}

/// The tokens of a block that a range asks for, counted from first_token, the block's first.
struct Wanted {
  unsigned first, count;
  __device__ __forceinline__ Wanted(const KvcompRange& range, uint64_t first_token, unsigned tokens) {
    const uint64_t last = range.end < first_token + tokens ? range.end : first_token + tokens;
    first = static_cast<unsigned>(range.first > first_token ? range.first - first_token : 0);
    const auto end = static_cast<unsigned>(last > first_token ? last - first_token : 0);
    count = end > first ? end - first : 0;
  }
  __device__ __forceinline__ bool operator()(unsigned t) const { return t - first < count; }
};

}  // namespace kvcomp_detail

/// Blocks of threads take items of `teams.teams` blocks in turn.
template <bool kByChannel, bool kStaged>
__global__ void kvcomp_decode(KvcompTask task, float* out, size_t stride) {
  using namespace kvcomp_detail;
  const KvcompStore& store = task.store;
  const KvcompTeams& teams = task.teams;
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const Team team = own_team(teams);
  const Shared shared = share(teams, team);
  const unsigned runs = kByChannel ? store.dims : store.tokens;
  const unsigned n = kByChannel ? store.tokens : store.dims;
  float* const steps = shared.floats;  // by position in the run
  // For keys: numbers to add to 2^23 + symbol.
  float* const origins = shared.floats + round_up(n, 4);
  const bool fours = stride % 4 == 0 && store.dims % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(out) % (4 * sizeof(float)) == 0;  // all rows are aligned
  load_table(store, shared.table);
  const uint32_t items = store.rows * store.heads;
  for (uint32_t begin = blockIdx.x * teams.teams; begin < items; begin += gridDim.x * teams.teams) {
    const uint32_t item = begin + team.index;
    const Block block(store, item, item < items);
    const KvcompPlace& place = block.place;
    const uint64_t first_token = uint64_t{item / store.heads} * store.tokens;
    const uint64_t column = uint64_t{item % store.heads} * store.dims;
    const Wanted wanted(task.range, first_token, store.tokens);
    const auto out_of = [&](unsigned t, unsigned c) {
      return out + (first_token + t - task.range.first) * stride + column + c;
    };
    bool good = true;
    __syncthreads();  // shared memory is free again
    const auto payload = open_payload<kStaged>(store, team, block, shared.stage);
    open_counts(store, team, block, runs, shared.counts);
    copy_async_commit();
    if (block.coded)
      for (unsigned i = team.thread; i < n; i += team.threads) {
        steps[i] = step_of(store, place, kByChannel || store.channel_steps ? i : 0);
        // Whole numbers below 2^24: exact.
        if (!kByChannel)
          origins[i] = Origins(store, place, i).level(store, place, 0) - (8388608.0f + kStepZero);
      }
    if (block.raw)
      for (unsigned t = team.thread / kWarp; t < store.tokens; t += team.warps) {
        if (!wanted(t)) continue;
        for (unsigned c = threadIdx.x % kWarp; c < store.dims; c += kWarp) {
          const float value = raw_value(store, *block.at, t, c);
          good &= is_finite(value);
          *out_of(t, c) = value;
        }
      }
    copy_async_wait<0>();
    __syncthreads();
    auto bit = payload.bit;  // of the first run of these
    for (unsigned first = 0; first < runs; first += team.threads) {
      if (first > 0) __syncthreads();  // the sums of the runs before are read
      const unsigned run = first + team.thread;
      const bool active = block.coded && run < runs;
      const unsigned bits = active ? run_bits(store, block, shared, first == 0, run) : 0;
      unsigned total;
      const auto start = payload.run_at(bit + scan_team(bits, team, sums, total));
      bit += total;
      StepCursor cursor(payload.stream, active ? start : payload.bit);
      Mark<decltype(bit)> mark{start};
      if constexpr (kByChannel) {
        if (active) {
          float* at = out_of(0, run);
          walk(cursor, shared.table, n, mark, [&](unsigned t, float level) {
            const float value = level * steps[t];
            if (wanted(t)) *at = value;
            at = next_row(at, stride);
          });
        }
      } else {
        for (unsigned chunk = 0; chunk < n; chunk += kKeyChunk) {
          const unsigned count = n - chunk < kKeyChunk ? n - chunk : kKeyChunk;
          if (active)
#pragma unroll 1
            for (unsigned i = 0; i < count; i += kKeyStep) {
              auto* const to = reinterpret_cast<uint4*>(shared.chunk + i);
              if (count - i >= kKeyStep)
                next_step(cursor, shared.table, mark, chunk + i, to);
              else
                next_few(cursor, shared.table, mark, chunk + i, count - i, to);
            }
          __syncthreads();
          // Half a warp writes a row, each thread four channels. (With one channel, a thread took 37
          // instructions for each, most of a launch.)
          const unsigned lane = threadIdx.x % (kWarp / 2), c = chunk + 4 * lane;
          if (block.coded && c < n) {
            const unsigned own = n - c < 4 ? n - c : 4;
            float add[4] = {}, step[4] = {};
            for (unsigned k = 0; k < own; ++k) add[k] = origins[c + k], step[k] = steps[c + k];
            for (unsigned r = team.thread / (kWarp / 2); r < team.threads && first + r < runs;
                 r += 2 * team.warps) {
              if (!wanted(first + r)) continue;
              const uint32_t symbols =
                  *reinterpret_cast<const uint32_t*>(shared.chunks + r * teams.chunks + 4 * lane);
              const float values[4] = {(byte_plus_2_23<0>(symbols) + add[0]) * step[0],
                                       (byte_plus_2_23<1>(symbols) + add[1]) * step[1],
                                       (byte_plus_2_23<2>(symbols) + add[2]) * step[2],
                                       (byte_plus_2_23<3>(symbols) + add[3]) * step[3]};
              float* const to = out_of(first + r, c);
              if (fours)
                *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
              else
#pragma unroll
                for (unsigned k = 0; k < 4; ++k)
                  if (k < own) to[k] = values[k];
            }
          }
          __syncthreads();
        }
      }
      if (!active) continue;
      const uint64_t end = cursor.position();
      good &= end + 16 * uint64_t{cursor.escapes()} == start + bits;
      if (good && cursor.escapes() > 0)
        good = walk_exact(store, cursor, mark, shared.table, [&](unsigned i, float value) {
          const unsigned t = kByChannel ? i : run, c = kByChannel ? run : i;
          if (wanted(t)) *out_of(t, c) = value;
        });
    }
    if (block.coded) good &= payload.is_all(bit);
    if (!good) atomicMin(task.damaged, item);
  }
}

namespace kvcomp_detail {

/// Symbols kFirst and kFirst + 1 of four, minus kStepZero, as the two f16 of a word: exact.
template <unsigned kFirst>
__device__ __forceinline__ uint32_t level_halves(uint32_t symbols) {
#ifdef __CUDA_ARCH__
  // The symbols become the last bits of 1024.
  const uint32_t above = __byte_perm(symbols, 0x64646464u, kFirst == 0 ? 0x4140 : 0x4342);
  uint32_t halves;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(above), "r"(0x647f647fu));
  return halves;
#else
  const auto half = [&](unsigned byte) -> uint32_t {
    return f16_from_float(static_cast<float>(static_cast<int>(symbols >> (8 * byte) & 255) - kStepZero));
  };
  return half(kFirst) | half(kFirst + 1) << 16;
#endif
}

/// Data of two neighbouring channels of a block of keys from global memory, all loaded by the constructor, so that threads
/// wait once. If the second channel is behind the last one, its queries are zeros, so its other data have no effect.
template <unsigned kQueries>
struct KeyChannels {
  Origins origins;
  uint16_t steps[2];
  float queries[2][kQueries];

  __device__ __forceinline__ KeyChannels(const KvcompStore& store, const KvcompPlace& place,
                                         const float* rows, unsigned count, unsigned c)
      : origins(store, place, c) {
    const bool both = c + 1 < store.dims;
#pragma unroll
    for (unsigned k = 0; k < 2; ++k)
      steps[k] = store.steps[place.steps + (store.channel_steps ? c + (k > 0 && both) : 0)];
    const float* at = rows + c;
#pragma unroll
    for (unsigned g = 0; g < kQueries; ++g) {
      queries[0][g] = g < count ? at[0] : 0.0f;
      queries[1][g] = g < count && both ? at[1] : 0.0f;
      at = next_row(at, store.dims);
    }
  }
};

}  // namespace kvcomp_detail

/// Floats of a team's shared memory.
constexpr unsigned kvcomp_key_elements(unsigned dims, unsigned queries, unsigned threads) {
  const unsigned elements = dims * queries, symbols = threads * 2 * kKeyStep / 4;
  return elements > symbols ? elements : symbols;
}
/// Words from a step's halves to the next one's: 8 more than there are, so that threads which write them for
/// several steps side by side write to different banks.
constexpr unsigned kvcomp_key_stride(unsigned queries) { return queries * kKeyStep + 8; }
constexpr unsigned kvcomp_key_floats(unsigned dims, unsigned queries, unsigned threads) {
  const unsigned halves = (dims + kKeyStep - 1) / kKeyStep * kvcomp_key_stride(queries);
  return kvcomp_key_elements(dims, queries, threads) + halves + threads / kWarp * queries * 2 + 2 * queries;
}

/// 4 kTiles queries of one head at a time: `count` of them, from first_query on; the rest are zeros.
///
/// A warp decodes kKeyStep channels of its 32 tokens, a token to a thread, exchanges the symbols in shared
/// memory and multiplies them on the matrix units, as halves: levels are small integers. A product of query and
/// step is the sum of two halves, times a power of two that makes the largest product fit. So each is off by
/// 2^-22 of itself or 2^-35 of the largest, whichever is more; the units add 8 or 16 products
/// to a sum at a time and cut off what lies below its last bits (kvcomp.hpp has the bound of it all).
template <unsigned kTiles, bool kStaged>
__global__ void __launch_bounds__(kKeyThreads, kvcomp_together(4 * kTiles, kStaged))
    kvcomp_keys(KvcompTask task, KvcompVectors queries, float* out) {
  using namespace kvcomp_detail;
  const KvcompStore& store = task.store;
  const KvcompTeams& teams = task.teams;
  const KvcompRange& range = task.range;
  const unsigned count = queries.count;
  const size_t stride = queries.stride;
  constexpr unsigned kQueries = 4 * kTiles;
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const Team team = own_team(teams);
  const Shared shared = share(teams, team);
  const unsigned n = store.dims, runs = store.tokens, steps = (n + kKeyStep - 1) / kKeyStep;
  const unsigned lane = threadIdx.x % kWarp, warp = team.thread / kWarp;
  // kQueries elements of each channel: queries times the channel's step. Later the symbols of each warp,
  // twice.
  float* const elements = shared.floats;
  uint4* const symbols = reinterpret_cast<uint4*>(elements) + warp * 2 * kWarp;
  // For each step and tile, kKeyStep halves in each of eight columns: the first halves of four queries,
  // then their second halves.
  auto* const halves = reinterpret_cast<uint16_t*>(elements + kvcomp_key_elements(n, kQueries, team.threads));
  // By warps, sums over channels of elements times origins, and their largest magnitudes.
  float* const bases = reinterpret_cast<float*>(halves) + steps * kvcomp_key_stride(kQueries);
  float* const peaks = bases + team.warps * kQueries;
  // The sum over all warps, and the factor for products.
  auto* const scales = reinterpret_cast<float2*>(peaks + team.warps * kQueries);
  load_table(store, shared.table);
  const uint32_t items = store.rows * store.heads;
  for (uint32_t begin = blockIdx.x * teams.teams; begin < items; begin += gridDim.x * teams.teams) {
    const uint32_t item = begin + team.index;
    const Block block(store, item, item < items);
    const KvcompPlace& place = block.place;
    const uint64_t first_token = uint64_t{item / store.heads} * store.tokens;
    const uint32_t first_row = item % store.heads * queries.per_head + queries.first;
    const auto query = [&](unsigned g, unsigned c) {
      return g < count ? queries.rows[size_t{first_row + g} * n + c] : 0.0f;
    };
    const Wanted wanted(range, first_token, runs);
    const auto score_of = [&](unsigned g, unsigned run) -> float& {
      return out[(first_row + g) * stride + (first_token - range.first + run)];
    };
    bool good = true;
    const float* const query_rows = queries.rows + size_t{first_row} * n;
    __syncthreads();  // shared memory is free again
    const auto payload = open_payload<kStaged>(store, team, block, shared.stage);
    open_counts(store, team, block, runs, shared.counts);
    copy_async_commit();
    float base[kQueries] = {}, peak[kQueries] = {};
    if (block.coded)
#pragma unroll 1
      for (unsigned c = 2 * team.thread; c < n; c += 2 * team.threads) {
        const KeyChannels<kQueries> channels(store, place, query_rows, count, c);
        const bool both = c + 1 < n;
#pragma unroll
        for (unsigned k = 0; k < 2; ++k) {
          const float step = f16_to_float(channels.steps[k]), level = channels.origins.level(store, place, k);
          float own[kQueries];
#pragma unroll
          for (unsigned g = 0; g < kQueries; ++g) {
            own[g] = channels.queries[k][g] * step;
            base[g] = fmaf(own[g], level, base[g]);
            peak[g] = fmaxf(peak[g], fabsf(own[g]));
          }
          if (k == 0 || both) store_vector(elements + (c + k) * kQueries, own);
        }
      }
    const float warp_base = reduce_each(base, [](float x, float y) { return x + y; });
    const float warp_peak = reduce_each(peak, [](float x, float y) { return fmaxf(x, y); });
    if (lane < kQueries) bases[warp * kQueries + lane] = warp_base, peaks[warp * kQueries + lane] = warp_peak;
    copy_async_wait<0>();
    __syncthreads();
    if (block.coded) {
      float limit[kQueries] = {}, up[kQueries];
#pragma unroll 1
      for (unsigned w = 0; w < team.warps; ++w) {
        float of_warp[kQueries];
        load_vector(of_warp, peaks + w * kQueries);
#pragma unroll
        for (unsigned g = 0; g < kQueries; ++g) limit[g] = fmaxf(limit[g], of_warp[g]);
      }
#pragma unroll
      for (unsigned g = 0; g < kQueries; ++g) up[g] = peak_scale(limit[g], kKeyTop).up;
      if (team.thread < kQueries) {
        float sum = 0, own = 0;
#pragma unroll 1
        for (unsigned w = 0; w < team.warps; ++w) {
          sum += bases[w * kQueries + team.thread];
          own = fmaxf(own, peaks[w * kQueries + team.thread]);
        }
        scales[team.thread] = {sum, peak_scale(own, kKeyTop).down};
      }
      // Two channels of all queries a thread.
#pragma unroll 1
      for (unsigned c = 2 * team.thread; c < steps * kKeyStep; c += 2 * team.threads) {
        float first[kQueries] = {}, second[kQueries] = {};
        if (c < n) load_vector(first, elements + c * kQueries);
        if (c + 1 < n) load_vector(second, elements + (c + 1) * kQueries);
        uint32_t* const to = reinterpret_cast<uint32_t*>(halves) +
                             c / kKeyStep * kvcomp_key_stride(kQueries) + c % kKeyStep / 2;
#pragma unroll
        for (unsigned g = 0; g < kQueries; ++g) {
          const float values[2] = {first[g] * up[g], second[g] * up[g]};
          const uint32_t low = f16_from_float(values[0]), high = f16_from_float(values[1]);
          const float rests[2] = {values[0] - f16_to_float(static_cast<uint16_t>(low)),
                                  values[1] - f16_to_float(static_cast<uint16_t>(high))};
          uint32_t* const of_query = to + (g / 4 * 8 + g % 4) * kKeyStep / 2;
          of_query[0] = low | high << 16;
          of_query[4 * kKeyStep / 2] = f16_from_float(rests[0]) | uint32_t{f16_from_float(rests[1])} << 16;
        }
      }
    }
    auto bit = payload.bit;
    for (unsigned first = 0; first < runs; first += team.threads) {
      if (first > 0) __syncthreads();  // the sums of the runs before are read
      const unsigned run = first + team.thread;
      const bool active = block.coded && run < runs;
      const unsigned bits = active ? run_bits(store, block, shared, first == 0, run) : 0;
      unsigned total;
      const auto start = payload.run_at(bit + scan_team(bits, team, sums, total));  // after barriers
      bit += total;
      if (block.coded) {  // the whole team
        // Threads without a run decode, too; their results are not used.
        StepCursor cursor(payload.stream, active ? start : payload.bit);
        Mark<decltype(bit)> mark{start};
        float products[kTiles][2][4] = {};
        uint4* const own_symbols = symbols + lane;
        const auto* elements_of_step = reinterpret_cast<const uint2*>(halves) + lane;
        unsigned side = 0;
        const auto multiply = [&] {
          __syncwarp();
          // Lane 4 g + p has symbols 4 p to 4 p + 3 of tokens g, g + 8, ...: any order of channels is right.
          const uint32_t* const words = reinterpret_cast<const uint32_t*>(symbols + side) + lane;
          uint32_t a[2][4];
#pragma unroll
          for (unsigned half = 0; half < 2; ++half)
#pragma unroll
            for (unsigned row = 0; row < 2; ++row) {
              const uint32_t four = words[half * 64 + row * 32];
              a[half][row] = level_halves<0>(four), a[half][row + 2] = level_halves<2>(four);
            }
#pragma unroll
          for (unsigned tile = 0; tile < kTiles; ++tile) {
            const uint2 b = elements_of_step[tile * kWarp];
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) multiply_f16(products[tile][half], a[half], b.x, b.y);
          }
          elements_of_step += kvcomp_key_stride(kQueries) / 2;
          side ^= kWarp;
        };
        unsigned at = 0;  // channels
#pragma unroll 1
        for (; at + kKeyStep <= n; at += kKeyStep) {
          next_step(cursor, shared.table, mark, at, own_symbols + side);
          multiply();
        }
        if (at < n) {
          next_few(cursor, shared.table, mark, at, n - at, own_symbols + side);
          multiply();
        }
        // Lanes p and p + 2 of a group have the two parts of queries 2 p and 2 p + 1, of two tokens.
        const bool second = lane % 4 >= 2;
        const unsigned token = first + warp * kWarp + second * 8 + lane / 4;  // and the one 16 behind
        const unsigned pair = lane % 2 * 2;
        const size_t place_of_pair = (first_row + pair) * stride + (first_token - range.first + token);
#pragma unroll
        for (unsigned tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (unsigned i = 0; i < 2; ++i) {
            const unsigned g = tile * 4 + pair + i;
            const float2 scale = scales[g];
            float* const to = out + place_of_pair + (tile * 4 + i) * stride;
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
              const float(&own)[4] = products[tile][half];
              const float kept = second ? own[2 + i] : own[i], given = second ? own[i] : own[2 + i];
              const float sum = kept + __shfl_xor_sync(kAllLanes, given, 2);
              if (g < count && wanted(token + half * 16)) to[half * 16] = fmaf(sum, scale.y, scale.x);
            }
          }
        if (active) {
          const uint64_t end = cursor.position();
          good &= end + 16 * uint64_t{cursor.escapes()} == start + bits;
        }
        __syncwarp();  // the scores are there
        if (active && good && cursor.escapes() > 0) {
          float more[kQueries] = {};
          good = walk_exact(store, cursor, mark, shared.table, [&](unsigned c, float value) {
            const float step = step_of(store, *block.at, store.channel_steps ? c : 0);
            const float known = Origins(store, *block.at, c).level(store, *block.at, 0) * step;
            for (unsigned g = 0; g < kQueries; ++g) more[g] += query(g, c) * (value - known);
          });
          for (unsigned g = 0; g < kQueries; ++g)
            if (g < count && wanted(run)) score_of(g, run) += more[g];
        }
      } else if (block.raw && run < runs) {
        float scores[kQueries] = {};
#pragma unroll 1
        for (unsigned c = 0; c < n; ++c) {
          const float value = raw_value(store, *block.at, run, c);
          good &= is_finite(value);
#pragma unroll
          for (unsigned g = 0; g < kQueries; ++g) scores[g] = fmaf(value, query(g, c), scores[g]);
        }
#pragma unroll
        for (unsigned g = 0; g < kQueries; ++g)
          if (g < count && wanted(run)) score_of(g, run) = scores[g];
      }
    }
    if (block.coded) good &= payload.is_all(bit);
    if (!good) atomicMin(task.damaged, item);
  }
}

/// Block (part, head, channels / team.threads): the block rows of a part, every teams-th by one team.
/// partial: [part][heads * per_head][dims].
template <unsigned kQueries, bool kStaged>
__global__ void __launch_bounds__(kKvcompThreads, kQueries > 4 ? 4 : 5)
    kvcomp_values(KvcompTask task, KvcompVectors weights, unsigned part_rows, float* partial) {
  using namespace kvcomp_detail;
  const KvcompStore& store = task.store;
  const KvcompTeams& teams = task.teams;
  const KvcompRange& range = task.range;
  const unsigned count = weights.count;
  const size_t stride = weights.stride;
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const Team team = own_team(teams);
  const Shared shared = share(teams, team);
  const unsigned n = store.tokens, runs = store.dims, head = blockIdx.y;
  const unsigned own_run = blockIdx.z * team.threads + team.thread;
  float* const vectors = shared.floats;  // of each token, kQueries weights times its step
  const size_t first_row = size_t{head} * weights.per_head + weights.first;
  load_table(store, shared.table);
  float out[kQueries] = {};
  const unsigned begin = blockIdx.x * part_rows;
  const unsigned end_row = store.rows - begin < part_rows ? store.rows : begin + part_rows;
  for (unsigned at = begin; at < end_row; at += teams.teams) {
    const unsigned row = at + team.index;
    const uint32_t item = row * store.heads + head;
    const Block block(store, item, row < end_row);
    const KvcompPlace& place = block.place;
    const uint64_t first_token = uint64_t{row} * n;
    const Wanted wanted(range, first_token, n);
    const size_t first_weight = first_row * stride + (first_token - range.first);  // may wrap around
    const auto weight = [&](unsigned g, unsigned t) {
      return g < count && wanted(t) ? weights.rows[first_weight + g * stride + t] : 0.0f;
    };
    bool good = true;
    __syncthreads();  // shared memory is free again
    const auto payload = open_payload<kStaged>(store, team, block, shared.stage);
    open_counts(store, team, block, runs, shared.counts);
    copy_async_commit();
    if (block.raw || block.coded)
#pragma unroll 1
      for (unsigned t = team.thread; t < n; t += team.threads) {
        const float step = block.coded ? step_of(store, place, t) : 1.0f;
        float own[kQueries];
#pragma unroll
        for (unsigned g = 0; g < kQueries; ++g) own[g] = weight(g, t);
#pragma unroll
        for (unsigned g = 0; g < kQueries; ++g) own[g] *= step;
        store_vector(vectors + t * kQueries, own);
      }
    copy_async_wait<0>();
    __syncthreads();
    auto bit = payload.bit, start = bit;
    unsigned bits = 0;
    for (unsigned first = 0; first < runs; first += team.threads) {
      if (first > 0) __syncthreads();  // the sums of the runs before are read
      const unsigned run = first + team.thread;
      const unsigned run_size =
          block.coded && run < runs ? run_bits(store, block, shared, first == 0, run) : 0;
      unsigned total;
      const unsigned before = scan_team(run_size, team, sums, total);
      if (run == own_run) start = payload.run_at(bit + before), bits = run_size;
      bit += total;
    }
    if (block.coded) {
      good &= payload.is_all(bit);
      if (own_run < runs) {
        StepCursor cursor(payload.stream, start);
        Mark<decltype(bit)> mark{start};
        walk(cursor, shared.table, n, mark, [&](unsigned t, float level) {
          float elements[kQueries];
          load_vector(elements, vectors + t * kQueries);
          for (unsigned g = 0; g < kQueries; ++g) out[g] = fmaf(level, elements[g], out[g]);
        });
        const uint64_t end = cursor.position();
        good &= end + 16 * uint64_t{cursor.escapes()} == start + bits;
        if (good && cursor.escapes() > 0)
          good = walk_exact(store, cursor, mark, shared.table, [&](unsigned t, float value) {
            for (unsigned g = 0; g < kQueries; ++g) out[g] = fmaf(value, weight(g, t), out[g]);
          });
      }
    } else if (block.raw && own_run < runs) {
      for (unsigned t = 0; t < n; ++t) {
        const float value = raw_value(store, *block.at, t, own_run);
        good &= is_finite(value);
        for (unsigned g = 0; g < kQueries; ++g) out[g] = fmaf(value, vectors[t * kQueries + g], out[g]);
      }
    }
    if (!good) atomicMin(task.damaged, item);
  }
  // Adds the teams' sums in their order, where the table was: with two teams in a block, half as many partial
  // sums are left.
  auto* const others = reinterpret_cast<float*>(shared.table) + team.thread;
  const unsigned of_team = kQueries * team.threads;
  if (teams.teams > 1) __syncthreads();  // the table is free
  if (team.index > 0)
#pragma unroll
    for (unsigned g = 0; g < kQueries; ++g) others[(team.index - 1) * of_team + g * team.threads] = out[g];
  if (teams.teams > 1) __syncthreads();
  if (team.index > 0 || own_run >= runs) return;
  const size_t sums_of_part = size_t{store.heads} * weights.per_head;
#pragma unroll
  for (unsigned g = 0; g < kQueries; ++g) {
    for (unsigned t = 1; t < teams.teams; ++t) out[g] += others[(t - 1) * of_team + g * team.threads];
    if (g < count) partial[(blockIdx.x * sums_of_part + first_row + g) * runs + own_run] = out[g];
  }
}

static_assert(kKvcompThreads * 8 <= 1u << kStepWindow);  // the other teams' sums of eight queries

constexpr unsigned kSumWarps = 4;  ///< of a block of threads that adds up kWarp sums

/// out[i] = the sum of partial[p * size + i] over p. A warp sums each of kSumWarps stretches of parts in order,
/// with kAhead loads at a time, as there are few sums of many parts.
__global__ void kvcomp_sum_parts(const float* partial, size_t parts, size_t size, float* out) {
  constexpr unsigned kAhead = 16;
  KVCODEC_SHARED_ARRAY(float, sums, kSumWarps* kWarp);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const size_t i = size_t{blockIdx.x} * kWarp + lane, stretch = (parts + kSumWarps - 1) / kSumWarps;
  const size_t begin = warp * stretch, end = begin + stretch < parts ? begin + stretch : parts;
  float sum = 0;
  if (i < size)
    for (size_t p = begin; p < end; p += kAhead) {
      float ahead[kAhead];
#pragma unroll
      for (unsigned k = 0; k < kAhead; ++k) ahead[k] = p + k < end ? partial[(p + k) * size + i] : 0.0f;
#pragma unroll
      for (unsigned k = 0; k < kAhead; ++k)
        if (p + k < end) sum += ahead[k];
    }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || i >= size) return;
  for (unsigned w = 1; w < kSumWarps; ++w) sum += sums[w * kWarp + lane];
  out[i] = sum;
}

// From rANS to bytes -------------------------------------------------------------------------------

namespace kvcomp_detail {

constexpr unsigned kRansLanes = 8;
constexpr uint32_t kNoWords = ~uint32_t{0};  ///< of a segment that no encoder writes

/// Bytes of a segment before its words.
constexpr unsigned kRansStates = 4 * kRansLanes;

/// Two bytes of a stream, the lower one first.
__device__ __forceinline__ uint32_t little_endian16(const WordStream& stream, uint64_t byte) {
  const uint32_t bits = stream.bits(8 * byte, 16);
  return bits >> 8 | (bits & 0xff) << 8;
}

}  // namespace kvcomp_detail

/// The symbols of each segment, and the number of its words. Eight threads decode one, each a lane's symbols.
__global__ void kvcomp_rans_symbols(KvcompBytes work) {
  using namespace kvcomp_detail;
  const KvcompStore& store = work.store;
  const uint32_t items = store.rows * store.heads, mask = (1u << work.rans.scale) - 1;
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, item = thread / kRansLanes;
  const unsigned lane = threadIdx.x % kRansLanes, group = threadIdx.x % kWarp / kRansLanes * kRansLanes;
  const bool coded = item < items && work.places[item].mode != 255;
  const uint64_t from = coded ? work.places[item].payload : 0;
  const uint32_t bytes = coded ? work.places[item].payload_bytes : 0;
  const unsigned n = store.tokens * store.dims;
  bool good = coded && bytes >= kRansStates;
  uint32_t state = good ? swap_bytes(store.payload.bits(8 * (from + 4 * lane), 32)) : 0, taken = 0;
  for (unsigned i = lane; i - lane < n; i += kRansLanes) {
    const bool active = coded && i < n;
    if (active) {
      const uint32_t slot = state & mask, range = work.rans.ranges[slot];
      work.symbols[item * n + i] = work.rans.symbols[slot];
      state = (range & 0xffff) * (state >> work.rans.scale) + (range >> 16);
    }
    const bool needs = active && state < 1u << 16;
    const uint32_t needing = __ballot_sync(kAllLanes, needs) >> group & 255;
    const uint64_t word = kRansStates + 2 * uint64_t{taken + __popc(needing & ((1u << lane) - 1))};
    good &= !needs || word + 2 <= bytes;
    if (needs) state = state << 16 | (word + 2 <= bytes ? little_endian16(store.payload, from + word) : 0);
    taken += __popc(needing);
  }
  const uint32_t all = __ballot_sync(kAllLanes, good && state == 1u << 16) >> group & 255;
  if (coded && lane == 0) work.words[item] = all == 255 ? taken : kNoWords;
}

/// Runs of bytes of each block, with the values stored exactly behind each run's. A warp takes a block, a thread a run.
__global__ void kvcomp_rans_runs(KvcompBytes work) {
  using namespace kvcomp_detail;
  const KvcompStore& store = work.store;
  const unsigned runs = store.by_channel ? store.dims : store.tokens;
  const unsigned n = store.by_channel ? store.tokens : store.dims;
  const unsigned lane = threadIdx.x % kWarp;
  const uint32_t items = store.rows * store.heads;
  const uint64_t item = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  if (item >= items || work.places[item].mode == 255) return;  // the whole warp
  const KvcompPlace place = work.places[item];
  const uint32_t words = work.words[item];
  const bool good = words != kNoWords;
  const uint64_t before_exact = kRansStates + 2 * uint64_t{words};
  const unsigned exact = good && place.payload_bytes >= before_exact
                             ? static_cast<unsigned>((place.payload_bytes - before_exact) / 2)
                             : 0;
  const uint8_t* const symbols = work.symbols + item * runs * n;
  uint8_t* const counts = work.counts + item * (2 + 2 * uint64_t{runs});
  unsigned escapes = 0;
  for (unsigned first = 0; first < runs; first += kWarp) {
    const unsigned run = first + lane;
    unsigned own = 0;
    for (unsigned i = 0; run < runs && i < n; ++i) own += symbols[uint64_t{run} * n + i] == 255;
    unsigned sum = own;
    for (unsigned step = 1; step < kWarp; step *= 2) {
      const unsigned below = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += below;
    }
    unsigned at = escapes + sum - own;
    escapes += __shfl_sync(kAllLanes, sum, kWarp - 1);
    if (run >= runs) continue;
    uint8_t* to =
        work.payload + work.targets[item] + uint64_t{run} * n + 2 * uint64_t{at < exact ? at : exact};
    for (unsigned i = 0; i < n; ++i) *to++ = symbols[uint64_t{run} * n + i];
    for (unsigned k = 0; k < own && at < exact; ++k, ++at) {
      const uint32_t value = store.payload.bits(8 * (place.payload + before_exact + 2 * uint64_t{at}), 16);
      *to++ = static_cast<uint8_t>(value >> 8), *to++ = static_cast<uint8_t>(value);
    }
    const unsigned bits = 8 * n + 16 * own;
    counts[2 + 2 * run] = static_cast<uint8_t>(bits >> 8), counts[3 + 2 * run] = static_cast<uint8_t>(bits);
  }
  __syncwarp();
  if (lane != 0) return;
  const bool whole = good && escapes == exact && place.payload_bytes == before_exact + 2 * uint64_t{exact};
  KvcompPlace& out = work.places[item];
  out.payload = work.targets[item];
  out.payload_bytes = whole ? runs * n + 2 * exact : 0;
  out.counts = item * (2 + 2 * uint64_t{runs});
  out.mode = 16;
}

// Launchers ---------------------------------------------------------------------------------------

namespace {

/// Threads of a team in a block of at most `limit` threads.
constexpr unsigned threads_for(unsigned runs, unsigned limit) {
  const unsigned threads = round_up(runs < 1 ? 1 : runs, kWarp);
  return threads < limit ? threads : limit;
}

/// Needs of a launch.
struct Need {
  unsigned runs;
  unsigned floats;  ///< of each team
  unsigned chunks;  ///< bytes of each thread
  unsigned limit;   ///< maximum threads of a block
  uint32_t blocks;  ///< maximum blocks of threads
};

struct Plan {
  Plan(const KvcompWork& work, const Need& need) : max_blocks(need.blocks) {
    const KvcompStore& store = work.store;
    teams.threads = threads_for(need.runs, need.limit);
    teams.teams = need.limit / teams.threads;
    // Up to 15 bytes before the payload, and those behind it that a cursor reads of a damaged run: all that its
    // codes and exact values may take, and four words.
    const unsigned n = store.by_channel ? store.tokens : store.dims;
    teams.stage_bytes = round_up(store.largest_payload + 15 + n * (kStepWindow + 16) / 8 + 32, 16);
    teams.count_bytes = kvcomp_detail::kvcomp_count_bytes(teams.threads);
    teams.floats = round_up(need.floats, 4);
    teams.chunks = need.chunks;
    while (teams.teams > 1 && shared() > work.cuts.shared_together) --teams.teams;
    if (shared() > work.cuts.shared_staged) teams.stage_bytes = 0;
  }
  size_t shared() const {
    const size_t team = size_t{teams.stage_bytes} + teams.count_bytes + size_t{4} * teams.floats +
                        size_t{teams.threads} * teams.chunks;
    return kTable + teams.teams * team;
  }
  unsigned threads() const { return teams.teams * teams.threads; }
  unsigned blocks(const KvcompStore& store) const {
    const unsigned wanted = divide_up(uint64_t{store.rows} * store.heads, teams.teams);
    return wanted < max_blocks ? wanted : max_blocks;
  }
  bool staged() const { return teams.stage_bytes > 0; }
  KvcompTask task(const KvcompWork& work) const { return {work.store, teams, work.range, work.damaged}; }

  static constexpr size_t kTable = sizeof(uint32_t) << kStepWindow;
  KvcompTeams teams{};
  uint32_t max_blocks;
};

/// Calls body(vectors) for parts of all queries, or weights, of up to `limit` (4 or 8) for each head.
template <class Body>
Status for_parts(KvcompVectors vectors, unsigned limit, const Body& body) {
  Status status = 0;
  for (; status == 0 && vectors.first < vectors.per_head; vectors.first += limit) {
    const unsigned left = vectors.per_head - vectors.first;
    vectors.count = left < limit ? left : limit;
    status = body(vectors);
  }
  return status;
}

Plan plan_keys(const KvcompWork& work, unsigned queries) {
  const KvcompStore& store = work.store;
  const unsigned floats = kvcomp_key_floats(store.dims, queries, threads_for(store.tokens, kKeyThreads));
  return {work, {store.tokens, floats, 0, kKeyThreads, work.cuts.max_key_blocks}};
}

/// A division of values into parts, the same for all numbers of queries.
struct Parts {
  explicit Parts(const KvcompWork& work)
      : plan(work, {work.store.dims, work.store.tokens * 8, 0, kKvcompThreads, work.cuts.max_blocks}) {
    const KvcompStore& store = work.store;
    const uint64_t items = uint64_t{store.rows} * store.heads;
    const uint64_t rows = items == 0 ? 1 : (items - 1) / work.cuts.max_sums + 1;
    part_rows = static_cast<unsigned>(rows < 16 ? rows : 16) * plan.teams.teams;
    parts = divide_up(store.rows, part_rows);
    channels = divide_up(store.dims, plan.teams.threads);
  }
  Plan plan;
  unsigned part_rows, parts, channels;
};

}  // namespace

Status run_kvcomp_bytes(const KvcompBytes& work, StreamHandle stream) {
  constexpr unsigned kThreads = 128;
  const uint64_t items = uint64_t{work.store.rows} * work.store.heads;
  const Status status = launch(kvcomp_rans_symbols, divide_up(items * kvcomp_detail::kRansLanes, kThreads),
                               kThreads, 0, stream, work);
  if (status != 0) return status;
  return launch(kvcomp_rans_runs, divide_up(items * kWarp, kThreads), kThreads, 0, stream, work);
}

Status run_kvcomp_decode(const KvcompWork& work, float* out, size_t stride) {
  const KvcompStore& store = work.store;
  const Plan plan(work, {.runs = store.by_channel ? store.dims : store.tokens,
                         .floats = store.by_channel ? store.tokens : round_up(store.dims, 4) + store.dims,
                         .chunks = store.by_channel ? 0 : kKeyChunkStride,
                         .limit = kKvcompThreads,
                         .blocks = work.cuts.max_blocks});
  const auto kernel = store.by_channel
                          ? (plan.staged() ? kvcomp_decode<true, true> : kvcomp_decode<true, false>)
                          : (plan.staged() ? kvcomp_decode<false, true> : kvcomp_decode<false, false>);
  return launch(kernel, plan.blocks(store), plan.threads(), plan.shared(), work.stream, plan.task(work), out,
                stride);
}

Status run_kvcomp_keys(const KvcompWork& work, const float* queries, unsigned per_head, float* out,
                       size_t stride) {
  const unsigned limit = per_head > 4 && plan_keys(work, 8).shared() <= work.cuts.shared_max ? 8 : 4;
  return for_parts({queries, stride, per_head, 0, 0}, limit, [&](const KvcompVectors& some) {
    return for_size<4, 8>(some.count > 4 ? 8 : 4, [&]<unsigned kQueries>() {
      const Plan plan = plan_keys(work, kQueries);
      return launch(plan.staged() ? kvcomp_keys<kQueries / 4, true> : kvcomp_keys<kQueries / 4, false>,
                    plan.blocks(work.store), plan.threads(), plan.shared(), work.stream, plan.task(work),
                    some, out);
    });
  });
}

size_t kvcomp_partial_sums(const KvcompWork& work, unsigned per_head) {
  return size_t{Parts(work).parts} * work.store.heads * per_head * work.store.dims;
}

Status run_kvcomp_values(const KvcompWork& work, const float* weights, size_t stride, unsigned per_head,
                         float* partial, float* out) {
  const Parts parts(work);
  const Plan& plan = parts.plan;
  const dim3 grid(parts.parts, work.store.heads, parts.channels);
  const Status status = for_parts({weights, stride, per_head, 0, 0}, 8, [&](const KvcompVectors& some) {
    const unsigned k = some.count > 4 ? 8 : some.count > 2 ? 4 : some.count;
    return for_size<1, 2, 4, 8>(k, [&]<unsigned kQueries>() {
      return launch(plan.staged() ? kvcomp_values<kQueries, true> : kvcomp_values<kQueries, false>, grid,
                    plan.threads(), plan.shared(), work.stream, plan.task(work), some, parts.part_rows,
                    partial);
    });
  });
  if (status != 0) return status;
  const size_t size = size_t{work.store.heads} * per_head * work.store.dims;
  return launch(kvcomp_sum_parts, divide_up(size, kWarp), kSumWarps * kWarp, 0, work.stream, partial,
                size_t{parts.parts}, size, out);
}

}  // namespace kvcodec::cuda
