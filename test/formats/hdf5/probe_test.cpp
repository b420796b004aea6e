#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if __has_include(<linux/seccomp.h>)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "formats/cache/kv_file.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "formats/hdf5/library.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/refusal.hpp"
#include "test/formats/samples.hpp"
#include "test/hdf5_blocks.hpp"
#include "test/test.hpp"

namespace probe_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// The exit status of body() in a child.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  REQUIRE_EQ(::waitpid(child, &status, 0), child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/// The same in a child that gave up its rights, except for writing to that descriptor; 200 if it could not.
int without_rights(const std::function<int()>& body, int written = -1) {
  return in_child([&] { return h5::give_up_rights(written) ? body() : 200; });
}

/// True if the call was refused for lack of a right.
int refused(long result) { return result < 0 && errno == EPERM ? 1 : 0; }

/// Two ends of a pipe.
struct Pipe {
  Pipe() { REQUIRE_EQ(::pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() { ::close(ends[0]), ::close(ends[1]); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int ends[2] = {};
};

/// Processor time of the children of this process that have ended.
double seconds_of_children() {
  rusage used = {};
  REQUIRE_EQ(::getrusage(RUSAGE_CHILDREN, &used), 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Makes close_range fail like on a system that does not know it, or in a container that forbids it.
bool forget_close_range([[maybe_unused]] int error) {
#if defined(__NR_close_range) && defined(SECCOMP_MODE_FILTER)
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(program)), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
#else
  return false;
#endif
}

}  // namespace

TEST_CASE("probe: the child reads what is open and asks for memory, and may do nothing else") {
  if (without_rights([] { return 0; }) == 200) SKIP("the system or its container knows no seccomp");
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
    CHECK_EQ(without_rights(allowed[i]), 1);
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
    CHECK_EQ(without_rights(thing.call), 1);
  }
  CHECK_EQ(file_bytes(path), "text");
  CHECK_EQ(folder.names(), std::vector<std::string>{"file"});
  ::close(open_file);
}

TEST_CASE("probe: the child writes to the descriptor that it is left, and to no other") {
  if (without_rights([] { return 0; }) == 200) SKIP("the system or its container knows no seccomp");
  const Pipe left, other;
  const int written = left.ends[1];
  CHECK_EQ(without_rights([&] { return ::write(written, "x", 1) == 1 ? 1 : 0; }, written), 1);
  char byte = 0;
  CHECK_EQ(::read(left.ends[0], &byte, 1), 1);
  CHECK_EQ(byte, 'x');
  CHECK_EQ(without_rights([&] { return refused(::write(other.ends[1], "x", 1)); }, written), 1);
  CHECK_EQ(without_rights([&] { return refused(::write(written, "x", 1)); }), 1);
}

TEST_CASE("probe: all is closed but one descriptor, whether or not the system closes many at once") {
  const Pipe kept, other;
  // 0 if all is as it should be; 1 if the one that is kept is closed, 2 if another one is open.
  const auto close_all = [&] {
    h5::close_others(kept.ends[1]);
    int wrong = ::fcntl(kept.ends[1], F_GETFD) < 0 ? 1 : 0;
    for (const int closed : {STDIN_FILENO, STDOUT_FILENO, kept.ends[0], other.ends[0], other.ends[1]})
      if (::fcntl(closed, F_GETFD) >= 0) wrong |= 2;
    return wrong;
  };
  CHECK_EQ(in_child(close_all), 0);
  for (const int error : {ENOSYS, EPERM}) {
    CAPTURE(error);
    const int status = in_child([&] { return forget_close_range(error) ? close_all() : 200; });
    if (status == 200) SKIP("the system or its container knows no seccomp");
    CHECK_EQ(status, 0);
  }
}

TEST_CASE("probe: what HDF5 finds no memory for in the child was not looked at, and is refused") {
#ifdef KVCODEC_SANITIZED
  SKIP("the address sanitizer ends a process that asks for so much");
#endif
  const Folder folder;
  const std::string path = folder / "x.h5";
  H5Fclose(Edit::check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)));
  Edit(path).make_group("/g");
  // In the old format the names in a group are in a heap: "HEAP", the version, and sizes and places of 8 bytes. It claims 2 GiB elsewhere.
  std::string bytes = file_bytes(path);
  const size_t heap = bytes.find("HEAP");
  REQUIRE(heap != std::string::npos);
  const uint64_t size = uint64_t{1} << 31, place = 8;
  std::memcpy(bytes.data() + heap + 8, &size, sizeof size);
  std::memcpy(bytes.data() + heap + 24, &place, sizeof place);
  const std::string bad = folder / "bad.h5";
  std::ofstream(bad, std::ios::binary) << bytes;
  CHECK_EQ(refusal_of(bad, [&] { h5::File::open(bad); }),
           "HDF5 finds no memory for what it claims to hold: its headers are damaged, or made up on purpose");
}

TEST_CASE(
    "probe: a small file that HDF5 does not come to the end of is refused after seconds, and looked at once (long)") {
  const Folder folder;
  const std::string path = folder / "x.h5";
  write_sample_kv(path);
  Edit(path).put("/grows", H5T_STD_U8LE, H5T_NATIVE_UINT8, {8}, std::vector<uint8_t>(8),
                 {.shape = {1}, .grows = true});
  // The index of such a dataset's chunks: "EAHD", eight bytes, four numbers of 8 bytes, and how many chunks there are.
  std::string bytes = file_bytes(path);
  const auto blocks = checksummed_blocks(bytes);
  const size_t index = bytes.find("EAHD");
  REQUIRE(index != std::string::npos);
  const uint64_t chunks = uint64_t{1} << 60;
  std::memcpy(bytes.data() + index + 12 + 32, &chunks, sizeof chunks);
  mend_checksums(bytes, blocks);
  std::ofstream(path, std::ios::binary) << bytes;
  const auto refused_after = [&] {
    const double before = seconds_of_children();
    CHECK_EQ(refusal_of(path, [&] { h5::File::open(path); }),
             "there is no end to going through it: its headers are damaged, or made up on purpose");
    return seconds_of_children() - before;
  };
  const double first = refused_after(), second = refused_after();
  CHECK_LT(first, 10);
  CHECK_EQ(second, 0);
}

TEST_CASE("hdf5: what a callback throws comes out behind HDF5, which goes on") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  write_sample_kv(path);
  {
    const hid_t file = Edit::check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
    const hid_t group = Edit::check(H5Gopen2(file, "/layers", H5P_DEFAULT));
    int links = 0;
    h5::Callback<hid_t, const char*, const H5L_info_t*> look([&](hid_t, const char*, const H5L_info_t*) {
      if (++links == 1) throw bad_input("the first link");
    });
    CHECK_LT(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, look.call, &look), 0);
    CHECK_EQ(links, 1);
    CHECK_THROWS_WITH_AS(look.rethrow(), "the first link", Error);
    CHECK_EQ(h5::link_names(group, true)->size(), 2);
    H5Gclose(group), H5Fclose(file);
  }
  CHECK_EQ(H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL), 0);
}

}  // namespace probe_test
