// The size of a codes file, in the form that encode, info and eval-recon show.
//
// bits/value counts everything in the file except the book: streams, tokens, positions, document table and the file's own overhead.
// The book, which any number of caches can share, is included in the second ratio and in the break-even point.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/frame/text.hpp"
#include "formats/cache/codes_file.hpp"
#include "lib/metrics/rate.hpp"

namespace kvcodec::cli {

struct FileRate {
  std::string codec;
  RateLedger ledger;  ///< the categories of streams that are there, tables of tokens, file overhead
  Rate rate;
  uint64_t stream_bytes = 0;  ///< the codec's own streams
  uint64_t file_bytes = 0;
  uint64_t embedded_book_bytes = 0;

  uint64_t raw_bytes() const { return 2 * ledger.values; }  ///< the cache at 16 bits
  double stream_ratio() const { return compression_ratio(ledger.values, stream_bytes); }
};

FileRate rate_of(const CodesReader& codes);

/// The codec of one side of a file, and the rate of that side's streams.
struct SideBits {
  Side side = Side::key;
  std::string codec;  ///< of a pair: that of this side
  double bits_per_value = 0;
};
std::vector<SideBits> side_bits_of(const CodesReader& codes);

/// The rates of keys and values, separate unless they are coded together. If the codec counts symbols and needs no book, all codes
/// are read.
struct SideRates {
  std::span<const Side> sides;      ///< CodesInfo::sides()
  std::vector<SideLedger> ledgers;  ///< of each

  /// The ledger of one side; if both are coded together, that of both.
  const SideLedger& of(Side side) const { return ledgers[ledgers.size() > 1 && side == Side::value]; }
  /// The share of bits that is saved on values that are not exempt, counted as in the VQKV paper; only for codes that are ids alone.
  std::optional<double> saved_by_ids() const;
};
SideRates side_rates_of(const CodesReader& codes);

/// A note for the user on a file that is larger than its codec's options suggest; empty for all others, and for lossless codecs. A
/// file gets one if it is not smaller than the cache at 16 bits, or if all its streams take more than 1.5 times as many bits per
/// value as its codes take per coded value.
std::string rate_remark(const FileRate& rate);

/// "1,234", "never" or "-" (no book).
inline std::string break_even_text(const FileRate& rate) {
  if (rate.ledger.book_bytes == 0) return "-";
  return rate.rate.break_even_tokens ? grouped(*rate.rate.break_even_tokens) : "never";
}

/// The ledger, a line for each kind of bits, with bits per value and share of the file.
std::string ledger_table(const FileRate& rate);

/// "keys", "values", "keys and values".
inline std::string plural(Side side) {
  constexpr const char* kPlurals[] = {"keys", "values", "keys and values"};
  return kPlurals[static_cast<size_t>(side)];
}

/// For each side: the entropy of the symbols, and a line for each kind of bits.
std::string side_table(const SideRates& rates);

Json to_json(const FileRate& rate);
Json to_json(const SideLedger& ledger);

}  // namespace kvcodec::cli
