// The device twin of rvq: sums of entries straight from packed ids, and the greedy search for ids.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/rvq/rvq.cuh"
#include "cuda/rvq/rvq.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

struct Shape {
  size_t stages, entries, width;
};

Codebooks random_books(const Shape& shape, Rng& rng) {
  Codebooks books(shape.stages, shape.entries, shape.width);
  for (size_t s = 0; s < shape.stages; ++s)
    for (size_t e = 0; e < shape.entries; ++e)
      for (float& value : books.stage(s).row(e)) value = static_cast<float>(rng.normal());
  return books;
}

Matrix<float> random_rows(size_t n, size_t width, Rng& rng) {
  Matrix<float> rows(n, width);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(rng.normal());
  return rows;
}

/// Zeros after each row.
std::vector<float> padded_rows(const Matrix<float>& rows, size_t padded) {
  std::vector<float> out(rows.rows() * padded);
  for (size_t i = 0; i < rows.rows(); ++i)
    std::ranges::copy(rows.row(i), out.begin() + static_cast<ptrdiff_t>(i * padded));
  return out;
}

/// Throws unless the ids (rows, stages) of some of the rows equal those of lib.
void verify_ids(const Codebooks& books, size_t stages, const Matrix<float>& rows, size_t beam,
                size_t looked_at, const std::vector<uint32_t>& ids, const std::string& what) {
  const std::vector<size_t> some = spread(rows.rows(), looked_at);
  Matrix<float> sample(some.size(), rows.cols());
  Matrix<uint32_t> expected(some.size(), stages);
  for (size_t i = 0; i < some.size(); ++i) std::ranges::copy(rows.row(some[i]), sample.row(i).begin());
  ResidualEncoder(books).encode(sample, beam, expected);
  for (size_t i = 0; i < some.size(); ++i)
    verify(std::ranges::equal(expected.row(i), std::span(ids).subspan(some[i] * stages, stages)), what);
}

void beam_case(DeviceBench& bench, const Shape& shape, size_t searched, size_t beam) {
  if (!bench.wanted("rvq/beam")) return;
  Rng rng(2);
  const Codebooks books = random_books(shape, rng);
  const cuda::ResidualQuantizer quantizer(books);
  const auto& stream = bench.stream();
  const size_t padded = books.padded(), hypotheses = searched * beam;
  const Matrix<float> values = random_rows(searched, shape.width, rng);
  const std::vector<float> rows = padded_rows(values, padded);
  const cuda::DeviceBuffer<float> device_rows(rows, stream);
  cuda::DeviceBuffer<float> first(hypotheses * padded), second(hypotheses * padded);
  cuda::DeviceBuffer<uint32_t> first_paths(hypotheses * shape.stages),
      second_paths(hypotheses * shape.stages), ids(searched * shape.stages);
  const cuda::RvqBeam search{.rows = device_rows.data(),
                             .count = searched,
                             .beam = static_cast<uint32_t>(beam),
                             .residuals = {first.data(), second.data()},
                             .paths = {first_paths.data(), second_paths.data()},
                             .ids = ids.data()};
  const auto launch = [&](size_t) {
    cuda::check(cuda::run_rvq_beam(quantizer.books(), search, stream.handle()), "launch");
  };
  ids.fill(0xff, stream);
  launch(0);
  verify_ids(books, shape.stages, values, beam, 64, read(ids, stream), "rvq/beam");
  // The first stage has one hypothesis.
  const double products = 2.0 * static_cast<double>(searched) *
                          static_cast<double>(1 + (shape.stages - 1) * beam) *
                          static_cast<double>(shape.entries) * static_cast<double>(shape.width);
  bench.measure(
      "rvq/beam",
      fmt::format("{} rows, {} x {} x {}, beam {}", searched, shape.stages, shape.entries, shape.width, beam),
      {4.0 * static_cast<double>(rows.size()), products, products, "TFLOP/s"}, 1, launch);
}

void run(DeviceBench& bench, const Shape& shape, size_t rows, size_t searched) {
  if (!bench.wanted("rvq/decode") && !bench.wanted("rvq/encode")) return;
  Rng rng(1);
  const Codebooks books = random_books(shape, rng);
  const cuda::ResidualQuantizer quantizer(books);
  const auto& stream = bench.stream();
  const std::string name = fmt::format("{} x {} x {}", shape.stages, shape.entries, shape.width);

  if (bench.wanted("rvq/decode")) {
    const unsigned bits = index_bits(shape.entries);
    Matrix<uint32_t> ids(rows, shape.stages);
    for (size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<uint32_t>(rng.below(shape.entries));
    std::vector<uint8_t> packed(packed_bytes(ids.size(), bits));
    pack_bits(std::span<const uint32_t>(ids.data(), ids.size()), bits, 0, packed);
    const double input = static_cast<double>(packed.size());
    const double written = 4.0 * static_cast<double>(rows) * static_cast<double>(shape.width);
    packed.resize((packed.size() + 3) / 4 * 4 + 8);
    std::vector<cuda::DeviceBuffer<uint8_t>> ids_of;
    std::vector<cuda::DeviceBuffer<float>> out;
    for (size_t i = 0; i < bench.sets_of(input + written); ++i) {
      ids_of.emplace_back(packed, stream);
      out.emplace_back(rows * shape.width);
    }
    const auto decode = [&](size_t set) {
      stream.run("launch", cuda::run_rvq_decode, quantizer.books(),
                 cuda::RvqSums{.ids = cuda::words_of(ids_of[set]),
                               .bits = bits,
                               .width = static_cast<uint32_t>(shape.width),
                               .rows = rows,
                               .out = out[set].data()});
    };
    Matrix<float> expected(rows, shape.width);
    sum_entries(books, ids, expected);
    for (size_t set = 0; set < out.size(); ++set) {
      out[set].fill(0xff, stream);
      decode(set);
      verify(std::ranges::equal(read(out[set], stream), std::span(expected.data(), expected.size())),
             "rvq/decode");
    }
    bench.measure("rvq/decode", fmt::format("{} rows, {}", rows, name),
                  {input + written, 0, written / 2, "GB/s"}, ids_of.size(), decode);
  }
  if (bench.wanted("rvq/encode")) {
    const Matrix<float> values = random_rows(searched, shape.width, rng);
    const std::vector<float> padded = padded_rows(values, books.padded());
    const cuda::DeviceBuffer<float> source(padded, stream);
    cuda::DeviceBuffer<float> residuals(padded.size());
    cuda::DeviceBuffer<uint32_t> ids(searched * shape.stages);
    const auto encode = [&](size_t) {
      cuda::detail::copy(residuals.data(), source.data(), padded.size() * sizeof(float), stream);
      stream.run("launch", cuda::run_rvq_encode, quantizer.books(), residuals.data(), searched, ids.data());
    };
    ids.fill(0xff, stream);
    encode(0);
    verify_ids(books, shape.stages, values, 1, 512, read(ids, stream), "rvq/encode");
    const double products = 2.0 * static_cast<double>(searched) * static_cast<double>(shape.stages) *
                            static_cast<double>(shape.entries) * static_cast<double>(shape.width);
    bench.measure("rvq/encode", fmt::format("{} rows, {}", searched, name),
                  {4.0 * static_cast<double>(padded.size()), products, products, "TFLOP/s"}, 1, encode);
  }
}

}  // namespace

void rvq_cases(DeviceBench& bench) {
  const auto attempt = [&](const Shape& shape, size_t rows, size_t searched) {
    bench.attempt(fmt::format("rvq, {} entries", shape.entries), [&] { run(bench, shape, rows, searched); });
  };
  const auto beam = [&](const Shape& shape, size_t searched, size_t hypotheses) {
    bench.attempt(fmt::format("rvq, a beam of {}", hypotheses),
                  [&] { beam_case(bench, shape, searched, hypotheses); });
  };
  if (bench.small()) return beam({2, 70, 32}, 40, 5), beam({2, 70, 32}, 5, 40), attempt({2, 70, 32}, 100, 70);
  beam({8, 256, 128}, 1 << 17, 5);  // of training's refits
  beam({8, 256, 128}, 1 << 14, 64);
  beam({8, 4096, 128}, 1 << 15, 5);
  attempt({8, 256, 128}, 1 << 18, 1 << 18);  // the command's default
  attempt({8, 4096, 128}, 1 << 18, 1 << 16);
  attempt({8, 65536, 128}, 1 << 18, 1 << 14);  // the paper's, of values
}

}  // namespace kvcodec::bench
