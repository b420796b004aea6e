// Functions of the codec kvcomp: coding of blocks, products with symbols. codec_test.cpp tests the promises of the codec as a
// whole.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/kvcomp/block.hpp"
#include "lib/kvcomp/products.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace kvcomp_test {

using namespace kvcodec;

namespace {

constexpr EntropyChoice kChoices[] = {EntropyChoice::huffman, EntropyChoice::rans, EntropyChoice::none,
                                      EntropyChoice::automatic};

/// Symbols around the zero symbol, now and then an exact one.
Matrix<uint8_t> random_symbols(const BlockShape& shape, double deviation, uint64_t exact_in, Rng& rng) {
  Matrix<uint8_t> symbols(shape.tokens, shape.dims);
  for (size_t i = 0; i < symbols.size(); ++i) {
    const double level = std::clamp(std::round(deviation * rng.normal()), -127.0, 127.0);
    symbols.data()[i] = static_cast<uint8_t>(kZeroSymbol + level);
    if (exact_in > 0 && rng.below(exact_in) == 0) symbols.data()[i] = kExactSymbol;
  }
  return symbols;
}

Matrix<uint16_t> random_values(const BlockShape& shape, Rng& rng) {
  Matrix<uint16_t> values(shape.tokens, shape.dims);
  for (size_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<uint16_t>(rng.below(1 << 16));
  return values;
}

/// Checks that a coded block gives back the symbols, and the values of those that are exact or have no code.
void check_decoded(const BlockCoder& coder, const BlockShape& shape, const CodedBlock& block,
                   const Matrix<uint8_t>& symbols, const Matrix<uint16_t>& values) {
  Matrix<uint8_t> runs(shape.runs(), shape.run_length());
  std::vector<EscapedValue> exact;
  REQUIRE_EQ(block.counts.size(), coder.count_bytes(shape, block.mode));
  coder.decode_runs(shape, block.mode, block.counts, block.payload, runs, exact);
  test::Mismatch wrong;
  size_t next = 0;
  for (size_t i = 0; i < runs.rows(); ++i)
    for (size_t j = 0; j < runs.cols(); ++j) {
      const uint8_t symbol = shape.by_channel ? symbols(j, i) : symbols(i, j);
      if (runs(i, j) != kExactSymbol) {
        wrong.compare(runs(i, j), symbol, i, j);
        continue;
      }
      REQUIRE_LT(next, exact.size());
      const EscapedValue& value = exact[next++];
      wrong.require(value.row == i && value.position == j &&
                        value.value == (shape.by_channel ? values(j, i) : values(i, j)),
                    i, j);
    }
  CHECK_EQ(wrong.report(), "");
  CHECK_EQ(next, exact.size());
}

}  // namespace

TEST_CASE("kvcomp blocks: symbols and exact values come back, by every coder, for any shape") {
  Rng rng(1);
  for (const EntropyChoice choice : kChoices)
    for (const auto& [tokens, dims] :
         {std::pair<size_t, size_t>{64, 128}, {64, 64}, {1, 200}, {200, 1}, {33, 31}})
      for (const bool by_channel : {false, true})
        for (const uint64_t exact_in : {uint64_t{0}, uint64_t{50}}) {
          const BlockShape shape{tokens, dims, by_channel};
          const auto symbols = random_symbols(shape, 1.2, exact_in, rng);
          const auto values = random_values(shape, rng);
          const auto counts = histogram({symbols.data(), symbols.size()}, 256);
          const BlockCoder coder = BlockCoder::from_counts(counts, 1.2, choice, shape);
          const BlockCoder copy = BlockCoder::read(coder.write());
          CHECK_EQ(copy.write(), coder.write());
          const CodedBlock block = coder.encode(shape, symbols, values, 0);
          REQUIRE_NE(block.mode, kRawBlock);
          CHECK_LT(block.bytes(), shape.raw_bytes());
          check_decoded(copy, shape, block, symbols, values);
        }
}

TEST_CASE(
    "kvcomp blocks: symbols that the book does not know are stored exactly, and what does not shrink stays raw") {
  Rng rng(2);
  const BlockShape shape{64, 64, false};
  for (const EntropyChoice choice : kChoices) {
    const auto known = random_symbols({1024, 64, false}, 0.5, 0, rng);
    const BlockCoder coder =
        BlockCoder::from_counts(histogram({known.data(), known.size()}, 256), 1, choice, shape);
    auto symbols = random_symbols(shape, 0.5, 0, rng);
    symbols(3, 5) = 250;
    const auto values = random_values(shape, rng);
    const CodedBlock block = coder.encode(shape, symbols, values, 0);
    REQUIRE_NE(block.mode, kRawBlock);
    check_decoded(coder, shape, block, symbols, values);

    std::fill_n(symbols.data(), symbols.size(), uint8_t{250});
    const CodedBlock raw = coder.encode(shape, symbols, values, 0);
    CHECK_EQ(raw.mode, kRawBlock);
    CHECK(raw.counts.empty());
    REQUIRE_EQ(raw.payload.size(), shape.raw_bytes());
    CHECK_EQ(std::memcmp(raw.payload.data(), values.data(), raw.payload.size()), 0);

    // A block that barely shrinks counts as not shrinking if its side data are larger than the saving.
    const CodedBlock dear =
        coder.encode(shape, random_symbols(shape, 0.5, 0, rng), values, shape.raw_bytes());
    CHECK_EQ(dear.mode, kRawBlock);
  }
}

TEST_CASE("kvcomp blocks: a book is made from few or no symbols, and serves what comes later") {
  Rng rng(3);
  const BlockShape shape{64, 128, true};
  for (const EntropyChoice choice : kChoices)
    for (const size_t seen : {0, 1, 100}) {
      std::vector<uint64_t> counts(256);
      counts[kZeroSymbol + 3] = seen;
      const BlockCoder coder = BlockCoder::from_counts(counts, 1.0, choice, shape);
      const auto symbols = random_symbols(shape, 1.0, 0, rng);
      const CodedBlock block = coder.encode(shape, symbols, random_values(shape, rng), 0);
      CHECK_LT(block.bytes() * 8, shape.symbols() * 4);  // the entropy is about 2 bits
    }
}

TEST_CASE("kvcomp blocks: auto takes rANS where symbols cost little, and never the larger book") {
  Rng rng(4);
  const BlockShape shape{64, 128, false};
  for (const double deviation : {0.25, 0.5, 1.0, 3.0}) {
    const auto symbols = random_symbols({4096, 128, false}, deviation, 0, rng);
    const auto counts = histogram({symbols.data(), symbols.size()}, 256);
    const auto bytes = [&](EntropyChoice choice) {
      const BlockCoder coder = BlockCoder::from_counts(counts, 1, choice, shape);
      size_t total = 0;
      for (size_t first = 0; first < symbols.rows(); first += shape.tokens) {
        const MatrixView<const uint8_t> part = symbols.view().rows(first, shape.tokens);
        total += coder.encode(shape, part, random_values(shape, rng), 0).bytes();
      }
      return double(total);
    };
    const double chosen = bytes(EntropyChoice::automatic);
    CHECK_LE(chosen, 1.005 * std::min(bytes(EntropyChoice::huffman), bytes(EntropyChoice::rans)));
    CHECK_LT(bytes(EntropyChoice::huffman), 1.01 * bytes(EntropyChoice::none));
  }
}

TEST_CASE("kvcomp blocks: books and modes that no encoder writes are refused") {
  const BlockShape shape{64, 64, false};
  const std::vector<uint64_t> none(256);
  for (const EntropyChoice choice : {EntropyChoice::huffman, EntropyChoice::rans}) {
    const BlockCoder coder = BlockCoder::from_counts(none, 1, choice, shape);
    const std::vector<uint8_t> book = coder.write();
    for (size_t size = 0; size < book.size(); ++size)
      CHECK_THROWS_AS(BlockCoder::read(std::span(book).first(size)), Error);
    auto longer = book;
    longer.push_back(0);
    CHECK_THROWS_AS(BlockCoder::read(longer), Error);
    auto other = book;
    other[0] = 2;
    CHECK_THROWS_AS(BlockCoder::read(other), Error);
    CHECK_THROWS_AS(coder.count_bytes(shape, 17), Error);
  }
}

TEST_CASE("transpose of bytes, for any shape") {
  Rng rng(5);
  for (const size_t rows : {0, 1, 15, 16, 17, 64, 100})
    for (const size_t cols : {0, 1, 16, 33, 128}) {
      Matrix<uint8_t> in(rows, cols + 2), out(cols, rows);
      for (size_t i = 0; i < in.size(); ++i) in.data()[i] = static_cast<uint8_t>(rng.below(256));
      transpose<uint8_t>(in.view().columns(1, cols), out);
      test::Mismatch wrong;
      for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < cols; ++j) wrong.compare(out(j, i), in(i, j + 1), j, i);
      CHECK_EQ(wrong.report(), "");
    }
}

TEST_CASE("products of symbols and vectors, at every level of instructions") {
  Rng rng(6);
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (const size_t rows : {0, 1, 7, 64})
      for (const size_t n : {0, 1, 7, 8, 15, 16, 17, 64, 127, 128})
        for (const size_t count : {0, 1, 2, 3, 4, 5, 9}) {
          CAPTURE(rows);
          CAPTURE(n);
          CAPTURE(count);
          Matrix<uint8_t> runs(rows, n + 1);
          Matrix<float> vectors(count, n + 2), out(count, rows + 3);
          for (size_t i = 0; i < runs.size(); ++i) runs.data()[i] = static_cast<uint8_t>(rng.below(255));
          for (size_t i = 0; i < vectors.size(); ++i) vectors.data()[i] = static_cast<float>(rng.normal());
          for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<float>(rng.normal());
          const Matrix<float> before = out;
          multiply_symbols(runs.view().columns(1, n), vectors.view().columns(1, n),
                           out.view().columns(2, rows));
          for (size_t g = 0; g < count; ++g)
            for (size_t r = 0; r < rows; ++r) {
              double sum = before(g, r + 2), magnitude = std::abs(sum);
              for (size_t i = 0; i < n; ++i) {
                const double term = (double(runs(r, i + 1)) - 127) * vectors(g, i + 1);
                sum += term;
                magnitude += std::abs(term);
              }
              CHECK_LE(std::abs(out(g, r + 2) - sum), 1e-6 * magnitude);
            }
          for (size_t g = 0; g < count; ++g)
            CHECK((out(g, 0) == before(g, 0) && out(g, rows + 2) == before(g, rows + 2)));
        }
  }
}

TEST_CASE("kvcomp: no logit of the queries is off by more than --max-logit-error") {
  Rng rng(7);
  const int dims = 32, heads = 2, group = 3;
  const size_t tokens = 300;
  Matrix<float> keys(tokens, size_t(heads * dims)), queries(20, size_t(heads * group * dims));
  for (size_t i = 0; i < keys.size(); ++i)
    keys.data()[i] = round_to(DType::bf16, static_cast<float>(3 * rng.normal() + (i % 7 == 0 ? 9 : 0)));
  for (size_t i = 0; i < queries.size(); ++i)
    queries.data()[i] = static_cast<float>(rng.normal() * (i % size_t(dims) == 3 ? 20 : 1));
  std::vector<uint64_t> query_tokens(20);
  std::iota(query_tokens.begin(), query_tokens.end(), tokens - 20);
  const CodecEntry& entry = find_codec("kvcomp");
  for (const char* unit : {"channel", "block"})
    for (const double bound : {0.01, 0.3, 4.0}) {
      CAPTURE(unit);
      CAPTURE(bound);
      const auto options = entry.make_options();
      for (const OptionField& field : options->fields()) {
        if (field.name == "max-logit-error") set_value(field, bound);
        if (field.name == "key-quant") set_value(field, std::string(unit));
      }
      const auto codec = entry.make(
          *options, {.num_layers = 1, .heads = heads, .head_dim = dims, .query_heads = heads * group});
      const GroupShape shape = usual_group(0, 1, heads, dims, Side::key);
      DocumentRows rows(keys.view());
      CHECK_THROWS_AS(encode_in_memory(*codec, shape, {{rows}}), Error);  // no queries
      rows.query_tokens = query_tokens;
      rows.queries = queries;
      const Encoded encoded = encode_in_memory(*codec, shape, {{rows}});
      Matrix<float> decoded(tokens, keys.cols());
      codec->open(shape, encoded.document(0))->decode(0, decoded);
      double worst = 0;
      for (size_t q = 0; q < queries.rows(); ++q)
        for (int head = 0; head < heads * group; ++head)
          for (size_t t = 0; t < tokens; ++t) {
            // A sum of magnitudes, as if all errors had the sign of the query: the bound is made for this sum.
            double error = 0;
            for (int c = 0; c < dims; ++c) {
              const size_t j = size_t(head / group * dims + c);
              error += std::abs(queries(q, size_t(head * dims + c)) * (double(decoded(t, j)) - keys(t, j)));
            }
            worst = std::max(worst, error / std::sqrt(double(dims)));
          }
      CHECK_LE(worst, bound);
      if (bound > 0.1) CHECK_GT(worst, 0);  // below, everything is stored exactly
    }
}

TEST_CASE("kvcomp: the newest tokens wait, fewer than window + block of them, and the others are in blocks") {
  constexpr uint64_t kWindow = 40, kBlock = 16;
  const CodecEntry& entry = find_codec("kvcomp");
  const auto options = entry.make_options();
  take_paper_form(entry, *options);
  for (const OptionField& field : options->fields()) {
    if (field.name == "window") set_value(field, static_cast<int64_t>(kWindow));
    if (field.name == "block") set_value(field, static_cast<int64_t>(kBlock));
  }
  const auto codec = entry.make(*options, {.num_layers = 1, .heads = 2, .head_dim = 16});
  Rng rng(8);
  Matrix<float> rows(150, 32);
  for (size_t i = 0; i < rows.size(); ++i)
    rows.data()[i] = round_to(DType::bf16, static_cast<float>(rng.normal()));
  for (const Side side : kSides) {
    const GroupShape shape = usual_group(0, 1, 2, 16, side);
    Encoded encoded(codec->streams(shape));
    StreamStore& document = encoded.add_document();
    const DocumentRows all[] = {DocumentRows(rows)};
    run_survey(*codec->survey(shape), all, document);
    const ViewPtr view = codec->open(shape, document);
    for (size_t tokens = 1; tokens <= rows.rows(); ++tokens) {
      codec->append(shape, rows.view().rows(tokens - 1, 1), document);
      const uint64_t blocks = tokens < kWindow ? 0 : (tokens - kWindow) / kBlock;
      REQUIRE_EQ(document.rows("modes"), blocks);
      REQUIRE_EQ(document.rows("tail"), tokens - blocks * kBlock);
      view->refresh();
      REQUIRE_EQ(view->tokens(), tokens);
    }
    Matrix<float> decoded(rows.rows(), rows.cols());
    view->decode(0, decoded);
    const size_t exact = kWindow + (rows.rows() - kWindow) % kBlock;
    const auto is_exact = [&](size_t t) { return std::ranges::equal(decoded.row(t), rows.row(t)); };
    for (size_t t = 0; t < rows.rows(); ++t) CHECK_EQ(is_exact(t), t >= rows.rows() - exact);
    document.truncate("tail", kWindow);
    CHECK_NOTHROW(view->refresh());
    document.truncate("tail", kWindow - 1);
    CHECK_THROWS_WITH_AS(view->refresh(), doctest::Contains("tail"), Error);
  }
}

}  // namespace kvcomp_test
