// Orthogonal matching pursuit: whole batches, the products of one round, and the cost of the alternative, which follows
// correlations through rows of the Gram matrix.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/engine.hpp"
#include "cuda/omp/omp.hpp"
#include "cuda/reconstruct/reconstruct.cuh"
#include "lib/core/rng.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/train.hpp"
#include "test/bench/cuda/device_bench.hpp"
#include "test/lib/sparse/omp_reference.hpp"

namespace kvcodec::bench {
namespace {

struct Shape {
  size_t atoms, dims, sparsity, signals;

  std::string text() const { return fmt::format("{} x {} by {} of {}", signals, dims, sparsity, atoms); }
  OmpOptions options() const {
    OmpOptions options;
    options.sparsity = static_cast<int64_t>(sparsity);
    return options;
  }
};

/// The shape of the paper's dictionaries.
Shape shape_of(const DeviceBench& bench) {
  if (bench.small()) return {70, 24, 5, 40};
  const auto tiles = static_cast<size_t>(2 * bench.limits().multiprocessors);
  return {8192, 512, 64, tiles * cuda::kOmpRows};
}

struct Data {
  Matrix<float> atoms;
  std::vector<float> signals;

  explicit Data(const Shape& shape) : atoms(shape.atoms, shape.dims), signals(shape.signals * shape.dims) {
    const std::vector<float> values = random_floats(1, atoms.size());
    std::ranges::copy(values, atoms.data());
    normalize_atoms(atoms);
    // Sums of a few atoms and of noise: correlations have some structure, and residuals do not vanish.
    signals = random_floats(2, signals.size());
    Rng rng(3);
    for (size_t i = 0; i < shape.signals; ++i)
      for (size_t k = 0; k < shape.sparsity / 2; ++k) {
        const auto atom = atoms.row(rng.below(shape.atoms));
        const auto factor = static_cast<float>(rng.normal()) * 4;
        for (size_t c = 0; c < shape.dims; ++c) signals[i * shape.dims + c] += factor * atom[c];
      }
  }
};

/// Codes of the first signals must equal lib's; selection must equal that of a reference in double unless there is a near-tie.
void check_codes(const Shape& shape, const Data& data, bool with_gram) {
  const size_t checked = std::min<size_t>(shape.signals, 96), in_double = std::min<size_t>(shape.signals, 4);
  const MatrixView<const float> sample(data.signals.data(), checked, shape.dims);
  cuda::OmpDictionary device(data.atoms);
  if (with_gram) device.build_gram(cuda::Stream());  // which is waited for
  const SparseCodes found = cuda::sparse_codes(device, sample, shape.options());
  const SparseCodes expected = Omp(data.atoms).encode(sample, shape.options());
  verify(found.counts == expected.counts && found.residuals == expected.residuals &&
             std::equal(found.ids.data(), found.ids.data() + found.ids.size(), expected.ids.data()) &&
             std::equal(found.coefficients.data(), found.coefficients.data() + found.coefficients.size(),
                        expected.coefficients.data()),
         "codes");
  for (size_t i = 0; i < in_double; ++i) {
    const ReferenceCode reference = omp_reference(data.atoms, sample.row(i), shape.sparsity);
    if (reference.narrowest < 1e-5) continue;  // floats may tell otherwise
    verify(std::equal(reference.ids.begin(), reference.ids.end(), found.ids.row(i).begin()),
           "selection in double");
    verify(std::abs(found.residuals[i] - reference.residual) <= 1e-4 * reference.residual,
           "residuals in double");
  }
}

/// Signals per second of whole batches.
void encode_case(DeviceBench& bench, const std::string& name, bool with_gram) {
  if (!bench.wanted(name)) return;
  const Shape shape = shape_of(bench);
  const Data data(shape);
  check_codes(shape, data, with_gram);
  cuda::OmpDictionary dictionary;
  dictionary.assign(data.atoms, bench.stream());
  if (with_gram) dictionary.build_gram(bench.stream());
  const cuda::DeviceBuffer<float> signals(data.signals, bench.stream());
  cuda::OmpBatches batches;
  cuda::OmpCodes codes;
  const double count = static_cast<double>(shape.signals);
  const double operations = 2 * count * static_cast<double>(shape.atoms * shape.dims * shape.sparsity);
  bench.measure(
      name, shape.text(), {.operations = operations, .reported = count, .unit = "M signals/s"}, 1,
      [&](size_t) {
        batches.run(dictionary, shape.options(), {signals.data(), shape.signals}, codes, bench.stream());
      });
}

/// The inner products between atoms.
void gram_case(DeviceBench& bench) {
  if (!bench.wanted("pursuit/gram")) return;
  const Shape shape = shape_of(bench);
  const Data data(shape);
  cuda::OmpDictionary dictionary;
  dictionary.assign(data.atoms, bench.stream());
  const size_t n = shape.atoms;
  cuda::DeviceBuffer<float> gram(n * n);
  const auto launch = [&](size_t) {
    bench.stream().run("inner products", cuda::run_omp_gram, dictionary.device(), gram.data());
  };
  launch(0);
  std::vector<float> found(n);
  for (const size_t atom : {size_t{0}, n / 2, n - 1}) {
    gram.download(found, bench.stream(), atom * n);
    bench.stream().synchronize();
    for (size_t other = 0; other < n; ++other) {
      double product = 0;
      for (size_t c = 0; c < shape.dims; ++c)
        product += double{data.atoms(atom, c)} * double{data.atoms(other, c)};
      verify(std::abs(found[other] - product) <= 1e-5, "inner products");
    }
  }
  bench.measure("pursuit/gram", fmt::format("{} x {}", n, shape.dims),
                {.bytes = 4 * static_cast<double>(n) * static_cast<double>(n)}, 1, launch);
}

/// The minimum cost of streaming: half the atoms of a code exist in the middle round, and that many rows of the Gram matrix are
/// added up; a code takes `sparsity` such rounds. Selection and fit are not counted.
void streaming_case(DeviceBench& bench) {
  const std::string name = "pursuit/streaming Gram rows";
  if (!bench.wanted(name)) return;
  Shape shape = shape_of(bench);
  if (!bench.small()) shape.signals = 4096;
  const size_t n = shape.atoms, each = std::max<size_t>(shape.sparsity / 2, 1), stride = (n + 7) / 8 * 8;
  std::vector<float> gram = random_floats(4, n * stride);
  const std::vector<float> weights = random_floats(5, shape.signals * each);
  std::vector<uint32_t> ids(weights.size());
  Rng rng(6);
  for (auto& id : ids) id = static_cast<uint32_t>(rng.below(n));
  const auto& stream = bench.stream();
  const cuda::DeviceBuffer<float> device_gram(gram, stream), device_weights(weights, stream);
  const cuda::DeviceBuffer<uint32_t> device_ids(ids, stream);
  cuda::DeviceBuffer<float> correlations(shape.signals * stride);
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, stream);
  cuda::DeviceCodes codes;
  codes.ids = device_ids.data(), codes.coefficients = device_weights.data();
  codes.each = static_cast<uint32_t>(each);
  const cuda::DeviceAtoms rows{device_gram.data(), static_cast<uint32_t>(n), static_cast<uint32_t>(n),
                               static_cast<uint32_t>(stride)};
  const auto launch = [&](size_t) {
    stream.run("rows", cuda::run_reconstruct, rows, codes, cuda::DeviceFinishing(),
               cuda::DeviceSignals{correlations.data(), shape.signals, stride}, bad.data());
  };
  launch(0);
  std::vector<float> found(n);
  correlations.download(found, stream);
  stream.synchronize();
  for (size_t j = 0; j < n; ++j) {
    float sum = 0;
    for (size_t k = 0; k < each; ++k) sum = std::fma(weights[k], gram[ids[k] * stride + j], sum);
    verify(found[j] == sum, "sums of rows");
  }
  const double signals = static_cast<double>(shape.signals);
  bench.measure(name, fmt::format("{} x {} rows of {}", shape.signals, each, n),
                {.bytes = 4 * signals * static_cast<double>(each * n),
                 .reported = signals / static_cast<double>(shape.sparsity),
                 .unit = "M signals/s"},
                1, launch);
}

/// A step of training: a batch is copied to the device and coded, and its gradient followed.
void training_case(DeviceBench& bench) {
  const std::string name = "pursuit/training step";
  if (!bench.wanted(name)) return;
  Shape shape = shape_of(bench);
  shape.signals = bench.small() ? 30 : 1024;  // the paper's batch
  const Data data(shape);
  TrainOptions options;
  options.atoms = static_cast<int64_t>(shape.atoms), options.sparsity = static_cast<int64_t>(shape.sparsity);
  options.batch = static_cast<int64_t>(shape.signals);
  const auto device = cuda::make_engine();
  const auto engine = device->make<TrainingEngine>(options, shape.dims);
  Matrix<float> moments(shape.atoms, shape.dims);
  engine->put(data.atoms, moments, moments);
  const MatrixView<const float> batch(data.signals.data(), shape.signals, shape.dims);
  BatchLoss loss;
  engine->code(batch, loss);
  const size_t checked = std::min<size_t>(shape.signals, 32);
  const SparseCodes expected = Omp(data.atoms).encode(batch.rows(0, checked), shape.options());
  for (size_t i = 0; i < checked; ++i)
    verify(std::abs(std::sqrt(loss.residuals[i]) - expected.residuals[i]) <= 1e-4 * expected.residuals[i],
           "what codes leave");
  GradientStep step;
  step.adam = true;
  step.factor = -2 / static_cast<float>(shape.signals), step.rate = 5e-3f;
  step.keep_mean = 0.9f, step.keep_variance = 0.999f, step.variance_correction = 1000, step.floor = 1e-8f;
  const double count = static_cast<double>(shape.signals);
  const double operations = 2 * count * static_cast<double>(shape.atoms * shape.dims * shape.sparsity);
  bench.measure(name, shape.text(), {.operations = operations, .reported = count, .unit = "M signals/s"}, 1,
                [&](size_t) {
                  engine->step(step);
                  engine->code(batch, loss);
                });
}

}  // namespace

void omp_cases(DeviceBench& bench) {
  for (const auto& [name, gram] : {std::pair<std::string, bool>{"pursuit/encode", false},
                                   std::pair<std::string, bool>{"pursuit/encode, inner products kept", true}})
    bench.attempt(name, [&] { encode_case(bench, name, gram); });
  bench.attempt("pursuit/gram", [&] { gram_case(bench); });
  bench.attempt("pursuit/streaming Gram rows", [&] { streaming_case(bench); });
  bench.attempt("pursuit/training step", [&] { training_case(bench); });
}

}  // namespace kvcodec::bench
