#include "formats/io/descriptor.hpp"

#include <algorithm>

#include <sys/stat.h>
#include <unistd.h>

namespace kvcodec {
namespace {

namespace fs = std::filesystem;

/// Calls step(rest, done), which returns how many bytes it moved, until nothing is left or nothing moves.
template <class Bytes, class Step>
Moved move_all(Bytes bytes, const Step& step) noexcept {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t moved = uninterrupted([&] { return step(bytes.subspan(done), done); });
    if (moved < 0) return {done, errno};
    if (moved == 0) break;
    done += static_cast<size_t>(moved);
  }
  return {done, 0};
}

/// A disk that accepts nothing without giving an error is full.
int error_of(const Moved& moved, size_t wanted) {
  return moved.error != 0 ? moved.error : moved.bytes < wanted ? ENOSPC : 0;
}

}  // namespace

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Descriptor::close() { return ::close(release()) == 0; }

Moved read_at(int descriptor, uint64_t position, std::span<std::byte> out) noexcept {
  return move_all(out, [&](std::span<std::byte> rest, size_t done) {
    return ::pread(descriptor, rest.data(), rest.size(), static_cast<off_t>(position + done));
  });
}

Moved read_next(int descriptor, std::span<std::byte> out) noexcept {
  return move_all(
      out, [&](std::span<std::byte> rest, size_t) { return ::read(descriptor, rest.data(), rest.size()); });
}

int write_at(int descriptor, uint64_t position, std::span<const std::byte> bytes) noexcept {
  return error_of(move_all(bytes,
                           [&](std::span<const std::byte> rest, size_t done) {
                             return ::pwrite(descriptor, rest.data(), rest.size(),
                                             static_cast<off_t>(position + done));
                           }),
                  bytes.size());
}

int write_next(int descriptor, std::span<const std::byte> bytes) noexcept {
  return error_of(move_all(bytes, [&](std::span<const std::byte> rest,
                                      size_t) { return ::write(descriptor, rest.data(), rest.size()); }),
                  bytes.size());
}

int read_or_zero(int descriptor, uint64_t position, std::span<std::byte> out) noexcept {
  const Moved read = read_at(descriptor, position, out);
  std::ranges::fill(out.subspan(read.bytes), std::byte{0});
  return read.error;
}

FileState state_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

std::optional<FileState> state_of(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return std::nullopt;
  return state_of(status);
}

std::optional<FileState> state_of(const fs::path& name) {
  struct stat status = {};
  if (::stat(name.c_str(), &status) != 0) return std::nullopt;
  return state_of(status);
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path behind_links(const fs::path& name) {
  std::error_code error;
  fs::path path = name;
  // Follows links one by one: fs::weakly_canonical stops at a link to a file that does not exist yet.
  constexpr int kMaxLinks = 40;  // the system's limit
  for (int links = 0; links < kMaxLinks && fs::is_symlink(path, error); ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) return name;
    path = folder_of(path) / next;
  }
  if (path == name) return name;
  const fs::path resolved = fs::weakly_canonical(path, error);
  return error ? path : resolved;
}

bool copy_permissions(const fs::path& path, const struct stat& of) {
  [[maybe_unused]] const int ignored = ::chown(path.c_str(), static_cast<uid_t>(-1), of.st_gid);
  return ::chmod(path.c_str(), of.st_mode & 07777) ==
         0;  // permissions come last: a change of the group clears some of them
}

}  // namespace kvcodec
