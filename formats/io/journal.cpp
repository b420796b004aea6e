#include "formats/io/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/io/descriptor.hpp"
#include "kvcodec/version.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJournalSignature = "kvcodec journal 1\n", kAnyJournal = "kvcodec journal ";

// Changes of this process ---------------------------------------------------------------------------

using FileId = std::pair<dev_t, ino_t>;

std::optional<FileId> id_of(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

/// Changes that were not made yet, which only this process sees.
struct Pending {
  std::mutex mutex;
  std::map<FileId, std::weak_ptr<Overlay>> overlays;
};
Pending& pending() {
  static Pending instance;
  return instance;
}

// The journal ---------------------------------------------------------------------------------------

/// The head of a journal: signature, bytes of the file then, pages. Behind it stands the file's first page as it was before.
struct JournalHead {
  char signature[24] = {};
  uint64_t end = 0, pages = 0;
};
static_assert(sizeof(JournalHead) == 40);

/// Whether each sector of a page is that of one of the two others: power may fail while a page is written.
bool is_mixture(const Overlay::Page& page, const Overlay::Page& one, const Overlay::Page& other) {
  constexpr size_t kSectorBytes = 512;  // what storage writes whole
  for (size_t at = 0; at < page.size(); at += kSectorBytes)
    if (std::memcmp(page.data() + at, one.data() + at, kSectorBytes) != 0 &&
        std::memcmp(page.data() + at, other.data() + at, kSectorBytes) != 0)
      return false;
  return true;
}

class JournalReader {
 public:
  JournalReader(std::vector<std::byte> bytes, std::string name)
      : bytes_(std::move(bytes)), name_(std::move(name)) {
    if (bytes_.size() < sizeof head_) throw damaged();
    std::memcpy(&head_, bytes_.data(), sizeof head_);
    const std::string_view signature(head_.signature, sizeof head_.signature);
    if (signature.starts_with(kAnyJournal) && !signature.starts_with(kJournalSignature))
      throw bad_input("{}: is a journal of another version; kvcodec {} reads version 1", name_, kVersion);
    if (!signature.starts_with(kJournalSignature) || bytes_.size() < kBeginOfNumbers + sizeof(Digest128))
      throw damaged();
    const size_t rest = bytes_.size() - kBeginOfNumbers - sizeof(Digest128),
                 page = sizeof(uint64_t) + Overlay::kPageBytes;
    if (rest % page != 0 || rest / page != head_.pages) throw damaged();
    const auto all = std::span<const std::byte>(bytes_).first(bytes_.size() - sizeof(Digest128));
    const Digest128 digest = digest_of(all);
    if (!std::ranges::equal(digest, std::span(bytes_).last(sizeof(Digest128)))) throw damaged();
  }

  /// file_bytes: of the file without its change.
  std::shared_ptr<Overlay> overlay(uint64_t file_bytes) const {
    check_numbers(file_bytes);
    auto overlay = std::make_shared<Overlay>();
    overlay->end = head_.end;
    overlay->complete = true;
    const size_t pages = kBeginOfNumbers + head_.pages * sizeof(uint64_t);
    for (uint64_t i = 0; i < head_.pages; ++i)
      overlay->pages[page_number(i)] =
          std::make_unique<Overlay::Page>(page_at(pages + i * Overlay::kPageBytes));
    return overlay;
  }

  /// Whether a file with this first page is the one that changes, whose pages may be copied into it in part: the first one last.
  /// changed: that page with the change.
  bool is_of(const Overlay::Page& first, const Overlay::Page* changed) const {
    const Overlay::Page page = page_at(sizeof head_);
    return is_mixture(first, page, changed ? *changed : page);
  }

 private:
  Overlay::Page page_at(size_t position) const {
    Overlay::Page page;
    std::memcpy(page.data(), bytes_.data() + position, page.size());
    return page;
  }

  uint64_t page_number(uint64_t i) const {
    uint64_t number = 0;
    std::memcpy(&number, bytes_.data() + kBeginOfNumbers + i * sizeof number, sizeof number);
    return number;
  }

  /// Whoever wrote the journal on purpose wrote its digest too: places must rise and have an address, and sizes are those of
  /// bytes that are there.
  void check_numbers(uint64_t file_bytes) const {
    constexpr uint64_t kNeverWritten = uint64_t{1} << 20;  // what HDF5 set aside at the end
    if (head_.end > file_bytes + head_.pages * Overlay::kPageBytes + kNeverWritten) throw damaged();
    for (uint64_t i = 0; i < head_.pages; ++i) {
      const uint64_t number = page_number(i);
      if ((i > 0 && number <= page_number(i - 1)) || number > INT64_MAX / Overlay::kPageBytes - 1)
        throw damaged();
    }
  }

  Error damaged() const {
    return bad_input("{}: is damaged, and with it what was added last to its file", name_);
  }

  std::vector<std::byte> bytes_;
  std::string name_;
  JournalHead head_;
  static constexpr size_t kBeginOfNumbers = sizeof(JournalHead) + Overlay::kPageBytes;
};

/// Whether open() failed because nothing lies there; a name may be too long with ".journal" behind it.
bool means_nothing(int error) { return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG; }

/// All bytes of a file that is there; nothing if it is not.
std::optional<std::vector<std::byte>> bytes_of(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && means_nothing(errno)) return std::nullopt;
  struct stat status = {};
  int error = file && ::fstat(file.get(), &status) == 0 ? 0 : errno;
  std::vector<std::byte> bytes;
  if (!error && S_ISREG(status.st_mode)) {
    bytes.resize(static_cast<size_t>(status.st_size));
    error = read_or_zero(file.get(), 0, bytes);
  }
  if (error) throw bad_input("{}: {}", path.string(), std::strerror(error));
  return bytes;
}

/// Whether what lies there begins as a journal does; nothing if nothing lies there.
std::optional<bool> begins_as_journal(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return means_nothing(errno) ? std::nullopt : std::optional(false);
  std::array<char, kAnyJournal.size()> begin = {};
  const int error = read_or_zero(file.get(), 0, std::as_writable_bytes(std::span(begin)));
  return error == 0 && std::ranges::equal(begin, kAnyJournal);
}

}  // namespace

/// The journal's bytes behind each other: head, first page before, numbers of the pages, pages, and the digest of all of these.
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
  auto bytes = bytes_of(journal_of(path));
  if (!bytes) return nullptr;
  const JournalReader journal(std::move(*bytes), journal_of(path).string());
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) throw bad_input("{}: {}", name, std::strerror(errno));
  auto overlay = journal.overlay(static_cast<uint64_t>(status.st_size));
  const auto changed = overlay->pages.find(0);
  if (!journal.is_of(first_page_of(descriptor, name),
                     changed == overlay->pages.end() ? nullptr : changed->second.get()))
    throw bad_input("{}: is of another file; if {} was put in that one's place, remove the journal",
                    journal_of(path).string(), name);
  return overlay;
}

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
} catch (const std::bad_alloc&) {  // no exception may pass through HDF5, which calls this
  return ENOMEM;
}

std::shared_ptr<Overlay> find_overlay(const fs::path& path, int descriptor, const std::string& name) {
  if (const auto id = id_of(descriptor)) {
    const std::lock_guard lock(pending().mutex);
    if (const auto found = pending().overlays.find(*id); found != pending().overlays.end())
      if (auto overlay = found->second.lock(); overlay && overlay->complete) return overlay;
  }
  return overlay_of_journal(path, descriptor, name);
}

PendingOverlay::PendingOverlay(int descriptor, const std::shared_ptr<Overlay>& overlay)
    : file_(id_of(descriptor)) {
  if (!file_) return;
  const std::lock_guard lock(pending().mutex);
  pending().overlays[*file_] = overlay;
}

PendingOverlay::~PendingOverlay() {
  if (!file_) return;
  const std::lock_guard lock(pending().mutex);
  pending().overlays.erase(*file_);
}

bool set_readers_lock(int descriptor, ReadersLock wanted) {
  struct flock lock = {};
  lock.l_type = wanted == ReadersLock::read ? F_RDLCK : wanted == ReadersLock::copy ? F_WRLCK : F_UNLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = 1;
  lock.l_len = 1;
  const int command = wanted == ReadersLock::read ? F_OFD_SETLKW : F_OFD_SETLK;
  return uninterrupted([&] { return ::fcntl(descriptor, command, &lock); }) == 0;
}

}  // namespace kvcodec
