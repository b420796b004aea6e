// The documents that kvcodec encode adds to codes.
#include "cli/encode/encode_job.hpp"

#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace encode_job_test {

using namespace kvcodec;
using namespace kvcodec::cli;
using namespace kvcodec::test;

TEST_CASE("documents to encode: a stored one with another digest is told apart without reading it") {
  const Folder folder;
  SampleCodes codes(1, {30, 30, 30, 5}, true, 1);
  Documents named;
  for (size_t d = 0; d < 4; ++d) {
    const uint64_t length = codes.info.documents.length(d);
    DocumentFacts facts;
    facts.digest = token_digest(std::span(codes.tokens).subspan(codes.info.documents.offsets[d], length));
    named.add(d == 3 ? "last" : "same", length, {}, facts);
  }
  codes.info.documents = named;
  codes.write(folder / "codes.h5");
  {
    OutputFile output(folder / "kv.h5", true);
    KvWriter writer(output, sample_model(1, 1, 2), DType::f32, {0}, std::nullopt);
    writer.add_document("same", std::vector<uint32_t>(30, 9), counting(0, 30));
    writer.add_document("same", std::span(codes.tokens).subspan(30, 30), counting(0, 30));
    for (const Side side : kSides) writer.append(side, 0, random_rows(60, 2, 1));
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  const KvReader kv(folder / "kv.h5");
  const CodesReader base(folder / "codes.h5");
  const uint64_t before = base.bytes_read();
  const auto job_of = [&](size_t document, const Additions& how) {
    Documents documents = base.info().documents;
    return make_job(kv, {document}, &base, how, documents);
  };
  CHECK_THROWS_AS(job_of(0, {}), Error);
  CHECK_EQ(base.bytes_read(), before);
  const Job other = job_of(0, {.replace = true});
  CHECK_EQ(other.pieces.size(), 1);
  CHECK_EQ(other.pieces.front().document, 0);  // of a part of its own
  for (size_t d = 0; d < 4; ++d) CHECK_EQ(other.names.gave_way(d), d < 3);
  CHECK_EQ(base.bytes_read(), before);
  const Job same = job_of(1, {.replace = true});
  CHECK_EQ(same.pieces.size(), 0);
  CHECK_FALSE(same.names.replaces());
  CHECK(json_of(same.names.measures()).dump() == R"({"stored_before":["same"]})");
}

}  // namespace encode_job_test
