#include "lib/sparse/reconstruct.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/combine_kernels.hpp"
#include "lib/sparse/omp_kernels.hpp"

namespace kvcodec {
namespace combine_kernels {
namespace {

constexpr auto kMaxWeight = static_cast<float>(kLargestWeight);

/// The way of a signal's weights to integers: times `factor`, rounded; one of them is worth `unit`.
struct Rounding {
  float factor = 0, unit = 0;
};

template <class Weight>
Rounding rounding_of(size_t pairs, const Weight& weight) {
  float largest = 0;
  for (size_t k = 0; k < pairs; ++k) largest = std::max(largest, std::abs(weight(k)));
  return largest >= kLeastWeight ? Rounding{kMaxWeight / largest, largest / kMaxWeight} : Rounding{};
}

}  // namespace

void scalar::combine(const uint8_t* slice, const Code* codes, size_t signals, const Finish& finish,
                     float* out, size_t stride) {
  for (size_t i = 0; i < signals; ++i) {
    const Code& code = codes[i];
    for (size_t c = 0; c < finish.width; ++c) {
      int64_t sum = code.correction;
      for (size_t k = 0; k < code.pairs; ++k) sum += code.weights[k] * int{slice[code.lines[k] + byte_of(c)]};
      float value = static_cast<float>(sum) * code.unit;
      if (finish.gain) value *= code.gain;
      if (finish.scale) value *= finish.scale[c];
      if (finish.mean) value += finish.mean[c];
      out[i * stride + c] = value;
    }
  }
}

}  // namespace combine_kernels

namespace {

using namespace combine_kernels;

/// Channels of a slice of floats: eight sums of 512 bits, all in registers.
constexpr size_t kSlice = 128;

/// Signals that one thread takes through all slices of floats. Their codes (64 pairs are 512 bytes) stay in the second-level cache.
constexpr size_t kSignalsPerPiece = 256;

/// With atoms of 8 bits all threads take the signals of a batch, in such pieces, through one slice after the other: a slice is fetched into
/// the second-level cache once per batch. The prepared codes of a batch of 64 pairs each are 3 MiB, read in order.
constexpr size_t kSignalsPerBatch = 8192;

/// Floats of the rows of the slice that begins at channel `first`.
size_t row_of(size_t width, size_t first) {
  return std::min(kSlice, round_up(width - first, omp_kernels::kFloatLanes));
}

void finish(const Finishing& finishing, size_t signal, std::span<float> row) {
  if (!finishing.gains.empty())
    for (float& value : row) value *= finishing.gains[signal];
  if (!finishing.scale.empty())
    for (size_t c = 0; c < row.size(); ++c) row[c] *= finishing.scale[c];
  if (!finishing.mean.empty())
    for (size_t c = 0; c < row.size(); ++c) row[c] += finishing.mean[c];
}

/// The codes of a batch as kernels take them.
class Batch {
 public:
  Batch(const CodeView& codes, size_t first, size_t count, std::span<const float> scales,
        std::span<const float> gains)
      : codes_(count), begins_(count + 1) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t pairs = codes.offsets[first + i + 1] - codes.offsets[first + i];
      begins_[i + 1] = begins_[i] + round_up(pairs, kPairStep);
    }
    lines_.resize(begins_[count]);
    weights_.resize(begins_[count]);
    parallel_for(count, kSignalsPerPiece, [&](size_t begin, size_t end, int) {
      std::vector<float> products;
      for (size_t i = begin; i < end; ++i) {
        const uint64_t at = codes.offsets[first + i], pairs = codes.offsets[first + i + 1] - at;
        uint32_t* lines = lines_.data() + begins_[i];
        int16_t* weights = weights_.data() + begins_[i];
        products.resize(pairs);
        for (size_t k = 0; k < pairs; ++k) {
          const uint32_t id = codes.ids[at + k];
          lines[k] = id * uint32_t{kSliceChannels};
          products[k] = codes.coefficients[at + k] * scales[id];
        }
        const Rounding rounding = rounding_of(pairs, [&](size_t k) { return products[k]; });
        int64_t sum = 0;
        for (size_t k = 0; k < pairs; ++k) {
          weights[k] = static_cast<int16_t>(rounded(products[k] * rounding.factor));
          sum += weights[k];
        }
        codes_[i] = {.lines = lines,
                     .weights = weights,
                     .pairs = begins_[i + 1] - begins_[i],
                     .correction = -kLevelOffset * sum,
                     .unit = rounding.unit,
                     .gain = gains.empty() ? 1 : gains[first + i]};
      }
    });
  }

  std::span<const Code> codes(size_t first, size_t count) const {
    return std::span(codes_).subspan(first, count);
  }

 private:
  std::vector<Code> codes_;
  std::vector<uint64_t> begins_;
  std::vector<uint32_t> lines_;
  std::vector<int16_t> weights_;
};

}  // namespace

OwnedCodes codes_by_atom(const CodeView& codes, size_t atoms, size_t first, size_t step) {
  OwnedCodes out;
  out.offsets.assign(atoms + 2, 0);  // the end of an atom's pairs so far stands one place further
  const auto for_each_pair = [&](const auto& body) {
    for (size_t i = first; i < codes.signals(); i += step)
      for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) body(i / step, k);
  };
  for_each_pair([&](size_t, uint64_t k) { ++out.offsets[codes.ids[k] + 2]; });
  std::partial_sum(out.offsets.begin(), out.offsets.end(), out.offsets.begin());
  out.ids.resize(out.offsets.back());
  out.coefficients.resize(out.offsets.back());
  for_each_pair([&](size_t signal, uint64_t k) {
    const uint64_t place = out.offsets[codes.ids[k] + 1]++;
    out.ids[place] = static_cast<uint32_t>(signal);
    out.coefficients[place] = codes.coefficients[k];
  });
  out.offsets.pop_back();
  return out;
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

static void check_offsets(const CodeView& codes) {
  if (!std::ranges::is_sorted(codes.offsets) || codes.offsets.back() > codes.ids.size() ||
      codes.offsets.back() > codes.coefficients.size())
    throw bad_input("codes are shorter than their offsets say");
}

void check_fit(const CodeView& codes, MatrixView<float> out, size_t width, const Finishing& finishing) {
  if (out.cols() != width || codes.offsets.empty() || out.rows() != codes.signals())
    throw failed("codes with {} offsets, of signals of width {}, do not fit an output ({}, {})",
                 codes.offsets.size(), width, out.rows(), out.cols());
  const auto fits = [](std::span<const float> values, size_t wanted) {
    return values.empty() || values.size() == wanted;
  };
  if (!fits(finishing.gains, out.rows()) || !fits(finishing.scale, width) || !fits(finishing.mean, width))
    throw failed("{} gains, {} scales and {} means for {} signals of width {}", finishing.gains.size(),
                 finishing.scale.size(), finishing.mean.size(), out.rows(), width);
  check_offsets(codes);
}

void Reconstructor::run_floats(const CodeView& codes, MatrixView<float> out,
                               const Finishing& finishing) const {
  const auto combine_floats = omp_kernels::best().combine;
  parallel_for(out.rows(), kSignalsPerPiece, [&](size_t begin, size_t end, int) {
    for (size_t first = 0; first < width_; first += kSlice)
      combine_floats(
          {slices_.data() + first * atoms_, row_of(width_, first), std::min(kSlice, width_ - first)},
          {codes.ids.data(), codes.coefficients.data(), codes.offsets.data() + begin, end - begin},
          out.row(begin).data() + first, out.stride());
    for (size_t i = begin; i < end; ++i) finish(finishing, i, out.row(i));
  });
}

void Reconstructor::run_bytes(const CodeView& codes, MatrixView<float> out,
                              const Finishing& finishing) const {
  const auto part = [](std::span<const float> values, size_t channel) {
    return values.empty() ? nullptr : values.data() + channel;
  };
  const auto wide = pick(combine_kernels::scalar::combine, combine_kernels::avx2::combine);
  const size_t slices = (width_ + kSliceChannels - 1) / kSliceChannels;
  for (size_t first = 0; first < out.rows(); first += kSignalsPerBatch) {
    const size_t count = std::min(kSignalsPerBatch, out.rows() - first);
    const Batch batch(codes, first, count, scales_, finishing.gains);
    const size_t pieces = (count + kSignalsPerPiece - 1) / kSignalsPerPiece;
    parallel_each(slices * pieces, 1, [&](size_t unit) {
      const size_t channel = unit / pieces * kSliceChannels, signal = unit % pieces * kSignalsPerPiece;
      const auto some = batch.codes(signal, std::min(kSignalsPerPiece, count - signal));
      const bool fit = std::ranges::all_of(some, [](const Code& code) { return code.pairs <= kMaxPairs; });
      const auto combine = fit ? wide : combine_kernels::scalar::combine;
      combine(byte_slices_.data() + channel * atoms_, some.data(), some.size(),
              {.width = std::min<size_t>(kSliceChannels, width_ - channel),
               .gain = !finishing.gains.empty(),
               .scale = part(finishing.scale, channel),
               .mean = part(finishing.mean, channel)},
              out.row(first + signal).data() + channel, out.stride());
    });
  }
}

std::vector<float> Reconstructor::weights(const CodeView& codes) const {
  check_offsets(codes);
  check_ids(codes);
  std::vector<float> all(codes.coefficients.begin(), codes.coefficients.end());
  if (scales_.empty()) return all;
  parallel_each(codes.signals(), kSignalsPerPiece, [&](size_t i) {
    const uint64_t at = codes.offsets[i], pairs = codes.offsets[i + 1] - at;
    const auto weight = [&](size_t k) { return codes.coefficients[at + k] * scales_[codes.ids[at + k]]; };
    const Rounding rounding = rounding_of(pairs, weight);
    for (size_t k = 0; k < pairs; ++k)
      all[at + k] = static_cast<float>(rounded(weight(k) * rounding.factor)) * rounding.unit;
  });
  return all;
}

void Reconstructor::run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const {
  check_fit(codes, out, width_, finishing);
  check_ids(codes);
  if (scales_.empty())
    run_floats(codes, out, finishing);
  else
    run_bytes(codes, out, finishing);
}

}  // namespace kvcodec
