// CUDA implementation of lib/attention/attention.hpp: attention of one decoding step over all tokens of a head or
// over chosen ones (Self-Indexing KVCache, "sparse FlashAttention"). The sequence is split among the
// multiprocessors.
//
// The sums run in another order than lib's, the same in every run: results differ from lib's by rounding,
// within the bounds of test/cuda/attention_test.cpp.
#pragma once

#include <span>

#include "lib/attention/attention.hpp"

namespace kvcodec::cuda {

/// As kvcodec::attend, for heads of equal dimensions, 1 to 256. Rows, queries, lists of tokens and results of as many heads
/// as fit half of the free memory are on the device at a time, rows once. Throws Error(failed) for shapes that do not fit
/// and tokens that do not exist.
void attend(std::span<const kvcodec::Attention> heads);

}  // namespace kvcodec::cuda
