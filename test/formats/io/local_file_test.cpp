// Few calls to the system for many small reads of a file.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "formats/io/byte_source.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/folder.hpp"
#include "test/test.hpp"

namespace local_file_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// A file of random bytes, open.
struct Sample {
  explicit Sample(size_t size) : content(size, '\0'), path(folder / "file") {
    Rng rng(1);
    for (char& byte : content) byte = static_cast<char>(rng.below(256));
    std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(size));
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  ~Sample() { ::close(descriptor); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  /// True if these bytes of the file are read correctly.
  bool reads(LocalFile& file, size_t position, size_t size) const {
    std::string out(size, '\0');
    file.read(position, std::as_writable_bytes(std::span(out)));
    return out == content.substr(position, size);
  }

  Folder folder;
  std::string content, path;
  int descriptor = -1;
};

}  // namespace

TEST_CASE("local file: its beginning and its end are read by one call each") {
  const Sample sample(size_t{1} << 20);
  LocalFile file(sample.descriptor, "file");
  CHECK_EQ(file.size(), sample.content.size());
  CHECK_EQ(file.reads(), 0);
  for (size_t at = 0; at < 8192; at += 100) CHECK(sample.reads(file, at, std::min<size_t>(100, 8192 - at)));
  CHECK_EQ(file.reads(), 1);
  CHECK_EQ(file.bytes(), 8192);
  for (size_t at = sample.content.size() - 16384; at + 64 <= sample.content.size(); at += 64)
    CHECK(sample.reads(file, at, 64));
  CHECK_EQ(file.reads(), 2);
  // Bytes in neither range are read alone, and so are bytes after the end of one.
  CHECK(sample.reads(file, 8000, 300));
  CHECK(sample.reads(file, 500000, 300));
  CHECK_EQ(file.reads(), 4);
  CHECK_EQ(file.bytes(), 8192 + 16384 + 300 + 300 - 192);
}

TEST_CASE("local file: what is expected is read by one call, at the first read of less than half of it") {
  const Sample sample(size_t{3} << 20);
  LocalFile file(sample.descriptor, "file");
  file.expect({1000000, 1300000});
  CHECK_EQ(file.reads(), 0);
  CHECK(sample.reads(file, 1100000, 50));
  CHECK(sample.reads(file, 1000000, 65536));
  CHECK(sample.reads(file, 1299990, 10));
  CHECK_EQ(file.reads(), 1);
  CHECK_EQ(file.bytes(), 300000);
  // Reads that begin elsewhere bypass it; for those that end elsewhere the rest is read.
  CHECK(sample.reads(file, 999999, 2));
  CHECK(sample.reads(file, 1299999, 2));
  CHECK_EQ(file.reads(), 3);
  // Bytes in two expected ranges are read with each of them.
  file.expect({1700000, 1800000});
  file.expect({1800000, 1900000});
  CHECK(sample.reads(file, 1799990, 20));
  CHECK(sample.reads(file, 1700000, 200000));
  CHECK_EQ(file.reads(), 5);
  // Ranges outside of the file are not expected.
  file.expect({size_t{3} << 20, (size_t{3} << 20) + 10});
  file.expect({2000000, 1900000});
  CHECK(sample.reads(file, 1950000, 10));
  CHECK_EQ(file.bytes(), 300000 + 2 + 1 + 200000 + 10);
  // A read of at least half of the range reads no more than that.
  file.expect({500000, 700000});
  CHECK(sample.reads(file, 500000, 100000));
  CHECK_EQ(file.bytes(), 300000 + 2 + 1 + 200000 + 10 + 100000);
}

TEST_CASE("local file: what is held is bounded, and read again once it is dropped") {
  const Sample sample(size_t{40} << 20);
  LocalFile file(sample.descriptor, "file");
  constexpr size_t kRange = size_t{8} << 20;
  file.expect({0, kRange + 1});  // too large
  CHECK(sample.reads(file, kRange, 1));
  CHECK_EQ(file.bytes(), 1);
  for (const size_t begin : {size_t{1} << 20, size_t{10} << 20, size_t{20} << 20}) {
    file.expect({begin, begin + kRange});
    CHECK(sample.reads(file, begin + 5, 100));
  }
  CHECK_EQ(file.bytes(), 3 * kRange + 1);
  CHECK(sample.reads(file, (size_t{20} << 20) + 500, 100));
  CHECK(sample.reads(file, (size_t{10} << 20) + 500, 100));
  CHECK_EQ(file.bytes(), 3 * kRange + 1);
  CHECK(sample.reads(file, (size_t{1} << 20) + 500, 100));
  CHECK_EQ(file.bytes(), 3 * kRange + 101);
}

TEST_CASE("local file: ranges that were asked for last are held, up to 64 of them") {
  const Sample sample(size_t{1} << 20);
  LocalFile file(sample.descriptor, "file");
  const auto read_range = [&](size_t i) { CHECK(sample.reads(file, 100000 + i * 1000, 10)); };
  for (size_t i = 0; i < 65; ++i) {
    file.expect({100000 + i * 1000, 101000 + i * 1000});
    read_range(i);
    read_range(0);
  }
  CHECK_EQ(file.reads(), 65);
  read_range(64);
  read_range(0);
  CHECK_EQ(file.reads(), 65);
  read_range(1);
  CHECK_EQ(file.reads(), 66);
}

TEST_CASE("local file: whatever is read and expected, the bytes are those of the file") {
  const Sample sample(200000);
  LocalFile file(sample.descriptor, "file");
  Rng rng(7);
  for (int i = 0; i < 3000; ++i) {
    const size_t position = rng.below(sample.content.size() + 1),
                 size = std::min<size_t>(rng.below(rng.below(10) == 0 ? 100000 : 2000),
                                         sample.content.size() - position);
    if (rng.below(4) == 0)
      file.expect({position, position + size});
    else
      REQUIRE(sample.reads(file, position, size));
  }
}

TEST_CASE("local file: beyond the end, and a file that became shorter") {
  const Sample sample(100000);
  LocalFile file(sample.descriptor, "file");
  std::vector<std::byte> out(10);
  CHECK_THROWS_WITH(file.read(99991, out), "file: the file ends before its byte 100001");
  CHECK_THROWS_WITH(file.read(200000, out), "file: the file ends before its byte 200010");
  std::filesystem::resize_file(sample.path, 50000);
  CHECK_THROWS_WITH(file.read(60000, out), "file: the file ends before its byte 60010");
}

TEST_CASE("local file: what is left of it is read where bytes behind that were expected too") {
  const Sample sample(100000);
  LocalFile file(sample.descriptor, "file");
  file.expect({50000, 80000});
  std::filesystem::resize_file(sample.path, 95000);
  CHECK(sample.reads(file, 94000, 1000));  // in the range of the end
  std::filesystem::resize_file(sample.path, 60000);
  CHECK(sample.reads(file, 55000, 100));
  CHECK(sample.reads(file, 55000, 5000));
  CHECK_EQ(file.bytes(), 95000 - (100000 - 16384) + 1000 + 10000 + 100 + 5000);
}

}  // namespace local_file_test
