// Journals: pages that take the place of a file's, until they are copied into it (FORMAT.md, "Journals"). Readers need no more
// than this; formats/io/in_place.hpp writes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace kvcodec {

/// Changes to bytes of a file that are not copied into it yet.
class Overlay {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<std::byte, kPageBytes>;

  /// Bytes from here on are written to the file itself, where nobody reads them before the change is
  /// committed. UINT64_MAX until the change begins: all bytes go to the pages.
  uint64_t begin_of_new = UINT64_MAX;
  /// Bytes that the file has once the change is made.
  uint64_t end = 0;
  /// Whether the change is all there, so that it can be read.
  bool complete = false;
  std::map<uint64_t, std::unique_ptr<Page>> pages;  ///< by their numbers

  /// Puts what the pages have in the place of what was read at `position`.
  void patch(uint64_t position, std::span<std::byte> bytes) const;
  /// Bytes before begin_of_new. A page that does not change is not kept. descriptor: of the file. Returns an errno, or 0.
  int write(uint64_t position, std::span<const std::byte> bytes, int descriptor);
};

/// The change that was made to the file but is not copied into it: one that this process has not made yet, or what its journal
/// says; nullptr where there is none. name: for messages. Throws Error(bad_input) for a journal that is damaged, or of another file.
std::shared_ptr<Overlay> find_overlay(const std::filesystem::path& path, int descriptor,
                                      const std::string& name);
/// The pages that the journal replaces, from the journal alone.
std::shared_ptr<Overlay> overlay_of_journal(const std::filesystem::path& path, int descriptor,
                                            const std::string& name);

/// Makes a change known to find_overlay() in this process, as long as this lives.
class PendingOverlay {
 public:
  PendingOverlay(int descriptor, const std::shared_ptr<Overlay>& overlay);
  ~PendingOverlay();
  PendingOverlay(const PendingOverlay&) = delete;
  PendingOverlay& operator=(const PendingOverlay&) = delete;

 private:
  std::optional<std::pair<dev_t, ino_t>> file_;
};

/// A journal's bytes. first_page: the file's as it was before.
std::vector<std::byte> journal_bytes_of(const Overlay& overlay, const Overlay::Page& first_page);

/// The first page of a file. Throws Error(bad_input).
Overlay::Page first_page_of(int descriptor, const std::string& name);

/// How the file's second byte is locked. Those who change the file lock its first one (formats/io/in_place.hpp).
enum class ReadersLock : uint8_t {
  read,  ///< waits; readers share it, and it keeps pages from being copied into the file
  copy,  ///< of whoever copies pages; does not wait
  none,
};
/// False where it is not to be had; the file system may know no locks. A lock lasts as long as the descriptor.
bool set_readers_lock(int descriptor, ReadersLock lock);
/// Keeps the pages of a file from being copied into it while somebody reads it.
inline bool lock_as_reader(int descriptor) { return set_readers_lock(descriptor, ReadersLock::read); }

/// The path of a file's journal: beside the file, or beside what a symbolic link leads to.
std::filesystem::path journal_of(const std::filesystem::path& file);

/// Throws Error(usage) if a file of another kind lies where the journal would: readers would take it for that. name: of the file, for
/// messages.
void refuse_false_journal(const std::filesystem::path& file, const std::string& name);
/// Removes the journal of a file that was replaced; a file of another kind stays.
void remove_journal(const std::filesystem::path& file);

}  // namespace kvcodec
