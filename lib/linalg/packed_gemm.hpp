// Matrix products by oneDNN, if the build has it: in bf16, summed in float, where the processor multiplies bf16
// (AVX512-BF16, AMX); and with matrices, of bf16 or of floats, that are laid out once for many products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {

/// The reason why gemm_bf16 cannot be called, as text after "because"; empty: it can.
std::string why_no_bf16();

/// out = x op(w), or out += x op(w). x: (n, k); w: (k, m), or (m, k) with Transpose::yes; elements bf16; out: (n, m); all
/// row-major with their strides. Every product is exact and the sums are floats, in an order that depends on oneDNN and
/// the processor. Runs on the calling thread. Throws Error(failed) where why_no_bf16() is not empty, and for shapes that
/// do not fit together. Fastest where no matrix has gaps between its rows.
void gemm_bf16(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, Transpose op, bool add,
               MatrixView<float> out);

/// True if floats can be packed here, and gain by it: where the processor has AVX-512. On two Zen 4 cores the products of a layer of
/// SmolLM2-135M (1,024 tokens) then reach 174 GFLOP/s, OpenBLAS's 152; on two cores with AMX 204 to 249 and 185.
bool packs_floats();

/// A matrix for many products, copied once into the order in which the processor's products read it.
class PackedMatrix {
 public:
  struct Shape {
    size_t rows, cols;
  };
  /// Matrices of f32 or bf16, not yet set, in common memory: with all weights of a model together, large
  /// pages halve the time. Throws Error(failed) for other elements, for a matrix without any, and where bf16
  /// is not multiplied (why_no_bf16) or floats are not packed (packs_floats).
  static std::vector<PackedMatrix> of(DType elements, std::span<const Shape> shapes);

  DType elements() const { return elements_; }
  size_t rows() const { return shape_.rows; }
  size_t cols() const { return shape_.cols; }

  /// set() writes so many rows at a time, or several times as many: fewer only at the matrix' end.
  size_t row_step() const { return row_step_; }
  /// Writes rows [first, first + rows.rows()), first a multiple of row_step(). Copies of this share the rows. Several
  /// threads may write rows of their own. Throws Error(failed) for rows that do not fit, and for elements of another type.
  void set(size_t first, MatrixView<const float> rows);
  void set(size_t first, MatrixView<const uint16_t> rows);

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  DType elements_ = DType::f32;
  Shape shape_ = {};
  size_t row_step_ = 1;
  std::shared_ptr<Impl> impl_;
};

/// out = x times the transpose of w, or out += that, as gemm_bf16; x has elements of w's type. x: (n, k); out: (n, m), neither with
/// gaps between its rows. A row of the result does not depend on the others: for this, products in bf16 with AMX are made of 64 rows
/// at a time, and missing rows are filled up with zeros. One row (576 x 1,536) then takes 0.65 ms of a core, with oneDNN's kernel for
/// one row 0.28.
void gemm_packed(MatrixView<const float> x, const PackedMatrix& w, bool add, MatrixView<float> out);
void gemm_packed(MatrixView<const uint16_t> x, const PackedMatrix& w, bool add, MatrixView<float> out);

}  // namespace kvcodec
