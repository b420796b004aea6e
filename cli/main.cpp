// kvcodec: the parts that all commands share: help, errors, exit codes.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "kvcodec/version.hpp"
#include "lib/core/aligned.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec::cli {
namespace {

/// Commands in the order of the overview. How to add one: CONTRIBUTING.md, "A subcommand".
const std::vector<CommandEntry>& sorted_commands() {
  static const std::vector<CommandEntry> sorted = [] {
    std::vector<CommandEntry> all = commands();
    std::ranges::sort(all, {}, [](const CommandEntry& entry) { return std::pair(entry.group, entry.place); });
    return all;
  }();
  return sorted;
}

constexpr int kStatusOf[] = {1, 2, 3, 4, 1};  // of an ErrorKind

std::string overview() {
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
      "\nkvcodec help COMMAND (or kvcodec COMMAND --help) explains a command; kvcodec --version prints the "
      "version;\n"
      "kvcodec help --completion bash, zsh or fish prints the completion script of that shell.\n"
      "Commands read and write HDF5 files and are chained by them:\n\n"
      "  kvcodec dump-kv --model DIR --text docs/ -o kv.h5\n"
      "  kvcodec train-dict kv.h5 --atoms 8192 --sparsity 64 -o dict.h5\n"
      "  kvcodec encode kv.h5 --codec sparse --book dict.h5 --sparsity 64 -o codes.h5\n"
      "  kvcodec decode codes.h5 --book dict.h5 -o recon.h5\n"
      "  kvcodec eval-recon kv.h5 recon.h5 --rate codes.h5\n\n"
      "Exit status: 0 done, 1 failed while running, 2 usage, 3 bad input file, 4 device not available.\n"
      "The full manual: man kvcodec\n";
  return page;
}

const CommandEntry& find(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : sorted_commands()) {
    if (entry.name == name) return entry;
    names.emplace_back(entry.name);
  }
  throw usage_error("there is no command '{}'; {}", name,
                    advice(name, names, fmt::format("the commands are {}", fmt::join(names, ", "))));
}

/// kvcodec help --completion SHELL
std::string completion_for(const std::vector<std::string>& arguments) {
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

/// Writes the whole result. Throws Error(failed) if not all of it was written.
void write_result(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw failed("standard output: {}", std::strerror(errno));
}

/// The number of processes that mpirun (or another launcher that reports it in the environment) started; 1 if none did.
int launched_ranks() {
  // The variables of Open MPI, of launchers that use PMI, and of Slurm, whose PMIx sets neither.
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* const value = std::getenv(name)) return std::max(std::atoi(value), 1);
  return 1;
}

/// Refuses processes that would all write one output, because they do not know of each other or do not share the work.
void check_ranks(const CommandEntry& entry, const Team& team) {
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

/// Runs a command line and returns the text for standard output. `context` becomes the subcommand's name once it is known, `status` the
/// exit status.
std::string run(std::vector<std::string> arguments, const Team& team, std::string& context, int& status) {
  if (arguments.empty()) throw usage_error("no command is given; 'kvcodec help' lists them");
  std::string name = arguments[0];
  arguments.erase(arguments.begin());
  if (name == "--version") return fmt::format("kvcodec {}\n", kVersion);
  const bool help = name == "help" || name == "--help" || name == "-h";
  if (help && arguments.empty()) return overview();
  if (help && arguments[0] == "--completion") return completion_for(arguments);
  if (help) {  // kvcodec help COMMAND = kvcodec COMMAND --help
    name = arguments[0];
    arguments[0] = "--help";
  }
  if (name.starts_with("-")) throw usage_error("{} stands before the command; options come after it", name);
  const CommandEntry& entry = find(name);
  context += " " + name;
  if (!help) check_ranks(entry, team);
  Command command(entry.name, entry.summary, std::move(arguments), team);
  try {
    std::string result = entry.run(command);
    status = command.status();
    return result;
  } catch (const HelpWanted& wanted) {
    return wanted.page;
  }
}

/// All ranks end with the same status, and only the first one prints.
int guarded_main(std::vector<std::string> arguments) {
  const std::unique_ptr<Team> team = join_team();
  std::string context = "kvcodec";
  std::optional<Error> own;
  try {
    int status = 0;
    const std::string result = run(std::move(arguments), *team, context, status);
    if (team->rank() == 0) write_result(result);
    team->wait();
    return status;
  } catch (const Error& error) {
    own = error;
  } catch (const std::bad_alloc&) {
    own = failed("out of memory; a smaller --memory or fewer --threads may help");
  } catch (const std::exception& error) {
    own = failed("{}", error.what());
  }
  const Error error = team->fail(*own);
  // One line of plain text, whatever a file's name or content.
  if (team->rank() == 0)
    std::fprintf(stderr, "%s: %s\n", context.c_str(), message_text(error.what()).c_str());
  return kStatusOf[static_cast<size_t>(error.kind())];
}

}  // namespace
}  // namespace kvcodec::cli

extern "C" {
__attribute__((no_sanitize("address", "undefined"))) static bool begins_with(const char* text,
                                                                             const char* start) {
  while (*start != '\0' && *text == *start) ++text, ++start;
  return *start == '\0';
}

// The system calls this before any library begins. It may use no function of a library, and no memory that the sanitizers watch.
__attribute__((no_sanitize("address", "undefined"))) static void before_libraries(int, char**,
                                                                                  char** environment) {
  // OpenBLAS requests its buffers while the program is loaded; if it gets none, it retries forever.
  constexpr size_t kEnough = size_t{256} << 20;  // its buffer, and other mappings before main() begins
  if (const long place = syscall(SYS_mmap, nullptr, kEnough, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
      place >= 0) {
    syscall(SYS_munmap, place, kEnough);
  } else {
    constexpr char kText[] =
        "kvcodec: out of memory: the limit (ulimit -v) leaves too little to begin with\n";
    syscall(SYS_write, STDERR_FILENO, kText, sizeof kText - 1);
    syscall(SYS_exit_group, 1);
  }
  // Lets waiting threads sleep soon, unless the environment says how they wait. By default those of GCC's OpenMP spin for about a
  // millisecond, which on a busy machine takes time from the work they wait for; about ten microseconds are enough for work that
  // follows at once. OpenMP reads its environment before main(), and nothing can be added to it here, but a variable of the shell
  // that nobody reads can be replaced. If there is none, the threads spin.
  static char spin_count[] = "GOMP_SPINCOUNT=10000";
  char** place = nullptr;
  for (char** variable = environment; *variable != nullptr; ++variable) {
    if (begins_with(*variable, "OMP_WAIT_POLICY=") || begins_with(*variable, "GOMP_SPINCOUNT=")) return;
    for (const char* const unread : {"_=", "OLDPWD=", "SHLVL=", "LOGNAME="})
      if (begins_with(*variable, unread)) place = variable;
  }
  if (place != nullptr) *place = spin_count;
}
[[gnu::section(".preinit_array"),
  gnu::used]] static void (*const kBeforeLibraries)(int, char**, char**) = before_libraries;
}

// OpenBLAS chooses its kernels when it begins; if it chooses badly, the program begins again and tells it which to use. If that is
// not possible, the slow kernels compute the same.
static void begin_again_with_better_kernels(char** argv) {
  constexpr char kVariable[] = "OPENBLAS_CORETYPE";
  if (std::getenv(kVariable) != nullptr) return;
  const char* kernels = kvcodec::better_blas_kernels();
  if (kernels == nullptr || setenv(kVariable, kernels, 0) != 0) return;
  execv("/proc/self/exe", argv);
  unsetenv(kVariable);
}

int main(int argc, char** argv) {
  begin_again_with_better_kernels(argv);
  kvcodec::prepare_heap();
  kvcodec::install_signal_cleanup();
  return kvcodec::cli::guarded_main({argv + (argc > 0 ? 1 : 0), argv + argc});
}
