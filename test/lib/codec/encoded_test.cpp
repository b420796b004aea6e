#include "lib/codec/encoded.hpp"

#include <functional>
#include <vector>

#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "test/lib/codec/stored_bytes.hpp"
#include "test/test.hpp"

namespace encoded_test {

using namespace kvcodec;

namespace {

std::vector<StreamSpec> two_streams_and_a_table() {
  return {{"codes", DType::u16, {3}, Category::payload},
          {"lengths", DType::u8, {}, Category::offsets},
          {"table", DType::u8, {2}, Category::tables, 0, true}};
}

using Words = std::vector<uint16_t>;

Words codes_of(const StreamReader& document) {
  return document.read<uint16_t>("codes", 0, document.rows("codes"), 3);
}

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("nothing was thrown");
  return ErrorKind::failed;
}

}  // namespace

TEST_CASE("encoded documents: rows are kept per document, shared streams for all") {
  Encoded encoded(two_streams_and_a_table());
  StreamStore& first = encoded.add_document();
  first.append_values<uint16_t>("codes", Words{1, 2, 3, 4, 5, 6});
  first.append_values<uint8_t>("table", std::vector<uint8_t>{7, 8});
  StreamStore& second = encoded.add_document();
  CHECK_EQ(second.rows("codes"), 0);
  CHECK_EQ(second.rows("table"), 1);
  second.append_values<uint16_t>("codes", Words{9, 9, 9});
  second.append_values<uint8_t>("lengths", std::vector<uint8_t>{1, 2, 3});
  second.append_values<uint8_t>("table", std::vector<uint8_t>{9, 10});
  encoded.add_document();

  CHECK_EQ(encoded.documents(), 3);
  CHECK(codes_of(encoded.document(0)) == Words{1, 2, 3, 4, 5, 6});
  CHECK(codes_of(encoded.document(1)) == Words{9, 9, 9});
  CHECK(codes_of(encoded.document(2)).empty());
  CHECK_EQ(encoded.document(0).rows("lengths"), 0);
  CHECK_EQ(encoded.document(1).rows("lengths"), 3);
  for (size_t i = 0; i < 3; ++i)
    CHECK(encoded.document(i).read<uint8_t>("table", 0, 2, 2) == std::vector<uint8_t>{7, 8, 9, 10});
  CHECK(encoded.document(0).read<uint16_t>("codes", 1, 1, 3) == Words{4, 5, 6});

  CHECK_EQ(encoded.bytes("codes").size(), 18);
  CHECK_EQ(test::stored_bytes(encoded, Category::payload), 18);
  CHECK_EQ(test::stored_bytes(encoded, Category::offsets), 3);
  CHECK_EQ(test::stored_bytes(encoded, Category::tables), 4);
  CHECK_EQ(test::stored_bytes(encoded, Category::ids), 0);

  const Encoded moved = std::move(encoded);
  CHECK(codes_of(moved.document(1)) == Words{9, 9, 9});
}

TEST_CASE("encoded documents: a cut tail is stored anew without touching other documents") {
  Encoded encoded(two_streams_and_a_table());
  encoded.add_document().append_values<uint16_t>("codes", Words{1, 1, 1});
  StreamStore& store = encoded.add_document();
  store.append_values<uint16_t>("codes", Words{2, 2, 2, 3, 3, 3});
  store.truncate("codes", 1);
  store.append_values<uint16_t>("codes", Words{4, 4, 4});
  CHECK(codes_of(encoded.document(1)) == Words{2, 2, 2, 4, 4, 4});
  store.truncate("codes", 0);
  CHECK_EQ(store.rows("codes"), 0);
  CHECK(codes_of(encoded.document(0)) == Words{1, 1, 1});
  CHECK_THROWS_AS(store.truncate("codes", 1), Error);
}

TEST_CASE("encoded documents: what is not there is refused") {
  Encoded encoded(two_streams_and_a_table());
  StreamStore& closed = encoded.add_document();
  closed.append_values<uint16_t>("codes", Words{1, 2, 3});
  StreamStore& open = encoded.add_document();
  open.append_values<uint16_t>("codes", Words{4, 5, 6, 7, 8, 9});

  CHECK(kind_of([&] { open.rows("code"); }) == ErrorKind::bad_input);
  CHECK(kind_of([&] { open.read<uint16_t>("codes", 1, 2, 3); }) == ErrorKind::bad_input);
  CHECK(kind_of([&] { open.read<uint16_t>("codes", 3, 0, 3); }) == ErrorKind::bad_input);
  CHECK(kind_of([&] { open.read("codes", ~uint64_t{0}, 2, {}); }) == ErrorKind::bad_input);
  CHECK(kind_of([&] { open.read("codes", 1, ~uint64_t{0}, {}); }) == ErrorKind::bad_input);
  CHECK(kind_of([&] { closed.read<uint16_t>("codes", 1, 1, 3); }) == ErrorKind::bad_input);
  CHECK_THROWS_AS(open.read<uint8_t>("codes", 0, 1, 3), Error);  // 3 bytes for a row of 6
  CHECK_THROWS_AS(open.append_values<uint16_t>("codes", Words{1}), Error);
  CHECK_THROWS_AS(closed.append_values<uint16_t>("codes", Words{1, 2, 3}), Error);
  CHECK_THROWS_AS(closed.truncate("codes", 0), Error);
  CHECK_THROWS_AS(open.truncate("table", 0), Error);
  CHECK_THROWS_AS(encoded.document(2), Error);
  CHECK_THROWS_AS(Encoded({{"a", DType::u8, {}}, {"a", DType::u8, {}}}), Error);
  CHECK_THROWS_AS(Encoded({{"a", DType::u8, {4, 0}}}), Error);
  CHECK_THROWS_AS(Encoded({{"a", DType::u8, {1ull << 40, 1ull << 40}}}), Error);
}

TEST_CASE("registry: codecs are found by name, others refused with the names there are") {
  for (const CodecEntry& entry : codecs()) {
    CHECK_EQ(&find_codec(entry.name), &entry);
    CHECK_FALSE(entry.summary.empty());
    CHECK_EQ(entry.book_type.empty(), !entry.capabilities.needs_book);
    for (const OptionField& field : entry.make_options()->fields()) CHECK_FALSE(field.help.empty());
  }
  CHECK(kind_of([] { find_codec("nine"); }) == ErrorKind::usage);
  CHECK_THROWS_WITH_AS(find_codec("nine"), doctest::Contains("none"), Error);
}

TEST_CASE("codec none: 16-bit values come back exactly, values out of range are refused") {
  for (const DType storage : {DType::bf16, DType::f16}) {
    const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 3, .storage = storage};
    const CodecEntry& entry = find_codec("none");
    const auto codec =
        codec_from_record(entry, entry.make(*entry.make_options(), context)->parameters(), context);
    const GroupShape shape = usual_group(0, 1, 2, 3);
    Matrix<float> rows(2, 6);
    for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = 0.5f * static_cast<float>(i) - 2;
    Encoded encoded(codec->streams(shape));
    StreamStore& store = encoded.add_document();
    codec->append(shape, rows, store);
    CHECK_EQ(codec->open(shape, store)->tokens(), 2);
    CHECK_EQ(test::stored_bytes(encoded, Category::payload), 24);
    Matrix<float> out(1, 6);
    codec->open(shape, store)->decode(1, out);
    for (size_t j = 0; j < 6; ++j) CHECK_EQ(out(0, j), rows(1, j));
    CHECK(kind_of([&] { codec->open(shape, store)->decode(2, out); }) == ErrorKind::bad_input);
    rows(1, 4) = storage == DType::f16 ? 65520.0f : 3.4e38f;
    CHECK_THROWS_WITH_AS(codec->append(shape, rows, store), doctest::Contains("row 1, channel 4"), Error);
  }
}

}  // namespace encoded_test
