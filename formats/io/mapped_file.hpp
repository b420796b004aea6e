// A file's bytes where the system maps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcodec {

/// The file that is mapped at an address, or nullptr. A signal handler may call it.
const char* mapped_file_at(const void* address) noexcept;

/// A file mapped read-only: pages are read from disk as they are used. If another process shortens the file
/// meanwhile, the program ends with a message (install_signal_cleanup).
class MappedFile {
 public:
  /// Throws Error(bad_input) for what cannot be opened or is not a regular file, Error(failed) for what cannot be
  /// mapped.
  explicit MappedFile(const std::string& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  std::string name_;
  void* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace kvcodec
