// Digests of datasets (FORMAT.md, "Digests"): damage that checksums miss is refused, and files with a new layout by another program
// are read.
#include <filesystem>

#include "formats/cache/kv_file.hpp"
#include "formats/cache/protection.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/refusal.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace digests_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr uint64_t kTokens = 2000;       // of 2 KiB: four chunks
constexpr uint64_t kChunk = 500 * 2048;  // bytes

void write_large(const std::string& path) {
  OutputFile output(path, true);
  KvWriter writer(output, sample_model(2, 8, 64), DType::f32, {0, 1}, std::nullopt);
  Documents documents;
  documents.add("a", kTokens);
  writer.expect(std::move(documents));
  writer.add_document("a", {}, counting(0, kTokens));
  for (const int layer : {0, 1})
    for (const Side side : kSides)
      writer.append(side, layer,
                    random_rows(kTokens, 512, static_cast<uint64_t>(2 * layer + (side == Side::value))));
  writer.finish({"t", {}});
  output.commit();
}

void read_all(const std::string& path) {
  const KvReader reader(path);
  Matrix<float> rows(kTokens, 512);
  for (const int layer : reader.layers())
    for (const Side side : kSides) {
      reader.read(side, layer, 0, rows);
      const Matrix<float> written =
          random_rows(kTokens, 512, static_cast<uint64_t>(2 * layer + (side == Side::value)));
      CHECK(std::equal(rows.data(), rows.data() + rows.size(), written.data()));
    }
}

std::string bytes_at(const std::string& path, uint64_t position, uint64_t size) {
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(position)).read(bytes.data(), static_cast<std::streamsize>(size));
  return bytes;
}

void put_bytes(const std::string& path, uint64_t position, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(position))
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Changes the layout of a dataset like h5repack, and keeps its attributes. chunk_rows 0 = contiguous.
void lay_out_anew(const std::string& path, const std::string& dataset, hsize_t chunk_rows, bool compressed) {
  Chunking chunks;
  if (chunk_rows > 0) chunks.shape = {chunk_rows, 8, 64};
  if (compressed) chunks.filters = {H5Z_FILTER_DEFLATE};
  std::vector<float> values(kTokens * 512);
  std::vector<uint64_t> digests(4);
  Edit edit(path);
  const hid_t old = Edit::check(H5Dopen2(edit.file(), dataset.c_str(), H5P_DEFAULT));
  Edit::check(H5Dread(old, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  const hid_t attribute = Edit::check(H5Aopen(old, "digests", H5P_DEFAULT));
  Edit::check(H5Aread(attribute, H5T_NATIVE_UINT64, digests.data()));
  H5Aclose(attribute);
  H5Dclose(old);
  edit.put(dataset, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {kTokens, 8, 64}, values, chunks);
  edit.set(dataset, "digests", digests);
}

}  // namespace

TEST_CASE("digests: lost and interchanged chunks, and datasets in each other's place, are found") {
  const Folder folder;
  const std::string good = folder / "good.h5", bad = folder / "bad.h5";
  write_large(good);
  read_all(good);
  const auto address = [&](uint64_t chunk) { return chunk_address(good, "/layers/1/key", chunk * 500); };
  const auto refused = [&](const std::string& says, const std::function<void()>& damage) {
    std::filesystem::copy_file(good, bad, std::filesystem::copy_options::overwrite_existing);
    damage();
    const std::string message = refusal_of(bad, [&] { read_all(bad); });
    CAPTURE(message);
    CHECK(message.starts_with(says));
  };
  // Fletcher-32 of zeros is zero: a sector that was never written looks intact to it.
  refused(
      "/layers/1/key: the digest of rows 500 to 999 does not hold: the file is damaged, or another program",
      [&] { put_bytes(bad, address(1), std::string(kChunk + 4, '\0')); });
  refused("/layers/1/key: the digest of rows 0 to 499 does not hold", [&] {
    put_bytes(bad, address(0), bytes_at(good, address(3), kChunk + 4));
    put_bytes(bad, address(3), bytes_at(good, address(0), kChunk + 4));
  });
  refused("/layers/0/key: the digest of its shape and its digests does not hold", [&] {
    Edit edit(bad);
    edit.rename("/layers/0/key", "/layers/0/x");
    edit.rename("/layers/1/key", "/layers/0/key");
    edit.rename("/layers/0/x", "/layers/1/key");
  });
  // The table is compared with the datasets' attributes.
  refused("/layers/0/key: the digest of its shape and its digests does not hold", [&] {
    uint64_t table = 0;
    {
      const Edit edit(bad);
      const hid_t dataset = Edit::check(H5Dopen2(edit.file(), "/digests", H5P_DEFAULT));
      table = H5Dget_offset(dataset);
      H5Dclose(dataset);
    }
    flip_byte(bad, table + 16 * 2);
  });
  refused("/digests: is missing", [&] { Edit(bad).remove("/digests"); });
  refused("/digests: has digests itself; the table of digests has none", [&] {
    Edit(bad).set("/digests", "digests", std::vector<uint64_t>{1, 0, 1, 2});
  });
  refused("/digests: has 19 rows; the digests of /layers/0/key are 4 from row 16 on", [&] {
    Edit(bad).set("/layers/0/key", "digests", std::vector<uint64_t>{500, 16, 1, 2});
  });
  refused("/layers/0/key: attribute 'digests' has pieces of 0 rows", [&] {
    Edit(bad).set("/layers/0/key", "digests", std::vector<uint64_t>{0, 0, 1, 2});
  });
  refused("/layers/0/key: attribute 'digests' has 3 numbers", [&] {
    Edit(bad).set("/layers/0/key", "digests", std::vector<uint64_t>{1, 0, 1});
  });
  refused("accepted", [] {});
}

TEST_CASE(
    "digests: names in several chunks, read alone or with what lies around them, come back or are refused") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  constexpr size_t kNames = 60000, kLongest = 50;
  TextList names;
  for (size_t i = 0; i < kNames; ++i)
    names.push_back(std::string(i % (kLongest + 1), static_cast<char>('a' + i % 26)));
  {
    OutputFile output(path, true);
    h5::File file = h5::File::create(output);
    h5::write_texts(file, "/names", names);
    file.close();
    output.commit();
  }
  constexpr const char* kPaths[] = {"/names", "/nothing"};
  const auto read = [&](bool around) {
    const h5::File file = h5::File::open(path);
    if (around) file.will_read(kPaths, ReadPlan::whole);
    return file.dataset("/names").texts();
  };
  for (const bool around : {false, true}) CHECK(read(around) == names);
  constexpr uint64_t kRows = 20000;  // of each of three chunks
  // One bit, and a chunk that was never written, of which the checksum alone says nothing.
  const uint64_t second = chunk_address(path, "/names", kRows);
  const std::string chunk = bytes_at(path, second, kRows * kLongest + 4);
  {  // A table of digests in chunks with checksums, far from the ends of the file, takes the same way as the names.
    const std::string laid = folder / "laid.h5";
    std::filesystem::copy_file(path, laid);
    Edit edit(laid);
    std::vector<unsigned char> digests(48), filler(300000);
    const hid_t table = Edit::check(H5Dopen2(edit.file(), "/digests", H5P_DEFAULT));
    Edit::check(H5Dread(table, H5T_NATIVE_UCHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, digests.data()));
    H5Dclose(table);
    edit.put("/digests", H5T_STD_U8LE, H5T_NATIVE_UCHAR, {3, 16}, digests,
             {{1, 16}, {H5Z_FILTER_FLETCHER32}});
    edit.put("/filler", H5T_STD_U8LE, H5T_NATIVE_UCHAR, {300000}, filler);
  }
  CHECK(h5::File::open(folder / "laid.h5").dataset("/names").texts() == names);
  for (const bool around : {false, true}) {
    flip_byte(path, second + 70);
    CHECK(refusal_of(path, [&] {
            read(around);
          }).starts_with("/names: checksum of rows 20000 to 39999 does not hold"));
    put_bytes(path, second, std::string(chunk.size(), '\0'));
    CHECK(refusal_of(path, [&] {
            read(around);
          }).starts_with("/names: the digest of rows 20000 to 39999 does not hold"));
    put_bytes(path, second, chunk);
  }
}

TEST_CASE("digests: a file without them is read as before") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  write_large(path);
  {
    Edit edit(path);
    for (const char* dataset : {"/layers/0/key", "/layers/0/value", "/layers/1/key", "/layers/1/value",
                                "/positions", "/documents/name", "/documents/offset"})
      edit.remove_attribute(dataset, "digests");
    edit.remove("/digests");
  }
  read_all(path);
}

TEST_CASE("digests: they hold for datasets that another program laid out anew, and find what it changed") {
  const Folder folder;
  struct Layout {
    hsize_t chunk_rows;
    bool compressed;
  };
  for (const Layout& layout : {Layout{0, false}, Layout{300, false}, Layout{700, true}}) {
    CAPTURE(layout.chunk_rows);
    const std::string path = folder / "kv.h5";
    write_large(path);
    lay_out_anew(path, "/layers/0/value", layout.chunk_rows, layout.compressed);
    read_all(path);
    {
      const KvReader reader(path);
      const Matrix<float> all = random_rows(kTokens, 512, 1);
      for (const auto& [first, count] : {std::pair<uint64_t, size_t>{499, 2}, {1999, 1}, {100, 1500}}) {
        Matrix<float> rows(count, 512);
        reader.read(Side::value, 0, first, rows);
        CHECK(std::equal(rows.data(), rows.data() + rows.size(), all.row(first).data()));
      }
    }
    {
      const Edit edit(path);
      const hid_t dataset = Edit::check(H5Dopen2(edit.file(), "/layers/0/value", H5P_DEFAULT));
      std::vector<float> values(kTokens * 512);
      Edit::check(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
      values[1200 * 512] += 1;
      Edit::check(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
      H5Dclose(dataset);
    }
    CHECK(refusal_of(path, [&] {
            read_all(path);
          }).starts_with("/layers/0/value: the digest of rows 1000 to 1499 does not hold"));
  }
}

TEST_CASE(
    "digests: a dataset that has them and cannot be opened is damaged, one of another program is left alone") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  write_sample_kv(path);
  const auto damage = [&] { return find_damage(path, [](uint64_t, uint64_t) {}); };
  Edit(path).put_hollow("/theirs", H5T_STD_U64LE, {1000, 1000}, {10, 1000});
  CHECK(damage().empty());
  Edit(path).set("/positions", "digests", std::vector<uint64_t>{1, 2, 3});
  CHECK(damage() ==
        std::vector<std::string>{path + ": /positions: attribute 'digests' has 3 numbers; 4 are wanted"});
}

}  // namespace digests_test
