// Keys before the rotary embedding: turning, and the outer codec that does it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "lib/codec/outer_codecs.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/lib/model/small_model.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace rope_codec_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr int kHeads = 3, kDims = 20, kLayers = 6;

CodecContext sample_context(DType storage = DType::bf16) {
  return {.num_layers = kLayers,
          .heads = kHeads,
          .head_dim = kDims,
          .query_heads = 2 * kHeads,
          .storage = storage,
          .rope = sample_rope(kLayers, kDims)};
}

Matrix<float> random_rows(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> out(rows, cols);
  for (float& value : std::span(out.data(), out.size())) value = static_cast<float>(rng.normal());
  return out;
}

/// The input of a codec.
struct Seen {
  std::vector<Matrix<float>> appended, observed, queries;
  std::vector<std::vector<uint64_t>> query_tokens;
};

Matrix<float> copy_of(MatrixView<const float> rows) {
  Matrix<float> out(rows.rows(), rows.cols());
  for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), out.row(i).begin());
  return out;
}

/// `none`, which records its input and surveys documents with their queries.
class NotingCodec final : public Codec {
 public:
  NotingCodec(const CodecContext& context, Seen& seen)
      : inner_(find_codec("none").make(NoOptions(), context)), seen_(seen) {}

  Record parameters() const override {
    Record record;
    record.set("own", int64_t{7});
    return record;
  }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override { return inner_->streams(shape); }
  SurveyScope survey_scope(const GroupShape&) const override { return SurveyScope::document; }
  GroupShape surveyed(const GroupShape& shape) const override { return of_side(shape, Side::key); }
  bool wants_queries() const override { return true; }
  std::unique_ptr<Survey> survey(const GroupShape&) const override {
    class Noting final : public Survey {
     public:
      explicit Noting(Seen& seen) : seen_(seen) {}
      int passes() const override { return 2; }
      void observe_queries(std::span<const uint64_t> tokens, MatrixView<const float> queries) override {
        seen_.query_tokens.emplace_back(tokens.begin(), tokens.end());
        seen_.queries.push_back(copy_of(queries));
      }
      void observe(MatrixView<const float> rows) override { seen_.observed.push_back(copy_of(rows)); }
      void finish(StreamStore&) override {}

     private:
      Seen& seen_;
    };
    return std::make_unique<Noting>(seen_);
  }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    seen_.appended.push_back(copy_of(rows));
    inner_->append(shape, rows, document);
  }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return Codec::view_of(*inner_, shape, document);
  }

 private:
  std::unique_ptr<Codec> inner_;
  Seen& seen_;
};

/// Token `token` of a row turned back in double, by the angles rounded to float: heads of kDims dimensions.
std::vector<double> turned_back(std::span<const float> row, const HeadTurn& how, uint64_t token) {
  std::vector<double> out(row.begin(), row.end());
  const size_t n = how.frequencies.size();
  for (size_t head = 0; head < row.size(); head += kDims)
    for (size_t j = 0; j < n; ++j) {
      const double angle = double(static_cast<float>(token) * how.frequencies[j]);
      const double x = row[head + j], y = row[head + j + n];
      out[head + j] = (x * std::cos(angle) + y * std::sin(angle)) / how.factor;
      out[head + j + n] = (y * std::cos(angle) - x * std::sin(angle)) / how.factor;
    }
  return out;
}

/// The layers of sample_rope, once more.
HeadTurn way_of(int layer) {
  const auto frequencies = [](size_t count, double base) {
    std::vector<float> all;
    for (size_t j = 0; j < count; ++j)
      all.push_back(static_cast<float>(std::pow(base, -static_cast<double>(j) / static_cast<double>(count))));
    return all;
  };
  switch (layer % 4) {
    case 0:
      return {.frequencies = frequencies(kDims / 2, 10000)};
    case 1:
      return {.frequencies = frequencies(kDims / 4, 500), .factor = 1.25f};
    case 2:
      return {};
    default:
      return {.frequencies = frequencies(kDims / 2, 1000000)};
  }
}

size_t wrong_values(MatrixView<const float> found, MatrixView<const float> keys, int layer,
                    const std::function<uint64_t(size_t)>& token, double relative) {
  size_t wrong = 0;
  for (size_t i = 0; i < keys.rows(); ++i) {
    const auto expected = turned_back(keys.row(i), way_of(layer), token(i));
    for (size_t j = 0; j < keys.cols(); ++j) {
      // Roundings are relative to the pair's length, which no value here exceeds by much.
      const double bound = relative * std::abs(expected[j]) + 4e-6;
      wrong += !(std::abs(double(found(i, j)) - expected[j]) <= bound);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("cosines and sines: within a unit of the last place of double's, the same at every level") {
  std::vector<float> frequencies;
  for (size_t j = 0; j < 37; ++j)
    frequencies.push_back(static_cast<float>(std::pow(10000.0, -double(j) / 37)));
  std::vector<float> cosines(frequencies.size()), sines = cosines, other_cosines = cosines,
                                                  other_sines = cosines;
  double worst = 0;
  Rng rng(5);
  for (int i = 0; i < 3000; ++i) {
    const auto position = static_cast<float>(i < 1000 ? i : rng.below(i < 2000 ? 1 << 20 : 1 << 24));
    {
      const AtLevel scalar(SimdLevel::scalar);
      cosines_sines(position, frequencies, cosines, sines);
    }
    for (size_t j = 0; j < frequencies.size(); ++j) {
      const double angle = double(position * frequencies[j]);
      // Below 2^-12 a float's spacing is finer than the error of the angle's reduction.
      worst = std::max(worst,
                       std::abs(cosines[j] - std::cos(angle)) / std::max(std::abs(std::cos(angle)), 0x1p-12));
      worst = std::max(worst,
                       std::abs(sines[j] - std::sin(angle)) / std::max(std::abs(std::sin(angle)), 0x1p-12));
    }
    for (const SimdLevel level : simd_levels()) {
      const AtLevel at(level);
      for (const size_t n : {size_t{37}, static_cast<size_t>(i) % 37}) {
        cosines_sines(position, std::span(frequencies).first(n), std::span(other_cosines).first(n),
                      std::span(other_sines).first(n));
        REQUIRE(std::equal(other_cosines.begin(), other_cosines.begin() + n, cosines.begin()));
        REQUIRE(std::equal(other_sines.begin(), other_sines.begin() + n, sines.begin()));
      }
    }
  }
  CHECK_LE(worst, 0x1p-23);
}

TEST_CASE("key rope: turns as the forward pass does, and back by the same angles") {
  const ModelConfig config = small_config(2);
  const KeyRope rope = KeyRope::of(config);
  REQUIRE(rope.known());
  CHECK(rope.turns());
  CHECK_EQ(rope.layers(), static_cast<size_t>(config.num_layers));
  const size_t dim = static_cast<size_t>(config.head_dim), width = 2 * dim;
  const RopeTable table(config.rope, config.head_dim, 600);
  Rng rng(6);
  const Matrix<float> before = random_rows(500, width, rng);
  Matrix<float> keys = copy_of(before), expected = copy_of(before);
  rope.turn(TurnWay::forward, consecutive(0, 1), 100, keys);
  for (size_t i = 0; i < expected.rows(); ++i)
    for (size_t head = 0; head < width; head += dim) table.turn(100 + i, expected.row(i).subspan(head, dim));
  size_t wrong = 0;
  for (size_t i = 0; i < keys.size(); ++i) wrong += !(std::abs(keys.data()[i] - expected.data()[i]) <= 2e-6);
  CHECK_EQ(wrong, 0);
  CHECK_FALSE(same_bits(keys, before));
  rope.turn(TurnWay::back, consecutive(0, 1), 100, keys);
  for (size_t i = 0; i < keys.size(); ++i) wrong += !(std::abs(keys.data()[i] - before.data()[i]) <= 2e-6);
  CHECK_EQ(wrong, 0);
}

TEST_CASE("key rope: layers have their own, tokens may be anywhere, threads and pieces change nothing") {
  const KeyRope rope = sample_rope(kLayers, kDims);
  Rng rng(7);
  // From the first token, across the end of the tokens whose angles are kept, and far behind it.
  for (const uint64_t first : {uint64_t{0}, uint64_t{8170}, uint64_t{3000000}})
    for (int layer = 0; layer < kLayers; ++layer) {
      CAPTURE(layer);
      const Matrix<float> keys = random_rows(50, kHeads * kDims, rng);
      Matrix<float> turned = copy_of(keys);
      rope.turn(TurnWay::back, consecutive(layer, 1), first, turned);
      CHECK_EQ(wrong_values(
                   turned, keys, layer, [&](size_t i) { return first + i; }, 0),
               0);
      CHECK_EQ(same_bits(turned, keys), layer % 4 == 2);
    }
  const Matrix<float> keys = random_rows(2000, 4 * kHeads * kDims, rng);
  Matrix<float> at_once = copy_of(keys), pieces = copy_of(keys), scattered = copy_of(keys);
  rope.turn(TurnWay::back, consecutive(1, 4), 77, at_once);
  set_num_threads(5);
  std::vector<uint64_t> tokens(keys.rows());
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = 77 + i;
  rope.turn(TurnWay::back, consecutive(1, 4), tokens, scattered);
  set_num_threads(0);
  for (size_t i = 0; i < keys.rows(); ++i)
    for (int layer = 0; layer < 4; ++layer)
      rope.turn(TurnWay::back, consecutive(1 + layer, 1), 77 + i,
                pieces.view().rows(i, 1).columns(size_t(layer) * kHeads * kDims, kHeads * kDims));
  CHECK(same_bits(at_once, scattered));
  CHECK(same_bits(at_once, pieces));
}

TEST_CASE("key rope: frequencies that no document could be turned by are refused") {
  const auto refused = [](std::vector<HeadTurn> kinds) {
    CHECK_THROWS_AS(KeyRope(std::move(kinds), {0}, 4), Error);
  };
  refused({{.frequencies = {1, 1, 1}}});
  refused({{.frequencies = {1.5f}}});
  refused({{.frequencies = {-0.5f}}});
  refused({{.frequencies = {NAN}}});
  refused({{.frequencies = {1}, .factor = 0}});
  refused({{.frequencies = {1}, .factor = INFINITY}});
  CHECK_THROWS_AS(KeyRope({{}}, {1}, 4), Error);
  CHECK_NOTHROW(KeyRope({{.frequencies = {1, 0.5f}}}, {0}, 4));
  ModelConfig odd = small_config(2);
  odd.rope.theta = 0.1;  // frequencies above 1
  CHECK_FALSE(KeyRope::of(odd).known());
  CHECK_NE(KeyRope::of(odd).why_not(), "");
}

TEST_CASE(
    "rope codec: inner codecs see keys turned back by their index, in the cache's type, values untouched") {
  Rng rng(8);
  for (const DType storage : {DType::bf16, DType::f16})
    for (int layer = 0; layer < 4; ++layer)
      for (const Side side : kSides) {
        CAPTURE(layer);
        CAPTURE(name_of(side));
        Seen seen;
        const CodecContext context = sample_context(storage);
        const auto codec = undo_rope(std::make_unique<NotingCodec>(context, seen), context);
        CHECK(codec->parameters() == [] {
          Record record;
          record.set("own", int64_t{7});
          record.set("rope", std::string("undo"));
          return record;
        }());
        const GroupShape shape = usual_group(layer, 1, kHeads, kDims, side);
        Encoded encoded(codec->streams(shape));
        encoded.add_document();
        StreamStore& document = encoded.add_document();  // indices are of the document
        Matrix<float> rows = random_rows(40, kHeads * kDims, rng);
        for (float& value : std::span(rows.data(), rows.size())) value = round_to(storage, value);
        const size_t pieces[] = {7, 0, 1, 32};
        size_t first = 0;
        for (const size_t count : pieces) {
          codec->append(shape, rows.view().rows(first, count), document);
          first += count;
        }
        REQUIRE_EQ(seen.appended.size(), std::size(pieces));
        first = 0;
        for (const Matrix<float>& got : seen.appended) {
          const auto given = rows.view().rows(first, got.rows());
          if (side == Side::value) {
            CHECK(same_bits(got, given));
          } else {
            const double half = storage == DType::bf16 ? 0x1p-8 : 0x1p-11;
            CHECK_EQ(wrong_values(
                         got, given, layer, [&](size_t i) { return first + i; }, half),
                     0);
            for (const float value : std::span(got.data(), got.size()))
              REQUIRE_EQ(value, round_to(storage, value));
          }
          first += got.rows();
        }
        // Decoded rows differ by that rounding, and a range is a part of the whole.
        const auto view = codec->open(shape, document);
        Matrix<float> decoded(40, rows.cols()), part(5, rows.cols());
        view->decode(0, decoded);
        view->decode(20, part);
        CHECK(same_bits(part, decoded.view().rows(20, 5)));
        size_t wrong = 0;
        for (size_t i = 0; i < rows.rows(); ++i)
          for (size_t head = 0; head < rows.cols(); head += kDims) {
            double length = 0, error = 0;
            for (size_t j = head; j < head + kDims; ++j) {
              length += double(rows(i, j)) * rows(i, j);
              error += (double(rows(i, j)) - decoded(i, j)) * (double(rows(i, j)) - decoded(i, j));
            }
            const double half = storage == DType::bf16 ? 0x1p-8 : 0x1p-11;
            wrong += !(error <= half * half * length);
          }
        CHECK_EQ(wrong, 0);
      }
}

TEST_CASE(
    "rope codec: surveys see keys and queries turned back, each document from its first token, every pass") {
  Rng rng(9);
  const CodecContext context = sample_context(DType::f16);
  for (const Side side : kSides) {
    Seen seen;
    const auto codec = undo_rope(std::make_unique<NotingCodec>(context, seen), context);
    CHECK(codec->wants_queries());
    const GroupShape shape = usual_group(3, 1, kHeads, kDims, side);
    CHECK(codec->surveyed(shape).side == Side::key);
    const Matrix<float> keys = random_rows(30, kHeads * kDims, rng),
                        queries = random_rows(3, 2 * kHeads * kDims, rng);
    const std::vector<uint64_t> tokens{4, 17, 29};
    Encoded encoded(codec->streams(shape));
    StreamStore& document = encoded.add_document();
    const auto survey = codec->survey(shape);
    CHECK_EQ(survey->passes(), 2);
    for (int pass = 0; pass < 2; ++pass) {
      for (int d = 0; d < 2; ++d) {
        survey->observe_queries(tokens, queries);
        survey->observe(keys.view().rows(0, 11));
        survey->observe(keys.view().rows(11, 19));
        survey->end_document();
      }
      survey->end_pass();
    }
    survey->finish(document);
    REQUIRE_EQ(seen.observed.size(), 8);
    for (size_t i = 0; i < seen.observed.size(); ++i) {
      const size_t first = i % 2 ? 11 : 0;
      CHECK_EQ(wrong_values(
                   seen.observed[i], keys.view().rows(first, i % 2 ? 19 : 11), 3,
                   [&](size_t t) { return first + t; }, 0x1p-11),
               0);
    }
    REQUIRE_EQ(seen.queries.size(), 4);
    for (size_t i = 0; i < seen.queries.size(); ++i) {
      CHECK_EQ(seen.query_tokens[i], tokens);
      CHECK_EQ(wrong_values(
                   seen.queries[i], queries, 3, [&](size_t t) { return tokens[t]; }, 0),
               0);
    }
  }
}

TEST_CASE("rope codec: keys that are constant before the embedding take almost nothing") {
  const CodecContext context = sample_context();
  const GroupShape shape = usual_group(0, 1, kHeads, kDims, Side::key);
  Rng rng(10);
  const Matrix<float> one = random_rows(1, shape.width(), rng);
  Matrix<float> keys(640, shape.width());
  for (size_t i = 0; i < keys.rows(); ++i) std::ranges::copy(one.row(0), keys.row(i).begin());
  context.rope.turn(TurnWay::forward, consecutive(0, 1), 0, keys);
  const auto bits = [&](RopeChoice rope) {
    const CodecEntry& entry = find_codec("kvcomp");
    const auto options = entry.make_options();
    for (const OptionField& field : options->fields()) {
      if (field.name == "entropy") set_value(field, std::string("rans"));  // no whole bit for each symbol
      if (field.name == "key-quant")
        set_value(field, std::string("channel"));  // centred, nothing would be left
    }
    const auto codec = make_codec(entry, *options, context, rope);
    return static_cast<double>(stored_bits(encode_in_memory(*codec, shape, {{DocumentRows(keys)}}))) /
           static_cast<double>(keys.size());
  };
  const double kept = bits(RopeChoice::keep), undone = bits(RopeChoice::undo);
  CAPTURE(kept);
  CAPTURE(undone);
  CHECK_LT(undone, 0.4 * kept);  // steps, origins and lengths of blocks are left
}

TEST_CASE("rope codec: what cannot be turned back is refused by one sentence") {
  const auto refused = [](const std::string& name, const CodecContext& context, const std::string& text,
                          const std::function<void(std::vector<OptionField>)>& set = {}) {
    CAPTURE(name);
    const CodecEntry& entry = find_codec(name);
    const auto options = entry.make_options();
    if (set) set(options->fields());
    try {
      make_codec(entry, *options, context, RopeChoice::undo);
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      CHECK_MESSAGE(std::string(error.what()).find(text) != std::string::npos, error.what());
      CHECK_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
    CHECK_NOTHROW(make_codec(entry, *options, context, RopeChoice::keep));
  };
  CodecContext context = sample_context();
  refused("selfindex", context, "an index of them");
  refused("lossless", context, "gives every bit back");
  refused("kvcomp", context, "max-logit-error", [](const std::vector<OptionField>& fields) {
    for (const OptionField& field : fields)
      if (field.name == "max-logit-error") set_value(field, 0.5);
  });
  for (const CodecEntry& entry : codecs())
    if (entry.capabilities.has_index) refused(entry.name, context, "cannot be turned back");
  context.rope = KeyRope::unknown("the file is silent");
  refused("none", context, "the file is silent");
  context.rope = KeyRope();
  refused("none", context, "nothing is said");
  context.rope = KeyRope({{}}, std::vector<size_t>(kLayers, 0), kDims);
  refused("none", context, "does not turn");
}

TEST_CASE("rope codec: without a word keys stay, or as the book was trained, or as the codec would have it") {
  CodecContext context = sample_context();
  CodecEntry entry = find_codec("none");
  CHECK(choose_rope(entry, {}, context) == RopeChoice::keep);
  CHECK(choose_rope(entry, RopeChoice::undo, context) == RopeChoice::undo);
  entry.before_rope = true;
  CHECK(choose_rope(entry, {}, context) == RopeChoice::undo);
  CHECK(choose_rope(entry, RopeChoice::keep, context) == RopeChoice::keep);
  Book book{.type = "dictionary", .parameters = {}, .arrays = {}};
  context.book = &book;
  CHECK(choose_rope(entry, {}, context) == RopeChoice::undo);  // the book is not one of keys
  entry.book_type = "dictionary";
  CHECK(choose_rope(entry, {}, context) == RopeChoice::keep);
  CHECK_THROWS_AS(choose_rope(entry, RopeChoice::undo, context), Error);
  book.parameters.set("rope", std::string("undo"));
  CHECK(choose_rope(entry, {}, context) == RopeChoice::undo);
  CHECK(choose_rope(entry, RopeChoice::undo, context) == RopeChoice::undo);
  CHECK_THROWS_AS(choose_rope(entry, RopeChoice::keep, context), Error);
  book.parameters.set("rope", std::string("twist"));
  CHECK_THROWS_AS(choose_rope(entry, {}, context), Error);
  context.book = nullptr;
  context.rope = KeyRope();
  CHECK(choose_rope(entry, {}, context) == RopeChoice::keep);
}

TEST_CASE(
    "rope codec: records that say undo give it back, and others that say what is not a choice are refused") {
  const CodecContext context = sample_context();
  const CodecEntry& entry = find_codec("kivi");
  const auto wrapped = make_codec(entry, *entry.make_options(), context, RopeChoice::undo);
  Record record = wrapped->parameters();
  CHECK(codec_from_record(entry, record, context)->parameters() == record);
  CodecContext silent = context;
  silent.rope = KeyRope();
  CHECK_THROWS_AS(codec_from_record(entry, record, silent), Error);
  record.set("rope", std::string("keep"));
  CHECK(codec_from_record(entry, record, silent)->parameters().find("rope") == nullptr);
  record.set("rope", std::string("twist"));
  CHECK_THROWS_AS(codec_from_record(entry, record, context), Error);
}

}  // namespace rope_codec_test
