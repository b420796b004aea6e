#include "formats/io/temporary.hpp"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/io/mapped_file.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

Error not_written(const std::string& name) {
  return failed("{}: cannot be written: {}", name, std::strerror(errno));
}

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

void remember_temporary(const fs::path& path) {
  const std::string& text = path.native();
  for (OutputSlot& slot : output_slots) {
    int free = 0;
    if (text.size() >= sizeof slot.path || !slot.state.compare_exchange_strong(free, 1)) continue;
    std::memcpy(slot.path, text.c_str(), text.size() + 1);
    slot.state = 2;
    return;
  }
}

void forget_temporary(const fs::path& path) {
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

// Their names ---------------------------------------------------------------------------------------

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

/// A number that tells apart where processes are numbered: the system since it began, and the name space. 0: the system does not
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

}  // namespace

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

fs::path temporary_folder() {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  return error ? fs::path("/tmp") : folder;
}

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

TemporaryFile::TemporaryFile(const fs::path& folder, const std::string& stem, mode_t mode, std::string name)
    : name_(std::move(name)) {
  for (int attempt = 0;; ++attempt) {
    path_ = temporary_name(folder, stem);
    remember_temporary(path_);  // before it exists, so that no signal can fall in between
    if (Descriptor(::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode))) return;
    const int error = errno;
    forget_temporary(path_);
    errno = error;
    if (error != EEXIST || attempt == 10) throw not_written(name_);
  }
}

void TemporaryFile::remove() {
  if (path_.empty()) return;
  ::unlink(path_.c_str());
  forget_temporary(path_);
  path_.clear();
}

void TemporaryFile::sync() const {
  Descriptor file(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0 || !file.close()) throw not_written(name_);
}

void TemporaryFile::take_name(const fs::path& target, bool overwrite) {
  int result = -1;
  if (!overwrite) {
    result = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE);
    if (result != 0 && errno == EEXIST)
      throw usage_error("{}: exists already; --overwrite replaces it", name_);
  }
  if (result != 0 && ::rename(path_.c_str(), target.c_str()) != 0) throw not_written(name_);
  forget_temporary(std::exchange(path_, {}));
}

void sync_folder_of(const fs::path& file, const std::string& name) {
  const Descriptor folder(::open(folder_of(file).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems refuse to sync a folder (EINVAL); the file itself is safe by then.
  if (folder && ::fsync(folder.get()) != 0 && errno != EINVAL && errno != EROFS)
    throw failed("{}: its folder cannot be synced: {}", name, std::strerror(errno));
}

Descriptor open_unnamed(const fs::path& folder, const std::string& stem, const std::string& target) {
  const TemporaryFile temporary(folder, stem, 0600, target);
  Descriptor file(::open(temporary.path().c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw not_written(target);
  return file;
}

UnnamedFile::UnnamedFile(const fs::path& beside, std::string target)
    : target_(std::move(target)), file_(open_unnamed(folder_of(beside), "kvcodec-spill", target_)) {}

void UnnamedFile::write(uint64_t position, std::span<const std::byte> bytes) {
  if (const int error = write_at(file_.get(), position, bytes))
    throw failed("{}: cannot be written: {}", target_, std::strerror(error));
}

void UnnamedFile::read(uint64_t position, std::span<std::byte> out) const {
  const ReadEnd end = read_at(file_.get(), position, out);
  if (end.bytes < out.size())
    throw failed("{}: temporary data cannot be read back: {}", target_,
                 end.error ? std::strerror(end.error) : "it ends too early");
}

}  // namespace kvcodec
