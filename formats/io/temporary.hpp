// Temporary files: those that become outputs when they are complete, and those that vanish with the process. A killed run leaves
// none behind, or only files that the next run removes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "formats/io/descriptor.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

/// Installs signal handlers; main() calls it once. SIGINT, SIGTERM, SIGHUP and SIGPIPE remove the temporary files of this process,
/// and then end it as usual. SIGBUS, which means that a mapped file was shortened, removes them too; the program then prints that
/// file's name and exits with status 1. SIGXFSZ is ignored, so that a write beyond the file size limit is an ordinary write error.
void install_signal_cleanup();

/// The error for a file that cannot be written.
inline Error not_written(const std::string& name, int number = errno) {
  return failed("{}: cannot be written: {}", name, std::strerror(number));
}

/// The folder for temporary files that need not lie beside another file: TMPDIR, or /tmp.
std::filesystem::path temporary_folder();

/// Temporary files that killed runs left in the folders of outputs. Each folder is listed once: code that writes very many files
/// into one folder passes the same object to all of them.
class LeftOver {
 public:
  /// Removes the temporary files of this output and of its journal.
  void remove_of(const std::filesystem::path& output);

 private:
  std::map<std::filesystem::path, std::vector<std::string>> temporaries_;  // of each folder, from any output
};

/// A new file with a unique name. Its destructor removes it, unless it took another name.
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

  /// Flushes the file to disk. Throws Error(failed).
  void sync() const;
  /// Renames the file to `target`. overwrite: false throws Error(usage) if a file has that name, on file systems that can rename
  /// without replacing; for others the caller must have checked. Throws Error(failed).
  void take_name(const std::filesystem::path& target, bool overwrite);
  void remove();

 private:
  std::filesystem::path path_;
  std::string name_;
};

/// Makes a new name in the file's folder durable. name: for messages. Throws Error(failed).
void sync_folder_of(const std::filesystem::path& file, const std::string& name);

/// A temporary file without a name, in the folder of `beside`; it vanishes with the process. Throws Error(failed) naming `target`.
class UnnamedFile {
 public:
  UnnamedFile(const std::filesystem::path& beside, std::string target);

  void write(uint64_t position, std::span<const std::byte> bytes) {
    if (const int error = write_at(file_.get(), position, bytes)) throw not_written(target_, error);
  }
  void read(uint64_t position, std::span<std::byte> out) const {
    const Moved end = read_at(file_.get(), position, out);
    if (end.bytes < out.size())
      throw failed("{}: temporary data cannot be read back: {}", target_,
                   end.error ? std::strerror(end.error) : "it ends too early");
  }

 private:
  std::string target_;
  Descriptor file_;
};

/// The descriptor of such a file. stem: the beginning of the name that it has for a moment.
Descriptor open_unnamed(const std::filesystem::path& folder, const std::string& stem,
                        const std::string& target);

/// A growing sequence of bytes that can be cut at its end: in memory while it is short; once it is long, its front lies in a file
/// without a name.
class SpillBuffer {
 public:
  /// beside: the file whose folder takes the spill file. target: the name in messages about a full disk.
  SpillBuffer(std::filesystem::path beside, std::string target, size_t memory_limit = kMemoryLimit)
      : beside_(std::move(beside)), target_(std::move(target)), memory_limit_(memory_limit) {}

  uint64_t size() const { return spilled_ + tail_.size(); }
  void append(std::span<const std::byte> bytes);
  /// Keeps the first `size` bytes.
  void truncate(uint64_t size);
  /// Reads bytes [position, position + out.size()), which must exist.
  void read(uint64_t position, std::span<std::byte> out) const;
  size_t memory() const { return tail_.capacity(); }

  /// A codec has about eight streams; together they stay small compared to a chunk of rows.
  static constexpr size_t kMemoryLimit = size_t{4} << 20;

 private:
  std::filesystem::path beside_;
  std::string target_;
  size_t memory_limit_;
  std::unique_ptr<UnnamedFile> file_;
  uint64_t spilled_ = 0;         // valid bytes in the file
  std::vector<std::byte> tail_;  // bytes that follow them
};

}  // namespace kvcodec
