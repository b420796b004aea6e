// The codec transform with a rung for each token (its option `importance`).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/codec/part.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace rungs_test {

using namespace kvcodec;

namespace {

constexpr size_t kRungs = 20;
constexpr size_t kTokens = 300;

/// A random book with many rungs; a component dies the later the coarser the step.
struct Bench {
  Rng rng{11};
  CodecContext context{.num_layers = 2, .heads = 2, .head_dim = 8};
  GroupShape shape = usual_group(0, 2, 2, 8, Side::both);
  std::vector<float> steps;
  Book book;
  Matrix<float> rows{kTokens, shape.width()};
  std::vector<float> weights;

  explicit Bench(const test::TransformSettings& settings = {.sink = 1}) {
    TransformBook made = test::random_transform_book(settings, context, rng);
    for (size_t r = 0; r < kRungs; ++r) {
      steps.push_back(2 * std::exp2(-static_cast<float>(r) / 4));
      made.measures.resize(r + 1, {1, 1});
      made.measures[r] = {0.1 * static_cast<double>(r + 1), 1};
    }
    for (TransformBook::Part& part : made.parts) {
      const std::vector<uint8_t> classes = part.rungs.front().classes;
      const size_t components = classes.size();
      part.rungs.clear();
      for (size_t r = 0; r < kRungs; ++r) {
        LevelRung rung{steps[r], classes, std::vector<float>(components, 1)};
        for (size_t i = 0; i < components; ++i) {
          rung.gains[i] = 1 + static_cast<float>((i + r) % 8) / 16;
          rung.classes[i] = i > components / 2 + r ? kDeadClass : static_cast<uint8_t>(classes[i] + r / 2);
        }
        part.rungs.push_back(rung);
        if (settings.first_tokens) part.first.classes.resize(kRungs, part.first.classes.front());
      }
    }
    book = to_book(made);
    context.book = &book;
    for (float& value : std::span(rows.data(), rows.size()))
      value = round_to(DType::bf16, static_cast<float>(rng.normal()));
    for (size_t t = 0; t < kTokens; ++t) weights.push_back(static_cast<float>(std::exp2(rng.uniform(-8, 8))));
  }

  std::unique_ptr<Codec> codec(std::vector<std::pair<std::string, Scalar>> options) const {
    Record record;
    for (const auto& [name, value] : options) record.set(name, value);
    return codec_from_record(find_codec("transform"), record, context);
  }
  std::vector<std::pair<std::string, Scalar>> by_token(int64_t rung, double power = 1) const {
    return {{"rung", rung},
            {"importance", std::string("queries")},
            {"importance-power", power},
            {"adapt", false},
            {"sink", int64_t{1}},
            {"block", int64_t{64}}};
  }

  Encoded encode(const Codec& codec) const {
    DocumentRows document(rows.view());
    document.weights = weights;
    document.token_ids = test::sample_ids(kTokens);
    return encode_in_memory(codec, shape, {&document, 1});
  }
  Matrix<float> decode(const Codec& codec, const StreamReader& document) const {
    Matrix<float> out(kTokens, shape.width());
    codec.open(shape, document)->decode(0, out);
    return out;
  }
};

std::vector<uint8_t> bytes_of(const Encoded& encoded, std::string_view stream) {
  const auto bytes = encoded.bytes(stream);
  std::vector<uint8_t> all(bytes.size());
  std::memcpy(all.data(), bytes.data(), all.size());
  return all;
}

/// All streams but for those that change() alters.
Encoded altered(const Codec& codec, const GroupShape& shape, const Encoded& from,
                const std::map<std::string, std::vector<uint8_t>>& others) {
  Encoded copy(codec.streams(shape));
  StreamStore& document = copy.add_document(test::sample_ids(kTokens));
  for (const StreamSpec& spec : from.specs()) {
    const auto other = others.find(spec.name);
    document.append_values<uint8_t>(spec.name,
                                    other == others.end() ? bytes_of(from, spec.name) : other->second);
  }
  return copy;
}

}  // namespace

TEST_CASE("rungs: a token is coded as a codec of its rung alone codes it, and its rung is the nearest") {
  for (const int64_t lags : {0, 2})
    for (const int64_t own : {0, 9, 19}) {
      CAPTURE(own);
      const Bench bench({.sink = 1, .predict_tokens = lags});
      const auto codec = bench.codec(bench.by_token(own));
      CHECK(codec->weighs_tokens());
      const Encoded encoded = bench.encode(*codec);
      const Matrix<float> decoded = bench.decode(*codec, encoded.document(0));
      const std::vector<uint8_t> rungs = bytes_of(encoded, "rungs");
      REQUIRE_EQ(rungs.size(), kTokens - 1);
      const int64_t first = std::max<int64_t>(0, own - 8), end = std::min<int64_t>(kRungs, own + 8);
      std::map<int64_t, Matrix<float>> alone;
      size_t wrong_rungs = 0, wrong = 0;
      for (size_t t = 1; t < kTokens; ++t) {
        const int64_t rung = first + rungs[t - 1];
        REQUIRE_LT(rung, end);
        const double wanted = double{bench.steps[as_size(own)]} / std::sqrt(double{bench.weights[t]});
        const auto distance = [&](int64_t r) {
          return std::abs(std::log(double{bench.steps[as_size(r)]} / wanted));
        };
        for (int64_t r = first; r < end; ++r) wrong_rungs += distance(r) < distance(rung) - 1e-9;
        if (!alone.contains(rung)) {
          const auto plain =
              bench.codec({{"rung", rung}, {"adapt", false}, {"sink", int64_t{1}}, {"block", int64_t{64}}});
          CHECK_FALSE(plain->weighs_tokens());
          alone[rung] = bench.decode(*plain, bench.encode(*plain).document(0));
        }
        const Matrix<float>& of_rung = alone.at(rung);
        for (size_t c = 0; c < decoded.cols(); ++c)
          wrong += !(std::abs(decoded(t, c) - of_rung(t, c)) <= 1e-4f * (1 + std::abs(of_rung(t, c))));
      }
      CHECK_EQ(wrong_rungs, 0);
      CHECK_EQ(wrong, 0);
      CHECK_GT(alone.size(), 5);
    }
}

TEST_CASE("rungs: any part of a document decodes as the whole does") {
  const Bench bench;
  const auto codec = bench.codec(bench.by_token(9));
  const Encoded encoded = bench.encode(*codec);
  const Matrix<float> all = bench.decode(*codec, encoded.document(0));
  const auto view = codec->open(bench.shape, encoded.document(0));
  for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 1}, {60, 10}, {130, 170}, {299, 1}}) {
    Matrix<float> some(count, all.cols());
    view->decode(first, some);
    for (size_t t = 0; t < count; ++t)
      CHECK(std::ranges::equal(std::as_const(some).row(t), all.row(first + t)));
  }
}

TEST_CASE("rungs: appended in any pieces, a document has the same streams") {
  for (const bool first_tokens : {false, true})
    for (const bool adapt : {false, true}) {
      const Bench bench({.sink = first_tokens ? 0 : 1, .first_tokens = first_tokens});
      auto options = bench.by_token(9);
      options[3].second = adapt;
      options[4].second = int64_t{first_tokens ? 0 : 1};
      options.emplace_back("window", int64_t{5});
      const auto codec = bench.codec(options);
      const Encoded whole = bench.encode(*codec);
      if (adapt) CHECK_FALSE(bytes_of(whole, "adapted").empty());
      for (const size_t piece : {1, 7, 64, 130}) {
        CAPTURE(piece);
        Encoded grown(codec->streams(bench.shape));
        StreamStore& document = grown.add_document();
        if (adapt) document.append_values<uint8_t>("adapted", bytes_of(whole, "adapted"));
        document.weigh_tokens(bench.weights);
        for (size_t t = 0; t < kTokens; t += piece)
          codec->append(bench.shape, bench.rows.view().rows(t, std::min(piece, kTokens - t)), document);
        for (const StreamSpec& spec : whole.specs()) {
          CAPTURE(spec.name);
          CHECK(bytes_of(grown, spec.name) == bytes_of(whole, spec.name));
        }
      }
      // Values stay near, whatever was changed alike at all rungs.
      const Matrix<float> decoded = bench.decode(*codec, whole.document(0));
      double error = 0;
      for (size_t i = 0; i < decoded.size(); ++i)
        error += std::pow(decoded.data()[i] - bench.rows.data()[i], 2);
      CHECK_LT(error / double(decoded.size()), 1.5);
    }
}

TEST_CASE("rungs: without weights, or with a power of 0, blocks are those of the codec's rung") {
  Bench bench;
  const std::vector<std::pair<std::string, Scalar>> plain_options{
      {"rung", int64_t{9}}, {"adapt", false}, {"sink", int64_t{1}}, {"block", int64_t{64}}};
  const auto plain = bench.codec(plain_options);
  CHECK(plain->parameters().find("importance") == nullptr);
  CHECK(plain->parameters().find("importance-power") == nullptr);
  const Encoded expected = bench.encode(*plain);
  for (const StreamSpec& spec : expected.specs()) CHECK_NE(spec.name, "rungs");
  const auto same = [&](const Encoded& encoded) {
    for (const StreamSpec& spec : expected.specs())
      if (bytes_of(encoded, spec.name) != bytes_of(expected, spec.name)) return false;
    return bytes_of(encoded, "rungs") == std::vector<uint8_t>(kTokens - 1, 8);
  };
  CHECK(same(bench.encode(*bench.codec(bench.by_token(9, 0)))));
  const auto codec = bench.codec(bench.by_token(9));
  CHECK_FALSE(same(bench.encode(*codec)));
  bench.weights.clear();
  CHECK(same(bench.encode(*codec)));
}

TEST_CASE("rungs: what no encoder writes is refused") {
  const Bench bench;
  const auto codec = bench.codec(bench.by_token(9));
  const Encoded encoded = bench.encode(*codec);
  const auto fault = [&](const std::map<std::string, std::vector<uint8_t>>& others) -> std::string {
    const Encoded damaged = altered(*codec, bench.shape, encoded, others);
    try {
      (void)bench.decode(*codec, damaged.document(0));
    } catch (const Error& error) {
      CHECK_EQ(error.kind(), ErrorKind::bad_input);
      return error.what();
    }
    return "";
  };
  CHECK_EQ(fault({}), "");
  std::vector<uint8_t> rungs = bytes_of(encoded, "rungs");
  rungs[70] = 16;
  CHECK_EQ(fault({{"rungs", rungs}}), "stream 'rungs', row 70: 16; there are 16");
  rungs = bytes_of(encoded, "rungs");
  rungs.pop_back();
  CHECK_EQ(fault({{"rungs", rungs}}), "stream 'rungs' has 298 rows, and 299 tokens are quantized");
  // Other rungs: the parts of a block do not hold what they should.
  rungs = bytes_of(encoded, "rungs");
  std::ranges::reverse(rungs);
  CHECK_NE(fault({{"rungs", rungs}}), "");
  std::vector<uint8_t> codes = bytes_of(encoded, "codes");
  codes[3] = 0xff;
  CHECK_NE(fault({{"codes", codes}}).find("the tokens of a rung take "), std::string::npos);
  CHECK_NE(fault({{"codes", codes}}).find("stream 'codes', blocks from 0 on"), std::string::npos);
  // A block that is too short for the sizes of its parts.
  std::vector<uint8_t> blocks = bytes_of(encoded, "blocks");
  const size_t last = blocks.size() - 4;
  uint32_t bytes = 0;
  std::memcpy(&bytes, blocks.data() + last, 4);
  codes = bytes_of(encoded, "codes");
  codes.resize(codes.size() - bytes + 3);
  bytes = 3;
  std::memcpy(blocks.data() + last, &bytes, 4);
  CHECK_NE(fault({{"codes", codes}, {"blocks", blocks}}).find("a block of 3 bytes"), std::string::npos);
}

}  // namespace rungs_test
