#include "lib/codec/document_view.hpp"

#include <algorithm>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec {
namespace {

/// Tokens decoded at a time: 1024 floats of 4 heads of 64 dimensions are a megabyte.
constexpr size_t kTokens = 1024;

/// Throws Error(failed) unless the shape is of one side, and vectors (heads * n, head_dim) and per_token (heads * n, any) fit it.
void check_products(const GroupShape& shape, MatrixView<const float> vectors,
                    MatrixView<const float> per_token) {
  if (shape.side == Side::both) throw failed("products of keys and values together");
  const auto heads = shape.all_heads();
  if (vectors.cols() != shape.dims() || vectors.rows() % heads != 0 || per_token.rows() != vectors.rows())
    throw failed("{} x {} vectors and {} rows of products for {} heads of {} dimensions", vectors.rows(),
                 vectors.cols(), per_token.rows(), heads, shape.head_dim());
}

class ValuesInKeys final : public DocumentView {
 public:
  ValuesInKeys(const DocumentView& keys, const GroupShape& values, const StreamReader& streams)
      : DocumentView(values, streams), keys_(keys) {}

 private:
  uint64_t take_in() override { return keys_.tokens(); }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    Matrix<float> rows(out.rows(), keys_.shape().width());
    keys_.decode(first, rows);
    copy_values(rows, shape().all_heads(), out);
  }
  Block block_of(uint64_t token) const override { return DocumentView::block_of(keys_, token); }

  const DocumentView& keys_;
};

}  // namespace

void copy_values(MatrixView<const float> keys, size_t heads, MatrixView<float> values) {
  const size_t dims = keys.cols() / heads, value_dims = values.cols() / heads;
  for (size_t i = 0; i < keys.rows(); ++i)
    for (size_t head = 0; head < heads; ++head)
      std::ranges::copy(keys.row(i).subspan(head * dims, value_dims),
                        values.row(i).subspan(head * value_dims, value_dims).begin());
}

ViewPtr values_in(const DocumentView& keys, const StreamReader& streams, int value_dim) {
  GroupShape values = of_side(keys.shape(), Side::value);
  values.layer.value_dim = value_dim;
  values.layer.values_in_keys = false;
  auto view = std::make_unique<ValuesInKeys>(keys, values, streams);
  view->refresh();
  return view;
}

void DocumentView::decode(uint64_t first, MatrixView<float> out) const {
  check_width(shape_, out.cols());
  check_range(first, out.rows());
  decode_rows(first, out);
}

void DocumentView::decode_tokens(std::span<const uint32_t> tokens, MatrixView<float> out) const {
  if (out.rows() != tokens.size()) throw failed("{} rows for {} tokens", out.rows(), tokens.size());
  check_width(shape_, out.cols());
  for (size_t i = 1; i < tokens.size(); ++i)
    if (tokens[i] <= tokens[i - 1]) throw failed("token {} after token {}", tokens[i], tokens[i - 1]);
  if (!tokens.empty()) check_range(tokens.back(), 1);
  Matrix<float> scattered;
  for (size_t begin = 0; begin < tokens.size();) {
    // Tokens of one block, and of blocks without one between them that is not wanted, go together.
    const uint64_t first = tokens[begin];
    uint64_t block_end = block_of(first).end;
    size_t end = begin + 1;
    for (; end < tokens.size(); ++end) {
      const Block block = block_of(tokens[end]);
      if (block.begin > block_end || (block.begin == block_end && tokens[end] - first >= kTokens)) break;
      block_end = block.end;
    }
    const size_t count = tokens[end - 1] - first + 1;
    if (count == end - begin) {
      decode_rows(first, out.rows(begin, count));
    } else {
      if (scattered.rows() < count) scattered = Matrix<float>(count, out.cols());
      decode_rows(first, scattered.view().rows(0, count));
      for (size_t i = begin; i < end; ++i)
        std::ranges::copy(scattered.row(tokens[i] - first), out.row(i).begin());
    }
    begin = end;
  }
}

void DocumentView::multiply(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const {
  const bool keys = shape_.side == Side::key;
  const MatrixView<const float> written = out, per_token = keys ? written : factors;
  check_products(shape_, keys ? factors : written, per_token);
  check_range(first, per_token.cols());
  multiply_range(first, factors, out);
}

void DocumentView::multiply_range(uint64_t first, MatrixView<const float> factors,
                                  MatrixView<float> out) const {
  const auto read = [&](uint64_t at, MatrixView<float> rows) { decode(at, rows); };
  read_and_multiply(shape_.side, shape_.width(), read, first, factors, out);
}

std::unique_ptr<GrowingSelector> DocumentView::selector(size_t, bool) const {
  throw failed("this codec has no index");
}

void multiply_key_rows(MatrixView<const float> rows, MatrixView<const float> vectors, MatrixView<float> out) {
  const size_t d = vectors.cols(), heads = rows.cols() / d, n = vectors.rows() / heads;
  parallel_each(heads, 1, [&](size_t head) {
    const auto keys = rows.columns(head * d, d);
    if (n == 1)
      gemv(keys, vectors.row(head), 0, out.row(head));
    else
      gemm(1, vectors.rows(head * n, n), transposed(keys), 0, out.rows(head * n, n));
  });
}

void multiply_value_rows(MatrixView<const float> rows, MatrixView<const float> weights,
                         MatrixView<float> out) {
  const size_t d = out.cols(), heads = rows.cols() / d, n = out.rows() / heads;
  parallel_each(heads, 1, [&](size_t head) {
    const auto values = rows.columns(head * d, d);
    if (n == 1)
      gemv(transposed(values), weights.row(head), 1, out.row(head));
    else
      gemm(1, weights.rows(head * n, n), values, 1, out.rows(head * n, n));
  });
}

void read_and_multiply(Side side, size_t width, const ReadRows& read, uint64_t first,
                       MatrixView<const float> factors, MatrixView<float> out) {
  const bool keys = side == Side::key;
  const size_t count = keys ? out.cols() : factors.cols();
  for (size_t i = 0; !keys && i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
  Matrix<float> rows(std::min(count, kTokens), width);
  for (size_t done = 0; done < count; done += kTokens) {
    const auto part = rows.view().rows(0, std::min(kTokens, count - done));
    read(first + done, part);
    if (keys)
      multiply_key_rows(part, factors, out.columns(done, part.rows()));
    else
      multiply_value_rows(part, factors.columns(done, part.rows()), out);
  }
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
