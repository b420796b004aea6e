#include "lib/codec/document_view.hpp"

#include <algorithm>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/products.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// Tokens decoded at a time that lie scattered: 1024 floats of 4 heads of 64 dimensions are a megabyte.
constexpr uint64_t kScattered = 1024;

}  // namespace

void DocumentView::check_range(uint64_t first, uint64_t count) const {
  if (first > tokens_ || count > tokens_ - first)
    throw bad_input("there are {} tokens; {} from token {} on are not all there", tokens_, count, first);
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
      if (block.begin > block_end || (block.begin == block_end && tokens[end] - first >= kScattered)) break;
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

void DocumentView::multiply_keys(uint64_t first, MatrixView<const float> queries,
                                 MatrixView<float> out) const {
  check_products(shape_, Side::key, queries, out);
  check_range(first, out.cols());
  multiply_key_range(first, queries, out);
}

void DocumentView::multiply_values(uint64_t first, MatrixView<const float> weights,
                                   MatrixView<float> out) const {
  check_products(shape_, Side::value, out, weights);
  check_range(first, weights.cols());
  multiply_value_range(first, weights, out);
}

void DocumentView::multiply_key_range(uint64_t first, MatrixView<const float> queries,
                                      MatrixView<float> out) const {
  decode_and_multiply_keys(*this, first, queries, out);
}

void DocumentView::multiply_value_range(uint64_t first, MatrixView<const float> weights,
                                        MatrixView<float> out) const {
  decode_and_multiply_values(*this, first, weights, out);
}

std::unique_ptr<Selector> DocumentView::selector(size_t, bool) const {
  throw failed("this codec has no index");
}

std::vector<uint32_t> DocumentView::kept_whole(size_t) const { return {}; }

std::vector<uint64_t> DocumentView::symbol_counts() const { return {}; }

}  // namespace kvcodec
