#include "cuda/attention.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

struct DeviceRows::Impl {};

DeviceRows::DeviceRows(MatrixView<const float>, MatrixView<const float>) {
  throw built_without_cuda("attention");
}
DeviceRows::DeviceRows(DType, MatrixView<const uint16_t>, MatrixView<const uint16_t>) {
  throw built_without_cuda("attention");
}
DeviceRows::DeviceRows(const TwoBitCache&) { throw built_without_cuda("attention"); }
DeviceRows::~DeviceRows() = default;
DeviceRows::DeviceRows(DeviceRows&&) noexcept = default;
DeviceRows& DeviceRows::operator=(DeviceRows&&) noexcept = default;
size_t DeviceRows::tokens() const { throw built_without_cuda("attention"); }
size_t DeviceRows::dims() const { throw built_without_cuda("attention"); }
void attend(std::span<const Attention>) { throw built_without_cuda("attention"); }

}  // namespace kvcodec::cuda
