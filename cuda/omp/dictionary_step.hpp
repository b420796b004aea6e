// CUDA implementation of the training of lib/sparse/train.hpp with adam and gradient: a batch is copied there, coded
// (omp.hpp), and its gradient followed; atoms, moments, codes and residuals stay. The dictionary is lib's,
// bit for bit: it is lib's own loop over an engine that gives the same bits.
//
// A step of 1024 signals of 512 values with 64 of 8192 atoms is 2 ms of pursuit by arithmetic (omp.hpp); its
// gradient reads 65536 residuals of 2 KiB from the second-level cache (134 MB, 0.03 ms) and atoms and moments
// once (0.1 GB both ways, 0.03 ms). 2 MB go there and 50 KB come back.
#pragma once

#include <memory>

#include "lib/core/progress.hpp"
#include "lib/sparse/train.hpp"

namespace kvcodec::cuda {

/// For dictionaries of that many atoms and values, and batches as the options say. Throws Error(usage) for an
/// optimizer that is not on the device, and for a sparsity beyond what pursuit takes there.
std::unique_ptr<TrainingEngine> make_training_engine(const TrainOptions& options, size_t width);

/// As kvcodec::train_dictionary.
void train_dictionary(const SignalSource& source, const TrainOptions& options, Dictionary& dictionary,
                      TrainState& state, const Progress& progress = {});

}  // namespace kvcodec::cuda
