// kvcodec_bench_attention: attention of one decoding step over all tokens of a key/value head and over 7.5%
// of them, rows of floats at d = 128. The tokens are spread evenly at random, the worst case for memory.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/attention/attention.hpp"
#include "lib/core/rng.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kDims = 128;
constexpr double kShare = 0.075;  // the paper's

Matrix<float> make_rows(size_t tokens, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> rows(tokens, kDims);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(rng.normal());
  return rows;
}

std::string microseconds(const bench::Times& times) {
  return fmt::format("{:8.1f} us ({:.1f} .. {:.1f})", times.median() * 1e6, times.min() * 1e6,
                     times.max() * 1e6);
}

/// Softmax attention of the first query in double.
void check_answer(const CacheRows& rows, std::span<const uint32_t> tokens, std::span<const float> query,
                  std::span<const float> out) {
  std::vector<double> sums(kDims);
  double total = 0;
  for (const uint32_t token : tokens) {
    double logit = 0;
    for (size_t j = 0; j < kDims; ++j) logit += double{query[j]} * rows.keys(token, j);
    const double weight = std::exp(logit / std::sqrt(double(kDims)));
    total += weight;
    for (size_t j = 0; j < kDims; ++j) sums[j] += weight * rows.values(token, j);
  }
  for (size_t j = 0; j < kDims; ++j) bench::check(std::abs(sums[j] / total - out[j]) < 1e-5, "attention");
}

void measure_one(size_t tokens, size_t queries) {
  const Matrix<float> keys = make_rows(tokens, 1), values = make_rows(tokens, 2);
  const CacheRows rows(keys, values);
  Rng rng(3);
  Matrix<float> query(queries, kDims), out(queries, kDims);
  for (size_t i = 0; i < query.size(); ++i) query.data()[i] = static_cast<float>(rng.normal());
  std::vector<uint32_t> chosen(tokens);
  std::iota(chosen.begin(), chosen.end(), 0u);
  const std::vector<uint32_t> all = chosen;
  rng.shuffle(chosen);
  chosen.resize(static_cast<size_t>(kShare * double(tokens)));
  std::sort(chosen.begin(), chosen.end());
  const Attention dense{query, &rows, out}, sparse{query, &rows, out, chosen};
  attend(dense);
  check_answer(rows, all, query.row(0), out.row(0));
  attend(sparse);
  check_answer(rows, chosen, query.row(0), out.row(0));
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const int repeats = static_cast<int>(std::max<size_t>(21, (size_t{1} << 21) / tokens));
    const bench::Times full = bench::measure(repeats, [&] { attend(dense); });
    const bench::Times part = bench::measure(4 * repeats, [&] { attend(sparse); });
    fmt::print("{:7} tokens  {} quer{:3}  {} thread{}  all {} {:.1f} GB/s   7.5% {} = {:.1f}x\n", tokens,
               queries, queries == 1 ? "y" : "ies", threads, threads == 1 ? " " : "s", microseconds(full),
               double(tokens) * kDims * 8 / full.median() * 1e-9, microseconds(part),
               full.median() / part.median());
  }
}

}  // namespace

int main() {
  bench::print_header("attention");
  for (const size_t tokens : {size_t{16384}, size_t{131072}})
    for (const size_t queries : {1, 4}) measure_one(tokens, queries);
}
