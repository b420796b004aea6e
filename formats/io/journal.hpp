// Files that change in place. A crash at any moment leaves a file in its old state or in its new one
// (FORMAT.md, "Journals").
//
// The writer appends new bytes behind the file's end, where no reader looks yet. It keeps its changes to
// earlier bytes in memory, as pages. When the new bytes are on disk, it writes these pages to FILE.journal: a
// redo log of one transaction, as in write-ahead logging (C. Mohan and others, "ARIES", ACM TODS 17, 1992).
// The change is committed when the journal is renamed to that name: from then on, readers take the journal's
// pages in place of the file's. Last, the writer copies the pages into the file and removes the journal.
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

#include "formats/io/output.hpp"

namespace kvcodec {

/// Changes to bytes of a file that are not copied into it yet.
class Overlay {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<std::byte, kPageBytes>;

  /// Bytes from here on are written to the file itself, where nobody reads them before the change is
  /// committed. UINT64_MAX until InPlace::begin(): all bytes go to the pages.
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

/// The change that was made to the file but is not copied into it: that of an InPlace of this process, or what its journal
/// says; nullptr where there is none. name: for messages. Throws Error(bad_input) for a journal that is damaged, or of another file.
std::shared_ptr<Overlay> find_overlay(const std::filesystem::path& path, int descriptor,
                                      const std::string& name);

/// Keeps the pages of a file from being copied into it while somebody reads it. Readers share the lock, which lasts as long as the
/// descriptor. False where the file system knows no locks.
bool lock_as_reader(int descriptor);

/// A file that is changed in place. Its maker must hold the file (HeldFile), so that there is one at a time.
class InPlace {
 public:
  /// name: for messages. Takes over what a journal says. Throws Error(failed) naming the file if it cannot be written to, or the
  /// journal if none can be made beside it.
  InPlace(std::filesystem::path path, std::string name);
  /// Without commit() the file is as it was.
  ~InPlace();
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  const std::shared_ptr<Overlay>& overlay() const { return overlay_; }
  int descriptor() const { return descriptor_; }  ///< of the file, open for reading and writing
  /// Begins the change. bytes: size of the file's valid content; begin() cuts off what an interrupted run
  /// left behind it.
  void begin(uint64_t bytes);
  /// Makes the change, or completes the one of the journal that was there if none was begun: once it returns, no crash undoes it. If readers hold their lock for more than two
  /// seconds, or the pages cannot be copied, the pages stay in the journal until the next change. Throws
  /// Error(failed) naming the file and the reason. The file is then as before, unless the error came after
  /// the journal got its name, or another host changed the file too, which saw no lock of this one.
  void commit();

 private:
  void check_has_its_name() const;
  void check_is_alone();
  void write_journal();
  bool copy_pages();

  std::filesystem::path path_;
  std::string name_;
  int descriptor_ = -1;
  uint64_t bytes_before_ = 0;
  bool begun_ = false;  // what was added is cut off unless it counts
  std::shared_ptr<Overlay> overlay_;
  std::unique_ptr<OutputFile> journal_;  // in the making
  // As it was when it was opened: the file's first page, and its journal, if there was one.
  std::unique_ptr<Overlay::Page> first_page_;
  std::optional<FileState> journal_before_;
};

/// Where the journal of a file lies; of a symbolic link beside what it leads to.
std::filesystem::path journal_of(const std::filesystem::path& file);

/// Throws Error(usage) if a file of another kind lies where the journal would: readers would take it for that. name: of the file, for
/// messages.
void refuse_false_journal(const std::filesystem::path& file, const std::string& name);
/// Removes the journal of a file that was replaced; a file of another kind stays.
void remove_journal(const std::filesystem::path& file);

}  // namespace kvcodec
