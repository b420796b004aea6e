// Residual codebooks: vectors encoded per second, greedy and with a beam, and bytes decoded per second beside
// what memory gives. With --fixed FOLDER the codebooks and vectors are those that peers_rvq.py put there
// (codebooks.f32, vectors.f32), so that both sides encode the same with the same; else they are made here:
// vectors from N(0, 1), the entries of each codebook residuals of such vectors, drawn at random.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/core/rng.hpp"
#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

struct Shape {
  size_t width, stages, entries, vectors;
};
constexpr Shape kShapes[] = {{128, 8, 256, 60000}, {128, 8, 1024, 20000}, {128, 1, 65536, 8000}};
/// In the second-level cache, in the third, and, like the paper's codebooks, in memory.
constexpr Shape kDecoded[] = {{128, 8, 256, 60000}, {128, 8, 1024, 20000}, {128, 8, 65536, 20000}};
constexpr int kRepeats = 5;

Matrix<float> normal(size_t n, size_t d, uint64_t stream) {
  Rng rng(1, stream);
  Matrix<float> out(n, d);
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<float>(rng.normal());
  return out;
}

Codebooks make_books(const Shape& shape) {
  Codebooks books(shape.stages, shape.entries, shape.width);
  for (size_t s = 0; s < shape.stages; ++s) {
    Codebooks so_far(s, shape.entries, shape.width);
    for (size_t earlier = 0; earlier < s; ++earlier)
      for (size_t e = 0; e < shape.entries; ++e)
        std::ranges::copy(std::as_const(books).stage(earlier).row(e), so_far.stage(earlier).row(e).begin());
    Matrix<float> left = normal(shape.entries, shape.width, 2 + s);
    if (s > 0) {
      Matrix<uint32_t> ids(shape.entries, s);
      Matrix<float> sums(shape.entries, shape.width);
      ResidualEncoder(so_far).encode(left, 1, ids);
      sum_entries(so_far, ids, sums);
      for (size_t i = 0; i < left.size(); ++i) left.data()[i] -= sums.data()[i];
    }
    // Shorter than residuals: a random one is not the mean of those near it.
    for (size_t e = 0; e < shape.entries; ++e)
      for (size_t j = 0; j < shape.width; ++j) books.stage(s)(e, j) = 0.4f * left(e, j);
  }
  return books;
}

template <class Values>
void read(const std::string& file, Values&& values) {
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
  bench::check(bool(in), "reading " + file);
}

double nmse_of(const Codebooks& books, const Matrix<float>& rows, const Matrix<uint32_t>& ids,
               Matrix<float>& out) {
  sum_entries(books, ids, out);
  double error = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    error += std::pow(double{rows.data()[i]} - double{out.data()[i]}, 2);
  return error / energy_of(rows);
}

void measure_shape(const Shape& shape, const std::string& fixed, const std::vector<size_t>& beams,
                   const std::vector<int>& threads_list) {
  Codebooks books;
  Matrix<float> rows(shape.vectors, shape.width);
  if (fixed.empty()) {
    books = make_books(shape);
    rows = normal(shape.vectors, shape.width, 1);
  } else {
    books = Codebooks(shape.stages, shape.entries, shape.width);
    std::vector<float> all(shape.stages * shape.entries * shape.width);
    read(fixed + "/codebooks.f32", all);
    for (size_t s = 0, at = 0; s < shape.stages; ++s)
      for (size_t e = 0; e < shape.entries; ++e, at += shape.width)
        std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(at), shape.width,
                    books.stage(s).row(e).begin());
    read(fixed + "/vectors.f32", std::span(rows.data(), rows.size()));
  }
  Matrix<uint32_t> ids(shape.vectors, shape.stages);
  Matrix<float> out(shape.vectors, shape.width);
  for (const int threads : threads_list) {
    set_num_threads(threads);
    const ResidualEncoder encoder(books);
    for (const size_t beam : beams) {
      const bench::Times coding = bench::measure(kRepeats, [&] { encoder.encode(rows, beam, ids); });
      const double nmse = nmse_of(books, rows, ids, out);
      fmt::print("d {:4} codebooks {:2} entries {:5} beam {:2}  {} thread{}  {:>28} vectors/s  nmse {:.6f}\n",
                 shape.width, shape.stages, shape.entries, beam, threads, threads == 1 ? " " : "s",
                 bench::rate(coding, double(shape.vectors), 1), nmse);
    }
  }
}

/// Decoding, in turns with its bound: rows of that many bytes from the same places of an array of that size,
/// and as many written, without any sum. What fits a cache is read at its speed.
void measure_decoding(const Shape& shape) {
  constexpr int kTurns = 15;
  const size_t row = round_up(shape.width, 16);
  const Codebooks books(shape.stages, shape.entries, shape.width);
  Matrix<float> out(shape.vectors, shape.width), copied(shape.vectors, shape.width);
  Rng rng(5);
  Matrix<uint32_t> ids(shape.vectors, shape.stages);
  for (size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<uint32_t>(rng.below(shape.entries));
  const double bytes = double(shape.vectors) * double(shape.width) * 4 * double(shape.stages + 1);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const auto copy = [&] {
      parallel_for(shape.vectors, 512, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i)
          for (size_t s = 0; s < shape.stages; ++s)
            std::memcpy(copied.row(i).data(), books.data(s) + ids(i, s) * row, shape.width * sizeof(float));
      });
    };
    bench::Times copying, decoding;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const bool decodes : {false, true}) {
        const double start = bench::now();
        decodes ? sum_entries(books, ids, out) : copy();
        (decodes ? decoding : copying).add(bench::now() - start);
      }
    }
    fmt::print(
        "decoding, d {} codebooks {} entries {}  {} thread{} {} GB/s; copies of the same rows {} GB/s; "
        "{:.0f}%\n",
        shape.width, shape.stages, shape.entries, threads, threads == 1 ? " " : "s",
        bench::rate(decoding, bytes, 1e9), bench::rate(copying, bytes, 1e9),
        100 * copying.median() / decoding.median());
  }
}

}  // namespace

int main(int argc, char** argv) {
  // kvcodec_bench_rvq [--decode | --fixed FOLDER WIDTH STAGES ENTRIES VECTORS [BEAM [THREADS]]]
  if (argc == 2 && std::strcmp(argv[1], "--decode") == 0) {
    bench::print_header("residual codebooks");
    for (const Shape& shape : kDecoded) measure_decoding(shape);
    return 0;
  }
  if (argc >= 7 && argc <= 9 && std::strcmp(argv[1], "--fixed") == 0) {
    const auto number = [&](int i) { return static_cast<size_t>(std::strtoull(argv[i], nullptr, 10)); };
    measure_shape({number(3), number(4), number(5), number(6)}, argv[2],
                  argc > 7 ? std::vector<size_t>{number(7)} : std::vector<size_t>{1, 5},
                  argc > 8 ? std::vector<int>{static_cast<int>(number(8))} : std::vector<int>{1, 2});
    return 0;
  }
  if (argc != 1) {
    fmt::print(stderr,
               "usage: kvcodec_bench_rvq [--decode | --fixed FOLDER WIDTH STAGES ENTRIES VECTORS [BEAM "
               "[THREADS]]]\n");
    return 2;
  }
  bench::print_header("residual codebooks");
  for (const Shape& shape : kShapes) {
    measure_shape(shape, "", shape.stages > 1 ? std::vector<size_t>{1, 5} : std::vector<size_t>{1}, {1, 2});
  }
  for (const Shape& shape : kDecoded) measure_decoding(shape);
}
