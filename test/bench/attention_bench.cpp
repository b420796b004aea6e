// kvcodec_bench_attention: attention of one decoding step over all tokens of a key/value head and over 7.5%
// of them, rows of 16 bits at d = 128. The tokens are spread evenly at random, the worst case for memory.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/attention/attention.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/quant/two_bit.hpp"
#include "lib/selfindex/sign_codes.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kDims = 128;
constexpr double kShare = 0.075;  // the paper's

std::vector<uint16_t> make_rows(DType type, size_t tokens, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint16_t> rows(tokens * kDims);
  for (auto& value : rows) {
    const auto number = static_cast<float>(rng.normal());
    value = type == DType::f16 ? f16_from_float(number) : bf16_from_float(number);
  }
  return rows;
}

/// Keys as signs and 2-bit magnitudes, values in 2 bits (codec selfindex).
struct Coded {
  struct Levels {
    Matrix<uint8_t> levels;
    Matrix<uint16_t> scales, zeros;
    explicit Levels(const Matrix<float>& rows)
        : levels(rows.rows(), two_bit_row_bytes(kDims)),
          scales(rows.rows(), two_bit_groups(kDims)),
          zeros(rows.rows(), two_bit_groups(kDims)) {
      quantize_two_bit(rows, {levels, scales, zeros});
    }
    ConstTwoBitRows view() const { return {levels, scales, zeros}; }
  };

  Matrix<uint8_t> signs;
  std::vector<float> alpha = std::vector<float>(kDims), center = std::vector<float>(kDims, 0.5f);
  std::optional<Levels> keys, values;

  explicit Coded(const CacheRows& rows) : signs(rows.tokens(), kDims / 8) {
    Matrix<float> all_keys(rows.tokens(), kDims), all_values(rows.tokens(), kDims);
    std::vector<uint32_t> all(rows.tokens());
    std::iota(all.begin(), all.end(), 0u);
    rows.gather(all, all_keys, all_values);
    encode_signs(all_keys, 1, signs);
    for (size_t i = 0; i < all_keys.size(); ++i) {
      all_keys.data()[i] = std::abs(all_keys.data()[i]);
      alpha[i % kDims] = std::max(alpha[i % kDims], all_keys.data()[i]);
    }
    for (size_t i = 0; i < all_keys.size(); ++i) all_keys.data()[i] /= alpha[i % kDims];
    keys.emplace(all_keys);
    values.emplace(all_values);
  }
  TwoBitCache view() const { return {signs, keys->view(), values->view(), alpha, center}; }
};

std::string microseconds(const bench::Times& times) {
  return fmt::format("{:8.1f} us ({:.1f} .. {:.1f})", times.median() * 1e6, times.min() * 1e6,
                     times.max() * 1e6);
}

/// Softmax attention of the first query in double.
void check_answer(const RowSource& rows, std::span<const uint32_t> tokens, std::span<const float> query,
                  std::span<const float> out) {
  Matrix<float> keys(tokens.size(), kDims), values(tokens.size(), kDims);
  rows.gather(tokens, keys, values);
  std::vector<double> sums(kDims);
  double total = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    double logit = 0;
    for (size_t j = 0; j < kDims; ++j) logit += double{query[j]} * keys(i, j);
    const double weight = std::exp(logit / std::sqrt(double(kDims)));
    total += weight;
    for (size_t j = 0; j < kDims; ++j) sums[j] += weight * values(i, j);
  }
  for (size_t j = 0; j < kDims; ++j) bench::check(std::abs(sums[j] / total - out[j]) < 1e-5, "attention");
}

void measure_one(DType type, size_t tokens, size_t queries) {
  const auto key_bits = make_rows(type, tokens, 1), value_bits = make_rows(type, tokens, 2);
  const CacheRows rows(type, MatrixView<const uint16_t>(key_bits.data(), tokens, kDims),
                       MatrixView<const uint16_t>(value_bits.data(), tokens, kDims));
  Rng rng(3);
  Matrix<float> query(queries, kDims), out(queries, kDims);
  for (size_t i = 0; i < query.size(); ++i) query.data()[i] = static_cast<float>(rng.normal());
  std::vector<uint32_t> chosen(tokens);
  std::iota(chosen.begin(), chosen.end(), 0u);
  const std::vector<uint32_t> all = chosen;
  rng.shuffle(chosen);
  chosen.resize(static_cast<size_t>(kShare * double(tokens)));
  std::sort(chosen.begin(), chosen.end());
  const Attention dense{query, {{&rows}}, out}, sparse{query, {{&rows, chosen}}, out};
  attend(dense);
  check_answer(rows, all, query.row(0), out.row(0));
  attend(sparse);
  check_answer(rows, chosen, query.row(0), out.row(0));
  const Coded made(rows);
  const TwoBitRowSource coded_rows(made.view());
  const Attention coded{query, {{&coded_rows, chosen}}, out};
  attend(coded);
  check_answer(coded_rows, chosen, query.row(0), out.row(0));
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const int repeats = static_cast<int>(std::max<size_t>(21, (size_t{1} << 21) / tokens));
    const bench::Times full = bench::measure(repeats, [&] { attend(dense); });
    const bench::Times part = bench::measure(4 * repeats, [&] { attend(sparse); });
    const bench::Times packed = bench::measure(4 * repeats, [&] { attend(coded); });
    fmt::print(
        "{:4}  {:7} tokens  {} quer{:3}  {} thread{}  all {} {:.1f} GB/s   7.5% {} = {:.1f}x   in 2 bits {} "
        "= {:.1f}x\n",
        name_of(type), tokens, queries, queries == 1 ? "y" : "ies", threads, threads == 1 ? " " : "s",
        microseconds(full), double(tokens) * kDims * 4 / full.median() * 1e-9, microseconds(part),
        full.median() / part.median(), microseconds(packed), full.median() / packed.median());
  }
}

}  // namespace

int main() {
  bench::print_header("attention");
  for (const size_t tokens : {size_t{16384}, size_t{131072}})
    for (const DType type : {DType::f16, DType::bf16})
      for (const size_t queries : {1, 4}) measure_one(type, tokens, queries);
}
