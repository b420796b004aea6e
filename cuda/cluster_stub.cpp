#include "cuda/cluster.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {
namespace {

Error not_built() { return built_without_cuda("selection by clusters"); }

}  // namespace

struct ClusterIndex::Impl {};
ClusterIndex::ClusterIndex(const kvcodec::ClusterIndex&) { throw not_built(); }
ClusterIndex::~ClusterIndex() = default;
ClusterIndex::ClusterIndex(ClusterIndex&&) noexcept = default;
ClusterIndex& ClusterIndex::operator=(ClusterIndex&&) noexcept = default;

struct TokenRows::Impl {};
TokenRows::TokenRows(MatrixView<const float>) { throw not_built(); }
TokenRows::TokenRows(MatrixView<const uint16_t>) { throw not_built(); }
TokenRows::~TokenRows() = default;
TokenRows::TokenRows(TokenRows&&) noexcept = default;
TokenRows& TokenRows::operator=(TokenRows&&) noexcept = default;
size_t TokenRows::tokens() const { throw not_built(); }
size_t TokenRows::row_bytes() const { throw not_built(); }

struct ClusterSelection::Impl {};
ClusterSelection::ClusterSelection(std::span<const ClusterQuery>) { throw not_built(); }
ClusterSelection::~ClusterSelection() = default;
ClusterSelection::ClusterSelection(ClusterSelection&&) noexcept = default;
ClusterSelection& ClusterSelection::operator=(ClusterSelection&&) noexcept = default;
size_t ClusterSelection::queries() const { throw not_built(); }
std::vector<Scored> ClusterSelection::tokens(size_t, Order) const { throw not_built(); }
std::vector<std::vector<Scored>> ClusterSelection::tokens(Order) const { throw not_built(); }
std::vector<std::vector<std::byte>> ClusterSelection::gather(std::span<const TokenRows* const>) const {
  throw not_built();
}

}  // namespace kvcodec::cuda
