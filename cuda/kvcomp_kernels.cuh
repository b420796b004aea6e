// Decoding of blocks of keys and values, alone and fused with the product (KVComp, sections 3.3.1 and 3.3.2).
//
// A block belongs to a team of whole warps, a run to a thread: a token's channels where keys are decoded, a
// channel's tokens of values. The team brings the block's payload to shared memory in 16-byte pieces, finds
// where its runs begin by a prefix sum of their bits, and steps through them together, two symbols of every
// run at a time, so that what belongs to the position in the run (a query's element, a step) is the same for
// all threads, and of values a step's symbols are neighbours in memory. A step is a look-up in shared memory
// (lib/entropy/huffman_step.hpp). Runs with escapes, which are few, are walked a second time for them.
//
// Several teams make up a block of threads and share the table. Threads that have nothing to do take part in
// all barriers.
#pragma once

#include <type_traits>

#include "cuda/kernel.cuh"
#include "cuda/kvcomp.cuh"
#include "cuda/prefix_sum.cuh"

namespace kvcodec::cuda {

/// Symbols of a row of keys that are decoded before they are written out together, and the bytes from one
/// row to the next: words of neighbouring rows lie in different banks.
inline constexpr unsigned kKeyChunk = 64, kKeyChunkStride = kKeyChunk + 4;

inline constexpr unsigned kKvcompThreads = 256;  ///< of a block of threads at most

/// Blocks of threads that a multiprocessor shall have registers for: a step waits for shared memory, and
/// other warps step meanwhile.
constexpr unsigned kvcomp_together(unsigned queries) { return queries > 4 ? 3 : 4; }

/// How a launch is cut up, and its shared memory:
///   table | stage of each team | (floats of each team) | (chunk of each thread)
struct KvcompTeams {
  unsigned teams, threads;  ///< of a block of threads, of a team
  unsigned stage_bytes;     ///< 0: payload is read where it lies
  unsigned floats;          ///< of each team
  unsigned chunks;          ///< bytes of each thread
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
  shared.floats = reinterpret_cast<float*>(at) + team.index * teams.floats;
  at += teams.teams * teams.floats * sizeof(float);
  shared.chunks = at + team.index * teams.threads * teams.chunks;
  shared.chunk = shared.chunks + team.thread * teams.chunks;
  return shared;
}

/// Begins to bring the table to shared memory; it is there when the first payload is.
__device__ __forceinline__ void load_table(const KvcompStore& store, uint32_t* table) {
  for (unsigned i = 4 * threadIdx.x; i < 1u << kStepWindow; i += 4 * blockDim.x)
    copy_async16(table + i, store.table + i);
}

/// The payload of a block: `bit` is where it begins, and no run behind `end`.
template <bool kStaged>
struct Payload {
  using Bit = std::conditional_t<kStaged, uint32_t, uint64_t>;  ///< also counts bits of runs, damaged or not
  std::conditional_t<kStaged, OpenWordStream, WordStream> stream;
  Bit bit, end;

  /// Where the counts say that a run begins: counts may be damaged.
  __device__ __forceinline__ Bit run_at(Bit start) const { return start < end ? start : end; }
};

/// Begins to bring it to shared memory, where there is room for it; place: null for none.
template <bool kStaged>
__device__ __forceinline__ Payload<kStaged> open_payload(const KvcompStore& store, const Team& team,
                                                         const KvcompPlace* place, unsigned char* stage) {
  if constexpr (kStaged) {
    Payload<true> payload{{reinterpret_cast<const uint32_t*>(stage)}, 0, 0};
    if (place) {
      const uint64_t first = place->payload / 16 * 16;
      const auto before = static_cast<unsigned>(place->payload - first);
      const auto* from = reinterpret_cast<const unsigned char*>(store.payload.words) + first;
      // 16 bytes more: a cursor looks ahead.
      for (unsigned i = 16 * team.thread; i < before + place->payload_bytes + 16; i += 16 * team.threads)
        copy_async16(stage + i, from + i);
      payload.bit = 8 * before;
      payload.end = 8 * (before + place->payload_bytes);
    }
    return payload;
  } else {
    return {store.payload, place ? place->payload * 8 : 0,
            place ? (place->payload + place->payload_bytes) * 8 : 0};
  }
}

/// Sum over the team's threads before this one; total: over all of them. sums: prefix_sum's. All threads of
/// all teams.
__device__ __forceinline__ unsigned scan_team(unsigned value, const Team& team, unsigned* sums,
                                              unsigned& total) {
  return prefix_sum(value, team.first_warp, team.warps, sums, total);
}

/// Bits of run i of a coded block.
__device__ __forceinline__ unsigned run_bits(const KvcompStore& store, const KvcompPlace& place,
                                             unsigned run) {
  const uint64_t bit = place.counts * 8;
  const uint32_t base = store.counts.bits(bit, 16);  // little-endian
  return (base >> 8 | (base & 0xff) << 8) +
         store.counts.bits(bit + 16 + uint64_t{run} * place.mode, place.mode);
}

/// Level of the origin of channel c.
__device__ __forceinline__ float origin(const KvcompStore& store, const KvcompPlace& place, unsigned c) {
  if (!store.has_origins) return 0;
  const uint64_t bit = place.origins * 8;
  const uint32_t least = store.origins.bits(bit, 16);
  const auto signed_least = static_cast<int16_t>(least >> 8 | (least & 0xff) << 8);
  return static_cast<float>(
      signed_least +
      static_cast<int>(store.origins.bits(bit + 16 + uint64_t{c} * place.origin_bits, place.origin_bits)));
}

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

/// Value (t, c) of a raw block.
__device__ __forceinline__ float raw_value(const KvcompStore& store, const KvcompPlace& place, unsigned t,
                                           unsigned c) {
  const uint32_t bits = store.payload.bits((place.payload + 2 * (uint64_t{t} * store.dims + c)) * 8, 16);
  return from_storage(store, bits >> 8 | (bits & 0xff) << 8);
}

__device__ __forceinline__ void put(float* out, float value, bool) { *out = value; }
__device__ __forceinline__ void put(uint16_t* out, float value, bool brain) {
  *out = brain ? bf16_from_float(value) : f16_from_float(value);
}

/// Elements that lie side by side in shared memory, from a multiple of their number on, by as few loads as
/// possible.
template <unsigned kCount>
__device__ __forceinline__ void load_vector(float (&to)[kCount], const float* from) {
  if constexpr (kCount % 4 == 0) {
    for (unsigned i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else if constexpr (kCount == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x, to[1] = two.y;
  } else {
    for (unsigned i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

/// Calls body(i, symbol) for the next n symbols of a run.
template <class Words, class Body>
__device__ __forceinline__ void walk(BitCursor<Words>& cursor, const uint32_t* table, unsigned n,
                                     Body&& body) {
  unsigned i = 0;
#pragma unroll 2
  for (; i + 2 <= n; i += 2) {
    const uint32_t entry = cursor.two(table);
    body(i, StepSymbol<2>{entry});
    body(i + 1, StepSymbol<3>{entry});
  }
  if (i < n) body(i, StepSymbol<2>{cursor.one(table)});
}

/// Calls body(i, value) for the values of a run that are stored exactly. start: its first bit; raw: the bit
/// behind its codes. Returns whether all values are finite.
template <class Words, class Body>
__device__ __forceinline__ bool walk_exact(const KvcompStore& store, const Words& words, uint64_t start,
                                           uint64_t raw, const uint32_t* table, unsigned n, Body&& body) {
  BitCursor<Words> cursor(words, start);
  bool finite = true;
#pragma unroll 1
  for (unsigned i = 0; i < n; ++i) {
    if (!step_escapes(cursor.one(table))) continue;
    const float value = from_storage(store, words.bits(raw, 16));
    raw += 16;
    finite &= is_finite(value);
    body(i, value);
  }
  return finite;
}

/// The team's item: block `item` of store, if there is one.
__device__ __forceinline__ const KvcompPlace* place_of(const KvcompStore& store, uint32_t item) {
  return item < store.rows * store.heads ? store.places + item : nullptr;
}

}  // namespace kvcomp_detail

/// Blocks of threads take items of `teams.teams` blocks in turn.
template <class Out, bool kByChannel, bool kStaged>
__global__ void kvcomp_decode(KvcompStore store, KvcompTeams teams, KvcompRange range, Out* out,
                              size_t stride, uint32_t* damaged) {
  using namespace kvcomp_detail;
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const Team team = own_team(teams);
  const Shared shared = share(teams, team);
  const unsigned runs = kByChannel ? store.dims : store.tokens;
  const unsigned n = kByChannel ? store.tokens : store.dims;
  float* const steps = shared.floats;        // by position in the run
  float* const origins = shared.floats + n;  // of keys
  load_table(store, shared.table);
  const uint32_t items = store.rows * store.heads;
  for (uint32_t begin = blockIdx.x * teams.teams; begin < items; begin += gridDim.x * teams.teams) {
    const uint32_t item = begin + team.index;
    const KvcompPlace* const place = place_of(store, item);
    const bool raw = place && place->mode == 255, coded = place && !raw;
    const uint64_t first_token = uint64_t{item / store.heads} * store.tokens;
    const uint64_t column = uint64_t{item % store.heads} * store.dims;
    const auto wanted = [&](unsigned t) {
      return first_token + t >= range.first && first_token + t < range.end;
    };
    const auto out_of = [&](unsigned t, unsigned c) {
      return out + (first_token + t - range.first) * stride + column + c;
    };
    bool good = true;
    __syncthreads();  // shared memory is free again
    const auto payload = open_payload<kStaged>(store, team, coded ? place : nullptr, shared.stage);
    copy_async_commit();
    if (coded)
      for (unsigned i = team.thread; i < n; i += team.threads) {
        steps[i] = step_of(store, *place, kByChannel || store.channel_steps ? i : 0);
        if (!kByChannel) origins[i] = origin(store, *place, i);
      }
    if (raw)
      for (unsigned t = team.thread / kWarp; t < store.tokens; t += team.warps) {
        if (!wanted(t)) continue;
        for (unsigned c = threadIdx.x % kWarp; c < store.dims; c += kWarp) {
          const float value = raw_value(store, *place, t, c);
          good &= is_finite(value);
          put(out_of(t, c), value, store.brain);
        }
      }
    copy_async_wait<0>();
    __syncthreads();
    auto bit = payload.bit;  // of the first run of these
    for (unsigned first = 0; first < runs; first += team.threads) {
      const unsigned run = first + team.thread;
      const bool active = coded && run < runs;
      const unsigned bits = active ? run_bits(store, *place, run) : 0;
      unsigned total;
      const auto start = payload.run_at(bit + scan_team(bits, team, sums, total));
      bit += total;
      BitCursor cursor(payload.stream, active ? start : payload.bit);
      if constexpr (kByChannel) {
        if (active)
          walk(cursor, shared.table, n, [&](unsigned t, auto symbol) {
            if (wanted(t)) put(out_of(t, run), symbol.level() * steps[t], store.brain);
          });
      } else {
        for (unsigned chunk = 0; chunk < n; chunk += kKeyChunk) {
          const unsigned count = n - chunk < kKeyChunk ? n - chunk : kKeyChunk;
          if (active)
            walk(cursor, shared.table, count,
                 [&](unsigned i, auto symbol) { shared.chunk[i] = symbol.symbol(); });
          __syncthreads();
          // Rows together: a warp writes neighbouring channels.
          if (coded)
            for (unsigned r = team.thread / kWarp; r < team.threads && first + r < runs; r += team.warps) {
              if (!wanted(first + r)) continue;
              for (unsigned i = threadIdx.x % kWarp; i < count; i += kWarp) {
                const unsigned c = chunk + i;
                const float level =
                    static_cast<float>(static_cast<int>(shared.chunks[r * teams.chunks + i]) - kStepZero) +
                    origins[c];
                put(out_of(first + r, c), level * steps[c], store.brain);
              }
            }
          __syncthreads();
        }
      }
      if (!active) continue;
      const uint64_t end = cursor.position();
      good &= end + 16 * uint64_t{cursor.escapes()} == start + bits;
      if (good && cursor.escapes() > 0)
        good = walk_exact(store, payload.stream, start, end, shared.table, n, [&](unsigned i, float value) {
          const unsigned t = kByChannel ? i : run, c = kByChannel ? run : i;
          if (wanted(t)) put(out_of(t, c), value, store.brain);
        });
    }
    if (coded) good &= (bit - payload.bit + 7) / 8 == place->payload_bytes;
    if (!good) atomicMin(damaged, item);
  }
}

/// kQueries of one head at a time: `count` of them, from first_query on; the rest are zeros.
template <unsigned kQueries, bool kStaged>
__global__ void __launch_bounds__(kKvcompThreads, kvcomp_together(kQueries))
    kvcomp_keys(KvcompStore store, KvcompTeams teams, KvcompRange range, const float* queries,
                unsigned per_head, unsigned first_query, unsigned count, float* out, size_t stride,
                uint32_t* damaged) {
  using namespace kvcomp_detail;
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const Team team = own_team(teams);
  const Shared shared = share(teams, team);
  const unsigned n = store.dims, runs = store.tokens;
  // Of each channel, kQueries elements: queries times the channel's step. Behind them sums over channels of
  // these times origins, by warps, and the origins.
  float* const vectors = shared.floats;
  float* const bases = vectors + n * kQueries;
  float* const origins = bases + team.warps * kQueries;
  load_table(store, shared.table);
  const uint32_t items = store.rows * store.heads;
  for (uint32_t begin = blockIdx.x * teams.teams; begin < items; begin += gridDim.x * teams.teams) {
    const uint32_t item = begin + team.index;
    const KvcompPlace* const place = place_of(store, item);
    const bool raw = place && place->mode == 255, coded = place && !raw;
    const uint64_t first_token = uint64_t{item / store.heads} * store.tokens;
    const size_t first_row = size_t{item % store.heads} * per_head + first_query;
    const auto query = [&](unsigned g, unsigned c) {
      return g < count ? queries[(first_row + g) * n + c] : 0.0f;
    };
    bool good = true;
    __syncthreads();  // shared memory is free again
    const auto payload = open_payload<kStaged>(store, team, coded ? place : nullptr, shared.stage);
    copy_async_commit();
    float base[kQueries] = {};
    if (coded)
      for (unsigned c = team.thread; c < n; c += team.threads) {
        const float step = step_of(store, *place, store.channel_steps ? c : 0);
        const float level = origin(store, *place, c);
        origins[c] = level;
        for (unsigned g = 0; g < kQueries; ++g) {
          const float element = query(g, c) * step;
          vectors[c * kQueries + g] = element;
          base[g] = fmaf(element, level, base[g]);
        }
      }
    for (unsigned g = 0; g < kQueries; ++g)
      for (unsigned step = kWarp / 2; step > 0; step /= 2)
        base[g] += __shfl_xor_sync(kAllLanes, base[g], static_cast<int>(step));
    if (threadIdx.x % kWarp == 0)
      for (unsigned g = 0; g < kQueries; ++g) bases[team.thread / kWarp * kQueries + g] = base[g];
    copy_async_wait<0>();
    __syncthreads();
    for (unsigned g = 0; g < kQueries; ++g) {
      base[g] = 0;
      for (unsigned w = 0; w < team.warps; ++w) base[g] += bases[w * kQueries + g];
    }
    auto bit = payload.bit;
    for (unsigned first = 0; first < runs; first += team.threads) {
      const unsigned run = first + team.thread;
      const bool active = coded && run < runs;
      const unsigned bits = active ? run_bits(store, *place, run) : 0;
      unsigned total;
      const auto start = payload.run_at(bit + scan_team(bits, team, sums, total));
      bit += total;
      float scores[kQueries];
      for (unsigned g = 0; g < kQueries; ++g) scores[g] = base[g];
      if (active) {
        BitCursor cursor(payload.stream, start);
        walk(cursor, shared.table, n, [&](unsigned c, auto symbol) {
          const float level = symbol.level();
          float elements[kQueries];
          load_vector(elements, vectors + c * kQueries);
          for (unsigned g = 0; g < kQueries; ++g) scores[g] = fmaf(level, elements[g], scores[g]);
        });
        const uint64_t end = cursor.position();
        good &= end + 16 * uint64_t{cursor.escapes()} == start + bits;
        if (good && cursor.escapes() > 0)
          good = walk_exact(store, payload.stream, start, end, shared.table, n, [&](unsigned c, float value) {
            for (unsigned g = 0; g < kQueries; ++g)
              scores[g] += query(g, c) * value - vectors[c * kQueries + g] * origins[c];
          });
      } else if (raw && run < runs) {
        for (unsigned g = 0; g < kQueries; ++g) scores[g] = 0;
        for (unsigned c = 0; c < n; ++c) {
          const float value = raw_value(store, *place, run, c);
          good &= is_finite(value);
          for (unsigned g = 0; g < kQueries; ++g) scores[g] = fmaf(value, query(g, c), scores[g]);
        }
      }
      const uint64_t token = first_token + run;
      if (place && run < runs && token >= range.first && token < range.end)
        for (unsigned g = 0; g < kQueries; ++g)
          if (g < count) out[(first_row + g) * stride + (token - range.first)] = scores[g];
    }
    if (coded) good &= (bit - payload.bit + 7) / 8 == place->payload_bytes;
    if (!good) atomicMin(damaged, item);
  }
}

/// Block (part, head, channels / team.threads): the block rows of a part, every teams-th by one team.
/// partial: [part][team][heads * per_head][dims].
template <unsigned kQueries, bool kStaged>
__global__ void kvcomp_values(KvcompStore store, KvcompTeams teams, KvcompRange range, unsigned part_rows,
                              const float* weights, size_t stride, unsigned per_head, unsigned first_query,
                              unsigned count, float* partial, uint32_t* damaged) {
  using namespace kvcomp_detail;
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  const Team team = own_team(teams);
  const Shared shared = share(teams, team);
  const unsigned n = store.tokens, runs = store.dims, head = blockIdx.y;
  const unsigned own_run = blockIdx.z * team.threads + team.thread;
  float* const vectors = shared.floats;  // of each token, kQueries weights times its step
  const size_t first_row = size_t{head} * per_head + first_query;
  load_table(store, shared.table);
  float out[kQueries] = {};
  const unsigned begin = blockIdx.x * part_rows;
  const unsigned end_row = store.rows - begin < part_rows ? store.rows : begin + part_rows;
  for (unsigned at = begin; at < end_row; at += teams.teams) {
    const unsigned row = at + team.index;
    const uint32_t item = row * store.heads + head;
    const KvcompPlace* const place = row < end_row ? store.places + item : nullptr;
    const bool raw = place && place->mode == 255, coded = place && !raw;
    const uint64_t first_token = uint64_t{row} * n;
    const auto weight = [&](unsigned g, unsigned t) {
      const uint64_t token = first_token + t;
      const bool wanted = g < count && token >= range.first && token < range.end;
      return wanted ? weights[(first_row + g) * stride + (token - range.first)] : 0.0f;
    };
    bool good = true;
    __syncthreads();  // shared memory is free again
    const auto payload = open_payload<kStaged>(store, team, coded ? place : nullptr, shared.stage);
    copy_async_commit();
    if (place)
      for (unsigned g = 0; g < kQueries; ++g)
        for (unsigned t = team.thread; t < n; t += team.threads)
          vectors[t * kQueries + g] = weight(g, t) * (coded ? step_of(store, *place, t) : 1.0f);
    copy_async_wait<0>();
    __syncthreads();
    auto bit = payload.bit, start = bit;
    unsigned bits = 0;
    for (unsigned first = 0; first < runs; first += team.threads) {
      const unsigned run = first + team.thread;
      const unsigned run_size = coded && run < runs ? run_bits(store, *place, run) : 0;
      unsigned total;
      const unsigned before = scan_team(run_size, team, sums, total);
      if (run == own_run) start = payload.run_at(bit + before), bits = run_size;
      bit += total;
    }
    if (coded) {
      good &= (bit - payload.bit + 7) / 8 == place->payload_bytes;
      if (own_run < runs) {
        BitCursor cursor(payload.stream, start);
        walk(cursor, shared.table, n, [&](unsigned t, auto symbol) {
          const float level = symbol.level();
          float elements[kQueries];
          load_vector(elements, vectors + t * kQueries);
          for (unsigned g = 0; g < kQueries; ++g) out[g] = fmaf(level, elements[g], out[g]);
        });
        const uint64_t end = cursor.position();
        good &= end + 16 * uint64_t{cursor.escapes()} == start + bits;
        if (good && cursor.escapes() > 0)
          good = walk_exact(store, payload.stream, start, end, shared.table, n, [&](unsigned t, float value) {
            for (unsigned g = 0; g < kQueries; ++g) out[g] = fmaf(value, weight(g, t), out[g]);
          });
      }
    } else if (raw && own_run < runs) {
      for (unsigned t = 0; t < n; ++t) {
        const float value = raw_value(store, *place, t, own_run);
        good &= is_finite(value);
        for (unsigned g = 0; g < kQueries; ++g) out[g] = fmaf(value, vectors[t * kQueries + g], out[g]);
      }
    }
    if (!good) atomicMin(damaged, item);
  }
  if (own_run < runs)
    for (unsigned g = 0; g < kQueries; ++g) {
      const uint64_t part = uint64_t{blockIdx.x} * teams.teams + team.index;
      if (g < count) partial[(part * store.heads * per_head + first_row + g) * runs + own_run] = out[g];
    }
}

/// out[i] = the sum of partial[p * size + i] over p, in that order.
__global__ void kvcomp_sum_parts(const float* partial, size_t parts, size_t size, float* out) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (size_t p = 0; p < parts; ++p) sum += partial[p * size + i];
  out[i] = sum;
}

}  // namespace kvcodec::cuda
