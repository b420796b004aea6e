#include "lib/sparse/omp.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp_block.hpp"

namespace kvcodec {

using omp_kernels::Kernels;
using omp_kernels::kTile;

namespace {

static_assert(kWordUnit * (1 + kNormTolerance) * (1 + kNormTolerance) < 32767);

/// Side of the tiles in which the Gram matrix is computed.
constexpr size_t kGramTile = 256;

/// Largest byte, as a distance from the offset, that rows of bytes are scaled to.
constexpr double kLargestByte = 125;

}  // namespace

std::vector<OptionField> OmpOptions::fields() {
  return {
      {"sparsity", "atoms per signal at most", &sparsity, 1, 1 << 16},
      {"error-target", "stop when the relative error of a signal is this small; 0 = always take all atoms",
       &error_target, 0, 1},
      {"selection",
       "the next atom: the one with the largest correlation (omp), or the one that lowers the error most "
       "(ols)",
       &selection}};
}

void OmpOptions::check() const {
  if (!(error_target < 1)) throw usage_error("error-target is {}; it must be below 1", error_target);
}

void Omp::assign(MatrixView<const float> atoms) {
  check_atoms(atoms);
  if (atoms.rows() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw bad_input("a dictionary of {} atoms is beyond 31 bits", atoms.rows());
  atoms_ = atoms.rows(), width_ = atoms.cols();
  row_stride_ = round_up(width_, omp_kernels::kFloatLanes);
  stride_ = round_up(atoms_, kTile);
  gram_.clear();
  gram_bytes_.clear();
  rows_.resize(checked_mul(atoms_, row_stride_));
  energies_.resize(atoms_);
  parallel_for(atoms_, 64, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      float* row = rows_.data() + i * row_stride_;
      std::copy_n(atoms.row(i).data(), width_, row);
      std::fill(row + width_, row + row_stride_, 0.0f);
      energies_[i] = energy_of(atoms.row(i));
    }
  });
}

uint64_t Omp::gram_bytes(size_t n) {
  return checked_mul(checked_mul(n, round_up(n, kTile)), sizeof(int16_t) + sizeof(uint8_t));
}

/// The inner products of two tiles of atoms in 16 bits, one row of the first behind the other.
void Omp::gram_tile(Tile tile, std::span<int16_t> words) const {
  const auto [i, j] = tile;
  const size_t rows = std::min(kGramTile, atoms_ - i), cols = std::min(kGramTile, atoms_ - j);
  Matrix<float> products(rows, cols);
  gemm(1, padded_atoms().rows(i, rows), Transpose::no, padded_atoms().rows(j, cols), Transpose::yes, 0,
       products);
  for (size_t r = 0; r < rows; ++r)
    omp_kernels::best().round_to_words(products.row(r).data(), kWordUnit, cols, &words[r * cols]);
}

/// To both sides of the diagonal.
void Omp::put_gram_tile(Tile tile, std::span<const int16_t> words) {
  const auto [i, j] = tile;
  const size_t rows = std::min(kGramTile, atoms_ - i), cols = std::min(kGramTile, atoms_ - j);
  for (size_t r = 0; r < rows; ++r)
    std::ranges::copy(words.subspan(r * cols, cols), &gram_[(i + r) * stride_ + j]);
  if (i == j) return;
  for (size_t c = 0; c < cols; ++c)
    for (size_t r = 0; r < rows; ++r) gram_[(j + c) * stride_ + i + r] = words[r * cols + c];
}

void Omp::build_gram(const Team& team) {
  if (has_gram()) return;
  gram_.resize(checked_mul(atoms_, stride_));
  const Kernels& kernels = omp_kernels::best();
  const size_t tiles = (atoms_ + kGramTile - 1) / kGramTile;
  std::vector<Tile> upper;
  for (size_t i = 0; i < tiles; ++i)
    for (size_t j = i; j < tiles; ++j) upper.emplace_back(i * kGramTile, j * kGramTile);
  constexpr size_t kWords = kGramTile * kGramTile;
  if (team.size() == 1) {
    parallel_for(upper.size(), 1, [&](size_t index, size_t, int) {
      std::vector<int16_t> words(kWords);
      gram_tile(upper[index], words);
      put_gram_tile(upper[index], words);
    });
  } else {
    std::vector<int16_t> words(upper.size() * kWords);
    const TeamShare own = team.share(upper.size());
    parallel_for(own.count(), 1, [&](size_t index, size_t, int) {
      gram_tile(upper[own.begin + index], std::span(words).subspan((own.begin + index) * kWords, kWords));
    });
    team.gather(std::span(words), upper.size());
    parallel_for(upper.size(), 1, [&](size_t index, size_t, int) {
      put_gram_tile(upper[index], std::span(words).subspan(index * kWords, kWords));
    });
  }
  const bool with_bytes = kernels.screen_bytes != nullptr;
  if (with_bytes) gram_bytes_.resize(gram_.size());
  gram_peaks_.resize(atoms_);
  byte_units_.resize(atoms_);
  parallel_for(atoms_, 64, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      int16_t* words = &gram_[i * stride_];
      std::fill(words + atoms_, words + stride_, int16_t{0});
      const int peak = kernels.peak_but(words, atoms_, i);
      gram_peaks_[i] = peak / kWordUnit;
      if (!with_bytes) continue;
      // Rounded down, so that the peak stays within a byte; the diagonal may not, and is never looked at.
      const double factor = std::floor(std::min(kLargestByte / std::max(peak, 1) * 0x1p15, 32767.0));
      byte_units_[i] = 0x1p15 / factor / kWordUnit;
      kernels.words_to_bytes(words, static_cast<int16_t>(factor), stride_, &gram_bytes_[i * stride_]);
    }
  });
}

void Omp::products_of(std::span<const uint32_t> ids, MatrixView<float> out) const {
  const Kernels& kernels = omp_kernels::best();
  std::vector<const float*> rows(ids.size());
  std::ranges::transform(ids, rows.begin(), [&](uint32_t id) { return row(id); });
  for (size_t i = 0; i < ids.size(); ++i) {
    kernels.dots(rows.data(), i + 1, rows[i], row_stride_, out.row(i).data());
    for (size_t j = 0; j < i; ++j) out(j, i) = out(i, j);
  }
}

bool Omp::gram_pays(uint64_t signals, int64_t s) const {
  // n^2 m / 2 multiplications against n m per signal and atom (the first round needs them either way).
  return static_cast<double>(signals) * static_cast<double>(s - 1) > static_cast<double>(atoms_) / 2;
}

uint64_t Omp::scratch_bytes(int64_t sparsity) const { return OmpBlock::scratch_bytes(*this, sparsity); }

SparseCodes Omp::encode(MatrixView<const float> signals, const OmpOptions& options) const {
  options.check();
  if (signals.cols() != width_)
    throw failed("signals of {} values do not fit a dictionary of width {}", signals.cols(), width_);
  const auto s = static_cast<size_t>(options.sparsity);
  if (s > width_) throw usage_error("sparsity is {}; signals have only {} values", s, width_);
  if (s > atoms_) throw usage_error("sparsity is {}; the dictionary has only {} atoms", s, atoms_);
  if (options.selection == AtomSelection::ols && !has_gram())
    throw usage_error("selection ols needs the Gram matrix, which is not there");
  SparseCodes codes{{signals.rows(), s}, {signals.rows(), s}, {}, {}};
  codes.counts.resize(signals.rows());
  codes.residuals.resize(signals.rows());
  std::vector<std::unique_ptr<OmpBlock>> blocks(static_cast<size_t>(num_threads()));
  parallel_for(signals.rows(), OmpBlock::signals_of(*this), [&](size_t begin, size_t end, int worker) {
    auto& block = blocks[static_cast<size_t>(worker)];
    if (!block) block = std::make_unique<OmpBlock>(*this, options);
    block->run(signals.rows(begin, end - begin), begin, codes);
  });
  return codes;
}

}  // namespace kvcodec
