#include "cuda/rvq.cuh"
#include "cuda/rvq.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {
namespace {

Error not_built() { return built_without_cuda("residual codebooks"); }

}  // namespace

struct ResidualQuantizer::Impl {};

ResidualQuantizer::ResidualQuantizer(const Codebooks&) { throw not_built(); }
ResidualQuantizer::~ResidualQuantizer() = default;
ResidualQuantizer::ResidualQuantizer(ResidualQuantizer&&) noexcept = default;
ResidualQuantizer& ResidualQuantizer::operator=(ResidualQuantizer&&) noexcept = default;
void ResidualQuantizer::sum_entries(MatrixView<const uint32_t>, MatrixView<float>) const {
  throw not_built();
}
void ResidualQuantizer::sum_packed_entries(std::span<const uint8_t>, uint64_t, MatrixView<float>) const {
  throw not_built();
}
void ResidualQuantizer::encode(MatrixView<const float>, size_t, MatrixView<uint32_t>) const {
  throw not_built();
}
RvqBooks ResidualQuantizer::books() const { throw not_built(); }

}  // namespace kvcodec::cuda
