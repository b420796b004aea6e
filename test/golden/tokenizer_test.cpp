// Token ids compared with the `tokenizers` library: make_tokenizer_fixtures.py makes the fixtures, and describes them.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "formats/models/tokenizer_json.hpp"
#include "lib/core/parallel.hpp"
#include "test/test.hpp"

namespace tokenizer_test {

using namespace kvcodec;
using Json = nlohmann::json;

namespace {

std::string fixture(const std::string& name) { return test::source_dir() + "/test/golden/tokenizer/" + name; }

std::string read(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  REQUIRE_MESSAGE(stream, file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

const std::vector<std::string>& strings() {
  static const auto all = Json::parse(read(fixture("strings.json"))).get<std::vector<std::string>>();
  return all;
}

// The checksum of zlib and PNG, as Python's zlib.crc32 gives it.
uint32_t crc32(std::string_view text) {
  uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

std::vector<uint32_t> ids_from_digits(std::string_view text, size_t digits) {
  static const auto value_of = [] {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::array<uint32_t, 256> out{};
    for (uint32_t i = 0; i < kDigits.size(); ++i) out[static_cast<unsigned char>(kDigits[i])] = i;
    return out;
  }();
  std::vector<uint32_t> ids;
  for (size_t at = 0; at + digits <= text.size(); at += digits) {
    uint32_t id = 0;
    for (const char c : text.substr(at, digits)) id = id << 6 | value_of[static_cast<unsigned char>(c)];
    ids.push_back(id);
  }
  return ids;
}

// A text for messages.
std::string shown(const std::string& text) { return Json(text).dump(); }

// True if the first ids by themselves are the first of all, for any number.
bool first_ids_agree(const Tokenizer& tokenizer, const std::string& string,
                     const std::vector<uint32_t>& ids) {
  for (const size_t limit : {size_t{0}, size_t{1}, ids.size() / 2, ids.size(), ids.size() + 1}) {
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(std::min(limit, ids.size()));
    if (tokenizer.encode_first(string, limit) != std::vector<uint32_t>(ids.begin(), first)) return false;
  }
  return true;
}

// Compares all strings with <name>.ids. Returns false if the tokenizer is not on this machine.
bool check_ids(const std::string& name) {
  std::istringstream lines(read(fixture(name + ".ids")));
  std::string line;
  std::getline(lines, line);
  const Json about = Json::parse(line);
  const std::string file = test::source_dir() + "/" + about["tokenizer"].get<std::string>();
  if (!std::filesystem::exists(file)) return false;
  const Tokenizer tokenizer(read_tokenizer_json(file));
  CHECK_EQ(tokenizer.vocabulary_size(), about["size"].get<uint32_t>());
  CHECK_EQ(tokenizer.encode("a", true), about["around"][0].get<std::vector<uint32_t>>());
  CHECK_EQ(tokenizer.encode("a", false), about["around"][1].get<std::vector<uint32_t>>());
  const auto digits = about["digits"].get<size_t>();
  size_t compared = 0;
  for (const std::string& string : strings()) {
    REQUIRE(std::getline(lines, line));
    const auto ids = tokenizer.encode(string, false);
    if (line == "!") continue;  // the library itself fails
    INFO(name, ": ", shown(string));
    const size_t space = line.find(' ');
    CHECK_EQ(ids, ids_from_digits(std::string_view(line).substr(0, space), digits));
    CHECK(first_ids_agree(tokenizer, string, ids));
    CHECK_EQ(crc32(tokenizer.decode(ids)), std::stoul(line.substr(space + 1), nullptr, 16));
    ++compared;
  }
  CHECK_GE(compared, 2000);
  return true;
}

}  // namespace

TEST_CASE("tokenizer: byte-level BPE with the splits of GPT-2, Llama 3, Qwen 2, GPT-4o, Falcon and SmolLM") {
  for (const char* name : {"gpt2", "llama3", "qwen2", "gpt4o", "falcon", "smollm"}) CHECK(check_ids(name));
}

TEST_CASE("tokenizer: SentencePiece-like BPE as in Llama 2 and Mistral, the older Metaspace, odd bytes") {
  for (const char* name : {"llama2", "mistral", "metaspace", "odd"}) CHECK(check_ids(name));
}

TEST_CASE("tokenizer: unigram models by words, of whole texts with byte fallback, and with odd scores") {
  for (const char* name : {"unigram", "unigram-bytes", "unigram-odd"}) CHECK(check_ids(name));
}

TEST_CASE("tokenizer: SentencePiece's compiled normalizer") { CHECK(check_ids("unigram-map")); }

TEST_CASE("tokenizer: the demo model's") { CHECK(check_ids("demo-model")); }

TEST_CASE("tokenizer: phi-2 (GPT-2 pattern, runs of spaces as added tokens)") {
  if (!check_ids("real-phi-2-codegen-gpt2")) SKIP("../shared/models is not there");
}
TEST_CASE("tokenizer: phi-3-mini (the vocabulary of Llama 2)") {
  if (!check_ids("real-phi-3-mini-llama-spm")) SKIP("../shared/models is not there");
}
TEST_CASE("tokenizer: falcon") {
  if (!check_ids("real-falcon")) SKIP("../shared/models is not there");
}
TEST_CASE("tokenizer: minimind") {
  if (!check_ids("real-minimind-6400")) SKIP("../shared/models is not there");
}
TEST_CASE("tokenizer: stories260K") {
  if (!check_ids("real-stories260K")) SKIP("../shared/models is not there");
}

TEST_CASE("tokenizer: bytes that are not UTF-8 are read as U+FFFD, as Python does") {
  const Json data = Json::parse(read(fixture("bytes.json")));
  for (const auto& item : data["ids"].items()) {
    const std::string& name = item.key();
    const Json& expected = item.value();
    const Tokenizer tokenizer(read_tokenizer_json(fixture(name + ".json")));
    REQUIRE_EQ(expected.size(), data["bytes"].size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto hex = data["bytes"][i].get<std::string>();
      std::string bytes;
      for (size_t at = 0; at < hex.size(); at += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
      INFO(name, ": ", hex);
      CHECK_EQ(tokenizer.encode(bytes, false), expected[i].get<std::vector<uint32_t>>());
    }
  }
}

// A tokenizer whose vocabulary is the expected pieces, taken whole: ids show how the text was split.
TEST_CASE("tokenizer: each pre-tokenizer and pattern by itself") {
  const Json data = Json::parse(read(fixture("steps.json")));
  for (const Json& item : data["pre_tokenizers"]) {
    Json vocabulary = Json::object({{"<unk>", 0}});
    for (const auto& [string, pieces] : item["pieces"].items()) {
      for (const Json& piece : pieces) vocabulary.emplace(piece.get<std::string>(), vocabulary.size());
    }
    const Json file = {{"model",
                        {{"type", "BPE"},
                         {"vocab", vocabulary},
                         {"merges", Json::array()},
                         {"unk_token", "<unk>"},
                         {"ignore_merges", true}}},
                       {"pre_tokenizer", item["step"]}};
    const Tokenizer tokenizer(parse_tokenizer_json(file.dump(), "steps.json"));
    for (const auto& [number, expected] : item["pieces"].items()) {
      const std::string& text = strings()[std::stoul(number)];
      std::vector<std::string> pieces;
      for (const uint32_t id : tokenizer.encode(text, false)) pieces.emplace_back(*tokenizer.token_of(id));
      INFO(item["step"].dump(), ": ", shown(text));
      CHECK_EQ(Json(pieces), expected);
    }
  }
}

TEST_CASE("tokenizer: each normalizer by itself") {
  const Json data = Json::parse(read(fixture("steps.json")));
  for (const Json& item : data["normalizers"]) {
    Json vocabulary = Json::object({{"<unk>", 0}});
    for (const auto& [string, text] : item["texts"].items())
      vocabulary.emplace(text.get<std::string>(), vocabulary.size());
    vocabulary.erase("");
    const Json file = {{"model",
                        {{"type", "BPE"},
                         {"vocab", vocabulary},
                         {"merges", Json::array()},
                         {"unk_token", "<unk>"},
                         {"ignore_merges", true}}},
                       {"normalizer", item["step"]}};
    const Tokenizer tokenizer(parse_tokenizer_json(file.dump(), "steps.json"));
    for (const auto& [number, expected] : item["texts"].items()) {
      const std::string& text = strings()[std::stoul(number)];
      std::string normalized;
      for (const uint32_t id : tokenizer.encode(text, false)) normalized += *tokenizer.token_of(id);
      INFO(item["step"].dump(), ": ", shown(text));
      CHECK_EQ(shown(normalized), expected.dump());
    }
  }
}

TEST_CASE("tokenizer: Metaspace knows the beginning of the text behind normalizers and splits") {
  const Json data = Json::parse(read(fixture("steps.json")));
  for (const Json& item : data["beginnings"]) {
    const Tokenizer tokenizer(parse_tokenizer_json(item["tokenizer"].dump(), "steps.json"));
    for (const auto& ids : item["ids"].items()) {
      const std::string& text = ids.key();
      const Json& expected = ids.value();
      INFO(item["tokenizer"]["normalizer"].dump(), ": ", shown(text));
      CHECK_EQ(tokenizer.encode(text, false), expected.get<std::vector<uint32_t>>());
    }
  }
}

TEST_CASE("tokenizer: any number of threads, warm or cold, the same ids") {
  for (const char* name : {"gpt2", "llama2", "unigram-bytes"}) {
    const std::string file = fixture(std::string(name) + ".json");
    const Tokenizer one_by_one(read_tokenizer_json(file)), tokenizer(read_tokenizer_json(file));
    std::vector<std::vector<uint32_t>> expected;
    for (const std::string& string : strings()) expected.push_back(one_by_one.encode(string, true));
    set_num_threads(4);
    std::vector<std::vector<uint32_t>> found(strings().size());
    parallel_for(strings().size(), 1, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) found[i] = tokenizer.encode(strings()[i], true);
    });
    set_num_threads(0);
    CHECK(found == expected);
  }
}

}  // namespace tokenizer_test
