#include "formats/models/tokenizer_json.hpp"

#include <nlohmann/json.hpp>

#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace tokenizer_json_test {

using namespace kvcodec;
using Json = nlohmann::json;

namespace {

Json good() {
  return Json::parse(R"({
    "version": "1.0", "truncation": {"max_length": 3}, "padding": null,
    "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "a"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Removed", "invert": false},
    "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}}]},
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": 0.1, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": null,
      "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

std::string refusal(const std::string& text) {
  try {
    TokenizerSpec spec = parse_tokenizer_json(text, "t.json");
    with_context("t.json", [&] { Tokenizer tokenizer(std::move(spec)); });
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    const std::string message = error.what();
    CHECK_EQ(message.find('\n'), std::string::npos);
    return message;
  }
  return "nothing thrown";
}

// The complaint about a file in which the value at `pointer` is another; JSON null removes it.
std::string changed(const char* pointer, const Json& value) {
  Json file = good();
  const Json::json_pointer place(pointer);
  if (value.is_null()) {
    file[place.parent_pointer()].erase(place.back());
  } else {
    file[place] = value;
  }
  return refusal(file.dump());
}

}  // namespace

TEST_CASE("tokenizer.json: a good file, and what it leaves open") {
  const Tokenizer tokenizer(parse_tokenizer_json(good().dump(), "t.json"));
  CHECK_EQ(tokenizer.encode("ab xb<s>a a a a", true),
           std::vector<uint32_t>{3, 2, 2, 3, 0, 0, 0, 0});      // dropout, truncation: no
  CHECK_EQ(changed("/model/type", nullptr), "nothing thrown");  // files of the first versions
  CHECK_EQ(changed("/model/merges", Json::array({Json::array({"a", "b"})})), "nothing thrown");
  CHECK_EQ(changed("/model/merges", Json::array({"#version: 0.2", "a b"})), "nothing thrown");
  for (const char* part :
       {"/added_tokens", "/normalizer", "/pre_tokenizer", "/decoder", "/version", "/truncation"}) {
    if (std::string(part) == "/added_tokens") continue;  // the template names one
    CHECK_EQ(changed(part, nullptr), "nothing thrown");
  }
}

TEST_CASE("tokenizer.json: what is not supported is refused with its place and what is") {
  CHECK_EQ(changed("/model/type", "WordPiece"),
           "t.json: /model: type \"WordPiece\" is not supported; supported: BPE, Unigram");
  CHECK_EQ(changed("/normalizer/normalizers/1/type", "StripAccents"),
           "t.json: /normalizer/normalizers/1: type \"StripAccents\" is not supported; supported: Sequence, "
           "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase, Precompiled");
  CHECK_EQ(changed("/pre_tokenizer/type", "UnicodeScripts"),
           "t.json: /pre_tokenizer: type \"UnicodeScripts\" is not supported; supported: Sequence, "
           "ByteLevel, Split, Punctuation, Digits, Metaspace, Whitespace, WhitespaceSplit");
  CHECK_EQ(changed("/post_processor/processors/0/type", "BertProcessing"),
           "t.json: /post_processor/processors/0: type \"BertProcessing\" is not supported; supported: "
           "Sequence, TemplateProcessing, ByteLevel");
  CHECK_EQ(changed("/decoder/type", "CTC"),
           "t.json: /decoder: type \"CTC\" is not supported; supported: Sequence, ByteLevel, ByteFallback, "
           "Fuse, Replace, Strip, Metaspace");
  CHECK_EQ(changed("/model/continuing_subword_prefix", "##"),
           "t.json: /model/continuing_subword_prefix: is \"##\"; only the empty string is supported");
  CHECK_EQ(changed("/model/end_of_word_suffix", "</w>"),
           "t.json: /model/end_of_word_suffix: is \"</w>\"; only the empty string is supported");
  CHECK_EQ(changed("/version", "2.0"), "t.json: /version: is \"2.0\"; only \"1.0\" is known");
  CHECK_EQ(changed("/pre_tokenizer/behavior", "Sideways"),
           "t.json: /pre_tokenizer/behavior: is \"Sideways\"; expected Isolated, Removed, "
           "MergedWithPrevious, MergedWithNext or Contiguous");
  CHECK_EQ(changed("/pre_tokenizer/pattern", {{"Glob", "*"}}),
           "t.json: /pre_tokenizer/pattern: has neither \"String\" nor \"Regex\"");
  CHECK_EQ(changed("/pre_tokenizer/pattern/Regex", "(a"),
           "t.json: regular expression \"(a\": a '(' without its ')' at byte 2 is not supported");
  CHECK_EQ(changed("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}),
           "t.json: /pre_tokenizer/replacement: is \"__\"; expected one character");
  CHECK_EQ(
      changed("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "second"}}),
      "t.json: /pre_tokenizer/prepend_scheme: is \"second\"; expected first, never or always");
  CHECK_EQ(
      changed("/pre_tokenizer", {{"type", "Metaspace"},
                                 {"replacement", "_"},
                                 {"prepend_scheme", "first"},
                                 {"add_prefix_space", false}}),
      "t.json: /pre_tokenizer/prepend_scheme: contradicts \"add_prefix_space\": false; expected \"never\"");
}

TEST_CASE("tokenizer.json: a template of two million tokens is refused at once") {
  const auto with_template = [](size_t templates, size_t pieces, size_t ids) {
    Json step = good()["post_processor"]["processors"][1];
    step["special_tokens"]["<s>"]["ids"] = std::vector<uint32_t>(ids, 3);
    step["single"] = Json::array({{{"Sequence", {{"id", "A"}}}}});
    for (size_t i = 0; i < pieces; ++i) step["single"].push_back({{"SpecialToken", {{"id", "<s>"}}}});
    Json steps = Json::array();
    for (size_t i = 0; i < templates; ++i) steps.push_back(step);
    return changed("/post_processor/processors", steps);
  };
  const std::string single = "t.json: /post_processor/processors/";
  CHECK_EQ(with_template(1, 1, 1024), "nothing thrown");
  CHECK_EQ(with_template(2, 8, 64), "nothing thrown");
  CHECK_EQ(with_template(1, 1, 20'000),
           single + "0/single/1: puts token 20000 around a text; at most 1024 are plausible");
  // Pieces and ids multiply.
  CHECK_EQ(with_template(1, 2000, 1024),
           single + "0/single/2: puts token 2048 around a text; at most 1024 are plausible");
  CHECK_EQ(with_template(1, 2000, 1),
           single + "0/single/1025: puts token 1025 around a text; at most 1024 are plausible");
  CHECK_EQ(with_template(1100, 1, 1),
           single + "1024/single/1: puts token 1025 around a text; at most 1024 are plausible");
}

TEST_CASE("tokenizer.json: a Unigram model, and what is wrong with others") {
  const auto file = [](const Json& vocabulary, const Json& unknown = 0) {
    return Json{{"model", {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", vocabulary}}}}.dump();
  };
  const Json good = Json::parse(R"([["<unk>", 0], ["a", -1], ["b", -1.5], ["ab", -3]])");
  const Tokenizer tokenizer(parse_tokenizer_json(file(good), "t.json"));
  CHECK_EQ(tokenizer.encode("abxyb", false), std::vector<uint32_t>{1, 2, 0, 2});
  CHECK_EQ(refusal(file(good, nullptr)), "nothing thrown");  // wrong only where a character is unknown
  CHECK_EQ(refusal(file(good, 4)),
           "t.json: the unknown token has id 4, which is not a token's (ids below 4)");
  CHECK_EQ(refusal(file(good, -1)),
           "t.json: /model/unk_id: is number; expected a number from 0 to 4294967295");
  CHECK_EQ(refusal(file(Json::array())), "t.json: a unigram model without tokens");
  CHECK_EQ(refusal(file(Json::object())), "t.json: /model/vocab: is object; expected a list");
  CHECK_EQ(refusal(file(Json::parse(R"([["a", -1], ["a", -2]])"))), "t.json: token \"a\" is given twice");
  const std::string expected = "; expected [\"token\", score]";
  for (const char* entry : {R"("a")", R"(["a"])", R"(["a",null])", R"(["a",-1,0])", R"([-1,"a"])"}) {
    const std::string message =
        refusal(R"({"model":{"type":"Unigram","vocab":[["x",0],)" + std::string(entry) + "]}}");
    CHECK_EQ(message, "t.json: /model/vocab: token 1 is \"" + std::string(entry) + "\"" + expected);
  }
  CHECK_NE(refusal(R"({"model":{"type":"Unigram","vocab":[["x",1e999]]}})"), "nothing thrown");
  const std::string huge(1025, 'a');
  CHECK_EQ(refusal(file(Json::parse("[[\"" + huge + "\", -1]]"))),
           "t.json: token \"" + huge.substr(0, 60) + "\"... has 1025 bytes; at most 1024 in a unigram model");
}

TEST_CASE("tokenizer.json: a Precompiled normalizer, and what is wrong with others") {
  const auto with_map = [](const std::string& base64) {
    return changed("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", base64}});
  };
  CHECK_EQ(with_map("BAAAAAAAAAA="), "nothing thrown");  // a trie of one unit, no replacements
  CHECK_EQ(changed("/normalizer", {{"type", "Precompiled"}}),
           "t.json: /normalizer: \"precompiled_charsmap\" is missing");
  const std::string place = "t.json: /normalizer/precompiled_charsmap: ";
  CHECK_EQ(with_map("BAAAAAAAAAA"), place + "has 11 digits; expected a multiple of 4");
  CHECK_EQ(with_map("BAAA*AAAAAA="), place + "digit 4 is not one of base 64");
  CHECK_EQ(with_map("BA=AAAAAAAA="), place + "digit 2 is not one of base 64");
  CHECK_EQ(with_map(""), "t.json: the character map has 0 bytes; expected 4 or more");
  CHECK_EQ(with_map("AAAAAAAAAAA="), "t.json: the trie of the character map has 0 bytes; expected 4 to 4");
  CHECK_EQ(with_map("CAAAAAAAAAA="), "t.json: the trie of the character map has 8 bytes; expected 4 to 4");
  CHECK_EQ(with_map("BAAAAAAAAAD/"), "t.json: the replacements of the character map are not UTF-8");
}

TEST_CASE("tokenizer.json: fields that are missing or of another type") {
  CHECK_EQ(changed("/model", nullptr), "t.json: /: \"model\" is missing");
  CHECK_EQ(changed("/model/vocab", nullptr), "t.json: /model: \"vocab\" is missing");
  CHECK_EQ(changed("/model/merges", nullptr), "t.json: /model: \"merges\" is missing");
  CHECK_EQ(changed("/model", 7), "t.json: /model: is number; expected an object");
  CHECK_EQ(changed("/model/vocab", Json::array()), "t.json: /model/vocab: is array; expected an object");
  CHECK_EQ(changed("/model/merges", "a b"), "t.json: /model/merges: is string; expected a list");
  CHECK_EQ(changed("/model/merges/0", "ab"),
           "t.json: /model/merges: merge 0 is \"\"ab\"\"; expected \"left right\" or [\"left\", \"right\"]");
  CHECK_EQ(
      changed("/model/merges/0", "a b c"),
      "t.json: /model/merges: merge 0 is \"\"a b c\"\"; expected \"left right\" or [\"left\", \"right\"]");
  CHECK_EQ(
      changed("/model/merges/0", Json::array({"a", 1})),
      "t.json: /model/merges: merge 0 is \"[\"a\",1]\"; expected \"left right\" or [\"left\", \"right\"]");
  CHECK_EQ(changed("/model/vocab/b", "1"),
           "t.json: /model/vocab: the id of \"b\" is \"\"1\"\"; expected a number from 0 to 4294967295");
  CHECK_EQ(changed("/model/vocab/b", -1),
           "t.json: /model/vocab: the id of \"b\" is \"-1\"; expected a number from 0 to 4294967295");
  CHECK_EQ(changed("/model/vocab/b", 4294967296),
           "t.json: /model/vocab: the id of \"b\" is \"4294967296\"; expected a number from 0 to 4294967295");
  CHECK_EQ(changed("/model/byte_fallback", "yes"),
           "t.json: /model/byte_fallback: is string; expected true or false");
  CHECK_EQ(changed("/model/unk_token", 0), "t.json: /model/unk_token: is number; expected a string");
  CHECK_EQ(changed("/added_tokens", "x"), "t.json: /added_tokens: is string; expected a list");
  for (const char* key : {"id", "content", "special", "normalized", "single_word", "lstrip", "rstrip"}) {
    CHECK_EQ(changed(("/added_tokens/0/" + std::string(key)).c_str(), nullptr),
             "t.json: /added_tokens/0: \"" + std::string(key) + "\" is missing");
  }
  CHECK_EQ(changed("/added_tokens/0/id", 1.5),
           "t.json: /added_tokens/0/id: is number; expected a number from 0 to 4294967295");
  CHECK_EQ(changed("/normalizer/normalizers", nullptr), "t.json: /normalizer: \"normalizers\" is missing");
  CHECK_EQ(changed("/normalizer/normalizers/1/content", nullptr),
           "t.json: /normalizer/normalizers/1: \"content\" is missing");
  CHECK_EQ(changed("/pre_tokenizer/invert", nullptr), "t.json: /pre_tokenizer: \"invert\" is missing");
  CHECK_EQ(changed("/pre_tokenizer", "ByteLevel"), "t.json: /pre_tokenizer: is string; expected an object");
  CHECK_EQ(changed("/pre_tokenizer/type", nullptr).substr(0, 50),
           "t.json: /pre_tokenizer: type \"\" is not supported; ");
  const std::string single = "/post_processor/processors/1/single";
  CHECK_EQ(changed((single + "/1").c_str(), {{"Sequence", {{"id", "B"}}}}),
           "t.json: " + single + "/1: expected sequence A once");
  CHECK_EQ(changed(single.c_str(), Json::array()),
           "t.json: " + single + ": the text itself (sequence A) is missing");
  CHECK_EQ(changed("/post_processor/processors/1/special_tokens", Json::object()),
           "t.json: /post_processor/processors/1/special_tokens: \"<s>\" is missing");
}

TEST_CASE("tokenizer.json: ids and merges that do not fit together") {
  CHECK_EQ(changed("/model/vocab/b", 0).substr(0, 16),
           "t.json: tokens \"");                                // the order of the two is that of the file
  CHECK_EQ(changed("/model/vocab/b", 1000), "nothing thrown");  // ids may have holes
  CHECK_EQ(changed("/model/vocab/b", 100000000),
           "t.json: token \"b\" has id 100000000; ids must be below 16777216");
  CHECK_EQ(changed("/model/merges/0", "b c"),
           "t.json: merge 0 of \"b\" and \"c\": the part \"c\" is not in the vocabulary");
  CHECK_EQ(changed("/model/merges/0", "b a"),
           "t.json: merge 0 of \"b\" and \"a\": what they make, \"ba\" is not in the vocabulary");
  CHECK_EQ(changed("/added_tokens/0/id", 1),
           "t.json: added token \"<s>\" has id 1, which is that of \"b\" in the vocabulary");
  CHECK_EQ(changed("/added_tokens/0/content", "b"),
           "t.json: added token \"b\" has id 3, but id 1 in the vocabulary");
  CHECK_EQ(changed("/post_processor/processors/1/special_tokens/<s>/ids", Json::array({77})),
           "t.json: the template's id 77 is not a token's");
  CHECK_EQ(refusal(R"({"model": {"vocab": {"a": 0, "b": 1, "a": 2}, "merges": []}})"),
           "t.json: field 'a' is there twice");
}

TEST_CASE("tokenizer.json: what is no JSON, or no file") {
  CHECK(refusal("").starts_with("t.json: not JSON"));
  CHECK(refusal("{\"model\": ").starts_with("t.json: not JSON"));
  CHECK(refusal("{\"model\": \"\xff\"}").starts_with("t.json: not JSON"));
  CHECK_EQ(refusal("[]"), "t.json: holds a JSON array; it must be an object");
  CHECK_EQ(refusal("{}"), "t.json: /: \"model\" is missing");
  CHECK(refusal(std::string(100000, '[')).starts_with("t.json: not JSON"));
  Json nested = {{"type", "NFC"}};
  for (int i = 0; i < 50; ++i) nested = {{"type", "Sequence"}, {"normalizers", Json::array({nested})}};
  CHECK(changed("/normalizer", nested).ends_with("Sequences are nested too deeply"));
  const auto steps = [](const char* member, const Json& step, size_t count) {
    return Json{{"type", "Sequence"}, {member, std::vector(count, step)}};
  };
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}}, nfc = {{"type", "NFC"}},
             fuse = {{"type", "Fuse"}};
  CHECK_EQ(changed("/pre_tokenizer", steps("pretokenizers", digits, 100)), "nothing thrown");
  CHECK_EQ(changed("/pre_tokenizer", steps("pretokenizers", digits, 101)),
           "t.json: /pre_tokenizer/pretokenizers/100: is step 101; at most 100");
  CHECK(changed("/normalizer", steps("normalizers", nfc, 101)).ends_with("is step 101; at most 100"));
  CHECK(changed("/decoder", steps("decoders", fuse, 101)).ends_with("is step 101; at most 100"));
  const auto message_of = [](const std::string& file) -> std::string {
    try {
      read_tokenizer_json(file);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return error.what();
    }
    return "nothing thrown";
  };
  CHECK_EQ(message_of("/nowhere/tokenizer.json"),
           "/nowhere/tokenizer.json: cannot be read: No such file or directory");
  CHECK_EQ(message_of("/"), "/: cannot be read: Is a directory");
}

}  // namespace tokenizer_json_test
