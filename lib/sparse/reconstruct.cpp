#include "lib/sparse/reconstruct.hpp"

#include <algorithm>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {
namespace {

constexpr size_t kSlice = omp_kernels::kFloatLanes;

/// Signals that one thread takes through all slices: their codes (64 pairs are 512 bytes) stay in the
/// second-level cache beside the slice.
constexpr size_t kSignalsPerPiece = 256;

}  // namespace

std::vector<uint64_t> uniform_offsets(size_t signals, size_t s) {
  std::vector<uint64_t> offsets(signals + 1);
  for (size_t i = 0; i <= signals; ++i) offsets[i] = i * s;
  return offsets;
}

void Reconstructor::assign(MatrixView<const float> atoms) {
  atoms_ = atoms.rows(), width_ = atoms.cols();
  const size_t slices = round_up(width_, kSlice) / kSlice;
  slices_.assign(checked_mul(checked_mul(slices, atoms_), kSlice), 0.0f);
  parallel_for(slices, 1, [&](size_t slice, size_t, int) {
    float* out = slices_.data() + slice * atoms_ * kSlice;
    const size_t first = slice * kSlice, count = std::min(kSlice, width_ - first);
    for (size_t i = 0; i < atoms_; ++i) std::copy_n(atoms.row(i).data() + first, count, out + i * kSlice);
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
      kernels.combine(slices_.data() + first * atoms_, codes.ids.data(), codes.coefficients.data(),
                      codes.offsets.data() + begin, end - begin, std::min(kSlice, width_ - first),
                      out.row(begin).data() + first, out.stride());
  });
}

}  // namespace kvcodec
