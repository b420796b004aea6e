// Eigenvalues and eigenvectors of symmetric matrices, by LAPACK's divide and conquer (Cuppen 1981, Gu and Eisenstat
// 1995), which is part of OpenBLAS: dsyevd for the whole in doubles, or sstedc for a step in floats.
#pragma once

#include <vector>

#include "lib/core/progress.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The eigenvalues of a symmetric matrix, rising, to about 2^-50 of the largest. Throws Error(failed) if the matrix
/// is not square or holds values that are not finite.
std::vector<double> symmetric_eigenvalues(Matrix<double> matrix);

struct Eigen {
  std::vector<double> values;  ///< rising
  Matrix<double> vectors;      ///< row i belongs to values[i]; rows are orthonormal
};

/// The same with eigenvectors. Takes three times the matrix in memory, and runs on the calling thread: some 10 n^3 operations.
Eigen symmetric_eigen(Matrix<double> matrix);

struct FloatEigen {
  std::vector<double> values;  ///< rising
  Matrix<float> vectors;       ///< row i belongs to values[i]
};

/// The same in floats, for a large matrix: on all threads, and the same bits for any number of them. Eigenvalues are right to
/// some 2^-20 of the largest, products of two rows to 2^-18. Householder's reflections in panels make the matrix tridiagonal
/// (Dongarra, Sorensen and Hammarling 1989), LAPACK's sstedc solves that on one thread, and the reflections transform its
/// eigenvectors. Takes three times the matrix in memory. progress: fractions of the time, some hundred calls.
FloatEigen symmetric_eigen(Matrix<float> matrix, const Progress& progress = {});

/// True if all eigenvalues of the symmetric matrix are positive, to about 2^-50 of the largest: by Cholesky's factors (LAPACK's dpotrf), in
/// some thirtieth of the time of eigenvalues. False for values that are not finite. Throws Error(failed) if the matrix is not square.
bool positive_definite(Matrix<double> matrix);

/// The power of the symmetric matrix that has these eigenvalues, all positive, and eigenvectors.
Matrix<double> power_of(const Eigen& eigen, double power);

}  // namespace kvcodec
