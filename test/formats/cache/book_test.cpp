#include <xxhash.h>

#include "formats/cache/book_file.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace book_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

void write(const std::string& path, const Book& book) {
  OutputFile output(path, true);
  write_book(output, book, sample_model(2, 2, 4), {"kvcodec test", {"kvcodec before"}});
  output.commit();
}

bool same(const Array& a, const Array& b) {
  return a.name == b.name && a.type == b.type && a.shape == b.shape && a.bytes == b.bytes;
}

}  // namespace

TEST_CASE("book: arrays, their order, parameters and digest come back") {
  const Folder folder;
  const Book book = sample_book();
  write(folder / "dict.h5", book);
  for (const bool with_training : {true, false})
    for (const char* type : {"dictionary", ""}) {
      const BookFile file = read_book(folder / "dict.h5", type, with_training);
      CHECK(file.digest == book.digest());
      CHECK(file.model == sample_model(2, 2, 4));
      CHECK(file.type.history == std::vector<std::string>{"kvcodec before", "kvcodec test"});
      CHECK(file.book.type == "dictionary");
      CHECK(file.book.parameters == book.parameters);
      REQUIRE(file.book.arrays.size() == (with_training ? 3 : 2));
      for (size_t i = 0; i < file.book.arrays.size(); ++i) CHECK(same(file.book.arrays[i], book.arrays[i]));
    }
}

TEST_CASE("book: arrays of every type and of many chunks, empty ones too") {
  const Folder folder;
  Book book;
  book.type = "dictionary";
  Rng rng(3);
  for (const DType type : {DType::u8, DType::u16, DType::u32, DType::u64, DType::i32, DType::i64, DType::f16,
                           DType::bf16, DType::f32, DType::f64})
    for (const uint64_t rows : {uint64_t{0}, uint64_t{1}, uint64_t{4099}}) {
      Array array{fmt::format("{}/{}", name_of(type), rows), type, {rows, 70}, {}};
      array.bytes.resize(rows * 70 * size_of(type));
      for (auto& b : array.bytes) b = static_cast<std::byte>(rng.next());
      book.arrays.push_back(std::move(array));
    }
  write(folder / "dict.h5", book);
  const BookFile file = read_book(folder / "dict.h5", "dictionary", true);
  REQUIRE(file.book.arrays.size() == book.arrays.size());
  for (size_t i = 0; i < book.arrays.size(); ++i) CHECK(same(file.book.arrays[i], book.arrays[i]));
}

TEST_CASE("book: the digest is what FORMAT.md says") {
  std::string bytes;
  const auto number = [&](uint64_t n) {
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i));
  };
  const auto text = [&](const std::string& t) { number(t.size()), bytes += t; };
  const auto array = [&](const Array& a, const std::string& type) {
    text(a.name), text(type), number(a.shape.size());
    for (const uint64_t extent : a.shape) number(extent);
    bytes.append(reinterpret_cast<const char*>(a.bytes.data()), a.bytes.size());
  };
  const Book book = sample_book();
  text("dictionary");
  array(book.arrays[0], "f32");
  array(book.arrays[1], "f32");
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  CHECK(book.digest() == fmt::format("{:016x}{:016x}", hash.high64, hash.low64));
}

TEST_CASE("book: names and types that cannot be stored are refused") {
  const Folder folder;
  for (const char* name : {"", "/key", "key/", "a//b", "key atoms", "Key"}) {
    Book book = sample_book();
    book.arrays[0].name = name;
    CHECK_THROWS_AS(write(folder / "dict.h5", book), Error);
  }
  Book book = sample_book();
  book.type = "kv";
  CHECK_THROWS_AS(write(folder / "dict.h5", book), Error);
  CHECK(folder.names().empty());
}

}  // namespace book_test
