// Opened documents: how much of a long one is read, growth, chosen tokens, damaged places.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lib/codec/places.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/counting_reader.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/test.hpp"

namespace document_view_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// Bytes that opening a document and decoding 64 tokens in its middle reads.
uint64_t bytes_in_the_middle(const Subject& subject, const StreamReader& streams, uint64_t tokens,
                             MatrixView<float> out) {
  const CountingReader reader(streams);
  const auto view = subject.codec->open(subject.shape, reader);
  view->decode(tokens / 2 + 5, out);
  return reader.take();
}

/// A codec of the table with few channels, which soon codes documents of tens of thousands of tokens.
std::unique_ptr<Subject> small_subject(const CodecCase& row, Side side, Rng& rng) {
  return make_subject(row, 2, std::max(row.least_head_dim, 16), side, DType::bf16, rng);
}

bool has_places(const Subject& subject) {
  return std::ranges::any_of(subject.codec->streams(subject.shape),
                             [](const StreamSpec& spec) { return spec.name == kPlaces; });
}

uint64_t all_bytes(const Encoded& encoded) {
  uint64_t total = 0;
  for (const StreamSpec& spec : encoded.specs()) total += encoded.bytes(spec.name).size();
  return total;
}

}  // namespace

TEST_CASE("documents: 64 tokens in the middle are read alone, however long the document is (long)") {
  constexpr uint64_t kWanted = 64, kAround = 700;
  for_each_case(
      [&](const CodecCase& row, Rng& rng) {
        const Side side = kSides[rng.below(2)];
        CAPTURE(name_of(side));
        const auto subject = small_subject(row, side, rng);
        // The two middles differ by a multiple of 3,200 tokens: both are equally far behind the start of a block. Where there are
        // places, the longer one has two before its middle, and the shorter one none.
        const bool sought = has_places(*subject);
        const uint64_t shorter = sought ? 8000 : 3000,
                       longer = shorter + (kSanitized ? (sought ? 12800 : 6400) : 3 * 12800);
        // Around them are the same rows: others would take other bytes.
        Matrix<float> rows = make_rows(*subject, longer, Look::ordinary, rng);
        for (uint64_t t = 0; t < 2 * kAround; ++t)
          std::ranges::copy(std::as_const(rows).row(shorter / 2 + t - kAround),
                            rows.row(longer / 2 + t - kAround).begin());
        const Encoded of_long = encode(*subject, rows),
                      of_short = encode(*subject, rows.view().rows(0, shorter));
        Matrix<float> out(kWanted, subject->shape.width());
        const uint64_t in_short = bytes_in_the_middle(*subject, of_short.document(0), shorter, out),
                       in_long = bytes_in_the_middle(*subject, of_long.document(0), longer, out);
        CHECK_LE(in_long, in_short + in_short / 8 + 64);
        CHECK_LE(in_long, all_bytes(of_long) / 20);
        CHECK(same_bits(out, decode(*subject, of_long.document(0), longer / 2 + 5, kWanted)));
      },
      8);
}

TEST_CASE("documents: nothing is parsed twice") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    const auto subject = small_subject(row, kSides[rng.below(2)], rng);
    const size_t tokens = has_places(*subject) ? 5000 : 900;
    const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
    const CountingReader reader(encoded.document(0));
    const auto view = subject->codec->open(subject->shape, reader);
    Matrix<float> out(64, subject->shape.width()), again = out;
    view->decode(tokens - 800, out);
    const uint64_t first = reader.take();
    view->decode(tokens - 800, again);
    const uint64_t second = reader.take();
    CHECK(same_bits(out, again));
    CHECK_LE(second, first);
    // Codecs with `places` add up the sizes of an interval at the first read alone.
    if (has_places(*subject) && !encoded.bytes(kPlaces).empty()) CHECK_LT(second, first);
  });
}

TEST_CASE("documents: chosen tokens are those of the whole, and a block with several of them is read once") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    for (const size_t tokens : {1, 161, 700}) {
      const auto subject = small_subject(row, kSides[rng.below(2)], rng);
      const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
      const CountingReader reader(encoded.document(0));
      const auto view = subject->codec->open(subject->shape, reader);
      Matrix<float> whole(tokens, subject->shape.width());
      view->decode(0, whole);
      reader.take();
      view->decode(0, whole);
      const uint64_t of_whole = reader.take();
      for (const uint32_t step : {1u, 2u, 3u, 37u, 256u}) {
        std::vector<uint32_t> chosen;
        for (uint32_t token = step / 2; token < tokens;
             token += 1 + static_cast<uint32_t>(rng.below(2 * step)))
          chosen.push_back(token);
        Matrix<float> out(chosen.size(), whole.cols());
        view->decode_tokens(chosen, out);
        size_t wrong = 0;
        for (size_t i = 0; i < chosen.size(); ++i)
          wrong += !same_bits(out.view().rows(i, 1), whole.view().rows(chosen[i], 1));
        CHECK_EQ(wrong, 0);
        CHECK_LE(reader.take(), of_whole);
      }
    }
  });
}

TEST_CASE("documents: a view follows its document (long)") {
  for_each_case(
      [](const CodecCase& row, Rng& rng) {
        const auto subject = small_subject(row, kSides[rng.below(2)], rng);
        const size_t tokens = kSanitized ? 5000 : 9000;
        const Matrix<float> rows = make_rows(*subject, tokens, Look::ordinary, rng);
        Encoded encoded(subject->codec->streams(subject->shape));
        StreamStore& document = surveyed_document(*subject, rows, encoded);
        const auto view = subject->codec->open(subject->shape, document);
        CHECK_EQ(view->tokens(), 0);
        for (size_t done = 0; done < tokens;) {
          const size_t count = std::min<size_t>(tokens - done, 1 + rng.below(done % 3 == 0 ? 2500 : 200));
          subject->codec->append(subject->shape, rows.view().rows(done, count), document);
          done += count;
          view->refresh();
          REQUIRE_EQ(view->tokens(), done);
          // The last tokens, which appends move between streams, and some anywhere.
          for (const size_t wanted : {std::min<size_t>(done, 300), std::min<size_t>(done, 40)}) {
            const size_t first = wanted < 300 ? rng.below(done - wanted + 1) : done - wanted;
            Matrix<float> out(wanted, rows.cols());
            view->decode(first, out);
            CHECK(same_bits(out, decode(*subject, document, first, wanted)));
          }
        }
        const Encoded at_once = encode(*subject, rows);
        CHECK(same_streams(encoded, at_once));
        CHECK(same_bits(decode(*subject, document, 0, tokens),
                        decode(*subject, at_once.document(0), 0, tokens)));
      },
      6);
}

TEST_CASE("documents: places at odds with the sizes of parts are refused") {
  size_t tried = 0;
  for_each_case([&](const CodecCase& row, Rng& rng) {
    const size_t tokens = 9000;
    const auto subject = small_subject(row, kSides[rng.below(2)], rng);
    const auto specs = subject->codec->streams(subject->shape);
    const auto is_places = [](const StreamSpec& spec) { return spec.name == kPlaces; };
    const auto places = std::ranges::find_if(specs, is_places);
    if (places == specs.end()) return;
    const Encoded encoded = encode(*subject, make_rows(*subject, tokens, Look::ordinary, rng));
    const size_t elements = encoded.bytes(kPlaces).size() / sizeof(uint64_t);
    if (elements == 0) return;  // no blocks
    for (size_t element = 0; element < elements; ++element)
      for (const int64_t change : {-1, 1}) {
        ++tried;
        CAPTURE(element);
        CAPTURE(change);
        const Encoded wrong = tampered(encoded, [&](const StreamSpec& spec, std::vector<std::byte>& bytes) {
          if (!is_places(spec)) return;
          uint64_t place = 0;
          std::memcpy(&place, bytes.data() + element * sizeof place, sizeof place);
          place += static_cast<uint64_t>(change);
          std::memcpy(bytes.data() + element * sizeof place, &place, sizeof place);
        });
        CHECK(decoding_error(*subject, wrong.document(0), tokens) == ErrorKind::bad_input);
        // A reader that continues from there finds that the next data do not fit.
        const uint64_t row_tokens = tokens / (elements / places->row_shape[0]);
        const uint64_t behind = (element / places->row_shape[0] + 1) * row_tokens;
        Matrix<float> out(64, subject->shape.width());
        CHECK_THROWS_AS(subject->codec->open(subject->shape, wrong.document(0))
                            ->decode(std::min<uint64_t>(behind, tokens - 200), out),
                        Error);
      }
    // One row too few or too many.
    for (const bool more : {false, true}) {
      const Encoded wrong = tampered(encoded, [&](const StreamSpec& spec, std::vector<std::byte>& bytes) {
        if (is_places(spec)) bytes.resize(bytes.size() + (more ? 1 : -1) * spec.row_bytes());
      });
      CHECK_THROWS_AS(subject->codec->open(subject->shape, wrong.document(0)), Error);
    }
  });
  CHECK(tried > 100);
}

TEST_CASE("documents: places cost next to nothing") {
  for_each_case([](const CodecCase& row, Rng& rng) {
    const auto subject = small_subject(row, kSides[rng.below(2)], rng);
    if (!has_places(*subject)) return;
    const Encoded encoded = encode(*subject, make_rows(*subject, 4096 + 64, Look::ordinary, rng));
    CHECK_LE(double(encoded.bytes(kPlaces).size()), std::max(64.0, 0.001 * double(all_bytes(encoded))));
  });
}

}  // namespace document_view_test
