#include <algorithm>
#include <filesystem>
#include <memory>

#include <hdf5.h>

#include "formats/cache/codes_file.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "formats/io/temporary.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/parts.hpp"
#include "test/formats/samples.hpp"
#include "test/lib/codec/stored_bytes.hpp"
#include "test/test.hpp"

namespace codes_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

std::vector<std::byte> read_bytes(const StreamReader& document, const StreamSpec& spec, uint64_t first,
                                  uint64_t count) {
  std::vector<std::byte> bytes(count * spec.row_bytes());
  document.read(spec.name, first, count, bytes);
  return bytes;
}

/// Every stream of every document in the file is what Encoded holds, whole and in parts.
void check_content(const CodesReader& reader, const SampleCodes& sample, uint64_t seed) {
  Rng rng(seed);
  CHECK(reader.info().documents.names == sample.info.documents.names);
  CHECK(reader.info().documents.offsets == sample.info.documents.offsets);
  CHECK(reader.info().groups == sample.info.groups);
  CHECK(reader.info().parameters == sample.info.parameters);
  CHECK(reader.info().model == sample.info.model);
  CHECK(reader.tokens(0, sample.tokens.size()) == sample.tokens);
  CHECK(reader.positions(0, sample.positions.size()) == sample.positions);
  reader.check_streams(sample.codec);
  for (const int layer : sample.info.groups)
    for (const Side side : kSides) {
      CAPTURE(layer);
      const Encoded expected = sample.encoded(layer, side);
      for (size_t d = 0; d < expected.documents(); ++d)
        for (const StreamSpec& spec : expected.specs()) {
          CAPTURE(spec.name);
          CAPTURE(d);
          const auto document = reader.document(side, layer, d);
          const uint64_t rows = expected.document(d).rows(spec.name);
          REQUIRE(document->rows(spec.name) == rows);
          CHECK(read_bytes(*document, spec, 0, rows) == read_bytes(expected.document(d), spec, 0, rows));
          const uint64_t first = rng.below(rows + 1), count = rng.below(rows - first + 1);
          CHECK(read_bytes(*document, spec, first, count) ==
                read_bytes(expected.document(d), spec, first, count));
          CHECK_THROWS_AS(read_bytes(*document, spec, rows, 1), Error);
        }
    }
}

}  // namespace

TEST_CASE("codes: streams come back as they were given, any documents, groups and pieces, packed and plain") {
  const Folder folder;
  for (const bool packed : {false, true})
    for (const int layer_group : {1, 2, 4})
      for (const std::vector<uint64_t>& lengths :
           {std::vector<uint64_t>{}, {0}, {1}, {17}, {5, 0, 40, 1}, {0, 0, 300, 0}}) {
        CAPTURE(packed);
        CAPTURE(layer_group);
        CAPTURE(fmt::format("{}", lengths));
        const SampleCodes sample(layer_group, lengths, packed, 3);
        sample.write(folder / "codes.h5", 9);
        const CodesReader reader(folder / "codes.h5");
        CHECK(reader.info().packed == packed);
        check_content(reader, sample, 5);
      }
}

TEST_CASE("codes: extending a file gives the bytes of encoding at once") {
  const Environment epoch("SOURCE_DATE_EPOCH", "1700000000");
  const Folder folder;
  for (const bool packed : {false, true})
    for (const uint64_t grown : {0, 1, 9})
      for (const uint64_t added : {0, 6}) {
        CAPTURE(packed);
        CAPTURE(grown);
        CAPTURE(added);
        SampleCodes all(2, {5, 0, 12 + grown}, packed, 7);
        if (added > 0) all.add_document(added, 70);
        SampleCodes part(2, {5, 0}, packed, 7);
        // The part's last document is the head of the whole's.
        part.info.documents.add(all.info.documents.names[2], 12);
        part.tokens.assign(all.tokens.begin(), all.tokens.begin() + 17);
        part.positions.assign(all.positions.begin(), all.positions.begin() + 17);
        for (auto& [place, documents] : part.rows) {
          Matrix<float> head(12, all.rows[place][2].cols());
          std::copy_n(all.rows[place][2].data(), head.size(), head.data());
          documents.push_back(head);
        }
        part.write(folder / "part.h5");
        all.write(folder / "all.h5");
        {
          const CodesReader base(folder / "part.h5");
          OutputFile output(folder / "part.h5", true);  // onto itself
          CodesWriter writer(output, base, all.info, all.codec,
                             {std::span(all.tokens).subspan(17), std::span(all.positions).subspan(17)});
          all.append_to(writer, 4, 2, 12);
          writer.finish({"kvcodec test", {}});
          output.commit();
        }
        check_content(CodesReader(folder / "part.h5"), all, 8);
        CHECK(file_bytes(folder / "part.h5") == file_bytes(folder / "all.h5"));
      }
}

TEST_CASE("codes: data that grow in place lie in chunks which suit a large file") {
  const Folder folder;
  const std::string path = folder / "codes.h5";
  SampleCodes sample(2, {5, 12}, true, 7);
  sample.write(path);
  const auto chunk_bytes = [&] {
    const Edit file(path);
    const hid_t data = Edit::check(H5Dopen2(file.file(), "/data", H5P_DEFAULT)),
                creation = Edit::check(H5Dget_create_plist(data));
    hsize_t chunk = 0;
    H5Pget_chunk(creation, 1, &chunk);
    H5Pclose(creation);
    H5Dclose(data);
    return chunk;
  };
  CHECK(chunk_bytes() < 65536);
  for (const size_t document : {2, 3}) {
    const size_t before = sample.tokens.size();
    sample.add_document(9, document);
    std::optional<CodesReader> base(path);
    const HeldFile held(path, [] { FAIL("nobody else holds the file"); });
    OutputFile output(path, held);
    CodesWriter writer(
        output, *base, sample.info, sample.codec,
        {std::span(sample.tokens).subspan(before), std::span(sample.positions).subspan(before)});
    sample.append_to(writer, 1, document);
    writer.finish({"kvcodec test", {}});
    base.reset();
    output.commit();
    CHECK_EQ(chunk_bytes(), 65536);
    check_content(CodesReader(path), sample, 3);
  }
}

TEST_CASE("codes: packing is lossless both ways and 13-bit ids take 13 bits") {
  const Environment epoch("SOURCE_DATE_EPOCH", "1700000000");
  const Folder folder;
  const SampleCodes plain(1, {33, 0, 8, 129}, false, 11);
  SampleCodes packed(1, {33, 0, 8, 129}, true, 11);
  const Book book = sample_book();
  for (const Book* embedded : {static_cast<const Book*>(nullptr), &book}) {
    SampleCodes with = plain;
    if (embedded) {
      with.info.book_type = book.type;
      with.info.book_digest = book.digest();
      with.info.book_bytes = book.size_bytes();
    }
    with.write(folder / "plain.h5", 1, embedded);
    const CodesReader input(folder / "plain.h5");
    OutputFile output(folder / "packed.h5", true);
    const RepackResult result = repack_indices(input, output, true, {"kvcodec test", {}});
    output.commit();
    const CodesReader reader(folder / "packed.h5");
    CHECK(reader.info().packed);
    check_content(reader, packed, 2);
    uint64_t before = 0, after = 0;
    for (const int layer : plain.info.groups)
      for (const Side side : kSides)
        for (const StoredStream& stream : reader.streams(side, layer)) {
          if (stream.spec.index_bound == 0) continue;
          before += stream.rows * stream.spec.row_bytes();
          after += stream.bytes;
          if (stream.spec.name == "ids") CHECK(stream.packed_bits == 10);
          if (stream.spec.name == "wide-ids") {
            CHECK(stream.packed_bits == 23);
            CHECK(stream.bytes == (33 * 23 + 7) / 8 + (8 * 23 + 7) / 8 + (129 * 23 + 7) / 8);
          }
          if (stream.spec.name == "byte-ids") CHECK(stream.packed_bits == 0);
        }
    CHECK(result.index_bytes_before == before);
    CHECK(result.index_bytes_after == after);
    OutputFile again(folder / "again.h5", true);
    const RepackResult back = repack_indices(reader, again, false, {"kvcodec test", {}});
    again.commit();
    CHECK(back.index_bytes_before == after);
    CHECK(back.index_bytes_after == before);
    const CodesReader unpacked(folder / "again.h5");
    check_content(unpacked, plain, 2);
    CHECK(unpacked.embedded_book().has_value() == (embedded != nullptr));
  }
}

namespace {

/// A codec of one stream of ids below 8192, which takes them from the rows.
class IdCodec final : public Codec {
 public:
  Record parameters() const override { return {}; }
  std::vector<StreamSpec> streams(const GroupShape&) const override {
    return {{"ids", DType::u16, {}, Category::ids, 8192, false}};
  }
  void append(const GroupShape&, MatrixView<const float> rows, StreamStore& document) const override {
    for (size_t i = 0; i < rows.rows(); ++i) {
      const auto id = static_cast<uint16_t>(rows(i, 0));
      document.append_values("ids", std::span<const uint16_t>(&id, 1));
    }
  }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<CountingView>(shape, document, "ids");
  }
};

}  // namespace

TEST_CASE("codes: packed bytes are those of the example in FORMAT.md") {
  const Folder folder;
  const float ids[] = {5, 8191, 0, 1, 4096, 2, 3, 7};
  CodesInfo info;
  info.model = sample_model(1, 1, 1);
  info.codec = "ids";
  info.groups = {0};
  info.packed = true;
  info.documents.add("eight", 8);
  info.documents.add("three", 3);
  const IdCodec codec;
  OutputFile output(folder / "codes.h5", false);
  CodesWriter writer(output, info, codec, {{}, counting(0, 11)});
  for (const Side side : kSides)
    for (const size_t d : {0, 1})
      codec.append({}, MatrixView<const float>(ids, d == 0 ? 8 : 3, 1), writer.document(side, 0, d));
  writer.finish({"t", {}});
  output.commit();
  PartsFile parts(folder / "codes.h5");
  for (const uint64_t column : {0, 1}) {
    const RawPart eight = parts.get(1, column), three = parts.get(2, column);
    CHECK(eight.body == Bytes{0x00, 0x2f, 0xff, 0xc0, 0x00, 0x00, 0x18, 0x00, 0x00, 0x08, 0x00, 0x60, 0x07});
    CHECK(eight.rows == std::vector<uint64_t>{8});
    CHECK(three.body == Bytes{0x00, 0x2f, 0xff, 0xc0, 0x00});
    CHECK(three.rows == std::vector<uint64_t>{3});
  }
}

TEST_CASE("codes: parts are written as FORMAT.md says") {
  const Folder folder;
  const SampleCodes sample(2, {40, 0, 3}, true, 3);
  sample.write(folder / "codes.h5");
  PartsFile parts(folder / "codes.h5");
  CHECK(parts.rows() == 4);
  CHECK(parts.columns() == 5);
  const CodesReader reader(folder / "codes.h5");
  for (uint64_t row = 0; row < parts.rows(); ++row)
    for (uint64_t column = 0; column < parts.columns(); ++column) {
      CAPTURE(row);
      CAPTURE(column);
      const auto [begin, size] = parts.place(row, column);
      if (row == 0 && column == 4) {  // no tokens are shared
        CHECK(begin == 0);
        CHECK(size == 0);
        continue;
      }
      RawPart part = parts.get(row, column);
      CHECK(part.row == row);
      CHECK(part.column == column);
      const Bytes stored(parts.data().begin() + static_cast<ptrdiff_t>(begin),
                         parts.data().begin() + static_cast<ptrdiff_t>(begin + size));
      part.make_digests();
      CHECK(part.bytes() == stored);
      if (column == 4) {
        CHECK(part.rows == std::vector<uint64_t>(2, sample.info.documents.length(row - 1)));
        continue;
      }
      const int layer = column < 2 ? 0 : 2;
      const Encoded expected = sample.encoded(layer, kSides[column % 2]);
      std::vector<uint64_t> rows;
      for (const StreamSpec& spec : expected.specs())
        if (spec.shared == (row == 0))
          rows.push_back(expected.document(row == 0 ? 0 : row - 1).rows(spec.name));
      CHECK(part.rows == rows);
    }
}

TEST_CASE("codes: what all documents share is found without the table of parts, where that is large") {
  const Folder folder;
  const SampleCodes sample(2, {40, 0, 3}, false, 3);
  sample.write(folder / "codes.h5");
  const auto faults = [&] {
    std::vector<std::string> all;
    CodesReader(folder / "codes.h5")
        .check_parts([](uint64_t) {}, [&](const Error& fault) { all.emplace_back(fault.what()); });
    return all;
  };
  CHECK(faults() == std::vector<std::string>{});
  PartsFile parts(folder / "codes.h5");
  // The table's first row is damaged, its copy is not: documents are read, and `check` reports the damage.
  const auto kept = std::pair<uint64_t, uint64_t>(parts.place(0, 0));
  parts.place(0, 0).first += 1;
  parts.save();
  std::vector<uint64_t> places;
  for (uint64_t column = 0; column < parts.columns(); ++column)
    places.insert(places.end(), {parts.place(0, column).first, parts.place(0, column).second});
  places[0] = kept.first;
  Edit(folder / "codes.h5").set("/", "shared_parts", places);
  check_content(CodesReader(folder / "codes.h5"), sample, 1);
  REQUIRE(faults().size() == 1);
  CHECK(faults().front().ends_with("attribute 'shared_parts' is not row 0 of /parts"));
  // A small file has the table alone.
  parts.place(0, 0).first = kept.first;
  parts.save();
  Edit(folder / "codes.h5").remove_attribute("/", "shared_parts");
  check_content(CodesReader(folder / "codes.h5"), sample, 1);
  CHECK(faults() == std::vector<std::string>{});

  // 5 columns of 16 bytes: just more than 64 KiB.
  for (const size_t documents : {size_t{818}, size_t{819}}) {
    SampleCodes(2, std::vector<uint64_t>(documents), false, 3).write(folder / "codes.h5");
    const h5::File file = h5::File::open(folder / "codes.h5");
    CHECK(file.has_attribute("/", "shared_parts") == (documents == 819));
    if (documents == 819) {
      const std::vector<uint64_t> stored = file.extents("/", "shared_parts");
      CHECK(stored[1] > 0);
      PartsFile table(folder / "codes.h5");
      for (uint64_t column = 0; column < table.columns(); ++column)
        CHECK((table.place(0, column).first == stored[2 * column] &&
               table.place(0, column).second == stored[2 * column + 1]));
    }
  }
}

TEST_CASE("codes: a part larger than is read at once comes back whatever is asked for, from many threads") {
  const Folder folder;
  CodesInfo info;
  info.model = sample_model(1, 2, 64);
  info.codec = "kivi";
  info.groups = {0};
  const std::vector<uint64_t> lengths{9001, 60000};  // the second part is some 4 MB
  const CodecEntry& entry = find_codec("kivi");
  const CodecContext context{.num_layers = 1, .heads = 2, .head_dim = 64};
  const auto codec = entry.make(*entry.make_options(), context);
  info.parameters = codec->parameters();
  for (const uint64_t length : lengths) info.documents.add("d", length);
  OutputFile output(folder / "codes.h5", false);
  CodesWriter writer(output, info, *codec, {{}, counting(0, info.documents.tokens())});
  std::vector<Encoded> expected;
  for (const Side side : kSides) {
    const GroupShape shape = usual_group(0, 1, 2, 64, side);
    expected.emplace_back(codec->streams(shape));
    for (size_t d = 0; d < lengths.size(); ++d) {
      const Matrix<float> rows = random_rows(lengths[d], 128, d);
      codec->append(shape, rows, writer.document(side, 0, d));
      codec->append(shape, rows, expected.back().add_document());
    }
  }
  writer.finish({"t", {}});
  output.commit();
  const CodesReader reader(folder / "codes.h5");
  Rng rng(3);
  for (const Side side : kSides)
    for (size_t d = 0; d < lengths.size(); ++d) {
      const auto document = reader.document(side, 0, d);
      const StreamReader& wanted = expected[side == Side::value].document(d);
      for (const StreamSpec& spec : expected[side == Side::value].specs()) {
        CAPTURE(spec.name);
        const uint64_t rows = wanted.rows(spec.name);
        REQUIRE(document->rows(spec.name) == rows);
        CHECK(read_bytes(*document, spec, 0, rows) == read_bytes(wanted, spec, 0, rows));
        std::vector<std::pair<uint64_t, uint64_t>> ranges;
        for (int i = 0; i < 40; ++i) {
          const uint64_t first = rng.below(rows + 1);
          ranges.emplace_back(first, rng.below(std::min<uint64_t>(rows - first, 1 + rng.below(20000)) + 1));
        }
        std::vector<char> same(ranges.size());
        parallel_for(ranges.size(), 1, [&](size_t begin, size_t end, int) {
          for (size_t i = begin; i < end; ++i)
            same[i] = read_bytes(*document, spec, ranges[i].first, ranges[i].second) ==
                      read_bytes(wanted, spec, ranges[i].first, ranges[i].second);
        });
        CHECK(std::ranges::count(same, 1) == static_cast<ptrdiff_t>(same.size()));
      }
    }
}

TEST_CASE("codes: a document read in pieces is read once") {
  constexpr uint64_t kIds = kSanitized ? 1'500'000 : 3'000'000;
  const Folder folder;
  CodesInfo info;
  info.model = sample_model(1, 1, 1);
  info.codec = "ids";
  info.groups = {0};
  info.documents.add("large", kIds);
  const IdCodec codec;
  OutputFile output(folder / "codes.h5", false);
  CodesWriter writer(output, info, codec, {{}, counting(0, kIds)});
  Matrix<float> rows(kIds, 1);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(i % 8192);
  for (const Side side : kSides) codec.append({}, rows, writer.document(side, 0, 0));
  writer.finish({"t", {}});
  output.commit();
  // 4 bytes for each id on both sides, as many for positions, and half a percent for all else: little of the last chunk is empty.
  CHECK(std::filesystem::file_size(folder / "codes.h5") < kIds * 8 * 201 / 200);
  const CodesReader reader(folder / "codes.h5");
  const auto document = reader.document(Side::key, 0, 0);
  const uint64_t opened = reader.bytes_read();
  CHECK(opened < 65536 + 262144);  // with the range of rows that its first bytes are read with
  std::vector<uint16_t> found;
  for (uint64_t first = 0; first < kIds; first += 70'000) {
    const auto piece = document->read<uint16_t>("ids", first, std::min<uint64_t>(70'000, kIds - first), 1);
    found.insert(found.end(), piece.begin(), piece.end());
  }
  CHECK(std::ranges::equal(found, std::span(rows.data(), rows.size())));
  CHECK(reader.bytes_read() - opened <= 6'000'000 + 65536);
}

TEST_CASE("codes: the ledger counts every byte once, and the rest is small") {
  const Folder folder;
  for (const bool packed : {false, true}) {
    SampleCodes sample(1, {100, 0, 57}, packed, 13);
    const Book book = sample_book();
    sample.info.book_type = book.type;
    sample.info.book_digest = book.digest();
    sample.info.book_bytes = book.size_bytes();
    sample.write(folder / "codes.h5", 1, &book);
    const CodesReader reader(folder / "codes.h5");
    const Ledger ledger = reader.ledger();
    CHECK(ledger.values == 157 * 2 * 4 * 4 * 2);
    std::vector<uint64_t> category(std::size(kCategories), 0);
    uint64_t rows_of_ids = 0;
    for (const int layer : sample.info.groups)
      for (const Side side : kSides) {
        const Encoded expected = sample.encoded(layer, side);
        for (const Category c : kCategories)
          if (c != Category::ids || !packed)
            category[static_cast<size_t>(c)] += test::stored_bytes(expected, c);
        for (const StoredStream& stream : reader.streams(side, layer)) {
          if (stream.spec.category == Category::ids && packed)
            category[static_cast<size_t>(Category::ids)] += stream.bytes;
          if (stream.spec.name == "ids") rows_of_ids += stream.rows;
        }
      }
    CHECK(rows_of_ids > 0);
    CHECK(ledger.category == category);
    CHECK(ledger.embedded_book_bytes == book.size_bytes());
    // Four documents' rows of the table, 9 columns of two numbers; rows and bytes of 8 * 7 + 2 streams; footers.
    PartsFile parts(folder / "codes.h5");
    uint64_t footers = 0;
    for (uint64_t row = 0; row < parts.rows(); ++row)
      for (uint64_t column = 0; column < parts.columns(); ++column)
        if (const uint64_t size = parts.place(row, column).second; size > 0)
          footers += size - parts.get(row, column).body.size();
    CHECK(ledger.index_bytes == 157 * 4 + 157 * 4 + 3 * std::string("document 0").size() + 4 * 8 +
                                    4 * 9 * 16 + (8 * 7 + 2) * 16 + footers);
    CHECK(ledger.file_bytes == file_bytes(folder / "codes.h5").size());
    const uint64_t counted = ledger.stored_bytes() + ledger.index_bytes + ledger.embedded_book_bytes;
    CHECK(ledger.file_bytes > counted);
    CHECK(ledger.file_bytes - counted < 4096 + 10000);  // the end of the last chunk; HDF5's own
  }
}

TEST_CASE("codes: the writer refuses what would make a wrong file") {
  const Folder folder;
  const SampleCodes sample(2, {4, 3}, false, 17);
  const auto begin = [&](OutputFile& output) {
    return std::make_unique<CodesWriter>(output, sample.info, sample.codec,
                                         TokenRun{sample.tokens, sample.positions});
  };
  const auto rows = [&](int layer, Side side, size_t d) { return sample.rows.at({layer, side})[d].view(); };
  SUBCASE("a document with too few tokens") {
    OutputFile output(folder / "a.h5", false);
    const auto writer = begin(output);
    sample.codec.append(sample.shape(0, Side::key), rows(0, Side::key, 0).rows(0, 3),
                        writer->document(Side::key, 0, 0));
    CHECK_THROWS_WITH_AS(writer->document(Side::key, 0, 1),
                         doctest::Contains("/layers/0/key: document 0 was given 3 tokens of 4"), Error);
  }
  SUBCASE("a side that was left out") {
    OutputFile output(folder / "a.h5", false);
    const auto writer = begin(output);
    for (const size_t d : {0, 1})
      sample.codec.append(sample.shape(0, Side::key), rows(0, Side::key, d),
                          writer->document(Side::key, 0, d));
    CHECK_THROWS_WITH_AS(writer->finish({"t", {}}), doctest::Contains("/layers/0/value"), Error);
  }
  SUBCASE("a side opened again, a document of the past, a group that is none") {
    OutputFile output(folder / "a.h5", false);
    const auto writer = begin(output);
    for (const size_t d : {0, 1})
      sample.codec.append(sample.shape(0, Side::key), rows(0, Side::key, d),
                          writer->document(Side::key, 0, d));
    CHECK_THROWS_WITH_AS(writer->document(Side::key, 0, 0), doctest::Contains("document 0 is closed"), Error);
    writer->document(Side::value, 0, 0);
    CHECK_THROWS_AS(writer->document(Side::value, 1, 0), Error);
    CHECK_THROWS_AS(writer->document(Side::value, 0, 2), Error);
  }
  SUBCASE("tokens of another length") {
    OutputFile output(folder / "a.h5", false);
    const std::vector<uint32_t> few(3);
    CHECK_THROWS_AS(CodesWriter(output, sample.info, sample.codec, {few, sample.positions}), Error);
  }
  SUBCASE("positions that do not rise") {
    OutputFile output(folder / "a.h5", false);
    std::vector<uint64_t> positions = sample.positions;
    positions[2] = positions[1];
    CHECK_THROWS_WITH_AS(CodesWriter(output, sample.info, sample.codec, {sample.tokens, positions}),
                         doctest::Contains("position 1 is followed by 1"), Error);
  }
  CHECK(folder.names().empty());
}

TEST_CASE("codes: files of the real codecs decode as their Encoded does") {
  const Folder folder;
  const std::vector<uint64_t> lengths{200, 0, 31};
  for (const char* name : {"none", "kivi", "kivi+none"}) {  // which survey nothing
    CAPTURE(name);
    const CodecEntry& entry = find_codec(name);
    CodecContext context;
    context.num_layers = 2;
    context.heads = 2;
    context.head_dim = 64;
    const auto options = entry.make_options();
    const auto codec = entry.make(*options, context);
    CodesInfo info;
    info.model = sample_model(2, 2, 64);
    info.codec = name;
    info.parameters = codec->parameters();
    info.groups = {0, 1};
    for (const uint64_t length : lengths) info.documents.add("d", length);
    const auto positions = counting(0, 231);
    OutputFile output(folder / name, false);
    CodesWriter writer(output, info, *codec, {{}, positions});
    for (const int layer : info.groups)
      for (const Side side : kSides)
        for (size_t d = 0; d < lengths.size(); ++d)
          codec->append(usual_group(layer, 1, 2, 64, side), random_rows(lengths[d], 128, d).view(),
                        writer.document(side, layer, d));
    writer.finish({"t", {}});
    output.commit();

    const CodesReader reader(folder / name);
    CHECK(!reader.has_tokens());
    const auto again = codec_from_record(entry, reader.info().parameters, context);
    reader.check_streams(*again);
    for (const Side side : kSides)
      for (size_t d = 0; d < lengths.size(); ++d) {
        const GroupShape shape = usual_group(1, 1, 2, 64, side);
        Encoded expected(codec->streams(shape));
        codec->append(shape, random_rows(lengths[d], 128, d).view(), expected.add_document());
        Matrix<float> from_file(lengths[d], 128), from_memory(lengths[d], 128);
        const auto streams = reader.document(side, 1, d);
        again->open(shape, *streams)->decode(0, from_file);
        codec->open(shape, expected.document(0))->decode(0, from_memory);
        CHECK(std::equal(from_file.data(), from_file.data() + from_file.size(), from_memory.data()));
      }
  }
}

TEST_CASE("spill: bytes survive spilling and cutting, and memory stays bounded") {
  const Folder folder;
  Rng rng(5);
  SpillBuffer buffer(folder / "target.h5", "target.h5", 1000);
  std::vector<std::byte> expected;
  for (int step = 0; step < 3000; ++step) {
    std::vector<std::byte> bytes(rng.below(rng.below(10) == 0 ? 5000 : 100));
    for (auto& b : bytes) b = static_cast<std::byte>(rng.next());
    buffer.append(bytes);
    expected.insert(expected.end(), bytes.begin(), bytes.end());
    if (rng.below(5) == 0) {
      const uint64_t size = expected.size() - rng.below(std::min<uint64_t>(expected.size(), 3000) + 1);
      buffer.truncate(size);
      expected.resize(size);
    }
    REQUIRE(buffer.size() == expected.size());
    CHECK(buffer.memory() <= 2000);
    const uint64_t first = rng.below(expected.size() + 1), count = rng.below(expected.size() - first + 1);
    std::vector<std::byte> part(count);
    buffer.read(first, part);
    REQUIRE(std::equal(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(first)));
  }
  CHECK(folder.names().empty());  // the spill has no name
}

}  // namespace codes_test
