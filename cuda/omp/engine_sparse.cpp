#include <exception>

#include "cuda/engine_parts.hpp"
#include "cuda/omp/dictionary_step.hpp"
#include "cuda/omp/omp.hpp"

namespace kvcodec::cuda {
namespace {

class Pursuit final : public PursuitEngine {
 public:
  Pursuit(const DeviceWork& device, Omp omp) : device_(device), omp_(std::move(omp)) {}

  /// Copies signals there and codes back, some tens of thousands at a time.
  bool encode(MatrixView<const float> signals, const OmpOptions& options, SparseCodes& codes) const override {
    if (!Omp::takes(options)) {
      device_.leave(fmt::format("sparse: pursuits with selection {} of {} atoms per signal",
                                options.selection, options.sparsity));
      return false;
    }
    return device_.run([&] {
      signals_ += signals.rows();
      if (!omp_.has_gram() && omp_.gram_pays(signals_, options.sparsity)) omp_.build_gram();
      codes = omp_.encode(signals, options);
    });
  }

 private:
  const DeviceWork& device_;
  mutable Omp omp_;  // looked at by one thread at a time; inner products of atoms are about speed only
  mutable uint64_t signals_ = 0;  // so far
};

/// Copies a batch there and losses back for each step; atoms and moments when somebody asks.
class Training final : public TrainingEngine {
 public:
  Training(const DeviceWork& device, std::unique_ptr<TrainingEngine> engine)
      : device_(device), engine_(std::move(engine)) {}

  void put(MatrixView<const float> atoms, const Matrix<float>& mean, const Matrix<float>& variance) override {
    run([&] { engine_->put(atoms, mean, variance); });
  }
  void code(MatrixView<const float> batch, BatchLoss& loss) override {
    run([&] { engine_->code(batch, loss); });
  }
  void step(const GradientStep& step) override {
    run([&] { engine_->step(step); });
  }
  void get(MatrixView<float> atoms, Matrix<float>& mean, Matrix<float>& variance) const override {
    run([&] { engine_->get(atoms, mean, variance); });
  }

 private:
  /// Nobody takes over in the middle of a training; its errors have the words of lib's.
  template <class Body>
  void run(const Body& body) const {
    std::exception_ptr refused;
    device_.run([&] {
      try {
        body();
      } catch (const Error&) {
        refused = std::current_exception();
      }
    });
    if (refused) std::rethrow_exception(refused);
  }

  const DeviceWork& device_;
  std::unique_ptr<TrainingEngine> engine_;
};

}  // namespace

std::unique_ptr<PursuitEngine> pursuit_engine(const DeviceWork& device, const Dictionary& dictionary) {
  auto made = device.made("sparse: pursuit", [&] {
    // Beside atoms kept in 8 bits others need not be there.
    return dictionary.bytes.empty() ? Omp(dictionary.atoms) : Omp(floats_of(dictionary.bytes));
  });
  if (!made) return nullptr;
  return std::make_unique<Pursuit>(device, std::move(*made));
}

std::unique_ptr<TrainingEngine> training_engine(const DeviceWork& device, const TrainOptions& options,
                                                size_t width) {
  auto made = device.made("train-dict", [&] { return make_training_engine(options, width); });
  if (!made) return nullptr;
  return std::make_unique<Training>(device, std::move(*made));
}

}  // namespace kvcodec::cuda
