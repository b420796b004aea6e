#include "cuda/omp.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

struct Omp::Impl {};

Omp::Omp(MatrixView<const float>) { throw built_without_cuda("orthogonal matching pursuit"); }
Omp::~Omp() = default;
Omp::Omp(Omp&&) noexcept = default;
Omp& Omp::operator=(Omp&&) noexcept = default;
void Omp::assign(MatrixView<const float>) { throw built_without_cuda("orthogonal matching pursuit"); }
size_t Omp::atoms() const { throw built_without_cuda("orthogonal matching pursuit"); }
size_t Omp::width() const { throw built_without_cuda("orthogonal matching pursuit"); }
uint64_t Omp::gram_bytes(size_t) { throw built_without_cuda("orthogonal matching pursuit"); }
void Omp::build_gram() { throw built_without_cuda("orthogonal matching pursuit"); }
bool Omp::has_gram() const { throw built_without_cuda("orthogonal matching pursuit"); }
bool Omp::gram_pays(uint64_t, int64_t) const { throw built_without_cuda("orthogonal matching pursuit"); }
bool Omp::takes(const OmpOptions&) { throw built_without_cuda("orthogonal matching pursuit"); }
SparseCodes Omp::encode(MatrixView<const float>, const OmpOptions&) const {
  throw built_without_cuda("orthogonal matching pursuit");
}

}  // namespace kvcodec::cuda
