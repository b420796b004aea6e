// Command lines: for the program, and for the library that other programs load.
#pragma once

#include <string>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/team.hpp"

namespace kvcodec::cli {

struct ProgramRun {
  std::string context = "kvcodec";  ///< begins messages; with the command's name, once it is known
  int status = 0;                   ///< the exit status of a command that has several
};

/// Runs a command line, without the program's name, and returns the text for standard output. Throws Error.
std::string run_words(std::vector<std::string> arguments, const Team& team, ProgramRun& run);

/// The program's exit status after an Error of that kind.
inline int exit_status(ErrorKind kind) {
  constexpr int kStatusOf[] = {1, 2, 3, 4, 1};
  return kStatusOf[static_cast<size_t>(kind)];
}

/// The exception that is being handled, as an Error.
Error current_error();

}  // namespace kvcodec::cli
