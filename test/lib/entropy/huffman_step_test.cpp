// Huffman decoding by steps, as a device does it, against the walk of the code tree.
#include "lib/entropy/huffman_step.hpp"

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/entropy/huffman_tree_walk.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace huffman_step_test {

using namespace kvcodec;

namespace {

/// Bytes as words with zeros behind them.
std::vector<uint32_t> to_words(std::span<const uint8_t> bytes) {
  std::vector<uint32_t> words(bytes.size() / 4 + 2);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

/// A place in a stream that moves forward. It reads at most 3 words behind the one where it is.
class BitCursor {
 public:
  BitCursor(const WordStream& words, uint64_t bit)
      : words_(words), next_(static_cast<uint32_t>(bit / 32) + 3), used_(static_cast<uint32_t>(bit % 32)) {
    high_ = words.word(next_ - 3), low_ = words.word(next_ - 2), ahead_ = words.stored(next_ - 1);
  }
  /// Passes over the next code. Its entry.
  uint32_t one(const uint32_t* table) {
    const uint32_t entry = look(table);
    pass(entry >> 8);
    escapes_ += step_escapes(entry);
    return entry;
  }
  /// Passes over the next two codes. An entry with both symbols.
  uint32_t two(const uint32_t* table) {
    uint32_t entry = look(table);
    if (step_alone(entry)) [[unlikely]] {
      escapes_ += step_escapes(entry);
      pass(entry);
      entry = (entry & 0x00ffffff) | (one(table) << 8 & 0xff000000);
    } else {
      pass(entry);
    }
    return entry;
  }
  unsigned escapes() const { return escapes_; }  ///< number of escapes that were passed over
  uint64_t position() const { return uint64_t{next_ - 3} * 32 + (used_ & 63); }

 private:
  uint32_t look(const uint32_t* table) const {
    const uint64_t both = uint64_t{high_} << 32 | low_;
    const auto bits = static_cast<uint32_t>((both << (used_ & 31)) >> 32);
    return table[bits >> (32 - kStepWindow)];
  }
  /// The last four bits of `entry` are the number of bits; bits 4 and 5 are zeros.
  void pass(uint32_t entry) {
    used_ += entry;
    if ((used_ & 32) == 0) return;
    high_ = low_, low_ = swap_bytes(ahead_), ahead_ = words_.stored(next_);
    ++next_;
    used_ -= 32;
  }

  WordStream words_;
  uint32_t next_;        // the word behind those loaded here
  uint32_t used_;        // in its last six bits: bits of high_, less than 32; the others are undefined
  uint32_t high_, low_;  // words in which the next code begins and ends
  uint32_t ahead_;       // the next word as it is stored
  unsigned escapes_ = 0;
};

}  // namespace

TEST_CASE("entries of steps hold what they were made of") {
  for (unsigned symbol = 0; symbol < 256; ++symbol)
    for (unsigned length = 1; length <= 12; ++length) {
      const uint32_t one = step_entry(symbol, length, false);
      CHECK(step_alone(one));
      CHECK(step_escapes(one) == 0);
      CHECK((one & 15) == length);
      CHECK((one >> 8 & 63) == length);
      CHECK(StepSymbol<2>{one}.symbol() == symbol);
      CHECK(StepSymbol<2>{one}.level() == static_cast<float>(static_cast<int>(symbol) - 127));
      const uint32_t both = step_entry(7, 5, symbol, length % 8);
      CHECK(!step_alone(both));
      CHECK(step_escapes(both) == 0);
      CHECK((both & 63) == 5 + length % 8);
      CHECK((both >> 8 & 63) == 5);
      CHECK(StepSymbol<2>{both}.symbol() == 7);
      CHECK(StepSymbol<3>{both}.symbol() == symbol);
      CHECK(StepSymbol<3>{both}.level() == static_cast<float>(static_cast<int>(symbol) - 127));
    }
  const uint32_t escape = step_entry(255, 9, true);
  CHECK(step_alone(escape));
  CHECK(step_escapes(escape) == 1);
  CHECK(StepSymbol<2>{escape}.level() == 0);
}

TEST_CASE("bits of a stream of words") {
  Rng rng(3);
  std::vector<uint8_t> bytes(23);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(rng.below(256));
  const auto words = to_words(bytes);
  const WordStream stream{words.data(), static_cast<uint32_t>(words.size() - 1)};
  for (unsigned width = 0; width <= 32; ++width)
    for (uint64_t bit = 0; bit + width <= bytes.size() * 8; ++bit)
      CHECK(stream.bits(bit, width) == BitReader(bytes, bit).get(width));
  CHECK(stream.word(1000) == stream.word(stream.last));
}

TEST_CASE("runs decoded by steps are those of the tree walk") {
  const uint64_t seed = 4;
  Rng rng(seed);
  for (const unsigned max_length : {8u, 11u, 12u})
    for (const double deviation : {0.0, 0.4, 3.0, 30.0}) {
      std::vector<uint64_t> counts(255);
      const size_t runs = 1 + rng.below(9), n = rng.below(4) == 0 ? rng.below(3) : 1 + rng.below(200);
      Matrix<uint8_t> symbols(runs, n);
      std::vector<uint32_t> raw;
      for (size_t i = 0; i < symbols.size(); ++i) {
        const double level = std::clamp(std::round(deviation * rng.normal()), -127.0, 127.0);
        symbols.data()[i] = static_cast<uint8_t>(127 + level);
        ++counts[symbols.data()[i]];
        if (rng.below(30) == 0)
          symbols.data()[i] = 255, raw.push_back(static_cast<uint32_t>(rng.below(65536)));
      }
      ++counts[127];
      const HuffmanBook book =
          HuffmanBook::from_counts(counts, {.max_length = max_length, .escape_bits = 16});
      std::vector<uint32_t> run_bits(runs);
      std::vector<uint8_t> payload;
      HuffmanEncoder(book).encode_runs(symbols, raw, run_bits, payload);
      Matrix<uint8_t> expected(runs, n);
      std::vector<EscapedValue> escaped;
      test::HuffmanTreeWalk(book).decode_runs(payload, 0, run_bits, expected, escaped);

      const std::vector<uint32_t> table = step_table(book);
      CHECK(table.size() == size_t{1} << kStepWindow);
      const auto words = to_words(payload);
      const WordStream stream{words.data(), static_cast<uint32_t>(words.size() - 1)};
      uint64_t start = 0;
      test::Mismatch wrong;
      size_t next = 0;
      for (size_t run = 0; run < runs; ++run) {
        BitCursor one_by_one(stream, start), by_two(stream, start);
        std::vector<uint32_t> places;
        for (size_t i = 0; i < n; ++i) {
          const uint32_t entry = one_by_one.one(table.data());
          const bool escapes = step_escapes(entry) != 0;
          wrong.compare(StepSymbol<2>{entry}.symbol(), escapes ? kStepZero : expected(run, i), run, i);
          wrong.compare(escapes, expected(run, i) == 255, run, i);
          if (escapes) places.push_back(static_cast<uint32_t>(i));
        }
        for (size_t i = 0; i + 2 <= n; i += 2) {
          const auto zero_or = [&](uint8_t symbol) { return symbol == 255 ? kStepZero : symbol; };
          const uint32_t entry = by_two.two(table.data());
          wrong.compare(StepSymbol<2>{entry}.symbol(), zero_or(expected(run, i)), run, i);
          wrong.compare(StepSymbol<3>{entry}.symbol(), zero_or(expected(run, i + 1)), run, i + 1);
        }
        if (n % 2 == 1) by_two.one(table.data());
        CHECK(by_two.position() == one_by_one.position());
        CHECK(by_two.escapes() == places.size());
        CHECK(one_by_one.escapes() == places.size());
        uint64_t bit = one_by_one.position();
        for (const uint32_t place : places) {
          CHECK(escaped[next] == EscapedValue{static_cast<uint32_t>(run), place, stream.bits(bit, 16)});
          ++next;
          bit += 16;
        }
        start += run_bits[run];
        CHECK(bit == start);
      }
      CHECK_EQ(wrong.report(), "");
      CHECK(next == escaped.size());
    }
}

TEST_CASE("books that steps cannot follow are refused") {
  const std::vector<uint64_t> none(4), many(300, 1);
  CHECK_THROWS_AS(step_table(HuffmanBook::from_counts(none, {})), Error);
  CHECK_THROWS_AS(step_table(HuffmanBook::from_counts(many, {.max_codes = 300})), Error);
}

}  // namespace huffman_step_test
