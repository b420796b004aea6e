// Files that are changed in place. A crash at any moment leaves a file in its old state or in its new one (FORMAT.md, "Journals").
//
// The writer appends new bytes after the end of the file, where no reader looks yet. It keeps changes of earlier bytes in memory,
// as pages. When the new bytes are on disk, it writes these pages to FILE.journal: a redo log of one transaction, as in write-ahead
// logging (C. Mohan and others, "ARIES", ACM TODS 17, 1992). The change is committed when the journal is renamed to that name: from
// then on, readers use the journal's pages instead of those of the file. Finally, the writer copies the pages into the file and
// removes the journal. While somebody reads the file it leaves that to the next process that opens the file and may write to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "formats/io/temporary.hpp"

namespace kvcodec {

/// Changes of a file's bytes that are not copied into it yet.
class Overlay {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<std::byte, kPageBytes>;

  /// Bytes from here on are written to the file itself, where nobody reads them before the change is committed. UINT64_MAX until
  /// the change begins: all bytes go to the pages.
  uint64_t begin_of_new = UINT64_MAX;
  /// Size of the file after the change, in bytes.
  uint64_t end = 0;
  /// True if the change is complete, so that it can be read.
  bool complete = false;
  std::map<uint64_t, std::unique_ptr<Page>> pages;  ///< by their numbers

  /// Replaces bytes that were read at `position` by those of the pages.
  void patch(uint64_t position, std::span<std::byte> bytes) const;
  /// Writes bytes before begin_of_new. A page that does not change is not kept. descriptor: that of the file. Returns an errno, or 0.
  int write(uint64_t position, std::span<const std::byte> bytes, int descriptor);
};

/// The change of the file that is not copied into it: one that this process has not committed yet, or the one in its journal;
/// nullptr if there is none, or if the journal is that of a file which this one replaced. name: for messages. Throws
/// Error(bad_input) for a journal that is damaged, or that belongs to a user who owns neither the file nor this process.
std::shared_ptr<Overlay> find_overlay(const std::filesystem::path& path, int descriptor,
                                      const std::string& name);

/// Prevents pages from being copied into a file while it is being read: waits for a lock that readers share, on the file's second
/// byte. The lock lasts as long as the descriptor; some file systems have none.
void lock_as_reader(int descriptor);

/// Completes the change in a file's journal, if this process may write to both and nobody else holds or reads the file. Call it before
/// lock_as_reader(). Throws as find_overlay().
void complete_change(const std::filesystem::path& path, const std::string& name);

/// The path of a file's journal: beside the file, or beside the target of a symbolic link.
std::filesystem::path journal_of(const std::filesystem::path& file);

/// Throws Error(usage) if a file of another kind lies at the path of the journal: readers would take it for the journal. name: that
/// of the file, for messages.
void refuse_false_journal(const std::filesystem::path& file, const std::string& name);
/// Removes the journal of a file that was replaced; a file of another kind stays.
void remove_journal(const std::filesystem::path& file);

/// Holds a file that is read and then replaced by an output, so that two runs that add to the same file take turns and neither
/// loses the other's additions. Readers are not kept out.
class HeldFile {
 public:
  /// Completes the change in a journal that a reader made stay, if nobody reads the file now. waiting() is called once before
  /// waiting: if another run holds the file, or on NFS if a program reads it by HDF5. If the file system has no locks, or the file is
  /// not writable, it is not held; OutputFile::replaces still detects changes. Throws Error(bad_input) naming the file if it cannot be
  /// opened, or the journal as find_overlay().
  HeldFile(const std::string& name, const std::function<void()>& waiting);
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  const FileState& state() const { return state_; }  ///< when it was held
  /// True if the file can be changed in place: it is a regular file, and its file system has locks.
  bool changeable() const { return locked_; }
  /// Why no other run is kept out: an errno; 0 if they wait.
  int lock_error() const { return lock_error_; }

 private:
  Descriptor file_;
  bool locked_ = false;
  int lock_error_ = 0;
  FileState state_;
};

/// The error for a file that another run replaced or changed after it was read.
inline Error changed_meanwhile(const std::string& name) {
  return failed(
      "{}: another run changed it after this one had read it; nothing is written. Run the command again",
      name);
}

/// A file that is changed in place. The caller must hold the file (HeldFile), so that only one run changes it at a time.
class InPlace {
 public:
  /// name: for messages. Completes the change in a journal, if there is one. Throws Error(failed) naming the file if it is not
  /// writable, or the journal if it cannot be created beside the file. From now on find_overlay() in this process sees the change.
  InPlace(std::filesystem::path path, std::string name);
  /// Without commit() the file keeps its old state.
  ~InPlace();
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  const std::shared_ptr<Overlay>& overlay() const { return overlay_; }
  int descriptor() const { return file_.get(); }  ///< of the file, open for reading and writing
  /// Begins the change. bytes: size of the file's valid content; begin() cuts off the bytes that an interrupted run left after it.
  void begin(uint64_t bytes);
  /// Makes the change, or completes the one in an earlier journal if none was begun: once it returns, no crash undoes it. If readers hold
  /// their lock for more than two seconds, or the pages cannot be copied, the pages stay in the journal until the next change. Throws
  /// Error(failed) naming the file and the reason. The file is then unchanged, unless the error came after the journal got its name, or
  /// another host, which does not see locks of this one, also changed the file.
  void commit();

 private:
  void write_journal();
  void copy_pages();

  std::filesystem::path path_;
  std::string name_;
  Descriptor file_;
  std::optional<FileState> opened_;  // state of the file then
  uint64_t bytes_before_ = 0;
  bool begun_ = false;       // then the destructor cuts off the added bytes
  bool unfinished_ = false;  // a change in a journal was there before
  std::shared_ptr<Overlay> overlay_;
  std::unique_ptr<TemporaryFile> journal_;  // the journal that is being written
  // State when the file was opened: its first page, and its journal, if there was one.
  std::unique_ptr<Overlay::Page> first_page_;
  std::optional<FileState> journal_before_;
};

}  // namespace kvcodec
