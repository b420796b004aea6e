#include "cuda/reconstruct.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

struct Reconstructor::Impl {};

Reconstructor::Reconstructor(MatrixView<const float>, DType) { throw built_without_cuda("reconstruction"); }
Reconstructor::~Reconstructor() = default;
Reconstructor::Reconstructor(Reconstructor&&) noexcept = default;
Reconstructor& Reconstructor::operator=(Reconstructor&&) noexcept = default;
size_t Reconstructor::atoms() const { throw built_without_cuda("reconstruction"); }
size_t Reconstructor::width() const { throw built_without_cuda("reconstruction"); }
void Reconstructor::run(const CodeView&, MatrixView<float>) const {
  throw built_without_cuda("reconstruction");
}
void Reconstructor::run(const PackedCodes&, MatrixView<float>) const {
  throw built_without_cuda("reconstruction");
}

}  // namespace kvcodec::cuda
