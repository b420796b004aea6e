#include "cli/frame/command.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <stdexcept>

#include <CLI/CLI.hpp>

#include "cli/frame/text.hpp"
#include "formats/io/http.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

// A page fits a terminal of 80 columns; the left column holds most option names with their value.
constexpr size_t kPageWidth = 80;
constexpr size_t kLeftWidth = 28;

/// Restricted Damerau-Levenshtein distance: insertions, deletions, replacements, swaps of neighbours.
static size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> of(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      of[i][j] = i + j;
      if (i == 0 || j == 0) continue;
      of[i][j] = std::min({of[i - 1][j] + 1, of[i][j - 1] + 1, of[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        of[i][j] = std::min(of[i][j], of[i - 2][j - 2] + 1);
    }
  return of[a.size()][b.size()];
}

template <class Number>
static Number number_from(const std::string& option, const std::string& text, const char* what) {
  if (const auto number = number_in<Number>(text)) return *number;
  throw usage_error("{} is '{}'; it must be {}", option, text, what);
}

/// A limit, without a decimal point if it is whole.
static std::string plain(double number) {
  return number == std::floor(number) && std::fabs(number) < 1e15 ? fmt::format("{:.0f}", number)
                                                                  : fmt::format("{}", number);
}

static std::string value_word(const OptionField& field) {
  if (const auto choices = choices_of(field); !choices.empty())
    return fmt::format("{}", fmt::join(choices, "|"));
  if (std::holds_alternative<int64_t*>(field.target)) return "N";
  if (std::holds_alternative<double*>(field.target)) return "X";
  return "TEXT";
}

// Limits from here on only guard against overflow; the help does not mention them.
constexpr double kPracticallyUnlimited = 1e9;

/// " (1 to 8, default 2)": the allowed values and the default. Empty for flags; without the default if the help text already has
/// it.
static std::string limits_note(const OptionField& field) {
  if (std::holds_alternative<bool*>(field.target) || field.help.find("default") != std::string::npos)
    return "";
  std::vector<std::string> notes;
  if (!std::holds_alternative<std::string*>(field.target) &&
      !std::holds_alternative<EnumMember>(field.target)) {
    if (field.max < kPracticallyUnlimited)
      notes.push_back(fmt::format("{} to {}", plain(field.min), plain(field.max)));
    else if (std::isfinite(field.min) && field.min != 0)
      notes.push_back(fmt::format("at least {}", plain(field.min)));
  }
  const std::string value = to_text(value_of(field));
  if (!value.empty()) notes.push_back("default " + value);
  return notes.empty() ? "" : fmt::format(" ({})", fmt::join(notes, ", "));
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c == '\n' ? ' ' : c;  // the history has one line per command
  }
  return quoted + "'";
}

void set_from_text(const OptionField& field, const std::string& option, const std::string& text) {
  Scalar value = text;
  if (std::holds_alternative<int64_t*>(field.target))
    value = number_from<int64_t>(option, text, "an integer");
  if (std::holds_alternative<double*>(field.target)) value = number_from<double>(option, text, "a number");
  OptionField shown = field;
  shown.name = option;  // so that the message says --atoms, as typed
  set_value(shown, value);
}

std::string advice(std::string_view word, const std::vector<std::string>& names,
                   const std::string& otherwise) {
  std::string best;
  // A third of the letters may be wrong: enough for slips, too little to turn one word into another.
  size_t best_distance = (word.size() < 3 ? 0 : std::max<size_t>(1, word.size() / 3)) + 1;
  for (const auto& candidate : names) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  for (const auto& candidate : names)  // an abbreviation
    if (best.empty() && word.size() >= 3 && candidate.starts_with(word)) best = candidate;
  return best.empty() ? otherwise : fmt::format("did you mean {}?", best);
}

/// CLI11 sorts the words of the command line into options; their values are interpreted here, when it has all of them.
struct Command::Parser {
  struct Bound {
    std::string name;  ///< "--atoms"
    char letter = 0;   ///< of "-o"; 0 = none
    std::optional<OptionField> field = {};
    std::vector<std::string> words = {};  ///< given for the field; more than one is an error
    int64_t count = 0;                    ///< of a flag: how often it was given, less how often --no-… was
    std::vector<std::string>* all = nullptr;  ///< of a repeated option, instead of a field
    CLI::Option* option = nullptr;            ///< nullptr: --help, which is looked for before all else

    bool is_flag() const { return field && std::holds_alternative<bool*>(field->target); }
    bool valued() const { return all || (field && !is_flag()); }
  };

  Parser() {
    app.set_help_flag();  // ours: it must not be stopped by a missing argument
    app.allow_extras();   // likewise: check_left_over() reports the rest
  }

  Bound& add(Bound bound) {
    if (find(bound.name) || (bound.is_flag() && find("--no-" + bound.field->name)))
      throw std::logic_error(fmt::format("the option {} is bound twice", bound.name));
    return options.emplace_back(std::move(bound));
  }

  /// Finds an option by "--atoms" or "-o"; a flag also by "--no-…".
  const Bound* find(std::string_view word) const {
    const auto place = std::ranges::find_if(options, [&](const Bound& bound) {
      return bound.name == word || (bound.is_flag() && word == "--no-" + bound.field->name) ||
             (bound.letter && word.size() == 2 && word[0] == '-' && word[1] == bound.letter);
    });
    return place == options.end() ? nullptr : &*place;
  }

  CLI::App app;
  std::deque<Bound> options;  // CLI11 keeps references to its members
};

Command::Command(std::string name, std::string summary, std::vector<std::string> arguments, const Team& team)
    : name_(std::move(name)),
      summary_(std::move(summary)),
      arguments_(std::move(arguments)),
      team_(team),
      parser_(std::make_unique<Parser>()) {
  parser_->add({.name = "--help", .letter = 'h'});
}

Command::~Command() = default;

void Command::input(const std::string& name, const std::string& help, std::string& target) {
  parser_->app.add_option(name, target);
  current_group().entries.push_back({name, help});
  required_.push_back({name, help});
}

void Command::inputs(const std::string& name, const std::string& help, std::vector<std::string>& target,
                     bool required) {
  parser_->app.add_option(name, target);
  current_group().entries.push_back({name + " ...", help});
  if (required) required_.push_back({name, help});
}

void Command::entry(const OptionField& field, std::string_view value, char letter) {
  std::string left = letter ? fmt::format("-{}, --{}", letter, field.name) : fmt::format("--{}", field.name);
  if (const auto* const* flag = std::get_if<bool*>(&field.target)) {
    if (**flag) left = fmt::format("--no-{}", field.name);
  } else {
    left += fmt::format(" {}", value.empty() ? value_word(field) : value);
  }
  current_group().entries.push_back({left, field.help + limits_note(field)});
}

void Command::option(const OptionField& field, std::string_view value, char letter) {
  auto& bound = parser_->add({.name = "--" + field.name, .letter = letter, .field = field});
  entry(field, value, letter);
  const std::string names = letter ? fmt::format("-{},{}", letter, bound.name) : bound.name;
  bound.option = bound.is_flag() ? parser_->app.add_flag(names + ",!--no-" + field.name, bound.count)
                                 : parser_->app.add_option(names, bound.words)->allow_extra_args(false);
}

void Command::repeated(const std::string& name, const std::string& help, std::vector<std::string>& target,
                       std::string_view value, bool greedy) {
  auto& bound = parser_->add({.name = "--" + name, .all = &target});
  bound.option = parser_->app.add_option(bound.name, target)->allow_extra_args(greedy);
  current_group().entries.push_back({fmt::format("{} {}{}", bound.name, value, greedy ? " ..." : ""), help});
}

std::string Command::peek(std::string_view name) const {
  const std::string option = fmt::format("--{}", name);
  std::string value;
  for (size_t i = 0; i < arguments_.size() && arguments_[i] != "--"; ++i) {
    const std::string& word = arguments_[i];
    if (word == option && i + 1 < arguments_.size()) value = arguments_[i + 1];
    if (word.starts_with(option + "=")) value = word.substr(option.size() + 1);
  }
  return value;
}

bool Command::given(const std::string& name) const {
  const auto* bound = parser_->find("--" + name);
  if (!bound) throw std::logic_error(fmt::format("no option --{} is bound", name));
  return bound->option->count() > 0;
}

void Command::read_words() {
  try {
    // CLI11 takes them from the back.
    parser_->app.parse(std::vector<std::string>(arguments_.rbegin(), arguments_.rend()));
  } catch (const CLI::ParseError& error) {
    // CLI11 gives a valued option any word that follows: it can lack one only at the end.
    if (const auto* last = parser_->find(arguments_.back()); last && last->valued())
      throw usage_error("{} needs a value", arguments_.back());
    std::string message = error.what();
    std::ranges::replace(message, '\n', ' ');
    throw usage_error("{}", message);
  }
}

void Command::refuse_option(const std::string& word) const {
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const auto& [refused, reason] : refused_) {
    if (refused == name) throw usage_error("{}", reason);
    names.push_back(refused);
  }
  for (const auto& bound : parser_->options) {
    names.push_back(bound.name);
    if (bound.is_flag()) names.push_back("--no-" + bound.field->name);
  }
  const std::string list = fmt::format("'kvcodec help {}' lists those there are", name_);
  throw usage_error("there is no option {}; {}", name,
                    word.starts_with("--") ? advice(name, names, list) : list);
}

void Command::check_left_over() const {
  const auto words = parser_->app.remaining();
  const auto mark =
      std::ranges::find(words, "--");  // words after it are arguments, whatever their first character
  for (auto word = words.begin(); word != mark; ++word)
    if (word->starts_with("-") && *word != "-") refuse_option(*word);
  for (auto word = words.begin(); word != words.end(); ++word)
    if (word != mark)
      throw usage_error("'{}' is one argument too many; usage: kvcodec {} {}", *word, name_, synopsis_);
}

void Command::parse() {
  if (help_wanted()) show_help();
  read_words();
  check_left_over();
  for (const auto& bound : parser_->options) {
    if (bound.words.size() > 1) throw usage_error("{} is given more than once", bound.name);
    for (const std::string& word : bound.all ? *bound.all : bound.words)
      if (word.starts_with("--") && parser_->find(word.substr(0, word.find('='))))
        throw usage_error("{} needs a value; {} is an option (a file of that name is ./{})", bound.name, word,
                          word);
  }
  for (const auto& [argument, help] : required_)
    if (parser_->app.count(argument) == 0)
      throw usage_error("{} is missing ({}); usage: kvcodec {} {}", argument, help, name_, synopsis_);
  for (const auto& bound : parser_->options) {
    if (!bound.words.empty()) set_from_text(*bound.field, bound.name, bound.words.front());
    if (bound.is_flag() && bound.option->count() > 0) set_value(*bound.field, Scalar{bound.count > 0});
  }
}

void Command::show_help() const {
  HelpWanted wanted;
  std::string& page = wanted.page;
  page = fmt::format("kvcodec {} - {}\n\n{}\n\n{}\n", name_, summary_,
                     wrapped(fmt::format("usage: kvcodec {} {}", name_, synopsis_), kPageWidth - 7, 7),
                     wrapped(description_, kPageWidth, 0));
  for (const auto& [title, entries] : groups_) {
    if (entries.empty()) continue;
    page += "\n" + wrapped(title, kPageWidth - 2, 2) + "\n";
    for (const auto& [left, text] : entries) {
      std::string line = "  " + left;
      if (line.size() + 2 > kLeftWidth) {
        page += line + "\n";
        line.clear();
      }
      line.resize(kLeftWidth, ' ');
      page += line + wrapped(text, kPageWidth - kLeftWidth, kLeftWidth) + "\n";
    }
    wanted.entries.insert(wanted.entries.end(), entries.begin(), entries.end());
  }
  page += "\nExample\n";
  for (const std::string& line : split(example_, '\n')) page += "  " + line + "\n";
  page += fmt::format(
      "\nExit status: 0 done, 1 failed, 2 usage, 3 bad input, 4 device not available.\n"
      "The full manual: man kvcodec-{}\n",
      name_);
  throw wanted;
}

/// A word without the secrets of URLs in it: it is a URL, or --option=URL, or settings with commas between them.
static std::string without_secrets(const std::string& word) {
  const size_t value = word.starts_with("--") ? word.find('=') + 1 : 0;
  const std::string text = word.substr(value), before = word.substr(0, value);
  if (is_far(text)) return before + shown_name(text);
  auto parts = split(text, ',');
  for (std::string& part : parts) part = shown_text(part);
  return fmt::format("{}{}", before, fmt::join(parts, ","));
}

std::string Command::words() const {
  std::string line = "kvcodec " + name_;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const std::string& word = arguments_[i];
    const std::string option = word.substr(0, word.find('='));
    if (const auto own = unrecorded_.find(option); own != unrecorded_.end()) {
      if (own->second && option == word) ++i;  // its value is the next word
      continue;
    }
    const bool as_given = std::ranges::any_of(recorded_as_given_, [&](const std::string& recorded) {
      return word.starts_with(recorded + "=") || (i > 0 && arguments_[i - 1] == recorded);
    });
    line += " " + shell_quoted(as_given ? word : without_secrets(word));
  }
  return line;
}

}  // namespace kvcodec::cli
