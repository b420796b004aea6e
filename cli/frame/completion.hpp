// Completions of the command line for shells, made from the pages that the option tables make: they cannot disagree with what
// a command takes.
#pragma once

#include <string>
#include <vector>

namespace kvcodec::cli {

/// A command: its name, its line in the overview, and the page that --help prints.
struct CommandPage {
  std::string name, summary, page;
};

/// The script for bash, zsh or fish. Throws Error(usage) for another shell.
std::string completion(const std::string& shell, const std::vector<CommandPage>& commands);

}  // namespace kvcodec::cli
