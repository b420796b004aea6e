#include "cuda/engine.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

std::unique_ptr<Engine> make_engine(Engine::Note) { throw built_without_cuda("codecs"); }

}  // namespace kvcodec::cuda
