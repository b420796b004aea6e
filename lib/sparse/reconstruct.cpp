#include "lib/sparse/reconstruct.hpp"

#include <algorithm>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {
namespace {

/// Channels of a slice: eight sums of 512 bits, all in registers.
constexpr size_t kSlice = 128;

/// Signals that one thread takes through all slices. Their codes (64 pairs are 512 bytes) stay in the
/// second-level cache.
constexpr size_t kSignalsPerPiece = 256;

/// Floats of the rows of the slice that begins at channel `first`.
size_t row_of(size_t width, size_t first) {
  return std::min(kSlice, round_up(width - first, omp_kernels::kFloatLanes));
}

}  // namespace

std::vector<uint64_t> uniform_offsets(size_t signals, size_t s) {
  std::vector<uint64_t> offsets(signals + 1);
  for (size_t i = 0; i <= signals; ++i) offsets[i] = i * s;
  return offsets;
}

void Reconstructor::assign(MatrixView<const float> atoms) {
  atoms_ = atoms.rows(), width_ = atoms.cols();
  slices_.resize(checked_mul(atoms_, round_up(width_, omp_kernels::kFloatLanes)));
  parallel_for(width_, kSlice, [&](size_t first, size_t end, int) {
    const size_t row = row_of(width_, first);
    float* out = slices_.data() + first * atoms_;
    for (size_t i = 0; i < atoms_; ++i, out += row)
      std::fill(std::copy_n(atoms.row(i).data() + first, end - first, out), out + row, 0.0f);
  });
}

void Reconstructor::run(const CodeView& codes, MatrixView<float> out) const {
  if (out.cols() != width_ || codes.offsets.empty() || out.rows() != codes.signals())
    throw failed("codes of {} signals of width {} do not fit an output ({}, {})", codes.offsets.size() - 1,
                 width_, out.rows(), out.cols());
  if (!std::is_sorted(codes.offsets.begin(), codes.offsets.end()) ||
      codes.offsets.back() > codes.ids.size() || codes.offsets.back() > codes.coefficients.size())
    throw bad_input("codes are shorter than their offsets say");
  for (uint64_t k = codes.offsets.front(); k < codes.offsets.back(); ++k)
    if (codes.ids[k] >= atoms_) throw bad_input("atom {} of a dictionary of {}", codes.ids[k], atoms_);
  const omp_kernels::Kernels& kernels = omp_kernels::best();
  parallel_for(out.rows(), kSignalsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t first = 0; first < width_; first += kSlice)
      kernels.combine(slices_.data() + first * atoms_, row_of(width_, first), codes.ids.data(),
                      codes.coefficients.data(), codes.offsets.data() + begin, end - begin,
                      std::min(kSlice, width_ - first), out.row(begin).data() + first, out.stride());
  });
}

}  // namespace kvcodec
