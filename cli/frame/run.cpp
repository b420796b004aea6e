#include "cli/frame/run.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "kvcodec/version.hpp"
#include "lib/codec/registry.hpp"

namespace kvcodec::cli {

/// Commands in the order of the overview. How to add one: CONTRIBUTING.md, "A subcommand".
static const std::vector<CommandEntry>& sorted_commands() {
  static const std::vector<CommandEntry> sorted = [] {
    std::vector<CommandEntry> all = commands();
    std::ranges::sort(all, {}, [](const CommandEntry& entry) { return std::pair(entry.group, entry.place); });
    return all;
  }();
  return sorted;
}

static std::string overview() {
  std::string page =
      "kvcodec - compress the key/value caches of language models\n\n"
      "usage: kvcodec COMMAND [ARGUMENTS]\n";
  constexpr std::array kTitles = {"Prepare", "Code", "Documents", "Attend", "Look"};
  size_t widest = 0;
  for (const CommandEntry& entry : sorted_commands())
    widest = std::max(widest, std::string_view(entry.name).size());
  std::optional<CommandGroup> group;
  for (const CommandEntry& entry : sorted_commands()) {
    if (group != entry.group) page += fmt::format("\n{}\n", kTitles[static_cast<size_t>(entry.group)]);
    group = entry.group;
    page += fmt::format("  {:<{}}  {}\n", entry.name, widest, entry.summary);
  }
  page +=
      "\nkvcodec help COMMAND explains a command, kvcodec help CODEC a codec's options;\n"
      "kvcodec help --completion bash, zsh or fish prints the completion script of\n"
      "that shell, and kvcodec --version the version.\n"
      "Commands read and write HDF5 files and are chained by them:\n\n"
      "  kvcodec dump-kv --model DIR --text docs/ -o kv.h5\n"
      "  kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 -o dict.h5\n"
      "  kvcodec encode kv.h5 --codec sparse --book dict.h5 --sparsity 64 -o codes.h5\n"
      "  kvcodec decode codes.h5 --book dict.h5 -o recon.h5\n"
      "  kvcodec eval-recon kv.h5 recon.h5 --rate codes.h5\n\n"
      "Exit status: 0 done, 1 failed, 2 usage, 3 bad input, 4 device not available,\n"
      "5 done but for damaged documents (--keep-going).\n"
      "The full manual: man kvcodec\n";
  return page;
}

static const CommandEntry& find(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : sorted_commands()) {
    if (entry.name == name) return entry;
    names.emplace_back(entry.name);
  }
  throw usage_error("there is no command '{}'; {}", name,
                    advice(name, names, fmt::format("the commands are {}", fmt::join(names, ", "))));
}

/// kvcodec help --completion SHELL
static std::string completion_for(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) throw usage_error("--completion needs one shell: bash, zsh or fish");
  std::vector<CommandPage> pages;
  for (const CommandEntry& entry : sorted_commands()) try {
      Command command(entry.name, entry.summary, {"--help"});
      (void)entry.run(command);
    } catch (const HelpWanted& wanted) {
      pages.push_back({entry.name, entry.summary, wanted.entries});
    }
  return completion(arguments[1], pages);
}

/// The part of encode's page that describes a codec.
std::string codec_page(const CodecEntry& codec, const std::string& page) {
  const size_t begin = page.find("\nCodec ");
  const std::string own = begin == std::string::npos
                              ? fmt::format("\nCodec {}: {}; no options", codec.name, codec.summary)
                              : page.substr(begin, page.find("\n\n", begin) - begin);
  return fmt::format("{}\n\nThe full manual: man kvcodec-{}\n", own.substr(1),
                     codec.is_pair() ? "pairs" : codec.name);
}

/// The number of processes that mpirun (or another launcher that reports it in the environment) started; 1 if none did.
static int launched_ranks() {
  // The variables of Open MPI, of launchers that use PMI, and of Slurm, whose PMIx sets neither.
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* const value = std::getenv(name)) return std::max(std::atoi(value), 1);
  return 1;
}

/// Refuses processes that would all write one output, because they do not know of each other or do not share the work.
static void check_ranks(const CommandEntry& entry, const Team& team) {
  const int ranks = std::max(team.size(), launched_ranks());
  if (ranks == 1) return;
  if (!entry.by_ranks && team.size() > 1) {
    std::vector<std::string_view> names;
    for (const CommandEntry& other : sorted_commands())
      if (other.by_ranks) names.emplace_back(other.name);
    throw usage_error("{} ranks were started, but only those of {} work together: start {} without mpirun",
                      ranks, fmt::join(names, ", "), entry.name);
  }
  if (entry.by_ranks && team.size() == 1)
    throw usage_error(
        "{} processes were started, but they do not find each other: this program was built without MPI "
        "(-DKVCODEC_MPI=ON), or with another one than mpirun is of",
        ranks);
}

std::string run_words(std::vector<std::string> arguments, const Team& team, ProgramRun& run) {
  if (arguments.empty()) throw usage_error("no command is given; 'kvcodec help' lists them");
  std::string name = arguments[0];
  arguments.erase(arguments.begin());
  if (name == "--version") return fmt::format("kvcodec {}\n", kVersion);
  const bool help = name == "help" || name == "--help" || name == "-h";
  if (help && arguments.empty()) return overview();
  if (help && arguments[0] == "--completion") return completion_for(arguments);
  const CodecEntry* codec = help ? known_codec(arguments[0]) : nullptr;
  if (help) {  // kvcodec help COMMAND = kvcodec COMMAND --help
    name = arguments[0];
    arguments[0] = "--help";
  }
  if (codec) arguments.insert(arguments.end(), {"--codec", std::exchange(name, "encode")});
  if (name.starts_with("-")) throw usage_error("{} stands before the command; options come after it", name);
  const CommandEntry& entry = find(name);
  run.context += " " + name;
  if (!help) check_ranks(entry, team);
  Command command(entry.name, entry.summary, std::move(arguments), team);
  try {
    std::string result = entry.run(command);
    run.status = command.status();
    return result;
  } catch (const HelpWanted& wanted) {
    return codec ? codec_page(*codec, wanted.page) : wanted.page;
  }
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return failed("out of memory; a smaller --memory or fewer --threads may help");
  } catch (const std::exception& error) {
    return failed("{}", error.what());
  }
}

}  // namespace kvcodec::cli
