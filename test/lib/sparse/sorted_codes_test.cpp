#include "lib/sparse/sorted_codes.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/codec/encoded.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/codec/streams.hpp"
#include "test/test.hpp"

namespace sorted_codes_test {

using namespace kvcodec;

namespace {

struct Pairs {
  std::vector<uint32_t> counts, ids;
  std::vector<uint16_t> words;
  PairsView view() const { return {counts, ids, words}; }
};

/// Codes of distinct atoms, as pursuit makes them, with words that are not all equally likely.
Pairs random_pairs(const std::vector<uint32_t>& counts, uint64_t atoms, unsigned word_bits, Rng& rng) {
  Pairs pairs{.counts = counts, .ids = {}, .words = {}};
  for (const uint32_t count : counts) {
    std::vector<uint32_t> ids;
    while (ids.size() < count) {
      const auto id = static_cast<uint32_t>(rng.below(atoms));
      if (count > atoms / 2 || std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    pairs.ids.insert(pairs.ids.end(), ids.begin(), ids.end());
    for (uint32_t k = 0; k < count; ++k) {
      const double level = std::clamp(rng.normal() * 0.15, -0.49, 0.49) + 0.5;
      pairs.words.push_back(static_cast<uint16_t>(level * (1 << word_bits)));
    }
  }
  return pairs;
}

}  // namespace

TEST_CASE("sorted codes come back: any counts, atoms and words") {
  Rng rng(50);
  for (const uint64_t atoms : {uint64_t{1}, uint64_t{2}, uint64_t{17}, uint64_t{300}, uint64_t{8192},
                               uint64_t{1} << 20, uint64_t{1} << 31})
    for (const unsigned bits : {4u, 8u, 16u})
      for (const std::vector<uint32_t>& counts :
           {std::vector<uint32_t>{}, std::vector<uint32_t>{0}, std::vector<uint32_t>{0, 1, 0},
            std::vector<uint32_t>{1, 2, 3, 5, 8, 0, 13}, std::vector<uint32_t>(40, 16),
            std::vector<uint32_t>(256, 9)}) {
        CAPTURE(atoms);
        CAPTURE(bits);
        CAPTURE(counts.size());
        Pairs pairs = random_pairs(counts, atoms, bits, rng);
        const Pairs before = pairs;
        sort_pairs(pairs.counts, pairs.ids, pairs.words);
        size_t first = 0;
        for (const uint32_t count : counts) {  // the same pairs, in order
          std::vector<std::pair<uint32_t, uint16_t>> wanted, got;
          for (size_t k = first; k < first + count; ++k) {
            wanted.emplace_back(before.ids[k], before.words[k]);
            got.emplace_back(pairs.ids[k], pairs.words[k]);
          }
          std::ranges::sort(wanted);
          CHECK(wanted == got);
          first += count;
        }
        const SortedBlock block = encode_sorted(pairs.view(), atoms, bits);
        Pairs back{.counts = counts,
                   .ids = std::vector<uint32_t>(pairs.ids.size()),
                   .words = std::vector<uint16_t>(pairs.words.size())};
        decode_sorted({block.ids, block.words}, atoms, bits, back.counts, back.ids, back.words);
        CHECK(back.ids == pairs.ids);
        CHECK(back.words == pairs.words);
      }
}

TEST_CASE("sorted codes of 64 of 8,192 atoms take within two percent of the bits of a set") {
  Rng rng(51);
  const Pairs unsorted = random_pairs(std::vector<uint32_t>(256, 64), 8192, 8, rng);
  Pairs pairs = unsorted;
  sort_pairs(pairs.counts, pairs.ids, pairs.words);
  const SortedBlock block = encode_sorted(pairs.view(), 8192, 8);
  const double set_bits = (std::lgamma(8193) - std::lgamma(65) - std::lgamma(8192 - 64 + 1)) / std::log(2.0);
  const double bits = 8.0 * double(block.ids.size()) / 256;
  MESSAGE(bits << " bits per set, " << set_bits << " at least; coefficients "
               << 8.0 * double(block.words.size()) / 256);
  CHECK_LE(bits, 1.02 * set_bits);
  CHECK_GE(bits, set_bits);
  CHECK_LE(block.words.size(), 256 * 64);
}

TEST_CASE("sorted codes: damaged parts are refused or give ids of the dictionary") {
  Rng rng(52);
  Pairs pairs = random_pairs(std::vector<uint32_t>(30, 40), 500, 8, rng);
  sort_pairs(pairs.counts, pairs.ids, pairs.words);
  const SortedBlock block = encode_sorted(pairs.view(), 500, 8);
  std::vector<uint32_t> ids(pairs.ids.size());
  std::vector<uint16_t> words(pairs.words.size());
  size_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    SortedBlock bad = block;
    auto& part = i % 2 ? bad.ids : bad.words;
    if (i % 7 == 0)
      part.resize(rng.below(part.size()));
    else
      part[i % 3 == 0 ? rng.below(40) : rng.below(part.size())] = static_cast<uint8_t>(rng.below(256));
    try {
      decode_sorted({bad.ids, bad.words}, 500, 8, pairs.counts, ids, words);
      CHECK(std::ranges::all_of(ids, [](uint32_t id) { return id < 500; }));
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      ++refused;
    }
  }
  CHECK(refused > 1000);
  CHECK_THROWS_AS(decode_sorted({{}, block.words}, 500, 8, pairs.counts, ids, words), Error);
}

TEST_CASE("coefficients come back as FORMAT.md says: in f16, or in 8 bits with a scale") {
  const std::vector<float> given{1.5f, -0.25f, 0};
  SparsePairs pairs;
  pairs.counts = {2, 0, 1};
  pairs.words = coefficients_in_f16(given);
  CHECK(dequantize_coefficients(CoefficientType::f16, pairs) == given);
  CHECK_THROWS_AS(coefficients_in_f16(std::vector{1e9f}), Error);
  pairs.words = {255, 1, 128}, pairs.scales = {8 * 23 + 1, 7, 0};  // scales of 9 and 15 / 2^23
  CHECK(dequantize_coefficients(CoefficientType::i8, pairs) == std::vector<float>{127 * 9, -127 * 9, 0});
  pairs.words[1] = 0;
  CHECK_THROWS_WITH_AS(dequantize_coefficients(CoefficientType::i8, pairs),
                       "stream 'coefficients': 0x0 is not a finite number of type i8", Error);
}

namespace {

uint64_t tokens_of(const SparseForm& form, const StreamReader& document) {
  SparseReader reader(form, document);
  reader.refresh();
  return reader.tokens();
}

SparsePairs read(const SparseForm& form, const StreamReader& document, uint64_t first, uint64_t count) {
  SparseReader reader(form, document);
  reader.refresh();
  return reader.read(first, count);
}

}  // namespace

TEST_CASE("forms of sparse codes: copied from each to each, whole or in pieces, any range of tokens") {
  Rng rng(54);
  for (const bool variable : {false, true})
    for (const uint64_t signals : {1, 3})
      for (const CoefficientType type : {CoefficientType::f16, CoefficientType::i8}) {
        SparseForm plain{.atoms = 70000,
                         .sparsity = 6,
                         .signals = signals,
                         .per_head = signals > 1,
                         .variable = variable,
                         .gains = signals > 1,
                         .coefficients = type,
                         .sorted = false};
        SparseForm sorted = plain;
        sorted.sorted = true;
        constexpr size_t kTokens = 700;
        std::vector<uint32_t> counts;
        for (size_t i = 0; i < kTokens * signals; ++i) counts.push_back(static_cast<uint32_t>(rng.below(7)));
        Pairs random = random_pairs(counts, plain.atoms, plain.word_bits(), rng);
        sort_pairs(random.counts, random.ids, random.words);
        SparsePairs pairs{
            .counts = counts, .ids = random.ids, .words = random.words, .scales = {}, .gains = {}};
        if (plain.scaled())
          for (size_t i = 0; i < counts.size(); ++i)
            pairs.scales.push_back(static_cast<uint8_t>(rng.below(256)));
        if (plain.gains)
          for (size_t i = 0; i < counts.size(); ++i)
            pairs.gains.push_back(static_cast<uint16_t>(rng.below(30000)));
        Encoded in_plain(plain.streams());
        plain.append(pairs, in_plain.add_document());
        CHECK_EQ(tokens_of(plain, in_plain.document(0)), kTokens);
        Encoded whole(sorted.streams()), pieces(sorted.streams()), back(plain.streams());
        copy_codes(plain, in_plain.document(0), sorted, whole.add_document());
        StreamStore& grown = pieces.add_document();
        for (size_t first = 0; first < kTokens;) {
          const size_t count = std::min<size_t>(1 + rng.below(300), kTokens - first);
          sorted.append(read(plain, in_plain.document(0), first, count), grown);
          first += count;
        }
        for (const StreamSpec& spec : whole.specs())
          CHECK(std::ranges::equal(whole.bytes(spec.name), pieces.bytes(spec.name)));
        CHECK_EQ(tokens_of(sorted, whole.document(0)), kTokens);
        // Padding pairs of atom 0 come first once sorted, so the decoded pairs are compared with the sorted ones.
        const SparsePairs all = read(sorted, whole.document(0), 0, kTokens);
        SparsePairs wanted = read(plain, in_plain.document(0), 0, kTokens);
        sort_pairs(wanted.counts, wanted.ids, wanted.words);
        CHECK(all.counts == wanted.counts);
        CHECK(all.ids == wanted.ids);
        CHECK(all.words == wanted.words);
        CHECK(all.scales == wanted.scales);
        CHECK(all.gains == wanted.gains);
        copy_codes(sorted, whole.document(0), plain, back.add_document());
        const SparsePairs returned = read(plain, back.document(0), 0, kTokens);
        CHECK(returned.ids == wanted.ids);
        CHECK(returned.words == wanted.words);
        for (const auto& [first, count] :
             {std::pair<size_t, size_t>{0, 1}, {255, 2}, {256, 256}, {3, 600}, {699, 1}}) {
          const SparsePairs part = read(sorted, whole.document(0), first, count);
          const auto skip =
              std::accumulate(wanted.counts.begin(), wanted.counts.begin() + ptrdiff_t(first * signals), 0);
          CHECK(std::equal(part.ids.begin(), part.ids.end(), wanted.ids.begin() + skip));
          CHECK_EQ(part.ids.size(), std::accumulate(part.counts.begin(), part.counts.end(), size_t{0}));
          CHECK(std::equal(part.words.begin(), part.words.end(), wanted.words.begin() + skip));
          CHECK(std::equal(part.counts.begin(), part.counts.end(),
                           wanted.counts.begin() + ptrdiff_t(first * signals)));
        }
        CHECK_THROWS_AS(read(sorted, whole.document(0), 0, kTokens + 1), Error);
        const Record parameters = [&] {
          Record record;
          record.set("sparsity", int64_t{6});
          record.set("error-target", variable ? 0.5 : 0.0);
          record.set("coefficients", std::string(name_of(type)));
          return record;
        }();
        for (const SparseForm& form : {plain, sorted}) {
          const SparseForm found = SparseForm::of(parameters_of(form, parameters), form.streams());
          CHECK(found.streams() == form.streams());
          CHECK_EQ(found.atoms, form.atoms);
          CHECK_EQ(found.signals, form.signals);
          CHECK_EQ(found.sorted, form.sorted);
        }
      }
}

TEST_CASE("forms of sparse codes: parameters beyond all bounds are refused") {
  SparseForm form{.atoms = 500, .sparsity = 6, .signals = 3, .per_head = true, .sorted = true};
  Record parameters;
  parameters.set("error-target", 0.0);
  parameters.set("coefficients", std::string("f16"));
  const auto with = [&](std::string_view name, Scalar value) {
    Record record = parameters_of(form, parameters);
    record.set("sparsity", int64_t{6});
    record.set(name, std::move(value));
    return record;
  };
  const auto streams = form.streams();
  CHECK(SparseForm::of(with("signals", int64_t{3}), streams) == form);
  for (const char* name : {"sparsity", "signals"})
    for (const int64_t value :
         {int64_t{-1}, int64_t{0}, int64_t{65537}, int64_t{1} << 31, int64_t{1} << 62}) {
      CAPTURE(name);
      CAPTURE(value);
      CHECK_THROWS_AS(SparseForm::of(with(name, value), streams), Error);
    }
  CHECK_THROWS_AS(SparseForm::of(with("atoms", (int64_t{1} << 31) + 1), streams), Error);
  CHECK_THROWS_WITH_AS(SparseForm::of(with("per-head", false), streams),
                       "parameter signals is 3; it must be 1 to 1", Error);
}

TEST_CASE("sorted codes that claim more pairs than their bytes hold are refused before room is made") {
  const SparseForm form{.atoms = 500, .sparsity = 4, .signals = 1, .sorted = true};
  Encoded encoded(form.streams());
  StreamStore& document = encoded.add_document();
  SparsePairs pairs;
  for (uint32_t i = 0; i < 300; ++i)
    for (uint32_t k = 0; k < 4; ++k) {
      if (k == 0) pairs.counts.push_back(4);
      pairs.ids.push_back((i + 100 * k) % 500);
      pairs.words.push_back(static_cast<uint16_t>(i));
    }
  form.append(pairs, document);
  CHECK_EQ(read(form, document, 0, 300).ids.size(), 1200);
  SparseForm larger = form;  // 2^16 signals of 2^16 pairs: 2^40 pairs of 256 tokens
  larger.sparsity = larger.signals = 1 << 16;
  larger.per_head = true;
  for (const auto& [first, count] : {std::pair<uint64_t, uint64_t>{0, 300}, {0, 1}, {299, 1}})
    CHECK_THROWS_WITH_AS(read(larger, document, first, count), doctest::Contains("which hold"), Error);
  SparseForm wider = form;  // 200 pairs of the 44 tokens in the last block
  wider.sparsity = 200;
  CHECK_THROWS_WITH_AS(wider.append({.counts = {200},
                                     .ids = std::vector<uint32_t>(200),
                                     .words = std::vector<uint16_t>(200),
                                     .scales = {},
                                     .gains = {}},
                                    document),
                       doctest::Contains("which hold"), Error);
}

}  // namespace sorted_codes_test
