#include "lib/entropy/huffman.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/histogram.hpp"
#include "test/lib/codec/coded_rows.hpp"
#include "test/lib/entropy/huffman_tree_walk.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace huffman_test {

using namespace kvcodec;

namespace {

// References
// -------------------------------------------------------------------------------------------------

uint64_t cost(const std::vector<uint64_t>& counts, const std::vector<uint8_t>& lengths) {
  uint64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) sum += counts[i] * lengths[i];
  return sum;
}

/// The smallest cost over all lengths in 1..limit that satisfy Kraft's inequality, by exhaustive search.
uint64_t cost_by_trying(const std::vector<uint64_t>& counts, unsigned limit) {
  uint64_t best = ~uint64_t{0};
  const std::function<void(size_t, uint64_t, uint64_t)> extend = [&](size_t symbol, uint64_t sum,
                                                                     uint64_t room) {
    if (sum >= best) return;
    if (symbol == counts.size()) {
      best = sum;
      return;
    }
    for (unsigned length = 1; length <= limit; ++length)
      if (const uint64_t share = uint64_t{1} << (limit - length); share <= room)
        extend(symbol + 1, sum + counts[symbol] * length, room - share);
  };
  extend(0, 0, uint64_t{1} << limit);
  return best;
}

/// The cost of an optimal code of any lengths: every merge adds its weight once.
uint64_t cost_without_limit(const std::vector<uint64_t>& counts) {
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(counts.begin(), counts.end());
  uint64_t sum = 0;
  while (heap.size() > 1) {
    const uint64_t a = heap.top();
    heap.pop();
    const uint64_t b = heap.top();
    heap.pop();
    sum += a + b;
    heap.push(a + b);
  }
  return sum;
}

/// Package-merge as the coin collector's problem, with the symbols of every package written out.
uint64_t cost_by_coins(const std::vector<uint64_t>& counts, unsigned limit) {
  struct Package {
    uint64_t weight;
    std::vector<size_t> symbols;
  };
  std::vector<Package> coins;
  for (unsigned level = 0; level < limit; ++level) {
    std::vector<Package> paired;
    for (size_t i = 0; i + 1 < coins.size(); i += 2) {
      paired.push_back({coins[i].weight + coins[i + 1].weight, coins[i].symbols});
      paired.back().symbols.insert(paired.back().symbols.end(), coins[i + 1].symbols.begin(),
                                   coins[i + 1].symbols.end());
    }
    for (size_t i = 0; i < counts.size(); ++i) paired.push_back({counts[i], {i}});
    std::sort(paired.begin(), paired.end(),
              [](const Package& a, const Package& b) { return a.weight < b.weight; });
    coins = paired;
  }
  std::vector<uint8_t> lengths(counts.size(), 0);
  for (size_t i = 0; i < 2 * counts.size() - 2; ++i)
    for (const size_t symbol : coins[i].symbols) ++lengths[symbol];
  return cost(counts, lengths);
}

// Data
// -------------------------------------------------------------------------------------------------------

/// Counts of very different shapes: even, geometric, Fibonacci (the deepest trees), with zeros and ties.
std::vector<uint64_t> random_counts(size_t n, Rng& rng) {
  std::vector<uint64_t> counts(n);
  const uint64_t shape = rng.below(5);
  uint64_t previous = 1, current = 1;
  for (uint64_t& count : counts) {
    if (shape == 0) count = rng.below(10);
    if (shape == 1) count = rng.below(1000000);
    if (shape == 2) count = static_cast<uint64_t>(std::exp2(rng.uniform(0, 40)));
    if (shape == 3) count = 7;
    if (shape == 4) {
      count = current;
      if (current < uint64_t{1} << 40) current += std::exchange(previous, current);
    }
  }
  rng.shuffle(counts);
  return counts;
}

std::vector<bool> all(size_t n) { return std::vector<bool>(n, true); }

using Runs = test::EscapedRows<uint8_t, HuffmanBook>;

Runs make_runs(size_t runs, size_t n, size_t alphabet, double decay, HuffmanOptions options, Rng& rng) {
  return test::make_rows<uint8_t, HuffmanBook>(runs, n, alphabet, decay, options, rng);
}

struct Coded {
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> bits;
};

Coded encode(const Runs& runs) {
  Coded coded;
  coded.bits.resize(runs.symbols.rows());
  HuffmanEncoder(runs.book).encode_runs(runs.symbols, runs.raw, coded.bits, coded.bytes);
  return coded;
}

/// The same bytes written with BitWriter.
Coded encode_plainly(const Runs& runs) {
  Coded coded;
  BitWriter writer;
  size_t raw = 0;
  for (size_t run = 0; run < runs.symbols.rows(); ++run) {
    const uint64_t start = writer.size();
    size_t escapes = 0;
    for (const uint8_t symbol : runs.symbols.row(run)) {
      writer.put(runs.book.code(symbol), runs.book.length(symbol));
      escapes += runs.book.has_escape() && symbol == runs.book.escape();
    }
    for (; escapes > 0; --escapes) writer.put(runs.raw[raw++], runs.book.escape_bits());
    coded.bits.push_back(static_cast<uint32_t>(writer.size() - start));
  }
  coded.bytes = writer.finish();
  return coded;
}

using Decoded = test::DecodedRows<uint8_t>;

/// Rows and escaped values; std::nullopt if the bytes are refused. Damaged runs whose neighbours compensate for it may be refused
/// if rows have a gap between them, and decoded if they have none.
template <class Decoder>
std::optional<Decoded> decode(const Decoder& decoder, std::span<const uint8_t> bytes, uint64_t first_bit,
                              std::span<const uint32_t> bits, size_t n) {
  const auto rows =
      test::decode_rows<uint8_t>(bytes, bits.size(), n, [&](auto exact, auto out, auto& escaped) {
        decoder.decode_runs(exact, first_bit, bits, out, escaped);
      });
  // And rows without gaps, which are decoded together.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  Matrix<uint8_t> close(bits.size(), n);
  std::vector<EscapedValue> escaped;
  try {
    decoder.decode_runs(exact, first_bit, bits, close, escaped);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK_FALSE(rows);
    return std::nullopt;
  }
  if (!rows) return std::nullopt;
  CHECK(std::equal(rows->symbols.begin(), rows->symbols.end(), close.data()));
  CHECK(escaped == rows->escaped);
  return rows;
}

void check_round_trip(const Runs& runs) {
  const size_t count = runs.symbols.rows(), n = runs.symbols.cols();
  const Coded plain = encode_plainly(runs);
  const Decoded expected{{runs.symbols.data(), runs.symbols.data() + runs.symbols.size()}, runs.escaped};
  const HuffmanDecoder decoder(runs.book);
  const Coded coded = encode(runs);
  CHECK(coded.bytes == plain.bytes);
  CHECK(coded.bits == plain.bits);
  CHECK(decode(test::HuffmanTreeWalk(runs.book), plain.bytes, 0, plain.bits, n) == expected);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(std::string(name_of(level)));
    CHECK(decode(decoder, coded.bytes, 0, coded.bits, n) == expected);
    // Every run alone, from where it starts.
    uint64_t first_bit = 0;
    for (size_t run = 0; run < count; ++run) {
      const auto alone = decode(decoder, coded.bytes, first_bit, std::span(coded.bits).subspan(run, 1), n);
      REQUIRE(alone);
      CHECK(std::equal(alone->symbols.begin(), alone->symbols.end(), runs.symbols.row(run).begin()));
      first_bit += coded.bits[run];
    }
  }
}

template <class Body>
std::optional<ErrorKind> error_of(Body&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error.kind();
  }
}

std::optional<HuffmanBook> read_book(const std::vector<uint8_t>& bytes) {
  try {
    BitReader reader(bytes);
    return HuffmanBook::read(reader);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("huffman: code lengths cost what the best of all codes of that length cost") {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const size_t n = 2 + rng.below(6);
    const auto counts = random_counts(n, rng);
    for (unsigned limit = index_bits(n); limit <= 6; ++limit) {
      CAPTURE(fmt::format("{}", fmt::join(counts, " ")));
      CAPTURE(limit);
      CHECK_EQ(cost(counts, limited_code_lengths(counts, all(n), limit)), cost_by_trying(counts, limit));
    }
  }
}

TEST_CASE("huffman: code lengths equal the coin collector's, and Huffman's where those fit the limit") {
  Rng rng(2);
  for (int round = 0; round < 200; ++round) {
    const size_t n = 2 + rng.below(60);
    const auto counts = random_counts(n, rng);
    const uint64_t free = cost_without_limit(counts);
    for (unsigned limit = index_bits(n); limit <= kMaxCodeLength; ++limit) {
      const auto lengths = limited_code_lengths(counts, all(n), limit);
      CAPTURE(limit);
      CHECK_LE(*std::max_element(lengths.begin(), lengths.end()), limit);
      CHECK_EQ(cost(counts, lengths), cost_by_coins(counts, limit));
      CHECK_GE(cost(counts, lengths), free);
    }
    // With as many bits as symbols there is no limit.
    if (n <= kMaxCodeLength)
      CHECK_EQ(cost(counts, limited_code_lengths(counts, all(n), std::max<unsigned>(1, unsigned(n) - 1))),
               free);
  }
  // As many symbols as codes: all must be of the full length.
  std::vector<uint64_t> many(4096);
  for (uint64_t& count : many) count = rng.below(1 << 20);
  const auto lengths = limited_code_lengths(many, all(4096), 12);
  CHECK(std::ranges::all_of(lengths, [](uint8_t length) { return length == 12; }));
  // There are spare codes: 96 pairs of them make the 96 most frequent symbols one bit shorter, which is one way to use them; the
  // best way costs no more, and less than all at the full length.
  many.resize(4000);
  std::ranges::sort(many, std::greater());
  uint64_t one_way = 0;
  for (size_t i = 0; i < many.size(); ++i) one_way += many[i] * (i < 96 ? 11u : 12u);
  CHECK_LE(cost(many, limited_code_lengths(many, all(4000), 12)), one_way);
}

TEST_CASE("huffman: what cannot be coded is refused") {
  const std::vector<uint64_t> counts(5, 1);
  CHECK_THROWS_AS(limited_code_lengths(counts, all(5), 2), Error);
  CHECK_THROWS_AS(limited_code_lengths(counts, all(5), 0), Error);
  CHECK_THROWS_AS(limited_code_lengths(counts, all(5), 13), Error);
  CHECK_THROWS_AS(limited_code_lengths(counts, all(4), 3), Error);
  CHECK_THROWS_AS(limited_code_lengths(std::vector<uint64_t>(2, uint64_t{1} << 56), all(2), 3), Error);
  CHECK(limited_code_lengths(std::vector<uint64_t>{9, 9, 9}, {false, true, false}, 3) ==
        std::vector<uint8_t>{0, 1, 0});
  CHECK(limited_code_lengths({}, {}, 3).empty());
  CHECK_THROWS_AS(HuffmanBook::from_counts(std::vector<uint64_t>(300, 1), {}), Error);
  CHECK_NOTHROW(HuffmanBook::from_counts(std::vector<uint64_t>(300, 1), {.escape_bits = 9}));
  CHECK_NOTHROW(HuffmanBook::from_counts(std::vector<uint64_t>(300, 1), {.max_codes = 300}));
  CHECK_THROWS_AS(HuffmanBook::from_counts(std::vector<uint64_t>(65537, 1), {.escape_bits = 9}), Error);
  CHECK_THROWS_AS(HuffmanBook::from_counts(counts, {.escape_bits = 33}), Error);
  CHECK_THROWS_AS(HuffmanBook::from_counts(counts, {.max_length = 0}), Error);
  CHECK_THROWS_AS(HuffmanBook::from_counts(counts, {.escape_bits = 4, .max_codes = 0}), Error);
  const auto large = HuffmanBook::from_counts(std::vector<uint64_t>(257, 1), {.max_codes = 257});
  CHECK_THROWS_AS(HuffmanDecoder{large}, Error);
  CHECK_THROWS_AS(HuffmanEncoder{large}, Error);
}

TEST_CASE("huffman: codes are canonical and free of prefixes") {
  Rng rng(3);
  for (int round = 0; round < 100; ++round) {
    const auto counts = random_counts(1 + rng.below(120), rng);
    const auto book = HuffmanBook::from_counts(counts, {.max_length = 8, .escape_bits = 16});
    uint64_t next = 0;  // left-aligned in 12 bits: each code starts where the one before ends
    for (unsigned length = 1; length <= 12; ++length)
      for (size_t symbol = 0; symbol < book.symbols(); ++symbol)
        if (book.length(symbol) == length) {
          CHECK_EQ(uint64_t{book.code(symbol)} << (12 - length), next);
          next += uint64_t{1} << (12 - length);
        }
    CHECK((next == 4096 || (book.num_codes() == 1 && next == 2048)));
    for (size_t symbol = 0; symbol < counts.size(); ++symbol)
      CHECK_EQ(book.length(symbol) > 0, counts[symbol] > 0);
  }
}

TEST_CASE("huffman: the escape costs no more than a symbol that never occurs") {
  Rng rng(4);
  for (int round = 0; round < 100; ++round) {
    auto counts = random_counts(2 + rng.below(100), rng);
    for (uint64_t& count : counts) ++count;  // all coded
    const auto with = HuffmanBook::from_counts(counts, {.escape_bits = 16});
    auto extended = counts;
    extended.push_back(0);
    CHECK_EQ(with.coded_bits(counts), cost_by_coins(extended, 11));
    for (size_t i = 0; i < counts.size(); ++i) CHECK_LE(with.length(i), with.length(with.escape()));
    // Without a limit it takes one bit from the rarest symbol only.
    const uint64_t rarest = *std::ranges::min_element(counts);
    CHECK_EQ(cost_without_limit(extended), cost_without_limit(counts) + rarest);
  }
  // On a distribution like that of quantized keys the book with the escape is as good to a thousandth.
  const auto symbols = test::random_symbols<uint8_t>(100000, 60, 0.7, rng);
  const auto counts = histogram(symbols, 60);
  const double with = double(HuffmanBook::from_counts(counts, {.escape_bits = 16}).coded_bits(counts));
  const double without = double(HuffmanBook::from_counts(counts, {}).coded_bits(counts));
  CHECK_LE(with, without * 1.001);
}

TEST_CASE("huffman: symbols beyond the number of codes are left to the escape, the rarest first") {
  std::vector<uint64_t> counts(1000);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = 1 + i;
  const auto book = HuffmanBook::from_counts(counts, {.escape_bits = 10, .max_codes = 256});
  CHECK_EQ(book.num_codes(), 256);
  for (size_t i = 0; i < counts.size(); ++i) CHECK_EQ(book.length(i) > 0, i >= 745);
  CHECK_LE(book.length(book.escape()), 3u);  // it stands for 278 thousand of 500 thousand
  uint64_t bits = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    bits += counts[i] * (i >= 745 ? book.length(i) : book.length(book.escape()) + 10);
  CHECK_EQ(book.coded_bits(counts), bits);
}

TEST_CASE("huffman: a book is written in few bytes and read back") {
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> counts(rng.below(round < 200 ? 300 : 65537));
    const double density = rng.uniform();
    for (uint64_t& count : counts) count = rng.uniform() < density ? rng.below(1000) : 0;
    const HuffmanOptions options{
        .max_length = 12, .escape_bits = unsigned(1 + rng.below(32)), .max_codes = 4096};
    const auto book = HuffmanBook::from_counts(counts, options);
    BitWriter writer;
    writer.put(5, 3);  // a book need not start at a whole byte
    book.write(writer);
    writer.put(0x2a, 6);
    const auto bytes = writer.finish();
    BitReader reader(bytes);
    CHECK_EQ(reader.get(3), 5);
    CHECK(HuffmanBook::read(reader) == book);
    CHECK_EQ(reader.get(6), 0x2a);
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + ptrdiff_t(rng.below(bytes.size())));
    read_book(cut);
  }
  // 33 symbols around the middle of 256, as quantization gives them: 23 bits and 4 per symbol at most.
  std::vector<uint64_t> counts(256);
  for (size_t i = 112; i <= 144; ++i)
    counts[i] = 1 + static_cast<uint64_t>(1e6 * std::exp2(-std::abs(double(i) - 128)));
  BitWriter writer;
  HuffmanBook::from_counts(counts, {.escape_bits = 16}).write(writer);
  CHECK_LE(writer.finish().size(), (23 + 4 * 33 + 2 * 16 + 4 + 7) / 8);
}

TEST_CASE("huffman: damaged books are refused or read as other books") {
  Rng rng(6);
  int read = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> counts(rng.below(60));
    for (uint64_t& count : counts) count = rng.below(30);
    BitWriter writer;
    HuffmanBook::from_counts(counts, {.max_length = 12, .escape_bits = unsigned(rng.below(2) * 8)})
        .write(writer);
    auto bytes = writer.finish();
    bytes[rng.below(bytes.size())] = uint8_t(rng.next());
    if (rng.below(4) == 0) bytes.resize(rng.below(bytes.size()));
    const auto book = read_book(bytes);
    if (!book) continue;
    ++read;
    if (book->symbols() <= 256) HuffmanDecoder decoder(*book);
  }
  CHECK_GT(read, 10);
  const auto of_tokens = [](unsigned alphabet, unsigned escape_bits, std::vector<unsigned> tokens) {
    BitWriter writer;
    writer.put(alphabet, 17);
    writer.put(escape_bits, 6);
    for (const unsigned token : tokens) writer.put(token, 4);
    return read_book(writer.finish());
  };
  CHECK(of_tokens(2, 0, {1, 1}));
  CHECK(of_tokens(1, 0, {1}));
  CHECK(of_tokens(0, 0, {}));
  CHECK(of_tokens(3, 0, {0, 0, 0}));
  CHECK(of_tokens(5, 0, {3, 13, 0, 1}));           // 3 3 3 3 1
  CHECK_FALSE(of_tokens(2, 0, {1, 2}));            // incomplete
  CHECK_FALSE(of_tokens(1, 0, {2}));               // one code, but not of one bit
  CHECK_FALSE(of_tokens(3, 0, {1, 1, 1}));         // too many
  CHECK_FALSE(of_tokens(2, 5, {1, 1, 0}));         // the escape has no code
  CHECK_FALSE(of_tokens(65537, 0, {15, 15, 15}));  // too large an alphabet
  CHECK_FALSE(of_tokens(2, 33, {2, 2, 1}));        // escapes too wide
  CHECK_FALSE(of_tokens(4, 0, {13, 0, 1}));        // repeats nothing
  CHECK_FALSE(of_tokens(5, 0, {0, 13, 0, 1}));     // repeats no length
  CHECK_FALSE(of_tokens(2, 0, {14, 9}));           // beyond the alphabet
  CHECK_FALSE(of_tokens(40, 0, {1}));              // ends early
}

TEST_CASE("huffman: runs of any length and number come back, with both decoders, on every level") {
  uint64_t seed = 10;
  for (const size_t n : {0, 1, 2, 3, 4, 5, 7, 24, 25, 31, 64, 127, 128, 1000})
    for (const size_t runs : {0, 1, 2, 7, 8, 9, 17, 64, 128}) {
      CAPTURE(n);
      CAPTURE(runs);
      CAPTURE(seed);
      Rng rng(seed++);
      check_round_trip(make_runs(runs, n, 1 + rng.below(200), rng.uniform(0.02, 3), {}, rng));
      check_round_trip(make_runs(runs, n, 1 + rng.below(255), rng.uniform(0.02, 0.3),
                                 {.max_length = 9, .escape_bits = 16, .max_codes = 20}, rng));
      check_round_trip(make_runs(runs, n, 90, 0.1, {.max_length = 12, .escape_bits = 32}, rng));
    }
}

TEST_CASE("huffman: an escape without its value is refused, alone and among many runs") {
  Rng rng(15);
  const auto book = HuffmanBook::from_counts(std::vector<uint64_t>{40, 30, 20, 10, 9, 8, 7, 6, 5, 4, 3, 2},
                                             {.escape_bits = 12});
  for (const size_t count : {1, 8, 64, 128}) {
    Runs runs{book, Matrix<uint8_t>(count, 64), {}, {}};
    for (size_t i = 0; i < runs.symbols.size(); ++i)
      runs.symbols.data()[i] = static_cast<uint8_t>(rng.below(book.alphabet()));
    CHECK(decode(HuffmanDecoder(book), encode(runs).bytes, 0, encode(runs).bits, 64));
    runs.symbols(count / 2, 5) = static_cast<uint8_t>(book.escape());
    runs.raw = {1};
    Coded coded = encode_plainly(runs);
    BitWriter without;  // the same codes, as long as they say
    for (size_t run = 0; run < count; ++run)
      for (const uint8_t symbol : runs.symbols.row(run)) without.put(book.code(symbol), book.length(symbol));
    coded.bits[count / 2] -= 12;
    coded.bytes = without.finish();
    CHECK_FALSE(decode(test::HuffmanTreeWalk(book), coded.bytes, 0, coded.bits, 64));
    CHECK_FALSE(decode(HuffmanDecoder(book), coded.bytes, 0, coded.bits, 64));
  }
}

TEST_CASE("huffman: alphabets of one symbol, of none, and of the escape alone") {
  Rng rng(7);
  for (const size_t n : {1, 9, 300}) {
    const auto one = HuffmanBook::from_counts(std::vector<uint64_t>{0, 0, 5}, {});
    Runs runs{one, Matrix<uint8_t>(3, n), {}, {}};
    std::fill_n(runs.symbols.data(), runs.symbols.size(), uint8_t{2});
    check_round_trip(runs);
    CHECK(encode(runs).bits == std::vector<uint32_t>(3, uint32_t(n)));

    const auto escape_only = HuffmanBook::from_counts(std::vector<uint64_t>(4, 0), {.escape_bits = 7});
    Runs escapes{escape_only, Matrix<uint8_t>(2, n), {}, {}};
    std::fill_n(escapes.symbols.data(), escapes.symbols.size(), uint8_t{4});
    for (uint32_t i = 0; i < 2 * n; ++i) {
      escapes.raw.push_back(static_cast<uint32_t>(rng.below(128)));
      escapes.escaped.push_back({uint32_t(i / n), uint32_t(i % n), escapes.raw.back()});
    }
    check_round_trip(escapes);
  }
  const auto none = HuffmanBook::from_counts(std::vector<uint64_t>(4, 0), {});
  check_round_trip(Runs{none, Matrix<uint8_t>(3, 0), {}, {}});
  CHECK_FALSE(decode(HuffmanDecoder(none), {}, 0, std::vector<uint32_t>{0}, 1));
  CHECK_FALSE(decode(test::HuffmanTreeWalk(none), {}, 0, std::vector<uint32_t>{0}, 1));
}

TEST_CASE("huffman: the longest and widest run of the 16-bit limit") {
  // The longest run whose bits can always be counted in 16 bits.
  constexpr size_t kMaxRunOf16BitCount = 65535 / (kMaxCodeLength + 32);
  std::vector<uint64_t> counts(255);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = uint64_t{1} << std::min<size_t>(i, 40);
  const auto book = HuffmanBook::from_counts(counts, {.max_length = 12, .escape_bits = 32});
  REQUIRE_EQ(book.length(book.escape()), kMaxCodeLength);
  Runs runs{book, Matrix<uint8_t>(1, kMaxRunOf16BitCount), {}, {}};
  for (uint32_t i = 0; i < kMaxRunOf16BitCount; ++i) {
    runs.symbols(0, i) = static_cast<uint8_t>(book.escape());
    runs.raw.push_back(~i);
    runs.escaped.push_back({0, i, ~i});
  }
  check_round_trip(runs);
  CHECK_EQ(encode(runs).bits[0], kMaxRunOf16BitCount * (kMaxCodeLength + 32));
  CHECK_LE(encode(runs).bits[0], 65535);
  CHECK_GT((kMaxRunOf16BitCount + 1) * (kMaxCodeLength + 32), 65535);
}

TEST_CASE("huffman: runs are appended behind what is there") {
  Rng rng(8);
  const auto runs = make_runs(5, 40, 50, 0.2, {.escape_bits = 16, .max_codes = 12}, rng);
  const Coded alone = encode(runs);
  std::vector<uint8_t> bytes{1, 2, 3};
  std::vector<uint32_t> bits(5);
  HuffmanEncoder(runs.book).encode_runs(runs.symbols, runs.raw, bits, bytes);
  CHECK(std::equal(alone.bytes.begin(), alone.bytes.end(), bytes.begin() + 3, bytes.end()));
  CHECK(bytes[2] == 3);
  CHECK(bits == alone.bits);
}

TEST_CASE("huffman: the encoder refuses what its book cannot say") {
  const auto book = HuffmanBook::from_counts(std::vector<uint64_t>{4, 0, 3, 2}, {.escape_bits = 4});
  const HuffmanEncoder encoder(book);
  const auto kind = [&](std::vector<uint8_t> symbols, std::vector<uint32_t> raw, size_t rows) {
    std::vector<uint8_t> out;
    std::vector<uint32_t> bits(rows);
    return error_of([&] {
      encoder.encode_runs(MatrixView<const uint8_t>(symbols.data(), 1, symbols.size()), raw, bits, out);
    });
  };
  CHECK_FALSE(kind({0, 2, 3, 4, 4}, {15, 0}, 1));
  CHECK(kind({0, 1, 3}, {}, 1) == ErrorKind::failed);  // no code
  CHECK(kind({0, 5}, {}, 1) == ErrorKind::failed);     // no symbol
  CHECK(kind({0, 255}, {}, 1) == ErrorKind::failed);
  CHECK(kind({0, 4}, {}, 1) == ErrorKind::failed);      // no raw value
  CHECK(kind({0, 4}, {1, 2}, 1) == ErrorKind::failed);  // one too many
  CHECK(kind({0, 4}, {16}, 1) == ErrorKind::failed);    // too wide
  CHECK(kind({0, 2}, {}, 2) == ErrorKind::failed);      // another number of runs
  std::vector<uint8_t> out;
  std::vector<uint32_t> bits(1);
  CHECK_THROWS_AS(
      encoder.encode_runs(MatrixView<const uint8_t>(nullptr, 1, kMaxRunSymbols + 1), {}, bits, out), Error);
}

TEST_CASE("huffman: runs that are cut or have other bits are refused, or decode alike with both decoders") {
  Rng rng(9);
  int refused = 0, decoded = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t n = rng.below(70);
    const HuffmanOptions options{
        .max_length = 8, .escape_bits = unsigned(1 + rng.below(20)), .max_codes = 9 + rng.below(50)};
    const auto runs = make_runs(1 + rng.below(rng.below(4) > 0 ? 70 : 300), n, 1 + rng.below(60),
                                rng.uniform(0.05, 1), options, rng);
    Coded coded = encode(runs);
    const bool whole = rng.below(4) > 0;
    for (uint64_t hits = rng.below(3); hits > 0 && !coded.bytes.empty(); --hits)
      coded.bytes[rng.below(coded.bytes.size())] ^= static_cast<uint8_t>(1u << rng.below(8));
    if (!whole && rng.below(3) == 0) coded.bytes.resize(rng.below(coded.bytes.size() + 1));
    if (!whole && rng.below(3) == 0)
      coded.bits[rng.below(coded.bits.size())] += static_cast<uint32_t>(rng.below(5)) - 2;
    const uint64_t first_bit = !whole && rng.below(4) == 0 ? rng.below(20) : 0;
    const auto expected = decode(test::HuffmanTreeWalk(runs.book), coded.bytes, first_bit, coded.bits, n);
    ++(expected ? decoded : refused);
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      const HuffmanDecoder table(runs.book);
      const auto result = decode(table, coded.bytes, first_bit, coded.bits, n);
      if (expected) CHECK(result == expected);
      if (coded.bits.size() < 16) CHECK_EQ(result.has_value(), expected.has_value());  // none are joined
      const auto alone = std::span(coded.bits).first(1);
      CHECK(decode(table, coded.bytes, first_bit, alone, n) ==
            decode(test::HuffmanTreeWalk(runs.book), coded.bytes, first_bit, alone, n));
    }
  }
  CHECK_GT(refused, 300);
  CHECK_GT(decoded, 300);
  const HuffmanDecoder decoder(HuffmanBook::from_counts(std::vector<uint64_t>{1, 1}, {}));
  CHECK_FALSE(decode(decoder, std::vector<uint8_t>(4), ~uint64_t{0} - 3, std::vector<uint32_t>{8}, 8));
  CHECK_FALSE(decode(decoder, {}, 0, std::vector<uint32_t>{8}, 8));
}

TEST_CASE("histogram: counts of bytes, entropy, symbols beyond the alphabet") {
  Rng rng(11);
  for (const size_t n : {0, 1, 3, 4, 5, 1000, 4099})
    for (const size_t alphabet : {1, 2, 200, 256, 1000, 5000}) {
      std::vector<uint8_t> bytes(n);
      std::vector<uint64_t> expected(alphabet);
      for (uint8_t& byte : bytes)
        ++expected[byte = static_cast<uint8_t>(rng.below(std::min<size_t>(alphabet, 256)))];
      CHECK(histogram(bytes, alphabet) == expected);
    }
  CHECK_THROWS_WITH_AS(histogram(std::vector<uint8_t>{1, 2, 3}, 3), "symbol 3 at position 2 is not below 3",
                       Error);
  CHECK_THROWS_AS(histogram(std::vector<uint8_t>{0}, 0), Error);
  CHECK(entropy_bits(std::vector<uint64_t>{4, 4, 0, 4, 4}) == doctest::Approx(32));
  CHECK(entropy_bits(std::vector<uint64_t>{9}) == 0);
  CHECK(entropy_bits({}) == 0);
}

}  // namespace huffman_test
