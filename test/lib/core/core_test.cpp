#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/half.hpp"
#include "lib/core/options.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/record.hpp"
#include "lib/core/rng.hpp"
#include "lib/core/text_list.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace core_test {

using namespace kvcodec;

TEST_CASE("16-bit floats: every pattern survives the way to float and back") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(f16_to_float(half))) CHECK_EQ(f16_from_float(f16_to_float(half)), half);
    if (!std::isnan(bf16_to_float(half))) CHECK_EQ(bf16_from_float(bf16_to_float(half)), half);
  }
}

TEST_CASE("16-bit floats: narrowing picks the nearest value, ties to even") {
  Rng rng(1);
  for (int i = 0; i < 200000; ++i) {
    const float value = static_cast<float>(rng.normal() * std::exp2(rng.uniform(-26, 15)));
    const float rounded = f16_to_float(f16_from_float(value));
    if (!std::isfinite(rounded)) continue;
    const uint16_t bits = f16_from_float(value);
    const double error = std::abs(double(rounded) - value);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<uint16_t>(bits + step);
      const float neighbour = f16_to_float(other);
      if (!std::isfinite(neighbour) || (other & 0x8000) != (bits & 0x8000)) continue;
      const double other_error = std::abs(double(neighbour) - value);
      CHECK_LE(error, other_error);
      if (error == other_error) CHECK_EQ(bits % 2, 0);
    }
  }
  CHECK_EQ(f16_from_float(65519.0f), 0x7bff);
  CHECK_EQ(f16_from_float(65520.0f), 0x7c00);
  CHECK_EQ(bf16_from_float(1.00390625f), 0x3f80);  // half way between 1 and 1 + 2^-7
  CHECK_EQ(bf16_from_float(1.01171875f), 0x3f82);
  CHECK(std::isnan(f16_to_float(f16_from_float(std::nanf("")))));
  CHECK(std::isnan(bf16_to_float(bf16_from_float(std::nanf("")))));
}

TEST_CASE("bit streams: any widths come back, most significant bit first") {
  Rng rng(2);
  std::vector<std::pair<uint32_t, unsigned>> items;
  BitWriter writer;
  for (int i = 0; i < 5000; ++i) {
    const auto width = static_cast<unsigned>(rng.below(33));
    const auto value = static_cast<uint32_t>(width == 32 ? rng.next() : rng.next() & ((1ull << width) - 1));
    items.emplace_back(value, width);
    writer.put(value, width);
  }
  const uint64_t bits = writer.size();
  const auto bytes = writer.finish();
  CHECK_EQ(bytes.size(), (bits + 7) / 8);
  BitReader reader(bytes);
  for (const auto& [value, width] : items) CHECK_EQ(reader.get(width), value);
  CHECK_EQ(reader.position(), bits);
  CHECK_THROWS_AS(reader.get(9), Error);

  BitWriter order;
  order.put(1, 1);
  order.put(0b0110, 4);
  CHECK_EQ(order.finish(), std::vector<uint8_t>{0b10110000});
  CHECK_EQ(index_bits(8192), 13);
  CHECK_EQ(index_bits(8193), 14);
  CHECK_EQ(index_bits(1), 0);
}

TEST_CASE("parallel_for visits every item once and hands on the earliest exception") {
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    std::vector<int> visits(1003);
    parallel_for(visits.size(), 10, [&](size_t begin, size_t end, int worker) {
      CHECK_LT(worker, threads);
      for (size_t i = begin; i < end; ++i) ++visits[i];
    });
    CHECK(std::set<int>(visits.begin(), visits.end()) == std::set<int>{1});
    CHECK_THROWS_WITH_AS(parallel_for(1000, 1,
                                      [](size_t begin, size_t, int) {
                                        if (begin == 0 || begin == 999) throw failed("piece {}", begin);
                                      }),
                         "piece 0", Error);
  }
  set_num_threads(0);
}

TEST_CASE("parallel_for: the earliest error is reported, even if its piece is taken first and begun last") {
  // With libomp the last pieces may run before the first is begun; with libgomp seldom.
  set_num_threads(5);
  for (int repeat = 0; repeat < (test::kSanitized ? 400 : 2000); ++repeat)
    REQUIRE_THROWS_WITH_AS(
        parallel_for(64, 1, [](size_t begin, size_t, int) { throw failed("piece {}", begin); }), "piece 0",
        Error);
  set_num_threads(0);
}

TEST_CASE("random numbers: fixed sequence, sane moments, unbiased range") {
  CHECK_EQ(Rng(42).next(), Rng(42).next());
  CHECK_NE(Rng(42, 0).next(), Rng(42, 1).next());
  Rng rng(7);
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  std::vector<int> histogram(7);
  for (int i = 0; i < kCount; ++i) {
    const double x = rng.normal();
    sum += x, squares += x * x;
    ++histogram[static_cast<size_t>(rng.below(7))];
  }
  CHECK(std::abs(sum / kCount) < 5 / std::sqrt(double(kCount)));
  CHECK(std::abs(squares / kCount - 1) < 5 * std::sqrt(2.0 / kCount));
  for (const int count : histogram) CHECK(std::abs(count - kCount / 7.0) < 5 * std::sqrt(kCount / 7.0));
}

TEST_CASE("checked sizes refuse to overflow") {
  CHECK_EQ(checked_mul(1ull << 31, 1ull << 32), 1ull << 63);
  CHECK_THROWS_AS(checked_mul(1ull << 32, 1ull << 32), Error);
  CHECK_THROWS_AS(checked_add(~0ull, 1), Error);
  CHECK_THROWS_AS(checked_product(std::vector<uint64_t>{1ull << 40, 1ull << 20, 16}), Error);
  const auto kind_of = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::failed;
  };
  CHECK_EQ(kind_of([] { checked_mul(1ull << 32, 1ull << 32); }), ErrorKind::bad_input);
  CHECK_EQ(kind_of([] { checked_mul(1ull << 32, 1ull << 32, ErrorKind::usage); }), ErrorKind::usage);
  CHECK_EQ(kind_of([] { checked_add(~0ull, 1, ErrorKind::usage); }), ErrorKind::usage);
  CHECK_EQ(kind_of([] { throw internal_error("a {}", 1); }), ErrorKind::internal);
}

TEST_CASE("digests: every SIMD level gives those that are built up piece by piece, any size and alignment") {
  Rng rng(3);
  std::vector<std::byte> data(70000);
  for (auto& byte : data) byte = static_cast<std::byte>(rng.next());
  const auto check = [&](std::span<const std::byte> bytes) {
    Digest digest;
    digest.add(bytes);
    CHECK_EQ(hex_of(digest_of(bytes)), digest.hex());
  };
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    CAPTURE(name_of(level));
    for (size_t size = 0; size < 600; ++size) check(std::span(data).subspan(size % 5, size));
    for (const size_t size : {1024u, 1025u, 8191u, 16384u, 65536u, 69990u})
      for (const size_t shift : {0, 1, 7}) check(std::span(data).subspan(shift, size));
  }
}

TEST_CASE("digests depend on content and on where pieces end") {
  const auto of = [](auto... parts) {
    Digest digest;
    (digest.add(std::string_view(parts)), ...);
    return digest.hex();
  };
  CHECK_EQ(of("ab", "c"), of("ab", "c"));
  CHECK_NE(of("ab", "c"), of("a", "bc"));
  CHECK_EQ(of("").size(), 32);
}

namespace {
struct Sample final : Options {
  bool flag = false;
  int64_t count = 3;
  double rate = 0.5;
  std::string mode = "fast";
  std::vector<OptionField> fields() override {
    return {{"flag", "a flag", &flag},
            {"count", "a count", &count, 1, 10},
            {"rate", "a rate", &rate, 0},
            {"mode", "a mode", &mode, {}, {}, {"fast", "slow"}}};
  }
};
}  // namespace

TEST_CASE("options become records and come back, checked") {
  Sample sample;
  sample.count = 7;
  const Record record = to_record(sample);
  CHECK_EQ(record.get_int("count"), 7);
  CHECK_EQ(record.get_string("mode"), "fast");
  CHECK_THROWS_AS(record.get_int("mode"), Error);
  CHECK_THROWS_AS(record.get_int("missing"), Error);

  Sample copy;
  from_record(record, copy);
  CHECK(to_record(copy) == record);

  const auto refused = [](const char* name, Scalar value) {
    Record bad;
    bad.set(name, std::move(value));
    Sample target;
    CHECK_THROWS_AS(from_record(bad, target), Error);
  };
  refused("count", int64_t{11});
  refused("count", std::string("7"));
  refused("rate", -0.1);
  refused("rate", std::nan(""));
  refused("mode", std::string("fats"));
  refused("flag", int64_t{1});
}

TEST_CASE("text lists: strings come back, empty ones and the list's own among them") {
  TextList texts{"one", "", std::string_view("a\0b", 3)};
  texts.push_back(texts[0]);
  for (int i = 0; i < 100; ++i) texts.push_back(texts.back());  // a view of the memory that grows
  REQUIRE_EQ(texts.size(), 104);
  CHECK_EQ(texts[1], "");
  CHECK_EQ(texts[2], std::string_view("a\0b", 3));
  CHECK_EQ(texts.back(), "one");
  texts.resize(2);
  CHECK(texts == TextList{"one", ""});
  CHECK(texts != TextList{"on", "e"});
  texts.resize(3);
  texts.push_back("end");
  CHECK(texts == TextList{"one", "", "", "end"});
  CHECK(texts == TextList("oneend", {3, 3, 3, 6}));
  texts.append_cells({"ab\0\0xyz \0q\0\0\0\0\0\0", 16}, 4, false);
  CHECK(texts == TextList{"one", "", "", "end", "ab", "xyz ", "", ""});
  texts.append_cells("ab     d    ", 4, true);
  CHECK(texts == TextList{"one", "", "", "end", "ab", "xyz ", "", "", "ab", "   d", ""});
  texts.resize(0);
  CHECK(texts.empty());
  CHECK_EQ(texts.bytes(), "");
}

}  // namespace core_test
