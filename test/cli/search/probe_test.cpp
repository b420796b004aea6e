// Samples of caches on which options of codecs are tried.
#include "cli/search/probe.hpp"

#include <memory>
#include <numeric>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "formats/cache/score_forms.hpp"
#include "formats/models/key_rope.hpp"
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

/// word: a codec, with options behind a colon.
std::unique_ptr<Codec> codec_for(const KvReader& kv, const std::string& word) {
  const CodecEntry& entry = codec_named(word);
  const auto options = entry.make_options();
  set_keys(word, entry.name, options->fields());
  return make_codec(entry, *options, context_of(kv.model(), kv.dtype(), nullptr), RopeChoice::keep);
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
      const Probe::Trial keys = probe.measure(*none, Side::key);
      CHECK(keys.sides[0].bits == doctest::Approx(16));
      CHECK(keys.errors[1][0].signal > 0);
      CHECK(probe.measure(*none, Side::value).errors[1][1].signal > 0);
      CHECK(probe.measure(*none, Probe::Asked::rate).bits > 16);
      const double held = documents.size() == 2 ? 208 : 288, tokens = documents.size() == 2 ? 200 : 240;
      CHECK(keys.sides[0].width == doctest::Approx(16 * held / tokens));
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

/// Two layers; document b lacks its first 150 tokens in the second one. The first 16 channels of keys are far from zero, which
/// does nothing to attention. Queries of the last 20 tokens of both documents.
void write_queries(const std::string& path, const std::string& key_state, const ScoreForms& scores = {}) {
  OutputFile output(path, true);
  ModelInfo model = sample_model(2, 1, 32);
  model.key_state = key_state;
  model.scores = text_of(scores);
  KvWriter writer(output, model, DType::bf16, {0, 1}, DType::bf16);
  const std::vector<uint32_t> ids(160, 7);
  writer.add_document("a", ids, counting(0, 160));
  writer.add_document("b", ids, counting(0, 160), std::vector<uint64_t>{0, 150});
  for (const int layer : {0, 1}) {
    Matrix<float> keys = random_rows(layer == 0 ? 320 : 170, 32, 1);
    for (size_t i = 0; i < keys.rows(); ++i)
      for (size_t j = 0; j < 16; ++j) keys(i, j) += 100;
    writer.append(Side::key, layer, keys);
    writer.append(Side::value, layer, random_rows(keys.rows(), 32, 2));
    std::vector<uint64_t> asking = counting(140, 20);
    for (const uint64_t token : counting(300, 20)) asking.push_back(token);
    writer.append_queries(layer, asking, random_rows(40, 64, 3));
  }
  writer.finish({"kvcodec test", {}});
  output.commit();
}

TEST_CASE("samples of caches: queries judge errors by what they do to attention") {
  const Folder folder;
  write_queries(folder / "kv.h5", "post-rope");
  const KvReader kv(folder / "kv.h5");
  const auto coarse = codec_for(kv, "q4:rotate=none,center=none,sink=0");
  const Probe probe(kv, {0, 1}, {0, 1}, {0, 1}, 320);
  REQUIRE(probe.has_queries());
  const Probe::Errors errors = probe.measure(*coarse, Probe::Asked::errors).errors;
  // By hand: four queries of each document, every fifth of those that there are; two query heads; document a.
  const Probe one(kv, {0, 1}, {0}, {0, 1}, 160);
  const LayerRows own(kv, 0, 0, 160);
  LayerRows other = own;
  const GroupShape shape = group_shape(kv.model(), {0}, Side::key);
  const DocumentRows rows(own.keys.view());
  coarse->open(shape, encode_in_memory(*coarse, shape, {&rows, 1}).document(0))->decode(0, other.keys);
  Matrix<float> queries(4, 64);
  for (size_t i = 0; i < 4; ++i) kv.read_queries(0, 2 + 5 * i, queries.view().rows(i, 1));
  AttentionErrorMeter meter(1, 2, 0);
  const std::vector<uint64_t> visible{143, 148, 153, 158};
  meter.add(0, {own.keys, own.values, other.keys, own.values, queries, visible, 1});
  const AttentionErrorSums by_hand = meter.sums(),
                           keys = one.measure(*coarse, Side::key).errors[0][0].attention;
  CHECK_EQ(keys.queries, 8);
  CHECK(keys.mean_divergence() == doctest::Approx(by_hand.mean_divergence()));
  CHECK(keys.output_nmse() == doctest::Approx(by_hand.output_nmse()));
  // Values alone leave the weights as they are.
  CHECK_EQ(errors[0][0].attention.queries, 16);
  CHECK_EQ(errors[0][1].attention.divergence, 0);
  CHECK(errors[0][1].attention.output_nmse() > 0);
  // The second layer holds only 10 tokens of document b; queries from before see none of them.
  CHECK_EQ(errors[1][0].attention.queries, 12);
  // By their energy errors are small; attention knows better.
  CHECK(Probe::snr_db(errors) > 15);
  CHECK(Probe::judged_db(errors) < Probe::snr_db(errors) - 6);
  CHECK(cost_of_errors(errors[0][0], Side::key, 0, nullptr) > errors[0][0].error / errors[0][0].signal * 100);
  // A part of a document is judged by the queries behind it, as if they were asked at its end.
  const Probe part(kv, {0, 1}, {0}, {0, 1}, 60);
  const AttentionErrorSums of_part = part.measure(*coarse, Side::key).errors[0][0].attention;
  CHECK_EQ(of_part.queries, 8);
  const KeyRope rope = key_rope_of(kv.model());
  REQUIRE(rope.turns());
  const int layer = 0;
  const std::vector<uint64_t> asked{142, 147, 152, 157}, at_end(4, 60), all(4, 60);
  rope.turn(TurnWay::back, {&layer, 1}, asked, queries);
  rope.turn(TurnWay::forward, {&layer, 1}, at_end, queries);
  const DocumentRows beginning(own.keys.view().rows(0, 60));
  Matrix<float> decoded(60, own.keys.cols());
  coarse->open(shape, encode_in_memory(*coarse, shape, {&beginning, 1}).document(0))->decode(0, decoded);
  AttentionErrorMeter meter_of_part(1, 2, 0);
  const auto values = own.values.view().rows(0, 60);
  meter_of_part.add(0, {own.keys.view().rows(0, 60), values, decoded, values, queries, all, 1});
  CHECK(of_part.mean_divergence() == doctest::Approx(meter_of_part.sums().mean_divergence()));
  // There they see the last tokens of the part where a layer has a window, which from their own places would hold none of it.
  write_queries(folder / "window.h5", "post-rope", {.known = true, .windows = {20, 0}, .q_heads = 2});
  const KvReader windowed(folder / "window.h5");
  const Probe of_window(windowed, {0, 1}, {0}, {0, 1}, 60);
  CHECK_EQ(of_window.measure(*coarse, Side::key).errors[0][0].attention.queries, 8);
  // Energy decides where queries are not multiplied with the keys as they are.
  write_queries(folder / "unturned.h5", "pre-rope");
  const KvReader unturned(folder / "unturned.h5");
  const Probe without(unturned, {0, 1}, {0, 1}, {0, 1}, 320);
  CHECK(!without.has_queries());
  const Probe::Errors energies = without.measure(*coarse, Probe::Asked::errors).errors;
  CHECK_EQ(Probe::judged_db(energies), Probe::snr_db(energies));
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
  CHECK(probe.measure(*codec_for(kv, "kvcomp"), Side::key).sides[0].bits < 2);
}

TEST_CASE("samples of caches: each layer's rate counts by what it holds of all documents") {
  const Folder folder;
  write_partial(folder / "kv.h5");
  const KvReader kv(folder / "kv.h5");
  const auto lossless = codec_for(kv, "lossless");
  const auto rate = [&](const std::vector<int>& layers) {
    return Probe(kv, {0, 1}, {0}, layers, 1000).measure(*lossless, Side::value).sides[1].bits;
  };
  REQUIRE(rate({0}) < rate({1}) - 1);
  CHECK(rate({0, 1}) == doctest::Approx((240 * rate({0}) + 48 * rate({1})) / 288));
}

}  // namespace
}  // namespace kvcodec::cli::probe_test
