#include "cuda/nearest.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

struct DeviceMatrix::Impl {};

DeviceMatrix::DeviceMatrix(MatrixView<const float>) { throw built_without_cuda("nearest entries"); }
DeviceMatrix::~DeviceMatrix() = default;
DeviceMatrix::DeviceMatrix(DeviceMatrix&&) noexcept = default;
DeviceMatrix& DeviceMatrix::operator=(DeviceMatrix&&) noexcept = default;
size_t DeviceMatrix::rows() const { throw built_without_cuda("nearest entries"); }
size_t DeviceMatrix::cols() const { throw built_without_cuda("nearest entries"); }
const float* DeviceMatrix::data() const { throw built_without_cuda("nearest entries"); }
void best_products(const DeviceMatrix&, const DeviceMatrix&, std::span<const float>, std::span<uint32_t>,
                   std::span<float>) {
  throw built_without_cuda("nearest entries");
}
void best_products(MatrixView<const float>, MatrixView<const float>, std::span<const float>,
                   std::span<uint32_t>, std::span<float>) {
  throw built_without_cuda("nearest entries");
}
void means_of(const DeviceMatrix&, std::span<const uint64_t>, std::span<const uint32_t>, MatrixView<float>) {
  throw built_without_cuda("means of rows");
}

}  // namespace kvcodec::cuda
