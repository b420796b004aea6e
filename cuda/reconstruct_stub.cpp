#include "cuda/reconstruct.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {
namespace {

Error not_here() { return built_without_cuda("reconstruction"); }

}  // namespace

struct Reconstructor::Impl {};

Reconstructor::Reconstructor(MatrixView<const float>, DType) { throw not_here(); }
Reconstructor::Reconstructor(const ByteAtoms&) { throw not_here(); }
Reconstructor::~Reconstructor() = default;
Reconstructor::Reconstructor(Reconstructor&&) noexcept = default;
Reconstructor& Reconstructor::operator=(Reconstructor&&) noexcept = default;
size_t Reconstructor::atoms() const { throw not_here(); }
size_t Reconstructor::width() const { throw not_here(); }
void Reconstructor::run(const CodeView&, MatrixView<float>, const Finishing&) const { throw not_here(); }
void Reconstructor::run(const CodeView&, DType, MatrixView<uint16_t>, const Finishing&) const {
  throw not_here();
}
void Reconstructor::run(const PackedCodes&, MatrixView<float>, const Finishing&) const { throw not_here(); }
void Reconstructor::run(const PackedCodes&, DType, MatrixView<uint16_t>, const Finishing&) const {
  throw not_here();
}

}  // namespace kvcodec::cuda
