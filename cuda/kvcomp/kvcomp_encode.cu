#include "cuda/kvcomp/kvcomp_encode.cuh"
#include "cuda/kvcomp/kvcomp_encode_kernels.cuh"

namespace kvcodec::cuda {
namespace {

/// Threads of a block of threads: as many as there is something to do for, whole warps.
unsigned threads_for(size_t items) {
  const size_t whole = (items + kWarp - 1) / kWarp * kWarp;
  return static_cast<unsigned>(whole < kWarp ? kWarp : whole < 256 ? whole : 256);
}

/// Blocks of threads, which take turns where there are more items.
unsigned blocks_for(uint64_t items) {
  constexpr uint64_t kMost = 1 << 16;
  return static_cast<unsigned>(items < kMost ? items : kMost);
}

uint64_t blocks_of(const KvcompValues& values) { return uint64_t{values.rows} * values.heads; }
unsigned runs_of(const KvcompValues& values) { return values.by_channel ? values.dims : values.tokens; }

}  // namespace

Status run_kvcomp_quantize(const KvcompValues& values, const KvcompBound& bound, StreamHandle stream) {
  if (values.by_channel) {
    constexpr unsigned kThreads = 128;
    const uint64_t warps = blocks_of(values) * values.tokens;
    return launch(kvcomp_quantize_tokens, blocks_for((warps + kThreads / kWarp - 1) / (kThreads / kWarp)),
                  kThreads, 0, stream, values, bound);
  }
  const auto kernel = values.channel_steps ? kvcomp_quantize_channels : kvcomp_quantize_blocks;
  return launch(kernel, blocks_for(blocks_of(values)), threads_for(values.dims), 0, stream, values, bound);
}

Status run_kvcomp_histogram(const uint8_t* symbols, size_t size, unsigned long long* counts,
                            StreamHandle stream) {
  // A block of threads counts in 32 bits, and clears and adds up its table once for many symbols.
  constexpr size_t kSymbols = size_t{1} << 16;
  return launch(kvcomp_histogram, blocks_for((size + kSymbols - 1) / kSymbols), 256, 0, stream, symbols, size,
                counts);
}

Status run_kvcomp_sizes(const KvcompValues& values, const uint32_t* codes, uint32_t* run_bits,
                        KvcompSizes* sizes, StreamHandle stream) {
  return launch(kvcomp_sizes, blocks_for(blocks_of(values)), threads_for(runs_of(values)), 0, stream, values,
                codes, run_bits, sizes);
}

Status run_kvcomp_places(const KvcompSizes* sizes, size_t blocks, KvcompPlace* places,
                         unsigned long long* totals, StreamHandle stream) {
  return launch(kvcomp_places, 1, blocks > 256 ? 1024 : 256, 0, stream, sizes, uint64_t{blocks}, places,
                totals);
}

Status run_kvcomp_write(const KvcompValues& values, const uint32_t* codes, const uint32_t* run_bits,
                        const KvcompSizes* sizes, const KvcompPlace* places, const KvcompOut& out,
                        StreamHandle stream) {
  return launch(kvcomp_write, blocks_for(blocks_of(values)), threads_for(runs_of(values)), 0, stream, values,
                codes, run_bits, sizes, places, out);
}

}  // namespace kvcodec::cuda
