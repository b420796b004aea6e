#include "formats/models/gguf.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "formats/models/family.hpp"
#include "formats/models/gguf_model.hpp"
#include "formats/models/model_files.hpp"
#include "lib/core/error.hpp"
#include "lib/model/llama.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/models/gguf_writer.hpp"
#include "test/formats/refusal.hpp"
#include "test/test.hpp"

namespace gguf_test {

using namespace kvcodec;
using test::GgufValue;
using test::GgufWriter;
using test::message_of;

namespace {

/// The message with which a file of these bytes is refused, without the file's name, which it must begin with.
std::string refused(const std::string& bytes, const std::function<void(const std::string& file)>& read) {
  const test::Folder folder;
  const std::string name = folder / "x.gguf";
  std::ofstream(name, std::ios::binary) << bytes;
  return test::refusal_of(name, [&] { read(name); });
}
std::string refused(const std::string& bytes) {
  return refused(bytes, [](const std::string& file) { Gguf::open(file); });
}
std::string refused(const GgufWriter& writer) { return refused(writer.bytes()); }

/// A key of each kind and two tensors: a, (2, 3) f32, and b, (1, 32) q8_0 with scale 0.5.
GgufWriter two() {
  GgufWriter writer;
  writer.set("general.architecture", "llama").set("count", 7u).set("epsilon", 1e-5f).set_bool("yes", true);
  writer.set("names", std::vector<std::string>{"x", "", "yz"}).set("kinds", std::vector<int32_t>{1, -2});
  writer.set("scores", std::vector<float>{0.5f, -1});
  writer.add("a", {3, 2}, {1, 2, 3, 4, 5, -6.5f});
  std::string block = GgufWriter::number(uint16_t{0x3800});  // 0.5
  for (int i = 0; i < 32; ++i) block += static_cast<char>(i - 16);
  return writer.add("b", {32, 1}, 8, block);
}

}  // namespace

TEST_CASE("gguf: keys and tensors come as they lie in the file") {
  const test::Folder folder;
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = two();
    writer.version = version;
    const std::string name = folder / "x.gguf";
    std::ofstream(name, std::ios::binary) << writer.bytes();
    const Gguf file = Gguf::open(name);
    CHECK_EQ(file.name(), name);
    CHECK_EQ(file.need_string("general.architecture"), "llama");
    CHECK_EQ(file.need_int("count"), 7);
    CHECK_EQ(file.need_number("count"), 7.0);
    CHECK_EQ(file.need_number("epsilon"), 1e-5);  // not the double next to the float
    CHECK_EQ(file.get_bool("yes"), true);
    CHECK_EQ(file.get_bool("no"), std::nullopt);
    CHECK_EQ(file.need_strings("names"), std::vector<std::string_view>{"x", "", "yz"});
    CHECK_EQ(file.get_ints("kinds"), std::vector<int64_t>{1, -2});
    CHECK_EQ(file.get_floats("scores"), std::vector<float>{0.5f, -1});
    CHECK(file.is_array("names"));
    CHECK_FALSE(file.is_array("count"));
    CHECK_FALSE(file.has("Count"));
    CHECK_EQ(file.tensors().size(), 2);
    const TensorView& a = file.tensors().find("a")->second.view;
    CHECK_EQ(a.shape, std::vector<uint64_t>{2, 3});
    CHECK_EQ(read_floats(a), std::vector<float>{1, 2, 3, 4, 5, -6.5f});
    const TensorView& b = file.tensors().find("b")->second.view;
    CHECK_EQ(b.type, TensorType::q8_0);
    CHECK_EQ(read_floats(b)[3], -6.5f);
    CHECK_EQ(message_of([&] { file.get_int("yes"); }), "key 'yes': is of type bool; it must be an integer");
    CHECK_EQ(message_of([&] { file.get_string("names"); }),
             "key 'names': is of type array of string; it must be string");
    CHECK_EQ(message_of([&] { file.need_strings("kinds"); }),
             "key 'kinds': is of type array of i32; it must be array of string");
    CHECK_EQ(message_of([&] { file.need_int("none"); }), "key 'none' is missing");
  }
}

TEST_CASE("gguf: matrices of a tensor of three dimensions, of any type") {
  const test::Folder folder;
  std::string blocks;
  for (int block = 0; block < 6; ++block) {
    blocks += static_cast<char>(125 + block);
    for (int i = 0; i < 16; ++i) blocks += static_cast<char>(17 * i + block);
  }
  std::ofstream(folder / "x.gguf", std::ios::binary)
      << GgufWriter().add("mxfp4", {32, 2, 3}, 39, blocks).add("f32", {2, 1, 3}, {1, 2, 3, 4, 5, 6}).bytes();
  const Gguf file = Gguf::open(folder / "x.gguf");
  for (const char* const name : {"mxfp4", "f32"}) {
    const TensorView& all = file.tensors().find(name)->second.view;
    const std::vector<float> values = read_floats(all);
    const size_t size = values.size() / 3;
    for (size_t i = 0; i < 3; ++i) {
      const TensorView matrix = matrix_at(all, i);
      CHECK_EQ(matrix.shape, std::vector<uint64_t>{all.shape[1], all.shape[2]});
      const auto own = std::span(values).subspan(i * size, size);
      CHECK_EQ(read_floats(matrix), std::vector<float>(own.begin(), own.end()));
    }
    CHECK_THROWS(matrix_at(all, 3));
  }
  // Block 0: 2^(125 - 128) times 0, 2, 4 … of the lower nibbles 0 to 15, then of the same upper ones.
  const std::vector<float> values = read_floats(file.tensors().find("mxfp4")->second.view);
  CHECK_EQ(values[1], 0.125f);
  CHECK_EQ(values[7], 1.5f);
  CHECK_EQ(values[9], -0.125f);
  CHECK_EQ(values[16 + 7], 1.5f);
}

TEST_CASE("gguf: the digest tells files apart") {
  const test::Folder folder;
  const auto digest = [&](const GgufWriter& writer) {
    std::ofstream(folder / "x.gguf", std::ios::binary) << writer.bytes();
    return Gguf::open(folder / "x.gguf").digest();
  };
  GgufWriter other = two();
  other.data.back() = 5;
  CHECK_EQ(digest(two()), digest(two()));
  CHECK_NE(digest(two()), digest(other));
}

TEST_CASE("gguf: malformed files, one per defect") {
  GgufWriter w = two();
  w.magic = "GGML";
  CHECK_EQ(refused(w), "does not begin with GGUF; a model is a GGUF file or a directory with config.json");
  CHECK_EQ(refused(""), "does not begin with GGUF; a model is a GGUF file or a directory with config.json");
  CHECK_EQ(refused("GGUF"), "4 bytes are needed at byte 4, but the file has 4; it is truncated or damaged");
  w = two(), w.version = 1;
  CHECK_EQ(refused(w), "is of GGUF version 1; supported are 2 and 3");
  w = two(), w.version = 4;
  CHECK_EQ(refused(w), "is of GGUF version 4; supported are 2 and 3");
  w = two(), w.version = 0x03000000;
  CHECK_EQ(refused(w), "is a big-endian GGUF file; only little-endian ones are supported");

  w = two(), w.more_keys = int64_t{1} << 60;
  CHECK(refused(w).ends_with("bytes follow; it is truncated or damaged"));
  w = two(), w.more_tensors = -3;  // 2^64 - 1
  CHECK(refused(w).starts_with("18446744073709551615 tensors are announced at byte 24"));
  w = two(), w.more_tensors = 1;  // the data is read as a tensor
  CHECK_EQ(refused(w), "tensor '': has 0 dimensions; it must have 1 to 4");

  w = two(), w.key("n", GgufWriter::number(uint32_t{13}));
  CHECK_EQ(refused(w), "key 'n': its type is 13; known are 0 to 12");
  w = two(), w.array("n", GgufValue::array, 0, "");
  CHECK_EQ(refused(w), "key 'n': is an array of arrays, which are not supported");
  w = two(), w.array("n", GgufValue::string, uint64_t{1} << 61, "");
  CHECK(refused(w).starts_with("key 'n': 2305843009213693952 strings are announced at byte"));
  w = two(), w.array("n", GgufValue::u64, uint64_t{1} << 61, "");
  CHECK_EQ(refused(w), "key 'n': size 2305843009213693952 x 8 does not fit 64 bits");
  w = two(), w.array("n", GgufValue::f32, 10000, "");
  CHECK(refused(w).starts_with("key 'n': 40000 bytes are needed at byte"));
  w = two(), w.key("n", GgufWriter::value_type(GgufValue::string) + GgufWriter::number(UINT64_MAX));
  CHECK(refused(w).starts_with("key 'n': 18446744073709551615 bytes are needed at byte"));
  w = two(), w.set("count", 8u);
  CHECK_EQ(refused(w), "key 'count' is given twice");
  w = two(), w.set("general.alignment", 24u);
  CHECK_EQ(refused(w), "general.alignment is 24; it must be a power of two");
  w = two(), w.set("general.alignment", 0u);
  CHECK_EQ(refused(w), "general.alignment is 0; it must be a power of two");
  w = two(), w.set("general.alignment", "32");
  CHECK_EQ(refused(w), "general.alignment is string; it must be a power of two");

  w = two(), w.describe("c", {}, 0, 0);
  CHECK_EQ(refused(w), "tensor 'c': has 0 dimensions; it must have 1 to 4");
  w = two(), w.describe("c", {1, 1, 1, 1, 1}, 0, 0);
  CHECK_EQ(refused(w), "tensor 'c': has 5 dimensions; it must have 1 to 4");
  w = two(), w.describe("c", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0);
  CHECK_EQ(refused(w), "tensor 'c': size 1099511627776 x 1099511627776 does not fit 64 bits");
  w = two(), w.describe("c", {48}, 8, 96);
  CHECK_EQ(refused(w), "tensor 'c': rows have 48 values; Q8_0 stores them by 32");
  w = two(), w.describe("c", {uint64_t{1} << 61}, 28, 96);
  CHECK_EQ(refused(w), "tensor 'c': size 2305843009213693952 x 8 does not fit 64 bits");
  w = two(), w.describe("c", {32}, 0, 96);
  CHECK_EQ(refused(w),
           "tensor 'c': its 128 bytes begin at byte 96 of the data, but the file has 66 bytes of data; is it "
           "truncated?");
  w = two(), w.describe("c", {1}, 0, uint64_t{1} << 63);
  CHECK(refused(w).starts_with("tensor 'c': its 4 bytes begin at byte 9223372036854775808 of the data"));
  w = two(), w.describe("c", {1}, 0, 4);
  CHECK_EQ(refused(w), "tensor 'c': begins at byte 4 of the data, which is not a multiple of 32");
  w = two(), w.describe("c", {1}, 0, 32);
  CHECK_EQ(refused(w),
           "tensor 'b': begins at byte 32 of the data, inside the tensor before it, which ends at 36");
  w = two(), w.describe("a", {0}, 0, 0);
  CHECK_EQ(refused(w), "tensor 'a' is given twice");
}

TEST_CASE("gguf: a file cut anywhere is refused") {
  const std::string whole = two().bytes();
  CHECK_EQ(refused(whole), "accepted");
  for (size_t size = 0; size < whole.size(); ++size) CHECK_NE(refused(whole.substr(0, size)), "accepted");
}

namespace {

/// A Llama of one layer with all that its file must have; `change` may add to it.
GgufWriter small_model(const std::function<void(GgufWriter&)>& change = {},
                       const char* architecture = "llama") {
  GgufWriter w;
  const auto key = [&](const char* name) { return std::string(architecture) + "." + name; };
  w.set("general.architecture", architecture);
  w.set(key("block_count"), 1u).set(key("embedding_length"), 8u).set(key("feed_forward_length"), 12u);
  w.set(key("attention.head_count"), 2u).set(key("attention.head_count_kv"), 1u);
  w.set(key("attention.layer_norm_rms_epsilon"), 1e-5f).set(key("context_length"), 64u);
  const auto tensor = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    std::vector<float> values;
    for (uint64_t i = 0; i < rows * cols; ++i) values.push_back(static_cast<float>(i % 7) - 3);
    w.add(name, cols == 1 ? std::vector{rows} : std::vector{cols, rows}, values);
  };
  tensor("token_embd.weight", 5, 8), tensor("output_norm.weight", 8, 1);
  tensor("blk.0.attn_norm.weight", 8, 1), tensor("blk.0.ffn_norm.weight", 8, 1);
  tensor("blk.0.attn_q.weight", 8, 8), tensor("blk.0.attn_k.weight", 4, 8);
  tensor("blk.0.attn_v.weight", 4, 8), tensor("blk.0.attn_output.weight", 8, 8);
  tensor("blk.0.ffn_gate.weight", 12, 8), tensor("blk.0.ffn_up.weight", 12, 8);
  tensor("blk.0.ffn_down.weight", 8, 12);
  if (change) change(w);
  return w;
}

std::string refused_model(const std::function<void(GgufWriter&)>& change,
                          const char* architecture = "llama") {
  return refused(small_model(change, architecture).bytes(), [](const std::string& file) {
    const auto files = open_model(file);
    const LlamaModel model(files->description().config, files->weights());
  });
}

/// Values for a tensor that nobody reads.
std::vector<float> ones(size_t count) { return std::vector<float>(count, 1); }

/// Makes it a mixture of three experts, without `left_out`.
void add_experts(GgufWriter& w, const std::string& left_out = "") {
  w.set("llama.expert_count", 3u).set("llama.expert_used_count", 2u);
  const auto add = [&](const char* name, const std::vector<uint64_t>& dimensions) {
    size_t count = 1;
    for (const uint64_t dimension : dimensions) count *= dimension;
    if (name != left_out) w.add(fmt::format("blk.0.{}.weight", name), dimensions, ones(count));
  };
  add("ffn_gate_inp", {8, 3}), add("ffn_gate_exps", {8, 12, 3}), add("ffn_up_exps", {8, 12, 3});
  add("ffn_down_exps", {12, 8, 3});
}

}  // namespace

TEST_CASE("gguf: configuration, and rows of q and k in the order of checkpoints") {
  const test::Folder folder;
  const std::string name = folder / "x.gguf";
  std::ofstream(name, std::ios::binary)
      << small_model([](GgufWriter& w) {
           w.add("blk.0.attn_q.bias", {8}, {0, 1, 2, 3, 4, 5, 6, 7});
           w.set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 4.0f);
           w.set("llama.attention.sliding_window", 16u);
         }).bytes();
  const auto files = open_model(name);
  const ModelDescription& description = files->description();
  const ModelConfig& config = description.config;
  CHECK_EQ(config.num_layers, 1);
  CHECK_EQ(config.head_dim, 4);
  CHECK_EQ(config.vocabulary_size, 5);
  CHECK_EQ(config.norm_epsilon, 1e-5);
  CHECK_EQ(config.rope.theta, 10000);
  CHECK_EQ(config.window, std::vector<int64_t>{16});
  CHECK(config.tied_embeddings);
  CHECK(config.qkv_bias);
  CHECK_EQ(config.rope.scaling.factor, 4);
  CHECK_EQ(description.rope_scaling, R"({"factor":4.0,"rope_type":"linear"})");
  // Two heads of four: stored 0 1 2 3 are rows 0, 2, 1, 3 of the head.
  const TensorView* bias = files->weights().find("blk.0.attn_q.bias");
  REQUIRE(bias);
  CHECK_EQ(read_floats(*bias), std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7});
  const TensorView* query = files->weights().find("blk.0.attn_q.weight");
  REQUIRE(query);
  std::vector<float> row(8), stored;
  for (int i = 0; i < 8; ++i) stored.push_back(static_cast<float>((16 + i) % 7) - 3);  // row 2 of the file
  read_floats(*query, 8, row);
  CHECK_EQ(row, stored);
  CHECK_EQ(floats_in_place(*query), nullptr);
  CHECK_NE(floats_in_place(*files->weights().find("blk.0.attn_v.weight")), nullptr);
  CHECK_EQ(files->weights().find("output.weight"), nullptr);
}

TEST_CASE("gguf: of a tensor without rows whose rows would be reordered there is nothing to read") {
  const test::Folder folder;
  const std::string name = folder / "x.gguf";
  std::ofstream(name, std::ios::binary)
      << small_model([](GgufWriter& w) { w.add("blk.0.attn_q.bias", {0}, {}); }).bytes();
  const auto files = open_model(name);
  const TensorView* bias = files->weights().find("blk.0.attn_q.bias");
  REQUIRE(bias);
  CHECK(!bias->rows_in_order());
  CHECK(read_floats(*bias).empty());
  CHECK_THROWS_AS(LlamaModel(files->description().config, files->weights()), Error);
}

TEST_CASE("gguf: configuration of what no fixture has") {
  const test::Folder folder;
  const auto config_of = [&](const std::function<void(GgufWriter&)>& change, const char* architecture) {
    std::ofstream(folder / "x.gguf", std::ios::binary) << small_model(change, architecture).bytes();
    return describe_model(Gguf::open(folder / "x.gguf")).config;
  };
  const ModelConfig granite = config_of(
      [](GgufWriter& w) {
        w.set("granite.logit_scale", 8.0f).set("granite.residual_scale", 0.22f);
        w.set("granite.embedding_scale", 0.0f).set("granite.attention.scale", 0.0f);
      },
      "granite");
  CHECK_EQ(granite.logit_scale, 1 / 8.0);
  CHECK_EQ(granite.residual_scale, 0.22);
  CHECK_EQ(granite.embedding_scale, 1);
  CHECK_EQ(granite.attention_scale, 0);
  // Gemma's largest models are told by their layers.
  const auto layers = [](const std::string& architecture, uint32_t count) {
    return [=](GgufWriter& w) { w.replace(architecture + ".block_count", count); };
  };
  for (const auto& largest : {std::pair{"gemma2", 46u}, {"gemma3", 62u}}) {
    const auto change = [&](GgufWriter& w) {
      layers(largest.first, largest.second)(w);
      w.set(fmt::format("{}.attention.key_length", largest.first), 2u);
    };
    CHECK_EQ(config_of(change, largest.first).attention_scale, 1 / std::sqrt(4.0));
  }
  const ModelConfig gemma2 = config_of(layers("gemma2", 3), "gemma2");
  CHECK_EQ(gemma2.attention_scale, 1 / std::sqrt(4.0));
  CHECK_EQ(gemma2.window, std::vector<int64_t>{4096, 0, 4096});
  CHECK_EQ(gemma2.attention_softcap, 50);
  CHECK_EQ(gemma2.logit_softcap, 30);
  const ModelConfig gemma3 = config_of(
      [&](GgufWriter& w) {
        layers("gemma3", 4)(w);
        w.set("gemma3.attention.sliding_window", 16u).set("gemma3.attention.sliding_window_pattern", 2u);
        w.set("gemma3.rope.freq_base_swa", 5000.0f);
      },
      "gemma3");
  CHECK_EQ(gemma3.window, std::vector<int64_t>{16, 0, 16, 0});
  CHECK_EQ(gemma3.local_rope.theta, 5000);
  CHECK_EQ(gemma3.rope_of(0), LayerRope::local);
  CHECK_EQ(gemma3.rope_of(1), LayerRope::usual);
  CHECK_EQ(config_of(layers("gemma3", 4), "gemma3").window, std::vector<int64_t>(4, 0));
  // So are the first files of Phi 3 with a window, which no key says.
  const auto phi3_window = [&](uint32_t count, uint32_t context, std::optional<uint32_t> said = {}) {
    const auto change = [&](GgufWriter& w) {
      layers("phi3", count)(w);
      w.replace("phi3.context_length", context);
      if (said) w.set("phi3.attention.sliding_window", *said);
    };
    return config_of(change, "phi3").window.front();
  };
  CHECK_EQ(phi3_window(32, 4096), 2047);
  CHECK_EQ(phi3_window(40, 4096), 2047);
  CHECK_EQ(phi3_window(32, 4096, 0), 0);
  CHECK_EQ(phi3_window(32, 4096, 100), 100);
  CHECK_EQ(phi3_window(32, 131072), 0);
  CHECK_EQ(phi3_window(24, 4096), 0);
}

TEST_CASE("gguf: models that are not supported or do not fit together") {
  const auto unchanged = [](GgufWriter&) {};
  CHECK_EQ(refused_model(unchanged), "accepted");
  const std::string refusal = refused_model(unchanged, "clip");
  CHECK(refusal.starts_with("architecture is 'clip', which is not supported; supported are "));
  for (const families::Family& family : families::all_families())
    CHECK(refusal.find(family.gguf.architecture) != std::string::npos);
  // One behind the last layer, one that another architecture has, a bias of one projection only.
  for (const char* name :
       {"blk.0.attn_qkv.weight", "blk.1.attn_norm.weight", "blk.0.post_ffw_norm.weight", "blk.0.attn_v.bias",
        "blk.0.ffn_gate.0.weight", "v.blk.0.ln1.weight", "rope_freqs.bias", "blk.00.attn_norm.weight"})
    CHECK_EQ(refused_model([&](GgufWriter& w) { w.add(name, {4}, ones(4)); }),
             fmt::format("tensor '{}' is there; llama models that are supported have none", name));
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("llama.rope.scaling.type", "dynamic"); }),
           "llama.rope.scaling.type is 'dynamic'; supported are 'none', 'linear', 'yarn' and 'longrope'");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set_bool("llama.attention.causal", false); }),
           "llama.attention.causal is false; a model that reads what follows has no cache to go on with");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set_bool("llama.attention.causal", true); }), "accepted");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("llama.rope.dimension_count", 2u); }),
           "llama.rope.dimension_count is 2; only the length of a key (4) is supported");
  CHECK_EQ(refused_model([](GgufWriter& w) {
             w.add("rope_freqs.weight", {3}, {1, 1, 1});
           }),
           "tensor 'rope_freqs.weight': is F32 [3]; it must be F32 [2]");
  CHECK_EQ(refused_model([](GgufWriter& w) {
             w.add("rope_freqs.weight", {2}, {1, 0});
           }),
           "the divisor of a frequency is 0; it must be positive");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("llama.attention.key_length", 5u); }),
           "head_dim is 5; rotary embeddings turn pairs, so it must be even");
  CHECK_EQ(refused(small_model({}).set("llama.vocab", 1u).bytes(),
                   [](const std::string& file) {
                     const auto files = open_model(file);
                     files->tokenizer();
                   }),
           "key 'tokenizer.ggml.model' is missing");
  const GgufWriter unread = small_model([](GgufWriter& w) {
    w.add("output.weight", {256, 5}, 16, std::string(5 * 66, '\0'));
  });
  const std::string message = refused(
      unread.bytes(), [](const std::string& file) { open_model(file)->weights().find("output.weight"); });
  CHECK_EQ(message,
           "tensor 'output.weight': type is IQ2_XXS; supported are F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
           "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4");
}

namespace {

/// The model in three files: its tensors in turns, all keys in the first. change(part, writer) may add to a part.
void write_split(const test::Folder& folder, const std::function<void(int, GgufWriter&)>& change = {},
                 int skipped = -1) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  for (int part = 0; part < 3; ++part) {
    if (part == skipped) continue;
    GgufWriter w;
    if (part == 0) w.set("general.architecture", "llama");
    for (int i = part; i < 4; i += 3)
      w.add(names[static_cast<size_t>(i)], {2}, {static_cast<float>(i), static_cast<float>(part)});
    if (change)
      change(part, w);
    else
      w.set("split.no", static_cast<uint32_t>(part)).set("split.count", 3u).set("split.tensors.count", 4u);
    std::ofstream(folder / fmt::format("x-0000{}-of-00003.gguf", part + 1), std::ios::binary) << w.bytes();
  }
}

}  // namespace

TEST_CASE("gguf: a model split over files") {
  const test::Folder folder;
  const std::string first = folder / "x-00001-of-00003.gguf";
  const auto refused_split = [&](const std::function<void(int, GgufWriter&)>& change, int skipped = -1) {
    write_split(folder, change, skipped);
    const std::string message = message_of([&] { Gguf::open(first); });
    return message.substr(message.rfind('/') + 1);
  };
  write_split(folder);
  const Gguf file = Gguf::open(first);
  CHECK_EQ(file.name(), first);
  CHECK_EQ(file.tensors().size(), 4);
  for (const auto& [name, values] :
       {std::pair{"a", std::vector<float>{0, 0}}, {"b", {1, 1}}, {"c", {2, 2}}, {"d", {3, 0}}})
    CHECK_EQ(read_floats(file.tensors().find(name)->second.view), values);
  const std::string digest = file.digest();
  // The last file's contents count.
  const auto numbered = [](int part, GgufWriter& w) -> GgufWriter& {
    return w.set("split.no", static_cast<uint32_t>(part)).set("split.count", 3u);
  };
  write_split(folder, [&](int part, GgufWriter& w) {
    numbered(part, w).set("split.tensors.count", 4u);
    if (part == 2) w.data.front() ^= 1;
  });
  CHECK_NE(Gguf::open(first).digest(), digest);

  CHECK_EQ(refused_split([&](int part, GgufWriter& w) { numbered(part, w).set("split.tensors.count", 5u); }),
           "x-00001-of-00003.gguf: split.tensors.count is 5; the 3 parts have 4");
  CHECK_EQ(refused_split([&](int part, GgufWriter& w) {
             numbered(part, w);
             if (part == 1) w.add("a", {1}, {1});
           }),
           "x-00002-of-00003.gguf: tensor 'a' is in an earlier part too");
  CHECK_EQ(refused_split([&](int part, GgufWriter& w) { numbered(part == 1 ? 2 : part, w); }),
           "x-00002-of-00003.gguf: split.no is 2 and split.count 3; they must be 1 and 3");
  CHECK_EQ(refused_split([&](int part, GgufWriter& w) {
             if (part != 2) numbered(part, w);
           }),
           "x-00003-of-00003.gguf: split.no is -1 and split.count 1; they must be 2 and 3");
  CHECK_EQ(refused_split([&](int part, GgufWriter& w) { numbered(part + 1, w); }),
           "x-00001-of-00003.gguf: is part 2 of 3 of a split model; name the first");
  CHECK_EQ(refused_split([&](int part, GgufWriter& w) {
             w.set("split.no", static_cast<uint32_t>(part)).set("split.count", 4u);
           }),
           "x-00001-of-00003.gguf: is the first of 4 parts of a split model; its name must end in "
           "'-00001-of-00004.gguf'");
  std::filesystem::remove(folder / "x-00002-of-00003.gguf");
  CHECK_EQ(refused_split([&](int part, GgufWriter& w) { numbered(part, w); }, 1),
           "x-00002-of-00003.gguf: cannot be opened: No such file or directory");
}

TEST_CASE("gguf: mixtures of experts that do not fit together") {
  CHECK_EQ(refused_model([](GgufWriter& w) { add_experts(w); }),  // the MLP that was there before
           "tensor 'blk.0.ffn_down.weight' is there; llama models that are supported have none");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("llama.expert_count", 8u); }),
           "key 'llama.expert_used_count' is missing");
  CHECK_EQ(refused_model(
               [](GgufWriter& w) { w.set("llama.expert_count", 3u).set("llama.expert_used_count", 4u); }),
           "num_experts_per_tok is 4; it must be in 1..3");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("qwen2.expert_count", 3u); }, "qwen2"),
           "qwen2.expert_count is 3; qwen2 models that are supported have no experts");
  CHECK_EQ(refused_model([](GgufWriter& w) { add_experts(w, "ffn_up_exps"); }),
           "tensor 'blk.0.ffn_up_exps.weight' is missing; it must have shape [3, 12, 8]");
  // Without its router a layer has an MLP.
  CHECK_EQ(refused_model([](GgufWriter& w) { add_experts(w, "ffn_gate_inp"); }),
           "tensor 'blk.0.ffn_down_exps.weight' is there; llama models that are supported have none");
  for (const std::vector<uint64_t>& lie :
       {std::vector<uint64_t>{8, 12, 2}, {8, 36}, {12, 8, 3}, {1, 8, 12, 3}, {8, 12, 0}}) {
    size_t count = 1;
    for (const uint64_t dimension : lie) count *= dimension;
    CHECK(refused_model([&](GgufWriter& w) {
            add_experts(w, "ffn_gate_exps");
            w.add("blk.0.ffn_gate_exps.weight", lie, ones(count));
          }).ends_with("]; the configuration makes it [3, 12, 8]"));
  }
}

TEST_CASE("gguf: rotary embeddings that do not fit together") {
  const auto scaled = [](GgufWriter& w, const char* type, float factor) -> GgufWriter& {
    return w.set("phi3.rope.scaling.type", type).set("phi3.rope.scaling.factor", factor);
  };
  const auto refused_phi3 = [](const std::function<void(GgufWriter&)>& change) {
    return refused_model(change, "phi3");
  };
  const std::string reached =
      "tensor 'blk.0.ffn_up.weight': shape is [12, 8]; the configuration makes it [24, 8]";
  CHECK_EQ(refused_phi3([](GgufWriter& w) { w.set("phi3.rope.dimension_count", 2u); }), reached);
  CHECK_EQ(refused_phi3([](GgufWriter& w) { w.set("phi3.rope.dimension_count", 6u); }),
           "the rotary embedding turns 6 dimensions of a head of 4; it must be an even number in 2..4");
  CHECK_EQ(refused_phi3([](GgufWriter& w) { w.set("phi3.rope.dimension_count", 0u); }),
           "phi3.rope.dimension_count is 0; it must be positive");
  CHECK_EQ(refused_phi3([&](GgufWriter& w) { scaled(w, "yarn", 4); }), reached);
  for (const char* key : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"})
    CHECK_EQ(refused_phi3([&](GgufWriter& w) {
               scaled(w, "yarn", 4).set(fmt::format("phi3.rope.scaling.{}", key), 2.0f);
             }),
             fmt::format("phi3.rope.scaling.{} is 2; only 1 is supported", key));
  CHECK_EQ(refused_phi3([&](GgufWriter& w) {
             scaled(w, "yarn", 4).set("phi3.rope.scaling.yarn_log_multiplier", 0.1f);
           }),
           "phi3.rope.scaling.yarn_log_multiplier is 0.1; only 0 is supported");
  CHECK_EQ(refused_phi3([](GgufWriter& w) { w.set("phi3.rope.scaling.type", "longrope"); }),
           "tensor 'rope_factors_short.weight' is missing; rope scaling of type 'longrope' has two");
  const auto factors = [](GgufWriter& w, size_t short_ones, size_t long_ones) -> GgufWriter& {
    return w.add("rope_factors_short.weight", {short_ones}, ones(short_ones))
        .add("rope_factors_long.weight", {long_ones}, ones(long_ones));
  };
  CHECK_EQ(refused_phi3([&](GgufWriter& w) { factors(w, 2, 2); }), reached);
  CHECK_EQ(refused_phi3([&](GgufWriter& w) { factors(w, 2, 3); }),
           "tensor 'rope_factors_long.weight': is F32 [3]; it must be F32 [2]");
  CHECK_EQ(refused_phi3(
               [&](GgufWriter& w) { factors(w, 2, 2).set("phi3.rope.scaling.original_context_length", 0u); }),
           "rope scaling factor is inf; it is beyond float");
  CHECK_EQ(refused_phi3([&](GgufWriter& w) { scaled(factors(w, 2, 2), "linear", 4); }),
           "phi3.rope.scaling.factor and tensor 'rope_factors_short.weight' are both there; only one kind of "
           "scaling is supported");
  CHECK_EQ(refused_phi3([](GgufWriter& w) { w.add("rope_factors_long.weight", {2}, ones(2)); }),
           "tensor 'rope_factors_short.weight' is missing; rope scaling of type 'longrope' has two");
}

TEST_CASE("gguf: keys of single architectures that are not supported") {
  const auto unchanged = [](GgufWriter&) {};
  const auto pattern = [](const std::vector<bool>& slides) {
    std::string bytes;
    for (const bool layer_slides : slides) bytes += layer_slides ? '\1' : '\0';
    return [=](GgufWriter& w) {
      w.set("gemma3.attention.sliding_window", 16u);
      w.array("gemma3.attention.sliding_window_pattern", GgufValue::boolean, slides.size(), bytes);
    };
  };
  const auto gemma3 = [](const std::function<void(GgufWriter&)>& change) {
    return refused_model(change, "gemma3");
  };
  const std::string reached = "tensor 'blk.0.post_attention_norm.weight' is missing; it must have shape [8]";
  CHECK_EQ(gemma3(pattern({true})), reached);
  CHECK_EQ(gemma3(pattern({true, false})),
           "gemma3.attention.sliding_window_pattern has 2 entries; there are 1 layers");
  CHECK_EQ(
      gemma3([](GgufWriter& w) {
        w.set("gemma3.attention.sliding_window", 16u);
        w.set("gemma3.attention.sliding_window_pattern", std::vector<int32_t>{1});
      }),
      "key 'gemma3.attention.sliding_window_pattern': is of type array of i32; it must be array of bool");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("gemma2.rope.freq_base_swa", 5000u); }, "gemma2"),
           "gemma2.rope.freq_base_swa is 5000; only 10000 is supported");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("gemma2.attn_logit_softcapping", -1.0f); }, "gemma2"),
           "attn_logit_softcapping is -1; it must be positive");
  CHECK_EQ(refused_model([](GgufWriter& w) { w.set("olmo2.attention.sliding_window", 16u); }, "olmo2"),
           "olmo2.attention.sliding_window is there, as in OLMo 3, which is not supported; OLMo 2 is");
  const auto granite = [](float logit_scale, bool finetuned) {
    return refused_model(
        [=](GgufWriter& w) {
          w.set("granite.logit_scale", logit_scale).set_bool("granite.rope.scaling.finetuned", finetuned);
        },
        "granite");
  };
  CHECK_EQ(granite(8, true), "accepted");
  CHECK_EQ(granite(0, true), "granite.logit_scale is 0; it must be positive");
  CHECK_EQ(
      granite(8, false),
      "granite.rope.scaling.finetuned is false: the model has no rotary embedding, which is not supported");
  CHECK_EQ(refused_model(unchanged, "granite"), "key 'granite.logit_scale' is missing");
  CHECK_EQ(
      refused_model([](GgufWriter& w) { w.set("gptneox.attention.layer_norm_epsilon", 1e-5f); }, "gptneox"),
      "key 'gptneox.use_parallel_residual' is missing");
  CHECK_EQ(refused_model(unchanged, "smollm3"), "accepted");
  CHECK_EQ(refused_model(unchanged, "gpt-oss"), "key 'gpt-oss.attention.sliding_window' is missing");
}

namespace {

std::string refused_tokenizer(const GgufWriter& writer) {
  return refused(writer.bytes(), [](const std::string& file) { load_tokenizer(Gguf::open(file)); });
}

/// Byte-level: a, b, ab, and a token of each special kind.
GgufWriter byte_tokens(const char* pre = "gpt-2") {
  GgufWriter w;
  w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", pre);
  w.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<s>", "<u>"});
  w.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3, 4});
  return w;
}

const std::vector<std::string> kMerge = {"a b"};

}  // namespace

TEST_CASE("gguf: tokenizers whose keys do not fit together") {
  CHECK_EQ(refused_tokenizer(byte_tokens().set("tokenizer.ggml.merges", kMerge)), "accepted");
  CHECK_EQ(refused_tokenizer(byte_tokens()), "key 'tokenizer.ggml.merges' is missing");
  CHECK(refused_tokenizer(byte_tokens("martian").set("tokenizer.ggml.merges", kMerge))
            .starts_with("tokenizer.ggml.pre is 'martian'; known are gpt-2, "));
  CHECK_EQ(refused_tokenizer(byte_tokens().set("tokenizer.ggml.merges", std::vector<std::string>{"ab"})),
           "tokenizer.ggml.merges: 'ab' is not two tokens with a space between");
  CHECK_EQ(refused_tokenizer(GgufWriter().set("tokenizer.ggml.model", "bert")),
           "tokenizer.ggml.model is 'bert'; supported are gpt2 and llama");
  CHECK_EQ(refused_tokenizer(byte_tokens("llama-bpe").set("tokenizer.ggml.merges", kMerge)),
           "key 'tokenizer.ggml.bos_token_id' is missing, but texts are to have that token");
  CHECK_EQ(refused_tokenizer(byte_tokens("llama-bpe")
                                 .set("tokenizer.ggml.merges", kMerge)
                                 .set("tokenizer.ggml.bos_token_id", 5u)),
           "tokenizer.ggml.bos_token_id is 5; there are 5 tokens");
  GgufWriter spm;
  spm.set("tokenizer.ggml.model", "llama")
      .set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a"});
  CHECK_EQ(refused_tokenizer(spm), "key 'tokenizer.ggml.scores' is missing");
  CHECK_EQ(refused_tokenizer(GgufWriter(spm).set("tokenizer.ggml.scores", std::vector<float>{1})),
           "tokenizer.ggml.scores has 1 entries; tokenizer.ggml.tokens has 2");
  CHECK_EQ(refused_tokenizer(GgufWriter(spm).set("tokenizer.ggml.token_type", std::vector<int32_t>{2})),
           "tokenizer.ggml.token_type has 1 entries; tokenizer.ggml.tokens has 2");
}

TEST_CASE("gguf: notes on what files leave out") {
  const test::Folder folder;
  const std::string name = folder / "x.gguf";
  const auto notes_of = [&](const std::function<void(GgufWriter&)>& change) {
    std::ofstream(name, std::ios::binary) << small_model(change).bytes();
    return open_model(name)->description().notes;
  };
  const auto llama31 = [](GgufWriter& w) -> GgufWriter& {
    return w.replace("llama.context_length", 131072u).set("llama.rope.freq_base", 500000.0f);
  };
  CHECK(notes_of({}).empty());
  const auto notes = notes_of([&](GgufWriter& w) { llama31(w); });
  REQUIRE_EQ(notes.size(), 1);
  CHECK(notes[0].starts_with(
      name + ": has the context and the rotary base of Llama 3.1, but not the tensor rope_freqs.weight"));
  CHECK(notes_of([&](GgufWriter& w) { llama31(w).add("rope_freqs.weight", {2}, ones(2)); }).empty());
  CHECK(notes_of([&](GgufWriter& w) { llama31(w).set("llama.rope.scaling.type", "none"); }).empty());

  const auto tokenizer_notes_of = [&](const std::function<void(GgufWriter&)>& change) {
    std::ofstream(name, std::ios::binary) << small_model(change).bytes();
    return open_model(name)->tokenizer_notes();
  };
  CHECK(tokenizer_notes_of({}).empty());
  CHECK(tokenizer_notes_of([](GgufWriter& w) { w.set("tokenizer.ggml.model", "llama"); }).empty());
  CHECK_EQ(tokenizer_notes_of([](GgufWriter& w) { w.set("tokenizer.ggml.model", "gpt2"); }),
           std::vector<std::string>{
               name + ": no key tokenizer.ggml.pre says how the tokenizer splits text; it is split as "
                      "'default', so token ids may be others than the model's"});
  CHECK(tokenizer_notes_of([](GgufWriter& w) {
          w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2");
        }).empty());
}

TEST_CASE("gguf: beginning and end of text, and SentencePiece's leftmost-first rule among equal scores") {
  const test::Folder folder;
  const auto load = [&](const GgufWriter& writer) {
    std::ofstream(folder / "x.gguf", std::ios::binary) << writer.bytes();
    return load_tokenizer(Gguf::open(folder / "x.gguf"));
  };
  GgufWriter bytes = byte_tokens("llama-bpe");
  bytes.set("tokenizer.ggml.merges", kMerge).set("tokenizer.ggml.bos_token_id", 3u);
  CHECK_EQ(load(bytes).encode("ab<u>b", true), std::vector<uint32_t>{3, 2, 4, 1});
  CHECK_EQ(load(GgufWriter(bytes).set_bool("tokenizer.ggml.add_bos_token", false)).encode("ab", true),
           std::vector<uint32_t>{2});
  GgufWriter ends = bytes;
  ends.set_bool("tokenizer.ggml.add_eos_token", true).set("tokenizer.ggml.eos_token_id", 4u);
  CHECK_EQ(load(ends).encode("ab", true), std::vector<uint32_t>{3, 2, 4});

  GgufWriter spm;
  spm.set("tokenizer.ggml.model", "llama").set_bool("tokenizer.ggml.add_space_prefix", false);
  spm.set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "a", "b", "ab", "ba"});
  spm.set("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 1, 1, 1, 1});
  GgufWriter phi3 = spm;
  phi3.set("tokenizer.ggml.scores", std::vector<float>{0, 0, -1, -1, -1, -1});
  phi3.replace("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 1, 1, 4, 3});
  // The control token <s> keeps the spaces behind it, also in Phi 3; "ab" and "ba" are chat tokens here.
  const std::string spaced = "ba \n<s>ab a";
  const std::vector<uint32_t> kept = {1, 5, 0, 1, 4, 0, 2}, stripped = {1, 5, 1, 4, 2};
  CHECK_EQ(load(phi3).encode(spaced, true), kept);
  CHECK_EQ(load(GgufWriter(phi3).set("general.architecture", "llama")).encode(spaced, true), kept);
  CHECK_EQ(load(GgufWriter(phi3).set("general.architecture", "phi3")).encode(spaced, true), stripped);
  CHECK_EQ(load(GgufWriter(phi3).set("general.architecture", "phi3")).encode("<s> a", true),
           std::vector<uint32_t>{1, 1, 0, 2});

  for (const auto& [scores, expected] :
       {std::pair{std::vector<float>{0, 0, -3, -4, -1, -1}, std::vector<uint32_t>{1, 4, 2}},
        {{0, 0, -3, -4, -2, -1}, {1, 2, 5}}}) {
    GgufWriter own = spm;
    CHECK_EQ(load(own.set("tokenizer.ggml.scores", scores)).encode("aba", true), expected);
  }
}

}  // namespace gguf_test
