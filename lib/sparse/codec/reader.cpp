#include "lib/sparse/codec/reader.hpp"

#include <algorithm>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/codec/unsigned.hpp"
#include "lib/sparse/sorted_codes.hpp"

namespace kvcodec {

using sparse::read_unsigned;

SparseReader::SparseReader(const SparseForm& form, const StreamReader& document)
    : form_(form), document_(document), places_(form.part_streams(), place_interval(form.tokens_of_unit())) {}

/// Tokens, from one of the streams alone.
uint64_t SparseReader::stored_tokens() const {
  if (form_.variable) return document_.rows(kSparseCount);
  if (!form_.sorted) return document_.rows(kSparseIds);
  const uint64_t blocks = document_.rows(kSparseBlock);
  if (blocks == 0) return 0;
  const auto last = document_.read<uint32_t>(kSparseBlock, blocks - 1, 1, kBlockNumbers);
  return checked_add(checked_mul(blocks - 1, kSortedTokens), last[kBlockTokens]);
}

void SparseReader::refresh() {
  const uint64_t tokens = stored_tokens();
  if (form_.sorted) {
    const uint64_t blocks = document_.rows(kSparseBlock);
    if (blocks != tokens / kSortedTokens + (tokens % kSortedTokens > 0))
      throw bad_input("stream '{}' has {} blocks and ends with token {}; blocks have {} tokens", kSparseBlock,
                      blocks, tokens, kSortedTokens);
    places_.grow(document_, blocks, tokens / kSortedTokens);
  } else {
    const uint64_t id_rows = document_.rows(kSparseIds), word_rows = document_.rows(kSparseCoefficients);
    if (id_rows != word_rows)
      throw bad_input("{} rows of '{}' and {} of '{}'", id_rows, kSparseIds, word_rows, kSparseCoefficients);
    if (form_.variable) places_.grow(document_, tokens, tokens);
  }
  const auto check_rows = [&](std::string_view stream) {
    if (const uint64_t rows = document_.rows(stream); rows != tokens)
      throw bad_input("{} rows of '{}' for {} tokens", rows, stream, tokens);
  };
  if (form_.variable) check_rows(kSparseCount);
  if (scale_bits(form_.coefficients) > 0) check_rows(kSparseScale);
  if (form_.gains) check_rows(kSparseGain);
  tokens_ = tokens;
}

SparsePairs SparseReader::read(uint64_t first, uint64_t count) const {
  if (first > tokens_ || count > tokens_ - first)
    throw bad_input("there are {} tokens; tokens {} to {} are not all there", tokens_, first, first + count);
  SparsePairs pairs;
  if (count == 0) return pairs;
  if (form_.sorted)
    read_sorted(first, count, pairs);
  else
    read_plain(first, count, pairs);
  if (scale_bits(form_.coefficients) > 0)
    pairs.scales = document_.read<uint8_t>(kSparseScale, first, count, form_.signals);
  if (form_.gains) pairs.gains = document_.read<uint16_t>(kSparseGain, first, count, form_.signals);
  return pairs;
}

// One code behind the other
// -----------------------------------------------------------------------------------------------------

/// Where the pairs of a token begin, in a variable form.
uint64_t SparseReader::first_pair(uint64_t token) const {
  const auto read_tokens = [&](Interval<Nothing>& interval, uint64_t last) {
    const auto counts = form_.read_counts(document_, interval.end(), last - interval.end());
    for (size_t i = 0; i < counts.size(); i += form_.signals) {
      const auto of_token = std::span(counts).subspan(i, form_.signals);
      const uint64_t pairs = std::accumulate(of_token.begin(), of_token.end(), uint64_t{0});
      interval.add({}, {&pairs, 1});
    }
  };
  return places_.at(token, document_, read_tokens).begin(token, 0);
}

/// Throws Error(bad_input) unless tokens from `first` on, which have so many pairs, go on where `places` says
/// or end with the streams.
void SparseReader::check_pairs_of(uint64_t first, uint64_t first_pair,
                                  const std::vector<uint32_t>& counts) const {
  uint64_t end = first_pair;
  const uint64_t tokens = counts.size() / form_.signals;
  for (uint64_t token = 0; token < tokens; ++token) {
    for (uint64_t i = token * form_.signals; i < (token + 1) * form_.signals; ++i) end += counts[i];
    places_.check(document_, first + token + 1, {&end, 1});
  }
}

void SparseReader::read_plain(uint64_t first, uint64_t count, SparsePairs& pairs) const {
  uint64_t first_row = first, rows = count, per_row = form_.pairs_per_token();
  if (form_.variable) {
    pairs.counts = form_.read_counts(document_, first, count);
    first_row = first_pair(first), per_row = 1;
    rows = std::accumulate(pairs.counts.begin(), pairs.counts.end(), uint64_t{0});
    check_pairs_of(first, first_row, pairs.counts);
  } else {
    pairs.counts.assign(checked_mul(count, form_.signals), static_cast<uint32_t>(form_.sparsity));
  }
  pairs.ids = read_unsigned<uint32_t>(document_, kSparseIds, form_.id_type(), first_row, rows, per_row);
  pairs.words =
      read_unsigned<uint16_t>(document_, kSparseCoefficients, form_.word_type(), first_row, rows, per_row);
  for (const uint32_t id : pairs.ids)
    if (id >= form_.atoms)
      throw bad_input("stream '{}': atom {} of a dictionary of {}", kSparseIds, id, form_.atoms);
}

// Sorted blocks
// -----------------------------------------------------------------------------------------------------

const Interval<SparseReader::Nothing>& SparseReader::blocks_from(uint64_t block) const {
  return places_.at(block, document_, [&](Interval<Nothing>& interval, uint64_t last) {
    const uint64_t first = interval.end();
    const auto numbers = document_.read<uint32_t>(kSparseBlock, first, last - first, kBlockNumbers);
    for (uint64_t b = first; b < last; ++b) {
      const auto row = std::span(numbers).subspan((b - first) * kBlockNumbers, kBlockNumbers);
      const uint64_t tokens = std::min(kSortedTokens, tokens_ - b * kSortedTokens);
      if (row[kBlockTokens] != tokens)
        throw bad_input("stream '{}': block {} has {} tokens, not {}", kSparseBlock, b, row[kBlockTokens],
                        tokens);
      interval.add({}, std::array<uint64_t, 2>{row[kIdBytes], row[kCoefficientBytes]});
    }
  });
}

void SparseReader::read_sorted(uint64_t first, uint64_t count, SparsePairs& pairs) const {
  const uint64_t end = first + count, signals = form_.signals;
  const uint64_t first_block = first / kSortedTokens, end_block = (end + kSortedTokens - 1) / kSortedTokens;
  // Whole blocks are decoded, so counts of their other tokens are needed too.
  const uint64_t block_first = first_block * kSortedTokens,
                 block_end = std::min(end_block * kSortedTokens, tokens_);
  std::vector<uint32_t> counts;
  if (form_.variable) counts = form_.read_counts(document_, block_first, block_end - block_first);
  struct Part {
    uint64_t id_begin = 0, word_begin = 0, pair_begin = 0;
  };
  std::vector<Part> parts;  // of each block, and of the one behind
  uint64_t pairs_before = 0;
  for (uint64_t b = first_block; b < end_block;) {
    const Interval<Nothing>& interval = blocks_from(b);
    for (const uint64_t stop = std::min(interval.end(), end_block); b < stop; ++b) {
      parts.push_back({interval.begin(b, 0), interval.begin(b, 1), pairs_before});
      const uint64_t begin = b * kSortedTokens - block_first,
                     tokens_here = std::min(kSortedTokens, block_end - b * kSortedTokens);
      uint64_t pairs_here = 0;
      if (form_.variable)
        for (uint64_t i = begin * signals; i < (begin + tokens_here) * signals; ++i) pairs_here += counts[i];
      else
        pairs_here = tokens_here * form_.pairs_per_token();
      check_pairs(pairs_here, interval.begin(b + 1, 1) - interval.begin(b, 1));
      pairs_before += pairs_here;
    }
    if (b == end_block) parts.push_back({interval.begin(b, 0), interval.begin(b, 1), pairs_before});
  }
  if (!form_.variable)
    counts.assign((block_end - block_first) * signals, static_cast<uint32_t>(form_.sparsity));
  const Part from = parts.front(), total = parts.back();
  const auto id_bytes = document_.read<uint8_t>(kSparseIds, from.id_begin, total.id_begin - from.id_begin, 1);
  const auto word_bytes =
      document_.read<uint8_t>(kSparseCoefficients, from.word_begin, total.word_begin - from.word_begin, 1);
  pairs.ids.resize(total.pair_begin);
  pairs.words.resize(total.pair_begin);
  parallel_for(parts.size() - 1, 1, [&](size_t begin, size_t stop, int) {
    for (size_t b = begin; b < stop; ++b) {
      const Part &part = parts[b], &next = parts[b + 1];
      const uint64_t signal = b * kSortedTokens * signals;
      const uint64_t here = std::min<uint64_t>(kSortedTokens * signals, counts.size() - signal);
      const uint64_t pairs_here = next.pair_begin - part.pair_begin;
      with_context(fmt::format("block {}", first_block + b), [&] {
        decode_sorted(
            std::span(id_bytes).subspan(part.id_begin - from.id_begin, next.id_begin - part.id_begin),
            std::span(word_bytes)
                .subspan(part.word_begin - from.word_begin, next.word_begin - part.word_begin),
            form_.atoms, coefficient_bits(form_.coefficients), std::span(counts).subspan(signal, here),
            std::span(pairs.ids).subspan(part.pair_begin, pairs_here),
            std::span(pairs.words).subspan(part.pair_begin, pairs_here));
      });
    }
  });
  const auto sum = [&](uint64_t a, uint64_t b) {
    return static_cast<ptrdiff_t>(std::accumulate(counts.begin() + static_cast<ptrdiff_t>(a * signals),
                                                  counts.begin() + static_cast<ptrdiff_t>(b * signals),
                                                  uint64_t{0}));
  };
  const auto wanted_counts = std::span(counts).subspan((first - block_first) * signals, count * signals);
  pairs.counts.assign(wanted_counts.begin(), wanted_counts.end());
  const ptrdiff_t skip = sum(0, first - block_first), wanted = sum(first - block_first, end - block_first);
  const auto cut = [&](auto& values) {
    values.erase(values.begin() + skip + wanted, values.end());
    values.erase(values.begin(), values.begin() + skip);
  };
  cut(pairs.ids);
  cut(pairs.words);
}

}  // namespace kvcodec
