#include "lib/entropy/rans.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/histogram.hpp"
#include "test/lib/codec/coded_rows.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace rans_test {

using namespace kvcodec;

namespace {

template <class Symbol>
using Segments = test::EscapedRows<Symbol, RansModel>;

template <class Symbol>
Segments<Symbol> make_segments(size_t segments, size_t n, size_t alphabet, double decay, RansOptions options,
                               Rng& rng) {
  return test::make_rows<Symbol, RansModel>(segments, n, alphabet, decay, options, rng);
}

struct Coded {
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> sizes;
};

template <class Symbol>
Coded encode(const Segments<Symbol>& segments) {
  Coded coded;
  coded.sizes.resize(segments.symbols.rows());
  RansEncoder(segments.book).encode_segments(segments.symbols, segments.raw, coded.sizes, coded.bytes);
  return coded;
}

/// A segment coded by the definition: plain divisions, one symbol after the other.
template <class Symbol>
Coded encode_plainly(const Segments<Symbol>& segments) {
  const RansModel& model = segments.book;
  const uint64_t whole = uint64_t{1} << model.scale();
  Coded coded;
  size_t raw = 0;
  for (size_t row = 0; row < segments.symbols.rows(); ++row) {
    std::vector<uint64_t> states(8, 65536);
    std::vector<uint16_t> words;
    const auto symbols = segments.symbols.row(row);
    for (size_t i = symbols.size(); i-- > 0;) {
      uint64_t& x = states[i % 8];
      const uint64_t frequency = model.frequency(symbols[i]);
      // The decoder must find x at or above 2^16 after this symbol, and below it before it reads a word.
      const auto coded_state = [&](uint64_t state) {
        return state / frequency * whole + model.start(symbols[i]) + state % frequency;
      };
      if (coded_state(x) >> 32 != 0) {
        words.push_back(static_cast<uint16_t>(x));
        x >>= 16;
      }
      x = coded_state(x);
    }
    BitWriter tail;
    for (const Symbol symbol : symbols)
      if (model.has_escape() && symbol == model.escape()) tail.put(segments.raw[raw++], model.escape_bits());
    const size_t start = coded.bytes.size();
    for (const uint64_t x : states)
      for (int byte = 0; byte < 4; ++byte) coded.bytes.push_back(static_cast<uint8_t>(x >> (8 * byte)));
    std::reverse(words.begin(), words.end());
    for (const uint16_t word : words) {
      coded.bytes.push_back(static_cast<uint8_t>(word));
      coded.bytes.push_back(static_cast<uint8_t>(word >> 8));
    }
    for (const uint8_t byte : tail.finish()) coded.bytes.push_back(byte);
    coded.sizes.push_back(static_cast<uint32_t>(coded.bytes.size() - start));
  }
  return coded;
}

template <class Symbol>
using Decoded = test::DecodedRows<Symbol>;

/// Rows and escaped values; std::nullopt if the bytes are refused.
template <class Symbol>
std::optional<Decoded<Symbol>> decode(const RansDecoder<Symbol>& decoder, std::span<const uint8_t> bytes,
                                      std::span<const uint32_t> sizes, size_t n) {
  return test::decode_rows<Symbol>(bytes, sizes.size(), n, [&](auto exact, auto out, auto& escaped) {
    decoder.decode_segments(exact, sizes, out, escaped);
  });
}

template <class Symbol>
void check_round_trip(const Segments<Symbol>& segments) {
  const size_t count = segments.symbols.rows(), n = segments.symbols.cols();
  const Coded plain = encode_plainly(segments);
  const Coded coded = encode(segments);
  CHECK(coded.bytes == plain.bytes);
  CHECK(coded.sizes == plain.sizes);
  const Decoded<Symbol> expected{{segments.symbols.data(), segments.symbols.data() + segments.symbols.size()},
                                 segments.escaped};
  const RansDecoder<Symbol> decoder(segments.book);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(std::string(name_of(level)));
    CHECK(decode(decoder, coded.bytes, coded.sizes, n) == expected);
    size_t start = 0;
    for (size_t row = 0; row < count; ++row) {  // every segment alone
      const auto alone = decode(decoder, std::span(coded.bytes).subspan(start, coded.sizes[row]),
                                std::span(coded.sizes).subspan(row, 1), n);
      REQUIRE(alone);
      CHECK(std::equal(alone->symbols.begin(), alone->symbols.end(), segments.symbols.row(row).begin()));
      start += coded.sizes[row];
    }
  }
}

double bits_with(const std::vector<uint64_t>& counts, const std::vector<uint32_t>& frequencies,
                 unsigned scale) {
  double bits = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) bits += double(counts[i]) * (scale - std::log2(frequencies[i]));
  return bits;
}

std::optional<RansModel> read_model(const std::vector<uint8_t>& bytes) {
  try {
    BitReader reader(bytes);
    return RansModel::read(reader);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return std::nullopt;
  }
}

std::vector<uint8_t> written(const RansModel& model) {
  BitWriter writer;
  model.write(writer);
  return writer.finish();
}

}  // namespace

TEST_CASE("rans: frequencies are the best of all that sum up to the scale") {
  Rng rng(1);
  for (int round = 0; round < 60; ++round) {
    std::vector<uint64_t> counts(3);
    for (uint64_t& count : counts)
      count = 1 + (rng.below(2) ? rng.below(20) : static_cast<uint64_t>(std::exp2(rng.uniform(0, 30))));
    const auto model = RansModel::from_counts(counts, {.scale = 8});
    double best = INFINITY;
    for (uint32_t a = 1; a < 255; ++a)
      for (uint32_t b = 1; a + b < 256; ++b) best = std::min(best, bits_with(counts, {a, b, 256 - a - b}, 8));
    CAPTURE(fmt::format("{}", fmt::join(counts, " ")));
    CHECK(model.coded_bits(counts) <= best * (1 + 1e-12));
  }
}

TEST_CASE("rans: every used symbol has a frequency, they fill the scale, starts are their sums") {
  Rng rng(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<uint64_t> counts(1 + rng.below(3000));
    const double density = rng.uniform();
    for (uint64_t& count : counts)
      count = rng.uniform() < density ? static_cast<uint64_t>(std::exp2(rng.uniform(0, 40))) : 0;
    const unsigned scale = 12 + static_cast<unsigned>(rng.below(5));
    const bool escape = rng.below(2);
    const auto model = RansModel::from_counts(counts, {.escape_bits = escape ? 16u : 0u, .scale = scale});
    uint32_t sum = 0;
    for (size_t i = 0; i < model.symbols(); ++i) {
      CHECK_EQ(model.start(i), sum);
      CHECK_LT(model.frequency(i), 65536u);
      sum += model.frequency(i);
      if (i < counts.size() && counts[i] == 0) CHECK_EQ(model.frequency(i), 0);
      if (i < counts.size() && counts[i] > 0 && !escape) CHECK_GT(model.frequency(i), 0u);
    }
    const bool any = std::ranges::any_of(counts, [](uint64_t count) { return count > 0; });
    CHECK_EQ(sum, any || escape ? 1u << model.scale() : 0);
    if (escape) CHECK_GT(model.frequency(model.escape()), 0u);
  }
}

TEST_CASE("rans: what cannot be modelled is refused") {
  const std::vector<uint64_t> counts(300, 1);
  CHECK_THROWS_AS(RansModel::from_counts(counts, {.scale = 8}), Error);
  CHECK_NOTHROW(RansModel::from_counts(counts, {.scale = 9}));
  CHECK_NOTHROW(RansModel::from_counts(counts, {.escape_bits = 9, .scale = 8}));
  CHECK_THROWS_AS(RansModel::from_counts(counts, {.max_symbols = 299}), Error);
  CHECK_THROWS_AS(RansModel::from_counts(counts, {.escape_bits = 9, .max_symbols = 0}), Error);
  CHECK_THROWS_AS(RansModel::from_counts(counts, {.scale = 7}), Error);
  CHECK_THROWS_AS(RansModel::from_counts(counts, {.scale = 17}), Error);
  CHECK_THROWS_AS(RansModel::from_counts(counts, {.escape_bits = 33}), Error);
  CHECK_THROWS_AS(RansModel::from_counts(std::vector<uint64_t>(65537, 0), {}), Error);
  CHECK_THROWS_AS(RansModel::from_counts(std::vector<uint64_t>(2, uint64_t{1} << 53), {}), Error);
  CHECK_THROWS_AS(RansDecoder<uint8_t>(RansModel::from_counts(std::vector<uint64_t>(257, 1), {})), Error);
  CHECK_EQ(RansModel::from_counts(std::vector<uint64_t>(5000, 1), {}).scale(), 16u);
  CHECK_EQ(RansModel::from_counts(std::vector<uint64_t>(200, 1), {}).scale(), 12u);
  CHECK_EQ(RansModel::from_counts(std::vector<uint64_t>{1000000, 3}, {}).scale(), 16u);
}

TEST_CASE(
    "rans: a model is written in few bytes and read back, and damaged ones are refused or read as others") {
  Rng rng(3);
  int read = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> counts(rng.below(round < 400 ? 300 : 65537));
    const double density = rng.uniform();
    for (uint64_t& count : counts) count = rng.uniform() < density ? rng.below(1000) : 0;
    const auto model = RansModel::from_counts(counts, {.escape_bits = unsigned(1 + rng.below(32))});
    auto bytes = written(model);
    CHECK(read_model(bytes) == model);
    bytes[rng.below(bytes.size())] = static_cast<uint8_t>(rng.next());
    if (rng.below(4) == 0) bytes.resize(rng.below(bytes.size()));
    const auto other = read_model(bytes);
    if (!other || other->symbols() > 65536) continue;
    ++read;
    RansDecoder<uint16_t> decoder(*other);
  }
  CHECK_GT(read, 0);
  const auto of_tokens = [](unsigned alphabet, unsigned escape_bits, unsigned scale,
                            std::vector<std::pair<unsigned, unsigned>> fields) {
    BitWriter writer;
    writer.put(alphabet, 17);
    writer.put(escape_bits, 6);
    writer.put(scale, 5);
    for (const auto& [value, width] : fields) writer.put(value, width);
    return read_model(writer.finish());
  };
  CHECK(of_tokens(2, 0, 8, {{8, 5}, {0, 7}, {8, 5}, {0, 7}}));           // 128 128
  CHECK(of_tokens(1, 0, 8, {{9, 5}, {0, 8}}));                           // 256
  CHECK(of_tokens(4, 0, 8, {{17, 5}, {0, 4}, {9, 5}, {0, 8}, {0, 5}}));  // 0 0 256 0
  CHECK(of_tokens(0, 0, 8, {}));
  CHECK_FALSE(of_tokens(2, 0, 8, {{8, 5}, {0, 7}, {7, 5}, {0, 6}}));          // 128 64
  CHECK_FALSE(of_tokens(2, 0, 8, {{8, 5}, {0, 7}, {8, 5}, {1, 7}}));          // 128 129
  CHECK_FALSE(of_tokens(2, 9, 8, {{8, 5}, {0, 7}, {8, 5}, {0, 7}, {0, 5}}));  // no frequency for the escape
  CHECK_FALSE(of_tokens(1, 0, 7, {{8, 5}, {0, 7}}));                          // scale
  CHECK_FALSE(of_tokens(1, 0, 17, {{16, 5}, {0, 15}}));
  CHECK_FALSE(of_tokens(1, 0, 8, {{19, 5}}));          // no such token
  CHECK_FALSE(of_tokens(1, 0, 8, {{17, 5}, {0, 4}}));  // beyond the alphabet
  CHECK_FALSE(of_tokens(65537, 0, 8, {{18, 5}, {0, 12}}));
  CHECK_FALSE(of_tokens(3, 0, 8, {{8, 5}, {0, 7}}));  // ends early
}

TEST_CASE(
    "rans: segments of any length and number come back on every level, with the bytes of plain divisions") {
  uint64_t seed = 10;
  for (const size_t n : {0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 128, 1000})
    for (const size_t segments : {0, 1, 2, 7, 8, 9, 17}) {
      CAPTURE(n);
      CAPTURE(segments);
      CAPTURE(seed);
      Rng rng(seed++);
      // Narrow and wide tables, symbols of one byte and of two, escapes often and never.
      check_round_trip(
          make_segments<uint8_t>(segments, n, 1 + rng.below(200), rng.uniform(0.02, 3), {}, rng));
      check_round_trip(make_segments<uint8_t>(segments, n, 2 + rng.below(250), rng.uniform(0.02, 0.3),
                                              {.escape_bits = 16, .scale = 12, .max_symbols = 20}, rng));
      check_round_trip(make_segments<uint8_t>(segments, n, 90, 0.1, {.escape_bits = 32, .scale = 15}, rng));
      check_round_trip(make_segments<uint8_t>(segments, n, 2, rng.uniform(1, 9), {.scale = 8}, rng));
      check_round_trip(make_segments<uint16_t>(segments, n, 1 + rng.below(5000), rng.uniform(0.001, 1),
                                               {.escape_bits = 13}, rng));
      check_round_trip(make_segments<uint16_t>(segments, n, 65535, 0.00005, {.escape_bits = 16}, rng));
      check_round_trip(make_segments<uint16_t>(segments, n, 9000, 0, {.scale = 16}, rng));
    }
}

TEST_CASE("rans: alphabets of one symbol, of none, and of the escape alone") {
  Rng rng(4);
  for (const unsigned scale : {0u, 8u, 12u, 16u})
    for (const size_t n : {1, 9, 300}) {
      Segments<uint8_t> one{RansModel::from_counts(std::vector<uint64_t>{0, 0, 5}, {.scale = scale}),
                            Matrix<uint8_t>(3, n),
                            {},
                            {}};
      std::fill_n(one.symbols.data(), one.symbols.size(), uint8_t{2});
      check_round_trip(one);
      CHECK(encode(one).sizes == std::vector<uint32_t>(3, 32));  // states only

      Segments<uint16_t> escapes{
          RansModel::from_counts(std::vector<uint64_t>(4, 0), {.escape_bits = 7, .scale = scale}),
          Matrix<uint16_t>(2, n),
          {},
          {}};
      std::fill_n(escapes.symbols.data(), escapes.symbols.size(), uint16_t{4});
      for (uint32_t i = 0; i < 2 * n; ++i) {
        escapes.raw.push_back(static_cast<uint32_t>(rng.below(128)));
        escapes.escaped.push_back({uint32_t(i / n), uint32_t(i % n), escapes.raw.back()});
      }
      check_round_trip(escapes);
    }
  const auto none = RansModel::from_counts(std::vector<uint64_t>(4, 0), {});
  check_round_trip(Segments<uint8_t>{none, Matrix<uint8_t>(3, 0), {}, {}});
  const auto empty = encode(Segments<uint8_t>{none, Matrix<uint8_t>(1, 0), {}, {}});
  CHECK_FALSE(decode(RansDecoder<uint8_t>(none), empty.bytes, empty.sizes, 1));
}

TEST_CASE("rans: within 0.5% of the entropy, from hardly any bits to thirteen") {
  struct Source {
    size_t alphabet;
    double decay;  // of the probabilities, symbol by symbol; 0: even
  };
  uint64_t seed = 20;
  for (const Source source :
       {Source{2, 9}, Source{2, 5}, Source{3, 3}, Source{20, 1.5}, Source{40, 0.9}, Source{200, 0.4},
        Source{256, 0.1}, Source{256, 0}, Source{4000, 0.01}, Source{8192, 0.001}, Source{8192, 0}}) {
    Rng rng(seed++);
    const size_t n = 1 << 20;
    const auto symbols = test::random_symbols<uint16_t>(n, source.alphabet, source.decay, rng);
    std::vector<uint64_t> counts(source.alphabet);
    for (const uint16_t symbol : symbols) ++counts[symbol];
    const auto model = RansModel::from_counts(counts, {});
    std::vector<uint8_t> bytes;
    std::vector<uint32_t> sizes(1);
    RansEncoder(model).encode_segments(MatrixView<const uint16_t>(symbols.data(), 1, n), {}, sizes, bytes);
    const double entropy = entropy_bits(counts);
    CAPTURE(source.alphabet);
    CAPTURE(entropy / n);
    CHECK(double(bytes.size()) * 8 <= entropy * 1.005 + 32 * 8);  // a segment's own cost
    CHECK(model.coded_bits(counts) <= entropy * 1.003);
    Matrix<uint16_t> back(1, n);
    std::vector<EscapedValue> escaped;
    RansDecoder<uint16_t>(model).decode_segments(bytes, sizes, back, escaped);
    CHECK(std::equal(symbols.begin(), symbols.end(), back.data()));
  }
}

TEST_CASE("rans: rare symbols are escaped where that costs less than a frequency for each") {
  Rng rng(5);
  std::vector<uint64_t> counts(250, 1);  // 230 symbols that occur once in a million
  for (size_t i = 0; i < 20; ++i) counts[i] = 50000;
  const auto with = RansModel::from_counts(counts, {.escape_bits = 8, .scale = 12});
  const auto without = RansModel::from_counts(counts, {.scale = 12});
  CHECK_EQ(with.frequency(100), 0);
  CHECK_LT(with.coded_bits(counts), 0.985 * without.coded_bits(counts));
  CHECK(with.coded_bits(counts) <= 1.001 * entropy_bits(counts));
}

TEST_CASE("rans: the encoder refuses what its model cannot say") {
  const auto model = RansModel::from_counts(std::vector<uint64_t>{400, 0, 300, 200}, {.escape_bits = 4});
  const RansEncoder encoder(model);
  const auto fails = [&](std::vector<uint16_t> symbols, std::vector<uint32_t> raw, size_t rows) {
    Matrix<uint16_t> matrix(1, symbols.size());
    std::ranges::copy(symbols, matrix.data());
    std::vector<uint8_t> out;
    std::vector<uint32_t> sizes(rows);
    try {
      encoder.encode_segments(matrix, raw, sizes, out);
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::failed;
    }
  };
  CHECK_FALSE(fails({0, 2, 3, 4, 4}, {15, 0}, 1));
  CHECK(fails({0, 1, 3}, {}, 1));  // no frequency
  CHECK(fails({0, 5}, {}, 1));     // no symbol
  CHECK(fails({0, 60000}, {}, 1));
  CHECK(fails({0, 4}, {}, 1));      // no raw value
  CHECK(fails({0, 4}, {1, 2}, 1));  // one too many
  CHECK(fails({0, 4}, {16}, 1));    // too wide
  CHECK(fails({0, 2}, {}, 2));      // another number of segments
  std::vector<uint8_t> out;
  std::vector<uint32_t> sizes(1);
  CHECK_THROWS_AS(
      encoder.encode_segments(MatrixView<const uint16_t>(nullptr, 1, kMaxSegmentSymbols + 1), {}, sizes, out),
      Error);
}

TEST_CASE("rans: damaged segments are refused, or decode alike on every level") {
  Rng rng(6);
  int refused = 0, decoded = 0;
  for (int round = 0; round < 2000; ++round) {
    const size_t n = rng.below(90);
    const RansOptions options{.escape_bits = unsigned(1 + rng.below(20)),
                              .scale = unsigned(8 + rng.below(9)),
                              .max_symbols = 9 + rng.below(50)};
    const auto segments =
        make_segments<uint8_t>(1 + rng.below(20), n, 1 + rng.below(60), rng.uniform(0.05, 1), options, rng);
    Coded coded = encode(segments);
    for (uint64_t hits = rng.below(3); hits > 0; --hits)
      coded.bytes[rng.below(coded.bytes.size())] ^= static_cast<uint8_t>(1u << rng.below(8));
    if (rng.below(5) == 0) coded.bytes.resize(rng.below(coded.bytes.size() + 1));
    if (rng.below(5) == 0)
      coded.sizes[rng.below(coded.sizes.size())] += static_cast<uint32_t>(rng.below(7)) - 3;
    const RansDecoder<uint8_t> decoder(segments.book);
    const auto expected = [&] {
      const test::AtLevel at(SimdLevel::scalar);
      return decode(decoder, coded.bytes, coded.sizes, n);
    }();
    ++(expected ? decoded : refused);
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      CHECK(decode(decoder, coded.bytes, coded.sizes, n) == expected);
    }
  }
  CHECK_GT(refused, 300);
  CHECK_GT(decoded, 300);
  const RansDecoder<uint8_t> decoder(RansModel::from_counts(std::vector<uint64_t>{1, 1}, {}));
  CHECK_FALSE(decode(decoder, {}, std::vector<uint32_t>{0}, 0));
  CHECK_FALSE(decode(decoder, std::vector<uint8_t>(31, 1), std::vector<uint32_t>{31}, 0));
  CHECK_FALSE(decode(decoder, std::vector<uint8_t>(32, 0), std::vector<uint32_t>{32}, 0));   // states too low
  CHECK_FALSE(decode(decoder, std::vector<uint8_t>(32, 1), std::vector<uint32_t>{~0u}, 0));  // not all there
}

TEST_CASE("rans: a segment may change its model from run to run") {
  Rng rng(31);
  const RansOptions options{.escape_bits = 9, .scale = 0};
  std::vector<RansModel> models;
  for (const double decay : {0.05, 0.5, 0.95}) {
    std::vector<uint64_t> counts(20);
    for (size_t i = 0; i < counts.size(); ++i)
      counts[i] = static_cast<uint64_t>(1e5 * std::pow(decay, static_cast<double>(i)));
    models.push_back(RansModel::from_counts(counts, options));
  }
  const std::vector<RansRun> runs{{2, 13}, {0, 64}, {0, 1}, {1, 0}, {1, 40}, {2, 7}};
  const size_t n = 125, segments = 6;
  Matrix<uint8_t> symbols(segments, n), back(segments, n);
  std::vector<uint32_t> raw;
  for (size_t row = 0; row < segments; ++row)
    for (size_t begin = 0; const RansRun& run : runs) {
      for (size_t i = begin; i < begin + run.symbols; ++i) {
        const size_t symbol = rng.below(21);
        const bool coded = symbol < 20 && models[run.model].frequency(symbol) > 0;
        symbols(row, i) = static_cast<uint8_t>(coded ? symbol : 20);
        if (!coded) raw.push_back(static_cast<uint32_t>(rng.below(512)));
      }
      begin += run.symbols;
    }
  const RansEncoder encoder(models);
  const RansDecoder<uint8_t> decoder(models);
  std::vector<uint32_t> sizes(segments);
  std::vector<uint8_t> bytes;
  encoder.encode_segments(symbols, raw, sizes, bytes, runs);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    std::vector<EscapedValue> escaped;
    decoder.decode_segments(bytes, sizes, back, escaped, runs);
    CHECK(std::equal(symbols.data(), symbols.data() + symbols.size(), back.data()));
    REQUIRE_EQ(escaped.size(), raw.size());
    for (size_t i = 0; i < raw.size(); ++i) CHECK_EQ(escaped[i].value, raw[i]);
    // Other runs are another code: the states do not end at their initial value.
    const std::vector<RansRun> others{{2, 12}, {0, 66}, {1, 40}, {2, 7}};
    CHECK_THROWS_AS(decoder.decode_segments(bytes, sizes, back, escaped, others), Error);
  }
  // Runs of one model that fill whole groups are one run.
  const std::vector<RansRun> halves{{1, 64}, {1, 61}}, whole{{1, 125}};
  std::ranges::fill(std::span(symbols.data(), symbols.size()), uint8_t{3});
  std::vector<uint8_t> in_halves, at_once;
  encoder.encode_segments(symbols, {}, sizes, in_halves, halves);
  encoder.encode_segments(symbols, {}, sizes, at_once, whole);
  CHECK(in_halves == at_once);

  const std::vector<RansRun> short_runs{{0, 124}}, no_such_model{{3, 125}};
  CHECK_THROWS_AS(encoder.encode_segments(symbols, {}, sizes, bytes, short_runs), Error);
  CHECK_THROWS_AS(encoder.encode_segments(symbols, {}, sizes, bytes, no_such_model), Error);
  models.push_back(RansModel::from_counts(std::vector<uint64_t>(21, 1), options));
  CHECK_THROWS_AS(RansEncoder{models}, Error);
  CHECK_THROWS_AS(RansDecoder<uint8_t>{models}, Error);
}

}  // namespace rans_test
