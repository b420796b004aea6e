#include "cuda/kvcomp_encode.cuh"
#include "cuda/kvcomp_encode.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {
namespace {

Error not_built() { return built_without_cuda("encoding blocks of kvcomp"); }

}  // namespace

struct QuantizedBlocks::Impl {};

std::vector<uint32_t> kvcomp_codes(const HuffmanBook&) { throw not_built(); }
KvcompValues QuantizedBlocks::values() const { throw not_built(); }

QuantizedBlocks::QuantizedBlocks(const kvcomp::Layout&, DType, const ErrorBound&,
                                 MatrixView<const uint16_t>) {
  throw not_built();
}
QuantizedBlocks::~QuantizedBlocks() = default;
QuantizedBlocks::QuantizedBlocks(QuantizedBlocks&&) noexcept = default;
QuantizedBlocks& QuantizedBlocks::operator=(QuantizedBlocks&&) noexcept = default;
size_t QuantizedBlocks::rows() const { throw not_built(); }
std::vector<uint8_t> QuantizedBlocks::symbols() const { throw not_built(); }
std::vector<float> QuantizedBlocks::steps() const { throw not_built(); }
std::vector<int16_t> QuantizedBlocks::origins() const { throw not_built(); }
std::vector<uint64_t> QuantizedBlocks::histogram() const { throw not_built(); }
EncodedBlocks QuantizedBlocks::encode(const BlockCoder&) const { throw not_built(); }

}  // namespace kvcodec::cuda
