#include "lib/metrics/rate.hpp"

#include <limits>

#include "lib/core/checked.hpp"

namespace kvcodec {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

static std::optional<uint64_t> break_even(const RateLedger& ledger, uint64_t bytes) {
  if (ledger.book_bytes == 0) return 0;
  const uint64_t raw = checked_mul(ledger.values, 2);
  if (raw <= bytes) return std::nullopt;
  // The smallest N with N * saved >= book * tokens, in whole numbers.
  __extension__ using u128 = unsigned __int128;
  const uint64_t saved = raw - bytes;
  const u128 enough = (u128{ledger.book_bytes} * ledger.tokens + saved - 1) / saved;
  if (enough > std::numeric_limits<uint64_t>::max()) return std::nullopt;
  return static_cast<uint64_t>(enough);
}

static uint64_t sum_of(const std::vector<RateLine>& lines) {
  uint64_t total = 0;
  for (const RateLine& line : lines) total = checked_add(total, line.bytes);
  return total;
}

uint64_t RateLedger::bytes() const { return sum_of(lines); }

uint64_t SideLedger::bytes() const { return sum_of(lines); }

double compression_ratio(uint64_t values, uint64_t bytes) {
  if (bytes == 0) return values == 0 ? 1 : kInfinity;
  return 2 * static_cast<double>(values) / static_cast<double>(bytes);
}

double bits_per_value(uint64_t values, uint64_t bytes) {
  if (values == 0) return bytes == 0 ? 0 : kInfinity;
  return 8 * static_cast<double>(bytes) / static_cast<double>(values);
}

Rate rate_of(const RateLedger& ledger) {
  const uint64_t bytes = ledger.bytes();
  const uint64_t with_book = checked_add(bytes, ledger.book_bytes);
  Rate rate{.line_bits = {},
            .bits_per_value = bits_per_value(ledger.values, bytes),
            .bits_per_value_with_book = bits_per_value(ledger.values, with_book),
            .ratio = compression_ratio(ledger.values, bytes),
            .ratio_with_book = compression_ratio(ledger.values, with_book),
            .break_even_tokens = break_even(ledger, bytes)};
  for (const RateLine& line : ledger.lines)
    rate.line_bits.push_back(bits_per_value(ledger.values, line.bytes));
  return rate;
}

}  // namespace kvcodec
