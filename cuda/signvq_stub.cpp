#include "cuda/signvq.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

struct SignIndex::Impl {};

std::vector<SignCodebook> encode_and_build_codebooks(MatrixView<const float>, size_t, MatrixView<uint8_t>) {
  throw built_without_cuda("sign codebooks");
}
SignIndex::SignIndex(size_t) { throw built_without_cuda("a sign index"); }
SignIndex::~SignIndex() = default;
SignIndex::SignIndex(SignIndex&&) noexcept = default;
SignIndex& SignIndex::operator=(SignIndex&&) noexcept = default;
void SignIndex::append(MatrixView<const uint8_t>) { throw built_without_cuda("a sign index"); }
size_t SignIndex::dims() const { throw built_without_cuda("a sign index"); }
size_t SignIndex::tokens() const { throw built_without_cuda("a sign index"); }
void SignIndex::scores(const SignTable&, std::span<float>) const { throw built_without_cuda("a sign index"); }
std::vector<Scored> SignIndex::top_k(const SignTable&, size_t, Order) const {
  throw built_without_cuda("a sign index");
}
std::vector<std::vector<Scored>> top_k(std::span<const SignQuery>, size_t, Order) {
  throw built_without_cuda("a sign index");
}

}  // namespace kvcodec::cuda
