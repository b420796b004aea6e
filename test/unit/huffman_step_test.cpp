// Huffman decoding by steps, as a device does it, against the walk of the code tree.
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/huffman_decoder.hpp"
#include "lib/entropy/huffman_encoder.hpp"
#include "lib/entropy/huffman_step_table.hpp"
#include "test/test.hpp"

using namespace kvcodec;

namespace {

/// Bytes as words with zeros behind them.
std::vector<uint32_t> to_words(std::span<const uint8_t> bytes) {
  std::vector<uint32_t> words(bytes.size() / 4 + 2);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

TEST_CASE("entries of steps hold what they were made of") {
  for (unsigned symbol = 0; symbol < 256; ++symbol)
    for (unsigned length = 1; length <= 12; ++length) {
      const uint32_t entry = step_entry(symbol, length, false, 127);
      CHECK(step_symbol(entry) == symbol);
      CHECK(step_length(entry) == length);
      CHECK(step_escapes(entry) == 0);
      CHECK(step_level(entry) == static_cast<float>(static_cast<int>(symbol) - 127));
    }
  const uint32_t escape = step_entry(255, 9, true, 127);
  CHECK(step_escapes(escape) == 1);
  CHECK(step_level(escape) == 0);
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
      HuffmanTreeWalk<uint8_t>(book).decode_runs(payload, 0, run_bits, expected, escaped);

      const StepTable table = step_table(book, 127);
      CHECK(table.entries.size() == size_t{1} << table.window);
      const auto words = to_words(payload);
      const WordStream stream{words.data(), static_cast<uint32_t>(words.size() - 1)};
      uint64_t start = 0;
      size_t wrong = 0, next = 0;
      for (size_t run = 0; run < runs; ++run) {
        BitCursor cursor(stream, start);
        std::vector<uint32_t> places;
        for (size_t i = 0; i < n; ++i) {
          if (i % 2 == 0) cursor.refill();
          const uint32_t entry = cursor.step(table.entries.data(), table.window);
          wrong += step_symbol(entry) != expected(run, i);
          if (step_escapes(entry)) places.push_back(static_cast<uint32_t>(i));
        }
        uint64_t bit = cursor.position();
        for (const uint32_t place : places) {
          CHECK(escaped[next] == EscapedValue{static_cast<uint32_t>(run), place, stream.bits(bit, 16)});
          ++next;
          bit += 16;
        }
        start += run_bits[run];
        CHECK(bit == start);
      }
      CHECK(wrong == 0);
      CHECK(next == escaped.size());
    }
}

TEST_CASE("books that steps cannot follow are refused") {
  const std::vector<uint64_t> none(4), many(300, 1);
  CHECK_THROWS_AS(step_table(HuffmanBook::from_counts(none, {}), 0), Error);
  CHECK_THROWS_AS(step_table(HuffmanBook::from_counts(many, {.max_codes = 300}), 0), Error);
}
