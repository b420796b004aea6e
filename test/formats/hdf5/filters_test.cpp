// Filters of chunks are undone within bounds: chunks that inflate to more or fewer bytes are refused, and chunks that HDF5 wrote
// with any of deflate, shuffle and Fletcher-32 are read.
#include <algorithm>
#include <cstring>
#include <numeric>

#include <zlib.h>

#include "formats/hdf5/hdf5.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/refusal.hpp"
#include "test/hdf5_blocks.hpp"
#include "test/test.hpp"

namespace filters_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// A file with the dataset /x; its content is given, or nothing is stored.
class SmallFile {
 public:
  SmallFile(const std::string& path, hid_t type, std::vector<hsize_t> shape, const Chunking& chunks,
            const void* content = nullptr, hid_t memory = H5T_NATIVE_INT)
      : file_(Edit::check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT))) {
    // A chunk may be larger than the existing rows only if the dataset can grow.
    const std::vector<hsize_t> limit(shape.size(), H5S_UNLIMITED);
    const hid_t space =
        Edit::check(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), limit.data()));
    const hid_t creation = Edit::creation_of(chunks);
    dataset_ = Edit::check(H5Dcreate2(file_, "/x", type, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    if (content) Edit::check(H5Dwrite(dataset_, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, content));
    H5Pclose(creation);
    H5Sclose(space);
  }
  ~SmallFile() {
    H5Dclose(dataset_);
    H5Fclose(file_);
  }
  SmallFile(const SmallFile&) = delete;
  SmallFile& operator=(const SmallFile&) = delete;

  /// Stores a chunk as it is.
  void put_chunk(const std::vector<hsize_t>& place, const std::string& bytes, uint32_t skipped = 0) {
    Edit::check(H5Dwrite_chunk(dataset_, H5P_DEFAULT, skipped, place.data(), bytes.size(), bytes.data()));
  }

 private:
  hid_t file_, dataset_ = -1;
};

std::string deflated(const std::string& bytes) {
  uLongf size = ::compressBound(bytes.size());
  std::string out(size, '\0');
  REQUIRE_EQ(::compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                         reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 9),
             Z_OK);
  out.resize(size);
  return out;
}

std::vector<int32_t> read_ints(const std::string& path, uint64_t first, uint64_t count) {
  const h5::File file = h5::File::open(path);
  const h5::Dataset dataset = file.dataset("/x");
  std::vector<int32_t> values(count * dataset.row_bytes() / sizeof(int32_t));
  dataset.read(first, count, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

TEST_CASE(
    "filters: what HDF5 wrote with any of them, in chunks of any shape and either byte order, is read") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const std::vector<hsize_t> shape{23, 5, 7};
  std::vector<int32_t> values(23 * 5 * 7);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * i * 977 % 100'003);
  constexpr H5Z_filter_t d = H5Z_FILTER_DEFLATE, s = H5Z_FILTER_SHUFFLE, f = H5Z_FILTER_FLETCHER32;
  const std::vector<std::vector<H5Z_filter_t>> filters = {{d},    {s},    {f},       {s, d},
                                                          {d, f}, {f, d}, {s, d, f}, {f, s, d}};
  const std::vector<std::vector<hsize_t>> chunks = {{4, 5, 7}, {23, 5, 7}, {4, 2, 3}, {1, 1, 7}, {5, 5, 2}};
  for (const auto& chain : filters)
    for (const auto& chunk : chunks)
      for (const hid_t type : {H5T_STD_I32LE, H5T_STD_I32BE}) {
        SmallFile(path, type, shape, {chunk, chain}, values.data());
        for (const auto& [first, count] : {std::pair<uint64_t, uint64_t>{0, 23}, {3, 1}, {2, 9}, {22, 1}}) {
          const auto read = read_ints(path, first, count);
          REQUIRE_EQ(read.size(), count * 35);
          CHECK(std::equal(read.begin(), read.end(), values.begin() + static_cast<ptrdiff_t>(first * 35)));
        }
      }
}

TEST_CASE("filters: a chunk that inflates to more than it is, or to less, is refused") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const auto refusal = [&](const std::vector<H5Z_filter_t>& chain, const std::string& stored,
                           uint32_t skipped = 0) {
    SmallFile(path, H5T_STD_I32LE, {1024}, {{256}, chain}).put_chunk({256}, stored, skipped);
    return refusal_of(path, [&] { read_ints(path, 256, 256); });
  };
  constexpr H5Z_filter_t d = H5Z_FILTER_DEFLATE, s = H5Z_FILTER_SHUFFLE, f = H5Z_FILTER_FLETCHER32;
  const std::string start = "/x: the chunk of rows from 256 on: ";
  const std::string whole(1024, 'a');
  CHECK_EQ(refusal({d}, deflated(std::string(size_t{1} << 22, '\0'))),
           start + "inflates to more than 1024 bytes");
  CHECK_EQ(refusal({d}, deflated(std::string(size_t{1} << 23, '\0'))),  // 8 KB
           "/x: rows from 256 on are not stored as they should be");
  CHECK_EQ(refusal({s, d}, deflated(std::string(1025, 'a'))), start + "inflates to more than 1024 bytes");
  CHECK_EQ(refusal({d}, deflated(std::string(1023, 'a'))), start + "inflates to 1023 bytes; 1024 are wanted");
  CHECK_EQ(refusal({d}, std::string(600, 'x')), start + "does not inflate: incorrect header check");
  CHECK_EQ(refusal({d}, deflated(whole).substr(0, 9)), start + "does not inflate: it ends too early");
  CHECK(refusal({d, f}, deflated(whole) + "abcd")
            .starts_with(start + "does not bear out its checksum (64636261 stored"));
  CHECK_EQ(refusal({d}, std::string(1000, 'x'), 1), start + "has 1000 bytes; 1024 are wanted");
  CHECK_EQ(refusal({d}, whole, 1), "accepted");
  CHECK_EQ(refusal({d}, deflated(whole)), "accepted");
}

TEST_CASE(
    "filters: chunks that were never written, and such as are compressed again and again, are refused") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const auto refusal = [&](const Chunking& chunks, std::vector<hsize_t> shape) {
    const std::vector<int32_t> values(
        std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>()), 1);
    SmallFile(path, H5T_STD_I32LE, shape, chunks, values.data());
    return refusal_of(path, [&] { read_ints(path, 0, shape[0]); });
  };
  constexpr H5Z_filter_t d = H5Z_FILTER_DEFLATE, s = H5Z_FILTER_SHUFFLE;
  CHECK_EQ(refusal({{256}, {d, d}}, {1024}), "/x: is compressed several times over; once is possible");
  CHECK_EQ(refusal({{256}, {s, s, s, d}}, {1024}), "accepted");
  CHECK_EQ(refusal({{256}, {H5Z_FILTER_NBIT}}, {1024}),
           "/x: is stored with filter 5 of HDF5; 1 (deflate), 2 (shuffle) and 3 (Fletcher-32) are possible");
  // Rows of columns in chunks of their own, all of which must be unpacked for one of them.
  SmallFile(path, H5T_STD_I32LE, {4, 128}, {{1 << 20, 1}, {d}})
      .put_chunk({0, 0}, deflated(std::string(1 << 22, 'a')));
  CHECK_EQ(
      refusal_of(path, [&] { read_ints(path, 0, 4); }),
      "/x: has chunks [1048576, 1], of which 536870912 bytes would be unpacked at once; 256 MiB are possible");
  SmallFile(path, H5T_STD_I32LE, {1024}, {{256}, {d}}).put_chunk({0}, deflated(std::string(1024, 'a')));
  CHECK_EQ(refusal_of(path, [&] { read_ints(path, 0, 256); }), "accepted");
  CHECK_EQ(refusal_of(path, [&] { read_ints(path, 200, 100); }),
           "/x: rows from 256 on are not stored as they should be");
}

TEST_CASE(
    "filters: strings of variable length whose references are compressed are read, and their chunks are checked") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const hid_t text = Edit::check(H5Tcopy(H5T_C_S1));
  Edit::check(H5Tset_size(text, H5T_VARIABLE));
  const std::vector<const char*> names{"a", "", "third", "the fourth one"};
  const Chunking chunks{{2}, {H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE}};
  SmallFile(path, text, {4}, chunks, names.data(), text);
  CHECK(h5::File::open(path).dataset("/x").texts() == TextList(names));
  {
    SmallFile file(path, text, {4}, chunks, names.data(), text);
    file.put_chunk({2}, deflated(std::string(16, '\0')));
  }
  CHECK_EQ(refusal_of(path, [&] { h5::File::open(path).dataset("/x").texts(); }),
           "/x: the chunk of rows from 2 on: inflates to 16 bytes; 32 are wanted");
  H5Tclose(text);
}

TEST_CASE("filters: chunks that lie on each other again and again are refused") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  constexpr size_t kChunks = 16, kRows = 16384;
  {
    const hid_t access = Edit::check(H5Pcreate(H5P_FILE_ACCESS));
    Edit::check(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110));
    const hid_t file = Edit::check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access));
    const hsize_t rows = kChunks * kRows;
    const hid_t space = Edit::check(H5Screate_simple(1, &rows, nullptr)),
                creation = Edit::creation_of({.shape = {kRows}});
    Edit::check(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER));
    const hid_t dataset =
        Edit::check(H5Dcreate2(file, "/x", H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    const std::vector<int32_t> values(kRows, 7);
    const hsize_t place = 0;
    Edit::check(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, &place, kRows * sizeof(int32_t), values.data()));
    H5Dclose(dataset), H5Pclose(creation), H5Sclose(space), H5Fclose(file), H5Pclose(access);
  }
  // The index of chunks has an address for each; all become that of the first.
  std::string bytes = file_bytes(path);
  const auto blocks = checksummed_blocks(bytes);
  const uint64_t chunk = chunk_address(path, "/x", 0);
  const std::string address(reinterpret_cast<const char*>(&chunk), sizeof chunk), none(sizeof chunk, '\xff');
  const size_t index = bytes.find(address + none + none);
  REQUIRE(index != std::string::npos);
  for (size_t i = 1; i < kChunks; ++i) bytes.replace(index + i * address.size(), address.size(), address);
  mend_checksums(bytes, blocks);
  std::ofstream(path, std::ios::binary) << bytes;
  CHECK_EQ(refusal_of(path, [&] { read_ints(path, 0, kChunks * kRows); }),
           "/x: claims 1048576 stored bytes; the file has " + std::to_string(bytes.size()));
}

// HDF5 1.10 goes through all chunks to find the place of one.
TEST_CASE("filters: a dataset of very many chunks is read, with and without checksums") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  std::vector<int32_t> values(70'000);
  std::iota(values.begin(), values.end(), 3);
  for (const std::vector<H5Z_filter_t>& chain : {std::vector<H5Z_filter_t>{}, {H5Z_FILTER_FLETCHER32}}) {
    SmallFile(path, H5T_STD_I32LE, {values.size()}, {{1}, chain}, values.data());
    CHECK(read_ints(path, 0, values.size()) == values);
  }
}

}  // namespace filters_test
