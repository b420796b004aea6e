#include "lib/codec/products.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

/// Tokens decoded at a time: 1024 floats of 4 heads of 64 dimensions are a megabyte.
constexpr size_t kTokens = 1024;

/// Calls body(first of the chunk within the range, its rows) for all tokens [first, first + count).
template <class Body>
void for_each_decoded(const DocumentView& document, uint64_t first, size_t count, const Body& body) {
  Matrix<float> rows(std::min(count, kTokens), document.shape().width());
  for (size_t done = 0; done < count; done += kTokens) {
    const auto part = rows.view().rows(0, std::min(kTokens, count - done));
    document.decode(first + done, part);
    body(done, part);
  }
}

}  // namespace

void check_products(const GroupShape& shape, Side side, MatrixView<const float> vectors,
                    MatrixView<const float> per_token) {
  if (shape.side != side) throw failed("products of {}s asked of {}s", name_of(side), name_of(shape.side));
  const auto heads = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads);
  if (vectors.cols() != static_cast<size_t>(shape.head_dim) || vectors.rows() % heads != 0 ||
      per_token.rows() != vectors.rows())
    throw failed("{} x {} vectors and {} rows of products for {} heads of {} dimensions", vectors.rows(),
                 vectors.cols(), per_token.rows(), heads, shape.head_dim);
}

void multiply_key_rows(MatrixView<const float> rows, MatrixView<const float> vectors, MatrixView<float> out) {
  const size_t d = vectors.cols(), heads = rows.cols() / d, n = vectors.rows() / heads;
  parallel_for(heads, 1, [&](size_t begin, size_t end, int) {
    for (size_t head = begin; head < end; ++head) {
      const auto keys = rows.columns(head * d, d);
      if (n == 1)
        gemv(keys, Transpose::no, vectors.row(head), 0, out.row(head));
      else
        gemm(1, vectors.rows(head * n, n), Transpose::no, keys, Transpose::yes, 0, out.rows(head * n, n));
    }
  });
}

void multiply_value_rows(MatrixView<const float> rows, MatrixView<const float> weights,
                         MatrixView<float> out) {
  const size_t d = out.cols(), heads = rows.cols() / d, n = out.rows() / heads;
  parallel_for(heads, 1, [&](size_t begin, size_t end, int) {
    for (size_t head = begin; head < end; ++head) {
      const auto values = rows.columns(head * d, d);
      if (n == 1)
        gemv(values, Transpose::yes, weights.row(head), 1, out.row(head));
      else
        gemm(1, weights.rows(head * n, n), Transpose::no, values, Transpose::no, 1, out.rows(head * n, n));
    }
  });
}

void decode_and_multiply_keys(const DocumentView& document, uint64_t first, MatrixView<const float> queries,
                              MatrixView<float> out) {
  check_products(document.shape(), Side::key, queries, out);
  for_each_decoded(document, first, out.cols(), [&](size_t at, MatrixView<const float> rows) {
    multiply_key_rows(rows, queries, out.columns(at, rows.rows()));
  });
}

void decode_and_multiply_values(const DocumentView& document, uint64_t first, MatrixView<const float> weights,
                                MatrixView<float> out) {
  check_products(document.shape(), Side::value, out, weights);
  for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
  for_each_decoded(document, first, weights.cols(), [&](size_t at, MatrixView<const float> rows) {
    multiply_value_rows(rows, weights.columns(at, rows.rows()), out);
  });
}

void decode_sides(const DocumentView& keys, const DocumentView& values, uint64_t first,
                  MatrixView<float> keys_out, MatrixView<float> values_out) {
  if (keys_out.rows() != values_out.rows())
    throw failed("room for {} keys and {} values", keys_out.rows(), values_out.rows());
  for (size_t done = 0; done < keys_out.rows(); done += kTokens) {
    const size_t count = std::min(kTokens, keys_out.rows() - done);
    keys.decode(first + done, keys_out.rows(done, count));
    values.decode(first + done, values_out.rows(done, count));
  }
}

}  // namespace kvcodec
