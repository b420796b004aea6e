#include "cuda/runtime.hpp"

// Tests that skip without a device are built without CUDA too.
void kvcodec::cuda::limit_free_bytes(uint64_t) {}
