#include "lib/sparse/codec/streams.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/codec/places.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/codec/unsigned.hpp"
#include "lib/sparse/sorted_codes.hpp"

namespace kvcodec {

using sparse::converted;
using sparse::read_unsigned;

namespace {

/// The largest that the option `sparsity` takes.
constexpr uint64_t kMostPairs = 1 << 16;

/// What lib/sparse/sorted_codes.hpp takes; and more heads than any model has, so that products of sizes fit.
constexpr uint64_t kMostAtoms = uint64_t{1} << 31, kMostSignals = 1 << 16;

constexpr uint64_t kNibbles = 16;

template <class T>
void append_unsigned(StreamStore& document, std::string_view stream, DType type, std::span<const T> values) {
  if (type == DType::u8)
    document.append_values<uint8_t>(stream, converted<uint8_t>(values));
  else if (type == DType::u32)
    document.append_values<uint32_t>(stream, converted<uint32_t>(values));
  else
    document.append_values<uint16_t>(stream, converted<uint16_t>(values));
}

}  // namespace

void check_pairs(uint64_t pairs, uint64_t bytes) {
  if (pairs / 8 > bytes || pairs > 8 * bytes)
    throw bad_input("stream '{}': {} pairs in {} bytes, which hold {} at most", kSparseCoefficients, pairs,
                    bytes, 8 * bytes);
}

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
    return bad_input("stream '{}': {:#x} is not a finite number of type {}", kSparseCoefficients,
                     pairs.words[k], name_of(type));
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
    specs = {{std::string(kSparseIds), DType::u8, {}, Category::ids},
             {std::string(kSparseCoefficients), DType::u8, {}, Category::payload},
             {std::string(kSparseBlock), DType::u32, {kBlockNumbers}, Category::offsets}};
  else
    specs = {{std::string(kSparseIds), id_type(), code, Category::ids, atoms},
             {std::string(kSparseCoefficients), word, code, Category::payload, bound}};
  if (variable)
    specs.push_back({std::string(kSparseCount), count_type(), per_signal, Category::offsets, sparsity + 1});
  if (const auto parts = part_streams(); !parts.empty()) specs.push_back(places_stream(parts.size()));
  if (scale_bits(coefficients) > 0)
    specs.push_back({std::string(kSparseScale), DType::u8, per_signal, Category::scales});
  if (gains) specs.push_back({std::string(kSparseGain), DType::f16, per_signal, Category::scales});
  return specs;
}

std::vector<std::string_view> SparseForm::part_streams() const {
  if (sorted) return {kSparseIds, kSparseCoefficients};
  if (variable) return {kSparseIds};
  return {};
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
  form.coefficients = parameters.get_enum<CoefficientType>("coefficients");
  form.sorted = parameters.find("sort-ids") && parameters.get_bool("sort-ids");
  form.gains = find(kSparseGain) != nullptr;
  if (form.sorted) {
    form.atoms = positive("atoms", kMostAtoms);
    form.per_head = parameters.get_bool("per-head");
    form.signals = positive("signals", form.per_head ? kMostSignals : 1);
  } else {
    const StreamSpec *ids = find(kSparseIds), *shape = form.variable ? find(kSparseCount) : ids;
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

// Reading
// ---------------------------------------------------------------------------------------------------------

std::vector<uint32_t> SparseForm::read_counts(const StreamReader& document, uint64_t first,
                                              uint64_t count) const {
  auto counts = read_unsigned<uint32_t>(document, kSparseCount, count_type(), first, count, signals);
  for (const uint32_t pairs : counts)
    if (pairs > sparsity)
      throw bad_input("stream '{}': {} pairs for a signal that has {} at most", kSparseCount, pairs,
                      sparsity);
  return counts;
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
  const uint64_t tokens_before = variable ? document.rows(kSparseCount) : 0;
  if (variable) append_unsigned<uint32_t>(document, kSparseCount, count_type(), pairs.counts);
  if (scale_bits(coefficients) > 0) document.append_values<uint8_t>(kSparseScale, pairs.scales);
  if (gains) document.append_values<uint16_t>(kSparseGain, pairs.gains);
  if (sorted)
    append_sorted(std::move(pairs), document);
  else
    append_plain(pairs, tokens_before, document);
}

void SparseForm::append_plain(const SparsePairs& pairs, uint64_t tokens_before, StreamStore& document) const {
  if (variable) {
    PlaceWriter places(part_streams(), place_interval(tokens_of_unit()), document, tokens_before);
    for (size_t i = 0; i < pairs.counts.size(); i += signals) {
      const auto of_token = std::span(pairs.counts).subspan(i, signals);
      const uint64_t count = std::accumulate(of_token.begin(), of_token.end(), uint64_t{0});
      places.add({&count, 1});
    }
    places.store(document);
  }
  append_unsigned<uint32_t>(document, kSparseIds, id_type(), pairs.ids);
  append_unsigned<uint16_t>(document, kSparseCoefficients, word_type(), pairs.words);
}

/// A last block that is not full is taken out of the streams, and put in front of `pairs`. Returns how many
/// blocks are left, all of them full.
uint64_t SparseForm::take_back_last_block(SparsePairs& pairs, StreamStore& document) const {
  const uint64_t blocks = document.rows(kSparseBlock);
  if (blocks == 0) return 0;
  const auto last = document.read<uint32_t>(kSparseBlock, blocks - 1, 1, kBlockNumbers);
  if (last[kBlockTokens] >= kSortedTokens) return blocks;
  const uint64_t id_there = document.rows(kSparseIds), words_there = document.rows(kSparseCoefficients);
  if (last[kIdBytes] > id_there || last[kCoefficientBytes] > words_there)
    throw bad_input("stream '{}': {} bytes of '{}' and {} of '{}'; there are {} and {}", kSparseBlock,
                    last[kIdBytes], kSparseIds, last[kCoefficientBytes], kSparseCoefficients, id_there,
                    words_there);
  SparsePairs before;
  if (variable) {
    // Counts of the new tokens stand behind those of the block already.
    before.counts = read_counts(document, (blocks - 1) * kSortedTokens, last[kBlockTokens]);
  } else {
    check_pairs(last[kBlockTokens] * pairs_per_token(), last[kCoefficientBytes]);
    before.counts.assign(last[kBlockTokens] * signals, static_cast<uint32_t>(sparsity));
  }
  const uint64_t id_rows = id_there - last[kIdBytes], word_rows = words_there - last[kCoefficientBytes];
  const auto id_part = document.read<uint8_t>(kSparseIds, id_rows, last[kIdBytes], 1);
  const auto word_part = document.read<uint8_t>(kSparseCoefficients, word_rows, last[kCoefficientBytes], 1);
  const uint64_t held = std::accumulate(before.counts.begin(), before.counts.end(), uint64_t{0});
  check_pairs(held, last[kCoefficientBytes]);
  before.ids.resize(held), before.words.resize(held);
  decode_sorted(id_part, word_part, atoms, coefficient_bits(coefficients), before.counts, before.ids,
                before.words);
  document.truncate(kSparseIds, id_rows);
  document.truncate(kSparseCoefficients, word_rows);
  document.truncate(kSparseBlock, blocks - 1);
  const auto in_front = [](auto& values, const auto& of) {
    values.insert(values.begin(), of.begin(), of.end());
  };
  in_front(pairs.counts, before.counts);
  in_front(pairs.ids, before.ids);
  in_front(pairs.words, before.words);
  return blocks - 1;
}

void SparseForm::append_sorted(SparsePairs pairs, StreamStore& document) const {
  sort_pairs(pairs.counts, pairs.ids, pairs.words);
  const uint64_t full_blocks = take_back_last_block(pairs, document);
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
  PlaceWriter places(part_streams(), place_interval(tokens_of_unit()), document, full_blocks);
  for (size_t b = 0; b < coded.size(); ++b) {
    if (std::max(coded[b].ids.size(), coded[b].words.size()) > std::numeric_limits<uint32_t>::max())
      throw failed("a block of {} bytes", std::max(coded[b].ids.size(), coded[b].words.size()));
    const uint32_t numbers[kBlockNumbers] = {static_cast<uint32_t>(tokens_of(b)),
                                             static_cast<uint32_t>(coded[b].ids.size()),
                                             static_cast<uint32_t>(coded[b].words.size())};
    const uint64_t bytes[] = {coded[b].ids.size(), coded[b].words.size()};
    if (tokens_of(b) == kSortedTokens) places.add(bytes);
    document.append_values<uint8_t>(kSparseIds, coded[b].ids);
    document.append_values<uint8_t>(kSparseCoefficients, coded[b].words);
    document.append_values<uint32_t>(kSparseBlock, numbers);
  }
  places.store(document);
}

}  // namespace kvcodec
