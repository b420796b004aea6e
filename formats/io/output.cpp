#include "formats/io/output.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/io/far_file.hpp"
#include "formats/io/journal.hpp"
#include "formats/io/mapped_file.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::strerror(error); }

class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  explicit operator bool() const { return descriptor_ >= 0; }
  /// The last chance to hear of a failed write.
  bool close() { return ::close(release()) == 0; }

 private:
  int descriptor_;
};

// Temporaries in the making, for the signal handler -------------------------------------------------

// A handler may run between any two instructions and may not lock or allocate: the names stand in fixed slots
// that are published by an atomic state. A command has one or two outputs; should the slots ever run out, a
// killed run leaves its temporary behind.
struct OutputSlot {
  std::atomic<int> state{0};  // 0 free, 1 being filled, 2 holds a name
  char path[4096];
};
OutputSlot output_slots[16];
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only use lock-free atomics");

void remember(const fs::path& path) {
  const std::string& text = path.native();
  for (OutputSlot& slot : output_slots) {
    int free = 0;
    if (text.size() >= sizeof slot.path || !slot.state.compare_exchange_strong(free, 1)) continue;
    std::memcpy(slot.path, text.c_str(), text.size() + 1);
    slot.state = 2;
    return;
  }
}

void forget(const fs::path& path) {
  for (OutputSlot& slot : output_slots)
    if (slot.state == 2 && path.native() == slot.path) {
      slot.state = 0;
      return;
    }
}

extern "C" void remove_temporaries(int signal_number) {
  for (OutputSlot& slot : output_slots)
    if (slot.state == 2) ::unlink(slot.path);
  // The handler was reset when it was entered: the signal now ends the process as if it had never been
  // caught.
  ::raise(signal_number);
}

void say(const char* text) {
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, text, std::strlen(text));
}

/// A page of a mapped file that is not there any more.
extern "C" void end_without_page(int, siginfo_t* info, void*) {
  for (OutputSlot& slot : output_slots)
    if (slot.state == 2) ::unlink(slot.path);
  const char* name = mapped_file_at(info->si_addr);
  say("kvcodec: ");
  say(name ? name : "a file");
  say(": it was shortened, or its disk failed, while it was read; nothing is written\n");
  ::_exit(1);
}

// Copying -------------------------------------------------------------------------------------------

/// Copies everything from one descriptor to another. Returns 0, or the errno of the side that failed
/// (`writing` tells which).
int copy_all(int from, int to, bool& writing) {
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    writing = false;
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    writing = true;
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = ::write(to, buffer.data() + done, static_cast<size_t>(got - done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return errno;
      done += put;
    }
  }
}

/// When the process began, in ticks since the system did; 0 if it is gone, or that cannot be read.
uint64_t start_of(long process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text, field;
  std::getline(file, text);
  const size_t behind_name = text.rfind(')');  // the name may hold anything, spaces too
  if (behind_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(behind_name + 1));
  for (int number = 3; number <= 22; ++number)
    if (!(fields >> field)) return 0;
  return std::strtoull(field.c_str(), nullptr, 10);
}

/// What tells apart where processes are numbered: the system since it began, and the name space. 0: the system does not
/// say.
uint32_t place_of_numbers() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat names = {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &names) != 0) return 0;
  Digest digest;
  digest.add(boot);
  digest.add(uint64_t{names.st_ino});
  uint32_t place = 0;
  std::memcpy(&place, digest.value().data(), sizeof place);
  return place;
}

std::string temporary_prefix(const std::string& stem) { return fmt::format(".{}.", stem.substr(0, 180)); }

/// A name nobody else uses. It says whose it is, so that others see when that run is gone: process, its start, and where it
/// is numbered; the random part tells apart what one run makes, and hosts that share a folder.
fs::path temporary_name(const fs::path& folder, const std::string& stem) {
  std::random_device random;
  return folder / fmt::format("{}{}-{:x}-{:08x}-{:08x}.tmp", temporary_prefix(stem), ::getpid(),
                              start_of(::getpid()), place_of_numbers(), random());
}

/// Whether a run that has ended made the temporary file of that name. False where that cannot be known.
bool is_left_over(std::string_view name, uint32_t here) {
  long process = 0;
  unsigned long long start = 0;
  unsigned place = 0, random = 0;
  int length = 0;
  const std::string text(name);
  if (std::sscanf(text.c_str(), "%ld-%llx-%8x-%8x.tmp%n", &process, &start, &place, &random, &length) != 4)
    return false;
  if (static_cast<size_t>(length) != text.size() || here == 0 || place != here || process <= 0 || start == 0)
    return false;
  if (const uint64_t found = start_of(process)) return found != start;
  return ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

/// Creates a file nobody else can have. Throws Error(failed) naming `target`.
fs::path make_temporary(const fs::path& folder, const std::string& stem, mode_t mode,
                        const std::string& target) {
  for (int attempt = 0;; ++attempt) {
    fs::path path = temporary_name(folder, stem);
    remember(path);  // before it exists, so that no signal can fall in between
    const Descriptor file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode));
    if (file) return path;
    const int error = errno;
    forget(path);
    if (error != EEXIST || attempt == 10) throw failed("{}: cannot be written: {}", target, reason(error));
  }
}

bool is_standard_stream(const std::string& name) { return name == "-"; }

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Standard input as a file that can be sought, made once: it can be read only once, but is asked for by
/// whoever looks at it.
const Descriptor& standard_input() {
  static const Descriptor copy = [] {
    if (::isatty(STDIN_FILENO))
      throw usage_error("standard input is a terminal; an HDF5 file is wanted there");
    const fs::path path = make_temporary(temporary_folder(), "kvcodec-stdin", 0600, "standard input");
    Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const int open_error = errno;
    ::unlink(path.c_str());
    forget(path);
    if (!file) throw failed("{}: {}", path.string(), reason(open_error));
    bool writing = false;
    const int error = copy_all(STDIN_FILENO, file.get(), writing);
    if (error)
      throw failed("standard input: {} {}: {}", writing ? "cannot be copied to" : "cannot be read into",
                   temporary_folder().string(), reason(error));
    return file;
  }();
  return copy;
}

}  // namespace

void LeftOver::remove_of(const fs::path& product) {
  const fs::path folder = folder_of(product);
  const auto [known, fresh] = temporaries_.try_emplace(folder);
  std::error_code error;
  if (fresh)
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      if (std::string name = entry->path().filename().string();
          name.starts_with('.') && name.ends_with(".tmp"))
        known->second.push_back(std::move(name));
  const std::string prefix = temporary_prefix(product.filename().string());
  const uint32_t here = place_of_numbers();
  for (const std::string& name : known->second) {
    if (!name.starts_with(prefix)) continue;
    std::string_view whose = std::string_view(name).substr(prefix.size());
    if (constexpr std::string_view kOfJournal = "journal."; whose.starts_with(kOfJournal))
      whose.remove_prefix(kOfJournal.size());
    if (is_left_over(whose, here)) ::unlink((folder / name).c_str());
  }
}

bool take_rights(const fs::path& path, const struct stat& of) {
  [[maybe_unused]] const int ignored = ::chown(path.c_str(), static_cast<uid_t>(-1), of.st_gid);
  return ::chmod(path.c_str(), of.st_mode & 07777) == 0;  // last: another group takes some of them away
}

std::filesystem::path temporary_folder() {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  return error ? fs::path("/tmp") : folder;
}

fs::path behind_links(const fs::path& name) {
  std::error_code error;
  fs::path path = name;
  // Link by link: fs::weakly_canonical stops at one that leads to a file which is still to be written.
  constexpr int kMostLinks = 40;  // as the system
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) return name;
    path = folder_of(path) / next;
  }
  if (path == name) return name;
  const fs::path resolved = fs::weakly_canonical(path, error);
  return error ? path : resolved;
}

void install_signal_cleanup() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;  // nohup and shells without job control want it ignored
    action = {};
    action.sa_handler = remove_temporaries;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(number, &action, nullptr);
  }
  struct sigaction action = {};
  action.sa_sigaction = end_without_page;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_SIGINFO);
  ::sigaction(SIGBUS, &action, nullptr);
  // A file size limit is then an error of the write that meets it, like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
}

UnnamedFile::UnnamedFile(const std::filesystem::path& beside, std::string target)
    : target_(std::move(target)) {
  const fs::path path = make_temporary(folder_of(beside), "kvcodec-spill", 0600, target_);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int error = errno;
  ::unlink(path.c_str());
  forget(path);
  if (descriptor_ < 0) throw failed("{}: cannot be written: {}", target_, reason(error));
}

UnnamedFile::~UnnamedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void UnnamedFile::write(uint64_t position, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(position));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw failed("{}: cannot be written: {}", target_, reason(errno));
    position += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void UnnamedFile::read(uint64_t position, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw failed("{}: temporary data cannot be read back: {}", target_,
                   got < 0 ? reason(errno) : "it ends too early");
    position += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
}

namespace {

FileState state_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

Error changed_meanwhile(const std::string& name) {
  return failed(
      "{}: another run changed it after this one had read it; nothing is written. Run the command again",
      name);
}

/// Locks the file's first byte against other runs that change it (readers lock the second, formats/io/journal.hpp); false
/// where the file system cannot. The lock is the descriptor's own, and another kind than that of HDF5's readers; but NFS makes
/// theirs one of all bytes, which is waited for.
bool lock_for_changing(int descriptor, const std::function<void()>& waiting) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  if (::fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return true;
  if (errno != EAGAIN && errno != EACCES) return false;
  waiting();
  while (::fcntl(descriptor, F_OFD_SETLKW, &lock) != 0)
    if (errno != EINTR) return false;
  return true;
}

}  // namespace

std::optional<FileState> state_of(const fs::path& name) {
  struct stat status = {};
  if (::stat(name.c_str(), &status) != 0) return std::nullopt;
  return state_of(status);
}

HeldFile::HeldFile(const std::string& name, const std::function<void()>& waiting) {
  const auto say_once = [&, said = false]() mutable {
    if (!std::exchange(said, true)) waiting();
  };
  for (;;) {
    Descriptor file(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    const bool locked = file && lock_for_changing(file.get(), say_once);
    if (!file) file = Descriptor(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat held = {}, named = {};
    if (!file || ::fstat(file.get(), &held) != 0 || ::stat(name.c_str(), &named) != 0)
      throw bad_input("{}: {}", name, reason(errno));
    // Who held it before may have put another file in its place.
    if (locked && (held.st_dev != named.st_dev || held.st_ino != named.st_ino)) continue;
    state_ = state_of(named);
    locked_ = locked && S_ISREG(held.st_mode);
    descriptor_ = file.release();
    return;
  }
}

HeldFile::~HeldFile() { ::close(descriptor_); }

OutputFile::OutputFile(std::string target, bool overwrite, LeftOver* left_over)
    : target_(std::move(target)), overwrite_(overwrite) {
  if (is_far(target_))
    throw usage_error("{}: a product is written to a file here first; name it with -o, and the URL with --to",
                      shown_name(target_));
  if (is_standard_stream(target_)) {
    if (::isatty(STDOUT_FILENO))
      throw usage_error("standard output is a terminal; name a file with -o, or send the output to one");
    target_ = "standard output";
    kind_ = Kind::standard_output;
    temporary_ = make_temporary(temporary_folder(), "kvcodec-stdout", 0600, target_);
    return;
  }
  if (target_.empty()) throw usage_error("the name of the output file is empty");
  // Replacing a symbolic link would cut it off from what it points to.
  final_ = behind_links(target_);
  struct stat status = {};
  const bool is_there = ::stat(final_.c_str(), &status) == 0;
  if (is_there) {
    if (S_ISDIR(status.st_mode)) throw failed("{}: {}", target_, reason(EISDIR));
    if (!S_ISREG(status.st_mode)) {  // a device or a pipe is written to, never replaced
      kind_ = Kind::special;
      temporary_ = make_temporary(temporary_folder(), "kvcodec-output", 0600, target_);
      return;
    }
    if (!overwrite_) throw usage_error("{}: exists already; --overwrite replaces it", target_);
  } else if (errno != ENOENT) {  // such as links that lead in a circle
    throw failed("{}: cannot be written: {}", target_, reason(errno));
  }
  refuse_false_journal(final_, target_);
  LeftOver looked_for;
  (left_over ? left_over : &looked_for)->remove_of(final_);
  temporary_ = make_temporary(folder_of(final_), final_.filename().string(),
                              is_there ? status.st_mode & 0777 : 0666, target_);
  if (is_there) take_rights(temporary_, status);
}

OutputFile::OutputFile(std::string target, const HeldFile& held)
    : target_(std::move(target)), kind_(Kind::changed), final_(behind_links(target_)), temporary_(final_) {
  LeftOver().remove_of(final_);
  in_place_ = std::make_unique<InPlace>(final_, target_);
  // Its name may lead to another file by now than the one that is held.
  struct stat status = {};
  if (::fstat(in_place_->descriptor(), &status) != 0 || state_of(status) != held.state())
    throw changed_meanwhile(target_);
}

OutputFile::~OutputFile() {
  if (committed_ || in_place_) return;
  ::unlink(temporary_.c_str());
  forget(temporary_);
}

void OutputFile::commit() {
  if (committed_) throw failed("{}: committed twice", target_);
  if (in_place_)
    in_place_->commit();
  else if (kind_ == Kind::regular)
    replace_target();
  else
    copy_to_stream();
  committed_ = true;
  if (!in_place_) forget(temporary_);
}

void OutputFile::copy_to_stream() {
  const Descriptor from(::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from) throw failed("{}: {}", temporary_.string(), reason(errno));
  Descriptor opened;
  if (kind_ == Kind::special) {
    opened = Descriptor(::open(final_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!opened) throw failed("{}: cannot be written: {}", target_, reason(errno));
  } else {
    std::fflush(stdout);
  }
  bool writing = false;
  const int error = copy_all(from.get(), opened ? opened.get() : STDOUT_FILENO, writing);
  if (error) throw failed("{}: cannot be written: {}", target_, reason(error));
  if (opened && !opened.close()) throw failed("{}: cannot be written: {}", target_, reason(errno));
  ::unlink(temporary_.c_str());
}

void OutputFile::replace_target() {
  {
    Descriptor file(::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file || ::fsync(file.get()) != 0 || !file.close())
      throw failed("{}: cannot be written: {}", target_, reason(errno));
  }
  if (replaced_ && state_of(final_) != replaced_) throw changed_meanwhile(target_);
  // Somebody else may have made the file since this run began. Some file systems cannot rename without
  // replacing; there the check at the start has to do.
  int result = -1;
  if (!overwrite_) {
    result = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_.c_str(), RENAME_NOREPLACE);
    if (result != 0 && errno == EEXIST)
      throw usage_error("{}: exists already; --overwrite replaces it", target_);
  }
  if (result != 0 && ::rename(temporary_.c_str(), final_.c_str()) != 0)
    throw failed("{}: cannot be written: {}", target_, reason(errno));
  remove_journal(final_);  // that of the file which is gone
  const Descriptor folder(::open(folder_of(final_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems refuse to sync a folder (EINVAL); the file itself is safe by then.
  if (folder && ::fsync(folder.get()) != 0 && errno != EINVAL && errno != EROFS)
    throw failed("{}: its folder cannot be synced: {}", target_, reason(errno));
}

InputFile::InputFile(std::string name) : name_(std::move(name)) {
  if (is_far(name_)) {
    far_ = FarFile::open(name_);
    name_ = path_ = far_->name();
    return;
  }
  if (is_standard_stream(name_)) {
    name_ = "standard input";
    descriptor_ = ::dup(standard_input().get());
    if (descriptor_ < 0) throw failed("standard input: {}", reason(errno));
    path_ = fmt::format("/proc/self/fd/{}", descriptor_);
  } else {
    path_ = name_;
    // O_NONBLOCK: a named pipe would be waited for until somebody writes to it.
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) throw bad_input("{}: {}", name_, reason(errno));
  }
  struct stat status = {};
  try {
    if (::fstat(descriptor_, &status) != 0) throw bad_input("{}: {}", name_, reason(errno));
    if (S_ISDIR(status.st_mode)) throw bad_input("{}: is a folder; an HDF5 file is wanted here", name_);
    if (!S_ISREG(status.st_mode))
      throw bad_input("{}: is not a regular file; give '-' to read from a pipe", name_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace kvcodec
