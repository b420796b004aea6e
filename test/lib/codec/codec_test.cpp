// The promises of the Codec interface, for every row of codec_table.hpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/kinds.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/counting_reader.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace codec_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// The streams that decoding all tokens takes bytes of.
std::set<std::string> streams_read(const Subject& subject, const StreamReader& document, size_t tokens) {
  const test::CountingReader reader(document);
  set_num_threads(1);
  decode(subject, reader, 0, tokens);
  set_num_threads(0);
  std::set<std::string> names;
  for (const auto& [name, bytes] : reader.of_streams())
    if (bytes > 0) names.insert(name);
  return names;
}

/// Sizes around the groups and residuals of the table's codecs (32 and 128, 160 together).
const std::vector<size_t> kTokens = kSanitized ? std::vector<size_t>{0, 33, 161}
                                               : std::vector<size_t>{0, 1, 2, 31, 32, 33, 159, 160, 161, 500};
/// Those with blocks of every kind.
const std::vector<size_t> kSomeTokens =
    kSanitized ? std::vector<size_t>{33, 161} : std::vector<size_t>{1, 33, 161, 500};

/// Rows come back within the codec's bound, and take no more than 16 bits a value.
void check_round_trip(const CodecCase& row, const Subject& subject, size_t tokens, Look look, Rng& rng) {
  CAPTURE(tokens);
  CAPTURE(static_cast<int>(look));
  CAPTURE(subject.shape.heads());
  CAPTURE(subject.shape.head_dim());
  CAPTURE(name_of(subject.shape.side));
  CAPTURE(name_of(subject.context.storage));
  const Matrix<float> rows = make_rows(subject, tokens, look, rng);
  const Encoded encoded = encode(subject, rows);
  const StreamReader& document = encoded.document(0);
  CHECK_EQ(subject.codec->open(subject.shape, document)->tokens(), tokens);
  const Matrix<float> decoded = decode(subject, document, 0, tokens);
  check_decoded(row, subject, rows, document, decoded);
  CHECK_EQ(find_codec(row.codec).capabilities.lossless, !row.check_error);
  if (std::isfinite(row.flags))
    CHECK_LE(double(stored_bits(encoded)),
             double((tokens + row.sink) * subject.shape.width() * 16) * (1 + row.flags) + row.block_bits);
  CHECK_THROWS_AS(decode(subject, document, 0, tokens + 1), Error);
  CHECK_THROWS_AS(decode(subject, document, tokens + 1, 0), Error);
}

}  // namespace

TEST_CASE("every codec of the registry has a row in the table of codecs") {
  const auto table = codec_table();
  for (const CodecEntry& entry : codecs())
    CHECK_MESSAGE(std::ranges::any_of(table, [&](const CodecCase& row) { return row.codec == entry.name; }),
                  entry.name);
}

TEST_CASE("codecs: what was encoded comes back within the codec's bound, never larger than raw (long)") {
  for_each_case(
      [](const CodecCase& row, Rng& rng) {
        size_t turn = 0;
        for (const Look look : kLooks)
          for (const size_t tokens : kTokens) {
            if (kSanitized && turn++ % 4 != 2) continue;
            const auto subject = random_subject(row, rng);
            check_round_trip(row, *subject, tokens, look, rng);
          }
      },
      3);
}

TEST_CASE("codecs: heads of few dimensions, or of one beyond 32, come back too, never larger than raw") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    const auto allowed = [&](int at_least) {
      while (at_least % row.head_dim_multiple != 0) ++at_least;
      return at_least;
    };
    const int fewest = allowed(std::max(1, row.least_head_dim));
    for (const int head_dim : {fewest, allowed(fewest + 1), allowed(fewest + 2), allowed(33)})
      for (const Side side : kSides) {
        const DType storage = rng.below(2) ? DType::bf16 : DType::f16;
        const auto subject = make_subject(row, 1, head_dim, side, storage, rng);
        for (const size_t tokens : {1, 161}) check_round_trip(row, *subject, tokens, Look::ordinary, rng);
        check_round_trip(row, *subject, 33, Look::constant, rng);
        check_round_trip(row, *subject, 34, Look::tiny, rng);
      }
  });
}

TEST_CASE("codecs: appended in any pieces, the streams are those of one piece (long)") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    for (const size_t tokens : kTokens) {
      const auto subject = random_subject(row, rng);
      CAPTURE(tokens);
      const Matrix<float> rows = make_rows(*subject, tokens, Look::ordinary, rng);
      const Encoded at_once = encode(*subject, rows);
      Encoded pieces(subject->codec->streams(subject->shape));
      StreamStore& document = surveyed_document(*subject, rows, pieces);
      const uint64_t largest = 1 + rng.below(100);
      for (size_t first = 0; first < tokens;) {
        const size_t count = std::min<size_t>(tokens - first, rng.below(largest + 1));
        subject->codec->append(subject->shape, rows.view().rows(first, count), document);
        first += count;
        REQUIRE_EQ(subject->codec->open(subject->shape, document)->tokens(), first);
      }
      CHECK(same_streams(pieces, at_once));
    }
  });
}

TEST_CASE("codecs: any range decodes as that part of the whole, into rows of any stride") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    for (const size_t tokens : kSomeTokens) {
      const auto subject = random_subject(row, rng);
      const size_t width = subject->shape.width();
      const Matrix<float> rows = make_rows(*subject, tokens, Look::ordinary, rng);
      const Encoded encoded = encode(*subject, rows);
      const Matrix<float> whole = decode(*subject, encoded.document(0), 0, tokens);
      const auto view = subject->codec->open(subject->shape, encoded.document(0));
      for (int i = 0; i < 12; ++i) {
        const size_t first = rng.below(tokens + 1), count = rng.below(tokens - first + 1);
        CAPTURE(first);
        CAPTURE(count);
        Matrix<float> wide(count, width + 3);
        std::fill_n(wide.data(), wide.size(), -7.0f);
        const MatrixView<float> out = wide.view().columns(1, width);
        view->decode(first, out);
        CHECK(same_bits(out, whole.view().rows(first, count)));
        for (size_t r = 0; r < count; ++r)
          CHECK((wide(r, 0) == -7.0f && wide(r, width + 1) == -7.0f && wide(r, width + 2) == -7.0f));
      }
    }
  });
}

TEST_CASE("codecs: of keys and values that are coded together each can be had by itself") {
  size_t joint = 0;
  for_each_case([&](const CodecCase& row, Rng& rng) {
    const auto subject = random_subject(row, rng);
    if (!subject->codec->joint()) return;
    ++joint;
    CHECK_EQ(subject->shape.width(), 2 * subject->shape.side_width(Side::key));
    const Encoded encoded = encode(*subject, make_rows(*subject, 100, Look::ordinary, rng));
    const Matrix<float> both = decode(*subject, encoded.document(0), 0, 100);
    const std::vector<uint32_t> some = {3, 4, 70, 99};
    for (const Side side : kSides) {
      const auto view = subject->codec->open(of_side(subject->shape, side), encoded.document(0));
      CHECK_EQ(view->tokens(), 100);
      const size_t width = view->shape().width();
      const auto own = both.view().columns(subject->shape.column_of(side), width);
      Matrix<float> out(60, width), scattered(some.size(), width);
      view->decode(33, out);
      CHECK(same_bits(out, own.rows(33, 60)));
      view->decode_tokens(some, scattered);
      for (size_t i = 0; i < some.size(); ++i)
        CHECK(same_bits(scattered.view().rows(i, 1), own.rows(some[i], 1)));
    }
  });
  CHECK_GT(joint, 0);
}

TEST_CASE(
    "codecs: layers of several kinds, or without keys or values, are coded as if each kind were alone (long)") {
  struct Kind {
    std::vector<int> layers;
    LayerShape shape;
  };
  const Kind kinds[] = {
      {{0, 3, 5, 8}, usual_layer(2, 36)},
      {{2, 4, 9, 11}, {.heads = 1, .key_dim = 64, .value_dim = 40}},
      {{6, 7, 10, 12}, {.heads = 1, .key_dim = 40, .value_dim = 32, .values_in_keys = true}}};
  for_each_case(
      [&](const CodecCase& row, Rng& rng) {
        CodecCase kept = row;  // heads of several dimensions do not turn
        kept.rope = RopeChoice::keep;
        CodecContext all{.num_layers = 13, .heads = 2, .head_dim = 64};
        all.layer_shapes.assign(13, LayerShape{});
        std::vector<std::unique_ptr<Subject>> alone;
        std::vector<Book> books;
        LayerKinds layers;
        const size_t tokens = 150 + rng.below(100);
        for (const Kind& kind : kinds) {
          CodecContext context{.num_layers = 4, .heads = kind.shape.heads, .head_dim = kind.shape.key_dim};
          context.layer_shapes.assign(4, kind.shape);
          alone.push_back(make_subject(kept, context, Side::key, rng));
          // Now, as the row's bound is that of the book made last.
          const Matrix<float> rows = make_rows(*alone.back(), tokens, Look::ordinary, rng);
          const Encoded encoded = encode(*alone.back(), rows);
          check_decoded(kept, *alone.back(), rows, encoded.document(0),
                        decode(*alone.back(), encoded.document(0), 0, tokens));
          if (alone.back()->book) books.push_back(*alone.back()->book);
          layers.push_back(kind.layers);
          for (const int layer : kind.layers) all.layer_shapes[static_cast<size_t>(layer)] = kind.shape;
        }
        const Book joined = books.empty() ? Book() : join_kinds(layers, books, all.num_layers);
        if (!books.empty()) all.book = &joined;
        const auto asked = codec_of(kept, all);
        const auto codec = codec_from_record(find_codec(row.codec), asked->parameters(), all);
        CHECK(codec->parameters() == asked->parameters());
        for (size_t k = 0; k < std::size(kinds); ++k)
          for (const int layer : kinds[k].layers) {
            Subject own{.context = alone[k]->context, .book = {}, .codec = nullptr, .shape = {}};
            own.shape.layers = codec->group_of(layer);
            own.shape.layer = kinds[k].shape;
            if (own.shape.first_layer() != layer) continue;
            for (const Side side : codec->sides()) {
              own.shape.side = side;
              if (own.shape.width() == 0) continue;
              GroupShape renumbered = own.shape;
              for (int& one : renumbered.layers)
                one = static_cast<int>(std::ranges::find(kinds[k].layers, one) - kinds[k].layers.begin());
              CHECK(renumbered.layers == alone[k]->codec->group_of(renumbered.first_layer()));
              const Matrix<float> rows = make_rows(own, tokens, Look::ordinary, rng);
              Matrix<float> keys;  // surveys of values see keys
              if (codec->surveyed(own.shape).side != side)
                keys = make_rows({.context = own.context,
                                  .book = {},
                                  .codec = nullptr,
                                  .shape = codec->surveyed(own.shape)},
                                 tokens, Look::ordinary, rng);
              DocumentRows document(rows);
              document.token_ids = sample_ids(tokens);
              if (keys.rows() > 0) document.surveyed = keys.view();
              const Encoded encoded = encode_in_memory(*codec, own.shape, {{document}}),
                            expected = encode_in_memory(*alone[k]->codec, renumbered, {{document}});
              CHECK(same_streams(encoded, expected));
              Matrix<float> found(tokens, own.shape.width()), wanted = found;
              const auto view = codec->open(own.shape, encoded.document(0));
              CHECK(view->shape().layers == own.shape.layers);
              view->decode(0, found);
              alone[k]->codec->open(renumbered, expected.document(0))->decode(0, wanted);
              CHECK(same_bits(found, wanted));
            }
          }
        if (!books.empty()) {
          const Side of_book =
              find_codec(row.codec).of(Side::key).book_type.empty() ? Side::value : Side::key;
          CHECK_THROWS_WITH_AS(codec->streams(usual_group(1, 1, 2, 36, of_book)),
                               doctest::Contains("has nothing for layer 1"), Error);
          all.layer_shapes[9] = usual_layer(1, 64);
          CHECK_THROWS_WITH_AS(codec_of(kept, all), doctest::Contains("in the cache layer 9 has other heads"),
                               Error);
          all.book = &books.front();
          if (all.book->program)  // takes layers of any kind
            CHECK_EQ(codec_of(kept, all)->group_of(9), std::vector{9});
          else
            CHECK_THROWS_WITH_AS(codec_of(kept, all), doctest::Contains("here they differ"), Error);
        }
      },
      3);
}

TEST_CASE("codecs: rows of any stride encode like packed ones") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    const auto subject = random_subject(row, rng);
    const Matrix<float> rows = make_rows(*subject, 200, Look::ordinary, rng);
    Matrix<float> wide(rows.rows(), rows.cols() + 5);
    std::fill_n(wide.data(), wide.size(), std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), wide.row(i).begin() + 2);
    CHECK(same_streams(encode(*subject, wide.view().columns(2, rows.cols())), encode(*subject, rows)));
  });
}

TEST_CASE("codecs: documents do not see each other") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    const auto subject = random_subject(row, rng);
    std::vector<Matrix<float>> documents;
    for (const size_t tokens : {161, 0, 1, 200})
      documents.push_back(make_rows(*subject, tokens, Look::ordinary, rng));
    std::vector<DocumentRows> views(documents.begin(), documents.end());
    for (DocumentRows& view : views) view.token_ids = sample_ids(view.rows.rows());
    const Encoded encoded = encode_in_memory(*subject->codec, subject->shape, views);
    for (size_t i = 0; i < documents.size(); ++i) {
      const size_t tokens = documents[i].rows();
      CHECK_EQ(subject->codec->open(subject->shape, encoded.document(i))->tokens(), tokens);
      // It is encoded alone, except for the result of the survey of all of them.
      Encoded alone(encoded.specs());
      StreamStore& document = alone.add_document(sample_ids(tokens));
      for (const StreamSpec& spec : encoded.specs())
        if (spec.shared) document.append(spec.name, encoded.bytes(spec.name));
      if (subject->codec->survey_scope(subject->shape) == SurveyScope::document)
        run_survey(*subject->codec->survey(subject->shape), std::span(views).subspan(i, 1), document);
      subject->codec->append(subject->shape, documents[i], document);
      CHECK(same_bits(decode(*subject, encoded.document(i), 0, tokens),
                      decode(*subject, alone.document(0), 0, tokens)));
    }
  });
}

TEST_CASE("codecs: any number of threads and any level of instructions give the same bytes (long)") {
  for_each_case(
      [](const CodecCase& row, Rng& rng) {
        for (const size_t tokens : kSanitized ? std::vector<size_t>{161} : std::vector<size_t>{33, 500}) {
          const auto subject = random_subject(row, rng);
          const Matrix<float> rows = make_rows(*subject, tokens, Look::ordinary, rng);
          set_num_threads(1);
          const Encoded one_thread = encode(*subject, rows);
          const Matrix<float> decoded = decode(*subject, one_thread.document(0), 0, tokens);
          // Both change at once: faults in either are found, and every level has its turn.
          for (const SimdLevel level : test::simd_levels()) {
            const test::AtLevel at(level);
            const int threads = level == kSimdLevels[0] ? 5 : 2;
            set_num_threads(threads);
            CAPTURE(name_of(level));
            CAPTURE(threads);
            CHECK(same_streams(encode(*subject, rows), one_thread));
            CHECK(same_bits(decode(*subject, one_thread.document(0), 0, tokens), decoded));
          }
          set_num_threads(0);
        }
      },
      2);
}

TEST_CASE("codecs: a stream that is too short is refused, whichever it is") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    for (const size_t tokens : kSanitized ? std::vector<size_t>{1, 200} : std::vector<size_t>{1, 160, 200}) {
      const auto subject = random_subject(row, rng);
      const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
      const std::set<std::string> read = streams_read(*subject, encoded.document(0), tokens);
      for (const StreamSpec& victim : encoded.specs()) {
        if (encoded.bytes(victim.name).empty()) continue;
        if (victim.shared && !read.contains(victim.name)) continue;  // no token needs it
        CAPTURE(victim.name);
        const Encoded shorter = tampered(encoded, [&](const StreamSpec& spec, std::vector<std::byte>& bytes) {
          if (spec.name == victim.name) bytes.resize(bytes.size() - spec.row_bytes());
        });
        CHECK(decoding_error(*subject, shorter.document(0), tokens) == ErrorKind::bad_input);
        const Encoded empty = tampered(encoded, [&](const StreamSpec& spec, std::vector<std::byte>& bytes) {
          if (spec.name == victim.name) bytes.clear();
        });
        const auto error = decoding_error(*subject, empty.document(0), tokens);
        // An empty stream `adapted` is none that is too short: it says that nothing was adapted. Codes are then others.
        if (victim.name == "adapted" && !error)
          CHECK_FALSE(same_bits(decode(*subject, empty.document(0), 0, tokens),
                                decode(*subject, encoded.document(0), 0, tokens)));
        else
          CHECK(error == ErrorKind::bad_input);
      }
    }
  });
}

TEST_CASE("codecs: indices beyond their bound and values that are not finite are refused") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    const size_t tokens = 200;
    const auto subject = random_subject(row, rng);
    const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
    for (const StreamSpec& victim : encoded.specs()) {
      const size_t size = size_of(victim.type);
      const size_t elements = encoded.bytes(victim.name).size() / size;
      const bool floating =
          victim.type == DType::f16 || victim.type == DType::bf16 || victim.type == DType::f32;
      const bool bounded =
          victim.index_bound > 0 && (size == 8 || victim.index_bound < uint64_t{1} << (8 * size));
      if (elements == 0 || !(floating || bounded)) continue;
      CAPTURE(victim.name);
      // Decoding never reads the copies that stand for first tokens kept apart, so damage in them goes unnoticed.
      for (const size_t element : {row.sink > 0 ? elements / 4 : 0, elements / 2, elements - 1}) {
        const Encoded wrong = tampered(encoded, [&](const StreamSpec& spec, std::vector<std::byte>& bytes) {
          if (spec.name != victim.name) return;
          // All-ones exponents are infinities or NaNs in all three float types.
          const uint64_t bad = bounded ? victim.index_bound : ~uint64_t{0};
          std::memcpy(bytes.data() + element * size, &bad, size);
        });
        CHECK(decoding_error(*subject, wrong.document(0), tokens) == ErrorKind::bad_input);
      }
    }
  });
}

TEST_CASE("codecs: streams of random damage are decoded or refused, never more (long)") {
  for_each_case(
      [](const CodecCase& row, Rng& rng) {
        for (int round = 0; round < (kSanitized ? 3 : 40); ++round) {
          const size_t tokens = rng.below(220);
          const auto subject = random_subject(row, rng);
          const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
          const Encoded damaged = tampered(encoded, [&](const StreamSpec& spec,
                                                        std::vector<std::byte>& bytes) {
            if (rng.below(3) == 0) {  // more or fewer rows
              const uint64_t rows = bytes.size() / spec.row_bytes();
              bytes.resize((rng.below(2) ? rows + 1 + rng.below(3) : rng.below(rows + 1)) * spec.row_bytes());
            }
            for (uint64_t hits = rng.below(20); hits > 0 && !bytes.empty(); --hits)
              bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.below(256));
          });
          const auto error = decoding_error(*subject, damaged.document(0), tokens);
          CHECK((!error || *error == ErrorKind::bad_input));
        }
      },
      2);
}

TEST_CASE("codecs: symbols are counted as they decode") {
  // Values of one head whose steps and zero points are all the same, so that equal symbols are equal values.
  constexpr int kDims = 64;
  Rng rng(11);
  Matrix<float> rows(200, kDims);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(rng.below(i % 3 == 0 ? 4 : 2));
  for (size_t t = 0; t < rows.rows(); ++t) rows(t, 0) = 0, rows(t, 40) = 0, rows(t, 20) = 3, rows(t, 60) = 3;
  const DocumentRows documents[] = {DocumentRows(rows)};
  const auto check = [&](const char* name, const Record& options, size_t quantized, size_t zero) {
    const CodecContext context{.num_layers = 1, .heads = 1, .head_dim = kDims};
    const auto codec = codec_from_record(find_codec(name), options, context);
    const GroupShape shape = usual_group(0, 1, 1, kDims, Side::value);
    const Encoded encoded = encode_in_memory(*codec, shape, documents);
    const auto counts = codec->open(shape, encoded.document(0))->symbol_counts();
    std::vector<uint64_t> expected(counts.size());
    for (size_t i = 0; i < quantized * kDims; ++i) ++expected.at(zero + static_cast<size_t>(rows.data()[i]));
    CHECK(counts == expected);
    Encoded empty(codec->streams(shape));
    CHECK(codec->open(shape, empty.add_document())->symbol_counts() == std::vector<uint64_t>(counts.size()));
  };
  Record kivi, kvcomp;
  kivi.set("bits", int64_t{2});
  kivi.set("window", int64_t{3});
  kivi.set("sink", int64_t{0});
  check("kivi", kivi, 192, 0);
  kvcomp.set("max-error", 0.5);  // steps of 1
  kvcomp.set("block", int64_t{33});
  kvcomp.set("sink", int64_t{0});
  for (const char* entropy : {"huffman", "rans"}) {
    kvcomp.set("entropy", std::string(entropy));
    check("kvcomp", kvcomp, 198, 127);
  }
  const auto none =
      codec_from_record(find_codec("none"), {}, {.num_layers = 1, .heads = 1, .head_dim = kDims});
  const GroupShape shape = usual_group(0, 1, 1, kDims, Side::value);
  const Encoded in_none = encode_in_memory(*none, shape, documents);
  CHECK(none->open(shape, in_none.document(0))->symbol_counts().empty());
}

TEST_CASE("codecs: products are those of decoded rows, over any range, for any number of threads (long)") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    for (const size_t tokens : kSomeTokens) {
      const auto subject = random_subject(row, rng);
      const GroupShape shape =
          subject->codec->joint() ? of_side(subject->shape, kSides[rng.below(2)]) : subject->shape;
      const auto d = static_cast<size_t>(shape.head_dim());
      const size_t heads = shape.width() / d, n = 1 + rng.below(6);
      const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
      const StreamReader& document = encoded.document(0);
      const auto view = subject->codec->open(shape, document);
      const auto random = [&](size_t rows, size_t cols) {
        Matrix<float> matrix(rows, cols);
        for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
        return matrix;
      };
      for (int i = 0; i < 4; ++i) {
        const size_t first = rng.below(tokens + 1), count = rng.below(tokens - first + 1);
        CAPTURE(first);
        CAPTURE(count);
        Matrix<float> values(count, shape.width());
        view->decode(first, values);
        const Matrix<float> queries = random(heads * n, d), weights = random(heads * n, count);
        Matrix<float> scores(heads * n, count), sums(heads * n, d);
        const bool key = shape.side == Side::key;
        const auto multiply = [&](Matrix<float>& of_keys, Matrix<float>& of_values) {
          if (key)
            view->multiply(first, queries, of_keys);
          else
            view->multiply(first, weights, of_values);
        };
        multiply(scores, sums);
        size_t wrong = 0;
        for (size_t v = 0; v < heads * n; ++v) {
          const size_t c0 = v / n * d;
          // Errors of sums in float32: a few units in the last place of the sum of magnitudes. A codec may
          // sum differences to an origin of its own, which is no larger than the channel's largest value.
          std::vector<double> largest(d);
          for (size_t t = 0; t < count; ++t)
            for (size_t c = 0; c < d; ++c)
              largest[c] = std::max(largest[c], std::abs(double(values(t, c0 + c))));
          for (size_t t = 0; t < count && key; ++t) {
            double sum = 0, magnitude = 0;
            for (size_t c = 0; c < d; ++c) {
              sum += double(queries(v, c)) * values(t, c0 + c);
              magnitude += std::abs(double(queries(v, c))) * largest[c];
            }
            wrong += !(std::abs(scores(v, t) - sum) <= 2e-6 * magnitude + 1e-30);
          }
          for (size_t c = 0; c < d && !key; ++c) {
            double sum = 0, magnitude = 0;
            for (size_t t = 0; t < count; ++t) {
              sum += double(weights(v, t)) * values(t, c0 + c);
              magnitude += std::abs(double(weights(v, t)) * values(t, c0 + c));
            }
            wrong += !(std::abs(sums(v, c) - sum) <= 1e-5 * magnitude + 1e-30);
          }
        }
        CHECK_EQ(wrong, 0);
        set_num_threads(5);
        Matrix<float> again(heads * n, count), sums_again(heads * n, d);
        multiply(again, sums_again);
        set_num_threads(0);
        CHECK(same_bits(again, scores));
        CHECK(same_bits(sums_again, sums));
      }
    }
  });
}

}  // namespace codec_test
