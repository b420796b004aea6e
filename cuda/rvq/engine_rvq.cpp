#include "cuda/engine_parts.hpp"
#include "cuda/rvq/rvq.hpp"

namespace kvcodec::cuda {
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
    return device_.run([&] {
      const size_t at_once = DeviceWork::rows_at_once(2 * sums * bytes_per_row_);
      for (size_t first = 0; first < rows; first += at_once) body(first, std::min(at_once, rows - first));
    });
  }

  const DeviceWork& device_;
  size_t bytes_per_row_;
  ResidualQuantizer quantizer_;
};

}  // namespace

std::unique_ptr<ResidualEngine> residual_engine(const DeviceWork& device, const Codebooks& books) {
  auto quantizer = device.made("rvq", [&] { return ResidualQuantizer(books); });
  if (!quantizer) return nullptr;
  return std::make_unique<Residual>(device, books, std::move(*quantizer));
}

}  // namespace kvcodec::cuda
