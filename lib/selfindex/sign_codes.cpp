#include "lib/selfindex/sign_codes.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"
#include "lib/selfindex/codebook_entry.hpp"

namespace kvcodec {
namespace {

/// Tokens whose sums are kept apart until the end; 4096 of them are 2 MiB of keys at d = 128.
constexpr size_t kSummedTogether = 4096;

/// Tokens a thread encodes at a time.
constexpr size_t kEncodedTogether = 1024;

struct Shape {
  size_t dims, row_bytes;
};

Shape shape_of(size_t rows, size_t cols, size_t heads, size_t code_rows, size_t code_cols) {
  if (heads == 0 || cols % heads != 0) throw failed("{} columns are not those of {} heads", cols, heads);
  const size_t dims = cols / heads, row_bytes = sign_row_bytes(dims);
  if (rows != code_rows || code_cols != heads * row_bytes)
    throw failed("codes ({}, {}) do not fit rows ({}, {}) of {} heads", code_rows, code_cols, rows, cols,
                 heads);
  return {dims, row_bytes};
}

SignCodebook codebook_of(std::span<const CodebookSums::Partial> parts, size_t dims) {
  SignCodebook codebook{Matrix<float>(dims, kSignCodes)};
  for (size_t group = 0; group < dims / kSignGroup; ++group) {
    double sums[kSignCodes][kSignGroup] = {}, magnitudes[kSignGroup] = {};
    uint64_t counts[kSignCodes] = {}, tokens = 0;
    for (const CodebookSums::Partial& part : parts)
      for (size_t code = 0; code < kSignCodes; ++code) {
        counts[code] += part.counts[group * kSignCodes + code];
        for (size_t i = 0; i < kSignGroup; ++i) sums[code][i] += part.sums[group * kSignCodes + code][i];
      }
    for (size_t code = 0; code < kSignCodes; ++code) {
      tokens += counts[code];
      // Values of one code have one sign in each dimension, so their magnitudes sum to that of their sum.
      for (size_t i = 0; i < kSignGroup; ++i) magnitudes[i] += std::abs(sums[code][i]);
    }
    for (size_t code = 0; code < kSignCodes; ++code)
      for (size_t i = 0; i < kSignGroup; ++i)
        codebook.centroids(group * kSignGroup + i, code) =
            codebook_entry(static_cast<unsigned>(code), static_cast<unsigned>(i), sums[code][i], counts[code],
                           magnitudes[i], tokens);
  }
  return codebook;
}

}  // namespace

size_t sign_row_bytes(size_t dims) {
  if (dims == 0 || dims % kSignGroup != 0)
    throw bad_input("heads of {} dimensions cannot be cut in groups of {}: a positive multiple is needed",
                    dims, kSignGroup);
  return (dims + 7) / 8;
}

void encode_signs(MatrixView<const float> rows, size_t heads, MatrixView<uint8_t> codes) {
  const Shape shape = shape_of(rows.rows(), rows.cols(), heads, codes.rows(), codes.cols());
  parallel_each(rows.rows(), kEncodedTogether, [&](size_t token) {
    for (size_t head = 0; head < heads; ++head) {
      const auto values = rows.row(token).subspan(head * shape.dims, shape.dims);
      uint8_t* const bytes = codes.row(token).data() + head * shape.row_bytes;
      for (size_t i = 0; i < shape.dims; i += 8) {
        unsigned bits = 0;
        for (size_t bit = 0; bit < std::min<size_t>(shape.dims - i, 8); ++bit)
          bits |= static_cast<unsigned>(values[i + bit] >= 0) << (7 - bit);
        bytes[i / 8] = static_cast<uint8_t>(bits);
      }
    }
  });
}

void CodebookSums::add(MatrixView<const float> rows, MatrixView<const uint8_t> codes) {
  const size_t heads = parts_.size();
  const Shape shape = shape_of(rows.rows(), rows.cols(), heads, codes.rows(), codes.cols());
  if (shape.dims != dims_) throw failed("rows of {} dimensions; the sums have {}", shape.dims, dims_);
  if (rows.rows() == 0) return;
  const size_t cells = dims_ / kSignGroup * kSignCodes;
  const size_t first_piece = rows_ / kSummedTogether;
  const size_t pieces = (rows_ + rows.rows() - 1) / kSummedTogether + 1 - first_piece;
  for (auto& of_head : parts_) of_head.resize(first_piece + pieces);
  parallel_each(heads * pieces, 1, [&](size_t item) {
    const size_t head = item / pieces, piece = first_piece + item % pieces;
    const uint64_t begin = std::max<uint64_t>(piece * kSummedTogether, rows_) - rows_;
    const uint64_t end = std::min<uint64_t>((piece + 1) * kSummedTogether - rows_, rows.rows());
    Partial& part = parts_[head][piece];
    part.sums.resize(cells), part.counts.resize(cells);
    for (size_t token = begin; token < end; ++token) {
      const float* const values = rows.row(token).data() + head * dims_;
      const uint8_t* const bytes = codes.row(token).data() + head * shape.row_bytes;
      for (size_t group = 0; group < dims_ / kSignGroup; ++group) {
        const size_t cell =
            group * kSignCodes + (group % 2 == 0 ? bytes[group / 2] >> 4 : bytes[group / 2] & 15);
        for (size_t i = 0; i < kSignGroup; ++i)
          part.sums[cell][i] += static_cast<double>(values[group * kSignGroup + i]);
        ++part.counts[cell];
      }
    }
  });
  rows_ += rows.rows();
}

std::vector<SignCodebook> CodebookSums::codebooks() const {
  return mapped<SignCodebook>(parts_, [&](const auto& of_head) { return codebook_of(of_head, dims_); });
}

std::vector<SignCodebook> build_codebooks(MatrixView<const float> rows, MatrixView<const uint8_t> codes,
                                          size_t heads) {
  const Shape shape = shape_of(rows.rows(), rows.cols(), heads, codes.rows(), codes.cols());
  CodebookSums sums(heads, shape.dims);
  sums.add(rows, codes);
  return sums.codebooks();
}

}  // namespace kvcodec
