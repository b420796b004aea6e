// The commands: each is one file of cli/commands that says of itself what it is; cmake/lists.cmake writes commands() from the
// files' names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/frame/command.hpp"

namespace kvcodec::cli {

/// Tasks that the overview lists commands under, in its order.
enum class CommandGroup : uint8_t { prepare, code, documents, attend, look };

/// An entry of the list of commands: a source of cli/commands defines it, `CommandEntry attend_command()` in attend.cpp,
/// and the build calls it (cmake/lists.cmake writes commands()).
struct CommandEntry {
  CommandGroup group;
  int place;  ///< in the overview's list of the group
  const char* name;
  const char* summary;  ///< one line of help
  /// Describes its command line, parses it, does the work and returns what goes to standard output, which is
  /// written only when all has gone well.
  std::string (*run)(Command&);
  bool by_ranks = false;  ///< whether ranks of MPI can do it together
};

/// All commands, in the order of the files' names.
std::vector<CommandEntry> commands();

}  // namespace kvcodec::cli
