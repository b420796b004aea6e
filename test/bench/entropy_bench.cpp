// kvcodec_bench_entropy: coders of quantized values on one core.
//
//   kvcodec_bench_entropy [FILE...]
//   kvcodec_bench_entropy --export DIR
//
// Prints MB/s of symbols (one byte each) for encoding and decoding, and bits per symbol beside the entropy,
// on rounded normal values at several entropies, or on the bytes of the FILEs. --export writes the former to
// DIR/normal_<deviation>.u8 instead, so that other coders can be measured on the same symbols.
//
// Huffman: runs of 64 and 128 symbols, as the channels and tokens of a block of 64 x 128 values are, one
// block a call; and eight runs of 16384 a call. rANS: segments of 8192 symbols, a block each, one and eight a
// call.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lib/core/rng.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/huffman.hpp"
#include "lib/entropy/rans.hpp"
#include "test/bench/bench.hpp"
#include "test/lib/entropy/huffman_tree_walk.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kSymbols = 1 << 20;
constexpr int kRepeats = 25;
constexpr size_t kBlockSymbols = 8192;  // coded by one call, where runs and segments are short
constexpr double kDeviations[] = {0.4, 0.93, 1.92, 3.9};

std::vector<uint8_t> rounded_normal(double deviation) {
  Rng rng(1);
  std::vector<uint8_t> symbols(kSymbols);
  for (uint8_t& symbol : symbols)
    symbol = static_cast<uint8_t>(std::lround(std::clamp(deviation * rng.normal(), -100.0, 100.0)) + 128);
  return symbols;
}

void print(const std::string& what, const bench::Times& times, size_t symbols) {
  const auto speed = [&](double seconds) { return double(symbols) / seconds / 1e6; };
  fmt::print("  {:<40} {:6.0f} MB/s ({:.0f} .. {:.0f})\n", what, speed(times.median()), speed(times.max()),
             speed(times.min()));
}

void run_huffman(const std::vector<uint8_t>& symbols, size_t n, unsigned max_length) {
  const auto counts = histogram(symbols, 255);  // 255 is the escape
  const auto book = HuffmanBook::from_counts(counts, {.max_length = max_length, .escape_bits = 16});
  const size_t runs = symbols.size() / n;
  const size_t used = runs * n;
  const size_t step = n < kBlockSymbols ? kBlockSymbols / n : 8;
  std::vector<uint8_t> known(symbols.begin(), symbols.begin() + ptrdiff_t(used));
  for (const uint8_t symbol : known) bench::check(book.length(symbol) > 0, "the book lacks a symbol");
  const HuffmanEncoder encoder(book);
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> bits(runs);
  std::vector<size_t> offsets;
  const auto encode = [&] {
    bytes.clear();
    offsets.clear();
    for (size_t run = 0; run < runs; run += step) {
      const size_t count = std::min(step, runs - run);
      offsets.push_back(bytes.size());
      encoder.encode_runs(MatrixView<const uint8_t>(known.data() + run * n, count, n), {},
                          std::span(bits).subspan(run, count), bytes);
    }
    offsets.push_back(bytes.size());
  };
  const auto encoding = bench::measure(kRepeats, encode);
  fmt::print(" Huffman, codes <= {} bits, {} runs of {}: {:.4f} bits\n", max_length, step, n,
             double(bytes.size()) * 8 / double(used));
  print("encode", encoding, used);
  std::vector<uint8_t> back(used);
  std::vector<EscapedValue> escaped;
  const auto decode_with = [&](const auto& decode, const std::string& what, int repeats) {
    const auto times = bench::measure(repeats, [&] {
      for (size_t run = 0, block = 0; run < runs; run += step, ++block)
        decode(std::span(bytes).subspan(offsets[block], offsets[block + 1] - offsets[block]),
               std::span(bits).subspan(run, std::min(step, runs - run)), back.data() + run * n);
    });
    bench::check(back == known, what);
    print(what, times, used);
  };
  const auto rows_with = [&](const auto& decoder) {
    return [&, decoder](std::span<const uint8_t> payload, std::span<const uint32_t> run_bits, uint8_t* to) {
      decoder.decode_runs(payload, 0, run_bits, MatrixView<uint8_t>(to, run_bits.size(), n), escaped);
    };
  };
  const HuffmanDecoder decoder(book);
  decode_with(rows_with(decoder), "decode", kRepeats);
  if (n == 128) decode_with(rows_with(test::HuffmanTreeWalk(book)), "decode by tree walk", 3);
}

void run_rans(const std::vector<uint8_t>& symbols, size_t n, size_t step) {
  const auto counts = histogram(symbols, 255);
  const auto model = RansModel::from_counts(counts, {.escape_bits = 8, .scale = 12});
  const size_t segments = symbols.size() / n / step * step;
  Matrix<uint8_t> known(segments, n);
  std::vector<std::vector<uint32_t>> raw(segments / step);  // of each call
  for (size_t i = 0; i < known.size(); ++i) {
    known.data()[i] = symbols[i];
    if (model.frequency(symbols[i]) > 0) continue;
    raw[i / (n * step)].push_back(symbols[i]);
    known.data()[i] = static_cast<uint8_t>(model.escape());
  }
  const RansEncoder encoder(model);
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> sizes(segments);
  std::vector<size_t> offsets;
  const auto encoding = bench::measure(kRepeats, [&] {
    bytes.clear();
    offsets.clear();
    for (size_t first = 0; first < segments; first += step) {
      offsets.push_back(bytes.size());
      encoder.encode_segments(known.view().rows(first, step), raw[first / step],
                              std::span(sizes).subspan(first, step), bytes);
    }
    offsets.push_back(bytes.size());
  });
  fmt::print(" rANS, scale 12, {} segments of {}: {:.4f} bits\n", step, n,
             double(bytes.size()) * 8 / double(known.size()));
  if (step == 1) print("encode", encoding, known.size());
  const RansDecoder<uint8_t> decoder(model);
  for (const SimdLevel level : {SimdLevel::avx2, SimdLevel::scalar}) {
    limit_simd(level);
    if (simd_level() != level) continue;
    Matrix<uint8_t> back(segments, n);
    std::vector<EscapedValue> escaped;
    const auto times = bench::measure(kRepeats, [&] {
      escaped.clear();
      for (size_t first = 0; first < segments; first += step) {
        const size_t begin = offsets[first / step], end = offsets[first / step + 1];
        decoder.decode_segments(std::span(bytes).subspan(begin, end - begin),
                                std::span(sizes).subspan(first, step), back.view().rows(first, step),
                                escaped);
      }
    });
    bench::check(std::equal(known.data(), known.data() + known.size(), back.data()), "rANS symbols");
    print(fmt::format("decode, {}", name_of(level)), times, known.size());
  }
  limit_simd(kWidestSimd);
}

void run_all(const std::string& name, const std::vector<uint8_t>& symbols) {
  bench::check(symbols.size() >= kBlockSymbols * 16, name + ": at least 131072 symbols");
  const auto counts = histogram(symbols, 255);  // 255 is the escape
  fmt::print("{}: entropy {:.4f} bits\n", name, entropy_bits(counts) / double(symbols.size()));
  for (const size_t n : {64, 128, 16384}) run_huffman(symbols, n, 11);
  run_huffman(symbols, 16384, 12);
  for (const size_t step : {1, 8}) run_rans(symbols, kBlockSymbols, step);
}

void export_to(const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const double deviation : kDeviations) {
    const auto symbols = rounded_normal(deviation);
    const std::string file = fmt::format("{}/normal_{}.u8", folder, deviation);
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(symbols.data()), static_cast<std::streamsize>(symbols.size()));
    out.close();
    bench::check(bool(out), "writing " + file);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--export") == 0) {
    export_to(argv[2]);
    return 0;
  }
  set_num_threads(1);
  bench::print_header("entropy coding");
  for (int i = 1; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    run_all(argv[i], {std::istreambuf_iterator<char>(in), {}});
  }
  if (argc > 1) return 0;
  for (const double deviation : kDeviations)
    run_all(fmt::format("rounded normal values, deviation {}", deviation), rounded_normal(deviation));
}
