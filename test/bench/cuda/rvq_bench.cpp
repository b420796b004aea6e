// The device twin of rvq: sums of entries straight from packed ids, and the greedy search for ids.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/rvq.cuh"
#include "cuda/rvq.hpp"
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

void beam_case(DeviceBench& bench, const Shape& shape, size_t searched, size_t beam) {
  if (!bench.wanted("rvq/beam")) return;
  Rng rng(2);
  const Codebooks books = random_books(shape, rng);
  const cuda::ResidualQuantizer quantizer(books);
  const auto& stream = bench.stream();
  const Matrix<float> sample = random_rows(std::min<size_t>(searched, 64), shape.width, rng);
  Matrix<uint32_t> expected(sample.rows(), shape.stages), found(sample.rows(), shape.stages);
  ResidualEncoder(books).encode(sample, beam, expected);
  quantizer.encode(sample, beam, found);
  verify(std::equal(found.data(), found.data() + found.size(), expected.data()), "rvq/beam");

  const size_t padded = books.padded(), hypotheses = searched * beam;
  const Matrix<float> values = random_rows(searched, shape.width, rng);
  std::vector<float> rows(searched * padded);
  for (size_t i = 0; i < searched; ++i)
    std::ranges::copy(values.row(i), rows.begin() + static_cast<ptrdiff_t>(i * padded));
  const cuda::DeviceBuffer<float> device_rows(rows, stream);
  cuda::DeviceBuffer<float> first(hypotheses * padded), second(hypotheses * padded);
  cuda::DeviceBuffer<uint32_t> first_paths(hypotheses * shape.stages),
      second_paths(hypotheses * shape.stages), ids(searched * shape.stages);
  stream.synchronize();
  const cuda::RvqBeam search{.rows = device_rows.data(),
                             .count = searched,
                             .beam = static_cast<uint32_t>(beam),
                             .residuals = {first.data(), second.data()},
                             .paths = {first_paths.data(), second_paths.data()},
                             .ids = ids.data()};
  // The first stage has one hypothesis.
  const double products = 2.0 * static_cast<double>(searched) *
                          static_cast<double>(1 + (shape.stages - 1) * beam) *
                          static_cast<double>(shape.entries) * static_cast<double>(shape.width);
  bench.measure(
      "rvq/beam",
      fmt::format("{} rows, {} x {} x {}, beam {}", searched, shape.stages, shape.entries, shape.width, beam),
      {4.0 * static_cast<double>(rows.size()), products, products, "TFLOP/s"}, 1,
      [&](size_t) { cuda::check(cuda::run_rvq_beam(quantizer.books(), search, stream.handle()), "launch"); });
}

void run(DeviceBench& bench, const Shape& shape, size_t rows, size_t searched) {
  if (!bench.wanted("rvq/decode") && !bench.wanted("rvq/encode")) return;
  Rng rng(1);
  const Codebooks books = random_books(shape, rng);
  const cuda::ResidualQuantizer quantizer(books);
  const auto& stream = bench.stream();
  const std::string name = fmt::format("{} x {} x {}", shape.stages, shape.entries, shape.width);
  const auto launched = [](cuda::Status status) { cuda::check(status, "launch"); };

  if (bench.wanted("rvq/decode")) {
    const unsigned bits = index_bits(shape.entries);
    Matrix<uint32_t> ids(rows, shape.stages);
    for (size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<uint32_t>(rng.below(shape.entries));
    std::vector<uint8_t> packed(packed_bytes(ids.size(), bits));
    pack_bits(std::span<const uint32_t>(ids.data(), ids.size()), bits, 0, packed);
    const size_t checked = std::min<size_t>(rows, 4096);
    Matrix<float> expected(checked, shape.width), found(checked, shape.width);
    sum_entries(books, ids.view().rows(0, checked), expected);
    quantizer.sum_packed_entries(packed, 0, found);
    verify(std::memcmp(expected.data(), found.data(), found.size() * 4) == 0, "rvq/decode");

    const double read = static_cast<double>(packed.size());
    const double written = 4.0 * static_cast<double>(rows) * static_cast<double>(shape.width);
    packed.resize((packed.size() + 3) / 4 * 4 + 8);
    std::vector<cuda::DeviceBuffer<uint8_t>> ids_of;
    std::vector<cuda::DeviceBuffer<float>> out;
    for (size_t i = 0; i < bench.sets_of(read + written); ++i) {
      ids_of.emplace_back(packed, stream);
      out.emplace_back(rows * shape.width);
    }
    bench.measure("rvq/decode", fmt::format("{} rows, {}", rows, name),
                  {read + written, 0, written / 2, "GB/s"}, ids_of.size(), [&](size_t set) {
                    const WordStream words{reinterpret_cast<const uint32_t*>(ids_of[set].data()),
                                           static_cast<uint32_t>(ids_of[set].size() / 4 - 1)};
                    launched(cuda::run_rvq_decode(quantizer.books(), words, 0, bits, rows,
                                                  static_cast<unsigned>(shape.width), out[set].data(),
                                                  shape.width, stream.handle()));
                  });
  }
  if (bench.wanted("rvq/encode")) {
    const size_t checked = std::min<size_t>(searched, 512);
    const Matrix<float> sample = random_rows(checked, shape.width, rng);
    Matrix<uint32_t> expected(checked, shape.stages), found(checked, shape.stages);
    ResidualEncoder(books).encode(sample, 1, expected);
    quantizer.encode(sample, found);
    verify(std::equal(found.data(), found.data() + found.size(), expected.data()), "rvq/encode");

    const size_t padded = books.padded();
    Matrix<float> values = random_rows(searched, padded, rng);
    for (size_t i = 0; i < searched; ++i)
      std::fill(values.row(i).begin() + static_cast<ptrdiff_t>(shape.width), values.row(i).end(), 0.0f);
    const cuda::DeviceBuffer<float> source({values.data(), values.size()}, stream);
    cuda::DeviceBuffer<float> residuals(values.size());
    cuda::DeviceBuffer<uint32_t> ids(searched * shape.stages);
    stream.synchronize();
    const double products = 2.0 * static_cast<double>(searched) * static_cast<double>(shape.stages) *
                            static_cast<double>(shape.entries) * static_cast<double>(shape.width);
    bench.measure("rvq/encode", fmt::format("{} rows, {}", searched, name),
                  {4.0 * static_cast<double>(values.size()), products, products, "TFLOP/s"}, 1, [&](size_t) {
                    cuda::detail::copy(residuals.data(), source.data(), values.size() * sizeof(float),
                                       stream);
                    launched(cuda::run_rvq_encode(quantizer.books(), residuals.data(), searched, ids.data(),
                                                  stream.handle()));
                  });
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
