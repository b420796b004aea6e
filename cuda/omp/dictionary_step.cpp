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
    gradients_.resize(checked_mul(dictionary_.atoms(), width));
    uses_.resize(dictionary_.atoms());
    unusable_.resize(1), bad_.resize(1);
    unusable_.fill(0, stream_);
    stream_.synchronize();
  }

  void put(MatrixView<const float> atoms, const Matrix<float>& mean, const Matrix<float>& variance) override {
    if (atoms.rows() != dictionary_.atoms() || atoms.cols() != dictionary_.width())
      throw failed("{} atoms of {} values for a training of {} of {}", atoms.rows(), atoms.cols(),
                   dictionary_.atoms(), dictionary_.width());
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
    if (batch.cols() != dictionary_.width() || !batch.contiguous() || batch.rows() > UINT32_MAX)
      throw failed("a batch of {} signals of {} values for atoms of {}", batch.rows(), batch.cols(),
                   dictionary_.width());
    device_.must_run([&] { code_batch(batch, loss); });
  }

  void step(const GradientStep& step) override {
    if (signals_ == 0 || (step.adam && mean_.size() != gradients_.size()))
      throw failed("a step without a batch or without its moments");
    device_.must_run([&] {
      sum_up(&step);
      check(run_step(step, gradients_.data(), mean_.data(), variance_.data(), dictionary_.rows(),
                     static_cast<uint32_t>(dictionary_.atoms()), static_cast<uint32_t>(dictionary_.width()),
                     static_cast<uint32_t>(dictionary_.stride()), unusable_.data(), stream_.handle()),
            "step");
      dictionary_.prepare(stream_);
    });
    signals_ = 0;  // codes are of the atoms before
  }

  void get(MatrixView<float> atoms, Matrix<float>& mean, Matrix<float>& variance) const override {
    if (mean.size() != mean_.size() || variance.size() != variance_.size())
      throw failed("{} and {} moments; there are {}", mean.size(), variance.size(), mean_.size());
    device_.must_run([&] {
      get_atoms(atoms);
      mean_.download({mean.data(), mean.size()}, stream_);
      variance_.download({variance.data(), variance.size()}, stream_);
      stream_.synchronize();
    });
  }

 private:
  void get_atoms(MatrixView<float> atoms) const {
    std::vector<float> rows(dictionary_.atoms() * dictionary_.stride());
    detail::download(rows.data(), dictionary_.device().rows, rows.size() * sizeof(float), stream_);
    stream_.synchronize();
    unpack<float>(rows, dictionary_.stride(), atoms);
  }

  void code_batch(MatrixView<const float> batch, BatchLoss& loss) {
    check_usable();
    const size_t count = batch.rows(), width = dictionary_.width();
    const auto s = static_cast<size_t>(pursuit_.sparsity);
    batch_.resize(checked_mul(count, width)), residuals_.resize(count * width);
    ids_.resize(checked_mul(count, s)), coefficients_.resize(count * s), counts_.resize(count);
    energies_.resize(2 * count);
    batch_.upload({batch.data(), count * width}, stream_);
    if (gram_pays(dictionary_, count, pursuit_.sparsity)) dictionary_.build_gram(stream_);
    const size_t at_once = batches_.at_once(dictionary_, pursuit_, count);
    for (size_t first = 0; first < count; first += at_once) {
      const size_t some = std::min(at_once, count - first);
      batches_.run(dictionary_, pursuit_, batch_.data() + first * width, some, first, codes_, stream_);
      detail::copy(ids_.data() + first * s, codes_.ids.data(), some * s * sizeof(uint32_t), stream_);
      detail::copy(coefficients_.data() + first * s, codes_.coefficients.data(), some * s * sizeof(float),
                   stream_);
      detail::copy(counts_.data() + first, codes_.counts.data(), some * sizeof(uint32_t), stream_);
    }
    signals_ = static_cast<uint32_t>(count);
    DeviceCodes pairs;
    pairs.ids = ids_.data(), pairs.coefficients = coefficients_.data();
    pairs.each = static_cast<uint32_t>(s);
    check(run_reconstruct({dictionary_.rows(), static_cast<uint32_t>(dictionary_.atoms()),
                           static_cast<uint32_t>(width), static_cast<uint32_t>(dictionary_.stride())},
                          pairs, {}, {residuals_.data(), count, width}, bad_.data(), stream_.handle()),
          "signals of codes");
    check(run_residuals(batch_.data(), residuals_.data(), signals_, static_cast<uint32_t>(width),
                        energies_.data(), energies_.data() + count, stream_.handle()),
          "residuals");
    sum_up(nullptr);
    loss.energies.resize(count), loss.residuals.resize(count), loss.uses.resize(dictionary_.atoms());
    energies_.download(loss.energies, stream_);
    energies_.download(loss.residuals, stream_, count);
    uses_.download(loss.uses, stream_);
    stream_.synchronize();
  }

  /// Goes over the pairs of the batch, a window of signals after the other: counts uses, or with a step adds
  /// up gradients.
  void sum_up(const GradientStep* step) {
    const TrainingCodes codes{ids_.data(), coefficients_.data(), counts_.data(), signals_,
                              static_cast<uint32_t>(pursuit_.sparsity)};
    const auto atoms = static_cast<uint32_t>(dictionary_.atoms());
    uses_.fill(0, stream_);
    if (step) gradients_.fill(0, stream_);
    for (size_t first = 0; first < signals_; first += kWindow) {
      const auto window = static_cast<uint32_t>(std::min<size_t>(kWindow, signals_ - first));
      places_.resize(checked_mul(dictionary_.atoms(), window));
      places_.fill(0, stream_);
      check(run_places(codes, static_cast<uint32_t>(first), window, places_.data(), uses_.data(),
                       stream_.handle()),
            "pairs by atom");
      if (step)
        check(run_gradients(codes, residuals_.data(), static_cast<uint32_t>(first), window, places_.data(),
                            atoms, static_cast<uint32_t>(dictionary_.width()), step->factor,
                            gradients_.data(), stream_.handle()),
              "gradients");
    }
  }

  /// Atoms that a step left without a norm are refused as lib's pursuit refuses them.
  void check_usable() {
    uint32_t unusable = 0;
    unusable_.download({&unusable, 1}, stream_);
    stream_.synchronize();
    if (unusable == 0) return;
    Matrix<float> atoms(dictionary_.atoms(), dictionary_.width());
    get_atoms(atoms);
    check_atoms(atoms);
  }

  const DeviceWork& device_;
  Stream stream_;
  OmpOptions pursuit_;
  OmpDictionary dictionary_;
  OmpBatches batches_;
  OmpCodes codes_;  // of a piece of the batch
  uint32_t signals_ = 0;
  DeviceBuffer<float> mean_, variance_, gradients_, batch_, residuals_, coefficients_;
  DeviceBuffer<uint32_t> ids_, counts_, uses_, unusable_;
  DeviceBuffer<unsigned long long> bad_;  // of codes; a pursuit's are good
  DeviceBuffer<double> energies_;
  DeviceBuffer<uint16_t> places_;
};

}  // namespace

void add_training(Engine& engine, const DeviceWork& device) {
  engine.add<TrainingEngine>(
      [&device](const TrainOptions& options, size_t width) -> std::unique_ptr<TrainingEngine> {
        return device.try_make("train-dict",
                               [&] { return std::make_unique<DeviceTraining>(device, options, width); });
      });
}

}  // namespace kvcodec::cuda
