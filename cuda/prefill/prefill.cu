#include "cuda/prefill/prefill.cuh"
#include "cuda/prefill/prefill_kernels.cuh"

namespace kvcodec::cuda {
namespace {

/// Blocks that give each of `count` elements a thread, but no more than keep a device busy.
unsigned blocks_of(size_t count) {
  constexpr size_t kMost = 4096;
  const size_t blocks = (count + kPrefillThreads - 1) / kPrefillThreads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace

Status run_split(RawFloat type, const void* raw, size_t count, unsigned parts, const FloatParts& out,
                 StreamHandle stream) {
  return launch(split_floats, blocks_of(count), kPrefillThreads, 0, stream, type, raw, uint64_t{count}, parts,
                out);
}

Status run_norm_rows(const float* x, size_t rows, unsigned width, const float* weight, double epsilon,
                     float* out, const FloatParts& parts, StreamHandle stream) {
  return launch(norm_rows, static_cast<unsigned>(rows), kPrefillThreads, 0, stream, x, width, weight, epsilon,
                out, parts);
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
  const size_t warps = count * heads.heads;
  return launch(place_heads, static_cast<unsigned>((warps + kHeadWarps - 1) / kHeadWarps), kHeadWarps * kWarp,
                0, stream, heads, uint64_t{count});
}

Status run_causal_attention(const CausalAttention& attention, StreamHandle stream) {
  const unsigned group = attention.q_heads / attention.kv_heads, rows = attention_rows(attention.padded);
  const dim3 grid(attention.tile_count, attention.kv_heads, (group + rows - 1) / rows);
  const auto run = [&]<unsigned kPadded>() {
    using Shape = AttentionShape<kPadded>;
    return launch(causal_attention_tiles<kPadded>, grid, Shape::kWarps * kWarp, Shape::kShared, stream,
                  attention);
  };
  switch (attention.padded) {
    case 32:
      return run.template operator()<32>();
    case 64:
      return run.template operator()<64>();
    case 128:
      return run.template operator()<128>();
    default:
      return run.template operator()<256>();
  }
}

}  // namespace kvcodec::cuda
