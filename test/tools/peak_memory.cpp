// Runs a command and compares its peak memory with a limit.
//
//   peak_memory LIMIT_MIB COMMAND ARGUMENT …
//
// Ends with the command's status, or 99 if its largest resident size was above the limit; says both on
// standard error.
#include <cstdio>
#include <cstdlib>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: peak_memory LIMIT_MIB COMMAND ARGUMENT ...\n", stderr);
    return 2;
  }
  const long limit = std::strtol(argv[1], nullptr, 10);
  const pid_t child = fork();
  if (child == 0) {
    execvp(argv[2], argv + 2);
    std::perror(argv[2]);
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::perror("peak_memory");
    return 1;
  }
  struct rusage usage {};
  getrusage(RUSAGE_CHILDREN, &usage);
  const long peak = usage.ru_maxrss / 1024;  // Linux counts in KiB
  std::fprintf(stderr, "peak_memory: %ld MiB of %ld, %.1f s of processor time\n", peak, limit,
               static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6);
  if (peak > limit) return 99;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
