// kvcodec_bench_omp: sparse coding and reconstruction at the shapes of SparseCache, on random dictionaries
// and signals.
//
//   kvcodec_bench_omp [--export DIR | --shape N,M,S]
//
// Coding is counted in signals per second with the Gram matrix made before, as for the peers that
// test/bench/peers_omp.py measures on the same numbers, in turn with this program: --export writes them
// (DIR/<n>_<m>.dictionary.f32 of n x m floats, DIR/<n>_<m>_<s>.signals.f32) instead of measuring, --shape
// measures one shape. Reconstruction is counted in bytes of 16-bit output per second.
#include <cmath>
#include <cstring>
#include <filesystem>

#include "lib/core/rng.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "test/bench/bench.hpp"
#include "test/lib/sparse/omp_reference.hpp"

using namespace kvcodec;

namespace {

struct Shape {
  size_t n, m, s, signals;
};
constexpr Shape kShapes[] = {
    {2048, 256, 16, 16384}, {8192, 512, 32, 2048}, {8192, 512, 64, 1024}, {8192, 1024, 128, 512}};

constexpr int kRepeats = 5;

Matrix<float> gaussian(size_t rows, size_t cols, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
  return matrix;
}

Matrix<float> make_dictionary(const Shape& shape) {
  Matrix<float> atoms = gaussian(shape.n, shape.m, shape.n + shape.m);
  normalize_atoms(atoms);
  return atoms;
}

Matrix<float> make_signals(const Shape& shape) { return gaussian(shape.signals, shape.m, shape.s); }

OmpOptions options_of(const Shape& shape) {
  OmpOptions options;
  options.sparsity = static_cast<int64_t>(shape.s);
  return options;
}

/// Error energy / energy.
double nmse_of(const Matrix<float>& signals, const SparseCodes& codes) {
  double energy = 0, error = 0;
  for (size_t i = 0; i < signals.size(); ++i) energy += double{signals.data()[i]} * signals.data()[i];
  for (const double residual : codes.residuals) error += residual * residual;
  return error / energy;
}

void check_answer(const Matrix<float>& atoms, const Matrix<float>& signals, const SparseCodes& codes,
                  size_t s) {
  for (size_t i = 0; i < 2; ++i) {
    const double reference = omp_reference(atoms, signals.row(i), s).residual;
    bench::check(std::abs(codes.residuals[i] / reference - 1) < 1e-4, "residual of pursuit");
  }
}

CodeView view_of(const SparseCodes& codes, std::span<const uint64_t> offsets) {
  return {
      {codes.ids.data(), codes.ids.size()}, {codes.coefficients.data(), codes.coefficients.size()}, offsets};
}

void measure_shape(const Shape& shape) {
  const Matrix<float> atoms = make_dictionary(shape), signals = make_signals(shape);
  const auto offsets = uniform_offsets(shape.signals, shape.s);
  const Reconstructor reconstructor(atoms);
  Matrix<float> out(shape.signals, shape.m);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    Omp omp(atoms);
    const double start = bench::now();
    omp.build_gram();
    const double gram_seconds = bench::now() - start;
    SparseCodes codes;
    const bench::Times coding =
        bench::measure(kRepeats, [&] { codes = omp.encode(signals, options_of(shape)); });
    if (threads == 1) check_answer(atoms, signals, codes, shape.s);
    const bench::Times decoding =
        bench::measure(kRepeats, [&] { reconstructor.run(view_of(codes, offsets), out); });
    const auto count = static_cast<double>(shape.signals);
    fmt::print(
        "n {:4} m {:4} s {:3}  {} thread{}  {:>28} signals/s  nmse {:.4f}  gram {:.2f} s  reconstruction {} "
        "GB/s\n",
        shape.n, shape.m, shape.s, threads, threads == 1 ? " " : "s", bench::rate(coding, count, 1),
        nmse_of(signals, codes), gram_seconds, bench::rate(decoding, count * double(shape.m) * 2, 1e9));
  }
}

void write(const std::string& file, const Matrix<float>& matrix) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(matrix.data()),
            static_cast<std::streamsize>(matrix.size() * sizeof(float)));
  out.close();
  bench::check(bool(out), "writing " + file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--export") == 0) {
    std::filesystem::create_directories(argv[2]);
    for (const Shape& shape : kShapes) {
      const std::string stem = fmt::format("{}/{}_{}", argv[2], shape.n, shape.m);
      write(stem + ".dictionary.f32", make_dictionary(shape));
      write(fmt::format("{}_{}.signals.f32", stem, shape.s), make_signals(shape));
    }
    return 0;
  }
  const bool all = argc == 1;
  if (!all && !(argc == 3 && std::strcmp(argv[1], "--shape") == 0)) {
    fmt::print(stderr, "usage: kvcodec_bench_omp [--export DIR | --shape N,M,S]\n");
    return 2;
  }
  if (all) bench::print_header("sparse coding");
  bool measured = false;
  for (const Shape& shape : kShapes) {
    if (!all && fmt::format("{},{},{}", shape.n, shape.m, shape.s) != argv[2]) continue;
    measure_shape(shape);
    measured = true;
  }
  if (measured) return 0;
  fmt::print(stderr, "kvcodec_bench_omp: there is no shape {}\n", argv[2]);
  return 2;
}
