#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/metrics/rate.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "test/test.hpp"

namespace metrics_test {

using namespace kvcodec;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr int kLayers = 3, kHeads = 2, kDim = 5;

/// Rows of every layer, and the same with noise.
struct Pair {
  std::vector<Matrix<float>> original, noisy;
};

Pair make_pair(size_t tokens, uint64_t seed) {
  Rng rng(seed);
  Pair pair;
  for (int layer = 0; layer < kLayers; ++layer) {
    Matrix<float> x(tokens, kHeads * kDim), y = x;
    for (size_t i = 0; i < x.size(); ++i) {
      x.data()[i] = static_cast<float>(rng.normal() * (layer + 1));
      y.data()[i] = x.data()[i] + static_cast<float>(0.1 * rng.normal());
    }
    pair.original.push_back(x);
    pair.noisy.push_back(y);
  }
  return pair;
}

ReconstructionMeter measure(const Pair& pair, size_t chunk) {
  ReconstructionMeter meter(kLayers, kHeads, kDim);
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    for (size_t first = 0; first < pair.original[l].rows(); first += chunk) {
      const size_t count = std::min(chunk, pair.original[l].rows() - first);
      meter.add(layer, pair.original[l].view().rows(first, count), pair.noisy[l].view().rows(first, count));
    }
  }
  return meter;
}

void check_same(const ErrorSums& a, const ErrorSums& b) {
  CHECK_EQ(a.values, b.values);
  CHECK_EQ(a.error_energy, b.error_energy);
  CHECK_EQ(a.signal_energy, b.signal_energy);
  CHECK_EQ(a.max_error, b.max_error);
}

}  // namespace

TEST_CASE("non-finite values are found at their position, whatever their sign and place") {
  for (const size_t size : {1, 2, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    std::vector<float> values(size, std::numeric_limits<float>::max());
    CHECK_FALSE(find_non_finite(values));
    for (const float bad : {kInf, -kInf, kNan, -kNan})
      for (const size_t place : {size_t{0}, size / 2, size - 1}) {
        auto with_bad = values;
        with_bad[place] = bad;
        with_bad.back() = place == size - 1 ? bad : kNan;  // the first one counts
        CHECK(find_non_finite(with_bad) == place);
      }
  }
  CHECK_FALSE(find_non_finite({}));
}

TEST_CASE("reconstruction: sums over any choice agree with plain loops") {
  const Pair pair = make_pair(257, 21);
  const ReconstructionMeter meter = measure(pair, 100);
  for (int layer = -1; layer < kLayers; ++layer)
    for (int head = -1; head < kHeads; ++head)
      for (int dimension = -1; dimension < kDim; ++dimension) {
        ErrorSums expected;
        for (int l = 0; l < kLayers; ++l)
          for (size_t t = 0; t < 257; ++t)
            for (int c = 0; c < kHeads * kDim; ++c) {
              if ((layer >= 0 && l != layer) || (head >= 0 && c / kDim != head) ||
                  (dimension >= 0 && c % kDim != dimension))
                continue;
              const double x = pair.original[size_t(l)](t, size_t(c)),
                           e = x - pair.noisy[size_t(l)](t, size_t(c));
              ++expected.values;
              expected.error_energy += e * e;
              expected.signal_energy += x * x;
              expected.max_error = std::max(expected.max_error, std::abs(e));
            }
        const auto choice = [](int index) { return index < 0 ? std::nullopt : std::optional(index); };
        const ErrorSums sums = meter.errors(choice(layer), choice(head), choice(dimension));
        CHECK_EQ(sums.values, expected.values);
        CHECK_EQ(sums.error_energy, doctest::Approx(expected.error_energy).epsilon(1e-12));
        CHECK_EQ(sums.signal_energy, doctest::Approx(expected.signal_energy).epsilon(1e-12));
        CHECK_EQ(sums.max_error, expected.max_error);
        CHECK_EQ(sums.mse(), doctest::Approx(expected.error_energy / double(expected.values)));
        CHECK_EQ(sums.nmse(), doctest::Approx(expected.error_energy / expected.signal_energy));
        CHECK_EQ(sums.snr_db(),
                 doctest::Approx(10 * std::log10(expected.signal_energy / expected.error_energy)));
      }
  CHECK_EQ(meter.tokens(1), 257);
}

TEST_CASE("reconstruction: cosines, their mean and their first percentile agree with sorting") {
  const Pair pair = make_pair(333, 22);
  const ReconstructionMeter meter = measure(pair, 50);
  for (int layer = -1; layer < kLayers; ++layer)
    for (int head = -1; head < kHeads; ++head) {
      std::vector<double> cosines;
      for (int l = 0; l < kLayers; ++l)
        for (int h = 0; h < kHeads; ++h) {
          if ((layer >= 0 && l != layer) || (head >= 0 && h != head)) continue;
          for (size_t t = 0; t < 333; ++t) {
            double xy = 0, xx = 0, yy = 0;
            for (int j = 0; j < kDim; ++j) {
              const double x = pair.original[size_t(l)](t, size_t(h * kDim + j)),
                           y = pair.noisy[size_t(l)](t, size_t(h * kDim + j));
              xy += x * y, xx += x * x, yy += y * y;
            }
            cosines.push_back(xy / std::sqrt(xx * yy));
          }
        }
      std::sort(cosines.begin(), cosines.end());
      double sum = 0;
      for (const double cosine : cosines) sum += cosine;
      const double place = 0.01 * double(cosines.size() - 1);
      const auto lower = size_t(place);
      const double percentile =
          cosines[lower] + (place - double(lower)) * (cosines[lower + 1] - cosines[lower]);
      const CosineSummary summary = meter.cosine(layer < 0 ? std::nullopt : std::optional(layer),
                                                 head < 0 ? std::nullopt : std::optional(head));
      CHECK_EQ(summary.vectors, cosines.size());
      CHECK_EQ(summary.mean, doctest::Approx(sum / double(cosines.size())).epsilon(1e-7));  // kept as floats
      CHECK_EQ(summary.first_percentile, doctest::Approx(percentile).epsilon(1e-6));
    }
}

TEST_CASE("reconstruction: neither threads nor chunks change a bit of the result") {
  const Pair pair = make_pair(301, 23);
  set_num_threads(1);
  const ReconstructionMeter one = measure(pair, 301);
  for (const int threads : {1, 2, 5})
    for (const size_t chunk : {1, 64, 301}) {
      set_num_threads(threads);
      const ReconstructionMeter other = measure(pair, chunk);
      check_same(other.errors(), one.errors());
      check_same(other.errors(1, 1, 3), one.errors(1, 1, 3));
      CHECK_EQ(other.cosine().mean, one.cosine().mean);
      CHECK_EQ(other.cosine().first_percentile, one.cosine().first_percentile);
    }
  set_num_threads(0);
}

TEST_CASE("reconstruction: zeros, nothing and perfection have answers") {
  ReconstructionMeter meter(1, 1, 2);
  CHECK_EQ(meter.errors().mse(), 0);
  CHECK_EQ(meter.errors().nmse(), 0);
  CHECK_EQ(meter.cosine().mean, 1);

  Matrix<float> zero(1, 2), other(1, 2);
  other(0, 0) = 3;
  meter.add(0, zero, zero);
  CHECK_EQ(meter.errors().snr_db(), double(kInf));
  CHECK_EQ(meter.cosine().mean, 1);  // nothing was lost
  CHECK_EQ(meter.cosine().first_percentile, 1);
  meter.add(0, zero, other);
  CHECK_EQ(meter.errors().nmse(), double(kInf));
  CHECK_EQ(meter.errors().snr_db(), -double(kInf));
  CHECK_EQ(meter.errors().max_error, 3);
  CHECK_EQ(meter.cosine().mean, 0.5);
  CHECK_EQ(cosine_similarity(other.row(0), zero.row(0)), 0);
  CHECK_EQ(cosine_similarity(other.row(0), other.row(0)), 1);

  const std::vector<float> loud{3e38f, -3e38f}, faint{1e-45f, 0}, faint_negative{-1e-45f, 0};
  CHECK_EQ(cosine_similarity(loud, loud), doctest::Approx(1));
  CHECK_EQ(cosine_similarity(faint, faint_negative), -1);
}

TEST_CASE("reconstruction: values that are not finite are named and not counted") {
  ReconstructionMeter meter(2, 2, 3);
  Matrix<float> good(4, 6), bad(4, 6);
  meter.add(1, good, good);
  bad(2, 4) = kNan;
  CHECK_THROWS_WITH_AS(meter.add(1, good, bad),
                       doctest::Contains("reconstructed: token 6, head 1, dimension 1"), Error);
  bad(2, 4) = -kInf;
  CHECK_THROWS_WITH_AS(meter.add(1, bad, good), doctest::Contains("original: token 6, head 1, dimension 1"),
                       Error);
  CHECK_EQ(meter.errors().values, 24);
  CHECK_EQ(meter.cosine().vectors, 8);
  CHECK_THROWS_AS(meter.add(2, good, good), Error);
  CHECK_THROWS_AS(meter.add(-1, good, good), Error);
  CHECK_THROWS_AS(meter.add(0, good, good.view().rows(0, 3)), Error);
  CHECK_THROWS_AS(meter.add(0, good.view().columns(0, 5), good.view().columns(0, 5)), Error);
  CHECK_THROWS_AS(meter.errors(2), Error);
  CHECK_THROWS_AS(meter.cosine(0, 2), Error);
  CHECK_THROWS_AS(ReconstructionMeter(1, 0, 3), Error);
}

TEST_CASE("rate: ids against values, as the VQKV paper counts") {
  // Its setting for Llama-3.1-8B: 8 codebooks for 128 dimensions of values, 36 for those of keys: 82.8 %.
  CHECK(saved_by_ids(256 * 10, 44 * 10) == doctest::Approx(0.828).epsilon(0.001));
  CHECK_EQ(saved_by_ids(4, 1), 0.75);
  CHECK_EQ(saved_by_ids(4, 0), 1);
  CHECK_EQ(saved_by_ids(0, 0), 0);
}

TEST_CASE("rate: bits of what is no whole bytes") {
  CHECK_EQ(bits_over_values(4, 13), 3.25);
  CHECK_EQ(bits_over_values(4, 8 * 7), bits_per_value(4, 7));
  CHECK_EQ(bits_over_values(0, 0), 0);
  CHECK_EQ(bits_over_values(0, 1), 0);
}

TEST_CASE("rate: the table of SparseCache's ratios follows from 29 bits per coefficient") {
  struct Row {
    uint64_t heads, layers, sparsity;
    double ratio;
  };
  // Llama-3.1-8B has 8 heads, Qwen2.5-7B 4, of 128 dimensions; 13-bit ids and 16-bit coefficients.
  for (const Row& row : {Row{8, 1, 128, 4.4}, Row{8, 2, 256, 4.4}, Row{8, 1, 64, 8.8}, Row{8, 2, 128, 8.8},
                         Row{8, 4, 256, 8.8}, Row{8, 2, 64, 17.7}, Row{8, 4, 128, 17.7}, Row{8, 4, 64, 35.3},
                         Row{4, 1, 64, 4.4}, Row{4, 4, 32, 35.3}}) {
    const uint64_t signals = 1000;
    const RateLedger ledger{
        .tokens = signals,
        .values = signals * row.layers * row.heads * 128,
        .lines = {{"payload", signals * row.sparsity * 2}, {"ids", signals * row.sparsity * 13 / 8}}};
    const Rate rate = rate_of(ledger);
    CHECK_EQ(std::round(rate.ratio * 10) / 10, row.ratio);
    CHECK_EQ(rate.bits_per_value, doctest::Approx(16 / rate.ratio));
    CHECK_EQ(rate.line_bits[0] / rate.line_bits[1], doctest::Approx(16.0 / 13));
    CHECK(rate.break_even_tokens == 0);
  }
}

TEST_CASE("rate: books count, and pay off at the documented number of tokens") {
  // 100 values a token: 200 bytes raw, 50 stored, 150 saved.
  RateLedger ledger{
      .tokens = 10, .values = 1000, .lines = {{"payload", 400}, {"scales", 100}}, .book_bytes = 1500};
  Rate rate = rate_of(ledger);
  CHECK_EQ(rate.bits_per_value, 4);
  CHECK_EQ(rate.ratio, 4);
  CHECK_EQ(rate.bits_per_value_with_book, 16);
  CHECK_EQ(rate.ratio_with_book, 1);
  CHECK(rate.break_even_tokens == 10);
  CHECK(rate.line_bits == std::vector<double>{3.2, 0.8});
  ledger.book_bytes = 1501;
  CHECK(rate_of(ledger).break_even_tokens == 11);
  ledger.lines.push_back({"file overhead", 1500});
  CHECK(rate_of(ledger).break_even_tokens == std::nullopt);
  CHECK_EQ(rate_of(ledger).ratio, 1);
}

TEST_CASE("rate: no values, no bytes and sums beyond 64 bits") {
  const Rate nothing = rate_of({});
  CHECK_EQ(nothing.ratio, 1);
  CHECK_EQ(nothing.bits_per_value, 0);
  CHECK(nothing.break_even_tokens == 0);
  CHECK(rate_of({.tokens = 0, .values = 0, .lines = {}, .book_bytes = 5}).break_even_tokens == std::nullopt);
  CHECK_EQ(compression_ratio(8, 0), double(kInf));
  CHECK_EQ(bits_per_value(0, 8), double(kInf));
  CHECK_THROWS_AS(rate_of({.tokens = 1, .values = 1, .lines = {{"a", ~0ull}, {"b", 1}}}), Error);
  CHECK(rate_of({.tokens = ~0ull, .values = 2, .lines = {{"a", 3}}, .book_bytes = 1ull << 62})
            .break_even_tokens == std::nullopt);
}

TEST_CASE("rate: a side's bits are those of the values that do not wait at 16 bits") {
  SideLedger side;
  CHECK_EQ(side.bits_per_coded_value(), 0);
  CHECK_FALSE(side.entropy().has_value());
  side.values = 1100, side.exempt_values = 100;
  side.lines = {{"payload", 250}, {"scales", 50}};
  CHECK_EQ(side.bytes(), 300);
  CHECK_EQ(side.bits_per_coded_value(), 2.4);
  side.symbols = 500, side.symbol_bits = 750;
  CHECK_EQ(side.entropy().value(), 1.5);
  side.lines.push_back({"offsets", ~0ull});
  CHECK_THROWS_AS(side.bytes(), Error);
}

}  // namespace metrics_test
