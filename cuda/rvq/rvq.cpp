#include "cuda/rvq/rvq.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "cuda/runtime/device_work.hpp"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "cuda/rvq/rvq.cuh"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half_bits.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/linalg/nearest.hpp"

static_assert(kvcodec::cuda::kRvqMostHypotheses == kvcodec::ResidualEncoder::kMostHypotheses);

namespace kvcodec::cuda {
namespace {

/// Products of norms at most: a quarter of the largest float, so that scores, with their biases and
/// roundings, are floats.
constexpr double kMostProduct = 0x1p126;

/// Rows in device memory at a time: enough to fill any device, however long the document.
constexpr size_t kRowsAtOnce = 1 << 17;

/// The power of two that brings the largest of these magnitudes to [1, 2).
float scale_of(MatrixView<const float> entries) {
  float largest = 0;
  for (size_t e = 0; e < entries.rows(); ++e)
    for (const float value : entries.row(e)) largest = std::max(largest, std::abs(value));
  if (largest < std::numeric_limits<float>::min()) return 1;
  return static_cast<float>(std::ldexp(1.0, -std::clamp(std::ilogb(largest), -126, 126)));
}

double squared_norm(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * double{value};
  return squares;
}

/// The largest norm of a stage's entries; infinity where a value is not finite.
double largest_norm(MatrixView<const float> entries) {
  double largest = 0;
  for (size_t e = 0; e < entries.rows(); ++e) {
    const double squares = squared_norm(entries.row(e));
    largest = std::max(largest, std::isfinite(squares) ? squares : std::numeric_limits<double>::infinity());
  }
  return std::sqrt(largest);
}

/// A float that is not below x >= 0.
float float_above(double x) {
  if (x >= double{std::numeric_limits<float>::max()}) return std::numeric_limits<float>::infinity();
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

/// Writes the halves of a stage's entries (depth apart) and gives what they are worth.
RvqScreen screen_of(MatrixView<const float> entries, std::span<const float> bias, size_t depth,
                    std::span<uint16_t> halves) {
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
    norm = std::max(norm, squares);
    rounding = std::max(rounding, rounding_squares);
    screen.bias = std::max(screen.bias, std::abs(bias[e]));
  }
  screen.norm = float_above(std::sqrt(norm));
  screen.rounding = float_above(std::sqrt(rounding));
  return screen;
}

}  // namespace

struct ResidualQuantizer::Impl {
  size_t stages, count, width, padded;
  double largest_norm = 0, norms = 0;  ///< of all entries; the sum of each stage's largest
  Stream stream;
  DeviceBuffer<float> entries, bias;
  DeviceBuffer<uint16_t> halves;
  DeviceBuffer<RvqScreen> screens;
  RvqBooks books{};

  /// Rows [first, first + n) of out, from ids on the device.
  void sum(const DeviceBuffer<uint8_t>& packed, uint64_t first_id, unsigned bits,
           MatrixView<float> out) const {
    const WordStream ids{reinterpret_cast<const uint32_t*>(packed.data()),
                         static_cast<uint32_t>(packed.size() / 4 - 1)};
    DeviceBuffer<float> rows(checked_mul(out.rows(), width));
    check(run_rvq_decode(books, ids, first_id, bits, out.rows(), static_cast<unsigned>(width), rows.data(),
                         width, stream.handle()),
          "adding entries");
    download_rows(rows, out, stream);
  }

  /// What is left of a row after any stages is not longer than the row and an entry of each stage together.
  /// A beam search adds the energy of that to scores.
  void check_range(MatrixView<const float> rows, size_t beam) const {
    for (size_t i = 0; i < rows.rows(); ++i) {
      const double norm = std::sqrt(squared_norm(rows.row(i))), left = norm + norms;
      const double factor = beam > 1 ? std::max(largest_norm, left) : largest_norm;
      if (!(left * factor <= kMostProduct))  // NaN is not
        throw bad_input(
            "row {} of norm {:.3g} and entries of norms to {:.3g}: a device takes finite values with scores "
            "to "
            "2^126",
            i, norm, largest_norm);
    }
  }

  /// Bytes of packed ids, so many of them, from a whole byte on.
  void sum_packed(std::span<const uint8_t> packed, uint64_t first_id, MatrixView<float> out) const {
    const unsigned bits = index_bits(count);
    for (size_t begin = 0; begin < out.rows(); begin += kRowsAtOnce) {
      const size_t n = std::min(kRowsAtOnce, out.rows() - begin);
      const uint64_t first = first_id + begin * stages;
      const uint64_t byte = first / 8 * bits, skipped = first / 8 * 8;  // 8 ids are whole bytes
      const uint64_t end = packed_bytes(first + n * stages, bits);
      DeviceBuffer<uint8_t> part(round_up(end - byte, 4) + 8);
      part.fill(0, stream);
      part.upload(packed.subspan(byte, end - byte), stream);
      sum(part, first - skipped, bits, out.rows(begin, n));
    }
  }
};

ResidualQuantizer::ResidualQuantizer(const Codebooks& books) : impl_(std::make_unique<Impl>()) {
  if (books.padded() > kRvqWidest)
    throw usage_error("codebooks of {} dimensions; a device takes at most {}", books.width(), kRvqWidest);
  if (books.entries() == 0 || books.entries() > (uint64_t{1} << 31))
    throw failed("codebooks of {} entries; a device takes 1 to 2^31", books.entries());
  Impl& at = *impl_;
  at.stages = books.stages(), at.count = books.entries(), at.width = books.width(),
  at.padded = books.padded();
  const size_t tiles = (at.count + kRvqTile - 1) / kRvqTile, room = tiles * kRvqTile;
  const size_t depth = rvq_depth(static_cast<unsigned>(at.padded));
  at.entries.resize(checked_mul(at.stages * at.count, at.padded));
  at.bias.resize(at.stages * room);
  at.halves.resize(checked_mul(at.stages * room, depth));
  at.screens.resize(at.stages);
  for (size_t s = 0; s < at.stages; ++s) {
    const double norm = largest_norm(books.stage(s));
    at.largest_norm = std::max(at.largest_norm, norm), at.norms += norm;
    std::vector<float> bias = nearest_bias(books.stage(s));
    std::vector<uint16_t> halves(room * depth);
    const RvqScreen screen = screen_of(books.stage(s), bias, depth, halves);
    bias.resize(room, -std::numeric_limits<float>::infinity());
    at.entries.upload({books.data(s), at.count * at.padded}, at.stream, s * at.count * at.padded);
    at.bias.upload(bias, at.stream, s * room);
    at.halves.upload(halves, at.stream, s * room * depth);
    at.screens.upload({&screen, 1}, at.stream, s);
    at.stream.synchronize();  // these vectors go away
  }
  at.books = {at.entries.data(),
              at.bias.data(),
              at.halves.data(),
              at.screens.data(),
              static_cast<uint32_t>(at.stages),
              static_cast<uint32_t>(at.count),
              static_cast<uint32_t>(at.padded),
              static_cast<uint32_t>(tiles)};
}

ResidualQuantizer::~ResidualQuantizer() = default;
ResidualQuantizer::ResidualQuantizer(ResidualQuantizer&&) noexcept = default;
ResidualQuantizer& ResidualQuantizer::operator=(ResidualQuantizer&&) noexcept = default;
RvqBooks ResidualQuantizer::books() const { return impl_->books; }

void ResidualQuantizer::sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const {
  const Impl& at = *impl_;
  if (ids.cols() != at.stages || out.cols() != at.width || ids.rows() != out.rows())
    throw failed("ids ({}, {}) and rows ({}, {}) for {} codebooks of width {}", ids.rows(), ids.cols(),
                 out.rows(), out.cols(), at.stages, at.width);
  std::vector<uint32_t> flat;
  flat.reserve(ids.rows() * ids.cols());
  for (size_t i = 0; i < ids.rows(); ++i) flat.insert(flat.end(), ids.row(i).begin(), ids.row(i).end());
  const unsigned bits = index_bits(at.count);
  std::vector<uint8_t> packed(packed_bytes(flat.size(), bits));
  pack_bits(std::span<const uint32_t>(flat), bits, at.count, packed);
  at.sum_packed(packed, 0, out);
}

void ResidualQuantizer::sum_packed_entries(std::span<const uint8_t> packed, uint64_t first_id,
                                           MatrixView<float> out) const {
  const Impl& at = *impl_;
  if (out.cols() != at.width) throw failed("rows of {} for codebooks of width {}", out.cols(), at.width);
  const unsigned bits = index_bits(at.count);
  const uint64_t end = checked_add(first_id, checked_mul(out.rows(), at.stages));
  if (packed_bytes(end, bits) > packed.size())
    throw bad_input("{} bytes of ids end before id {}", packed.size(), end);
  if ((uint64_t{1} << bits) != at.count) {  // there are ids that are none
    std::vector<uint32_t> ids(at.stages);
    for (size_t i = 0; i < out.rows(); ++i)
      unpack_bits(packed, (first_id + i * at.stages) * bits, bits, at.count, std::span<uint32_t>(ids));
  }
  at.sum_packed(packed, first_id, out);
}

void ResidualQuantizer::encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const {
  const Impl& at = *impl_;
  if (rows.cols() != at.width || ids.cols() != at.stages || ids.rows() != rows.rows())
    throw failed("rows ({}, {}) and ids ({}, {}) for {} codebooks of width {}", rows.rows(), rows.cols(),
                 ids.rows(), ids.cols(), at.stages, at.width);
  if (beam < 1 || beam > ResidualEncoder::kMostHypotheses)
    throw failed("a beam of {}; it must be between 1 and {}", beam, ResidualEncoder::kMostHypotheses);
  if (at.stages == 0) return;
  at.check_range(rows, beam);
  const size_t at_once = std::min(rows.rows(), std::max<size_t>(1, kRowsAtOnce / beam));
  DeviceBuffer<float> first(at_once * at.padded), residuals[2];
  DeviceBuffer<uint32_t> found(at_once * at.stages), paths[2];
  if (beam > 1)
    for (size_t i = 0; i < 2; ++i)
      residuals[i].resize(at_once * beam * at.padded), paths[i].resize(at_once * beam * at.stages);
  for (size_t begin = 0; begin < rows.rows(); begin += at_once) {
    const size_t n = std::min(at_once, rows.rows() - begin);
    std::vector<float> padded(n * at.padded);
    for (size_t i = 0; i < n; ++i)
      std::ranges::copy(rows.row(begin + i), padded.begin() + static_cast<ptrdiff_t>(i * at.padded));
    first.upload(padded, at.stream);
    std::vector<uint32_t> host(n * at.stages);
    const Status status = beam == 1
                              ? run_rvq_encode(at.books, first.data(), n, found.data(), at.stream.handle())
                              : run_rvq_beam(at.books,
                                             {.rows = first.data(),
                                              .count = n,
                                              .beam = static_cast<uint32_t>(beam),
                                              .residuals = {residuals[0].data(), residuals[1].data()},
                                              .paths = {paths[0].data(), paths[1].data()},
                                              .ids = found.data()},
                                             at.stream.handle());
    check(status, "searching codebooks");
    found.download(host, at.stream);
    at.stream.synchronize();
    unpack<uint32_t>(host, at.stages, ids.rows(begin, n));
  }
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

class Residual final : public ResidualEngine {
 public:
  Residual(const DeviceWork& device, const Codebooks& books, ResidualQuantizer quantizer)
      : device_(device),
        bytes_per_row_(books.padded() * sizeof(float) + books.stages() * sizeof(uint32_t)),
        quantizer_(std::move(quantizer)) {}

  /// Copies packed ids there and sums back.
  bool sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const override {
    return in_pieces(ids.rows(), 1, [&](size_t first, size_t count) {
      quantizer_.sum_entries(ids.rows(first, count), out.rows(first, count));
    });
  }

  /// Copies rows there, padded to whole vectors, and ids back; what is left between stages stays there.
  bool encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const override {
    return in_pieces(rows.rows(), beam, [&](size_t first, size_t count) {
      quantizer_.encode(rows.rows(first, count), beam, ids.rows(first, count));
    });
  }

 private:
  /// sums: of each row, kept while searching; their next ones are there at the same time.
  template <class Body>
  bool in_pieces(size_t rows, size_t sums, const Body& body) const {
    const auto run = [&] {
      const size_t at_once = DeviceWork::rows_at_once(2 * sums * bytes_per_row_);
      for (size_t first = 0; first < rows; first += at_once) body(first, std::min(at_once, rows - first));
    };
    return device_.try_run(run) == Outcome::done;
  }

  const DeviceWork& device_;
  size_t bytes_per_row_;
  ResidualQuantizer quantizer_;
};

std::unique_ptr<ResidualEngine> residual_engine(const DeviceWork& device, const Codebooks& books) {
  auto quantizer = device.try_make("rvq", [&] { return ResidualQuantizer(books); });
  if (!quantizer) return nullptr;
  return std::make_unique<Residual>(device, books, std::move(*quantizer));
}

}  // namespace

void add_residual(Engine& engine, const DeviceWork& device) {
  engine.add<ResidualEngine>(std::bind_front(residual_engine, std::cref(device)));
}

}  // namespace kvcodec::cuda
