// The bytes of a codes file that are read for a few documents, counted by the system, including those for opening the file and for
// all its metadata.
#include <fstream>
#include <optional>

#include "formats/cache/codes_file.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/lib/codec/codec_table.hpp"
#include "test/test.hpp"

namespace random_access_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr int kLayers = 1, kHeads = 1, kDims = 32;
constexpr size_t kDocuments = kSanitized ? 300 : 2000, kOne = 234, kTokensOfOne = 193;

/// Rows of any document are taken from one matrix, here and there.
MatrixView<const float> rows_of(const Matrix<float>& all, const Documents& documents, size_t document) {
  return all.view().rows(document * 37 % 1000, documents.length(document));
}

struct Corpus {
  CodecContext context{.num_layers = kLayers, .heads = kHeads, .head_dim = kDims, .query_heads = kHeads};
  Documents documents;
  Matrix<float> rows = random_rows(1300, kHeads* kDims, 1);
  std::optional<Book> book;

  Corpus() {
    Rng rng(3);
    for (size_t d = 0; d < kDocuments; ++d)
      documents.add(fmt::format("document-{}", d), d == kOne ? kTokensOfOne : 150 + rng.below(121));
    for (size_t i = 0; i < rows.size(); ++i)
      rows.data()[i] = round_to(DType::bf16, rows.data()[i] * (1 + static_cast<float>(i % 7)));
  }

  void write(const std::string& path, const CodecEntry& entry, const Record& options) {
    Rng rng(5);
    if (!entry.book_type.empty()) {
      book = to_book(random_sparse_book({}, context, rng));
      context.book = &*book;
    }
    const auto made = entry.make_options();
    from_record(options, *made);
    const auto codec = entry.make(*made, context);
    CodesInfo info;
    info.model = sample_model(kLayers, kHeads, kDims);
    info.codec = entry.name;
    info.parameters = codec->parameters();
    info.groups = {0};
    info.documents = documents;
    const uint64_t total = documents.tokens();
    std::vector<uint32_t> tokens(total, 7);
    std::vector<uint64_t> positions;
    for (size_t d = 0; d < kDocuments; ++d)
      for (uint64_t t = 0; t < documents.length(d); ++t) positions.push_back(t);
    OutputFile output(path, true);
    CodesWriter writer(output, info, *codec, {tokens, positions});
    for (const int layer : info.groups)
      for (const Side side : kSides) {
        const GroupShape shape = usual_group(layer, 1, kHeads, kDims, side);
        for (size_t d = 0; d < kDocuments; ++d) {
          StreamStore& document = writer.document(side, layer, d);
          if (d == 0 && codec->survey_scope(shape) == SurveyScope::file) {
            const std::vector<DocumentRows> some{rows_of(rows, documents, 0), rows_of(rows, documents, 1)};
            run_survey(*codec->survey(shape), some, document);
          } else if (codec->survey_scope(shape) == SurveyScope::document) {
            run_survey(*codec->survey(shape), std::vector<DocumentRows>{rows_of(rows, documents, d)},
                       document);
          }
          codec->append(shape, rows_of(rows, documents, d), document);
        }
      }
    writer.finish({"kvcodec test", {}});
    output.commit();
  }

  /// Opens the file and decodes these documents, tokens and positions too. Returns the bytes of their streams.
  uint64_t decode(const CodesReader& reader, const std::vector<size_t>& chosen) const {
    const auto codec = codec_from_record(find_codec(reader.info().codec), reader.info().parameters, context);
    reader.check_streams(*codec);
    uint64_t bytes = 0;
    for (const size_t d : chosen) {
      const uint64_t first = reader.info().documents.offsets[d], length = documents.length(d);
      CHECK(reader.tokens(first, length).size() == length);
      CHECK(reader.positions(first, length).size() == length);
      bytes += length * 2 * sizeof(uint32_t);
      for (const int layer : reader.info().groups)
        for (const Side side : kSides) {
          const GroupShape shape = usual_group(layer, 1, kHeads, kDims, side);
          const auto document = reader.document(side, layer, d);
          const auto view = codec->open(shape, *document);
          REQUIRE(view->tokens() == length);
          for (const StreamSpec& spec : codec->streams(shape))
            if (!spec.shared) bytes += document->rows(spec.name) * spec.row_bytes();
          Matrix<float> out(length, kHeads * kDims);
          view->decode(0, out);
        }
    }
    return bytes;
  }
};

/// Bytes that this process has read by calls to the system; std::nullopt if the system does not count them.
std::optional<uint64_t> read_by_process() {
  std::ifstream file("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  if (file >> name >> bytes && name == "rchar:") return bytes;
  return std::nullopt;
}

void check_reads(const std::string& codec, const Record& options) {
  CAPTURE(codec);
  const Folder folder;
  Corpus corpus;
  corpus.write(folder / "codes.h5", find_codec(codec), options);
  // A child process opens a file first, once (formats/hdf5/probe.cpp); the system adds its reads to its parent's.
  { const CodesReader first(folder / "codes.h5"); }
  std::vector<size_t> some;
  Rng rng(9);
  while (some.size() < 32)
    if (const size_t d = rng.below(kDocuments); std::ranges::find(some, d) == some.end()) some.push_back(d);
  for (const std::vector<size_t>& chosen : {std::vector<size_t>{kOne}, some}) {
    CAPTURE(chosen.size());
    const auto before = read_by_process();
    const CodesReader reader(folder / "codes.h5");
    const uint64_t bytes = corpus.decode(reader, chosen);
    const auto after = read_by_process();
    CAPTURE(bytes);
    CAPTURE(reader.bytes_read());
    CAPTURE(reader.reads());
    CHECK(reader.bytes_read() > bytes);
    CHECK(reader.bytes_read() <= 3 * bytes + 65536);
    // The reader counts all bytes that were read, except for /proc itself and the first bytes of the file.
    if (before && after) CHECK(*after - *before <= reader.bytes_read() + 16384);
  }
}

Record record_of(std::initializer_list<std::pair<const char*, Scalar>> options) {
  Record record;
  for (const auto& [name, value] : options) record.set(name, value);
  return record;
}

}  // namespace

TEST_CASE("random access: a document of 2,000 costs at most 3 times its streams, and 64 KiB (long)") {
  const int threads = num_threads();
  set_num_threads(1);  // so small documents are quicker coded by one
  SUBCASE("kvcomp") { check_reads("kvcomp", record_of({{"block", int64_t{16}}})); }
  SUBCASE("kivi") { check_reads("kivi", record_of({{"bits", int64_t{2}}, {"window", int64_t{32}}})); }
  SUBCASE("sparse") { check_reads("sparse", {}); }
  SUBCASE("sparse, sorted") { check_reads("sparse", record_of({{"sort-ids", true}})); }
  SUBCASE("lossless") { check_reads("lossless", {}); }
  set_num_threads(threads);
}

}  // namespace random_access_test
