#include "formats/hdf5/driver.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <iterator>
#include <new>
#include <span>

#include <fcntl.h>
#include <unistd.h>

#include "formats/io/descriptor.hpp"

namespace kvcodec::h5 {
namespace {

/// HDF5's part first, ours behind it: the driver is handed the address of the former.
struct OpenFile {
  H5FD_t base;
  int descriptor;
  bool writable;
  haddr_t end_allocated, end_written;
  FileStatus* status;
};

OpenFile* cast(H5FD_t* file) { return reinterpret_cast<OpenFile*>(file); }
const OpenFile* cast(const H5FD_t* file) { return reinterpret_cast<const OpenFile*>(file); }

void note(OpenFile* file, int error) {
  if (file->status->error == 0) file->status->error = error;
}

H5FD_t* open_source(FileStatus* status, bool write) {
  if (write) return nullptr;
  auto* file = new (std::nothrow) OpenFile{};
  if (!file) return nullptr;
  file->descriptor = -1;
  file->status = status;
  file->end_written = status->source->size();
  if (status->overlay) file->end_written = std::max<haddr_t>(file->end_written, status->overlay->end);
  return &file->base;
}

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const void* info = H5Pget_driver_info(access);
  if (!info) return nullptr;
  FileStatus* status = *static_cast<FileStatus* const*>(info);
  const bool write = flags & H5F_ACC_RDWR, empty = flags & H5F_ACC_TRUNC;
  if (status->source) return open_source(status, write);
  const int descriptor =
      status->given >= 0
          ? ::fcntl(status->given, F_DUPFD_CLOEXEC, 0)
          : ::open(name, (write ? O_RDWR : O_RDONLY) | (empty ? O_CREAT : 0) | O_CLOEXEC, 0666);
  // O_TRUNC, even of an empty file, would make ext4 start writing to the disk when the file is closed.
  if (descriptor < 0 || (empty && ::lseek(descriptor, 0, SEEK_END) > 0 && ::ftruncate(descriptor, 0) != 0)) {
    status->error = errno;
    if (descriptor >= 0) ::close(descriptor);
    return nullptr;
  }
  auto* file = new (std::nothrow) OpenFile{};
  if (!file) {
    ::close(descriptor);
    return nullptr;
  }
  file->descriptor = descriptor;
  file->writable = write;
  file->status = status;
  file->end_written = static_cast<haddr_t>(std::max<off_t>(0, ::lseek(descriptor, 0, SEEK_END)));
  if (status->overlay) file->end_written = std::max<haddr_t>(file->end_written, status->overlay->end);
  return &file->base;
}

herr_t close_file(H5FD_t* base) {
  OpenFile* file = cast(base);
  if (Overlay* overlay = file->status->overlay; overlay && file->writable) {
    overlay->end = file->end_allocated;
    overlay->complete = true;
  }
  if (file->descriptor >= 0 && ::close(file->descriptor) != 0) note(file, errno);
  delete file;
  return 0;
}

/// Each has a descriptor of its own: none is the same as another.
int compare(const H5FD_t* a, const H5FD_t* b) { return a < b ? -1 : a > b; }

herr_t query(const H5FD_t*, unsigned long* features) {
  if (features)
    *features = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
                H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return cast(file)->end_allocated; }
herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  cast(file)->end_allocated = cast(file)->status->allocated = address;
  return 0;
}
haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) { return cast(file)->end_written; }

herr_t get_handle(H5FD_t* file, hid_t, void** handle) {
  *handle = &cast(file)->descriptor;
  return 0;
}

/// The bytes as they are in the file itself, or as the source gives them.
bool read_plain(OpenFile* file, haddr_t address, std::span<std::byte> out) noexcept {
  FileStatus& status = *file->status;
  if (!status.source) {  // what was allocated but never written is zero
    const int error = read_or_zero(file->descriptor, address, out);
    if (error == 0 && status.overlay) status.overlay->patch(address, out);
    if (error != 0) note(file, error);
    return error == 0;
  }
  try {
    read_patched(status, address, out);
    return true;
  } catch (...) {  // no exception may pass through HDF5
    if (!status.source_error) status.source_error = std::current_exception();
  }
  note(file, EIO);
  return false;
}

herr_t read_bytes(H5FD_t* base, H5FD_mem_t type, hid_t, haddr_t address, size_t size, void* buffer) {
  OpenFile* file = cast(base);
  if (auto* asked = file->status->asked_address; asked && type == H5FD_MEM_DRAW) {
    *asked = address;
    return 0;
  }
  return read_plain(file, address, {static_cast<std::byte*>(buffer), size}) ? 0 : -1;
}

herr_t write_bytes(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, size_t size, const void* buffer) {
  OpenFile* file = cast(base);
  std::span in(static_cast<const std::byte*>(buffer), size);
  file->end_written = std::max(file->end_written, address + size);
  if (Overlay* overlay = file->status->overlay; overlay && address < overlay->begin_of_new) {
    const size_t before = std::min<uint64_t>(size, overlay->begin_of_new - address);
    if (const int error = overlay->write(address, in.first(before), file->descriptor)) note(file, error);
    in = in.subspan(before);
    address += before;
  }
  if (file->status->error == 0)
    if (const int error = write_at(file->descriptor, address, in)) note(file, error);
  return 0;
}

herr_t truncate_file(H5FD_t* base, hid_t, hbool_t) {
  OpenFile* file = cast(base);
  if (file->end_allocated == file->end_written || file->status->overlay)
    return 0;  // its end comes with the change
  if (file->status->error == 0 && ::ftruncate(file->descriptor, static_cast<off_t>(file->end_allocated)) != 0)
    note(file, errno);
  file->end_written = file->end_allocated;
  return 0;
}

H5FD_class_t make_class() {
  H5FD_class_t driver = {};
#if H5_VERSION_GE(1, 14, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + 1);
#endif
  driver.name = "kvcodec";
  driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(void*);  // of a FileStatus
  driver.open = open_file;
  driver.close = close_file;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = get_eoa;
  driver.set_eoa = set_eoa;
  driver.get_eof = get_eof;
  driver.get_handle = get_handle;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  constexpr H5FD_mem_t kMap[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(kMap), std::end(kMap), std::begin(driver.fl_map));
  return driver;
}

}  // namespace

void read_patched(const FileStatus& status, uint64_t position, std::span<std::byte> out) {
  const uint64_t end = status.source->size(),
                 there = position < end ? std::min<uint64_t>(out.size(), end - position) : 0;
  if (there > 0) status.source->read(position, out.first(there));
  std::ranges::fill(out.subspan(there), std::byte{0});
  if (status.overlay) status.overlay->patch(position, out);
}

hid_t make_access(FileStatus* status) {
  static const H5FD_class_t driver = make_class();
  static const hid_t id = H5FDregister(&driver);
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (access >= 0) H5Pset_driver(access, id, &status);
  return access;
}

}  // namespace kvcodec::h5
