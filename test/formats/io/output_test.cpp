#include "formats/io/output.hpp"

#include <atomic>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/cache/book_file.hpp"
#include "formats/cache/header.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace output_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// The error of a call that must fail: its kind, and that its message contains a text.
template <class Body>
void check_error(ErrorKind kind, const std::string& text, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(static_cast<int>(error.kind()) == static_cast<int>(kind));
    CAPTURE(error.what());
    CHECK(std::string(error.what()).find(text) != std::string::npos);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return;
  }
  FAIL("no error; expected: ", text);
}

mode_t mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

/// Points a standard descriptor elsewhere for its lifetime.
class Redirect {
 public:
  Redirect(int descriptor, const std::string& path, int flags)
      : descriptor_(descriptor), saved_(::dup(descriptor)) {
    std::fflush(stdout);
    const int target = ::open(path.c_str(), flags, 0600);
    REQUIRE(target >= 0);
    ::dup2(target, descriptor);
    ::close(target);
  }
  ~Redirect() {
    std::fflush(stdout);
    ::dup2(saved_, descriptor_);
    ::close(saved_);
  }
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

 private:
  int descriptor_, saved_;
};

}  // namespace

TEST_CASE("output: appears whole on commit and leaves nothing without it") {
  const Folder folder;
  {
    OutputFile output(folder / "a.h5", false);
    put(output.path(), "new");
    CHECK(fs::path(output.path()).parent_path() == folder.path());
    CHECK(!fs::exists(folder / "a.h5"));
    output.commit();
    CHECK(file_bytes(folder / "a.h5") == "new");
    CHECK_THROWS_AS(output.commit(), Error);
  }
  CHECK(folder.names() == std::vector<std::string>{"a.h5"});
  {
    OutputFile output(folder / "a.h5", true);
    put(output.path(), "half");
  }
  CHECK(file_bytes(folder / "a.h5") == "new");
  CHECK(folder.names() == std::vector<std::string>{"a.h5"});
}

TEST_CASE("output: overwriting must be asked for, also of a file that came meanwhile") {
  const Folder folder;
  put(folder / "a.h5", "old");
  check_error(ErrorKind::usage, "a.h5: exists already; --overwrite replaces it",
              [&] { OutputFile(folder / "a.h5", false); });
  OutputFile late(folder / "b.h5", false);
  put(folder / "b.h5", "other");
  check_error(ErrorKind::usage, "b.h5: exists already", [&] { late.commit(); });
  CHECK(file_bytes(folder / "b.h5") == "other");
  OutputFile output(folder / "a.h5", true);
  put(output.path(), "new");
  output.commit();
  CHECK(file_bytes(folder / "a.h5") == "new");
}

TEST_CASE("output: what another run replaced since it was read is not replaced") {
  const Folder folder;
  const std::string path = folder / "a.h5";
  put(path, "old");
  const HeldFile held(path, [] { FAIL("nobody else holds it"); });
  OutputFile late(path, true), first(path, true);
  first.replaces(held.state());
  late.replaces(held.state());
  put(first.path(), "first");
  first.commit();
  check_error(ErrorKind::failed, "a.h5: another run changed it after this one had read it",
              [&] { late.commit(); });
  CHECK(file_bytes(path) == "first");
  fs::remove(path);
  check_error(ErrorKind::failed, "another run changed it", [&] { late.commit(); });
  check_error(ErrorKind::bad_input, "a.h5: No such file", [&] { HeldFile(path, [] {}); });
}

TEST_CASE("output: who wants a held file waits, says so once, and gets what stands in its place") {
  const Folder folder;
  const std::string path = folder / "a.h5";
  put(path, "old");
  auto held = std::make_unique<HeldFile>(path, [] {});
  std::atomic<int> waits = 0;
  uint64_t size = 0;
  std::thread second([&] { size = HeldFile(path, [&] { ++waits; }).state().size; });
  while (waits == 0) std::this_thread::yield();
  OutputFile output(path, true);
  put(output.path(), "longer");
  output.commit();
  held.reset();
  second.join();
  CHECK_EQ(waits.load(), 1);
  CHECK_EQ(size, 6);
}

TEST_CASE("output: permissions, symbolic links and devices stay what they are") {
  const Folder folder;
  const mode_t mask = ::umask(027);
  {
    OutputFile output(folder / "fresh", false);
    output.commit();
    CHECK(mode_of(folder / "fresh") == 0640);
  }
  put(folder / "old", "old");
  ::chmod((folder / "old").c_str(), 0606);
  {
    OutputFile output(folder / "old", true);
    put(output.path(), "new");
    output.commit();
    CHECK(mode_of(folder / "old") == 0606);
  }
  ::chmod((folder / "old").c_str(), 0666);
  // Root and members of the group may pass the file to it.
  const bool other_group = ::chown((folder / "old").c_str(), static_cast<uid_t>(-1), 12345) == 0;
  {
    OutputFile output(folder / "old", true);
    put(output.path(), "new");
    output.commit();
    CHECK(mode_of(folder / "old") == 0666);
    struct stat status = {};
    REQUIRE(::stat((folder / "old").c_str(), &status) == 0);
    CHECK((status.st_gid == 12345) == other_group);
  }
  ::umask(mask);
  fs::create_directory(folder / "elsewhere");
  put(folder / "elsewhere/file", "old");
  fs::create_symlink("elsewhere/file", folder / "link");
  {
    OutputFile output(folder / "link", true);
    put(output.path(), "through");
    output.commit();
  }
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(file_bytes(folder / "elsewhere/file") == "through");
  {
    OutputFile output("/dev/null", false);
    put(output.path(), "x");
    output.commit();
  }
  CHECK(fs::is_character_file("/dev/null"));
  if (fs::is_character_file("/dev/full")) {
    OutputFile output("/dev/full", false);
    put(output.path(), "x");
    check_error(ErrorKind::failed, "/dev/full: cannot be written: No space left on device",
                [&] { output.commit(); });
  }
}

TEST_CASE("output: links to a file that is still to be written are followed if that is asked for, and stay") {
  const Folder folder;
  fs::create_directories(folder / "scratch/deep");
  fs::create_symlink("scratch/first", folder / "link");
  fs::create_symlink("deep/second", folder / "scratch/first");
  fs::create_symlink(folder / "scratch/new", folder / "scratch/deep/second");
  check_error(ErrorKind::usage,
              "link: is a symbolic link to " + fs::canonical(folder.path()).string() +
                  "/scratch/new, which does not exist; --overwrite makes that file",
              [&] { OutputFile(folder / "link", false); });
  CHECK(!fs::exists(folder / "scratch/new"));
  {
    OutputFile output(folder / "link", true);
    put(output.path(), "through");
    output.commit();
  }
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(file_bytes(folder / "scratch/new") == "through");
  fs::create_symlink("nowhere/file", folder / "lost");
  check_error(ErrorKind::failed, "lost: cannot be written: No such file or directory",
              [&] { OutputFile(folder / "lost", true); });
  fs::create_symlink("circle", folder / "circle");
  check_error(ErrorKind::failed, "circle: cannot be written: Too many levels of symbolic links",
              [&] { OutputFile(folder / "circle", true); });
}

TEST_CASE("output: a target that cannot be is refused at the start") {
  const Folder folder;
  check_error(ErrorKind::failed, "missing/a.h5: cannot be written: No such file or directory",
              [&] { OutputFile(folder / "missing/a.h5", false); });
  check_error(ErrorKind::failed, ": Is a directory", [&] { OutputFile(folder.path(), true); });
  put(folder / "file", "");
  check_error(ErrorKind::failed, "file/a.h5: cannot be written: Not a directory",
              [&] { OutputFile(folder / "file/a.h5", false); });
  check_error(ErrorKind::usage, "empty", [] { OutputFile("", false); });
}

TEST_CASE("output: a folder without permission") {
  if (::geteuid() == 0) SKIP("root may write anywhere");
  const Folder folder;
  ::chmod(folder.path().c_str(), 0500);
  check_error(ErrorKind::failed, "a.h5: cannot be written: Permission denied",
              [&] { OutputFile(folder / "a.h5", false); });
  ::chmod(folder.path().c_str(), 0700);
}

TEST_CASE("output: '-' is standard output") {
  const Folder folder;
  const std::string content(3'000'000, 'z');
  {
    const Redirect redirect(STDOUT_FILENO, folder / "captured", O_CREAT | O_WRONLY);
    OutputFile output("-", false);
    put(output.path(), content);
    output.commit();
  }
  CHECK(file_bytes(folder / "captured") == content);
  std::string message;
  {
    const Redirect redirect(STDOUT_FILENO, "/dev/full", O_WRONLY);
    OutputFile output("-", false);
    put(output.path(), content);
    try {
      output.commit();
    } catch (const Error& error) {
      message = error.what();
    }
  }
  CHECK(message == "standard output: cannot be written: No space left on device");
}

TEST_CASE("input: '-' is standard input, as often as it is asked for") {
  const Folder folder;
  write_sample_kv(folder / "kv.h5");
  const Redirect redirect(STDIN_FILENO, folder / "kv.h5", O_RDONLY);
  CHECK(identify("-").type == "kv");
  const KvReader reader("-");
  CHECK(reader.name() == "standard input");
  CHECK(reader.documents().tokens() == 8);
  CHECK(identify("-").type == "kv");
}

TEST_CASE("input: reading needs no permission to write") {
  const Folder folder;
  write_sample_kv(folder / "kv.h5");
  ::chmod(folder.path().c_str(), 0755);
  ::chmod((folder / "kv.h5").c_str(), 0444);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;  // to root everything is permitted
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) ::_exit(77);
    try {
      ::_exit(KvReader(folder / "kv.h5").documents().tokens() == 8 ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(2);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("root cannot give up its rights here");
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("input: what is no HDF5 file is named as what it is") {
  const Folder folder;
  check_error(ErrorKind::bad_input, "a.h5: No such file or directory", [&] { InputFile(folder / "a.h5"); });
  check_error(ErrorKind::bad_input, "is a folder; an HDF5 file is wanted here",
              [&] { InputFile(folder.path()); });
  put(folder / "text", std::string(5000, 'x'));
  check_error(ErrorKind::bad_input, "text: not an HDF5 file", [&] { h5::File::open(folder / "text"); });
  put(folder / "empty", "");
  check_error(ErrorKind::bad_input, "empty: not an HDF5 file", [&] { h5::File::open(folder / "empty"); });
  check_error(ErrorKind::bad_input, "/dev/null: is not a regular file", [&] { InputFile("/dev/null"); });
}

TEST_CASE("output: a killed run removes its temporary and leaves the old file") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    const Folder folder;
    put(folder / "a.h5", "old");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(number, SIG_DFL);
      install_signal_cleanup();
      OutputFile a(folder / "a.h5", true), b(folder / "b.h5", false);
      put(a.path(), "half");
      if (folder.names().size() != 3) ::_exit(1);
      ::kill(::getpid(), number);
      ::sleep(10);  // the sanitizer of threads hands signals on in such a call
      ::_exit(2);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == number);
    CHECK(folder.names() == std::vector<std::string>{"a.h5"});
    CHECK(file_bytes(folder / "a.h5") == "old");
  }
}

TEST_CASE("output: what a run left that nothing could stop is removed by the next one, and only that") {
  const Folder folder;
  put(folder / "a.h5", "old");
  /// A run that writes to a.h5 and waits.
  const auto begin = [&] {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const OutputFile output(folder / "a.h5", true);
      put(output.path(), "half");
      for (;;) ::pause();
    }
    const std::string own = fmt::format(".a.h5.{}-", child);
    const auto is_there = [&] {
      return std::ranges::any_of(folder.names(),
                                 [&](const std::string& name) { return name.starts_with(own); });
    };
    while (!is_there()) ::usleep(1000);
    return child;
  };
  const auto kill = [](pid_t child) {
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
  };
  const auto write = [&] {
    OutputFile output(folder / "a.h5", true);
    put(output.path(), "new");
    output.commit();
  };
  kill(begin());
  REQUIRE(folder.names().size() == 2);
  const std::vector<std::string> names = folder.names();
  const std::string left = names[0] == "a.h5" ? names[1] : names[0];
  const std::string of_journal = ".a.h5.journal" + left.substr(5);
  put(folder / of_journal, "half");
  // From another machine, of another file, and of no run at all.
  std::string elsewhere = left;
  const size_t place = elsewhere.rfind('-', elsewhere.rfind('-') - 1) + 1;
  elsewhere[place] = elsewhere[place] == '0' ? '1' : '0';
  for (const std::string& name : {elsewhere, ".b.h5" + left.substr(5), std::string(".a.h5.mine.tmp")})
    put(folder / name, "not ours");
  const pid_t living = begin();
  CHECK_FALSE(fs::exists(folder / left));
  CHECK_FALSE(fs::exists(folder / of_journal));
  write();
  CHECK(folder.names().size() == 5);  // a.h5, those three, and that of the run that lives
  kill(living);
  write();
  CHECK(folder.names().size() == 4);
  CHECK(file_bytes(folder / "a.h5") == "new");
}

TEST_CASE("output: what is left in a folder is looked for once by who writes many files into it") {
  const Folder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const OutputFile a(folder / "a.h5", true), b(folder / "b.h5", true);
    ::kill(::getpid(), SIGKILL);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  REQUIRE(folder.names().size() == 2);
  LeftOver left_over;
  {
    const OutputFile a(folder / "a.h5", true, &left_over);
    CHECK(folder.names().size() == 2);  // its own, and what is left of b.h5
  }
  const OutputFile b(folder / "b.h5", true, &left_over);
  CHECK(folder.names().size() == 1);
}

TEST_CASE("output: a file size limit met anywhere is one clear error and leaves nothing") {
  struct rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const Folder folder;
  SampleCodes codes(1, {100, 0, 57}, true, 13);
  const auto write = [&](int what, const std::string& path) {
    if (what == 0) return write_sample_kv(path);
    if (what == 1) return codes.write(path);
    OutputFile output(path, true);
    write_book(output, sample_book(), sample_model(2, 2, 4), {"t", {}});
    output.commit();
  };
  for (const int what : {0, 1, 2}) {
    CAPTURE(what);
    const std::string path = folder / "a.h5";
    write(what, path);
    const size_t size = file_bytes(path).size();
    fs::remove(path);
    for (size_t limit = 0; limit < size; limit += std::max<size_t>(1, size / 97)) {
      CAPTURE(limit);
      struct rlimit lower = before;
      lower.rlim_cur = limit;
      REQUIRE(::setrlimit(RLIMIT_FSIZE, &lower) == 0);
      std::string message;
      try {
        write(what, path);
      } catch (const Error& error) {
        message = error.what();
      }
      ::setrlimit(RLIMIT_FSIZE, &before);
      CHECK(message == path + ": cannot be written: File too large");
      CHECK(folder.names().empty());
    }
    write(what, path);  // and nothing is broken afterwards
    CHECK(file_bytes(path).size() == size);
    fs::remove(path);
  }
  ::signal(SIGXFSZ, old_handler);
}

TEST_CASE("output: a full disk is one clear error and leaves nothing") {
  const Folder folder;
  std::string skipped, message;
  std::vector<std::string> left;
  // A separate thread takes the mount along when it ends.
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
      skipped = "no small file system can be mounted here";
      return;
    }
    try {
      OutputFile output(folder / "kv.h5", false);
      KvWriter writer(output, sample_model(2, 8, 64), DType::bf16, {0, 1}, std::nullopt);
      writer.add_document("d", {}, counting(0, 3000));
      for (const int layer : {0, 1})
        for (const Side side : kSides) writer.append(side, layer, random_rows(3000, 512, 1).view());
      writer.finish({"t", {}});
      output.commit();
    } catch (const Error& error) {
      message = error.what();
    }
    left = folder.names();
    ::umount2(folder.path().c_str(), MNT_DETACH);
  }).join();
  if (!skipped.empty()) SKIP(skipped);
  CHECK(message == (folder / "kv.h5") + ": cannot be written: No space left on device");
  CHECK(left.empty());
}

}  // namespace output_test
