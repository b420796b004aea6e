// CUDA implementation of the heavy steps of lib/rvq/train.hpp: nearest entries, means and sums of the rows that chose
// an entry, the sums of x q' and q q' of least squares, and the searches. The same bits as lib's.
#pragma once

#include <memory>

#include "lib/rvq/train.hpp"

namespace kvcodec::cuda {

/// For train_codebooks. It declines searches in codebooks of more than 256 dimensions. Throws
/// Error(no_device) in a build without CUDA.
std::unique_ptr<RvqTrainEngine> make_rvq_train_engine();

}  // namespace kvcodec::cuda
