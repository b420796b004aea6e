// System calls for files: descriptors that close themselves, reads and writes that are complete, and the state of a file.
#pragma once

#include <cerrno>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

struct stat;

namespace kvcodec {

/// The result of a system call, which is repeated as long as a signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;)
    if (const auto result = call(); result >= 0 || errno != EINTR) return result;
}

/// A file descriptor that is closed with its scope.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor();

  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  explicit operator bool() const { return descriptor_ >= 0; }
  /// Closes now; false reports a failed write, which only closing may reveal.
  bool close();

 private:
  int descriptor_;
};

/// The result of a read or a write.
struct Moved {
  size_t bytes = 0;  ///< fewer than wanted if the file ends or an error occurs
  int error = 0;     ///< errno; 0: none
};

// None of these functions throws; anything except a signal handler may call them. A write returns an errno, or 0.
Moved read_at(int descriptor, uint64_t position, std::span<std::byte> out) noexcept;
Moved read_next(int descriptor, std::span<std::byte> out) noexcept;
int write_at(int descriptor, uint64_t position, std::span<const std::byte> bytes) noexcept;
int write_next(int descriptor, std::span<const std::byte> bytes) noexcept;
/// Reads as much as exists; the rest becomes zero. Returns an errno, or 0.
int read_or_zero(int descriptor, uint64_t position, std::span<std::byte> out) noexcept;

/// The identity and the state of the file that a name led to: one of these differs once the file is replaced or changed.
struct FileState {
  uint64_t device = 0, number = 0, size = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< of the last change

  /// Tells files apart, whatever their state.
  std::pair<uint64_t, uint64_t> file() const { return {device, number}; }
  // The compiler compares with a zero of its own, which clang-tidy takes for a pointer. NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const FileState&) const = default;
};
FileState state_of(const struct stat& status);
/// The state of an open file, or of the file that a name leads to now; std::nullopt, and errno, if it is not known.
std::optional<FileState> state_of(int descriptor);
std::optional<FileState> state_of(const std::filesystem::path& name);

/// The folder that contains a path; "." for a mere name.
std::filesystem::path folder_of(const std::filesystem::path& path);

/// The file that a name leads to after all symbolic links.
std::filesystem::path behind_links(const std::filesystem::path& name);

/// Gives a file the permissions of another one, regardless of the umask, and its group if that is permitted. Returns false if the
/// permissions cannot be set.
bool copy_permissions(const std::filesystem::path& path, const struct stat& of);

}  // namespace kvcodec
