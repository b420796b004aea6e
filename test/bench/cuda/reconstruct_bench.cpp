// Signals from codes: from atoms of floats, as lib sums them, also where products with vectors stand for the atoms; and
// from atoms of 8 bits, whose slices stay in shared memory.
#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/reconstruct/reconstruct.cuh"
#include "lib/core/rng.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

struct Shape {
  size_t signals, atoms, dims, each;

  std::string text() const { return fmt::format("{} x {} of {} x {}", signals, each, atoms, dims); }
};

/// Random codes, here and on the device.
struct Codes {
  std::vector<uint32_t> ids;
  std::vector<float> coefficients;
  cuda::DeviceBuffer<uint32_t> device_ids;
  cuda::DeviceBuffer<float> device_coefficients;
  cuda::DeviceCodes codes;

  Codes(const Shape& shape, const cuda::Stream& stream)
      : ids(shape.signals * shape.each), coefficients(random_floats(2, ids.size())) {
    Rng rng(1);
    for (auto& id : ids) id = static_cast<uint32_t>(rng.below(shape.atoms));
    device_ids = cuda::DeviceBuffer<uint32_t>(ids, stream);
    device_coefficients = cuda::DeviceBuffer<float>(coefficients, stream);
    codes.ids = device_ids.data(), codes.coefficients = device_coefficients.data();
    codes.each = static_cast<uint32_t>(shape.each);
    stream.synchronize();
  }

  double bytes() const { return 8 * static_cast<double>(ids.size()); }
};

/// Throws unless the first signals equal those of lib.
template <class Atoms>
void verify_signals(const Atoms& atoms, const Codes& codes, const Shape& shape,
                    const std::vector<float>& found, const std::string& name) {
  const size_t checked = std::min<size_t>(shape.signals, 4096);
  Matrix<float> expected(checked, shape.dims);
  const std::vector<uint64_t> offsets = uniform_offsets(checked, shape.each);
  Reconstructor(atoms).run({std::span<const uint32_t>(codes.ids).first(offsets.back()),
                            std::span<const float>(codes.coefficients).first(offsets.back()), offsets},
                           expected);
  verify(std::equal(expected.data(), expected.data() + expected.size(), found.begin()), name);
}

void float_case(DeviceBench& bench, const std::string& name, const Shape& large) {
  if (!bench.wanted(name)) return;
  const Shape shape = bench.small() ? Shape{70, 100, large.dims / 4, 5} : large;
  const auto& stream = bench.stream();
  const std::vector<float> atoms = random_floats(3, shape.atoms * shape.dims);
  const cuda::DeviceBuffer<float> device_atoms(atoms, stream);
  const cuda::DeviceAtoms device{device_atoms.data(), static_cast<uint32_t>(shape.atoms),
                                 static_cast<uint32_t>(shape.dims), static_cast<uint32_t>(shape.dims)};
  const size_t values = shape.signals * shape.dims;
  const double moved = 8 * static_cast<double>(shape.signals * shape.each) +
                       static_cast<double>(sizeof(float) * (values + atoms.size()));
  std::vector<std::unique_ptr<Codes>> codes;
  std::vector<cuda::DeviceBuffer<float>> out;
  for (size_t set = 0; set < bench.sets_of(moved); ++set) {
    codes.push_back(std::make_unique<Codes>(shape, stream));
    out.emplace_back(values);
  }
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, stream);
  const auto launch = [&](size_t set) {
    stream.run("reconstruction", cuda::run_reconstruct, device, codes[set]->codes, cuda::DeviceFinishing(),
               cuda::DeviceSignals{out[set].data(), shape.signals, shape.dims}, bad.data());
  };
  launch(0);
  verify_signals(MatrixView<const float>(atoms.data(), shape.atoms, shape.dims), *codes[0], shape,
                 read(out[0], stream), name);
  bench.measure(name, shape.text(), {.bytes = moved}, codes.size(), launch);
}

void level_case(DeviceBench& bench) {
  const std::string name = "reconstruct/i8 atoms";
  if (!bench.wanted(name)) return;
  const Shape shape = bench.small() ? Shape{70, 100, 40, 5}
                                    : Shape{.signals = 1 << 17, .atoms = 8192, .dims = 512, .each = 64};
  const auto& stream = bench.stream();
  const Codes codes(shape, stream);
  const std::vector<float> values = random_floats(3, shape.atoms * shape.dims);
  const ByteAtoms atoms = round_to_bytes({values.data(), shape.atoms, shape.dims});
  const size_t slices = (shape.dims + cuda::kLevelChannels - 1) / cuda::kLevelChannels;
  std::vector<int8_t> host(slices * shape.atoms * cuda::kLevelChannels);
  for (size_t i = 0; i < shape.atoms; ++i)
    for (size_t c = 0; c < shape.dims; ++c)
      host[(c / cuda::kLevelChannels * shape.atoms + i) * cuda::kLevelChannels + c % cuda::kLevelChannels] =
          atoms.levels(i, c);
  const cuda::DeviceBuffer<int8_t> device_slices(host, stream);
  const cuda::DeviceBuffer<float> scales(atoms.scales, stream);
  const size_t quads = (shape.each + 3) / 4;
  cuda::DeviceBuffer<uint32_t> pairs((shape.signals + 31) / 32 * 32 * quads * 4), used(shape.signals);
  cuda::DeviceBuffer<float> units(shape.signals), out(shape.signals * shape.dims);
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, stream);
  const cuda::DeviceLevels levels{device_slices.data(), scales.data(), static_cast<uint32_t>(shape.atoms),
                                  static_cast<uint32_t>(shape.dims)};
  cuda::LevelCodes prepared;
  prepared.pairs = pairs.data(), prepared.units = units.data(), prepared.used = used.data();
  prepared.quads = static_cast<uint32_t>(quads);
  const auto launch = [&](size_t) {
    stream.run("weights", cuda::run_prepare_levels, levels, codes.codes, shape.signals, prepared, bad.data());
    stream.run("sums of levels", cuda::run_combine_levels, levels, prepared, cuda::DeviceFinishing(),
               cuda::DeviceSignals{out.data(), shape.signals, shape.dims}, bench.limits());
  };
  launch(0);
  verify_signals(atoms, codes, shape, read(out, stream), name);
  const double made = 4 * static_cast<double>(out.size());
  bench.measure(name, shape.text(), {.bytes = made + codes.bytes(), .reported = made}, 1, launch);
}

}  // namespace

void reconstruct_cases(DeviceBench& bench) {
  const std::string floats = "reconstruct/f32";
  bench.attempt(floats, [&] {
    float_case(bench, floats, {.signals = 1 << 18, .atoms = 8192, .dims = 128, .each = 16});
  });
  // Products of tokens and vectors without decoding: products of atoms with 32 vectors replace the atoms.
  const std::string products = "reconstruct/products of codes";
  bench.attempt(products, [&] {
    float_case(bench, products, {.signals = 1 << 17, .atoms = 8192, .dims = 32, .each = 64});
  });
  bench.attempt("reconstruct/i8 atoms", [&] { level_case(bench); });
}

}  // namespace kvcodec::bench
