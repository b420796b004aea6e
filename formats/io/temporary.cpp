#include "formats/io/temporary.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/io/mapped_file.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

// Temporaries in the making, for the signal handler -------------------------------------------------

// A handler may run between any two instructions and may not lock or allocate: the names are in fixed slots that are published by
// an atomic state. A command has one or two outputs; should the slots ever run out, a killed run leaves its temporary behind, and
// cannot name a mapped file.
struct NameSlot {
  std::atomic<int> state{0};  // 0 free, 1 being filled, 2 holds a name
  char path[4096];
  std::atomic<uintptr_t> begin{0}, end{0};  // of a mapped file
};
NameSlot output_slots[16], mapped_slots[64];
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only use lock-free atomics");

/// begin, end: address range of the file if it is mapped.
void remember(std::span<NameSlot> slots, const std::string& path, uintptr_t begin = 0, uintptr_t end = 0) {
  for (NameSlot& slot : slots) {
    int free = 0;
    if (path.size() >= sizeof slot.path || !slot.state.compare_exchange_strong(free, 1)) continue;
    std::memcpy(slot.path, path.c_str(), path.size() + 1);
    slot.begin = begin;
    slot.end = end;
    slot.state = 2;
    return;
  }
}

template <class IsIt>
void forget(std::span<NameSlot> slots, const IsIt& is_it) {
  const auto slot =
      std::ranges::find_if(slots, [&](const NameSlot& one) { return one.state == 2 && is_it(one); });
  if (slot != slots.end()) slot->state = 0;
}

void forget_temporary(const fs::path& path) {
  forget(output_slots, [&](const NameSlot& slot) { return path.native() == slot.path; });
}

void unlink_temporaries() {
  for (const NameSlot& slot : output_slots)
    if (slot.state == 2) ::unlink(slot.path);
}

extern "C" void remove_temporaries(int signal_number) {
  unlink_temporaries();
  // The handler was reset when it was entered: the signal now ends the process as if it had never been caught.
  ::raise(signal_number);
}

/// Handles access to a page of a mapped file that no longer exists.
extern "C" void end_without_page(int, siginfo_t* info, void*) {
  unlink_temporaries();
  const auto place = reinterpret_cast<uintptr_t>(info->si_addr);
  const char* name = "a file";
  for (const NameSlot& slot : mapped_slots)
    if (slot.state == 2 && slot.begin <= place && place < slot.end) name = slot.path;
  for (const char* text :
       {"kvcodec: ", name, ": it was shortened, or its disk failed, while it was read; nothing is written\n"})
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, text, std::strlen(text));
  ::_exit(1);
}

// Their names ---------------------------------------------------------------------------------------

/// The start of the process, in ticks since the system's start; 0 if it has ended, or if this cannot be read.
uint64_t start_of(long process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text, field;
  std::getline(file, text);
  const size_t behind_name = text.rfind(')');  // the name may contain anything, including spaces
  if (behind_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(behind_name + 1));
  for (int number = 3; number <= 22; ++number)
    if (!(fields >> field)) return 0;
  return std::strtoull(field.c_str(), nullptr, 10);
}

/// Identifies the space of process numbers: the boot of the system, and the name space. 0: unknown.
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

/// A unique name. It identifies its run, so that others see when that run has ended: process, its start, and the space of process
/// numbers; the random part distinguishes files of one run, and hosts that share a folder.
fs::path temporary_name(const fs::path& folder, const std::string& stem) {
  std::random_device random;
  return folder / fmt::format("{}{}-{:x}-{:08x}-{:08x}.tmp", temporary_prefix(stem), ::getpid(),
                              start_of(::getpid()), place_of_numbers(), random());
}

/// True if the temporary file of that name was made by a run that has ended. False if that cannot be determined.
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
    if (action.sa_handler == SIG_IGN) continue;  // nohup and shells without job control ignore it on purpose
    action = {};
    action.sa_handler = remove_temporaries;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(number, &action, nullptr);
  }
  struct sigaction action = {};
  action.sa_sigaction = end_without_page;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_SIGINFO);
  ::sigaction(SIGBUS, &action, nullptr);
  // Then the write that exceeds a file size limit fails with an error, like on a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
}

fs::path temporary_folder() {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  return error ? fs::path("/tmp") : folder;
}

void LeftOver::remove_of(const fs::path& output) {
  const fs::path folder = folder_of(output);
  const auto [known, fresh] = temporaries_.try_emplace(folder);
  std::error_code error;
  if (fresh)
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      if (std::string name = entry->path().filename().string();
          name.starts_with('.') && name.ends_with(".tmp"))
        known->second.push_back(std::move(name));
  const std::string prefix = temporary_prefix(output.filename().string());
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
    remember(output_slots, path_);  // before the file exists, so that no signal can come in between
    if (Descriptor(::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode))) return;
    const int error = errno;
    forget_temporary(path_);
    if (error != EEXIST || attempt == 10) throw not_written(name_, error);
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

void SpillBuffer::append(std::span<const std::byte> bytes) {
  if (tail_.size() + bytes.size() > memory_limit_) {
    if (!file_) file_ = std::make_unique<UnnamedFile>(beside_, target_);
    file_->write(spilled_, tail_);
    spilled_ += tail_.size();
    tail_.clear();
    if (bytes.size() > memory_limit_) {
      file_->write(spilled_, bytes);
      spilled_ += bytes.size();
      return;
    }
  }
  tail_.insert(tail_.end(), bytes.begin(), bytes.end());
}

void SpillBuffer::truncate(uint64_t size) {
  if (size >= spilled_) {
    tail_.resize(static_cast<size_t>(std::min<uint64_t>(tail_.size(), size - spilled_)));
  } else {
    spilled_ = size;
    tail_.clear();
  }
}

void SpillBuffer::read(uint64_t position, std::span<std::byte> out) const {
  if (position < spilled_) {
    const auto front = static_cast<size_t>(std::min<uint64_t>(out.size(), spilled_ - position));
    file_->read(position, out.first(front));
    position += front;
    out = out.subspan(front);
  }
  if (!out.empty()) std::memcpy(out.data(), tail_.data() + (position - spilled_), out.size());
}

MappedFile::MappedFile(const std::string& file) : name_(file) {
  const Descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is refused
  if (!opened) throw bad_input("{}: cannot be opened: {}", file, std::strerror(errno));
  struct stat status = {};
  if (::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw bad_input("{}: is not a regular file", file);
  if (status.st_size == 0) return;
  const auto size = static_cast<size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.get(), 0);
  if (data == MAP_FAILED) throw failed("{}: cannot be mapped: {}", file, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
  const auto begin = reinterpret_cast<uintptr_t>(data);
  remember(mapped_slots, file, begin, begin + size);
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  forget(mapped_slots,
         [&](const NameSlot& slot) { return slot.begin == reinterpret_cast<uintptr_t>(bytes_.data()); });
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace kvcodec
