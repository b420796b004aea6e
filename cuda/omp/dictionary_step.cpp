// CUDA implementation of the training of lib/sparse/train.hpp with adam and gradient: a batch is copied there, coded
// (omp.hpp), and its gradient followed; atoms, moments, codes and residuals stay. The dictionary is lib's,
// bit for bit: it is lib's own loop over an engine that gives the same bits.
//
// A step of 1024 signals of 512 values with 64 of 8192 atoms is 2 ms of pursuit by arithmetic (omp.hpp); its
// gradient reads 65536 residuals of 2 KiB from the second-level cache (134 MB, 0.03 ms) and atoms and moments
// once (0.1 GB both ways, 0.03 ms). 2 MB go there and 50 KB come back.
#include "cuda/omp/dictionary_step.cuh"

#include <algorithm>
#include <memory>

#include "cuda/omp/omp.hpp"
#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/runtime/device_work.hpp"
#include "lib/sparse/train.hpp"

namespace kvcodec::cuda {
namespace {

/// Signals whose places in all atoms' lists are there at a time: 64 MiB for 8192 atoms.
constexpr size_t kWindow = 4096;

/// Device memory of a training, except for pursuits' own: atoms four times in floats (themselves, moments,
/// gradients) and once in f16, places of signals in atoms' lists, a batch twice, and its codes.
uint64_t bytes_of(const TrainOptions& options, size_t width) {
  const auto atoms = static_cast<uint64_t>(options.atoms), batch = static_cast<uint64_t>(options.batch);
  const uint64_t of_atom = checked_mul(width, 4 * sizeof(float) + sizeof(uint16_t)) +
                           std::min<uint64_t>(batch, kWindow) * sizeof(uint16_t);
  const uint64_t of_signal =
      checked_mul(width, 2 * sizeof(float)) + static_cast<uint64_t>(options.sparsity) * 16;
  return checked_add(checked_mul(atoms, of_atom), checked_mul(batch, of_signal));
}

/// Copies a batch there and losses back for each step; atoms and moments when somebody asks. Nobody takes over a training
/// that has begun.
class DeviceTraining final : public TrainingEngine {
 public:
  /// For dictionaries of that many atoms and values, and batches as the options say. Throws Error(usage) for a sparsity
  /// beyond what pursuit takes there. Made with the device to itself.
  DeviceTraining(const DeviceWork& device, const TrainOptions& options, size_t width) : device_(device) {
    pursuit_.sparsity = options.sparsity;
    const uint64_t bytes = bytes_of(options, width), there = free_bytes();
    if (bytes > there / 2)
      throw failed(
          "training takes some {} bytes of device memory; {} are free, and half of that is taken at most",
          bytes, there);
    dictionary_.resize(static_cast<size_t>(options.atoms), width);
    OmpBatches::check(dictionary_, pursuit_);
    gradients_.resize(checked_mul(dictionary_.device().count, width));
    uses_.resize(dictionary_.device().count);
    unusable_.resize(1), bad_.resize(1);
    unusable_.fill(0, stream_);
    stream_.synchronize();
  }

  void put(MatrixView<const float> atoms, const Matrix<float>& mean, const Matrix<float>& variance) override {
    check_shape("atoms", atoms, dictionary_.device().count, dictionary_.device().width);
    check_atoms(atoms);
    device_.must_run([&] {
      dictionary_.assign(atoms, stream_);
      mean_.resize(mean.size()), variance_.resize(variance.size());
      mean_.upload({mean.data(), mean.size()}, stream_);
      variance_.upload({variance.data(), variance.size()}, stream_);
      unusable_.fill(0, stream_);
      stream_.synchronize();
    });
  }

  void code(MatrixView<const float> batch, BatchLoss& loss) override {
    if (batch.cols() != dictionary_.device().width || !batch.contiguous() || batch.rows() > UINT32_MAX)
      throw failed("a batch of {} signals of {} values for atoms of {}", batch.rows(), batch.cols(),
                   dictionary_.device().width);
    device_.must_run([&] { code_batch(batch, loss); });
  }

  void step(const GradientStep& step) override {
    if (on_device_.signals == 0 || (step.adam && mean_.size() != gradients_.size()))
      throw failed("a step without a batch or without its moments");
    device_.must_run([&] {
      sum_up(&step);
      stream_.run("step", run_step, step, trained());
      dictionary_.prepare(stream_);
    });
    on_device_.signals = 0;  // codes are of the atoms before
  }

  void get(MatrixView<float> atoms, Matrix<float>& mean, Matrix<float>& variance) const override {
    if (mean.size() != mean_.size() || variance.size() != variance_.size())
      throw failed("{} and {} moments; there are {}", mean.size(), variance.size(), mean_.size());
    device_.must_run([&] {
      download_rows(dictionary_.rows(), atoms, stream_);
      mean_.download({mean.data(), mean.size()}, stream_);
      variance_.download({variance.data(), variance.size()}, stream_);
      stream_.synchronize();
    });
  }

 private:
  void code_batch(MatrixView<const float> batch, BatchLoss& loss) {
    const size_t count = batch.rows(), width = dictionary_.device().width;
    if (downloaded(unusable_, stream_)[0] != 0) {
      // Atoms that a step left without a norm are refused as lib's pursuit refuses them.
      Matrix<float> atoms(dictionary_.device().count, width);
      download_rows(dictionary_.rows(), atoms, stream_);
      check_atoms(atoms);
    }
    const auto s = static_cast<size_t>(pursuit_.sparsity);
    on_device_ = {.batch = batch_.sized(checked_mul(count, width)),
                  .residuals = residuals_.sized(count * width),
                  .ids = ids_.sized(checked_mul(count, s)),
                  .coefficients = coefficients_.sized(count * s),
                  .counts = counts_.sized(count),
                  .signals = static_cast<uint32_t>(count),
                  .width = static_cast<uint32_t>(width),
                  .sparsity = static_cast<uint32_t>(s)};
    energies_.resize(2 * count);
    batch_.upload({batch.data(), count * width}, stream_);
    if (gram_pays(dictionary_, count, pursuit_.sparsity)) dictionary_.build_gram(stream_);
    const size_t at_once = batches_.at_once(dictionary_, pursuit_, count);
    for (size_t first = 0; first < count; first += at_once) {
      const size_t some = std::min(at_once, count - first);
      batches_.run(dictionary_, pursuit_, {batch_.data() + first * width, some, first}, codes_, stream_);
      detail::copy(ids_.data() + first * s, codes_.ids.data(), some * s * sizeof(uint32_t), stream_);
      detail::copy(coefficients_.data() + first * s, codes_.coefficients.data(), some * s * sizeof(float),
                   stream_);
      detail::copy(counts_.data() + first, codes_.counts.data(), some * sizeof(uint32_t), stream_);
    }
    stream_.run(
        "signals of codes", run_reconstruct,
        DeviceAtoms{dictionary_.rows().data(), dictionary_.device().count, on_device_.width,
                    dictionary_.device().stride},
        DeviceCodes{.ids = ids_.data(), .coefficients = coefficients_.data(), .each = on_device_.sparsity},
        DeviceFinishing(), DeviceSignals{residuals_.data(), count, width}, bad_.data());
    stream_.run("residuals", run_residuals, on_device_, energies_.data(), energies_.data() + count);
    sum_up(nullptr);
    loss.energies.resize(count), loss.residuals.resize(count), loss.uses.resize(dictionary_.device().count);
    energies_.download(loss.energies, stream_);
    energies_.download(loss.residuals, stream_, count);
    uses_.download(loss.uses, stream_);
    stream_.synchronize();
  }

  /// Goes over the pairs of the batch, a window of signals after the other: counts uses, or with a step adds
  /// up gradients.
  void sum_up(const GradientStep* step) {
    uses_.fill(0, stream_);
    if (step) gradients_.fill(0, stream_);
    for (size_t first = 0; first < on_device_.signals; first += kWindow) {
      const size_t count = std::min<size_t>(kWindow, on_device_.signals - first);
      const TrainingWindow window{static_cast<uint32_t>(first), static_cast<uint32_t>(count),
                                  places_.sized(checked_mul(dictionary_.device().count, count))};
      places_.fill(0, stream_);
      stream_.run("pairs by atom", run_places, on_device_, window, uses_.data());
      if (step) stream_.run("gradients", run_gradients, on_device_, window, step->factor, trained());
    }
  }

  TrainedAtoms trained() {
    return {dictionary_.rows().data(),
            gradients_.data(),
            mean_.data(),
            variance_.data(),
            dictionary_.device().count,
            dictionary_.device().width,
            dictionary_.device().stride,
            unusable_.data()};
  }

  const DeviceWork& device_;
  Stream stream_;
  OmpOptions pursuit_;
  OmpDictionary dictionary_;
  OmpBatches batches_;
  OmpCodes codes_;  // of a piece of the batch
  TrainingBatch on_device_;
  DeviceBuffer<float> mean_, variance_, gradients_, batch_, residuals_, coefficients_;
  DeviceBuffer<uint32_t> ids_, counts_, uses_, unusable_;
  DeviceBuffer<unsigned long long> bad_;  // of codes; a pursuit's are good
  DeviceBuffer<double> energies_;
  DeviceBuffer<uint16_t> places_;
};

}  // namespace

void add_training(const DeviceWork& device) {
  device.offer<TrainingEngine>("train-dict",
                               [](const DeviceWork& own, const TrainOptions& options, size_t width) {
                                 return std::make_unique<DeviceTraining>(own, options, width);
                               });
}

}  // namespace kvcodec::cuda
