// Command lines: bound, read and refused options; lists of names; codecs in one word; text for terminals.
#include "cli/frame/command.hpp"

#include <stdexcept>

#include "cli/codecs/codec_spec.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace kvcodec::cli::command_test {
namespace {

struct Settings final : Options {
  std::string output = "none";
  int64_t number = 3;
  bool loud = false, bias = true;

  std::vector<OptionField> fields() override {
    return {{"number", "a number", &number, 1, 9},
            {"loud", "says more", &loud},
            {"bias", "leave out the bias", &bias}};
  }
};

/// A command with all kinds of options, parsed.
struct Parsed {
  Settings settings;
  std::string input;
  std::vector<std::string> texts;

  explicit Parsed(std::vector<std::string> words) {
    Command command("try", "tries", std::move(words));
    command.describe("IN", "Tries.", "kvcodec try in");
    command.input("IN", "a file", input);
    command.option({.name = "output", .help = "a file", .target = &settings.output}, "FILE", 'o');
    command.options(settings);
    command.repeated("text", "files", texts, "PATH");
    command.refuse("sharp", "--sharp is for others");
    command.parse();
  }
};

std::string refusal(std::vector<std::string> words) {
  try {
    Parsed{std::move(words)};
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "none";
}

TEST_CASE("words of a command line go to their options") {
  const Parsed parsed({"in", "-o", "x", "--number=5", "--loud", "--no-bias", "--text", "a", "--text", "-"});
  CHECK_EQ(parsed.input, "in");
  CHECK_EQ(parsed.settings.output, "x");
  CHECK_EQ(parsed.settings.number, 5);
  CHECK(parsed.settings.loud);
  CHECK_FALSE(parsed.settings.bias);
  CHECK_EQ(parsed.texts, std::vector<std::string>{"a", "-"});
  CHECK_EQ(Parsed({"-ox", "in"}).settings.output, "x");
  CHECK_EQ(Parsed({"in", "-o", "./--loud"}).settings.output, "./--loud");
  CHECK_EQ(Parsed({"in", "--output", "--dash"}).settings.output, "--dash");
  CHECK_EQ(Parsed({"-o", "", "in"}).settings.output, "");
  CHECK_EQ(Parsed({"--", "-in"}).input, "-in");
  CHECK_EQ(Parsed({"-"}).input, "-");
}

TEST_CASE("what is wrong with a command line is said in one line") {
  CHECK_EQ(refusal({"in", "--numbr", "5"}), "there is no option --numbr; did you mean --number?");
  CHECK_EQ(refusal({"in", "--numbr=5"}), "there is no option --numbr; did you mean --number?");
  CHECK_EQ(refusal({"in", "--no-bais"}), "there is no option --no-bais; did you mean --no-bias?");
  CHECK_EQ(refusal({"in", "--xyzzy"}),
           "there is no option --xyzzy; 'kvcodec help try' lists those there are");
  CHECK_EQ(refusal({"in", "-x"}), "there is no option -x; 'kvcodec help try' lists those there are");
  CHECK_EQ(refusal({"in", "--sharp", "5"}), "--sharp is for others");
  CHECK_EQ(refusal({"in", "--number", "1", "--number=2"}), "--number is given more than once");
  CHECK_EQ(refusal({"in", "--number"}), "--number needs a value");
  CHECK_EQ(refusal({"in", "-o"}), "-o needs a value");
  CHECK_EQ(refusal({"in", "--number", "0"}), "--number is 0; it must be between 1 and 9");
  CHECK_EQ(refusal({"in", "--number", "two"}), "--number is 'two'; it must be an integer");
  CHECK_EQ(refusal({"in", "more"}), "'more' is one argument too many; usage: kvcodec try IN");
  CHECK_EQ(refusal({"--", "in", "-more"}), "'-more' is one argument too many; usage: kvcodec try IN");
  CHECK_EQ(refusal({"--loud"}), "IN is missing (a file); usage: kvcodec try IN");
}

TEST_CASE("an option is no value of another") {
  const std::string end = " is an option (a file of that name is ./";
  CHECK_EQ(refusal({"in", "-o", "--loud"}), "--output needs a value; --loud" + end + "--loud)");
  CHECK_EQ(refusal({"in", "-o", "--no-bias"}), "--output needs a value; --no-bias" + end + "--no-bias)");
  CHECK_EQ(refusal({"in", "--text", "--number=2"}), "--text needs a value; --number=2" + end + "--number=2)");
}

TEST_CASE("an option that is bound twice is a defect of the program") {
  Settings settings, others;
  Command command("try", "tries", {});
  command.options(settings);
  CHECK_THROWS_AS(command.options(others), std::logic_error);
  std::vector<std::string> words;
  CHECK_THROWS_AS(command.repeated("loud", "", words, "X"), std::logic_error);
  bool flag = false;
  CHECK_THROWS_AS(command.option({.name = "no-bias", .help = "", .target = &flag}), std::logic_error);
  CHECK_THROWS_AS(command.option({.name = "help", .help = "", .target = &flag}), std::logic_error);
  CHECK_THROWS_AS(command.given("bais"), std::logic_error);
  CHECK_NOTHROW(command.option({.name = "more", .help = "", .target = &flag}));
}

TEST_CASE("a history has URLs without their secrets, and no --to") {
  Command command("try", "tries",
                  {"https://me:word@host/kv.h5?Signature=1", "--book=https://host/b.h5?key=2", "--documents",
                   "https://site/page?id=3", "--to", "s3://bucket/x.h5", "--loud", "a?b", "--codec",
                   "transform:book=https://me:word@host/b.h5?sig=4,bits=0.5"});
  command.keep_out_of_history("to", true);
  command.record_as_given("documents");
  CHECK_EQ(
      command.history_line(),
      "kvcodec try https://host/kv.h5 --book=https://host/b.h5 --documents 'https://site/page?id=3' --loud 'a?b' "
      "--codec transform:book=https://host/b.h5,bits=0.5");
}

TEST_CASE("a training's own seed stands in the place of the common one") {
  Settings settings;
  int64_t seed = 1;
  Command command("try", "tries", {"--seed", "7"});
  command.option({.name = "seed", .help = "of the training", .target = &seed});
  CommonOptions common;
  common.declare(command, false);
  command.parse();
  CHECK_EQ(seed, 7);
  CHECK_EQ(common.seed, 0);
  Command twice("try", "tries", {});
  twice.option({.name = "seed", .help = "of the training", .target = &seed});
  CHECK_THROWS_AS(common.declare(twice), std::logic_error);
}

std::vector<size_t> chosen(const std::string& text) {
  Documents documents;
  for (const char* name : {"a", "a,b.txt", "b.txt", "3", "back\\", "a"}) documents.add(name, 1);
  DocumentSelection selection;
  selection.text = text;
  return selection.choose(documents, "file");
}

TEST_CASE("documents are chosen by number, range and name, with commas in names") {
  using Chosen = std::vector<size_t>;
  CHECK_EQ(chosen(""), Chosen{0, 1, 2, 3, 4, 5});
  CHECK_EQ(chosen("a,b.txt"), Chosen{1});  // a name that matches as a whole wins over a list
  CHECK_EQ(chosen("b.txt,a"), Chosen{0, 2, 5});
  CHECK_EQ(chosen("a\\,b.txt,b.txt"), Chosen{1, 2});
  CHECK_EQ(chosen("back\\\\,4"), Chosen{4});
  CHECK_EQ(chosen("back\\"), Chosen{4});
  CHECK_EQ(chosen("3"), Chosen{3});
  CHECK_EQ(chosen("4-5,0"), Chosen{0, 4, 5});
  CHECK_THROWS_AS(chosen("a\\,a"), Error);
  CHECK_THROWS_AS(chosen("6"), Error);
}

TEST_CASE("an empty list of documents names none, and without the option all are chosen") {
  Documents documents;
  for (const char* name : {"a", "b"}) documents.add(name, 1);
  const auto chosen_by = [&](std::vector<std::string> words) {
    Command command("try", "tries", std::move(words));
    DocumentSelection selection;
    selection.declare(command);
    command.parse();
    return selection.choose(documents, "file");
  };
  CHECK_EQ(chosen_by({}), std::vector<size_t>{0, 1});
  CHECK_EQ(chosen_by({"--documents", ""}), std::vector<size_t>{});
  CHECK_EQ(chosen_by({"--documents", "1"}), std::vector<size_t>{1});
}

TEST_CASE("numbers of documents are put into words that name no others") {
  Documents documents;
  for (const char* name : {"1", "2", "3", "0", "4-5", "04-5", "f", "0,02", "0,1"}) documents.add(name, 1);
  const auto words = [&](const std::vector<size_t>& numbers) {
    DocumentSelection selection;
    selection.text = words_for(documents, numbers);
    CHECK_EQ(selection.choose(documents, "file"), numbers);
    return selection.text;
  };
  CHECK_EQ(words({7, 8}), "7-8");
  CHECK_EQ(words({0, 2}), "00,02");
  CHECK_EQ(words({4, 5, 6}), "4-6");
  CHECK_EQ(words({4, 5}), "004-5");
  CHECK_EQ(words({0, 1, 2, 3, 4, 5, 6, 7, 8}), "0-8");
  for (size_t i = 0; i < documents.count(); ++i) CHECK(!words({i}).empty());
}

TEST_CASE("codecs are found by name, and what was meant by a slip") {
  const auto message = [](const std::string& word) -> std::string {
    try {
      return codec_named(word).name;
    } catch (const Error& error) {
      return error.what();
    }
  };
  CHECK_EQ(message("kivi:bits=2"), "kivi");
  CHECK_EQ(message("kivy"), "'kivy' is not a codec; did you mean kivi?");
  CHECK_EQ(message("kivi,bits=2"), "the options of a codec come after a colon: kivi:bits=2");
  CHECK(message("frobnicate").starts_with("'frobnicate' is not a codec; choose one of: none, sparse,"));
}

TEST_CASE("what is printed is one line of plain text") {
  CHECK_EQ(printable("caf\xc3\xa9 \xe2\x82\xac"), "caf\xc3\xa9 \xe2\x82\xac");
  CHECK_EQ(printable("a\tb\nc\rd\x1b[2J\x7f"), "a\\tb\\nc\\x0dd\\x1b[2J\\x7f");
  CHECK_EQ(printable("\x93NUMPY"), "\\x93NUMPY");
  CHECK_EQ(printable("x\xc2\x9by\xc2\xa0"), "x\\x9by\xc2\xa0");  // U+009B begins a command of a terminal too
  CHECK_EQ(printable("\xff\xfe"), "\\xff\\xfe");
}

TEST_CASE("a message that repeats what is very long says how much of it is left out") {
  const std::string longest(8192, 'x');
  CHECK_EQ(message_text(longest), longest);
  const std::string name(400'000, 'd');
  CHECK_EQ(message_text(name + ": cannot be read"),
           name.substr(0, 1024) + " (397968 bytes left out) " + name.substr(0, 1008) + ": cannot be read");
  std::string euros;
  for (int i = 0; i < 5000; ++i) euros += "\xe2\x82\xac";
  CHECK_EQ(printable(message_text(euros)), message_text(euros));
}

TEST_CASE("histories: each line once, where it came first") {
  CHECK(merged_history({{"a", "b"}, {}, {"b", "c", "a"}, {"c", "d"}}) ==
        std::vector<std::string>{"a", "b", "c", "d"});
}

}  // namespace
}  // namespace kvcodec::cli::command_test
