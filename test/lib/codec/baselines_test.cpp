// The components of the baseline codecs, and the properties of those codecs alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/hadamard.hpp"
#include "lib/model/tensor_type.hpp"
#include "lib/quant/fp8.hpp"
#include "lib/quant/grouped.hpp"
#include "test/test.hpp"

namespace baselines_test {

using namespace kvcodec;

namespace {

/// The value of a code by the format's definition, in double.
double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? mantissa * std::exp2(-9) : (1 + mantissa / 8.0) * std::exp2(exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

/// The nearest code by trying all of them: ties to the even one, 448 beyond the range.
uint8_t nearest_e4m3(double x) {
  int best = 0;
  double least = INFINITY;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::abs(e4m3_value(code) - std::abs(x));
    if (distance < least || (distance == least && code % 2 == 0)) best = code, least = distance;
  }
  return static_cast<uint8_t>(std::signbit(x) ? best | 0x80 : best);
}

Encoded encode(const Codec& codec, const GroupShape& shape, MatrixView<const float> rows) {
  const DocumentRows documents[] = {DocumentRows(rows)};
  return encode_in_memory(codec, shape, documents);
}

}  // namespace

TEST_CASE("e4m3: every code is its value, and every value becomes its code again") {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    if (is_e4m3_nan(byte)) {
      CHECK(std::isnan(e4m3_to_float(byte)));
      continue;
    }
    CHECK_EQ(double(e4m3_to_float(byte)), e4m3_value(code));
    CHECK_EQ(e4m3_from_float(e4m3_to_float(byte)), byte);
  }
  CHECK_EQ(e4m3_from_float(NAN), 0x7f);
  CHECK_EQ(e4m3_from_float(INFINITY), 0x7e);
  CHECK_EQ(e4m3_from_float(-1e30f), 0xfe);
  CHECK_EQ(e4m3_from_float(-0.0f), 0x80);
}

TEST_CASE("e4m3: the nearest code, ties to even, over all neighbours' midpoints and random values") {
  for (int code = 0; code + 1 < 0x7f; ++code) {
    const auto middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)})
      for (const float y : {x, -x}) CHECK_EQ(e4m3_from_float(y), nearest_e4m3(y));
  }
  Rng rng(3);
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(rng.normal() * std::exp2(rng.uniform(-14, 11)));
    CHECK_EQ(e4m3_from_float(x), nearest_e4m3(x));
  }
}

TEST_CASE("the Hadamard transform is that of its definition, keeps lengths and undoes itself") {
  Rng rng(4);
  for (const size_t block : {1, 2, 4, 64, 128})
    for (const size_t pieces : {0, 1, 3}) {
      std::vector<float> x(block * pieces);
      for (float& value : x) value = static_cast<float>(rng.normal());
      std::vector<float> y = x;
      hadamard(y, block);
      for (size_t i = 0; i < x.size(); ++i) {
        double expected = 0;
        for (size_t j = 0; j < block; ++j) {
          const double value = x[i / block * block + j];
          expected += __builtin_parityll(i % block & j) ? -value : value;
        }
        CHECK_LE(std::abs(y[i] - expected / std::sqrt(double(block))), 1e-5);
      }
      hadamard(y, block);
      for (size_t i = 0; i < x.size(); ++i) CHECK_LE(std::abs(y[i] - x[i]), 1e-5);
    }
  std::vector<float> x(12);
  CHECK_THROWS_AS(hadamard(x, 3), Error);
  CHECK_THROWS_AS(hadamard(x, 8), Error);
  CHECK_EQ(power_of_two_in(96), 32);
  CHECK_EQ(power_of_two_in(31), 1);
}

TEST_CASE("symmetric quantization: within half a step, a whole one at the end that has a level less") {
  Rng rng(5);
  for (const DType stored : {DType::f16, DType::bf16, DType::f32})
    for (unsigned bits = 2; bits <= 8; ++bits)
      for (const size_t columns : {1, 7, 32, 33, 100})
        for (const size_t group : {1, 5, 32, 200}) {
          Matrix<float> x(6, columns), back = x;
          for (size_t i = 0; i < x.size(); ++i)
            x.data()[i] = static_cast<float>(rng.normal() * std::exp2(rng.uniform(-8, 8)));
          std::ranges::fill(x.row(1), 0.0f);
          Matrix<float> scales(6, (columns + group - 1) / group);
          Matrix<uint8_t> codes(6, columns);
          quantize_symmetric(x, group, bits, stored, scales, codes);
          dequantize_symmetric(codes, group, bits, scales, back);
          const int top = 1 << (bits - 1);
          for (size_t i = 0; i < x.rows(); ++i)
            for (size_t c = 0; c < columns; ++c) {
              const double scale = scales(i, c / group), level = scale == 0 ? 0 : x(i, c) / scale;
              CHECK_EQ(double(round_to(stored, scales(i, c / group))), scale);
              CHECK_LE(level, top);   // rounded away from zero,
              CHECK_GE(level, -top);  // so nothing lies below the lowest level
              const double bound = level > top - 1.5 ? 1 : 0.5;
              CHECK_LE(std::abs(double(back(i, c)) - x(i, c)), std::abs(scale) * bound * (1 + 1e-6));
            }
        }
  const std::vector<float> loud = {1e6f};
  CHECK_THROWS_AS(fit_symmetric(loud, 4, DType::f16), Error);
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const float other : {0.0f, 1.0f})
      CHECK_THROWS_WITH_AS(fit_symmetric(std::vector{other, odd, other}, 4, DType::f16),
                           doctest::Contains("must be finite"), Error);
}

TEST_CASE("q4: values so large that a rotated head overflows are refused, not lost") {
  const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 32};
  Record parameters;
  parameters.set("rotate", std::string("hadamard"));
  const auto codec = codec_from_record(find_codec("q4"), parameters, context);
  const GroupShape shape = usual_group(0, 1, 1, 32);
  Matrix<float> rows(2, 32);
  for (size_t j = 0; j < 8; ++j) rows(1, j) = j < 6 ? 3e38f : -3e38f;
  Encoded encoded(codec->streams(shape));
  CHECK_THROWS_WITH_AS(codec->append(shape, rows, encoded.add_document()),
                       doctest::Contains("must be finite"), Error);
}

TEST_CASE("lossless: a layer whose blocks are too small to be coded surveys nothing, whatever others are") {
  const CodecContext context{.num_layers = 2, .heads = 2, .head_dim = 8};
  Record parameters;
  parameters.set("block", int64_t{64});
  const auto codec = codec_from_record(find_codec("lossless"), parameters, context);
  CHECK(codec->survey_scope(usual_group(0, 1, 2, 8)) == SurveyScope::file);  // 1,024 values
  CHECK(codec->survey_scope(usual_group(1, 1, 1, 8)) == SurveyScope::none);
}

TEST_CASE("lossless: values of quantized blocks are stored as these, in fewer bits, and others are refused") {
  const GroupShape shape = usual_group(0, 1, 1, 128);  // 32 to 128 values make a block
  Rng rng(31);
  for (const ValueBlocks& kind : ValueBlocks::all()) {
    const std::string name = kind.name();
    CAPTURE(name);
    const auto [values, size] = kind.layout();
    const double slot = 8.0 * double(size) / double(values);
    Matrix<float> rows(150, 128), out(150, 128);
    std::vector<std::byte> blocks(rows.size() / values * size);
    for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = float(rng.normal());
    (void)kind.quantize_exactly({rows.data(), rows.size()}, blocks);
    kind.dequantize(blocks, {rows.data(), rows.size()});
    REQUIRE(kind.quantize_exactly({rows.data(), rows.size()}, blocks));

    CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 128, .storage = DType::f32};
    context.blocks[0] = kind;
    if (slot > 5) {  // of some types: pairs lay side by side when the blocks were made
      context.key_pairs = PairOrder::neighbours;
      order_pairs(PairOrder::halves, 128, {rows.data(), rows.size()});
      if (values < 128) REQUIRE_FALSE(kind.quantize_exactly({rows.data(), rows.size()}, blocks));
    }
    const auto codec = codec_from_record(find_codec("lossless"), {}, context);
    CHECK_EQ(codec->parameters().get_string("key-blocks"), name);
    CHECK_EQ(codec->parameters().get_string("value-blocks"), "none");
    CHECK_EQ(codec->parameters().get_string("key-pairs"), name_of(context.key_pairs));
    const Encoded encoded = encode(*codec, shape, rows);
    codec->open(shape, encoded.document(0))->decode(0, out);
    CHECK(std::memcmp(out.data(), rows.data(), out.size() * sizeof(float)) == 0);
    uint64_t bytes = 0;
    for (const StreamSpec& spec : encoded.specs())
      if (!spec.shared) bytes += encoded.bytes(spec.name).size();
    CHECK_LT(8.0 * double(bytes) / double(rows.size()), slot);

    rows(7, 40) += 1e-3f;
    CHECK_THROWS_WITH_AS(encode(*codec, shape, rows), doctest::Contains("row 7: its values are no blocks of"),
                         Error);
  }
}

TEST_CASE("fp8: later tokens have room up to the headroom and are cut beyond it") {
  const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 4};
  Record parameters;
  parameters.set("sink", int64_t{0});
  const auto codec = codec_from_record(find_codec("fp8"), parameters, context);
  const GroupShape shape = usual_group(0, 1, 2, 4);
  Matrix<float> rows(1, 8), later(2, 8), out(3, 8);
  std::ranges::fill(rows.row(0), 1.0f);
  std::ranges::fill(later.row(0), 2.0f);
  std::ranges::fill(later.row(1), -5.0f);
  Encoded encoded(codec->streams(shape));
  StreamStore& document = encoded.add_document();
  const auto survey = codec->survey(shape);
  survey->observe(rows);
  survey->finish(document);
  codec->append(shape, rows, document);
  CHECK_EQ(codec->clipped(), 0);
  codec->append(shape, later, document);
  CHECK_EQ(codec->clipped(), 8);
  codec->open(shape, document)->decode(0, out);
  CHECK_EQ(out(0, 0), doctest::Approx(1).epsilon(1e-6));
  CHECK_EQ(out(1, 7), doctest::Approx(2).epsilon(1e-6));
  CHECK_EQ(out(2, 3), doctest::Approx(-2).epsilon(1e-6));
}

TEST_CASE("fp8: the largest 16-bit values come back finite, whatever the headroom") {
  for (const DType storage : {DType::f16, DType::bf16})
    for (const double headroom : {1.0, 1.2, 1.6, 2.0, 3.7}) {
      const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = 4, .storage = storage};
      Record parameters;
      parameters.set("headroom", headroom);
      parameters.set("sink", int64_t{0});
      const auto codec = codec_from_record(find_codec("fp8"), parameters, context);
      const GroupShape shape = usual_group(0, 1, 1, 4);
      const float largest = storage == DType::f16 ? 65504.0f : bf16_to_float(0x7f7f);
      Matrix<float> rows(1, 4), out(1, 4);
      for (size_t j = 0; j < 4; ++j)
        rows(0, j) = largest * (j % 2 == 0 ? 1.0f : -1.0f) / (j < 2 ? 1.0f : 3.0f);
      const Encoded encoded = encode(*codec, shape, rows);
      codec->open(shape, encoded.document(0))->decode(0, out);
      for (size_t j = 0; j < 4; ++j) {
        CHECK(std::isfinite(round_to(storage, out(0, j))));
        CHECK(out(0, j) == doctest::Approx(rows(0, j)).epsilon(0.13));
      }
    }
}

TEST_CASE("lossless: values of few exponents take fewer bits, in all types, appended ones too") {
  Rng rng(6);
  for (const DType storage : {DType::bf16, DType::f16, DType::f32}) {
    const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 32, .storage = storage};
    const auto codec = codec_from_record(find_codec("lossless"), {}, context);
    const GroupShape shape = usual_group(0, 1, 2, 32);
    Matrix<float> rows(640, 64);
    for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = round_to(storage, float(rng.normal()));
    const Encoded encoded = encode(*codec, shape, rows);
    uint64_t bytes = 0;
    for (const StreamSpec& spec : encoded.specs()) bytes += encoded.bytes(spec.name).size();
    const double bits = 8.0 * double(bytes) / double(rows.size());
    // The exponent and sign of a normal distribution take 3.6 bits in bf16, and no more in f16; the mantissas are nearly noise.
    // Books and block overheads are added.
    const double mantissa = storage == DType::bf16 ? 7 : storage == DType::f16 ? 10 : 23;
    CHECK_GE(bits, mantissa + 3.3);
    CHECK_LE(bits, mantissa + 4.1);

    // Values that the book has never seen.
    Encoded grown(codec->streams(shape));
    StreamStore& document = grown.add_document();
    const auto survey = codec->survey(shape);
    survey->observe(rows);
    survey->finish(document);
    Matrix<float> strange(64, 64), out(64, 64);
    for (size_t i = 0; i < strange.size(); ++i)
      strange.data()[i] = round_to(storage, float(rng.normal() * (i % 7 == 0 ? 3000 : 1e-4)));
    codec->append(shape, strange, document);
    codec->open(shape, document)->decode(0, out);
    CHECK(std::memcmp(out.data(), strange.data(), out.size() * sizeof(float)) == 0);
    CHECK_LE(document.rows("exponents") + document.rows("mantissas"), 2 * strange.size());
  }
}

}  // namespace baselines_test
