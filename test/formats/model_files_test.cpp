// Models as they are named: folders, and what the hub's cache has.
#include "formats/model_files.hpp"

#include "test/formats/folder.hpp"
#include "test/formats/refusal.hpp"
#include "test/test.hpp"

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
  // What is no such name is a path that is not there.
  for (const char* path : {"./org/name", "org/name/more", "nowhere", "/nowhere/name"})
    CHECK(message_of([&] { open_model(path); }).starts_with(std::string(path) + "/config.json: "));
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
