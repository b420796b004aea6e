// Matrix products by OpenBLAS, with shapes checked and no thread of their own.
#pragma once

#include <concepts>
#include <span>
#include <string_view>

#include <omp.h>

#include "lib/core/cpu.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

enum class Transpose : bool { no, yes };

/// A row-major matrix as a factor of a product: as it is, or transposed.
struct Factor {
  template <std::convertible_to<MatrixView<const float>> Some>
  Factor(const Some& stored, Transpose transposes = Transpose::no) : matrix(stored), transpose(transposes) {}

  bool turned() const { return transpose == Transpose::yes; }
  size_t rows() const { return turned() ? matrix.cols() : matrix.rows(); }
  size_t cols() const { return turned() ? matrix.rows() : matrix.cols(); }

  MatrixView<const float> matrix;
  Transpose transpose;
};

inline Factor transposed(MatrixView<const float> matrix) { return {matrix, Transpose::yes}; }

/// C = alpha * A * B + beta * C.
/// a: (m, k), b: (k, n), c: (m, n); c overlaps neither a nor b.
/// With beta = 0, c is written without being read. Throws Error(failed) if the shapes do not fit together or exceed 31 bits.
///
/// Runs on the calling thread, inside parallel_for or not: OpenBLAS starts no threads here. The result of one call depends on its arguments
/// alone, but a larger product cut in other blocks may sum in another order: callers cut by fixed sizes.
void gemm(float alpha, const Factor& a, const Factor& b, float beta, MatrixView<float> c);

/// y = A * x + beta * y; as gemm. Far faster than gemm with a matrix of one row.
void gemv(const Factor& a, std::span<const float> x, float beta, std::span<float> y);

/// The kernels that OpenBLAS should use in place of its choice (openblas_get_corename), by their name in its variable OPENBLAS_CORETYPE;
/// null if its choice is good. It knows the processors of its time: 0.3.21 (Debian 12) takes Intel's Raptor Lake, Emerald Rapids and
/// later ones for a Pentium 4: a forward pass takes four times as long. A machine with AVX2 never needs kernels without AVX.
const char* better_blas_kernels(std::string_view chosen, SimdLevel machine);

/// The same for this machine and OpenBLAS's choice.
const char* better_blas_kernels();

/// Keeps OpenBLAS and oneDNN on the calling thread while it lives; inside lib/linalg only. Outside a team of several threads (a
/// parallel_for of one piece counts as outside) both take as many threads as OpenMP would give the calling task, hence one. Inside they
/// stay on the thread by themselves; but oneDNN cuts its sums for as many threads as OpenMP would give, there too, so that results would
/// depend on the number of threads.
class OnThisThread {
 public:
  OnThisThread() : before_(omp_get_max_threads()) {
    if (before_ > 1) omp_set_num_threads(1);
  }
  ~OnThisThread() {
    if (before_ > 1) omp_set_num_threads(before_);
  }
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  int before_;
};

}  // namespace kvcodec
