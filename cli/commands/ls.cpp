#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"

namespace kvcodec::cli {
namespace {

struct LsOptions final : CommandOptions {
  InputFiles inputs;
  std::string match;
  bool details = false;

  std::vector<OptionField> fields() override {
    return {{"match",
             "only documents whose name fits the glob: *, ? and [..] as in the shell, but that * also stands "
             "for / (default: all)",
             &match},
            {"long",
             "also bits per value, the time when the cache was computed, the digest of the token ids, and "
             "metadata",
             &details}};
  }
};

/// A document of a file. Metadata that are not a JSON object are an error only if they are shown as JSON.
Measures measures_of(const std::string& file, const DocumentList& list, size_t i, const LsOptions& options) {
  const DocumentFacts facts = list.documents.facts_of(i);
  const std::string digest = facts.digest ? hex_of(*facts.digest) : "";
  const std::string time = facts.time > 0 ? date_text(static_cast<int64_t>(facts.time)) : "";
  const uint64_t state = bytes_of(facts.state);
  const double bits = list.values[i] == 0 ? 0
                                          : 8 * static_cast<double>(list.bytes[i] - state) /
                                                static_cast<double>(list.values[i]);
  const auto detail = [&](const char* title, bool left = true) {
    return options.details ? Table::Column{.title = title, .left = left} : Table::Column{};
  };
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  return {{"number", i},
          {"name", list.documents.names[i]},
          number_of("tokens", {"tokens"}, list.documents.length(i)),
          number_of("bytes", {"bytes"}, list.bytes[i]),
          {"state_bytes", state},
          decimal("bits_per_value", detail("bits/value", false), bits, 3),
          {"digest", digest.empty() ? Json() : Json(digest)},
          {"time", time.empty() ? Json() : Json(time), detail("computed"), or_dash(time)},
          word(nullptr, detail("digest"), or_dash(digest)),
          {"metadata",
           options.common.json ? metadata_json(facts, fmt::format("{}: document {}", file, i)) : Json(),
           detail("metadata"), or_dash(facts.metadata)},
          word(nullptr, {.title = "name", .left = true}, list.documents.names[i])};
}

std::string ls(Command& command) {
  LsOptions options;
  command.describe(
      "FILE... [options]",
      "Lists the documents of kv and codes files: number, tokens, bytes (of keys and values, or of codes with what "
      "guards them, and of state) and name. Numbers and names are what --documents of other commands takes.",
      "kvcodec ls codes.h5\n"
      "kvcodec ls kv.h5 --match 'wiki/*' --json | jq -r '.files[].documents[].name'");
  command.group("Input");
  options.inputs.declare(command, "kv and codes files; - is standard input");
  options.documents.declare(command);
  command.group("What is shown");
  command.options(options, {{"match", "GLOB"}});
  options.common.declare(command);
  command.parse();
  options.common.apply(command, false);
  const auto names = options.inputs.all();

  DocumentList blank;  // a list without documents has its columns too
  blank.documents.add("", 0);
  blank.bytes = blank.values = {0};
  Json files = Json::array();
  std::string text;
  for (const std::string& name : names) {
    const DocumentList list = list_documents(name);
    Json documents = Json::array();
    MeasureTable table("document");
    bool any = false;
    const auto fit =
        options.match.empty() ? std::vector<size_t>() : matching_documents(list.documents, options.match);
    for (const size_t i : options.documents.choose(list.documents, name)) {
      if (!options.match.empty() && !std::ranges::binary_search(fit, i)) continue;
      any = true;
      const Measures measures = measures_of(name, list, i, options);
      if (options.common.json)
        documents.push_back(json_of(measures));
      else
        table.row(fmt::format("{}", i), measures);
    }
    Json& file = files.emplace_back(
        Json{{"file", name}, {"type", list.type.type}, {"all_documents", list.documents.count()}});
    file.update(json_of(note_spare(options.common, name, list)));
    file["documents"] = documents;
    if (names.size() > 1) text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", printable(name));
    if (!any) table.columns(measures_of("", blank, 0, options));
    text += table.text();
  }
  return options.common.json ? text_of({{"files", files}}) : text;
}

}  // namespace

CommandEntry ls_command() { return {CommandGroup::documents, 1, "ls", "list the documents of files", ls}; }

}  // namespace kvcodec::cli
