#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {
namespace {

constexpr char kPlace[] = "{}";

struct SplitOptions final : CommandOptions {
  std::string input;
  int64_t size = 0, parts = 0;
  std::vector<std::string> lists;

  std::vector<OptionField> fields() override {
    return {
        {"size", "so many documents in each file (default: see --parts)", &size, 1},
        {"parts",
         "so many files, with about as many tokens each: what --shard i/N of other commands takes is part i "
         "(default: see --list)",
         &parts, 1, 1e6}};
  }
};

/// A file to write: the text for {} in its name, and its documents.
struct Portion {
  std::string word;
  std::vector<size_t> documents;
};

std::string name_of(const std::string& pattern, const std::string& word) {
  std::string name = pattern;
  return name.replace(name.find(kPlace), std::char_traits<char>::length(kPlace), word);
}

std::vector<Portion> portions_of(const SplitOptions& options, const Documents& documents) {
  std::vector<Portion> portions;
  for (const std::string& text : options.lists) {
    const size_t sign = text.find('=');
    if (sign == 0 || sign == std::string::npos || sign + 1 == text.size())
      throw usage_error("--list is '{}'; it must be NAME=LIST, as test=0-9 or train=@train.txt", text);
    portions.push_back(
        {text.substr(0, sign), DocumentSelection{text.substr(sign + 1)}.choose(documents, options.input)});
    const std::string name = name_of(options.output.path, portions.back().word);
    for (size_t i = 0; i + 1 < portions.size(); ++i)
      if (std::filesystem::path(name_of(options.output.path, portions[i].word)).lexically_normal() ==
          std::filesystem::path(name).lexically_normal())
        throw usage_error("--list names {} twice", name);
  }
  if (!portions.empty()) return portions;
  for (int64_t part = 1; part <= options.parts; ++part)
    portions.push_back({"", Shard{part, options.parts}.choose(documents.offsets)});
  for (size_t i = 0; i < documents.count() && options.size > 0; ++i) {
    if (i % static_cast<size_t>(options.size) == 0) portions.emplace_back();
    portions.back().documents.push_back(i);
  }
  // Their names are their numbers, from 1 on, with the same number of digits.
  const size_t digits = std::to_string(portions.size()).size();
  for (size_t i = 0; i < portions.size(); ++i) portions[i].word = fmt::format("{:0{}}", i + 1, digits);
  return portions;
}

bool has_one_place(const std::string& pattern) {
  const size_t place = pattern.find(kPlace);
  return place != std::string::npos && pattern.find(kPlace, place + 1) == std::string::npos;
}

OutputOptions output_of(const SplitOptions& options, const Portion& portion) {
  OutputOptions output = options.output;
  output.path = name_of(output.path, portion.word);
  if (!output.to.empty()) output.to = name_of(output.to, portion.word);
  return output;
}

std::string split_file(Command& command) {
  SplitOptions options;
  command.describe(
      "FILE (--size N | --parts N | --list NAME=LIST ...) -o PATTERN [options]",
      "Writes the documents of a kv or codes file into several files: so many in each, in so many files, or by lists. "
      "PATTERN is the name of these files, with {} for a number from 1 on or for the name of a list. Rows and streams "
      "are copied as they are; cat of all parts has the documents of the first file again, bit for bit.",
      "kvcodec split corpus.h5 --parts 64 -o 'shard-{}.h5'\n"
      "kvcodec split kv.h5 --list train=@train.txt --list test=0-99 -o '{}.h5'");
  command.group("Input and output");
  command.input("FILE", "kv or codes file; - is standard input", options.input);
  options.output.declare(command, "files to write, with {} for what tells them apart");
  command.group("Which documents go where");
  command.options(options, {{"size", "N"}, {"parts", "N"}});
  command.repeated(
      "list",
      "a file called NAME of the documents of LIST, as --documents of other commands takes it; may be given several times",
      options.lists, "NAME=LIST");
  command.record_as_given("list");
  options.common.declare(command);
  command.parse();
  options.check_files(command, {}, false);
  const int given = (options.size > 0) + (options.parts > 0) + !options.lists.empty();
  if (given != 1)
    throw usage_error("give one of --size, --parts and --list; it says which documents go where");
  const std::string& pattern = options.output.path;
  if (!has_one_place(pattern))
    throw usage_error("-o is '{}'; it must have {} once, for the number or the name of each file", pattern,
                      kPlace);
  if (!options.output.to.empty() && !has_one_place(options.output.to))
    throw usage_error("--to is '{}'; it must have {} once, as -o has", options.output.to, kPlace);

  const DocumentSource source(options.input);
  const std::vector<DocumentList> lists{source.list()};
  const auto portions = portions_of(options, lists.front().documents);
  for (const Portion& portion : portions) output_of(options, portion).keep({options.input});
  std::vector<CopiedFile> copied;
  LeftOver left_over;
  // An output that replaces FILE, which --force allows, comes after all others.
  std::vector<std::pair<std::unique_ptr<OutputFile>, OutputOptions>> last;
  for (const Portion& portion : portions) {
    const OutputOptions where = output_of(options, portion);
    auto output = std::make_unique<OutputFile>(where.path, where.replaces(), &left_over);
    source.copy(portion.documents, *output, command.provenance(lists.front().type.history));
    copied.push_back(copied_file(*output, {{options.input, portion.documents}}, lists));
    if (std::error_code error; std::filesystem::equivalent(options.input, where.path, error)) {
      last.emplace_back(std::move(output), where);
      continue;
    }
    output->commit();
    where.send();
  }
  for (const auto& [output, where] : last) {
    output->commit();
    where.send();
  }
  return summary(copied, options.common);
}

}  // namespace

CommandEntry split_command() {
  return {CommandGroup::documents, 5, "split", "divide the documents of a file among several", split_file};
}

}  // namespace kvcodec::cli
