#include "cuda/kvcomp/kvcomp.cuh"
#include "cuda/kvcomp/kvcomp_kernels.cuh"

namespace kvcodec::cuda {
namespace {

constexpr unsigned round_up(unsigned value, unsigned to) { return (value + to - 1) / to * to; }

/// Threads of a team.
constexpr unsigned threads_for(unsigned runs) {
  const unsigned threads = round_up(runs < 1 ? 1 : runs, kWarp);
  return threads < kKvcompThreads ? threads : kKvcompThreads;
}

/// A launch for runs of blocks; floats: of each team, chunks: bytes of each thread.
struct Plan {
  Plan(const KvcompCuts& cuts, const KvcompStore& store, unsigned runs, unsigned floats, unsigned chunks)
      : most_blocks(cuts.most_blocks) {
    teams.threads = threads_for(runs);
    teams.teams = kKvcompThreads / teams.threads;
    // Up to 15 bytes before the payload, and what a damaged run makes a cursor read behind it: all that its
    // codes and exact values can be, and four words.
    const unsigned n = store.by_channel ? store.tokens : store.dims;
    teams.stage_bytes = round_up(store.largest_payload + 15 + n * (kStepWindow + 16) / 8 + 32, 16);
    teams.floats = round_up(floats, 4);
    teams.chunks = chunks;
    while (teams.teams > 1 && shared() > cuts.shared_together) --teams.teams;
    if (shared() > cuts.shared_staged) teams.stage_bytes = 0;
  }
  size_t shared() const {
    const size_t team = teams.stage_bytes + size_t{4} * teams.floats + size_t{teams.threads} * teams.chunks;
    return kTable + teams.teams * team;
  }
  unsigned threads() const { return teams.teams * teams.threads; }
  unsigned blocks(const KvcompStore& store) const {
    const uint64_t wanted = (uint64_t{store.rows} * store.heads + teams.teams - 1) / teams.teams;
    return static_cast<unsigned>(wanted < most_blocks ? wanted : most_blocks);
  }

  static constexpr size_t kTable = sizeof(uint32_t) << kStepWindow;
  KvcompTeams teams{};
  uint64_t most_blocks;
};

template <class Out>
Status decode(const KvcompStore& store, KvcompRange range, Out* out, size_t stride, uint32_t* damaged,
              StreamHandle stream, const KvcompCuts& cuts) {
  const Plan plan(cuts, store, store.by_channel ? store.dims : store.tokens,
                  store.by_channel ? store.tokens : 2 * store.dims, store.by_channel ? 0 : kKeyChunkStride);
  const bool staged = plan.teams.stage_bytes > 0;
  const auto kernel = store.by_channel
                          ? (staged ? kvcomp_decode<Out, true, true> : kvcomp_decode<Out, true, false>)
                          : (staged ? kvcomp_decode<Out, false, true> : kvcomp_decode<Out, false, false>);
  return launch(kernel, plan.blocks(store), plan.threads(), plan.shared(), stream, store, plan.teams, range,
                out, stride, damaged);
}

/// Calls body(k, first, count) for parts of n queries, of up to `most` (4 or 8) each: `count` of them in a
/// kernel for k.
template <class Body>
Status for_queries(unsigned n, unsigned most, Body&& body) {
  for (unsigned first = 0; first < n; first += most) {
    const unsigned count = n - first < most ? n - first : most;
    const Status status = body(count > 4 ? 8u : count > 2 ? 4u : count, first, count);
    if (status != 0) return status;
  }
  return 0;
}

Plan plan_keys(const KvcompCuts& cuts, const KvcompStore& store, unsigned queries) {
  const unsigned floats = kvcomp_key_floats(store.dims, queries, threads_for(store.tokens));
  return {cuts, store, store.tokens, floats, 0};
}

/// Keys are multiplied with so many queries at a time: a multiple of 4.
unsigned key_queries(const KvcompCuts& cuts, const KvcompStore& store, unsigned per_head) {
  return per_head > 4 && plan_keys(cuts, store, 8).shared() <= cuts.shared_most ? 8 : 4;
}

template <unsigned kTiles>
Status keys(const KvcompCuts& cuts, const KvcompStore& store, KvcompRange range, const float* queries,
            unsigned per_head, unsigned first, unsigned count, float* out, size_t stride, uint32_t* damaged,
            StreamHandle stream) {
  const Plan plan = plan_keys(cuts, store, 4 * kTiles);
  const auto kernel = plan.teams.stage_bytes > 0 ? kvcomp_keys<kTiles, true> : kvcomp_keys<kTiles, false>;
  return launch(kernel, plan.blocks(store), plan.threads(), plan.shared(), stream, store, plan.teams, range,
                queries, per_head, first, count, out, stride, damaged);
}

/// How values are cut into parts; the same for all numbers of queries.
struct Parts {
  Parts(const KvcompCuts& cuts, const KvcompStore& store)
      : plan(cuts, store, store.dims, store.tokens * 8, 0) {
    const uint64_t items = uint64_t{store.rows} * store.heads;
    const uint64_t rows = items / cuts.enough_items + 1;
    part_rows = static_cast<unsigned>(rows < 16 ? rows : 16) * plan.teams.teams;
    parts = (store.rows + part_rows - 1) / part_rows;
    channels = (store.dims + plan.teams.threads - 1) / plan.teams.threads;
  }
  Plan plan;
  unsigned part_rows, parts, channels;
};

template <unsigned kQueries>
Status values(const KvcompCuts& cuts, const KvcompStore& store, KvcompRange range, const float* weights,
              size_t stride, unsigned per_head, unsigned first, unsigned count, float* partial,
              uint32_t* damaged, StreamHandle stream) {
  const Parts parts(cuts, store);
  const auto kernel =
      parts.plan.teams.stage_bytes > 0 ? kvcomp_values<kQueries, true> : kvcomp_values<kQueries, false>;
  return launch(kernel, dim3(parts.parts, store.heads, parts.channels), parts.plan.threads(),
                parts.plan.shared(), stream, store, parts.plan.teams, range, parts.part_rows, weights, stride,
                per_head, first, count, partial, damaged);
}

}  // namespace

Status run_kvcomp_decode(const KvcompStore& store, KvcompRange range, float* out, size_t stride,
                         uint32_t* damaged, StreamHandle stream, const KvcompCuts& cuts) {
  return decode(store, range, out, stride, damaged, stream, cuts);
}
Status run_kvcomp_decode(const KvcompStore& store, KvcompRange range, uint16_t* out, size_t stride,
                         uint32_t* damaged, StreamHandle stream, const KvcompCuts& cuts) {
  return decode(store, range, out, stride, damaged, stream, cuts);
}

Status run_kvcomp_keys(const KvcompStore& store, KvcompRange range, const float* queries, unsigned per_head,
                       float* out, size_t stride, uint32_t* damaged, StreamHandle stream,
                       const KvcompCuts& cuts) {
  const unsigned most = key_queries(cuts, store, per_head);
  return for_queries(per_head, most, [&](unsigned k, unsigned first, unsigned count) {
    const auto run = k == 8 ? keys<2> : keys<1>;
    return run(cuts, store, range, queries, per_head, first, count, out, stride, damaged, stream);
  });
}

size_t kvcomp_partial_sums(const KvcompStore& store, unsigned per_head, const KvcompCuts& cuts) {
  const Parts parts(cuts, store);
  return size_t{parts.parts} * parts.plan.teams.teams * store.heads * per_head * store.dims;
}

Status run_kvcomp_values(const KvcompStore& store, KvcompRange range, const float* weights, size_t stride,
                         unsigned per_head, float* partial, float* out, uint32_t* damaged,
                         StreamHandle stream, const KvcompCuts& cuts) {
  const Status status = for_queries(per_head, 8, [&](unsigned k, unsigned first, unsigned count) {
    const auto run = k == 8 ? values<8> : k == 4 ? values<4> : k == 2 ? values<2> : values<1>;
    return run(cuts, store, range, weights, stride, per_head, first, count, partial, damaged, stream);
  });
  if (status != 0) return status;
  const Parts parts(cuts, store);
  const size_t size = size_t{store.heads} * per_head * store.dims;
  constexpr unsigned kThreads = 64;  // so that sums of a few heads keep many multiprocessors busy
  const auto blocks = static_cast<unsigned>((size + kThreads - 1) / kThreads);
  return launch(kvcomp_sum_parts, blocks, kThreads, 0, stream, partial,
                size_t{parts.parts} * parts.plan.teams.teams, size, out);
}

}  // namespace kvcodec::cuda
