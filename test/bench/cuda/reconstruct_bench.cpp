// Signals from packed ids and f16 coefficients: into floats from atoms in f32, and as a cache has them, into
// bf16 from atoms in bf16.
#include <algorithm>
#include <vector>

#include "cuda/reconstruct.cuh"
#include "cuda/reconstruct.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

struct Shape {
  size_t signals, atoms, dims, each;
};

/// Random codes, in the forms of a file and of lib/.
struct Codes {
  std::vector<uint32_t> ids;
  std::vector<uint16_t> halves;
  std::vector<float> coefficients;
  std::vector<uint8_t> packed;
  unsigned width;

  explicit Codes(const Shape& shape)
      : ids(shape.signals * shape.each),
        halves(ids.size()),
        coefficients(random_floats(2, ids.size())),
        width(index_bits(shape.atoms)) {
    Rng rng(1);
    for (auto& id : ids) id = static_cast<uint32_t>(rng.below(shape.atoms));
    narrow(DType::f16, coefficients, halves);
    for (size_t i = 0; i < ids.size(); ++i) coefficients[i] = f16_to_float(halves[i]);
    packed.resize(packed_bytes(ids.size(), width));
    pack_bits(std::span<const uint32_t>(ids), width, shape.atoms, packed);
  }
};

/// Out: float, or uint16_t for bf16. expected: of the first signals.
template <class Out>
void run_case(DeviceBench& bench, const std::string& name, const Shape& shape, const Codes& codes,
              const std::vector<Out>& atoms, const std::vector<Out>& expected) {
  constexpr bool kFloats = std::is_same_v<Out, float>;
  const auto& stream = bench.stream();
  const cuda::DeviceBuffer<Out> device_atoms(atoms, stream);
  const cuda::DeviceAtoms device{device_atoms.data(), static_cast<uint32_t>(shape.atoms),
                                 static_cast<uint32_t>(shape.dims), static_cast<uint32_t>(shape.dims)};
  const size_t values = shape.signals * shape.dims;
  const double moved = static_cast<double>(codes.packed.size() + 2 * codes.halves.size() +
                                           sizeof(Out) * (values + atoms.size()));
  std::vector<uint32_t> words(codes.packed.size() / 4 + 2);
  std::ranges::copy(codes.packed, reinterpret_cast<uint8_t*>(words.data()));
  std::vector<cuda::DeviceBuffer<uint32_t>> packed;
  std::vector<cuda::DeviceBuffer<uint16_t>> coefficients;
  std::vector<cuda::DeviceBuffer<Out>> out;
  const size_t sets = bench.sets_of(moved);
  for (size_t set = 0; set < sets; ++set) {
    packed.emplace_back(words, stream);
    coefficients.emplace_back(codes.halves, stream);
    out.emplace_back(values);
  }
  cuda::DeviceBuffer<unsigned long long> bad(1);
  bad.fill(0xff, stream);
  const auto launch = [&](size_t set) {
    cuda::DeviceCodes device_codes;
    device_codes.packed = packed[set].data(), device_codes.bits = codes.width;
    device_codes.half_coefficients = coefficients[set].data();
    device_codes.each = static_cast<uint32_t>(shape.each);
    cuda::check(
        cuda::run_reconstruct(kFloats ? cuda::AtomType::f32 : cuda::AtomType::bf16, device, device_codes,
                              shape.signals, out[set].data(), shape.dims, bad.data(), stream.handle()),
        "reconstruction");
  };
  launch(0);
  std::vector<Out> found(values);
  out[0].download(found, stream);
  stream.synchronize();
  verify(std::equal(expected.begin(), expected.end(), found.begin()), name);
  bench.measure(name, fmt::format("{} x {} of {} x {}", shape.signals, shape.each, shape.atoms, shape.dims),
                {.bytes = moved}, sets, launch);
}

}  // namespace

void reconstruct_cases(DeviceBench& bench) {
  const Shape shape = bench.small() ? Shape{70, 100, 32, 5}
                                    : Shape{.signals = 1 << 18, .atoms = 8192, .dims = 128, .each = 16};
  const std::string floats = "reconstruct/packed f32", halves = "reconstruct/packed bf16";
  if (!bench.wanted(floats) && !bench.wanted(halves)) return;
  const Codes codes(shape);
  std::vector<float> atoms = random_floats(3, shape.atoms * shape.dims);
  const size_t checked = std::min<size_t>(shape.signals, 4096);
  std::vector<uint64_t> offsets(checked + 1);
  for (size_t i = 0; i <= checked; ++i) offsets[i] = i * shape.each;
  std::vector<float> expected(checked * shape.dims);
  const auto reconstruct = [&] {
    const std::span<const uint32_t> ids(codes.ids);
    const std::span<const float> coefficients(codes.coefficients);
    Reconstructor({atoms.data(), shape.atoms, shape.dims})
        .run({ids.first(offsets.back()), coefficients.first(offsets.back()), offsets},
             {expected.data(), checked, shape.dims});
  };
  if (bench.wanted(floats))
    bench.attempt(floats, [&] {
      reconstruct();
      run_case(bench, floats, shape, codes, atoms, expected);
    });
  if (bench.wanted(halves))
    bench.attempt(halves, [&] {
      std::vector<uint16_t> half_atoms(atoms.size()), half_expected(expected.size());
      narrow(DType::bf16, atoms, half_atoms);
      widen(DType::bf16, half_atoms, atoms);
      reconstruct();
      narrow(DType::bf16, expected, half_expected);
      run_case(bench, halves, shape, codes, half_atoms, half_expected);
    });
}

}  // namespace kvcodec::bench
