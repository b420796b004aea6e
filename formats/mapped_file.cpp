#include "formats/mapped_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/core/error.hpp"

namespace kvcodec {

MappedFile::MappedFile(const std::string& file) : name_(file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw bad_input("{}: cannot be opened: {}", file, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (known && S_ISREG(status.st_mode)) size_ = static_cast<uint64_t>(status.st_size);
  if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int reason = errno;
  ::close(descriptor);
  if (!known || !S_ISREG(status.st_mode)) throw bad_input("{}: is no regular file", file);
  if (size_ > 0 && data_ == MAP_FAILED) throw failed("{}: cannot be mapped: {}", file, std::strerror(reason));
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(data_, size_);
}

}  // namespace kvcodec
