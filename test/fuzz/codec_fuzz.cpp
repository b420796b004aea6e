// Codecs: streams of any bytes and any number of rows decode and multiply or are refused, never crash.
#include <span>

#include "lib/codec/encoded.hpp"
#include "test/fuzz/codec_input.hpp"

using namespace kvcodec;

KVCODEC_FUZZ_TARGET(codec) {
  fuzz::Bytes input(data, size);
  fuzz::expect_refusal_or_success([&] {
    CodecContext context;
    Book book;
    const auto codec = fuzz::choose_codec(input, context, book);
    const GroupShape shape = fuzz::choose_side(*codec, context, input);
    Encoded encoded(codec->streams(shape));
    StreamStore& document = encoded.add_document(fuzz::choose_ids(*codec, input));
    for (const StreamSpec& spec : encoded.specs()) {
      const auto bytes = std::as_bytes(input.take(input.below(200) * spec.row_bytes()));
      document.append(spec.name, bytes.first(bytes.size() / spec.row_bytes() * spec.row_bytes()));
    }
    fuzz::read_everything(*codec, shape, document, input);
  });
  return 0;
}
