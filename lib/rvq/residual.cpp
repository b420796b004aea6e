#include "lib/rvq/residual.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {

/// Lanes of sums of squares: element i goes to lane i mod 16, the lanes are added as a tree (upper half onto lower
/// half), no product is fused with an addition.
constexpr size_t kLanes = 16;

/// Hypotheses that a thread works on at a time: their residuals, old and new, stay in a second-level cache.
constexpr size_t kBlockHypotheses = 384;

/// Rows per piece of decoding.
constexpr size_t kDecodeRows = 512;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// out = row - entry, `padded` floats (a multiple of kLanes); returns the sum of squares of out.
static float subtract(const float* row, const float* entry, size_t padded, float* out) {
  float lanes[kLanes] = {};
  for (size_t j = 0; j < padded; j += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float difference = row[j + lane] - entry[j + lane];
      out[j + lane] = difference;
      lanes[lane] += difference * difference;
    }
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

/// The offset that a hypothesis adds to its scores with the next codebook's entries. energy: the squared length of its residual.
/// If that overflows (values beyond 1e19, which a device declines), only the best hypothesis goes on, as with a beam of 1.
static float offset_of(float energy, bool best) {
  if (energy < kInfinity) return -energy / 2;
  return best ? 0 : -kInfinity;
}

Codebooks::Codebooks(size_t stages, size_t entries, size_t width)
    : stages_(stages), entries_(entries), width_(width), padded_(round_up(width, kLanes)) {
  values_.resize(checked_mul(checked_mul(stages, entries), padded_));
}

void Codebooks::check_finite() const {
  for (size_t s = 0; s < stages_; ++s)
    for (size_t e = 0; e < entries_; ++e)
      for (size_t j = 0; j < width_; ++j)
        if (!std::isfinite(stage(s)(e, j)))
          throw bad_input("codebook {}, entry {}, dimension {}: {} is not finite", s, e, j, stage(s)(e, j));
}

void sum_entries(const Codebooks& books, MatrixView<const uint32_t> ids, MatrixView<float> out) {
  if (ids.cols() != books.stages() || out.cols() != books.width() || ids.rows() != out.rows() ||
      !ids.contiguous())
    throw failed("ids ({}, {}) and rows ({}, {}) for {} codebooks of width {}", ids.rows(), ids.cols(),
                 out.rows(), out.cols(), books.stages(), books.width());
  parallel_each(out.rows(), kDecodeRows, [&](size_t i) {
    const std::span<float> to = out.row(i);
    for (size_t first = 0; first < to.size(); first += kLanes) {
      std::array<float, kLanes> sums{};  // stay in registers; entries have zeros behind their width
      for (size_t s = 0; s < books.stages(); ++s) {
        const float* entry = books.data(s) + size_t{ids(i, s)} * books.padded() + first;
        for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += entry[lane];
      }
      std::copy_n(sums.begin(), std::min(kLanes, to.size() - first),
                  to.begin() + static_cast<ptrdiff_t>(first));
    }
  });
}

// Encoding

/// Hypotheses of a block of rows, those of a row side by side.
struct ResidualEncoder::Scratch {
  ProductSearch::Scratch search;
  AlignedVector<float> residuals, next_residuals;
  std::vector<float> offsets, next_offsets;
  std::vector<uint32_t> paths, next_paths;
  std::vector<ProductSearch::Match> matches;
};

void ResidualEncoder::encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const {
  if (rows.cols() != books_.width() || ids.cols() != books_.stages() || ids.rows() != rows.rows())
    throw failed("rows ({}, {}) and ids ({}, {}) for {} codebooks of width {}", rows.rows(), rows.cols(),
                 ids.rows(), ids.cols(), books_.stages(), books_.width());
  if (beam < 1 || beam > kMaxHypotheses)
    throw failed("a beam of {}; it must be between 1 and {}", beam, kMaxHypotheses);
  if (books_.stages() == 0) return;
  std::vector<Scratch> scratch(as_size(num_threads()));
  // A multiple of 6 rows, as the search takes 6 at a time.
  const size_t block = std::max<size_t>(1, kBlockHypotheses / beam / 6 * 6);
  parallel_for(rows.rows(), block, [&](size_t begin, size_t end, int worker) {
    encode_block(rows.rows(begin, end - begin), beam, ids.rows(begin, end - begin),
                 scratch[static_cast<size_t>(worker)]);
  });
}

void ResidualEncoder::encode_block(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids,
                                   Scratch& scratch) const {
  const size_t n = rows.rows(), padded = books_.padded(), stages = books_.stages();
  scratch.residuals.assign(n * beam * padded, 0);
  scratch.next_residuals.assign(n * beam * padded, 0);
  scratch.matches.resize(n * beam);
  scratch.paths.resize(n * beam * stages);
  scratch.next_paths.resize(n * beam * stages);
  scratch.offsets.clear();
  scratch.next_offsets.assign(n * beam, 0);
  for (size_t i = 0; i < n; ++i) std::ranges::copy(rows.row(i), scratch.residuals.data() + i * padded);

  size_t group = 1;  // hypotheses of a row: before the first stage one, without an entry
  for (size_t s = 0; s < stages; ++s) {
    search_[s].best_of_groups({scratch.residuals.data(), n * group, padded}, scratch.offsets, group,
                              {scratch.matches.data(), n, beam}, scratch.search);
    const bool last = s + 1 == stages;
    for (size_t i = 0; i < n; ++i)
      for (size_t b = 0; b < (last ? 1 : beam); ++b) {
        const ProductSearch::Match& match = scratch.matches[i * beam + b];
        const size_t from = i * group + match.row, to = i * beam + b;
        std::copy_n(scratch.paths.data() + from * stages, s, scratch.next_paths.data() + to * stages);
        scratch.next_paths[to * stages + s] = match.id;
        if (last) continue;
        const float energy =
            subtract(scratch.residuals.data() + from * padded, books_.data(s) + size_t{match.id} * padded,
                     padded, scratch.next_residuals.data() + to * padded);
        // There may be fewer sums than hypotheses (after a first codebook of two entries, say): the rest do not count.
        scratch.next_offsets[to] = match.score > -kInfinity ? offset_of(energy, b == 0) : -kInfinity;
      }
    std::swap(scratch.residuals, scratch.next_residuals);
    std::swap(scratch.paths, scratch.next_paths);
    if (beam > 1) {
      scratch.offsets.resize(n * beam);
      std::swap(scratch.offsets, scratch.next_offsets);
      scratch.next_offsets.resize(n * beam);
    }
    group = beam;
  }
  for (size_t i = 0; i < n; ++i)
    std::copy_n(scratch.paths.data() + i * beam * stages, stages, ids.row(i).begin());
}

}  // namespace kvcodec
