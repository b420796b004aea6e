// What the child may do that looks into a file first (formats/h5_probe.hpp).
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/h5_probe.hpp"
#include "test/formats/folder.hpp"
#include "test/test.hpp"

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// The exit status of body() in a child that gave up its rights; 200 where it could not.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(60);
    ::_exit(h5::give_up_rights() ? body() : 200);
  }
  int status = 0;
  REQUIRE_EQ(::waitpid(child, &status, 0), child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/// Whether the call was refused for want of a right.
int refused(long result) { return result < 0 && errno == EPERM ? 1 : 0; }

}  // namespace

TEST_CASE("probe: the child reads what is open and asks for memory, and may do nothing else") {
  if (in_child([] { return 0; }) == 200) SKIP("the system or its container knows no seccomp");
  const Folder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << "text";
  const int open_file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(open_file >= 0);
  const pid_t parent = ::getpid();

  const std::function<int()> allowed[] = {
      [&] {
        char bytes[5] = {};
        return ::pread(open_file, bytes, 4, 0) == 4 && std::strcmp(bytes, "text") == 0 ? 1 : 0;
      },
      [] {
        void* memory =
            ::mmap(nullptr, size_t{1} << 24, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return memory != MAP_FAILED && ::munmap(memory, size_t{1} << 24) == 0 ? 1 : 0;
      }};
  for (size_t i = 0; i < std::size(allowed); ++i) {
    CAPTURE(i);
    CHECK_EQ(in_child(allowed[i]), 1);
  }

  struct Forbidden {
    const char* what;
    std::function<int()> call;
  };
  const Forbidden forbidden[] = {
      {"open a file to read", [&] { return refused(::open(path.c_str(), O_RDONLY)); }},
      {"open a file to write",
       [&] { return refused(::open((folder / "new").c_str(), O_WRONLY | O_CREAT, 0600)); }},
      {"make a socket", [] { return refused(::socket(AF_INET, SOCK_STREAM, 0)); }},
      {"make a local socket", [] { return refused(::socket(AF_UNIX, SOCK_STREAM, 0)); }},
      {"write to what is open", [&] { return refused(::write(open_file, "x", 1)); }},
      {"write at a place", [&] { return refused(::pwrite(open_file, "x", 1, 0)); }},
      {"cut a file", [&] { return refused(::ftruncate(open_file, 0)); }},
      {"remove a file", [&] { return refused(::unlink(path.c_str())); }},
      {"rename a file", [&] { return refused(::rename(path.c_str(), (folder / "other").c_str())); }},
      {"run a program",
       [] {
         char name[] = "/bin/true";
         char* const arguments[] = {name, nullptr};
         return refused(::execv(name, arguments));
       }},
      {"make a process", [] { return refused(::fork()); }},
      {"end its parent", [&] { return refused(::kill(parent, SIGTERM)); }},
      {"make a pipe",
       [] {
         int ends[2];
         return refused(::pipe(ends));
       }},
  };
  for (const Forbidden& thing : forbidden) {
    CAPTURE(thing.what);
    CHECK_EQ(in_child(thing.call), 1);
  }
  CHECK_EQ(file_bytes(path), "text");
  CHECK_EQ(folder.names(), std::vector<std::string>{"file"});
  ::close(open_file);
}
