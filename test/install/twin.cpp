// Looks for a device, and sums entries of codebooks there, using only what find_package(kvcodec) provides.
#include <cstdio>

#include "cuda/engine.hpp"
#include "cuda/rvq/rvq.hpp"

int main() {
  using namespace kvcodec;
  if (cuda::devices().empty()) return std::puts("no device"), 0;
  const Codebooks books(1, 4, 8);
  const Matrix<uint32_t> ids(3, 1);
  Matrix<float> sums(3, 8);
  cuda::ResidualQuantizer(books).sum_entries(ids, sums);
  std::printf("%g\n", sums(0, 0));
}
