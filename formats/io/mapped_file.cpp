#include "formats/io/mapped_file.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/core/error.hpp"

namespace kvcodec {

namespace {

// What is mapped, for a signal handler: which may not lock or allocate. Should the slots run out, the handler cannot
// name the file.
struct MappedSlot {
  std::atomic<uintptr_t> begin{0}, end{0};  // begin is set last
  char name[1024];
};
MappedSlot mapped_slots[64];

void remember(const void* data, uint64_t size, const std::string& name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (MappedSlot& slot : mapped_slots) {
    if (slot.end != 0) continue;
    const size_t length = std::min(name.size(), sizeof slot.name - 1);
    std::memcpy(slot.name, name.data(), length);
    slot.name[length] = '\0';
    slot.end = reinterpret_cast<uintptr_t>(data) + size;
    slot.begin = reinterpret_cast<uintptr_t>(data);
    return;
  }
}

void forget(const void* data) {
  for (MappedSlot& slot : mapped_slots)
    if (slot.begin == reinterpret_cast<uintptr_t>(data)) {
      slot.begin = 0;
      slot.end = 0;
      return;
    }
}

}  // namespace

const char* mapped_file_at(const void* address) noexcept {
  const auto place = reinterpret_cast<uintptr_t>(address);
  for (const MappedSlot& slot : mapped_slots)
    if (const uintptr_t begin = slot.begin; begin != 0 && begin <= place && place < slot.end)
      return slot.name;
  return nullptr;
}

MappedFile::MappedFile(const std::string& file) : name_(file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused
  if (descriptor < 0) throw bad_input("{}: cannot be opened: {}", file, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (known && S_ISREG(status.st_mode)) size_ = static_cast<uint64_t>(status.st_size);
  if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int reason = errno;
  ::close(descriptor);
  if (!known || !S_ISREG(status.st_mode)) throw bad_input("{}: is not a regular file", file);
  if (size_ > 0 && data_ == MAP_FAILED) throw failed("{}: cannot be mapped: {}", file, std::strerror(reason));
  if (size_ > 0) remember(data_, size_, file);
}

MappedFile::~MappedFile() {
  if (size_ == 0) return;
  forget(data_);
  ::munmap(data_, size_);
}

}  // namespace kvcodec
