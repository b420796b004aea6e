#include <algorithm>

#include <fmt/format.h>

#include "cli/frame/text.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// An option: "-o, --output FILE", "--rope keep|undo", "--no-adapt", and the beginning of its help.
struct Offer {
  std::string option, letter, help;
  std::vector<std::string> choices;
  bool valued = false;
};

/// The options of a page, by name, each once: codecs share some.
std::vector<Offer> offers_of(const CommandPage& page) {
  constexpr size_t kHelpWidth = 72;
  std::vector<Offer> offers;
  for (const auto& [left, help] : page.entries) {
    Offer offer;
    offer.help = split(wrapped(help, kHelpWidth, 0), '\n').front();
    for (const std::string& word : split(left, ' ')) {
      if (word.starts_with("--")) {
        offer.option = word;
      } else if (word.starts_with("-")) {
        offer.letter = word.substr(0, 2);
      } else if (!offer.valued) {
        offer.valued = true;
        if (word.find('|') != std::string::npos) offer.choices = split(word, '|');
      }
    }
    if (!offer.option.empty() && std::ranges::count(offers, offer.option, &Offer::option) == 0)
      offers.push_back(std::move(offer));
  }
  return offers;
}

/// Removes the characters that mean something inside single quotes of the scripts.
std::string plain(std::string text) {
  std::erase_if(text, [](char c) { return c == '\'' || c == '[' || c == ']' || c == ':' || c == '\\'; });
  return text;
}

std::string bash(const std::vector<CommandPage>& commands) {
  std::string names;
  for (const CommandPage& command : commands) names += (names.empty() ? "" : " ") + command.name;
  std::string script = fmt::format(
      "# bash completion of kvcodec, made by kvcodec help --completion bash\n"
      "_kvcodec() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W \"help --version {}\" -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${{COMP_WORDS[1]}} in\n"
      "    help) words=\"{}\" ;;\n",
      names, names);
  for (const CommandPage& command : commands) {
    std::string options, cases;
    for (const Offer& offer : offers_of(command)) {
      options += (options.empty() ? "" : " ") + offer.option;
      if (!offer.choices.empty())
        cases += fmt::format("        {}) words=\"{}\" ;;\n", offer.option, fmt::join(offer.choices, " "));
      else if (offer.valued)
        cases +=
            fmt::format("        {}{}{}) ;;\n", offer.option, offer.letter.empty() ? "" : "|", offer.letter);
    }
    script += fmt::format(
        "    {})\n      case $before in\n{}        *) [[ $word == -* ]] && words=\"{}\" ;;\n      esac\n      ;;\n",
        command.name, cases, options);
  }
  return script +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -o default -F _kvcodec kvcodec\n";
}

std::string zsh(const std::vector<CommandPage>& commands) {
  std::string script =
      "#compdef kvcodec\n"
      "# zsh completion of kvcodec, made by kvcodec help --completion zsh\n"
      "_kvcodec() {\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandPage& command : commands)
    script += fmt::format("    '{}:{}'\n", command.name, plain(command.summary));
  script +=
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  case ${words[2]} in\n"
      "    help) _describe command commands ;;\n";
  for (const CommandPage& command : commands) {
    script += fmt::format("    {})\n      _arguments \\\n", command.name);
    for (const Offer& offer : offers_of(command)) {
      std::string value;
      if (!offer.choices.empty())
        value = fmt::format(":value:({})", fmt::join(offer.choices, " "));
      else if (offer.valued)
        value = ":value:_files";
      script += fmt::format("        '{}[{}]{}' \\\n", offer.option, plain(offer.help), value);
    }
    script += "        '*:file:_files'\n      ;;\n";
  }
  return script +
         "  esac\n"
         "}\n"
         "_kvcodec \"$@\"\n";
}

std::string fish(const std::vector<CommandPage>& commands) {
  std::string script = "# fish completion of kvcodec, made by kvcodec help --completion fish\n";
  for (const CommandPage& command : commands)
    script += fmt::format("complete -c kvcodec -n __fish_use_subcommand -f -a {} -d '{}'\n", command.name,
                          plain(command.summary));
  for (const CommandPage& command : commands)
    for (const Offer& offer : offers_of(command)) {
      std::string line = fmt::format("complete -c kvcodec -n '__fish_seen_subcommand_from {}' -l {}",
                                     command.name, offer.option.substr(2));
      if (!offer.letter.empty()) line += " -s " + offer.letter.substr(1);
      if (!offer.choices.empty())
        line += fmt::format(" -x -a '{}'", fmt::join(offer.choices, " "));
      else if (offer.valued)
        line += " -r";
      script += fmt::format("{} -d '{}'\n", line, plain(offer.help));
    }
  return script;
}

}  // namespace

std::string completion(const std::string& shell, const std::vector<CommandPage>& commands) {
  if (shell == "bash") return bash(commands);
  if (shell == "zsh") return zsh(commands);
  if (shell == "fish") return fish(commands);
  throw usage_error("--completion is '{}'; it must be one of bash, zsh, fish", shell);
}

}  // namespace kvcodec::cli
