#include "cuda/runtime/kernel.cuh"

namespace kvcodec::cuda {
namespace {

__global__ void probe(int* out, int value) { *out = value; }

}  // namespace

Status run_probe(int* out, int value, StreamHandle stream) {
  return launch(probe, 1, 32, 0, stream, out, value);
}

}  // namespace kvcodec::cuda
