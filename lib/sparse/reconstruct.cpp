#include "lib/sparse/reconstruct.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/combine_kernels.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {
namespace {

using combine_kernels::Code;
using combine_kernels::kAhead;
using combine_kernels::kLargestWeight;
using combine_kernels::kLeastWeight;
using combine_kernels::kLevelOffset;
using combine_kernels::kMostPairs;
using combine_kernels::kPairStep;
using combine_kernels::kSliceChannels;

/// Channels of a slice of floats: eight sums of 512 bits, all in registers.
constexpr size_t kSlice = 128;

/// Signals that one thread takes through all slices of floats. Their codes (64 pairs are 512 bytes) stay in
/// the second-level cache.
constexpr size_t kSignalsPerPiece = 256;

/// With atoms of 8 bits all threads take the signals of a batch, in such pieces, through one slice after the
/// other: a slice is fetched into the second-level cache once per batch. The prepared codes of a batch of 64
/// pairs each are 3 MiB, read in order.
constexpr size_t kSignalsPerBatch = 8192;

/// Floats of the rows of the slice that begins at channel `first`.
size_t row_of(size_t width, size_t first) {
  return std::min(kSlice, round_up(width - first, omp_kernels::kFloatLanes));
}

/// Where a line of a slice has a channel: combine_kernels.hpp.
size_t byte_of(size_t channel) { return channel / 4 % 4 * 16 + channel / 16 * 4 + channel % 4; }

void finish(const Finishing& finishing, size_t signal, std::span<float> row) {
  if (!finishing.gains.empty())
    for (float& value : row) value *= finishing.gains[signal];
  if (!finishing.scale.empty())
    for (size_t c = 0; c < row.size(); ++c) row[c] *= finishing.scale[c];
  if (!finishing.mean.empty())
    for (size_t c = 0; c < row.size(); ++c) row[c] += finishing.mean[c];
}

/// The codes of a batch as kernels take them; those longer than kMostPairs are left to another way.
class Batch {
 public:
  Batch(const CodeView& codes, size_t first, size_t count, std::span<const float> scales,
        std::span<const float> gains)
      : codes_(count), begins_(count + 1) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t pairs = codes.offsets[first + i + 1] - codes.offsets[first + i];
      begins_[i + 1] = begins_[i] + (pairs <= kMostPairs ? round_up(pairs, kPairStep) : 0);
    }
    lines_.resize(begins_[count] + kAhead);
    weights_.resize(2 * begins_[count]);
    const auto prepare = combine_kernels::best().prepare;
    parallel_for(count, kSignalsPerPiece, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) {
        Code& code = codes_[i];
        const uint64_t at = codes.offsets[first + i], room = begins_[i + 1] - begins_[i];
        const uint64_t pairs = room > 0 ? codes.offsets[first + i + 1] - at : 0;
        uint32_t* lines = lines_.data() + begins_[i];
        uint8_t* weights = weights_.data() + 2 * begins_[i];
        code.lines = lines, code.weights = weights;
        code.quads = static_cast<uint32_t>((pairs + 3) / 4), code.room = static_cast<uint32_t>(room);
        code.gain = gains.empty() ? 1 : gains[first + i];
        prepare(codes.ids.data() + at, codes.coefficients.data() + at, pairs, scales.data(), lines, weights,
                &code);
      }
    });
  }

  const Code* codes(size_t first) const { return codes_.data() + first; }

 private:
  std::vector<Code> codes_;
  std::vector<uint64_t> begins_;
  AlignedVector<uint32_t> lines_;
  AlignedVector<uint8_t> weights_;
};

/// How the weights of a signal become integers: times `factor`, rounded; one of them is worth `unit`.
struct Rounding {
  float factor = 0, unit = 0;
};

template <class Weight>
Rounding rounding_of(size_t pairs, const Weight& weight) {
  float largest = 0;
  for (size_t k = 0; k < pairs; ++k) largest = std::max(largest, std::abs(weight(k)));
  constexpr auto kMost = static_cast<float>(kLargestWeight);
  return largest >= kLeastWeight ? Rounding{kMost / largest, largest / kMost} : Rounding{};
}

combine_kernels::Output output_of(DType type) {
  switch (type) {
    case DType::f32:
      return combine_kernels::Output::f32;
    case DType::bf16:
      return combine_kernels::Output::bf16;
    case DType::f16:
      return combine_kernels::Output::f16;
    default:
      throw failed("signals of type {}", name_of(type));
  }
}

}  // namespace

std::vector<uint64_t> uniform_offsets(size_t signals, size_t s) {
  std::vector<uint64_t> offsets(signals + 1);
  for (size_t i = 0; i <= signals; ++i) offsets[i] = i * s;
  return offsets;
}

void Reconstructor::assign(MatrixView<const float> atoms) {
  atoms_ = atoms.rows(), width_ = atoms.cols();
  byte_slices_.clear(), scales_.clear();
  slices_.resize(checked_mul(atoms_, round_up(width_, omp_kernels::kFloatLanes)));
  parallel_for(width_, kSlice, [&](size_t first, size_t end, int) {
    const size_t row = row_of(width_, first);
    float* out = slices_.data() + first * atoms_;
    for (size_t i = 0; i < atoms_; ++i, out += row)
      std::fill(std::copy_n(atoms.row(i).data() + first, end - first, out), out + row, 0.0f);
  });
}

void Reconstructor::assign(const ByteAtoms& atoms) {
  atoms_ = atoms.levels.rows(), width_ = atoms.levels.cols();
  slices_.clear();
  scales_ = atoms.scales;
  byte_slices_.assign(checked_mul(atoms_, round_up(width_, kSliceChannels)), uint8_t{kLevelOffset});
  parallel_for(width_, kSliceChannels, [&](size_t first, size_t end, int) {
    uint8_t* line = byte_slices_.data() + first * atoms_;
    for (size_t i = 0; i < atoms_; ++i, line += kSliceChannels)
      for (size_t c = first; c < end; ++c)
        line[byte_of(c - first)] = static_cast<uint8_t>(atoms.levels(i, c) + kLevelOffset);
  });
}

void Reconstructor::check(const CodeView& codes, size_t rows, size_t cols, const Finishing& finishing) const {
  if (cols != width_ || codes.offsets.empty() || rows != codes.signals())
    throw failed("codes of {} signals of width {} do not fit an output ({}, {})", codes.offsets.size() - 1,
                 width_, rows, cols);
  const auto fits = [](std::span<const float> values, size_t wanted) {
    return values.empty() || values.size() == wanted;
  };
  if (!fits(finishing.gains, rows) || !fits(finishing.scale, cols) || !fits(finishing.mean, cols))
    throw failed("{} gains, {} scales and {} means for {} signals of width {}", finishing.gains.size(),
                 finishing.scale.size(), finishing.mean.size(), rows, cols);
  check_codes(codes);
}

void Reconstructor::check_codes(const CodeView& codes) const {
  if (!std::is_sorted(codes.offsets.begin(), codes.offsets.end()) ||
      codes.offsets.back() > codes.ids.size() || codes.offsets.back() > codes.coefficients.size())
    throw bad_input("codes are shorter than their offsets say");
  const uint64_t begin = codes.offsets.front(), end = codes.offsets.back();
  uint32_t largest = 0;
  for (uint64_t k = begin; k < end; ++k) largest = std::max(largest, codes.ids[k]);
  if (begin < end && largest >= atoms_) throw bad_input("atom {} of a dictionary of {}", largest, atoms_);
}

void Reconstructor::run_floats(const CodeView& codes, MatrixView<float> out,
                               const Finishing& finishing) const {
  const omp_kernels::Kernels& kernels = omp_kernels::best();
  parallel_for(out.rows(), kSignalsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t first = 0; first < width_; first += kSlice)
      kernels.combine(slices_.data() + first * atoms_, row_of(width_, first), codes.ids.data(),
                      codes.coefficients.data(), codes.offsets.data() + begin, end - begin,
                      std::min(kSlice, width_ - first), out.row(begin).data() + first, out.stride());
    for (size_t i = begin; i < end; ++i) finish(finishing, i, out.row(i));
  });
}

template <class T>
void Reconstructor::run_bytes(const CodeView& codes, DType type, MatrixView<T> out,
                              const Finishing& finishing) const {
  const combine_kernels::Kernels& kernels = combine_kernels::best();
  const size_t slices = (width_ + kSliceChannels - 1) / kSliceChannels;
  for (size_t first = 0; first < out.rows(); first += kSignalsPerBatch) {
    const size_t count = std::min(kSignalsPerBatch, out.rows() - first);
    const Batch batch(codes, first, count, scales_, finishing.gains);
    const size_t pieces = (count + kSignalsPerPiece - 1) / kSignalsPerPiece;
    parallel_for(slices * pieces, 1, [&](size_t begin, size_t end, int) {
      for (size_t unit = begin; unit < end; ++unit) {
        const size_t channel = unit / pieces * kSliceChannels, signal = unit % pieces * kSignalsPerPiece;
        const combine_kernels::Finish last{
            .gain = !finishing.gains.empty(),
            .scale = finishing.scale.empty() ? nullptr : finishing.scale.data() + channel,
            .mean = finishing.mean.empty() ? nullptr : finishing.mean.data() + channel,
            .type = output_of(type)};
        kernels.combine(byte_slices_.data() + channel * atoms_, batch.codes(signal),
                        std::min(kSignalsPerPiece, count - signal),
                        std::min<size_t>(kSliceChannels, width_ - channel), last,
                        out.row(first + signal).data() + channel, out.stride());
      }
    });
  }
  run_long(codes, type, out, finishing);
}

/// Signals of more pairs than 32-bit sums hold.
template <class T>
void Reconstructor::run_long(const CodeView& codes, DType type, MatrixView<T> out,
                             const Finishing& finishing) const {
  parallel_for(out.rows(), kSignalsPerPiece, [&](size_t begin, size_t end, int) {
    std::vector<float> row;
    std::vector<int64_t> sums;
    for (size_t i = begin; i < end; ++i) {
      const uint64_t at = codes.offsets[i], pairs = codes.offsets[i + 1] - at;
      if (pairs <= kMostPairs) continue;
      const auto ids = codes.ids.subspan(at, pairs);
      const auto weight = [&](size_t k) { return codes.coefficients[at + k] * scales_[ids[k]]; };
      const Rounding rounding = rounding_of(pairs, weight);
      sums.assign(width_, 0), row.resize(width_);
      for (size_t first = 0; first < width_; first += kSliceChannels)
        for (size_t k = 0; k < pairs; ++k) {
          const auto q = static_cast<int64_t>(std::nearbyint(weight(k) * rounding.factor));
          const uint8_t* line = byte_slices_.data() + first * atoms_ + size_t{ids[k]} * kSliceChannels;
          for (size_t c = first; c < std::min(first + kSliceChannels, width_); ++c)
            sums[c] += q * (line[byte_of(c - first)] - kLevelOffset);
        }
      for (size_t c = 0; c < width_; ++c) row[c] = static_cast<float>(sums[c]) * rounding.unit;
      finish(finishing, i, row);
      if constexpr (std::is_same_v<T, float>)
        std::ranges::copy(row, out.row(i).begin());
      else
        narrow(type, row, out.row(i));
    }
  });
}

std::vector<float> Reconstructor::weights(const CodeView& codes) const {
  check_codes(codes);
  std::vector<float> all(codes.coefficients.begin(), codes.coefficients.end());
  if (scales_.empty()) return all;
  parallel_for(codes.signals(), kSignalsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const uint64_t at = codes.offsets[i], pairs = codes.offsets[i + 1] - at;
      const auto weight = [&](size_t k) { return codes.coefficients[at + k] * scales_[codes.ids[at + k]]; };
      const Rounding rounding = rounding_of(pairs, weight);
      for (size_t k = 0; k < pairs; ++k)
        all[at + k] = std::nearbyint(weight(k) * rounding.factor) * rounding.unit;
    }
  });
  return all;
}

void Reconstructor::run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const {
  check(codes, out.rows(), out.cols(), finishing);
  if (scales_.empty())
    run_floats(codes, out, finishing);
  else
    run_bytes(codes, DType::f32, out, finishing);
}

void Reconstructor::run(const CodeView& codes, DType type, MatrixView<uint16_t> out,
                        const Finishing& finishing) const {
  check(codes, out.rows(), out.cols(), finishing);
  if (!scales_.empty()) return run_bytes(codes, type, out, finishing);
  Matrix<float> floats(out.rows(), out.cols());
  run_floats(codes, floats, finishing);
  for (size_t i = 0; i < out.rows(); ++i) narrow(type, floats.row(i), out.row(i));
}

}  // namespace kvcodec
