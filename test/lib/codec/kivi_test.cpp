// Properties of the codec kivi beyond codec_test.cpp: its layout, its sizes, its window.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/lib/codec/stored_bytes.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace kivi_test {

using namespace kvcodec;

namespace {

std::unique_ptr<Codec> make_kivi(const CodecContext& context, const Record& options) {
  return codec_from_record(find_codec("kivi"), options, context);
}

Record options_of(int64_t bits, int64_t group, int64_t value_group, int64_t window) {
  Record record;
  record.set("bits", bits);
  record.set("key-group", group);
  record.set("value-group", value_group);
  record.set("window", window);
  record.set("sink", int64_t{0});
  return record;
}

Matrix<float> random_rows(size_t rows, size_t columns, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> x(rows, columns);
  for (size_t i = 0; i < x.size(); ++i) x.data()[i] = round_to(DType::bf16, static_cast<float>(rng.normal()));
  return x;
}

uint64_t bytes_of(const Encoded& encoded) {
  uint64_t total = 0;
  for (const Category category : kCategories) total += test::stored_bytes(encoded, category);
  return total;
}

}  // namespace

TEST_CASE("kivi: two bits in groups of 32 with f16 metadata are 3 bits per value, keys and values") {
  const CodecContext context{.num_layers = 1, .heads = 8, .head_dim = 128};
  for (const Side side : kSides)
    for (const int64_t bits : {2, 4}) {
      const auto codec = make_kivi(context, options_of(bits, 32, 32, 128));
      const GroupShape shape = usual_group(0, 1, 8, 128, side);
      Encoded encoded(codec->streams(shape));
      codec->append(shape, random_rows(1024 + 128, shape.width(), 1), encoded.add_document());
      const uint64_t values = 1024 * shape.width();
      CHECK_EQ(test::stored_bytes(encoded, Category::payload) * 8, values * static_cast<uint64_t>(bits));
      CHECK_EQ(test::stored_bytes(encoded, Category::scales) * 8, values);
      CHECK_EQ(test::stored_bytes(encoded, Category::exempt) * 8, 128 * shape.width() * 16);
    }
}

TEST_CASE("kivi: the newest tokens wait, fewer than window + group of them") {
  const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 64};
  const GroupShape shape = usual_group(0, 1, 1, 64, Side::value);
  const auto codec = make_kivi(context, options_of(2, 32, 32, 128));
  Encoded encoded(codec->streams(shape));
  StreamStore& document = encoded.add_document();
  const Matrix<float> rows = random_rows(400, 64, 2);
  for (size_t tokens = 1; tokens <= rows.rows(); ++tokens) {
    codec->append(shape, rows.view().rows(tokens - 1, 1), document);
    const uint64_t quantized = tokens < 160 ? 0 : (tokens - 128) / 32 * 32;
    REQUIRE_EQ(document.rows("codes"), quantized);
    REQUIRE_EQ(document.rows("tail"), tokens - quantized);
    Matrix<float> newest(1, 64);
    codec->open(shape, document)->decode(tokens - 1, newest);
    REQUIRE(std::ranges::equal(newest.row(0), rows.row(tokens - 1)));
  }
}

TEST_CASE("kivi: codes lie as documented, scales per key channel and per group of value channels") {
  constexpr int kHeads = 2, kDim = 13, kBits = 3, kGroup = 4, kValueGroup = 5;
  constexpr size_t kHeadBytes = 5, kHeadGroups = 3;  // 13 codes of 3 bits; 5 + 5 + 3 channels
  const CodecContext context{.num_layers = 1, .heads = kHeads, .head_dim = kDim};
  const Matrix<float> rows = random_rows(2 * kGroup, kHeads * kDim, 3);
  for (const Side side : kSides) {
    const auto codec = make_kivi(context, options_of(kBits, kGroup, kValueGroup, 0));
    const GroupShape shape = usual_group(0, 1, kHeads, kDim, side);
    Encoded encoded(codec->streams(shape));
    codec->append(shape, rows, encoded.add_document());
    const size_t row_scales = side == Side::key ? kHeads * kDim : kHeads * kHeadGroups;
    const auto read_halves = [&](const char* name) {
      return encoded.document(0).read<uint16_t>(name, 0, encoded.document(0).rows(name), row_scales);
    };
    const auto scales = read_halves("scales"), zeros = read_halves("zeros");
    const auto codes = encoded.document(0).read<uint8_t>("codes", 0, rows.rows(), kHeads * kHeadBytes);
    test::Mismatch wrong;
    for (size_t t = 0; t < rows.rows(); ++t)
      for (size_t h = 0; h < kHeads; ++h) {
        BitReader reader({codes.data() + (t * kHeads + h) * kHeadBytes, kHeadBytes});
        for (size_t c = 0; c < kDim; ++c) {
          // The group's smallest and largest value, computed directly.
          float low = INFINITY, high = -INFINITY;
          const size_t first_t = side == Side::key ? t / kGroup * kGroup : t,
                       end_t = side == Side::key ? first_t + kGroup : t + 1;
          const size_t first_c = side == Side::key ? c : c / kValueGroup * kValueGroup;
          const size_t end_c = side == Side::key ? c + 1 : std::min<size_t>(first_c + kValueGroup, kDim);
          for (size_t i = first_t; i < end_t; ++i)
            for (size_t j = first_c; j < end_c; ++j) {
              low = std::min(low, rows(i, h * kDim + j));
              high = std::max(high, rows(i, h * kDim + j));
            }
          const size_t place = side == Side::key ? t / kGroup * row_scales + h * kDim + c
                                                 : t * row_scales + h * kHeadGroups + c / kValueGroup;
          const float scale = f16_to_float(scales[place]), zero = f16_to_float(zeros[place]);
          CHECK_EQ(zero, low);
          CHECK_EQ(scale, f16_to_float(f16_from_float((high - low) / 7)));
          const double level = (double(rows(t, h * kDim + c)) - zero) / scale;
          wrong.compare(reader.get(kBits), static_cast<uint32_t>(std::min(7.0, std::floor(level + 0.5))), t,
                        h, c);
        }
        CHECK_EQ(reader.get(1), 0);
      }
    CHECK_EQ(wrong.report(), "");
  }
}

TEST_CASE("kivi: shapes that would not shrink are kept exactly") {
  const CodecContext context{.num_layers = 1, .heads = 3, .head_dim = 1};
  const GroupShape shape = usual_group(0, 1, 3, 1, Side::value);
  const auto codec = make_kivi(context, options_of(2, 32, 32, 0));
  Encoded encoded(codec->streams(shape));
  const Matrix<float> rows = random_rows(100, 3, 4);
  codec->append(shape, rows, encoded.add_document());
  CHECK_EQ(bytes_of(encoded), 600);
  CHECK_EQ(test::stored_bytes(encoded, Category::exempt), 600);
  Matrix<float> decoded(100, 3);
  codec->open(shape, encoded.document(0))->decode(0, decoded);
  for (size_t i = 0; i < 100; ++i) CHECK(std::ranges::equal(decoded.row(i), rows.row(i)));
}

TEST_CASE("kivi: values that the scale type cannot hold are refused before anything is stored") {
  const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 32};
  for (const Side side : kSides) {
    const GroupShape shape = usual_group(0, 1, 2, 32, side);
    Record options = options_of(2, 32, 32, 128);
    const auto codec = make_kivi(context, options);
    Encoded encoded(codec->streams(shape));
    StreamStore& document = encoded.add_document();
    Matrix<float> rows = random_rows(300, 64, 5);
    codec->append(shape, rows.view().rows(0, 200), document);
    const uint64_t before = bytes_of(encoded);
    rows(70, 40) = -1e6f;
    CHECK_THROWS_WITH_AS(codec->append(shape, rows, document), doctest::Contains("--scale-type"), Error);
    CHECK_THROWS_WITH_AS(codec->append(shape, rows, document), doctest::Contains("tokens 256 to 287"), Error);
    CHECK_EQ(bytes_of(encoded), before);
    CHECK_EQ(codec->open(shape, document)->tokens(), 200);
    options.set("scale-type", std::string("bf16"));
    const auto wider = make_kivi(context, options);
    Encoded stored(wider->streams(shape));
    CHECK_NOTHROW(wider->append(shape, rows, stored.add_document()));
  }
}

TEST_CASE("kivi: streams that break the window are refused, though they fit each other") {
  const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 64};
  const GroupShape shape = usual_group(0, 1, 1, 64, Side::value);
  const auto codec = make_kivi(context, options_of(2, 32, 32, 128));
  Encoded encoded(codec->streams(shape));
  StreamStore& document = encoded.add_document();
  codec->append(shape, random_rows(300, 64, 6), document);
  for (const char* stream : {"codes", "scales", "zeros"})
    document.truncate(stream, document.rows(stream) - 1);
  CHECK_THROWS_AS(codec->open(shape, document)->tokens(), Error);  // part of a group

  StreamStore& short_tail = encoded.add_document();
  codec->append(shape, random_rows(300, 64, 6), short_tail);
  short_tail.truncate("tail", 128);
  CHECK_EQ(codec->open(shape, short_tail)->tokens(), 160 + 128);
  short_tail.truncate("tail", 127);
  CHECK_THROWS_AS(codec->open(shape, short_tail)->tokens(), Error);
}

TEST_CASE("kivi: options out of range and contexts without 16-bit storage are refused") {
  const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 8};
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, Scalar>>{{"bits", int64_t{0}},
                                                   {"bits", int64_t{9}},
                                                   {"key-group", int64_t{0}},
                                                   {"value-group", int64_t{0}},
                                                   {"window", int64_t{-2}},
                                                   {"scale-type", std::string("f64")}}) {
    Record record;
    record.set(name, value);
    CHECK_THROWS_WITH_AS(make_kivi(context, record), doctest::Contains(name.c_str()), Error);
  }
  CHECK_THROWS_AS(make_kivi({.num_layers = 1, .heads = 1, .head_dim = 8, .storage = DType::f32}, Record{}),
                  Error);
  CHECK_THROWS_AS(make_kivi({.num_layers = 1, .heads = 0, .head_dim = 8}, Record{}), Error);
}

}  // namespace kivi_test
