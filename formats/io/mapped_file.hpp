// Files that are mapped into memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvcodec {

/// A file mapped read-only: pages are read from disk when they are used. If another process shortens the file meanwhile, the
/// program ends with a message (install_signal_cleanup).
class MappedFile {
 public:
  /// Throws Error(bad_input) if the file cannot be opened or is not a regular file, and Error(failed) if it cannot be mapped.
  explicit MappedFile(const std::string& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

}  // namespace kvcodec
