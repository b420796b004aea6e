// Codecs: streams as an encoder wrote them, then damaged in some bytes or cut short, decode and multiply or
// are refused, never crash. Beside codec_fuzz, whose streams of any bytes seldom hold a book or sizes that
// fit.
#include <algorithm>
#include <span>

#include "lib/codec/encoded.hpp"
#include "lib/core/rng.hpp"
#include "test/fuzz/codec_input.hpp"

using namespace kvcodec;

namespace {

/// Rows with a mean and a loudness per channel, some of them constant, some with an outlier.
/// At most `limit` of them; the input determines their number and content.
Matrix<float> make_rows(uint32_t limit, size_t width, fuzz::Bytes& input) {
  Matrix<float> rows(input.byte() % limit, width);
  const uint64_t seed = input.byte();
  Rng rng(seed);
  for (size_t c = 0; c < width; ++c) {
    const double mean = rng.normal(), loudness = seed % 4 == 0 ? 0 : rng.uniform(0, 2);
    for (size_t t = 0; t < rows.rows(); ++t)
      rows(t, c) = static_cast<float>(mean + loudness * rng.normal() * (rng.below(100) == 0 ? 50 : 1));
  }
  return rows;
}

/// Overwrites bytes at places and in streams that the input gives, and cuts a few streams.
void damage(std::vector<std::vector<std::byte>>& streams, fuzz::Bytes& input) {
  for (int edits = input.byte() % 16; edits > 0; --edits) {
    auto& bytes = streams[input.byte() % streams.size()];
    const uint32_t place = input.below(1 << 16);
    const auto value = static_cast<std::byte>(input.byte());
    if (bytes.empty()) continue;
    if (input.byte() % 8 == 0)
      bytes.resize(place % bytes.size());
    else
      bytes[place % bytes.size()] = value;
  }
}

}  // namespace

KVCODEC_FUZZ_TARGET(damage) {
  fuzz::Bytes input(data, size);
  fuzz::expect_refusal_or_success([&] {
    CodecContext context;
    Book book;
    const auto codec = fuzz::choose_codec(input, context, book);
    const GroupShape shape = fuzz::choose_side(*codec, context, input);
    const Matrix<float> rows = make_rows(100, shape.width(), input);
    // Later rows are not in the survey: symbols unknown to the book, blocks that do not shrink.
    const Matrix<float> later = make_rows(40, shape.width(), input);
    Encoded intact(codec->streams(shape));
    StreamStore& whole =
        intact.add_document(codec->predicts_from() > 0 ? test::sample_ids() : std::vector<uint32_t>());
    DocumentRows surveyed(rows);
    surveyed.token_ids = test::sample_ids();
    if (codec->survey_scope(shape) != SurveyScope::none)
      run_survey(*codec->survey(shape), std::vector{surveyed}, whole);
    codec->append(shape, rows, whole);
    codec->append(shape, later, whole);

    std::vector<std::vector<std::byte>> streams;
    for (const StreamSpec& spec : intact.specs()) {
      auto& bytes = streams.emplace_back(whole.rows(spec.name) * spec.row_bytes());
      whole.read(spec.name, 0, whole.rows(spec.name), bytes);
    }
    damage(streams, input);
    Encoded damaged(intact.specs());
    StreamStore& document = damaged.add_document(fuzz::choose_ids(*codec, input));
    for (size_t i = 0; i < streams.size(); ++i) {
      const StreamSpec& spec = damaged.specs()[i];
      document.append(spec.name,
                      std::span(streams[i]).first(streams[i].size() / spec.row_bytes() * spec.row_bytes()));
    }
    fuzz::read_everything(*codec, shape, document, input);
  });
  return 0;
}
