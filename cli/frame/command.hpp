// The command line of one subcommand: its help page, its options, its errors. CLI11 splits the words; only command.cpp uses it.
//
// A subcommand describes itself (describe, group, input, option …) and calls parse(). Options are bound to members through
// lib/core/options.hpp, so names, defaults and ranges in the help are those of the code. Every error in the command line is thrown
// as a one-line Error(usage); a misspelt option comes with a suggestion.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/cache/header.hpp"
#include "lib/core/options.hpp"
#include "lib/core/team.hpp"

namespace kvcodec::cli {

/// An entry of a help page: "-o, --output FILE", and its explanation.
struct HelpEntry {
  std::string left, help;
};

/// Ends a subcommand whose help was requested; the page, which shows the entries, goes to standard output.
struct HelpWanted {
  std::string page;
  std::vector<HelpEntry> entries;
};

/// The exit status of a command that is done, but for damaged documents that it left out.
inline constexpr int kDamageLeftOut = 5;

class Command {
 public:
  /// arguments: the words after the subcommand's name. team: the processes that run it; outlives this object.
  Command(std::string name, std::string summary, std::vector<std::string> arguments,
          const Team& team = alone());
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  const std::string& name() const { return name_; }
  const Team& team() const { return team_; }

  /// The text around the options: the rest of the usage line after the name, paragraphs, and lines of an example.
  void describe(std::string synopsis, std::string description, std::string example) {
    synopsis_ = std::move(synopsis), description_ = std::move(description), example_ = std::move(example);
  }

  /// Options added from here on are shown under this title.
  void group(std::string title) { groups_.push_back({std::move(title), {}}); }

  /// A positional argument; required.
  void input(const std::string& name, const std::string& help, std::string& target);
  /// The last positional arguments; at least one, if they are required.
  void inputs(const std::string& name, const std::string& help, std::vector<std::string>& target,
              bool required = true);

  /// Binds --name (and -letter) to the field's member. value: the name of the argument in the help; empty = derived from the type.
  /// Throws std::logic_error for a name that is already bound, because two members would compete for it.
  void option(const OptionField& field, std::string_view value = {}, char letter = 0);
  /// An option that may be given several times. greedy: also with several values at once (not together with positional arguments).
  void repeated(const std::string& name, const std::string& help, std::vector<std::string>& target,
                std::string_view value, bool greedy = false);
  /// All fields, or those of an options struct. values: names of the arguments of some of them in the help.
  void options(const std::vector<OptionField>& fields,
               const std::map<std::string, std::string>& values = {}) {
    for (const auto& field : fields) {
      const auto value = values.find(field.name);
      option(field, value == values.end() ? std::string_view{} : std::string_view{value->second});
    }
  }
  void options(Options& fields, const std::map<std::string, std::string>& values = {}) {
    options(fields.fields(), values);
  }
  /// Shows options in the help without accepting them: those of codecs that were not chosen.
  void show(Options& fields) {
    for (const auto& field : fields.fields()) entry(field, {}, 0);
  }
  /// Explains an option that is refused here although other commands have it.
  void refuse(const std::string& name, const std::string& reason) {
    refused_.emplace_back("--" + name, reason);
  }

  /// The value of an option before parsing, "" if it is absent: used to decide which options exist.
  std::string peek(std::string_view name) const;
  /// True if an option was given; call it after parse().
  bool given(const std::string& name) const;
  /// True if --help or -h is among the arguments.
  bool help_wanted() const {
    const auto last = std::ranges::find(arguments_, "--");
    return std::any_of(arguments_.begin(), last,
                       [](const auto& word) { return word == "--help" || word == "-h"; });
  }
  /// Lists --help itself in the page.
  void show_help_switch() { current_group().entries.push_back({"-h, --help", "show this page"}); }

  /// Reads the arguments into the members. Throws HelpWanted if help is among them, else Error(usage) for every error.
  void parse();

  /// This run's line in the history of its output: the arguments as given, quoted if a shell needs it, without the options that
  /// cannot change the output (--threads, --memory, --device, --quiet, --json, --overwrite, --force, --verify, --skip-existing,
  /// --to), and URLs without user, password and query.
  std::string history_line() const { return words() + history_end_; }
  /// The same in the form that files store: words that take too much room are cut (formats/cache/header.hpp, history_words).
  std::string stored_line() const { return kvcodec::history_line(history_words(words()) + history_end_); }
  /// Adds words to the end of that line: values that the run found, if the output depends on them.
  void add_to_history(const std::string& words) { history_end_ += " " + words; }
  /// Keeps an option of this command out of the history, because the output is the same with and without it.
  void keep_out_of_history(const std::string& name, bool has_value) { unrecorded_["--" + name] = has_value; }
  /// Records the values of an option unchanged, although they may look like URLs: names of documents.
  void record_as_given(const std::string& name) { recorded_as_given_.push_back("--" + name); }
  /// Sets the exit status of a run without errors: 0, or bits that the command's page explains.
  void set_status(int status) { status_ = status; }
  int status() const { return status_; }
  Provenance provenance(std::vector<std::string> history = {}) const {
    return {stored_line(), std::move(history)};
  }

 private:
  struct Group {
    std::string title;
    std::vector<HelpEntry> entries;
  };
  struct Parser;  // CLI11, and the options that it fills

  Group& current_group() {
    if (groups_.empty()) group("Arguments");
    return groups_.back();
  }
  void entry(const OptionField& field, std::string_view value, char letter);
  [[noreturn]] void show_help() const;
  void read_words();
  [[noreturn]] void refuse_option(const std::string& word) const;
  void check_left_over() const;
  std::string words() const;

  std::string name_, summary_, synopsis_, description_, example_, history_end_;
  /// Options that are not part of the history, and whether they have a value.
  std::map<std::string, bool> unrecorded_{
      {"--quiet", false},  {"--json", false},   {"--overwrite", false},
      {"--force", false},  {"--verify", false}, {"--skip-existing", false},
      {"--threads", true}, {"--memory", true},  {"--device", true}};
  std::vector<std::string> recorded_as_given_;
  std::vector<std::string> arguments_;
  const Team& team_;
  int status_ = 0;
  std::unique_ptr<Parser> parser_;
  std::vector<Group> groups_;
  std::vector<HelpEntry> required_;  ///< positional arguments
  std::vector<std::pair<std::string, std::string>> refused_;
};

/// A word in the form that a shell reads back: quoted if it needs quotes, line feeds as spaces.
std::string shell_quoted(const std::string& word);

/// Sets a field from text on a command line. option: its name in messages ("--atoms"). Throws Error(usage) for text that is not a
/// number, and like set_value.
void set_from_text(const OptionField& field, const std::string& option, const std::string& text);

/// "did you mean NAME?", the one of `names` that was most likely meant; `otherwise` if none is similar.
std::string advice(std::string_view word, const std::vector<std::string>& names,
                   const std::string& otherwise);

/// Tasks under which the overview lists commands, in its order.
enum class CommandGroup : uint8_t { prepare, code, documents, attend, look };

/// An entry of the list of commands. A source of cli/commands defines it, for example `CommandEntry attend_command()` in
/// attend.cpp, and the build calls it.
struct CommandEntry {
  CommandGroup group;
  int place;  ///< in the overview's list of the group
  const char* name;
  const char* summary;  ///< one line of help
  /// Describes its command line, parses it, does the work and returns the text for standard output, which is only written if
  /// everything succeeded.
  std::string (*run)(Command&);
  bool by_ranks = false;  ///< ranks of MPI can do it together
};

/// All commands, in the order of the files' names; cmake/lists.cmake generates the function.
std::vector<CommandEntry> commands();

// Shell completion of the command line, generated from the entries of help, so that it always agrees with the options of a command.

/// A command: its name, its line in the overview, and the content of its help page.
struct CommandPage {
  std::string name, summary;
  std::vector<HelpEntry> entries;
};

/// The script for bash, zsh or fish. Throws Error(usage) for another shell.
std::string completion(const std::string& shell, const std::vector<CommandPage>& commands);

}  // namespace kvcodec::cli
