#include "cuda/kvcomp.cuh"
#include "cuda/kvcomp.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {
namespace {

Error not_built() { return built_without_cuda("blocks of kvcomp"); }

}  // namespace

struct LoadedBlocks::Impl {};

LoadedBlocks::LoadedBlocks(const kvcomp::Layout&, DType, const StreamReader&, uint64_t, uint64_t) {
  throw not_built();
}
LoadedBlocks::~LoadedBlocks() = default;
LoadedBlocks::LoadedBlocks(LoadedBlocks&&) noexcept = default;
LoadedBlocks& LoadedBlocks::operator=(LoadedBlocks&&) noexcept = default;
size_t LoadedBlocks::rows() const { throw not_built(); }
size_t LoadedBlocks::tokens() const { throw not_built(); }
void LoadedBlocks::decode(size_t, MatrixView<float>) const { throw not_built(); }
void LoadedBlocks::decode(size_t, MatrixView<uint16_t>) const { throw not_built(); }
void LoadedBlocks::multiply_keys(size_t, MatrixView<const float>, MatrixView<float>) const {
  throw not_built();
}
void LoadedBlocks::multiply_values(size_t, MatrixView<const float>, MatrixView<float>) const {
  throw not_built();
}
KvcompStore LoadedBlocks::store() const { throw not_built(); }
void LoadedBlocks::cut(const KvcompCuts&) { throw not_built(); }

}  // namespace kvcodec::cuda
