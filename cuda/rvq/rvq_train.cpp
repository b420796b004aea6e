// CUDA implementation of the heavy steps of lib/rvq/train.hpp: nearest entries, means and sums of the rows that chose
// an entry, the sums of x q' of a gradient, and the searches. The same bits as lib's.
#include <memory>
#include <optional>

#include "cuda/kmeans/kmeans.hpp"
#include "cuda/runtime/device_work.hpp"
#include "cuda/rvq/rvq.hpp"
#include "lib/core/aligned.hpp"
#include "lib/rvq/train.hpp"

namespace kvcodec::cuda {
namespace {

class Training final : public RvqTrainEngine {
 public:
  explicit Training(const DeviceWork& device) : device_(device) {}

  /// Copies the rows to the device, in floats and in halves.
  bool take(MatrixView<const float> rows) override {
    rows_.reset();  // first: both may not fit
    // Values in 32 bits and, padded, in 16; a factor and norms, with some reserve.
    const uint64_t bytes_per_row =
        rows.cols() * sizeof(float) + round_up(rows.cols(), kRoughStep) * sizeof(uint16_t) + 16;
    if (checked_mul(rows.rows(), bytes_per_row) > device_.room()) {
      device_.fall_back(fmt::format("rvq: training on {} vectors, which do not fit its memory", rows.rows()));
      return false;
    }
    return run([&] { rows_.emplace(rows); });
  }

  bool choose(MatrixView<const float> entries, std::span<const float> bias,
              std::span<uint32_t> ids) override {
    return run([&] { best_products(*rows_, DeviceMatrix(entries), bias, ids, {}); });
  }

  bool means(std::span<const uint32_t> ids, MatrixView<float> means) override {
    return run([&] { RowsByCluster(ids, means.rows()).means_of(*rows_, means); });
  }

  bool sums(std::span<const uint32_t> ids, MatrixView<double> sums) override {
    return run([&] { RowsByCluster(ids, sums.rows()).sums_of(*rows_, sums); });
  }

  bool outer(MatrixView<const double> rows, MatrixView<const double> others, MatrixView<double> a) override {
    if (rows.rows() > UINT32_MAX) throw failed("outer products of {} rows", rows.rows());
    check_shape("rows", others, rows.rows(), a.cols());
    check_shape("outer products", a, rows.cols(), others.cols());
    return run([&] {
      const Stream stream;
      const DeviceBuffer<double> device_rows = upload_rows(rows, stream),
                                 device_others = upload_rows(others, stream);
      DeviceBuffer<double> sums(a.rows() * a.cols());
      stream.run("sums of outer products", run_outer_sums,
                 OuterSums{.rows = device_rows.data(),
                           .others = device_others.data(),
                           .count = static_cast<uint32_t>(rows.rows()),
                           .n = static_cast<uint32_t>(rows.cols()),
                           .m = static_cast<uint32_t>(others.cols()),
                           .out = sums.data()});
      download_rows(sums, a, stream);
    });
  }

  bool encode(const Codebooks& books, MatrixView<const float> rows, size_t beam,
              MatrixView<uint32_t> ids) override {
    return books.padded() <= kRvqMaxDims && run([&] { ResidualQuantizer(books).encode(rows, beam, ids); });
  }

 private:
  template <class Body>
  bool run(const Body& body) const {
    return device_.try_run(body, DeviceWork::Bits::same, "rvq: training: ");
  }

  const DeviceWork& device_;
  std::optional<DeviceMatrix> rows_;
};

}  // namespace

void add_rvq_training(const DeviceWork& device) {
  device.engine().add<RvqTrainEngine>([&device] { return std::make_unique<Training>(device); });
}

}  // namespace kvcodec::cuda
