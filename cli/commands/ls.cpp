// kvcodec ls FILE... [options]
//
//   --match GLOB        only documents whose name fits
//   --long              also bits per value, time, digest and metadata
//   --json              all of it
//
//   kvcodec ls codes.h5 --match 'wiki/*'
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/document_files.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

struct LsOptions final : Options {
  InputFiles inputs;
  std::string match;
  bool details = false;
  DocumentSelection documents;
  CommonOptions common;

  std::vector<OptionField> fields() override {
    return {
        {.name = "match",
         .help = "only documents whose name fits the glob: *, ? and [..] as in the shell, but that * also "
                 "stands for / (default: all)",
         .target = &match},
        {.name = "long",
         .help = "also bits per value, the time when the cache was computed, the digest of the token ids, "
                 "and metadata",
         .target = &details}};
  }
};

struct Listed {
  std::string name;  // of the file
  DocumentList list;
  std::vector<size_t> chosen;

  const Documents& documents() const { return list.documents; }
  double bits_per_value(size_t i) const {
    return list.values[i] == 0 ? 0
                               : 8 * static_cast<double>(list.bytes[i]) / static_cast<double>(list.values[i]);
  }
};

Listed list_file(const std::string& name, const LsOptions& options) {
  Listed listed{name, list_documents(name), {}};
  listed.chosen = options.documents.choose(listed.documents(), name);
  if (options.match.empty()) return listed;
  const auto fit = matching_documents(listed.documents(), options.match);
  std::erase_if(listed.chosen, [&](size_t i) { return !std::ranges::binary_search(fit, i); });
  return listed;
}

Json to_json(const Listed& listed) {
  Json documents = Json::array();
  for (const size_t i : listed.chosen) {
    const DocumentFacts facts = listed.documents().facts_of(i);
    Json document = {{"number", i},
                     {"name", listed.documents().names[i]},
                     {"tokens", listed.documents().length(i)},
                     {"bytes", listed.list.bytes[i]},
                     {"bits_per_value", listed.bits_per_value(i)},
                     {"digest", nullptr},
                     {"time", nullptr},
                     {"metadata", metadata_json(facts, fmt::format("{}: document {}", listed.name, i))}};
    if (facts.digest) document["digest"] = digest_text(facts);
    if (facts.time > 0) document["time"] = date_text(static_cast<int64_t>(facts.time));
    documents.push_back(std::move(document));
  }
  return {{"file", listed.name},
          {"type", listed.list.type.type},
          {"all_documents", listed.documents().count()},
          {"documents", documents}};
}

std::string list_text(const Listed& listed, bool details) {
  std::vector<Table::Column> columns{{"document"}, {"tokens"}, {"bytes"}};
  if (details)
    columns.insert(columns.end(), {{"bits/value"},
                                   {.title = "computed", .left = true},
                                   {.title = "digest", .left = true},
                                   {.title = "metadata", .left = true}});
  columns.push_back({.title = "name", .left = true});
  Table table(std::move(columns));
  for (const size_t i : listed.chosen) {
    std::vector<std::string> cells{fmt::format("{}", i), grouped(listed.documents().length(i)),
                                   grouped(listed.list.bytes[i])};
    if (details) {
      const DocumentFacts facts = listed.documents().facts_of(i);
      cells.insert(cells.end(),
                   {fmt::format("{:.3f}", listed.bits_per_value(i)),
                    facts.time > 0 ? date_text(static_cast<int64_t>(facts.time)) : "-",
                    facts.digest ? digest_text(facts) : "-", facts.metadata.empty() ? "-" : facts.metadata});
    }
    cells.emplace_back(listed.documents().names[i]);
    table.row(std::move(cells));
  }
  return table.text();
}

std::string ls(Command& command) {
  LsOptions options;
  command.describe(
      "FILE... [options]",
      "Lists the documents of kv and codes files: number, tokens, bytes (of keys and values, or of codes with what "
      "guards them) and name. Numbers and names are what --documents of other commands takes.",
      "kvcodec ls codes.h5\n"
      "kvcodec ls codes.h5 --match 'wiki/*' --json | jq -r '.files[].documents[].name'");
  command.group("Input");
  options.inputs.declare(command, "kv and codes files; - is standard input");
  options.documents.declare(command);
  command.group("What is shown");
  command.options(options, {{"match", "GLOB"}});
  options.common.declare(command);
  command.parse();
  options.common.apply(command, false);
  const auto names = options.inputs.all();

  Json files = Json::array();
  std::string text;
  for (const std::string& name : names) {
    const Listed listed = list_file(name, options);
    if (options.common.json) {
      files.push_back(to_json(listed));
      continue;
    }
    if (names.size() > 1) text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", printable(name));
    text += list_text(listed, options.details);
  }
  return options.common.json ? text_of({{"files", files}}) : text;
}

}  // namespace

CommandEntry ls_command() { return {CommandGroup::documents, 1, "ls", "list the documents of files", ls}; }

}  // namespace kvcodec::cli
