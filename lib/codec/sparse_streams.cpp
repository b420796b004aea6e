#include "lib/codec/sparse_streams.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/sorted_codes.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kIds = "ids", kCoefficients = "coefficients", kCount = "count", kScale = "scale",
                           kGain = "gain", kBlock = "block";

/// Numbers of a row of `block`.
enum : size_t { kBlockTokens, kIdBytes, kCoefficientBytes, kBlockNumbers };

/// Counts, and rows of `block`, read at a time.
constexpr uint64_t kRowsPerRead = 1 << 16;

/// The largest that the option `sparsity` takes.
constexpr uint64_t kMostPairs = 1 << 16;

/// What lib/sparse/sorted_codes.hpp takes; and more heads than any model has, so that products of sizes fit.
constexpr uint64_t kMostAtoms = uint64_t{1} << 31, kMostSignals = 1 << 16;

constexpr uint64_t kNibbles = 16;

template <class To, class From>
std::vector<To> converted(std::span<const From> values) {
  std::vector<To> out(values.size());
  std::ranges::transform(values, out.begin(), [](From value) { return static_cast<To>(value); });
  return out;
}

DType id_type(uint64_t atoms) { return atoms <= 65536 ? DType::u16 : DType::u32; }
DType count_type(uint64_t sparsity) { return sparsity < 256 ? DType::u8 : DType::u16; }

template <class T>
void append_unsigned(StreamStore& document, std::string_view stream, DType type, std::span<const T> values) {
  if (type == DType::u8)
    document.append_values<uint8_t>(stream, converted<uint8_t>(values));
  else if (type == DType::u32)
    document.append_values<uint32_t>(stream, converted<uint32_t>(values));
  else
    document.append_values<uint16_t>(stream, converted<uint16_t>(values));
}

template <class T>
std::vector<T> read_unsigned(const StreamReader& document, std::string_view stream, DType type,
                             uint64_t first, uint64_t count, uint64_t per_row) {
  const auto as = [&]<class Stored>(Stored) {
    const auto stored = document.read<Stored>(stream, first, count, per_row);
    if constexpr (std::is_same_v<Stored, T>)
      return stored;
    else
      return converted<T>(std::span<const Stored>(stored));
  };
  if (type == DType::u8) return as(uint8_t{});
  if (type == DType::u32) return as(uint32_t{});
  return as(uint16_t{});
}

/// A coefficient takes a bit at least, however it is stored: checked before room is made for pairs that a
/// damaged file only claims to have.
void check_pairs(uint64_t pairs, uint64_t bytes) {
  if (pairs / 8 > bytes || pairs > 8 * bytes)
    throw bad_input("stream '{}': {} pairs in {} bytes, which hold {} at most", kCoefficients, pairs, bytes,
                    8 * bytes);
}

void check_range(uint64_t there, uint64_t first, uint64_t count) {
  if (first > there || count > there - first)
    throw bad_input("there are {} tokens; tokens {} to {} are not all there", there, first, first + count);
}

}  // namespace

// Coefficients
// -----------------------------------------------------------------------------------------------------

std::vector<uint16_t> coefficients_in_f16(std::span<const float> coefficients) {
  std::vector<uint16_t> words(coefficients.size());
  narrow(DType::f16, coefficients, words);
  for (size_t i = 0; i < words.size(); ++i)
    if (!std::isfinite(f16_to_float(words[i])))
      throw bad_input(
          "a coefficient of {} is beyond the range of f16; train the dictionary with --normalize layer or "
          "signal",
          coefficients[i]);
  return words;
}

std::vector<float> dequantize_coefficients(CoefficientType type, const SparsePairs& pairs) {
  std::vector<float> coefficients(pairs.words.size());
  const auto refuse = [&](size_t k) {
    return bad_input("stream '{}': {:#x} is no finite number of type {}", kCoefficients, pairs.words[k],
                     name_of(type));
  };
  if (type == CoefficientType::f16) {
    widen(DType::f16, pairs.words, coefficients);
    for (size_t k = 0; k < coefficients.size(); ++k)
      if (!std::isfinite(coefficients[k])) throw refuse(k);
    return coefficients;
  }
  float numbers[256];
  for (size_t word = 0; word < std::size(numbers); ++word)
    numbers[word] = number_of(type, static_cast<uint16_t>(word));
  size_t k = 0;
  for (size_t i = 0; i < pairs.counts.size(); ++i) {
    const float scale = scale_from(pairs.scales[i]);
    for (const size_t end = k + pairs.counts[i]; k < end; ++k) {
      coefficients[k] = pairs.words[k] < std::size(numbers) ? numbers[pairs.words[k]] * scale : NAN;
      if (std::isnan(coefficients[k])) throw refuse(k);
    }
  }
  return coefficients;
}

// Streams
// ---------------------------------------------------------------------------------------------------------

std::vector<StreamSpec> SparseForm::streams() const {
  const std::vector<uint64_t> per_signal =
      per_head ? std::vector<uint64_t>{signals} : std::vector<uint64_t>{};
  std::vector<uint64_t> code = per_signal;
  code.push_back(sparsity);
  if (variable) code.clear();
  const DType word = coefficients == CoefficientType::f16 ? DType::f16 : DType::u8;
  const uint64_t bound = coefficients == CoefficientType::i4 ? kNibbles : 0;
  std::vector<StreamSpec> specs;
  if (sorted)
    specs = {{std::string(kIds), DType::u8, {}, Category::ids},
             {std::string(kCoefficients), DType::u8, {}, Category::payload},
             {std::string(kBlock), DType::u32, {kBlockNumbers}, Category::offsets}};
  else
    specs = {{std::string(kIds), id_type(atoms), code, Category::ids, atoms},
             {std::string(kCoefficients), word, code, Category::payload, bound}};
  if (variable)
    specs.push_back({std::string(kCount), count_type(sparsity), per_signal, Category::offsets, sparsity + 1});
  if (scale_bits(coefficients) > 0)
    specs.push_back({std::string(kScale), DType::u8, per_signal, Category::scales});
  if (gains) specs.push_back({std::string(kGain), DType::f16, per_signal, Category::scales});
  return specs;
}

SparseForm SparseForm::of(const Record& parameters, std::span<const StreamSpec> streams) {
  const auto find = [&](std::string_view name) -> const StreamSpec* {
    for (const StreamSpec& spec : streams)
      if (spec.name == name) return &spec;
    return nullptr;
  };
  const auto positive = [&](std::string_view name, uint64_t most) {
    const int64_t value = parameters.get_int(name);
    if (value < 1 || static_cast<uint64_t>(value) > most)
      throw bad_input("parameter {} is {}; it must be 1 to {}", name, value, most);
    return static_cast<uint64_t>(value);
  };
  SparseForm form;
  form.sparsity = positive("sparsity", kMostPairs);
  form.variable = parameters.get_double("error-target") > 0;
  form.coefficients = coefficient_type_from_name(parameters.get_string("coefficients"));
  form.sorted = parameters.find("sort-ids") && parameters.get_bool("sort-ids");
  form.gains = find(kGain) != nullptr;
  if (form.sorted) {
    form.atoms = positive("atoms", kMostAtoms);
    form.per_head = parameters.get_bool("per-head");
    form.signals = positive("signals", form.per_head ? kMostSignals : 1);
  } else {
    const StreamSpec *ids = find(kIds), *shape = form.variable ? find(kCount) : ids;
    if (!ids || !shape) throw bad_input("streams of sparse codes are missing");
    form.atoms = ids->index_bound;
    form.per_head = shape->row_shape.size() == (form.variable ? 1 : 2);
    form.signals = form.per_head ? shape->row_shape[0] : 1;
  }
  auto expected = form.streams();
  const auto by_name = [](const StreamSpec& a, const StreamSpec& b) { return a.name < b.name; };
  std::vector<StreamSpec> there(streams.begin(), streams.end());
  std::ranges::sort(expected, by_name);
  std::ranges::sort(there, by_name);
  if (!std::ranges::equal(expected, there)) throw bad_input("these are not the streams of sparse codes");
  return form;
}

Record parameters_of(const SparseForm& form, const Record& parameters) {
  Record record;
  for (const auto& [name, value] : parameters.items())
    if (name != "atoms" && name != "signals" && name != "per-head") record.set(name, value);
  record.set("sort-ids", form.sorted);
  if (!form.sorted) return record;
  record.set("atoms", static_cast<int64_t>(form.atoms));
  record.set("signals", static_cast<int64_t>(form.signals));
  record.set("per-head", form.per_head);
  return record;
}

void SparseCopyCodec::append(const GroupShape&, MatrixView<const float>, StreamStore&) const {
  throw failed("codes are copied, not encoded");
}

void SparseCopyCodec::decode(const GroupShape&, const StreamReader&, uint64_t, MatrixView<float>) const {
  throw failed("codes are copied, not decoded");
}

// Reading
// ---------------------------------------------------------------------------------------------------------

std::vector<uint32_t> SparseForm::read_counts(const StreamReader& document, uint64_t first,
                                              uint64_t count) const {
  auto counts = read_unsigned<uint32_t>(document, kCount, count_type(sparsity), first, count, signals);
  for (const uint32_t pairs : counts)
    if (pairs > sparsity)
      throw bad_input("stream '{}': {} pairs for a signal that has {} at most", kCount, pairs, sparsity);
  return counts;
}

/// Tokens, from one of the streams alone.
uint64_t SparseForm::stored_tokens(const StreamReader& document) const {
  if (variable) return document.rows(kCount);
  if (!sorted) return document.rows(kIds);
  const uint64_t blocks = document.rows(kBlock);
  if (blocks == 0) return 0;
  const auto last = document.read<uint32_t>(kBlock, blocks - 1, 1, kBlockNumbers);
  return (blocks - 1) * kSortedTokens + last[kBlockTokens];
}

uint64_t SparseForm::tokens(const StreamReader& document) const {
  const uint64_t tokens = stored_tokens(document), id_rows = document.rows(kIds),
                 coefficient_rows = document.rows(kCoefficients);
  if (sorted) {
    uint64_t sums[kBlockNumbers] = {};
    const uint64_t blocks = document.rows(kBlock);
    for (uint64_t done = 0; done < blocks; done += kRowsPerRead) {
      const uint64_t count = std::min(kRowsPerRead, blocks - done);
      const auto numbers = document.read<uint32_t>(kBlock, done, count, kBlockNumbers);
      for (uint64_t b = 0; b < count; ++b) {
        const uint32_t held = numbers[b * kBlockNumbers + kBlockTokens];
        if (done + b + 1 < blocks ? held != kSortedTokens : held == 0 || held > kSortedTokens)
          throw bad_input("stream '{}': block {} of {} has {} tokens", kBlock, done + b, blocks, held);
        for (size_t i = 0; i < kBlockNumbers; ++i) sums[i] += numbers[b * kBlockNumbers + i];
      }
    }
    if (sums[kBlockTokens] != tokens || sums[kIdBytes] != id_rows ||
        sums[kCoefficientBytes] != coefficient_rows)
      throw bad_input("stream '{}' adds up to {} tokens, {} and {} bytes; there are {}, {} and {}", kBlock,
                      sums[kBlockTokens], sums[kIdBytes], sums[kCoefficientBytes], tokens, id_rows,
                      coefficient_rows);
  } else if (coefficient_rows != id_rows) {
    throw bad_input("{} rows of '{}' and {} of '{}'", id_rows, kIds, coefficient_rows, kCoefficients);
  }
  if (variable && !sorted) {
    uint64_t sum = 0;
    for (uint64_t done = 0; done < tokens; done += kRowsPerRead) {
      const auto counts = read_counts(document, done, std::min(kRowsPerRead, tokens - done));
      sum = std::accumulate(counts.begin(), counts.end(), sum);
    }
    if (sum != id_rows)
      throw bad_input("stream '{}' adds up to {} pairs; there are {}", kCount, sum, id_rows);
  }
  for (const std::string_view stream : {kScale, kGain})
    if ((stream == kScale ? scale_bits(coefficients) > 0 : gains) && document.rows(stream) != tokens)
      throw bad_input("{} rows of '{}' for {} tokens", document.rows(stream), stream, tokens);
  return tokens;
}

SparsePairs SparseForm::read(const StreamReader& document, uint64_t first, uint64_t count) const {
  check_range(stored_tokens(document), first, count);
  SparsePairs pairs;
  if (count == 0) return pairs;
  if (sorted)
    read_sorted(document, first, count, pairs);
  else
    read_plain(document, first, count, pairs);
  if (scale_bits(coefficients) > 0) pairs.scales = document.read<uint8_t>(kScale, first, count, signals);
  if (gains) pairs.gains = document.read<uint16_t>(kGain, first, count, signals);
  return pairs;
}

void SparseForm::read_plain(const StreamReader& document, uint64_t first, uint64_t count,
                            SparsePairs& pairs) const {
  uint64_t first_row = first, rows = count, per_row = words_per_row();
  if (variable) {
    pairs.counts = read_counts(document, first, count);
    first_row = 0, per_row = 1;
    for (uint64_t done = 0; done < first; done += kRowsPerRead) {
      const auto before = read_counts(document, done, std::min(kRowsPerRead, first - done));
      first_row = std::accumulate(before.begin(), before.end(), first_row);
    }
    rows = std::accumulate(pairs.counts.begin(), pairs.counts.end(), uint64_t{0});
  }
  pairs.ids = read_unsigned<uint32_t>(document, kIds, id_type(atoms), first_row, rows, per_row);
  pairs.words = read_unsigned<uint16_t>(document, kCoefficients,
                                        coefficients == CoefficientType::f16 ? DType::u16 : DType::u8,
                                        first_row, rows, per_row);
  if (!variable) pairs.counts.assign(checked_mul(count, signals), static_cast<uint32_t>(sparsity));
  for (const uint32_t id : pairs.ids)
    if (id >= atoms) throw bad_input("stream '{}': atom {} of a dictionary of {}", kIds, id, atoms);
}

void SparseForm::read_sorted(const StreamReader& document, uint64_t first, uint64_t count,
                             SparsePairs& pairs) const {
  const uint64_t end = first + count;
  const uint64_t first_block = first / kSortedTokens, end_block = (end + kSortedTokens - 1) / kSortedTokens;
  // Whole blocks are decoded, so counts of their other tokens are needed too.
  const uint64_t block_first = first_block * kSortedTokens,
                 block_end = std::min(end_block * kSortedTokens, stored_tokens(document));
  std::vector<uint32_t> counts;
  if (variable) counts = read_counts(document, block_first, block_end - block_first);
  const uint64_t id_rows = document.rows(kIds), word_rows = document.rows(kCoefficients);
  struct Part {
    uint64_t id_begin = 0, word_begin = 0, pair_begin = 0;  // and those of the next one behind
  };
  std::vector<Part> parts(1);
  Part total;
  for (uint64_t done = 0; done < end_block; done += kRowsPerRead) {
    const uint64_t rows = std::min(kRowsPerRead, end_block - done);
    const auto numbers = document.read<uint32_t>(kBlock, done, rows, kBlockNumbers);
    for (uint64_t b = done; b < done + rows; ++b) {
      const uint32_t* row = numbers.data() + (b - done) * kBlockNumbers;
      if (b == first_block) parts[0] = total;
      total.id_begin += row[kIdBytes], total.word_begin += row[kCoefficientBytes];
      if (b < first_block) continue;
      const uint64_t begin = b * kSortedTokens - block_first,
                     tokens_here = std::min(kSortedTokens, block_end - b * kSortedTokens);
      if (row[kBlockTokens] != tokens_here)
        throw bad_input("stream '{}': block {} has {} tokens, not {}", kBlock, b, row[kBlockTokens],
                        tokens_here);
      uint64_t pairs_here = 0;
      if (variable)
        for (uint64_t i = begin * signals; i < (begin + tokens_here) * signals; ++i) pairs_here += counts[i];
      else
        pairs_here = tokens_here * words_per_row();
      check_pairs(pairs_here, row[kCoefficientBytes]);
      total.pair_begin += pairs_here;
      parts.push_back(total);
    }
  }
  if (total.id_begin > id_rows || total.word_begin > word_rows)
    throw bad_input("stream '{}': {} bytes of '{}' and {} of '{}'; there are {} and {}", kBlock,
                    total.id_begin, kIds, total.word_begin, kCoefficients, id_rows, word_rows);
  if (!variable) counts.assign((block_end - block_first) * signals, static_cast<uint32_t>(sparsity));
  const Part from = parts.front();
  const auto id_bytes = document.read<uint8_t>(kIds, from.id_begin, total.id_begin - from.id_begin, 1);
  const auto word_bytes =
      document.read<uint8_t>(kCoefficients, from.word_begin, total.word_begin - from.word_begin, 1);
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
            atoms, coefficient_bits(coefficients), std::span(counts).subspan(signal, here),
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

// Writing
// ---------------------------------------------------------------------------------------------------------

void SparseForm::append(SparsePairs pairs, StreamStore& document) const {
  if (pairs.counts.empty()) return;
  if (!variable && !std::ranges::all_of(pairs.counts, [&](uint32_t count) { return count == sparsity; })) {
    // Filled up with coefficient 0 of atom 0.
    uint16_t zero = 0;
    if (scale_bits(coefficients) > 0) round_to_nearest(coefficients, std::array{0.0f}, {&zero, 1});
    std::vector<uint32_t> ids(pairs.counts.size() * sparsity);
    std::vector<uint16_t> words(ids.size(), zero);
    size_t from = 0;
    for (size_t i = 0; i < pairs.counts.size(); from += pairs.counts[i++]) {
      std::copy_n(pairs.ids.begin() + static_cast<ptrdiff_t>(from), pairs.counts[i],
                  ids.begin() + static_cast<ptrdiff_t>(i * sparsity));
      std::copy_n(pairs.words.begin() + static_cast<ptrdiff_t>(from), pairs.counts[i],
                  words.begin() + static_cast<ptrdiff_t>(i * sparsity));
    }
    pairs.ids = std::move(ids), pairs.words = std::move(words);
    pairs.counts.assign(pairs.counts.size(), static_cast<uint32_t>(sparsity));
  }
  if (variable) append_unsigned<uint32_t>(document, kCount, count_type(sparsity), pairs.counts);
  if (scale_bits(coefficients) > 0) document.append_values<uint8_t>(kScale, pairs.scales);
  if (gains) document.append_values<uint16_t>(kGain, pairs.gains);
  if (sorted)
    append_sorted(std::move(pairs), document);
  else
    append_plain(pairs, document);
}

void SparseForm::append_plain(const SparsePairs& pairs, StreamStore& document) const {
  append_unsigned<uint32_t>(document, kIds, id_type(atoms), pairs.ids);
  append_unsigned<uint16_t>(document, kCoefficients,
                            coefficients == CoefficientType::f16 ? DType::u16 : DType::u8, pairs.words);
}

void SparseForm::append_sorted(SparsePairs pairs, StreamStore& document) const {
  sort_pairs(pairs.counts, pairs.ids, pairs.words);
  // A last block that is not full is taken back and made anew with what comes.
  const uint64_t blocks = document.rows(kBlock);
  if (blocks > 0) {
    const auto last = document.read<uint32_t>(kBlock, blocks - 1, 1, kBlockNumbers);
    if (last[kBlockTokens] < kSortedTokens) {
      const uint64_t id_there = document.rows(kIds), words_there = document.rows(kCoefficients);
      if (last[kIdBytes] > id_there || last[kCoefficientBytes] > words_there)
        throw bad_input("stream '{}': {} bytes of '{}' and {} of '{}'; there are {} and {}", kBlock,
                        last[kIdBytes], kIds, last[kCoefficientBytes], kCoefficients, id_there, words_there);
      SparsePairs before;
      if (variable) {
        // Counts of the new tokens stand behind those of the block already.
        const uint64_t first = (blocks - 1) * kSortedTokens;
        before.counts = read_counts(document, first, last[kBlockTokens]);
      } else {
        check_pairs(last[kBlockTokens] * words_per_row(), last[kCoefficientBytes]);
        before.counts.assign(last[kBlockTokens] * signals, static_cast<uint32_t>(sparsity));
      }
      const uint64_t id_rows = id_there - last[kIdBytes], word_rows = words_there - last[kCoefficientBytes];
      const auto id_part = document.read<uint8_t>(kIds, id_rows, last[kIdBytes], 1);
      const auto word_part = document.read<uint8_t>(kCoefficients, word_rows, last[kCoefficientBytes], 1);
      const uint64_t held = std::accumulate(before.counts.begin(), before.counts.end(), uint64_t{0});
      check_pairs(held, last[kCoefficientBytes]);
      before.ids.resize(held), before.words.resize(held);
      decode_sorted(id_part, word_part, atoms, coefficient_bits(coefficients), before.counts, before.ids,
                    before.words);
      document.truncate(kIds, id_rows);
      document.truncate(kCoefficients, word_rows);
      document.truncate(kBlock, blocks - 1);
      const auto in_front = [](auto& values, const auto& of) {
        values.insert(values.begin(), of.begin(), of.end());
      };
      in_front(pairs.counts, before.counts);
      in_front(pairs.ids, before.ids);
      in_front(pairs.words, before.words);
    }
  }
  const uint64_t tokens_here = pairs.counts.size() / signals;
  std::vector<uint64_t> first_pairs{0};  // of each block, and the end
  for (uint64_t token = 0; token < tokens_here; token += kSortedTokens) {
    const auto begin = pairs.counts.begin() + static_cast<ptrdiff_t>(token * signals);
    const auto end =
        pairs.counts.begin() + static_cast<ptrdiff_t>(std::min(token + kSortedTokens, tokens_here) * signals);
    first_pairs.push_back(std::accumulate(begin, end, first_pairs.back()));
  }
  std::vector<SortedBlock> coded(first_pairs.size() - 1);
  const auto tokens_of = [&](size_t b) { return std::min(kSortedTokens, tokens_here - b * kSortedTokens); };
  parallel_for(coded.size(), 1, [&](size_t begin, size_t end, int) {
    for (size_t b = begin; b < end; ++b) {
      const uint64_t first = first_pairs[b], count = first_pairs[b + 1] - first;
      coded[b] = encode_sorted(
          {std::span(pairs.counts).subspan(b * kSortedTokens * signals, tokens_of(b) * signals),
           std::span(pairs.ids).subspan(first, count), std::span(pairs.words).subspan(first, count)},
          atoms, coefficient_bits(coefficients));
    }
  });
  for (size_t b = 0; b < coded.size(); ++b) {
    if (std::max(coded[b].ids.size(), coded[b].words.size()) > std::numeric_limits<uint32_t>::max())
      throw failed("a block of {} bytes", std::max(coded[b].ids.size(), coded[b].words.size()));
    const uint32_t numbers[kBlockNumbers] = {static_cast<uint32_t>(tokens_of(b)),
                                             static_cast<uint32_t>(coded[b].ids.size()),
                                             static_cast<uint32_t>(coded[b].words.size())};
    document.append_values<uint8_t>(kIds, coded[b].ids);
    document.append_values<uint8_t>(kCoefficients, coded[b].words);
    document.append_values<uint32_t>(kBlock, numbers);
  }
}

void copy_codes(const SparseForm& from, const StreamReader& document, const SparseForm& to,
                StreamStore& out) {
  const uint64_t tokens = from.tokens(document);
  // Whole blocks, some megabytes at a time.
  const uint64_t step = kSortedTokens * std::max<uint64_t>(1, 1024 / from.signals / (1 + from.sparsity / 64));
  for (uint64_t first = 0; first < tokens; first += step)
    to.append(from.read(document, first, std::min(step, tokens - first)), out);
}

}  // namespace kvcodec
