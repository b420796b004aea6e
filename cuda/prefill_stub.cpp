#include "cuda/prefill.hpp"
#include "cuda/stub.hpp"

std::shared_ptr<kvcodec::PrefillEngine> kvcodec::cuda::make_prefill_engine(const LlamaWeights&) {
  throw built_without_cuda("a model's prefill");
}
