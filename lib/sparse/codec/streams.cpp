#include "lib/sparse/codec/streams.hpp"

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

/// The largest that the option `sparsity` takes.
constexpr uint64_t kMaxPairs = 1 << 16;

/// The most that lib/sparse/sorted_codes.hpp takes; and more heads than any model has, so that sizes multiplied fit.
constexpr uint64_t kMaxAtoms = uint64_t{1} << 31, kMaxSignals = 1 << 16;

static uint64_t sum_of(std::span<const uint32_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

/// A coefficient takes a bit at least, however it is stored: throws Error(bad_input) for pairs that so many
/// bytes cannot hold, before room is made for what a damaged file only claims to have.
static void check_pairs(uint64_t pairs, uint64_t bytes) {
  if (pairs / 8 > bytes || pairs > 8 * bytes)
    throw bad_input("stream '{}': {} pairs in {} bytes, which hold {} at most", kSparseCoefficients, pairs,
                    bytes, 8 * bytes);
}

// Coefficients

std::vector<uint16_t> coefficients_in_f16(std::span<const float> coefficients) {
  std::vector<uint16_t> words(coefficients.size());
  narrow(DType::f16, coefficients, words);
  for (size_t i = 0; i < words.size(); ++i)
    if (!std::isfinite(f16_to_float(words[i])))
      throw bad_input(
          "a coefficient of {} is beyond the range of f16; train the dictionary with --normalize layer or signal",
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
  size_t k = 0;
  for (size_t i = 0; i < pairs.counts.size(); ++i) {
    const float scale = scale_from(pairs.scales[i]);
    for (const size_t end = k + pairs.counts[i]; k < end; ++k) {
      if (pairs.words[k] == 0 || pairs.words[k] >= 2 * kCoefficientOffset) throw refuse(k);
      coefficients[k] = static_cast<float>(pairs.words[k] - kCoefficientOffset) * scale;
    }
  }
  return coefficients;
}

// Streams

std::vector<StreamSpec> SparseForm::streams() const {
  std::vector<StreamSpec> specs;
  const auto add = [&](std::string_view name, DType type, std::vector<uint64_t> shape, Category category,
                       uint64_t bound = 0) {
    specs.push_back({std::string(name), type, std::move(shape), category, bound});
  };
  const std::vector<uint64_t> per_signal(per_head ? 1 : 0, signals);
  std::vector<uint64_t> code = per_signal;
  code.push_back(sparsity);
  if (variable) code.clear();
  if (sorted) {
    add(kSparseIds, DType::u8, {}, Category::ids);
    add(kSparseCoefficients, DType::u8, {}, Category::payload);
    add(kSparseBlock, DType::u32, {kBlockNumbers}, Category::offsets);
  } else {
    add(kSparseIds, id_type(), code, Category::ids, atoms);
    add(kSparseCoefficients, scaled() ? DType::u8 : DType::f16, code, Category::payload);
  }
  if (variable) add(kSparseCount, count_type(), per_signal, Category::offsets, sparsity + 1);
  if (const auto parts = part_streams(); !parts.empty()) specs.push_back(places_stream(parts.size()));
  if (scaled()) add(kSparseScale, DType::u8, per_signal, Category::scales);
  if (gains) add(kSparseGain, DType::f16, per_signal, Category::scales);
  return specs;
}

SparseForm SparseForm::of(const Record& parameters, std::span<const StreamSpec> streams) {
  const auto find = [&](std::string_view name) -> const StreamSpec* {
    const auto found = std::ranges::find(streams, name, &StreamSpec::name);
    return found == streams.end() ? nullptr : &*found;
  };
  const auto positive = [&](std::string_view name, uint64_t limit) {
    const int64_t value = parameters.get_int(name);
    if (value < 1 || static_cast<uint64_t>(value) > limit)
      throw bad_input("parameter {} is {}; it must be 1 to {}", name, value, limit);
    return static_cast<uint64_t>(value);
  };
  SparseForm form;
  form.sparsity = positive("sparsity", kMaxPairs);
  form.variable = parameters.get_double("error-target") > 0;
  form.coefficients = parameters.get_enum<CoefficientType>("coefficients");
  form.sorted = parameters.find("sort-ids") && parameters.get_bool("sort-ids");
  form.gains = find(kSparseGain) != nullptr;
  if (form.sorted) {
    form.atoms = positive("atoms", kMaxAtoms);
    form.per_head = parameters.get_bool("per-head");
    form.signals = positive("signals", form.per_head ? kMaxSignals : 1);
  } else {
    const StreamSpec *ids = find(kSparseIds), *shape = form.variable ? find(kSparseCount) : ids;
    if (!ids || !shape) throw bad_input("streams of sparse codes are missing");
    form.atoms = ids->index_bound;
    form.per_head = shape->row_shape.size() == (form.variable ? 1 : 2);
    form.signals = form.per_head ? shape->row_shape[0] : 1;
  }
  auto expected = form.streams();
  std::vector<StreamSpec> there(streams.begin(), streams.end());
  for (auto* specs : {&expected, &there}) std::ranges::sort(*specs, {}, &StreamSpec::name);
  if (expected != there) throw bad_input("these are not the streams of sparse codes");
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

void SparseForm::append(SparsePairs pairs, StreamStore& document) const {
  if (pairs.counts.empty()) return;
  if (!variable && !std::ranges::all_of(pairs.counts, [&](uint32_t count) { return count == sparsity; })) {
    // Filled up with coefficient 0 of atom 0.
    std::vector<uint32_t> ids(pairs.counts.size() * sparsity);
    std::vector<uint16_t> words(ids.size(), scaled() ? kCoefficientOffset : 0);
    size_t from = 0;
    for (size_t i = 0; i < pairs.counts.size(); from += pairs.counts[i++]) {
      std::copy_n(pairs.ids.data() + from, pairs.counts[i], ids.data() + i * sparsity);
      std::copy_n(pairs.words.data() + from, pairs.counts[i], words.data() + i * sparsity);
    }
    pairs.ids = std::move(ids), pairs.words = std::move(words);
    pairs.counts.assign(pairs.counts.size(), static_cast<uint32_t>(sparsity));
  }
  const uint64_t tokens_before = variable ? document.rows(kSparseCount) : 0;
  const SparsePairs waiting = sorted ? take_back_last_block(document) : SparsePairs();
  if (variable) append_unsigned<uint32_t>(document, kSparseCount, count_type(), pairs.counts);
  if (scaled()) document.append_values<uint8_t>(kSparseScale, pairs.scales);
  if (gains) document.append_values<uint16_t>(kSparseGain, pairs.gains);
  if (sorted) {
    sort_pairs(pairs.counts, pairs.ids, pairs.words);
    const auto put_in_front = [](auto& values, const auto& others) {
      values.insert(values.begin(), others.begin(), others.end());
    };
    put_in_front(pairs.counts, waiting.counts);
    put_in_front(pairs.ids, waiting.ids);
    put_in_front(pairs.words, waiting.words);
    return append_blocks(pairs, document);
  }
  if (variable) {
    PlaceWriter places(part_streams(), place_interval(tokens_of_unit()), document, tokens_before);
    for (size_t i = 0; i < pairs.counts.size(); i += signals) {
      const uint64_t count = sum_of(std::span(pairs.counts).subspan(i, signals));
      places.add({&count, 1});
    }
    places.store(document);
  }
  append_unsigned<uint32_t>(document, kSparseIds, id_type(), pairs.ids);
  append_unsigned<uint16_t>(document, kSparseCoefficients, word_type(), pairs.words);
}

/// Takes a last block that is not full out of the streams. Returns its codes.
SparsePairs SparseForm::take_back_last_block(StreamStore& document) const {
  SparseReader reader(*this, document);
  reader.refresh();
  const uint64_t tokens = reader.tokens() % kSortedTokens;
  if (tokens == 0) return {};
  SparsePairs pairs = reader.read(reader.tokens() - tokens, tokens);
  const uint64_t full_blocks = document.rows(kSparseBlock) - 1;
  const auto last = document.read<uint32_t>(kSparseBlock, full_blocks, 1, kBlockNumbers);
  document.truncate(kSparseIds, document.rows(kSparseIds) - last[kIdBytes]);
  document.truncate(kSparseCoefficients, document.rows(kSparseCoefficients) - last[kCoefficientBytes]);
  document.truncate(kSparseBlock, full_blocks);
  return pairs;
}

/// Adds blocks of sorted codes behind full blocks.
void SparseForm::append_blocks(const SparsePairs& pairs, StreamStore& document) const {
  const uint64_t per_block = kSortedTokens * signals;
  const auto counts_of = [&](size_t b) {
    return std::span<const uint32_t>(pairs.counts)
        .subspan(b * per_block, std::min<uint64_t>(per_block, pairs.counts.size() - b * per_block));
  };
  std::vector<SortedBlock> coded((pairs.counts.size() + per_block - 1) / per_block);
  std::vector<uint64_t> firsts{0};  // the first pair of each block, and the end
  for (size_t b = 0; b < coded.size(); ++b) firsts.push_back(firsts.back() + sum_of(counts_of(b)));
  parallel_each(coded.size(), 1, [&](size_t b) {
    const uint64_t first = firsts[b], count = firsts[b + 1] - first;
    coded[b] = encode_sorted({counts_of(b), std::span(pairs.ids).subspan(first, count),
                              std::span(pairs.words).subspan(first, count)},
                             atoms, word_bits());
  });
  PlaceWriter places(part_streams(), place_interval(tokens_of_unit()), document, document.rows(kSparseBlock));
  for (size_t b = 0; b < coded.size(); ++b) {
    const uint64_t tokens = counts_of(b).size() / signals;
    const uint64_t bytes[] = {coded[b].ids.size(), coded[b].words.size()};
    if (const uint64_t limit = std::ranges::max(bytes); limit > std::numeric_limits<uint32_t>::max())
      throw failed("a block of {} bytes", limit);
    const uint32_t numbers[kBlockNumbers] = {static_cast<uint32_t>(tokens), static_cast<uint32_t>(bytes[0]),
                                             static_cast<uint32_t>(bytes[1])};
    if (tokens == kSortedTokens) places.add(bytes);
    document.append_values<uint8_t>(kSparseIds, coded[b].ids);
    document.append_values<uint8_t>(kSparseCoefficients, coded[b].words);
    document.append_values<uint32_t>(kSparseBlock, numbers);
  }
  places.store(document);
}

// Reading documents

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
  if (form_.scaled()) check_rows(kSparseScale);
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
  if (form_.scaled()) pairs.scales = document_.read<uint8_t>(kSparseScale, first, count, form_.signals);
  if (form_.gains) pairs.gains = document_.read<uint16_t>(kSparseGain, first, count, form_.signals);
  return pairs;
}

/// The place where the pairs of a token begin, in a variable form.
uint64_t SparseReader::first_pair(uint64_t token) const {
  const auto read_tokens = [&](Interval<Nothing>& interval, uint64_t last) {
    const auto counts = form_.read_counts(document_, interval.end(), last - interval.end());
    for (size_t i = 0; i < counts.size(); i += form_.signals) {
      const uint64_t pairs = sum_of(std::span(counts).subspan(i, form_.signals));
      interval.add({}, {&pairs, 1});
    }
  };
  return places_.at(token, document_, read_tokens).begin(token, 0);
}

void SparseReader::read_plain(uint64_t first, uint64_t count, SparsePairs& pairs) const {
  uint64_t first_row = first, rows = count, per_row = form_.pairs_per_token();
  if (form_.variable) {
    pairs.counts = form_.read_counts(document_, first, count);
    first_row = first_pair(first), rows = 0, per_row = 1;
    // Each token goes on where `places` says, or ends with the streams.
    for (uint64_t token = 0; token < count; ++token) {
      rows += sum_of(std::span(pairs.counts).subspan(token * form_.signals, form_.signals));
      const uint64_t end = first_row + rows;
      places_.check(document_, first + token + 1, {&end, 1});
    }
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
      const uint64_t pairs_here =
          form_.variable ? sum_of(std::span(counts).subspan(begin * signals, tokens_here * signals))
                         : tokens_here * form_.pairs_per_token();
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
  parallel_each(parts.size() - 1, 1, [&](size_t b) {
    const Part &part = parts[b], &next = parts[b + 1];
    const auto bytes_of = [](const std::vector<uint8_t>& bytes, uint64_t begin, uint64_t stop) {
      return std::span(bytes).subspan(begin, stop - begin);
    };
    const uint64_t signal = b * kSortedTokens * signals, pairs_here = next.pair_begin - part.pair_begin;
    with_context(fmt::format("block {}", first_block + b), [&] {
      decode_sorted(
          {bytes_of(id_bytes, part.id_begin - from.id_begin, next.id_begin - from.id_begin),
           bytes_of(word_bytes, part.word_begin - from.word_begin, next.word_begin - from.word_begin)},
          form_.atoms, form_.word_bits(),
          std::span(counts).subspan(signal,
                                    std::min<uint64_t>(kSortedTokens * signals, counts.size() - signal)),
          std::span(pairs.ids).subspan(part.pair_begin, pairs_here),
          std::span(pairs.words).subspan(part.pair_begin, pairs_here));
    });
  });
  const auto keep = [](auto& values, uint64_t skip, uint64_t wanted) {
    values.erase(values.begin() + static_cast<ptrdiff_t>(skip + wanted), values.end());
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(skip));
  };
  const uint64_t skip = sum_of(std::span(counts).first((first - block_first) * signals));
  keep(counts, (first - block_first) * signals, count * signals);
  keep(pairs.ids, skip, sum_of(counts));
  keep(pairs.words, skip, sum_of(counts));
  pairs.counts = std::move(counts);
}

// Copying

namespace {

class SparseCopyView final : public DocumentView {
 public:
  SparseCopyView(const SparseForm& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), reader_(form, document) {}

 protected:
  uint64_t take_in() override {
    reader_.refresh();
    return reader_.tokens();
  }
  void decode_rows(uint64_t, MatrixView<float>) const override {
    throw failed("codes are copied, not decoded");
  }

 private:
  SparseReader reader_;
};

}  // namespace

void SparseCopyCodec::append(const GroupShape&, MatrixView<const float>, StreamStore&) const {
  throw failed("codes are copied, not encoded");
}

ViewPtr SparseCopyCodec::view_of(const GroupShape& shape, const StreamReader& document) const {
  return std::make_unique<SparseCopyView>(form(shape.side), shape, document);
}

void copy_codes(const SparseForm& from, const StreamReader& document, const SparseForm& to,
                StreamStore& out) {
  SparseReader reader(from, document);
  reader.refresh();
  const uint64_t tokens = reader.tokens();
  // Whole blocks, some megabytes at a time.
  const uint64_t step = kSortedTokens * std::max<uint64_t>(1, 1024 / from.signals / (1 + from.sparsity / 64));
  for (uint64_t first = 0; first < tokens; first += step)
    to.append(reader.read(first, std::min(step, tokens - first)), out);
}

}  // namespace kvcodec
