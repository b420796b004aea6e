#include "cuda/rvq/rvq_train.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/kmeans/kmeans.hpp"
#include "cuda/kmeans/nearest.cuh"
#include "cuda/kmeans/nearest.hpp"
#include "cuda/runtime/device_work.hpp"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "cuda/rvq/rvq.cuh"
#include "cuda/rvq/rvq.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/rvq/train.hpp"

namespace kvcodec::cuda {
namespace {

/// Of a DeviceMatrix: values in 32 and, padded, in 16 bits; a factor and norms, and a little more.
uint64_t bytes_per_row(size_t cols) {
  return uint64_t{cols} * sizeof(float) + round_up(cols, kRoughStep) * sizeof(uint16_t) + 16;
}

class TrainEngine final : public RvqTrainEngine {
 public:
  bool take(MatrixView<const float> rows) override {
    rows_.reset();  // first: both may not fit
    const uint64_t bytes = checked_mul(rows.rows(), bytes_per_row(rows.cols()));
    return bytes <= free_bytes() / 2 && fits_memory([&] { rows_.emplace(rows); });
  }

  bool choose(MatrixView<const float> entries, std::span<const float> bias,
              std::span<uint32_t> ids) override {
    return fits_memory([&] { best_products(*rows_, DeviceMatrix(entries), bias, ids, {}); });
  }

  bool means(std::span<const uint32_t> ids, MatrixView<float> means) override {
    return fits_memory([&] { RowsByCluster(ids, means.rows()).means_of(*rows_, means); });
  }

  bool sums(std::span<const uint32_t> ids, MatrixView<double> sums) override {
    return fits_memory([&] { RowsByCluster(ids, sums.rows()).sums_of(*rows_, sums); });
  }

  bool outer(MatrixView<const double> rows, std::span<const double> weights, MatrixView<const double> others,
             MatrixView<double> a) override {
    if (rows.rows() != others.rows() || weights.size() != rows.rows() || a.rows() != rows.cols() ||
        a.cols() != others.cols() || rows.rows() > UINT32_MAX)
      throw failed("({}, {}) outer products of ({}, {}) and ({}, {}) with {} weights", a.rows(), a.cols(),
                   rows.rows(), rows.cols(), others.rows(), others.cols(), weights.size());
    return fits_memory([&] { sum_outer(rows, weights, others, a); });
  }

  bool encode(const Codebooks& books, MatrixView<const float> rows, size_t beam,
              MatrixView<uint32_t> ids) override {
    if (books.padded() > kWidest) return false;
    try {
      return fits_memory([&] { ResidualQuantizer(books).encode(rows, beam, ids); });
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bad_input) return false;  // values that only the CPU takes
      throw;
    }
  }

 private:
  static constexpr size_t kWidest = 256;  ///< of a ResidualQuantizer

  static void sum_outer(MatrixView<const double> rows, std::span<const double> weights,
                        MatrixView<const double> others, MatrixView<double> a) {
    const Stream stream;
    const PackedRows of_rows(rows), of_others(others);
    const DeviceBuffer<double> device_rows(of_rows.values(), stream), device_weights(weights, stream),
        device_others(of_others.values(), stream);
    DeviceBuffer<double> sums(a.rows() * a.cols());
    check(run_outer_sums(device_rows.data(), device_weights.data(), device_others.data(),
                         static_cast<uint32_t>(rows.rows()), static_cast<uint32_t>(rows.cols()),
                         static_cast<uint32_t>(others.cols()), sums.data(), stream.handle()),
          "sums of outer products");
    download_rows(sums, a, stream);
  }

  std::optional<DeviceMatrix> rows_;
};

}  // namespace

std::unique_ptr<RvqTrainEngine> make_rvq_train_engine() { return std::make_unique<TrainEngine>(); }

// What an engine hands out ------------------------------------------------------------------------

namespace {

class Training final : public RvqTrainEngine {
 public:
  explicit Training(const DeviceWork& device) : device_(device) {}

  /// Copies the rows there, in floats and in halves.
  bool take(MatrixView<const float> rows) override {
    const uint64_t bytes = rows.rows() * bytes_per_row(rows.cols());
    if (bytes > device_.room()) {
      device_.fall_back(fmt::format("rvq: training on {} vectors, which do not fit its memory", rows.rows()));
      return false;
    }
    return run([&] { return on_device_->take(rows); });
  }
  bool choose(MatrixView<const float> entries, std::span<const float> bias,
              std::span<uint32_t> ids) override {
    return run([&] { return on_device_->choose(entries, bias, ids); });
  }
  bool means(std::span<const uint32_t> ids, MatrixView<float> means) override {
    return run([&] { return on_device_->means(ids, means); });
  }
  bool sums(std::span<const uint32_t> ids, MatrixView<double> sums) override {
    return run([&] { return on_device_->sums(ids, sums); });
  }
  bool outer(MatrixView<const double> rows, std::span<const double> weights, MatrixView<const double> others,
             MatrixView<double> a) override {
    return run([&] { return on_device_->outer(rows, weights, others, a); });
  }
  bool encode(const Codebooks& books, MatrixView<const float> rows, size_t beam,
              MatrixView<uint32_t> ids) override {
    return run([&] { return on_device_->encode(books, rows, beam, ids); });
  }

 private:
  template <class Body>
  bool run(const Body& body) const {
    const auto run = [&] { return body() ? Outcome::done : Outcome::declined; };
    return device_.try_run(run) == Outcome::done;
  }

  const DeviceWork& device_;
  std::unique_ptr<RvqTrainEngine> on_device_ = make_rvq_train_engine();
};

std::unique_ptr<RvqTrainEngine> rvq_train_engine(const DeviceWork& device) {
  return std::make_unique<Training>(device);
}

}  // namespace

void add_rvq_training(Engine& engine, const DeviceWork& device) {
  engine.add<RvqTrainEngine>(std::bind_front(rvq_train_engine, std::cref(device)));
}

}  // namespace kvcodec::cuda
