#include "cuda/kmeans.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {
namespace {

Error not_built() { return built_without_cuda("k-means"); }

}  // namespace

std::vector<Clustering> kmeans(std::span<const KmeansTask>, const KmeansOptions&, const Progress&) {
  throw not_built();
}

struct RowsByCluster::Impl {};
RowsByCluster::RowsByCluster(std::span<const uint32_t>, size_t) { throw not_built(); }
RowsByCluster::~RowsByCluster() = default;
RowsByCluster::RowsByCluster(RowsByCluster&&) noexcept = default;
RowsByCluster& RowsByCluster::operator=(RowsByCluster&&) noexcept = default;
size_t RowsByCluster::clusters() const { throw not_built(); }
void RowsByCluster::read_offsets(std::span<uint64_t>) const { throw not_built(); }
kvcodec::RowsByCluster RowsByCluster::read() const { throw not_built(); }
void RowsByCluster::means_of(const DeviceMatrix&, MatrixView<float>) const { throw not_built(); }
void RowsByCluster::sums_of(const DeviceMatrix&, MatrixView<double>) const { throw not_built(); }

}  // namespace kvcodec::cuda
