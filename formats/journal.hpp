// Files that change in place, so that a crash at any moment leaves them as they were or as they were to be (FORMAT.md,
// "Journals").
//
// What is added lies behind the file's end, where nobody looks yet. What changes of the bytes before that end is kept in
// memory, in pages, and is written to FILE.journal when everything else is on the disk: a redo log of one transaction (as write-ahead
// logs are, C. Mohan and others, "ARIES", ACM TODS 17, 1992). From the moment that the journal has its name, the change is
// made: who opens the file reads the journal's pages in the place of the file's. Then they are copied into the file, and the journal goes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace kvcodec {

/// What changes of the bytes that a file has.
class Overlay {
 public:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<std::byte, kPageBytes>;

  /// Bytes from here on lie in the file itself: before the change is made nobody reads them. Everything until it is known.
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
bool lock_for_reading(int descriptor);

/// A file that is changed in place. Who makes one holds the file (HeldFile), so that there is one at a time.
class InPlace {
 public:
  /// name: for messages. Takes over what a journal says. Throws Error(failed) naming the file if it cannot be written to.
  InPlace(std::filesystem::path path, std::string name);
  /// Without commit() the file is as it was.
  ~InPlace();
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  const std::shared_ptr<Overlay>& overlay() const { return overlay_; }
  /// The file had so many bytes that count; what lies behind them, left by a run that did not end, is cut off.
  void begin(uint64_t bytes);
  /// Makes the change: on return it lasts, whatever happens. If somebody reads the file, its pages stay in the journal, until the
  /// next change. Throws Error(failed) naming the file and the reason; then nothing is changed.
  void commit();

 private:
  void write_journal();
  bool copy_pages();

  std::filesystem::path path_;
  std::string name_;
  int descriptor_ = -1;
  uint64_t bytes_before_ = 0;
  bool begun_ = false;  // what was added is cut off unless it counts
  std::shared_ptr<Overlay> overlay_;
};

/// Where the journal of a file lies.
std::filesystem::path journal_of(const std::filesystem::path& file);

}  // namespace kvcodec
