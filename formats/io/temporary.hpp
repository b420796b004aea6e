// Temporary files: those that become outputs when they are complete, and those that are gone with the process. A killed run leaves
// none behind, or such that the next run recognizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "formats/io/descriptor.hpp"

namespace kvcodec {

/// Installs signal handlers; for main(), once. SIGINT, SIGTERM, SIGHUP and SIGPIPE remove the temporary files
/// of this process, and then end it as usual. SIGBUS, which means that a mapped file was
/// shortened, removes them too; the program then prints that file's name and exits with status 1. SIGXFSZ is
/// ignored, so that a write beyond the file size limit is an ordinary write error.
void install_signal_cleanup();

/// The folder of temporary files that belong beside no other: TMPDIR, or /tmp.
std::filesystem::path temporary_folder();

/// Temporary files that killed runs left in the folders of outputs. Folders are listed once: who writes very many files into one
/// passes the same object to all of them.
class LeftOver {
 public:
  /// Removes what is left of this output and of its journal.
  void remove_of(const std::filesystem::path& output);

 private:
  std::map<std::filesystem::path, std::vector<std::string>> temporaries_;  // of each folder, whoever's
};

/// A new file that nobody else can have. Its destructor removes it, unless it took another name.
class TemporaryFile {
 public:
  /// stem: the name's beginning, by which LeftOver knows it. name: for messages. Throws Error(failed).
  TemporaryFile(const std::filesystem::path& folder, const std::string& stem, mode_t mode, std::string name);
  /// A file beside the one that it will replace.
  TemporaryFile(const std::filesystem::path& beside, mode_t mode, std::string name)
      : TemporaryFile(folder_of(beside), beside.filename().string(), mode, std::move(name)) {}
  ~TemporaryFile() { remove(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// To disk. Throws Error(failed).
  void sync() const;
  /// Takes the place of a file. overwrite: false throws Error(usage) where a file has that name, on file systems that can rename
  /// without replacing; for others the caller must have looked. Throws Error(failed).
  void take_name(const std::filesystem::path& target, bool overwrite);
  void remove();

 private:
  std::filesystem::path path_;
  std::string name_;
};

/// Makes a new name of a file last. name: for messages. Throws Error(failed).
void sync_folder_of(const std::filesystem::path& file, const std::string& name);

/// A temporary file without a name, gone with the process, in the folder of `beside`. Throws Error(failed)
/// naming `target`.
class UnnamedFile {
 public:
  UnnamedFile(const std::filesystem::path& beside, std::string target);

  void write(uint64_t position, std::span<const std::byte> bytes);
  void read(uint64_t position, std::span<std::byte> out) const;

 private:
  std::string target_;
  Descriptor file_;
};

/// Such a file by its descriptor alone. stem: of the name that it has for a moment.
Descriptor open_unnamed(const std::filesystem::path& folder, const std::string& stem,
                        const std::string& target);

/// A growing run of bytes that can be cut at its end: in memory while it is short, the front of it in a file
/// without a name when it is not.
class SpillBuffer {
 public:
  /// beside: the file whose folder takes the spill. target: what to name in messages about a full disk.
  SpillBuffer(std::filesystem::path beside, std::string target, size_t memory_limit = kMemoryLimit)
      : beside_(std::move(beside)), target_(std::move(target)), memory_limit_(memory_limit) {}

  uint64_t size() const { return spilled_ + tail_.size(); }
  void append(std::span<const std::byte> bytes);
  /// Keeps the first `size` bytes.
  void truncate(uint64_t size);
  /// Bytes [position, position + out.size()), which are there.
  void read(uint64_t position, std::span<std::byte> out) const;
  size_t memory() const { return tail_.capacity(); }

  /// A codec has some eight streams; together they stay small beside a chunk of rows.
  static constexpr size_t kMemoryLimit = size_t{4} << 20;

 private:
  std::filesystem::path beside_;
  std::string target_;
  size_t memory_limit_;
  std::unique_ptr<UnnamedFile> file_;
  uint64_t spilled_ = 0;         // bytes in the file that count
  std::vector<std::byte> tail_;  // what follows them
};

}  // namespace kvcodec
