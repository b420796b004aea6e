// GGUF files written by gguf-py: make_gguf_fixtures.py and make_gguf_models.py make the fixtures, and describe them.
#include "formats/models/gguf.hpp"

#include <bit>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <nlohmann/json.hpp>

#include "formats/models/family.hpp"
#include "formats/models/gguf_model.hpp"
#include "formats/models/key_rope.hpp"
#include "formats/models/model_files.hpp"
#include "formats/models/safetensors.hpp"
#include "formats/models/tokenizer_json.hpp"
#include "lib/core/error.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/rope.hpp"
#include "lib/tokenizer/unicode.hpp"
#include "test/golden/fixtures.hpp"
#include "test/lib/simd_levels.hpp"

namespace gguf_test {

using namespace kvcodec;
using Json = nlohmann::json;

namespace {

std::string golden(const std::string& name) { return test::source_dir() + "/test/golden/" + name; }

Json read_json(const std::string& name) {
  std::ifstream file(golden(name));
  REQUIRE_MESSAGE(file, name);
  return Json::parse(file);
}

const std::vector<std::string>& strings() {
  static const auto all = read_json("tokenizer/strings.json").get<std::vector<std::string>>();
  return all;
}

/// The whole output of a prefill.
struct Collector final : PrefillSink {
  void layer(const LayerChunk& chunk) override {
    for (const auto& rows : {chunk.key, chunk.value, chunk.query}) add(rows);
  }
  void logits(size_t, MatrixView<const float> rows) override { add(rows); }
  void add(MatrixView<const float> rows) {
    for (size_t i = 0; i < rows.rows(); ++i) all.insert(all.end(), rows.row(i).begin(), rows.row(i).end());
  }
  std::vector<float> all;
};

std::vector<float> run(const ModelConfig& config, const WeightSource& weights) {
  const LlamaModel model(config, weights);
  std::vector<uint32_t> tokens;
  // The second document is longer than windows, and than the original context of longrope.
  for (uint32_t i = 0; i < 80; ++i)
    tokens.push_back(i * 7 % static_cast<uint32_t>(model.config().vocabulary_size));
  const std::vector<uint64_t> offsets = {0, 25, tokens.size()};
  Collector collector;
  PrefillOptions options;
  options.queries = true;
  options.logits = LogitRows::all;
  model.prefill({tokens, offsets}, options, collector);
  return std::move(collector.all);
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE_EQ(a.size(), b.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    size += double(b[i]) * b[i];
  }
  return std::sqrt(error / size);
}

bool has_any(const std::string& text, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

// The checksum of zlib and PNG, as Python's zlib.crc32 gives it.
uint32_t crc32(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

}  // namespace

TEST_CASE("gguf: every tensor type has the values that gguf-py gives it, bit by bit, at every level") {
  const Gguf file = Gguf::open(golden("gguf/types.gguf"));
  const char* const order[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",   "Q5_1",   "Q8_0",
                               "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};
  CHECK_EQ(file.tensors().size(), std::size(order));
  CHECK_EQ(kNamesOf<TensorType>.size(), std::size(order) + 1);  // e4m3 is no type of GGUF files
  for (const SimdLevel level : test::simd_levels()) {
    const test::AtLevel at(level);
    test::Fixtures expected("gguf/types.f32");
    for (const char* name : order) {
      CAPTURE(name);
      const Gguf::Tensor& tensor = file.tensors().find(name)->second;
      CHECK_EQ(tensor.type, name);
      REQUIRE(tensor.usable);
      std::vector<float> values(2 * 512);
      expected.read(values.data(), values.size());
      const std::vector<float> found = read_floats(tensor.view);
      REQUIRE_EQ(found.size(), values.size());
      CHECK_EQ(std::memcmp(found.data(), values.data(), values.size() * sizeof(float)), 0);
      // Parts that begin and end within blocks.
      for (const size_t first : {0, 1, 31, 32, 255, 300, 511, 700})
        for (const size_t count : {0, 1, 15, 33, 256, 300}) {
          std::vector<float> part(count);
          read_floats(tensor.view, first, part);
          CHECK(std::equal(part.begin(), part.end(), values.begin() + static_cast<ptrdiff_t>(first)));
        }
    }
    CHECK(expected.at_end());
  }
}

namespace {

void check_same_parts(const ModelConfig& a, const ModelConfig& b) {
  CHECK_EQ(a.family, b.family);
  CHECK_EQ(a.norm_epsilon, b.norm_epsilon);
  CHECK_EQ(a.rope.theta, b.rope.theta);
  CHECK_EQ(a.tied_embeddings, b.tied_embeddings);
  CHECK_EQ(a.max_positions, b.max_positions);
  CHECK_EQ(a.window, b.window);
  CHECK_EQ(a.attention_scale, b.attention_scale);
  CHECK_EQ(a.embedding_scale, b.embedding_scale);
  CHECK_EQ(beyond_llama(a), beyond_llama(b));
}

/// The file's rotary embedding in a cache equals that of the model's computation.
void check_said(const ModelDescription& description) {
  const ModelConfig& config = description.config;
  ModelConfig said;
  said.num_layers = config.num_layers, said.head_dim = config.head_dim;
  said.rope.theta = config.rope.theta;
  read_rope_description(description.rope_scaling, said);
  for (int layer = 0; layer < config.num_layers; ++layer)
    CHECK_EQ(said.rope_of(layer), config.rope_of(layer));
  for (const RopeLength length : {RopeLength::up_to_original, RopeLength::longer})
    CHECK_EQ(rope_frequencies(said.rope, said.head_dim, length),
             rope_frequencies(config.rope, config.head_dim, length));
  CHECK_EQ(said.rope.scaling.attention_factor, doctest::Approx(config.rope.scaling.attention_factor));
  CHECK_EQ(said.local_rope.theta, config.local_rope.theta);
}

/// Gemma's files do not contain the divisor of scores.
void divide_by_head_dim(ModelConfig& config) {
  config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
}

}  // namespace

TEST_CASE("gguf: models compute what the same checkpoints compute") {
  std::set<std::string> models_of;
  for (const std::string& name : test::golden_models()) {
    const std::string file = golden(fmt::format("gguf/{}.gguf", name));
    if (!std::filesystem::exists(file)) continue;
    CAPTURE(name);
    const auto gguf = open_model(file);
    const auto checkpoint = open_model(golden("model/" + name));
    const ModelConfig& own = gguf->description().config;
    ModelConfig other = checkpoint->description().config;
    if (name == "gemma2-1" || name == "gemma3-1") divide_by_head_dim(other);
    check_same_parts(own, other);
    check_said(gguf->description());
    const double difference =
        relative_difference(run(own, gguf->weights()), run(other, checkpoint->weights()));
    // llama-4 has Llama 3's scaling, which GGUF files hold as divisors rounded to float; of the gated delta rule they hold rates of
    // decay instead of logarithms.
    CHECK_LE(difference, name == "llama-4" || !own.delta.only_convolve() ? 1e-5 : 0);
    models_of.insert(own.family);
  }
  for (const families::Family& family : families::all_families()) {
    CAPTURE(family.model_type);
    CHECK((family.gguf.architecture.empty() || models_of.contains(std::string(family.model_type))));
  }
}

TEST_CASE("gguf: a tensor that is missing, and one too many, are called as the file calls them") {
  const Gguf file = Gguf::open(golden("gguf/qwen2-1.gguf"));
  const ModelConfig right = describe_model(file).config;
  const GgufWeights weights(file, right);
  CHECK(weights.find("blk.0.ffn_up.weight") != nullptr);
  CHECK_EQ(weights.find("blk.0.ffn_up.bias"), nullptr);
  ModelConfig config = right;
  config.mlp_bias = true;
  CHECK_THROWS_WITH(LlamaModel(config, weights),
                    doctest::Contains("qwen2-1.gguf: tensor 'blk.0.ffn_gate.bias' is missing; it must have"));
  config = right;
  config.qkv_bias = false;
  CHECK_THROWS_WITH(LlamaModel(config, weights),
                    doctest::Contains("qwen2-1.gguf: tensor 'blk.0.attn_k.bias' is there; qwen2 models that "
                                      "are supported have none"));
}

TEST_CASE("gguf: byte-level tokenizers give the ids of the same tokenizer.json") {
  for (const std::string name : {"llama3", "qwen2", "smollm"}) {
    CAPTURE(name);
    const Tokenizer own = load_tokenizer(Gguf::open(golden("gguf/" + name + ".gguf")));
    const Tokenizer other = Tokenizer(read_tokenizer_json(golden("tokenizer/" + name + ".json")));
    CHECK_EQ(own.vocabulary_size(), other.vocabulary_size());
    // A GGUF file cannot represent tokens that absorb white space, are whole words only, or are searched in normalized text.
    std::vector<std::string> inexpressible;
    for (const AddedToken& token : read_tokenizer_json(golden("tokenizer/" + name + ".json")).added_tokens)
      if (token.lstrip || token.rstrip || token.single_word || token.normalized)
        inexpressible.push_back(normalize(token.content, UnicodeForm::nfc));
    size_t compared = 0;
    for (const std::string& text : strings()) {
      if (has_any(normalize(text, UnicodeForm::nfc), inexpressible)) continue;
      INFO(Json(text).dump());
      const auto ids = own.encode(text, false);
      CHECK_EQ(ids, other.encode(text, false));
      CHECK_EQ(own.decode(ids), other.decode(ids));
      ++compared;
    }
    CHECK_GE(compared, 1500);
    const uint32_t special = own.id_of("<s>").value(), usual = own.id_of("<tok>").value();
    CHECK_EQ(own.decode({&special, 1}, true), "");
    CHECK_FALSE(own.decode({&usual, 1}, true).empty());
  }
}

TEST_CASE("gguf: a SentencePiece vocabulary gives SentencePiece's ids") {
  const Tokenizer tokenizer = load_tokenizer(Gguf::open(golden("gguf/spm.gguf")));
  const Json pairs = read_json("gguf/spm.json");
  CHECK_GE(pairs.size(), 200);
  for (const Json& pair : pairs) {
    const auto text = pair[0].get<std::string>();
    INFO(pair[0].dump());
    const auto ids = tokenizer.encode(text, false);
    CHECK_EQ(ids, pair[1].get<std::vector<uint32_t>>());
    if (text.find("\u2581") == std::string::npos) CHECK_EQ(tokenizer.decode(ids), text);
  }
  CHECK_EQ(tokenizer.encode("", true), std::vector<uint32_t>{*tokenizer.id_of("<s>")});
}

TEST_CASE("gguf: the splits of each name of tokenizer.ggml.pre are those that the tokenizers library makes") {
  TokenizerSpec spec = read_tokenizer_json(golden("tokenizer/qwen2.json"));
  const Json sums = read_json("gguf/pre.json");
  for (const auto& item : sums.items()) {
    CAPTURE(item.key());
    const std::string& name = item.key();
    TokenizerSpec own = spec;
    own.added_tokens.clear();
    own.prefix.clear(), own.suffix.clear();
    split_as(name, own);
    const Tokenizer tokenizer(std::move(own));
    std::vector<uint32_t> ids;
    for (const std::string& text : strings())
      for (const uint32_t id : tokenizer.encode(text, false)) ids.push_back(id);
    CHECK_EQ(crc32(std::as_bytes(std::span(ids))), item.value().get<uint32_t>());
  }
}

}  // namespace gguf_test
