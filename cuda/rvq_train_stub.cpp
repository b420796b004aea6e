#include "cuda/rvq_train.hpp"
#include "cuda/stub.hpp"

std::unique_ptr<kvcodec::RvqTrainEngine> kvcodec::cuda::make_rvq_train_engine() {
  throw built_without_cuda("training of residual codebooks");
}
