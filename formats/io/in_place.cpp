#include "formats/io/in_place.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

/// Whoever copies pages into a file waits for its readers, but not for those that read for hours.
constexpr auto kPatience = std::chrono::seconds(2);

Error not_changed(const std::string& name, int error) {
  return failed("{}: cannot be written: {}", name, std::strerror(error));
}

/// Locks the file's first byte against other runs that change it (readers lock the second, set_readers_lock); false
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
  return uninterrupted([&] { return ::fcntl(descriptor, F_OFD_SETLKW, &lock); }) == 0;
}

}  // namespace

Error changed_meanwhile(const std::string& name) {
  return failed(
      "{}: another run changed it after this one had read it; nothing is written. Run the command again",
      name);
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
      throw bad_input("{}: {}", name, std::strerror(errno));
    // The process that held it before may have put another file in its place.
    if (locked && (held.st_dev != named.st_dev || held.st_ino != named.st_ino)) continue;
    state_ = state_of(named);
    locked_ = locked && S_ISREG(held.st_mode);
    file_ = std::move(file);
    return;
  }
}

InPlace::InPlace(fs::path path, std::string name) : path_(std::move(path)), name_(std::move(name)) {
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  if (!file_) throw not_changed(name_, errno);
  journal_before_ = state_of(journal_of(path_));
  overlay_ = overlay_of_journal(path_, descriptor(), name_);
  first_page_ = std::make_unique<Overlay::Page>(first_page_of(descriptor(), name_));
  // Now, not after hours of work: the file may be writable where its folder is not.
  const fs::path journal = journal_of(path_);
  journal_ = std::make_unique<TemporaryFile>(journal, 0600, journal.string());
  if (!overlay_) overlay_ = std::make_shared<Overlay>();
  overlay_->complete = false;
  pending_ = std::make_unique<PendingOverlay>(descriptor(), overlay_);
}

InPlace::~InPlace() {
  // No reader counts the bytes that were added; if they cannot be cut off, the next change does it.
  if (begun_) [[maybe_unused]]
    const int ignored = ::ftruncate(descriptor(), static_cast<off_t>(bytes_before_));
}

void InPlace::begin(uint64_t bytes) {
  bytes_before_ = bytes;
  struct stat status = {};
  if (::fstat(descriptor(), &status) != 0) throw failed("{}: {}", name_, std::strerror(errno));
  if (static_cast<uint64_t>(status.st_size) > bytes &&
      ::ftruncate(descriptor(), static_cast<off_t>(bytes)) != 0)
    throw not_changed(name_, errno);
  overlay_->begin_of_new = (bytes + Overlay::kPageBytes - 1) / Overlay::kPageBytes * Overlay::kPageBytes;
  begun_ = true;
}

void InPlace::write_journal() {
  const std::vector<std::byte> bytes = journal_bytes_of(*overlay_, *first_page_);
  Descriptor journal(::open(journal_->path().c_str(), O_WRONLY | O_CLOEXEC));
  int error = journal ? 0 : errno;
  // The journal holds a page of the file: only those who may read the file may read the journal.
  if (struct stat status = {};
      !error && (::fstat(descriptor(), &status) != 0 || !copy_permissions(journal_->path(), status)))
    error = errno;
  if (!error) error = write_at(journal.get(), 0, bytes);
  if (journal && !journal.close() && !error) error = errno;
  if (error) throw not_changed(journal_of(path_).string(), error);
  journal_->sync();
}

bool InPlace::copy_pages() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!set_readers_lock(descriptor(), ReadersLock::copy)) {
    if ((errno != EAGAIN && errno != EACCES) || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (auto page = overlay_->pages.rbegin(); page != overlay_->pages.rend(); ++page) {  // the first one last
    const uint64_t begin = page->first * Overlay::kPageBytes;
    if (begin >= overlay_->end) continue;
    const uint64_t count = std::min(Overlay::kPageBytes, overlay_->end - begin);
    if (write_at(descriptor(), begin, std::span(*page->second).first(count)) != 0) return false;
  }
  struct stat status = {};
  if (::fstat(descriptor(), &status) != 0) return false;
  if (static_cast<uint64_t>(status.st_size) != overlay_->end &&
      ::ftruncate(descriptor(), static_cast<off_t>(overlay_->end)) != 0)
    return false;
  return ::fsync(descriptor()) == 0;
}

/// Whoever replaced the file in between holds no lock: mv, or a run that writes a product of the same name.
void InPlace::check_has_its_name() const {
  struct stat held = {}, named = {};
  if (::fstat(descriptor(), &held) != 0 || ::stat(path_.c_str(), &named) != 0 ||
      held.st_dev != named.st_dev || held.st_ino != named.st_ino)
    throw failed(
        "{}: another file took its place while this run changed it; nothing is added. Run the command again",
        name_);
}

/// Some file systems keep locks to one host: another one may change the file at the same time.
void InPlace::check_is_alone() {
  if (state_of(journal_of(path_)) == journal_before_ && first_page_of(descriptor(), name_) == *first_page_)
    return;
  begun_ = false;  // what the other one added may lie where this run would cut
  throw failed(
      "{}: a run on another host changed it at the same time, unseen by the locks of its file system; this one "
      "adds nothing. See by kvcodec check whether what that one added is whole",
      name_);
}

void InPlace::commit() {
  if (!begun_ && !journal_before_) return;  // nothing changes, and nothing is left to be completed
  check_has_its_name();
  check_is_alone();
  if (::fsync(descriptor()) != 0) throw not_changed(name_, errno);
  write_journal();
  begun_ = false;  // whatever fails from here on, the journal may have its name: then what was added counts
  journal_->take_name(journal_of(path_), true);
  sync_folder_of(path_, name_);
  if (copy_pages()) ::unlink(journal_of(path_).c_str());
  set_readers_lock(descriptor(), ReadersLock::none);
}

}  // namespace kvcodec
