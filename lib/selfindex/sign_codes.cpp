#include "lib/selfindex/sign_codes.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/selfindex/codebook_entry.hpp"
#include "lib/selfindex/sign_kernels_body.hpp"

namespace kvcodec {
namespace sign_kernels::scalar {
namespace {

void encode(const float* values, size_t n, uint8_t* codes) {
  for (size_t i = 0; i < n; i += 8) codes[i / 8] = encode_tail(values + i, std::min<size_t>(n - i, 8));
}

}  // namespace

const Table& table() {
  static constexpr Table kTable = {encode, add, products, to_bytes};
  return kTable;
}

}  // namespace sign_kernels::scalar

const sign_kernels::Table& sign_kernels::best() { return pick(scalar::table, avx2::table, avx512::table)(); }

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

/// Sums over some tokens of one head.
struct Partial {
  std::vector<sign_kernels::Sums> sums = {};  // [group][code]
  std::vector<uint32_t> counts = {};          // [group][code]
};

SignCodebook codebook_of(std::span<const Partial> parts, size_t dims) {
  SignCodebook codebook{Matrix<float>(dims, kSignCodes)};
  for (size_t group = 0; group < dims / kSignGroup; ++group) {
    double sums[kSignCodes][kSignGroup] = {}, magnitudes[kSignGroup] = {};
    uint64_t counts[kSignCodes] = {}, tokens = 0;
    for (const Partial& part : parts)
      for (size_t code = 0; code < kSignCodes; ++code) {
        counts[code] += part.counts[group * kSignCodes + code];
        for (size_t i = 0; i < kSignGroup; ++i)
          sums[code][i] += part.sums[group * kSignCodes + code].values[i];
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
  const auto encode = sign_kernels::best().encode;
  // Whole bytes per head make a row of all heads one run.
  const bool together = shape.dims % 8 == 0;
  const size_t runs = together ? 1 : heads, dims = together ? rows.cols() : shape.dims;
  parallel_for(rows.rows(), kEncodedTogether, [&](size_t begin, size_t end, int) {
    for (size_t token = begin; token < end; ++token)
      for (size_t run = 0; run < runs; ++run)
        encode(rows.row(token).data() + run * dims, dims, codes.row(token).data() + run * shape.row_bytes);
  });
}

struct CodebookSums::Impl {
  size_t heads, dims;
  uint64_t rows = 0;
  std::vector<std::vector<Partial>> parts;  // [head][piece of kSummedTogether rows]
};

CodebookSums::CodebookSums(size_t heads, size_t dims)
    : impl_(std::make_unique<Impl>(Impl{.heads = heads, .dims = dims, .parts = {}})) {
  (void)sign_row_bytes(dims);
  impl_->parts.resize(heads);
}
CodebookSums::~CodebookSums() = default;
CodebookSums::CodebookSums(CodebookSums&&) noexcept = default;
CodebookSums& CodebookSums::operator=(CodebookSums&&) noexcept = default;

void CodebookSums::add(MatrixView<const float> rows, MatrixView<const uint8_t> codes) {
  Impl& s = *impl_;
  const Shape shape = shape_of(rows.rows(), rows.cols(), s.heads, codes.rows(), codes.cols());
  if (shape.dims != s.dims) throw failed("rows of {} dimensions; the sums have {}", shape.dims, s.dims);
  if (rows.rows() == 0) return;
  const auto add = sign_kernels::best().add;
  const size_t cells = s.dims / kSignGroup * kSignCodes;
  const size_t first_piece = s.rows / kSummedTogether;
  const size_t pieces = (s.rows + rows.rows() - 1) / kSummedTogether + 1 - first_piece;
  for (auto& of_head : s.parts) of_head.resize(first_piece + pieces);
  parallel_for(s.heads * pieces, 1, [&](size_t item, size_t, int) {
    const size_t head = item / pieces, piece = first_piece + item % pieces;
    const uint64_t begin = std::max<uint64_t>(piece * kSummedTogether, s.rows) - s.rows;
    const uint64_t end = std::min<uint64_t>((piece + 1) * kSummedTogether - s.rows, rows.rows());
    Partial& part = s.parts[head][piece];
    if (part.sums.empty()) part = {std::vector<sign_kernels::Sums>(cells), std::vector<uint32_t>(cells)};
    for (size_t token = begin; token < end; ++token)
      add(rows.row(token).data() + head * s.dims, codes.row(token).data() + head * shape.row_bytes, s.dims,
          part.sums.data(), part.counts.data());
  });
  s.rows += rows.rows();
}

std::vector<SignCodebook> CodebookSums::codebooks() const {
  std::vector<SignCodebook> codebooks;
  for (const auto& of_head : impl_->parts) codebooks.push_back(codebook_of(of_head, impl_->dims));
  return codebooks;
}

std::vector<SignCodebook> build_codebooks(MatrixView<const float> rows, MatrixView<const uint8_t> codes,
                                          size_t heads) {
  const Shape shape = shape_of(rows.rows(), rows.cols(), heads, codes.rows(), codes.cols());
  CodebookSums sums(heads, shape.dims);
  sums.add(rows, codes);
  return sums.codebooks();
}

}  // namespace kvcodec
