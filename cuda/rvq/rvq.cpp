#include "cuda/rvq/rvq.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/half_bits.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/linalg/nearest.hpp"

static_assert(kvcodec::cuda::kRvqMaxHypotheses == kvcodec::ResidualEncoder::kMaxHypotheses);

namespace kvcodec::cuda {

/// Maximum product of norms: a quarter of the largest float, so that scores, with their biases and
/// rounding errors, are floats.
constexpr double kMaxProduct = 0x1p126;

/// Maximum number of rows in device memory at a time: enough to fill any device, however long the document.
constexpr size_t kRowsAtOnce = 1 << 17;

/// The power of two that brings the largest of these magnitudes to [1, 2).
static float scale_of(MatrixView<const float> entries) {
  float largest = 0;
  for (size_t e = 0; e < entries.rows(); ++e)
    for (const float value : entries.row(e)) largest = std::max(largest, std::abs(value));
  if (largest < std::numeric_limits<float>::min()) return 1;
  return static_cast<float>(std::ldexp(1.0, -std::clamp(std::ilogb(largest), -126, 126)));
}

/// A float that is not below x >= 0.
static float float_above(double x) {
  if (x >= double{std::numeric_limits<float>::max()}) return std::numeric_limits<float>::infinity();
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

/// Writes the halves of a stage's entries (depth apart) and returns their bounds. largest_norm: becomes that of the entries,
/// or infinity where a value is not finite.
static RvqScreen screen_of(MatrixView<const float> entries, std::span<const float> bias, size_t depth,
                           std::span<uint16_t> halves, double& largest_norm) {
  RvqScreen screen{scale_of(entries), 0, 0, 0};
  double norm = 0, rounding = 0;
  for (size_t e = 0; e < entries.rows(); ++e) {
    double squares = 0, rounding_squares = 0;
    for (size_t j = 0; j < entries.cols(); ++j) {
      const float scaled = entries(e, j) * screen.scale;
      const uint16_t half = f16_from_float(scaled);
      halves[e * depth + j] = half;
      const double off = (double{scaled} - double{f16_to_float(half)}) / double{screen.scale};
      squares += double{entries(e, j)} * double{entries(e, j)};
      rounding_squares += off * off;
    }
    norm = std::max(norm, std::isfinite(squares) ? squares : std::numeric_limits<double>::infinity());
    rounding = std::max(rounding, rounding_squares);
    screen.bias = std::max(screen.bias, std::abs(bias[e]));
  }
  largest_norm = std::sqrt(norm);
  screen.norm = float_above(largest_norm);
  screen.rounding = float_above(std::sqrt(rounding));
  return screen;
}

ResidualQuantizer::ResidualQuantizer(const Codebooks& books) : width_(books.width()) {
  const size_t stages = books.stages(), count = books.entries(), padded = books.padded();
  if (padded > kRvqMaxDims)
    throw usage_error("codebooks of {} dimensions; a device takes at most {}", width_, kRvqMaxDims);
  if (count == 0 || count > (uint64_t{1} << 31))
    throw failed("codebooks of {} entries; a device takes 1 to 2^31", count);
  const size_t tiles = (count + kRvqTile - 1) / kRvqTile, room = tiles * kRvqTile;
  const size_t depth = rvq_depth(static_cast<unsigned>(padded));
  books_ = {.entries = entries_.sized(checked_mul(stages * count, padded)),
            .bias = bias_.sized(stages * room),
            .halves = halves_.sized(checked_mul(stages * room, depth)),
            .screens = screens_.sized(stages),
            .stages = static_cast<uint32_t>(stages),
            .count = static_cast<uint32_t>(count),
            .padded = static_cast<uint32_t>(padded),
            .tiles = static_cast<uint32_t>(tiles)};
  for (size_t s = 0; s < stages; ++s) {
    double norm = 0;
    std::vector<float> bias = nearest_bias(books.stage(s));
    std::vector<uint16_t> halves(room * depth);
    const RvqScreen screen = screen_of(books.stage(s), bias, depth, halves, norm);
    largest_norm_ = std::max(largest_norm_, norm), norms_ += norm;
    bias.resize(room, -std::numeric_limits<float>::infinity());
    entries_.upload({books.data(s), count * padded}, stream_, s * count * padded);
    bias_.upload(bias, stream_, s * room);
    halves_.upload(halves, stream_, s * room * depth);
    screens_.upload({&screen, 1}, stream_, s);
    stream_.synchronize();  // these vectors end here
  }
}

/// Number of rows in device memory at a time, with so many hypotheses each, of this stage and as many of the next.
size_t ResidualQuantizer::rows_at_once(size_t hypotheses) const {
  const uint64_t bytes_per_row =
      2 * hypotheses * (books_.padded * sizeof(float) + books_.stages * sizeof(uint32_t));
  return std::min(std::max<size_t>(1, kRowsAtOnce / hypotheses), DeviceWork::rows_at_once(bytes_per_row));
}

void ResidualQuantizer::sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const {
  check_shape("ids", ids, out.rows(), books_.stages);
  check_shape("sums", out, ids.rows(), width_);
  const unsigned bits = index_bits(books_.count);
  const size_t at_once = rows_at_once(1);
  for (size_t begin = 0; begin < out.rows(); begin += at_once) {
    const size_t n = std::min(at_once, out.rows() - begin);
    const PackedRows rows(ids.rows(begin, n));
    std::vector<uint8_t> packed(packed_bytes(rows.values().size(), bits));
    pack_bits(rows.values(), bits, books_.count, packed);
    packed.resize(round_up(packed.size(), 4) + 8);
    const DeviceBuffer<uint8_t> device_ids(packed, stream_);
    DeviceBuffer<float> sums(checked_mul(n, round_up(width_, 4)));
    stream_.run("adding entries", run_rvq_decode, books_,
                RvqSums{.ids = words_of(device_ids),
                        .bits = bits,
                        .width = static_cast<uint32_t>(width_),
                        .rows = n,
                        .out = sums.data()});
    download_rows(sums, out.rows(begin, n), stream_);
  }
}

void ResidualQuantizer::encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const {
  const size_t stages = books_.stages, padded = books_.padded;
  check_shape("rows", rows, ids.rows(), width_);
  check_shape("ids", ids, rows.rows(), stages);
  if (beam < 1 || beam > ResidualEncoder::kMaxHypotheses)
    throw failed("a beam of {}; it must be between 1 and {}", beam, ResidualEncoder::kMaxHypotheses);
  if (stages == 0) return;
  // The residual of a row after any stages is not longer than the row and an entry of each stage together. A beam search adds the
  // residual's energy to scores.
  for (size_t i = 0; i < rows.rows(); ++i) {
    const double norm = std::sqrt(squared_norm(rows.row(i))), left = norm + norms_;
    const double factor = beam > 1 ? std::max(largest_norm_, left) : largest_norm_;
    if (!(left * factor <= kMaxProduct))  // NaN is not
      throw bad_input(
          "row {} of norm {:.3g} and entries of norms to {:.3g}: a device takes finite values with scores to "
          "2^126",
          i, norm, largest_norm_);
  }
  const size_t at_once = std::min(rows.rows(), rows_at_once(beam));
  DeviceBuffer<float> residuals[2];
  DeviceBuffer<uint32_t> paths[2];
  if (beam > 1)
    for (size_t i = 0; i < 2; ++i)
      residuals[i].resize(at_once * beam * padded), paths[i].resize(at_once * beam * stages);
  for (size_t begin = 0; begin < rows.rows(); begin += at_once) {
    const size_t n = std::min(at_once, rows.rows() - begin);
    DeviceBuffer<float> first = upload_rows(rows.rows(begin, n), stream_, padded);
    DeviceBuffer<uint32_t> found(n * stages);
    if (beam == 1)
      stream_.run("searching codebooks", run_rvq_encode, books_, first.data(), n, found.data());
    else
      stream_.run("searching codebooks", run_rvq_beam, books_,
                  RvqBeam{.rows = first.data(),
                          .count = n,
                          .beam = static_cast<uint32_t>(beam),
                          .residuals = {residuals[0].data(), residuals[1].data()},
                          .paths = {paths[0].data(), paths[1].data()},
                          .ids = found.data()});
    download_rows(found, ids.rows(begin, n), stream_);
  }
}

// Parts that an engine provides ----------------------------------------------------------------------

namespace {

class Residual final : public ResidualEngine {
 public:
  Residual(const DeviceWork& device, const Codebooks& books) : device_(device), quantizer_(books) {}

  /// Copies packed ids to the device and sums back.
  bool sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const override {
    return device_.try_run([&] { quantizer_.sum_entries(ids, out); });
  }

  /// Copies rows to the device, padded to whole vectors, and ids back; residuals stay there.
  bool encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const override {
    return device_.try_run([&] { quantizer_.encode(rows, beam, ids); });
  }

 private:
  const DeviceWork& device_;
  ResidualQuantizer quantizer_;
};

}  // namespace

void add_residual(const DeviceWork& device) {
  device.offer<ResidualEngine>("rvq", [](const DeviceWork& own, const Codebooks& books) {
    return std::make_unique<Residual>(own, books);
  });
}

}  // namespace kvcodec::cuda
