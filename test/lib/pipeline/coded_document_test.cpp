#include "lib/pipeline/coded_document.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "lib/pipeline/generation.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/lib/model/small_model.hpp"
#include "test/test.hpp"

namespace coded_document_test {

using namespace kvcodec;

namespace {

constexpr size_t kTokens = 90, kCoded = 48;

/// A model whose first layer has a window, a document, and its first tokens as codes without those that the window no longer needs.
struct Bench {
  ModelConfig config = windowed();
  WeightsInMemory weights = test::random_weights(config, DType::f32, 5);
  LlamaModel model{config, weights};
  std::unique_ptr<Codec> codec;
  std::unique_ptr<CodedLayout> layout;
  std::unique_ptr<CodedDocument> codes;
  std::vector<uint32_t> tokens;

  static ModelConfig windowed() {
    ModelConfig config = test::small_config(2);
    config.window[0] = 20;
    return config;
  }

  explicit Bench(const char* name) {
    const CodecContext context{.num_layers = 2, .heads = 2, .head_dim = 16, .query_heads = 4};
    codec = codec_from_record(find_codec(name), {}, context);
    layout = std::make_unique<CodedLayout>(*codec, config, DType::f32);
    Rng rng(8);
    for (size_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<uint32_t>(rng.below(60)));
    const Prefix prefix = run_prefix(model, {tokens, kCoded}, 0);
    std::vector<size_t> left_out;
    for (size_t part = 0; part < layout->parts(); ++part)
      left_out.push_back(layout->shape(part).first_layer() == 0 ? kCoded - 20 : 0);
    codes = std::make_unique<CodedDocument>(*layout, tokens, left_out);
    for (size_t part = 0; part < layout->parts(); ++part) {
      const GroupShape& shape = layout->shape(part);
      const Matrix<float> rows = layout->rows_of(prefix.rows, shape, left_out[part], kCoded),
                          surveyed =
                              layout->rows_of(prefix.rows, codec->surveyed(shape), left_out[part], kCoded);
      DocumentRows document(rows);
      document.surveyed = surveyed;
      codes->copy(part, encode_in_memory(*codec, shape, {&document, 1}).document(0));
    }
  }

  /// Logits of the next tokens behind what the codes decode to.
  std::vector<float> behind_decoded(size_t count) {
    const size_t there = codes->tokens();
    GrowingDocument decoded(model, kTokens);
    decoded.start(there);
    for (int layer = 0; layer < 2; ++layer)
      codes->read(layer, decoded.rows().keys[static_cast<size_t>(layer)].view().rows(0, there),
                  decoded.rows().values[static_cast<size_t>(layer)].view().rows(0, there));
    const auto logits = decoded.read(std::span(tokens).subspan(there, count));
    return {logits.begin(), logits.end()};
  }
};

}  // namespace

TEST_CASE("coded document: attention to growing codes gives what it gives behind their decoded values") {
  for (const char* name : {"none", "lossless", "fp8", "q4", "kivi", "selfindex", "kvcomp"}) {
    CAPTURE(name);
    Bench bench(name);
    CHECK_EQ(bench.codes->tokens(), kCoded);
    GrowingDocument growing(bench.model, kTokens, *bench.codes);
    for (const size_t count : {size_t{12}, size_t{1}, size_t{1}, size_t{9}, size_t{16}, size_t{1}}) {
      const std::vector<float> wanted = bench.behind_decoded(count);
      const auto found = growing.read(std::span(bench.tokens).subspan(growing.tokens(), count));
      REQUIRE_EQ(found.size(), wanted.size());
      double largest = 0, difference = 0;
      for (size_t i = 0; i < wanted.size(); ++i) {
        largest = std::max(largest, std::abs(double{wanted[i]}));
        difference = std::max(difference, std::abs(double{found[i]} - double{wanted[i]}));
      }
      CHECK_LE(difference, 1e-4 * largest);
      CHECK_EQ(growing.tokens(), bench.codes->tokens());
    }
    CHECK_EQ(growing.tokens(), kCoded + 40);
    CHECK_GT(bench.codes->stored(growing.tokens()).bits_per_value(), 0);
    CHECK_THROWS_AS(growing.read(std::span(bench.tokens).first(3)), Error);  // no room
  }
}

}  // namespace coded_document_test
