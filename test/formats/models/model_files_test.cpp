// Named models: folders, and the content of the hub's cache.
#include "formats/models/model_files.hpp"

#include "test/formats/folder.hpp"
#include "test/formats/refusal.hpp"
#include "test/test.hpp"

namespace model_files_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

namespace fs = std::filesystem;

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

constexpr char kConfig[] =
    R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":8,"intermediate_size":16,"vocab_size":32,
        "num_attention_heads":2,"num_key_value_heads":1,"torch_dtype":"float32"})";

std::string name_of_model(const std::string& named) {
  return model_info(named, open_model(named)->description(), false).model;
}

}  // namespace

TEST_CASE("model files: a model is called by its folder, and in the hub's cache as it is called there") {
  const Folder folder;
  write(folder / "plain/config.json", kConfig);
  CHECK(name_of_model(folder / "plain") == "plain");
  CHECK(name_of_model(folder / "plain/") == "plain");
  const std::string cached = folder / "hub/models--some-org--Some--Model-1.5";
  write(cached + "/snapshots/0123abcd/config.json", kConfig);
  CHECK(name_of_model(cached + "/snapshots/0123abcd") == "some-org/Some--Model-1.5");
  CHECK(name_of_model(cached + "/snapshots/0123abcd/") == "some-org/Some--Model-1.5");
  CHECK(name_of_model(cached) == "some-org/Some--Model-1.5");
  CHECK(name_of_model(cached + "/") == "some-org/Some--Model-1.5");
}

TEST_CASE("model files: a name of the hub is looked for in its cache, and never downloaded") {
  const Folder folder;
  const Environment cache("HF_HUB_CACHE", (folder / "hub").c_str());
  const std::string cached = folder / "hub/models--org--name";
  CHECK(
      message_of([] { open_model("org/name"); }) ==
      fmt::format(
          "org/name: is neither here nor among the models that were downloaded ({}); 'hf download org/name' "
          "fetches it",
          folder / "hub"));
  write(cached + "/snapshots/old/config.json", kConfig);
  CHECK(name_of_model("org/name") == "org/name");
  write(cached + "/snapshots/new/config.json", R"({"model_type":"unknown"})");
  CHECK(message_of([] { open_model("org/name"); }).starts_with(cached + ": holds 2 revisions of a model"));
  write(cached + "/refs/main", "old");
  CHECK(name_of_model("org/name") == "org/name");
  write(cached + "/refs/main", "new\n");
  CHECK(message_of([] { open_model("org/name"); }).starts_with(cached + "/snapshots/new/config.json: "));
  // Other names are paths that do not exist.
  for (const char* path : {"./org/name", "org/name/more", "nowhere", "/nowhere/name"})
    CHECK(message_of([&] { open_model(path); }).starts_with(std::string(path) + "/config.json: "));
}

TEST_CASE("model files: tokenizer_config.json says which tokens go around a text, for some classes") {
  const Folder folder;
  write(folder / "config.json", kConfig);
  // Like DeepSeek's: no token surrounds a text.
  const std::string model = R"("model":{"type":"BPE","vocab":{"a":0,"</s>":1},"merges":[]})";
  const std::string added =
      R"({"id":2,"content":"<b>","special":true,"normalized":false,"single_word":false,"lstrip":false,
    "rstrip":false})";
  write(folder / "tokenizer.json", R"({"added_tokens":[)" + added + "]," + model + "}");
  const auto encoded = [&](const std::string& config) {
    write(folder / "tokenizer_config.json", config);
    return open_model(folder.path().string())->tokenizer().encode("a", true);
  };
  using Ids = std::vector<uint32_t>;
  CHECK_EQ(open_model(folder.path().string())->tokenizer().encode("a", true), Ids{0});
  const std::string llama = R"({"tokenizer_class":"LlamaTokenizerFast","bos_token":"<b>")";
  CHECK_EQ(encoded(llama + R"(,"add_bos_token":true,"add_eos_token":false})"), Ids{2, 0});
  CHECK_EQ(encoded(llama + R"(,"add_bos_token":false,"add_eos_token":true})"), Ids{0, 1});
  CHECK_EQ(encoded(llama + R"(,"add_eos_token":false})"), Ids{2, 0});
  CHECK_EQ(
      encoded(R"({"tokenizer_class":"GemmaTokenizer","bos_token":{"content":"<b>"},"add_bos_token":true})"),
      Ids{2, 0});
  // No switch is given, or the class follows tokenizer.json.
  for (const char* config : {R"(})", R"(,"add_bos_token":null})"}) CHECK_EQ(encoded(llama + config), Ids{0});
  for (const char* name : {R"("PreTrainedTokenizerFast")", R"("Qwen2Tokenizer")", "null"})
    CHECK_EQ(encoded(fmt::format(R"({{"tokenizer_class":{},"bos_token":"<b>","add_bos_token":true}})", name)),
             Ids{0});

  const auto refused = [&](const std::string& config) {
    return refusal_of(folder / "tokenizer_config.json", [&] { encoded(config); });
  };
  CHECK_EQ(refused(R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true})"),
           "bos_token is '<s>', which is to go around texts but is no token of tokenizer.json");
  CHECK_EQ(refused(llama + R"(,"add_bos_token":1})"), "add_bos_token is 1; it must be true or false");
  for (const char* token : {"3", "{}", R"({"content":3})"})
    CHECK_EQ(
        refused(fmt::format(R"({{"tokenizer_class":"LlamaTokenizer","bos_token":{},"add_bos_token":true}})",
                            token)),
        fmt::format("bos_token is {}; it must be a token's text, or an object with it as content", token));
  CHECK_EQ(refused(R"({"tokenizer_class":["LlamaTokenizer"]})"),
           R"(tokenizer_class is ["LlamaTokenizer"]; it must be a string)");
  CHECK_EQ(refused("{"), "not JSON from byte 2 on");
  CHECK_EQ(refused(std::string((16 << 20) + 1, ' ')), "has 16777217 bytes; at most 16777216 are plausible");
}

TEST_CASE("model files: an adapter is told from a model") {
  const Folder folder;
  write(folder / "lora/adapter_config.json", R"({"base_model_name_or_path":"org/base","r":8})");
  CHECK(
      message_of([&] { open_model(folder / "lora"); }) ==
      (folder / "lora") +
          ": is an adapter (LoRA) of org/base and no whole model; merge it into that one, and name the merged model");
  write(folder / "lora/config.json", kConfig);  // merged in place
  CHECK(name_of_model(folder / "lora") == "lora");
}

}  // namespace model_files_test
