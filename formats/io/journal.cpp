#include "formats/io/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvcodec/version.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJournalSignature = "kvcodec journal 1\n", kAnyJournal = "kvcodec journal ";

// Changes of this process ---------------------------------------------------------------------------

/// Changes that are not committed yet, which only this process sees, by FileState::file().
struct Pending {
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Overlay>> overlays;
};
Pending& pending() {
  static Pending instance;
  return instance;
}

// The journal ---------------------------------------------------------------------------------------

/// The head of a journal: signature, size of the file after the change, number of pages. The file's first page before the change follows.
struct JournalHead {
  char signature[24] = {};
  uint64_t end = 0, pages = 0;
};
static_assert(sizeof(JournalHead) == 40);

class JournalReader {
 public:
  /// file: what the journal belongs to, for messages; owner: of that file. Sizes and signature are checked before the rest is read,
  /// and that is read piece by piece: a journal may be made up.
  JournalReader(Descriptor journal, std::string name, const std::string& file, uid_t owner)
      : journal_(std::move(journal)), name_(std::move(name)) {
    struct stat status = {};
    if (::fstat(journal_.get(), &status) != 0) throw bad_input("{}: {}", name_, std::strerror(errno));
    // Otherwise everyone who may write to the folder could change the file.
    if (status.st_uid != owner && status.st_uid != ::geteuid() && status.st_uid != 0)
      throw bad_input(
          "{}: belongs to user {}, who is neither the owner of {} nor you; let one of these own it, or remove it, "
          "and with it what was added last",
          name_, status.st_uid, file);
    const uint64_t size = S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 0;
    if (size < sizeof head_) throw damaged();
    read(0, std::as_writable_bytes(std::span(&head_, 1)));
    const std::string_view signature(head_.signature, sizeof head_.signature);
    if (signature.starts_with(kAnyJournal) && !signature.starts_with(kJournalSignature))
      throw bad_input("{}: is a journal of another version; kvcodec {} reads version 1", name_, kVersion);
    if (!signature.starts_with(kJournalSignature) || size < kBeginOfNumbers + sizeof(Digest128))
      throw damaged();
    const uint64_t rest = size - kBeginOfNumbers - sizeof(Digest128),
                   page_bytes = sizeof(uint64_t) + Overlay::kPageBytes;
    if (rest % page_bytes != 0 || rest / page_bytes != head_.pages) throw damaged();
    if (digest_of_first(size - sizeof(Digest128)) != at<Digest128>(size - sizeof(Digest128))) throw damaged();
  }

  /// file_bytes: size of the file without its change.
  std::shared_ptr<Overlay> overlay(uint64_t file_bytes) const {
    // A forged journal may have a valid digest: page numbers must rise and have an address, and sizes must be possible.
    constexpr uint64_t kNeverWritten = uint64_t{1} << 20;  // HDF5 reserved it at the end
    if (head_.end > file_bytes + head_.pages * Overlay::kPageBytes + kNeverWritten) throw damaged();
    auto overlay = std::make_shared<Overlay>();
    overlay->end = head_.end;
    overlay->complete = true;
    for (uint64_t i = 0; i < head_.pages; ++i) {
      const uint64_t number = page_number(i);
      if ((i > 0 && number <= page_number(i - 1)) || number > INT64_MAX / Overlay::kPageBytes - 1)
        throw damaged();
      overlay->pages[number] = std::make_unique<Overlay::Page>(page(i));
    }
    return overlay;
  }

  /// The file to which the journal belongs.
  enum class Whose : uint8_t { this_file, another, unknown };

  /// first: the file's first page. Pages may be partly copied into the file, the first one last.
  Whose whose(const Overlay::Page& first) const {
    const auto before = at<Overlay::Page>(sizeof head_);
    const auto after = head_.pages > 0 && page_number(0) == 0 ? page(0) : before;
    // Power may fail while a page is written: each sector is that of one of the two.
    constexpr size_t kSectorBytes = 512;  // storage writes it whole
    for (size_t place = 0; place < first.size(); place += kSectorBytes)
      if (std::memcmp(first.data() + place, before.data() + place, kSectorBytes) != 0 &&
          std::memcmp(first.data() + place, after.data() + place, kSectorBytes) != 0)
        // The first sector begins with the file's size and the header of the root group, which no two states of files share.
        // Both have checksums: damage there is seen, and not taken for another file.
        return place == 0 ? Whose::another : Whose::unknown;
    return Whose::this_file;
  }

 private:
  void read(uint64_t position, std::span<std::byte> out) const {
    if (const int error = read_or_zero(journal_.get(), position, out))
      throw bad_input("{}: {}", name_, std::strerror(error));
  }

  template <class T>
  T at(uint64_t position) const {
    T value;
    read(position, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  uint64_t page_number(uint64_t i) const { return at<uint64_t>(kBeginOfNumbers + i * sizeof(uint64_t)); }
  Overlay::Page page(uint64_t i) const {
    return at<Overlay::Page>(kBeginOfNumbers + head_.pages * sizeof(uint64_t) + i * Overlay::kPageBytes);
  }

  Digest128 digest_of_first(uint64_t bytes) const {
    constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
    std::vector<std::byte> piece(std::min(bytes, kPieceBytes));
    Digest digest;
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      piece.resize(std::min(bytes - done, kPieceBytes));
      read(done, piece);
      digest.add(std::span<const std::byte>(piece));
    }
    return digest.value();
  }

  Error damaged() const {
    return bad_input("{}: is damaged, and with it what was added last to its file", name_);
  }

  Descriptor journal_;
  std::string name_;
  JournalHead head_;
  static constexpr uint64_t kBeginOfNumbers = sizeof(JournalHead) + Overlay::kPageBytes;
};

/// True if open() failed because nothing exists there; a name may be too long with ".journal" after it.
bool means_nothing(int error) { return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG; }

/// True if the file there begins like a journal; std::nullopt if there is none.
std::optional<bool> begins_as_journal(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return means_nothing(errno) ? std::nullopt : std::optional(false);
  std::array<char, kAnyJournal.size()> begin = {};
  const int error = read_or_zero(file.get(), 0, std::as_writable_bytes(std::span(begin)));
  return error == 0 && std::ranges::equal(begin, kAnyJournal);
}

/// The bytes of a journal: head, first page before the change, numbers of the pages, pages, and the digest of all these.
std::vector<std::byte> journal_bytes_of(const Overlay& overlay, const Overlay::Page& first_page) {
  JournalHead head{.end = overlay.end, .pages = overlay.pages.size()};
  std::ranges::copy(kJournalSignature, head.signature);
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  add(std::as_bytes(std::span(&head, 1)));
  add(first_page);
  for (const auto& [number, page] : overlay.pages) add(std::as_bytes(std::span(&number, 1)));
  for (const auto& [number, page] : overlay.pages) add(*page);
  add(digest_of(bytes));
  return bytes;
}

Overlay::Page first_page_of(int descriptor, const std::string& name) {
  Overlay::Page page;
  if (const int error = read_or_zero(descriptor, 0, page))
    throw bad_input("{}: {}", name, std::strerror(error));
  return page;
}

std::shared_ptr<Overlay> overlay_of_journal(const fs::path& path, int descriptor, const std::string& name) {
  const std::string journal_name = journal_of(path).string();
  Descriptor file(::open(journal_name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && means_nothing(errno)) return nullptr;
  struct stat status = {};
  if (!file) throw bad_input("{}: {}", journal_name, std::strerror(errno));
  if (::fstat(descriptor, &status) != 0) throw bad_input("{}: {}", name, std::strerror(errno));
  const JournalReader journal(std::move(file), journal_name, name, status.st_uid);
  switch (journal.whose(first_page_of(descriptor, name))) {
    case JournalReader::Whose::this_file:
      return journal.overlay(static_cast<uint64_t>(status.st_size));
    case JournalReader::Whose::another:
      return nullptr;  // that of a file which another one replaced
    default:
      break;
  }
  throw bad_input(
      "{}: is of another file, or {} is damaged; if {} was put in that one's place, remove the journal",
      journal_name, name, name);
}

/// The bytes of a file that are locked: one by runs that change it (HeldFile), and one by readers, who share it; it keeps pages from
/// being copied into the file.
constexpr off_t kChangersByte = 0, kReadersByte = 1;

/// Locks the byte, or unlocks it. Returns false, and errno, if the lock is not available. The lock belongs to the descriptor, and is of
/// another kind than that of HDF5's readers; but on NFS theirs covers all bytes, so this waits for it.
bool set_lock(int descriptor, off_t byte, decltype(flock::l_type) type, bool waits = false) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return uninterrupted([&] { return ::fcntl(descriptor, waits ? F_OFD_SETLKW : F_OFD_SETLK, &lock); }) == 0;
}
bool another_holds(int error) { return error == EAGAIN || error == EACCES; }

/// Copying pages into a file waits for its readers, but not for those that read for hours.
constexpr auto kPatience = std::chrono::seconds(2);

/// Locks the file against other runs that change it; false, and errno, if the file system cannot.
bool lock_for_changing(int descriptor, const std::function<void()>& waiting) {
  if (set_lock(descriptor, kChangersByte, F_WRLCK)) return true;
  if (!another_holds(errno)) return false;
  waiting();
  return set_lock(descriptor, kChangersByte, F_WRLCK, true);
}

/// Copies the pages of a change into the file, which nobody reads, and removes the journal. The pages stay there if that fails.
void complete(const Overlay& overlay, const fs::path& path, int descriptor) {
  // The first page comes last.
  for (auto page = overlay.pages.rbegin(); page != overlay.pages.rend(); ++page) {
    const uint64_t begin = page->first * Overlay::kPageBytes;
    if (begin >= overlay.end) continue;
    const uint64_t count = std::min(Overlay::kPageBytes, overlay.end - begin);
    if (write_at(descriptor, begin, std::span(*page->second).first(count)) != 0) return;
  }
  const auto state = state_of(descriptor);
  if (!state ||
      (state->size != overlay.end && ::ftruncate(descriptor, static_cast<off_t>(overlay.end)) != 0) ||
      ::fsync(descriptor) != 0)
    return;
  // The journal of a file that took the place of this one stays.
  if (const auto named = state_of(path); named && named->file() == state->file())
    ::unlink(journal_of(path).c_str());
}

/// Completes the change in the journal of a file that this process has locked for changing, if nobody reads the file.
void complete_if_unread(const fs::path& path, int descriptor, const std::string& name) {
  const fs::path journal = journal_of(path);
  if (!state_of(journal) || ::faccessat(AT_FDCWD, folder_of(journal).c_str(), W_OK, AT_EACCESS) != 0) return;
  if (!set_lock(descriptor, kReadersByte, F_WRLCK)) return;
  if (const auto overlay = overlay_of_journal(path, descriptor, name)) complete(*overlay, path, descriptor);
  set_lock(descriptor, kReadersByte, F_UNLCK);
}

}  // namespace

fs::path journal_of(const fs::path& file) { return behind_links(file).string() + ".journal"; }

void refuse_false_journal(const fs::path& file, const std::string& name) {
  const fs::path journal = journal_of(file);
  if (!begins_as_journal(journal).value_or(true))
    throw usage_error(
        "{}: is no journal of this program, but readers would take it for that of {}; move it, or name another "
        "output",
        journal.string(), name);
}

void remove_journal(const fs::path& file) {
  const fs::path journal = journal_of(file);
  if (begins_as_journal(journal).value_or(false)) ::unlink(journal.c_str());
}

void Overlay::patch(uint64_t position, std::span<std::byte> bytes) const {
  if (pages.empty() || bytes.empty()) return;
  const uint64_t end_position = position + bytes.size();
  for (auto page = pages.lower_bound(position / kPageBytes); page != pages.end(); ++page) {
    const uint64_t begin = page->first * kPageBytes;
    if (begin >= end_position) break;
    const uint64_t from = std::max(begin, position), to = std::min(begin + kPageBytes, end_position);
    std::memcpy(bytes.data() + (from - position), page->second->data() + (from - begin), to - from);
  }
}

int Overlay::write(uint64_t position, std::span<const std::byte> bytes, int descriptor) try {
  while (!bytes.empty()) {
    const uint64_t number = position / kPageBytes, within = position % kPageBytes;
    const size_t n = std::min<size_t>(bytes.size(), kPageBytes - within);
    auto page = pages.find(number);
    if (page == pages.end()) {
      auto fresh = std::make_unique<Page>();
      if (const int error = read_or_zero(descriptor, number * kPageBytes, *fresh)) return error;
      if (std::memcmp(fresh->data() + within, bytes.data(), n) != 0)
        page = pages.emplace(number, std::move(fresh)).first;
    }
    if (page != pages.end()) std::memcpy(page->second->data() + within, bytes.data(), n);
    position += n;
    bytes = bytes.subspan(n);
  }
  return 0;
} catch (const std::bad_alloc&) {  // HDF5 calls this, and no exception may pass through it
  return ENOMEM;
}

std::shared_ptr<Overlay> find_overlay(const fs::path& path, int descriptor, const std::string& name) {
  if (const auto state = state_of(descriptor)) {
    const std::lock_guard lock(pending().mutex);
    if (const auto found = pending().overlays.find(state->file()); found != pending().overlays.end())
      if (auto overlay = found->second.lock(); overlay && overlay->complete) return overlay;
  }
  return overlay_of_journal(path, descriptor, name);
}

// Changes ----------------------------------------------------------------------------------------------

void lock_as_reader(int descriptor) { set_lock(descriptor, kReadersByte, F_RDLCK, true); }

void complete_change(const fs::path& path, const std::string& name) {
  if (!state_of(journal_of(path))) return;
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (file && set_lock(file.get(), kChangersByte, F_WRLCK)) complete_if_unread(path, file.get(), name);
}

HeldFile::HeldFile(const std::string& name, const std::function<void()>& waiting) {
  const auto say_once = [&, said = false]() mutable {
    if (!std::exchange(said, true)) waiting();
  };
  for (;;) {
    Descriptor file(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    const bool locked = file && lock_for_changing(file.get(), say_once);
    lock_error_ = locked ? 0 : errno;
    if (!file) file = Descriptor(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat held = {}, named = {};
    if (!file || ::fstat(file.get(), &held) != 0 || ::stat(name.c_str(), &named) != 0)
      throw bad_input("{}: {}", name, std::strerror(errno));
    // The process that held the lock may have put another file in its place.
    if (locked && (held.st_dev != named.st_dev || held.st_ino != named.st_ino)) continue;
    if (locked) complete_if_unread(name, file.get(), name);
    state_ = state_of(file.get()).value_or(state_of(named));
    locked_ = locked && S_ISREG(held.st_mode);
    file_ = std::move(file);
    return;
  }
}

InPlace::InPlace(fs::path path, std::string name) : path_(std::move(path)), name_(std::move(name)) {
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  if (!file_) throw not_written(name_);
  opened_ = state_of(descriptor());
  journal_before_ = state_of(journal_of(path_));
  overlay_ = overlay_of_journal(path_, descriptor(), name_);
  unfinished_ = overlay_ != nullptr;
  first_page_ = std::make_unique<Overlay::Page>(first_page_of(descriptor(), name_));
  // Checked now, not after hours of work: the file may be writable although its folder is not.
  const fs::path journal = journal_of(path_);
  journal_ = std::make_unique<TemporaryFile>(journal, 0600, journal.string());
  if (!overlay_) overlay_ = std::make_shared<Overlay>();
  overlay_->complete = false;
  if (!opened_) return;
  const std::lock_guard lock(pending().mutex);
  pending().overlays[opened_->file()] = overlay_;
}

InPlace::~InPlace() {
  // No reader uses the added bytes; if they cannot be cut off, the next change does it.
  if (begun_) [[maybe_unused]]
    const int ignored = ::ftruncate(descriptor(), static_cast<off_t>(bytes_before_));
  if (!opened_) return;
  const std::lock_guard lock(pending().mutex);
  pending().overlays.erase(opened_->file());
}

void InPlace::begin(uint64_t bytes) {
  bytes_before_ = bytes;
  const auto state = state_of(descriptor());
  if (!state) throw failed("{}: {}", name_, std::strerror(errno));
  if (state->size > bytes && ::ftruncate(descriptor(), static_cast<off_t>(bytes)) != 0)
    throw not_written(name_);
  overlay_->begin_of_new = (bytes + Overlay::kPageBytes - 1) / Overlay::kPageBytes * Overlay::kPageBytes;
  begun_ = true;
}

void InPlace::write_journal() {
  const std::vector<std::byte> bytes = journal_bytes_of(*overlay_, *first_page_);
  Descriptor journal(::open(journal_->path().c_str(), O_WRONLY | O_CLOEXEC));
  int error = journal ? 0 : errno;
  // The journal holds a page of the file: only users that may read the file may read the journal.
  if (struct stat status = {};
      !error && (::fstat(descriptor(), &status) != 0 || !copy_permissions(journal_->path(), status)))
    error = errno;
  if (!error) error = write_at(journal.get(), 0, bytes);
  if (journal && !journal.close() && !error) error = errno;
  if (error) throw not_written(journal_of(path_).string(), error);
  journal_->sync();
}

/// Waits for readers, but not for long.
void InPlace::copy_pages() {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!set_lock(descriptor(), kReadersByte, F_WRLCK)) {
    if (!another_holds(errno) || std::chrono::steady_clock::now() > end) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  complete(*overlay_, path_, descriptor());
  set_lock(descriptor(), kReadersByte, F_UNLCK);
}

void InPlace::commit() {
  if (!begun_ && !unfinished_) return;  // nothing changes, and nothing is left to complete
  // A process that replaced the file meanwhile holds no lock: mv, or a run that writes an output of the same name.
  const auto held = state_of(descriptor()), named = state_of(path_);
  if (!held || !named || held->file() != named->file())
    throw failed(
        "{}: another file took its place while this run changed it; nothing is added. Run the command again",
        name_);
  // Some file systems limit locks to one host: another host may change the file at the same time.
  if (state_of(journal_of(path_)) != journal_before_ || first_page_of(descriptor(), name_) != *first_page_) {
    begun_ = false;  // this run would cut off bytes of the other host
    throw failed(
        "{}: a run on another host changed it at the same time, unseen by the locks of its file system; this one "
        "adds nothing. See by kvcodec check whether what that one added is whole",
        name_);
  }
  if (::fsync(descriptor()) != 0) throw not_written(name_);
  write_journal();
  begun_ = false;  // after any later error the journal may have its name: then the added bytes count
  journal_->take_name(journal_of(path_), true);
  sync_folder_of(path_, name_);
  copy_pages();
}

}  // namespace kvcodec
