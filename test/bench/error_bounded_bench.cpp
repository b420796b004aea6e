// kvcodec_bench_error_bounded: error-bounded quantization of keys and values cut into blocks of 64 tokens of
// one head, as the codec kvcomp cuts them, on random values.
//
//   kvcodec_bench_error_bounded
//
// One core. Counted in 10^9 values per second; beside them, what memory gives for the same traffic: reading 4
// bytes a value and writing 1 (encode), reading 1 and writing 4 (decode). "cache": one block again and again;
// "memory": 16 Mi values once. Also what the 16-bit type costs: the share of values without a symbol and the
// bits per value lost to them and to narrower steps.
#include <cmath>
#include <vector>

#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/quant/error_bounded.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kTokens = 64, kDim = 128;
constexpr size_t kValues = size_t{16} << 20, kBlocks = kValues / (kTokens * kDim);
constexpr int kRepeats = 15;

struct Setting {
  const char* name;
  UnitShape unit;
  double relative;  ///< step / (max - min)
  bool origins;
};
constexpr Setting kSettings[] = {{"key, channel", UnitShape::column, 0.25, true},
                                 {"key, block", UnitShape::block, 0.05, true},
                                 {"value, token", UnitShape::row, 0.15, false}};

/// Codes of `count` blocks.
struct Codes {
  Codes(size_t count, const Setting& setting)
      : units(unit_count(setting.unit, kTokens, kDim)),
        symbols(count * kTokens, kDim),
        steps(count * units),
        origins(setting.origins ? count * kDim : 0) {}

  MatrixView<uint8_t> block(size_t i) { return symbols.view().rows(i * kTokens, kTokens); }
  std::span<float> steps_of(size_t i) { return std::span(steps).subspan(i * units, units); }
  std::span<int16_t> origins_of(size_t i) {
    return origins.empty() ? std::span<int16_t>() : std::span(origins).subspan(i * kDim, kDim);
  }

  size_t units;
  Matrix<uint8_t> symbols;
  std::vector<float> steps;
  std::vector<int16_t> origins;
};

void encode(const Matrix<float>& x, const Setting& setting, DType storage, Codes& codes, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i)
    quantize_bounded(x.view().rows(i * kTokens, kTokens), setting.unit, {.range = setting.relative / 2},
                     storage, {codes.steps_of(i), codes.origins_of(i), codes.block(i)});
}

void decode(const Setting& setting, Codes& codes, Matrix<float>& back, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i)
    dequantize_bounded(codes.block(i), setting.unit, codes.steps_of(i), codes.origins_of(i),
                       back.view().rows(i * kTokens, kTokens));
}

Matrix<float> gaussian(size_t rows, DType storage) {
  Rng rng(1);
  // A table of values drawn once: Box-Muller for all would take longer than the measurements.
  std::vector<float> table(1 << 16);
  for (float& value : table) value = round_to(storage, static_cast<float>(rng.normal()));
  Matrix<float> x(rows, kDim);
  for (size_t i = 0; i < x.size(); ++i) x.data()[i] = table[rng.next() >> 48];
  return x;
}

void check_answer(const Matrix<float>& x, const Matrix<float>& back, const Codes& codes, double relative) {
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i)
    if (codes.symbols.data()[i] != kExactSymbol)
      largest = std::max(largest, std::abs(double{x.data()[i]} - double{back.data()[i]}));
  bench::check(largest > 0 && largest <= relative / 2 * 16, "largest error");  // no value is beyond 8 sigma
}

/// Share of values stored exactly, and bits per value lost by them (18 each).
void print_losses(const Matrix<float>& x, const Codes& codes) {
  size_t exact = 0;
  for (size_t i = 0; i < x.size(); ++i) exact += codes.symbols.data()[i] == kExactSymbol;
  const double share = static_cast<double>(exact) / static_cast<double>(x.size());
  fmt::print("    stored exactly {:.5f}%, lost to them {:.5f} bits/value\n", share * 100, share * 18);
}

void measure_setting(const Setting& setting, DType storage, const Matrix<float>& x, Matrix<float>& back) {
  Codes codes(kBlocks, setting);
  const auto rate = [](const bench::Times& times) { return bench::rate(times, double(kValues), 1e9); };
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512}) {
    limit_simd(kWidestSimd);
    if (simd_level() < level) continue;
    limit_simd(level);
    const int repeats = level == SimdLevel::scalar ? 1 : kRepeats;
    const auto encoding = bench::measure(repeats, [&] { encode(x, setting, storage, codes, kBlocks); });
    const auto decoding = bench::measure(repeats, [&] { decode(setting, codes, back, kBlocks); });
    check_answer(x, back, codes, setting.relative);
    const auto cached_encoding = bench::measure(repeats, [&] {
      for (size_t i = 0; i < kBlocks; ++i) encode(x, setting, storage, codes, 1);
    });
    const auto cached_decoding = bench::measure(repeats, [&] {
      for (size_t i = 0; i < kBlocks; ++i) decode(setting, codes, back, 1);
    });
    fmt::print("{:4} {:12} {:.2f} {:6}  encode: memory {}, cache {}  decode: memory {}, cache {}\n",
               name_of(storage), setting.name, setting.relative, name_of(level), rate(encoding),
               rate(cached_encoding), rate(decoding), rate(cached_decoding));
  }
  print_losses(x, codes);
}

/// Copies that move as many bytes in each direction as encoding and decoding do.
void measure_memory(const Matrix<float>& x, Matrix<float>& back) {
  const auto rate = [](const bench::Times& times) { return bench::rate(times, double(kValues), 1e9); };
  std::vector<uint8_t> bytes(kValues);
  // One byte per value, in a form that compilers vectorise.
  const auto reading = bench::measure(kRepeats, [&] {
    const auto* words = reinterpret_cast<const uint32_t*>(x.data());
    for (size_t i = 0; i < kValues; ++i) bytes[i] = static_cast<uint8_t>(words[i] >> 24);
  });
  const auto writing = bench::measure(kRepeats, [&] {
    for (size_t i = 0; i < kValues; ++i) back.data()[i] = static_cast<float>(bytes[i]);
  });
  fmt::print("memory: 4 bytes in, 1 out {}; 1 in, 4 out {}\n", rate(reading), rate(writing));
}

}  // namespace

int main() {
  set_num_threads(1);
  bench::print_header("error-bounded quantization, 10^9 values per second");
  Matrix<float> back(kBlocks * kTokens, kDim);
  for (const DType storage : {DType::bf16, DType::f16}) {
    const Matrix<float> x = gaussian(kBlocks * kTokens, storage);
    if (storage == DType::bf16) measure_memory(x, back);
    for (const Setting& setting : kSettings) measure_setting(setting, storage, x, back);
  }
}
