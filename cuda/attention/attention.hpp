// CUDA implementation of lib/attention/attention.hpp: attention of one decoding step over all tokens of a head or
// over chosen ones (Self-Indexing KVCache, "sparse FlashAttention"). The sequence is split among the
// multiprocessors.
//
// The sums run in another order than lib's, the same in every run: results differ from lib's by rounding, as
// test/cuda/attention_test.cpp bounds it.
#pragma once

#include <span>

#include "lib/attention/attention.hpp"

namespace kvcodec::cuda {

/// As kvcodec::attend, of heads of as many dimensions each, 1 to 256. Rows, queries, lists of tokens and results of as many
/// heads as fit half of the memory that is free are on the device at a time, rows once. Throws Error(failed) for shapes
/// that do not fit and tokens that are not there.
void attend(std::span<const kvcodec::Attention> heads);

}  // namespace kvcodec::cuda
