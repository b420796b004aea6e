// kvcodec_bench_reconstruct: signals from sparse codes over random dictionaries, atoms of 32 and of 8 bits,
// in bytes of 16-bit output per second and core, beside what the caches would allow.
//
//   kvcodec_bench_reconstruct [N,M,S ...]        default: 8192,512,64 and others
//
// The floor: each pair reads its atom's row once, from the second-level cache at best. Its speed is measured
// by reading lines of a working set as large as a slice (512 KiB) in random order, with nothing done to them.
#include <cmath>
#include <cstring>
#include <ctime>
#include <numeric>

#include "lib/core/aligned.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

struct Shape {
  size_t n, m, s;
};
constexpr Shape kShapes[] = {{8192, 512, 64}, {8192, 512, 32}, {8192, 1024, 128}, {2048, 256, 16}};

constexpr int kRepeats = 9;
constexpr size_t kOutputBytes = size_t{16} << 20;

Matrix<float> gaussian(size_t rows, size_t cols, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
  return matrix;
}

/// Processor seconds of the only thread, which other work on the machine affects least.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The largest difference of two results, relative to the root mean square of the first.
double distance(const Matrix<float>& a, const Matrix<float>& b) {
  double worst = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double{a.data()[i]} - b.data()[i]));
    energy += double{a.data()[i]} * a.data()[i];
  }
  return worst / std::sqrt(energy / static_cast<double>(a.size()));
}

/// Bytes per second when lines of that many bytes are read whole, in random order.
double line_speed(size_t bytes) {
  constexpr size_t kReads = size_t{1} << 20;
  const AlignedVector<uint64_t> data(bytes / sizeof(uint64_t), 1);
  std::vector<uint32_t> order(kReads);
  Rng rng(5);
  for (uint32_t& line : order) line = static_cast<uint32_t>(rng.below(bytes / kCacheLine));
  uint64_t sum = 0;
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = processor_seconds();
    // One word of a line: the whole line is loaded into the first-level cache.
    for (const uint32_t line : order) sum += data[line * (kCacheLine / sizeof(uint64_t))];
    best = std::min(best, processor_seconds() - start);
  }
  bench::check(sum == kReads * kRepeats, "sum of ones");
  return static_cast<double>(kReads * kCacheLine) / best;
}

void measure_shape(const Shape& shape) {
  Matrix<float> atoms = gaussian(shape.n, shape.m, shape.n + shape.m);
  normalize_atoms(atoms);
  const ByteAtoms bytes = round_to_bytes(atoms);
  const size_t signals = kOutputBytes / shape.m / 2;
  Rng rng(3);
  std::vector<uint32_t> ids(signals * shape.s);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(shape.n));
  const Matrix<float> coefficients = gaussian(signals, shape.s, 4);
  const auto offsets = uniform_offsets(signals, shape.s);
  const CodeView codes{ids, {coefficients.data(), coefficients.size()}, offsets};
  const Reconstructor of_floats(atoms), of_bytes(bytes), of_rounded(floats_of(bytes));
  Matrix<float> wanted(signals, shape.m), got(signals, shape.m);
  of_rounded.run(codes, wanted);
  of_bytes.run(codes, got);
  // Weights are rounded to about 3e-5 of their mean; among millions of sums the worst error is six times that.
  bench::check(distance(wanted, got) < 3e-4, "integer sums");
  const auto work = static_cast<double>(signals * shape.m * 2);
  // They take turns, so that other work on the machine slows all alike.
  bench::Times floats, bytes_out;
  const auto timed = [](bench::Times& times, const auto& body) {
    const double start = processor_seconds();
    body();
    times.add(processor_seconds() - start);
  };
  for (int i = 0; i < kRepeats; ++i) {
    timed(floats, [&] { of_floats.run(codes, got); });
    timed(bytes_out, [&] { of_bytes.run(codes, got); });
  }
  const double line = line_speed(std::min<size_t>(shape.n * kCacheLine, size_t{512} << 10));
  fmt::print(
      "n {:4} m {:4} s {:3}  f32 atoms {}  8-bit atoms {}  floor {:.2f} GB/s (lines at "
      "{:.0f} GB/s)\n",
      shape.n, shape.m, shape.s, bench::rate(floats, work, 1e9), bench::rate(bytes_out, work, 1e9),
      line * 2 / static_cast<double>(shape.s) / 1e9, line / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(1);
  bench::print_header("reconstruction from sparse codes, one core");
  for (int i = 1; i < argc; ++i) {
    Shape shape{};
    if (std::sscanf(argv[i], "%zu,%zu,%zu", &shape.n, &shape.m, &shape.s) != 3 || shape.n == 0 ||
        shape.m == 0 || shape.s == 0) {
      fmt::print(stderr, "usage: kvcodec_bench_reconstruct [N,M,S ...]\n");
      return 2;
    }
    measure_shape(shape);
  }
  if (argc == 1)
    for (const Shape& shape : kShapes) measure_shape(shape);
  return 0;
}
