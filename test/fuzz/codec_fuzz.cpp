// Codecs: streams of any bytes and any number of rows decode or are refused, never crash.
// Codecs that need a book are left to their own tests.
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

namespace {

/// The codec that the input chooses, with options set from it as far as they are valid.
std::unique_ptr<Codec> make_codec(fuzz::Bytes& input, CodecContext& context) {
  std::vector<const CodecEntry*> choices;
  for (const CodecEntry& entry : codecs())
    if (!entry.capabilities.needs_book) choices.push_back(&entry);
  const CodecEntry& entry = *choices[input.byte() % choices.size()];
  context = {.num_layers = 1, .heads = 1 + input.byte() % 3, .head_dim = 1 + input.byte() % 40};
  const auto options = entry.make_options();
  for (const OptionField& field : options->fields())
    if (std::holds_alternative<int64_t*>(field.target))
      fuzz::expect_refusal_or_success([&] { set_value(field, int64_t{input.byte() % 64}); });
  return entry.make(*options, context);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes input(data, size);
  fuzz::expect_refusal_or_success([&] {
    CodecContext context;
    const auto codec = make_codec(input, context);
    const GroupShape shape{0, codec->layer_group(), context.heads, context.head_dim,
                           input.byte() % 2 ? Side::value : Side::key};
    Encoded encoded(codec->streams(shape));
    StreamStore& document = encoded.add_document();
    for (const StreamSpec& spec : encoded.specs()) {
      const auto bytes = std::as_bytes(input.take(input.below(200) * spec.row_bytes()));
      document.append(spec.name, bytes.first(bytes.size() / spec.row_bytes() * spec.row_bytes()));
    }
    const uint64_t first = input.byte();
    Matrix<float> out(input.byte() % 64, shape.width());
    codec->decode(shape, document, first, out);  // may find the range wanting before tokens() is asked
    Matrix<float> all(codec->tokens(shape, document), shape.width());
    codec->decode(shape, document, 0, all);
  });
  return 0;
}
