#include "cuda/engine_parts.hpp"
#include "cuda/rvq/rvq_train.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {
namespace {

class Training final : public RvqTrainEngine {
 public:
  explicit Training(const DeviceWork& device) : device_(device) {}

  /// Copies the rows there, in floats and in halves.
  bool take(MatrixView<const float> rows) override {
    const uint64_t bytes = uint64_t{rows.rows()} * (rows.cols() * 4 + round_up(rows.cols(), 32) * 2 + 32);
    if (bytes > device_.room()) {
      device_.leave(fmt::format("rvq: training on {} vectors, which do not fit its memory", rows.rows()));
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
    bool done = false;
    return device_.run([&] { done = body(); }) && done;
  }

  const DeviceWork& device_;
  std::unique_ptr<RvqTrainEngine> on_device_ = make_rvq_train_engine();
};

}  // namespace

std::unique_ptr<RvqTrainEngine> rvq_train_engine(const DeviceWork& device) {
  return std::make_unique<Training>(device);
}

}  // namespace kvcodec::cuda
