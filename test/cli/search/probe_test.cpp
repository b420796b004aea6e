// Samples of caches on which options of codecs are tried.
#include "cli/search/probe.hpp"

#include <memory>
#include <numeric>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace kvcodec::cli::probe_test {
namespace {

using namespace kvcodec::test;

/// Two layers, of which the second holds of document b the last tokens only; its rows are random, those of the first zeros.
void write_partial(const std::string& path) {
  OutputFile output(path, true);
  KvWriter writer(output, sample_model(2, 1, 16), DType::bf16, {0, 1}, std::nullopt);
  const std::vector<uint32_t> ids(240, 7);
  writer.add_document("a", std::span(ids).first(40), counting(0, 40));
  writer.add_document("b", std::span(ids).first(200), counting(0, 200), std::vector<uint64_t>{0, 192});
  writer.add_document("empty", {}, {});
  for (const Side side : kSides) {
    writer.append(side, 0, Matrix<float>(240, 16));
    writer.append(side, 1, random_rows(48, 16, 1 + static_cast<uint64_t>(side)));
  }
  writer.finish({"kvcodec test", {}});
  output.commit();
}

std::unique_ptr<Codec> codec_for(const KvReader& kv, const std::string& name) {
  const CodecEntry& entry = codec_named(name);
  return make_codec(entry, *entry.make_options(), context_of(kv.model(), kv.documents(), kv.dtype(), nullptr),
                    RopeChoice::keep);
}

TEST_CASE("samples of caches: of layers that leave out tokens the rows that they hold are taken") {
  const Folder folder;
  write_partial(folder / "kv.h5");
  const KvReader kv(folder / "kv.h5");
  const auto none = codec_for(kv, "none");
  for (const uint64_t limit : {uint64_t{1}, uint64_t{60}, uint64_t{10000}})
    for (const std::vector<size_t>& documents : {std::vector<size_t>{1, 2}, std::vector<size_t>{0, 1, 2}}) {
      CAPTURE(limit);
      CAPTURE(documents.size());
      const Probe probe(kv, documents, documents, {0, 1}, limit);
      CHECK(probe.tokens() >= 1);
      const Probe::OneSide keys = probe.one_side(*none, Side::key);
      CHECK(keys.bits == doctest::Approx(16));
      CHECK(keys.energies[1][0].signal > 0);
      CHECK(probe.energies(*none)[1][1].signal > 0);
      CHECK(probe.bits(*none) > 16);
      const double held = documents.size() == 2 ? 208 : 288, tokens = documents.size() == 2 ? 200 : 240;
      CHECK(keys.width == doctest::Approx(16 * held / tokens));
    }
}

TEST_CASE("samples of caches: one document that is longer than the sample is taken from its beginning") {
  const Folder folder;
  write_partial(folder / "kv.h5");
  const KvReader kv(folder / "kv.h5");
  for (const uint64_t limit : {uint64_t{1}, uint64_t{7}, uint64_t{99}, uint64_t{150}, uint64_t{200}})
    CHECK_EQ(Probe(kv, {1}, {1}, {0}, limit).tokens(), limit);
  CHECK_THROWS_AS(Probe(kv, {2}, {2}, {0}, 7), Error);
}

/// One layer of documents of these lengths; those of the first one are zeros, all others random.
void write_documents(const std::string& path, const std::vector<uint64_t>& lengths) {
  OutputFile output(path, true);
  KvWriter writer(output, sample_model(1, 1, 16), DType::bf16, {0}, std::nullopt);
  uint64_t tokens = 0;
  for (const uint64_t length : lengths) {
    writer.add_document(fmt::format("from {}", tokens), std::vector<uint32_t>(length, 7),
                        counting(0, length));
    tokens += length;
  }
  for (const Side side : kSides) {
    writer.append(side, 0, Matrix<float>(lengths.front(), 16));
    writer.append(side, 0, random_rows(tokens - lengths.front(), 16, static_cast<uint64_t>(side)));
  }
  writer.finish({"kvcodec test", {}});
  output.commit();
}

TEST_CASE("samples of caches: they have the tokens wanted, however documents differ in length") {
  const Folder folder;
  for (const size_t place : std::vector<size_t>{0, 50, 99}) {
    CAPTURE(place);
    std::vector<uint64_t> lengths(100, 10);
    lengths[place] = 5000;
    write_documents(folder / "kv.h5", lengths);
    const KvReader kv(folder / "kv.h5");
    std::vector<size_t> documents(100);
    std::iota(documents.begin(), documents.end(), size_t{0});
    for (const uint64_t limit : std::vector<uint64_t>{1, 400, 512, 5000, 5985, 5990}) {
      CAPTURE(limit);
      CHECK_EQ(Probe(kv, documents, documents, {0}, limit).tokens(), limit);
    }
  }
}

TEST_CASE("samples of caches: a document counts by its tokens") {
  const Folder folder;
  std::vector<uint64_t> lengths(100, 10);
  lengths[0] = 5000;
  write_documents(folder / "kv.h5", lengths);
  const KvReader kv(folder / "kv.h5");
  std::vector<size_t> documents(100);
  std::iota(documents.begin(), documents.end(), size_t{0});
  // Five tokens of six are zeros, which take next to nothing.
  const Probe probe(kv, documents, documents, {0}, 512);
  CHECK(probe.one_side(*codec_for(kv, "kvcomp"), Side::key).bits < 2);
}

TEST_CASE("samples of caches: each layer's rate counts by what it holds of all documents") {
  const Folder folder;
  write_partial(folder / "kv.h5");
  const KvReader kv(folder / "kv.h5");
  const auto lossless = codec_for(kv, "lossless");
  const auto rate = [&](const std::vector<int>& layers) {
    return Probe(kv, {0, 1}, {0}, layers, 1000).one_side(*lossless, Side::value).bits;
  };
  REQUIRE(rate({0}) < rate({1}) - 1);
  CHECK(rate({0, 1}) == doctest::Approx((240 * rate({0}) + 48 * rate({1})) / 288));
}

}  // namespace
}  // namespace kvcodec::cli::probe_test
