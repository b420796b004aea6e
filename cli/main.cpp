// kvcodec: the parts that all commands share: help, errors, exit codes.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/frame/common.hpp"
#include "cli/frame/run.hpp"
#include "cli/frame/text.hpp"
#include "lib/core/aligned.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec::cli {

/// Writes the whole result. Throws Error(failed) if not all of it was written.
/// All ranks end with the same status, and only the first one prints.
static int guarded_main(std::vector<std::string> arguments) {
  const std::unique_ptr<Team> team = join_team();
  ProgramRun run;
  std::optional<Error> own;
  try {
    const std::string result = run_words(std::move(arguments), *team, run);
    if (team->rank() == 0) write_output(result);
    team->wait();
    return run.status;
  } catch (...) {
    own = current_error();
  }
  const Error error = team->fail(*own);
  // One line of plain text, whatever a file's name or content.
  if (team->rank() == 0)
    std::fprintf(stderr, "%s: %s\n", run.context.c_str(), message_text(error.what()).c_str());
  return exit_status(error.kind());
}

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
