#include "formats/hdf5/library.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <new>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include "formats/io/descriptor.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::h5 {

static Handle copy_type(hid_t type) { return {H5Tcopy(type), H5Tclose}; }

/// exponent, mantissa: their numbers of bits.
static Handle half_type(size_t exponent, size_t mantissa) {
  Handle half = copy_type(H5T_IEEE_F32LE);
  // The fields come before the size: HDF5 refuses a size that the fields do not fit.
  H5Tset_fields(half.get(), 15, mantissa, exponent, 0, mantissa);
  H5Tset_precision(half.get(), 16);
  H5Tset_size(half.get(), 2);
  H5Tset_ebias(half.get(), (size_t{1} << (exponent - 1)) - 1);
  return half;
}

std::string innermost_reason() {
  std::string reason;
  Callback<unsigned, const H5E_error2_t*> first_entry([&](unsigned depth, const H5E_error2_t* entry) {
    if (depth == 0 && entry->desc) reason = entry->desc;
  });
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_entry.call, &first_entry);
  first_entry.rethrow();
  std::ranges::replace(reason, '\n', ' ');
  return reason.empty() ? "no reason given by HDF5" : reason;
}

std::optional<std::vector<std::string>> link_names(hid_t group, bool hard) {
  std::vector<std::string> names;
  Callback<hid_t, const char*, const H5L_info_t*> add([&](hid_t, const char* name, const H5L_info_t* link) {
    if (!hard || link->type == H5L_TYPE_HARD) names.emplace_back(name);
  });
  const herr_t end = H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add.call, &add);
  add.rethrow();
  return end < 0 ? std::nullopt : std::optional(std::move(names));
}

Handle stored_type(DType type) {
  if (type == DType::f16) return half_type(5, 10);
  if (type == DType::bf16) return half_type(8, 7);
  const hid_t types[] = {
      H5T_STD_U8LE, H5T_STD_U16LE,  H5T_STD_U32LE, H5T_STD_U64LE, H5T_STD_I32LE, H5T_STD_I64LE, -1,
      -1,           H5T_IEEE_F32LE, H5T_IEEE_F64LE};
  static_assert(std::size(types) == kNamesOf<DType>.size());
  return copy_type(types[static_cast<size_t>(type)]);
}

std::optional<DType> known_type(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  if (kind != H5T_FLOAT && kind != H5T_INTEGER) return std::nullopt;
  for (const std::string_view name : kNamesOf<DType>) {
    const DType known = *value_named<DType>(name);
    const Handle stored = stored_type(known);
    if (H5Tset_order(stored.get(), H5Tget_order(type)) >= 0 && H5Tequal(stored.get(), type) > 0) return known;
  }
  return std::nullopt;
}

Handle text_type(size_t size) {
  Handle type = copy_type(H5T_C_S1);
  H5Tset_size(type.get(), std::max<size_t>(size, 1));  // HDF5 knows no strings of zero bytes
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

// Digests ----------------------------------------------------------------------------------------------

Digest128 dataset_digest(const std::string& path, const std::string& type, std::span<const uint64_t> shape,
                         uint64_t piece_rows, std::span<const Digest128> pieces) {
  Digest digest;
  digest.add(path);
  digest.add(type);
  digest.add(uint64_t{shape.size()});
  for (const uint64_t extent : shape) digest.add(extent);
  digest.add(piece_rows);
  digest.add(std::as_bytes(pieces));
  return digest.value();
}

// Filters ----------------------------------------------------------------------------------------------

/// Throws Error(bad_input) unless the bytes inflate to exactly the size of out.
static void inflate_all(std::span<const std::byte> bytes, std::span<std::byte> out) {
  constexpr size_t kMax = std::numeric_limits<uInt>::max();
  if (bytes.size() > kMax || out.size() > kMax) throw bad_input("is larger than a chunk can be");
  z_stream stream = {};
  if (::inflateInit(&stream) != Z_OK) throw failed("zlib: {}", stream.msg ? stream.msg : "no memory");
  const std::unique_ptr<z_stream, decltype(&::inflateEnd)> closer(&stream, &::inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = ::inflate(&stream, Z_FINISH);
  if (status == Z_STREAM_END && stream.avail_out == 0) return;
  if (status == Z_STREAM_END)
    throw bad_input("inflates to {} bytes; {} are wanted", out.size() - stream.avail_out, out.size());
  if (status == Z_BUF_ERROR && stream.avail_out == 0 && stream.avail_in > 0)
    throw bad_input("inflates to more than {} bytes", out.size());
  throw bad_input("does not inflate: {}", stream.msg ? stream.msg : "it ends too early");
}

static std::span<const std::byte> without_checksum(std::span<const std::byte> bytes) {
  if (bytes.size() < kChecksumBytes) throw bad_input("is too short for its checksum");
  const auto content = bytes.first(bytes.size() - kChecksumBytes);
  const uint32_t stored = stored_checksum(content.data() + content.size()), found = fletcher32(content);
  if (found != stored)
    throw bad_input("does not bear out its checksum ({:08x} stored, {:08x} found)", stored, found);
  return content;
}

/// Shuffled elements are stored byte by byte: first the first byte of each. An incomplete element follows them unchanged. out: has the
/// same size.
static void unshuffle(std::span<const std::byte> bytes, size_t element_bytes, std::span<std::byte> out) {
  // If HDF5 does not know the size of a type, it stores chunks without this filter, and marks that.
  if (element_bytes == 0) throw bad_input("is shuffled by elements of no bytes");
  const size_t elements = bytes.size() / element_bytes, shuffled = elements * element_bytes;
  for (size_t b = 0; b < element_bytes && elements > 0; ++b)
    for (size_t i = 0; i < elements; ++i) out[i * element_bytes + b] = bytes[b * elements + i];
  std::ranges::copy(bytes.subspan(shuffled), out.begin() + static_cast<std::ptrdiff_t>(shuffled));
}

static void expect_bytes(std::span<const std::byte> bytes, size_t wanted) {
  if (bytes.size() != wanted) throw bad_input("has {} bytes; {} are wanted", bytes.size(), wanted);
}

Filters::Filters(hid_t creation) {
  const int count = H5Pget_nfilters(creation);
  steps_.reserve(static_cast<size_t>(std::max(count, 0)));
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, values[8] = {};
    size_t num_values = std::size(values);
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &num_values, values, 0, nullptr, nullptr);
    if (filter == H5Z_FILTER_DEFLATE && compressed())
      throw bad_input("is compressed several times over; once is possible");
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      throw bad_input(
          "is stored with filter {} of HDF5; 1 (deflate), 2 (shuffle) and 3 (Fletcher-32) are possible",
          filter);
    steps_.push_back({filter, values[0]});
  }
}

void Filters::undo(std::span<const std::byte> stored, uint32_t skipped, std::span<std::byte> out) const {
  const auto applies = [&](size_t step) { return (skipped >> step & 1) == 0; };
  // Size of a chunk before a filter, in bytes, including checksums of earlier filters.
  const auto bytes_before = [&](size_t step) {
    size_t bytes = out.size();
    for (size_t i = 0; i < step; ++i)
      if (applies(i) && !steps_[i].makes_anew()) bytes += kChecksumBytes;
    return bytes;
  };
  // The last step that produces new bytes writes to `out`, unless a checksum still follows them.
  size_t first = 0;
  while (first < steps_.size() && !(applies(first) && steps_[first].makes_anew())) ++first;

  std::span<const std::byte> bytes = stored;
  std::unique_ptr<std::byte[]> made[2];  // storage of `bytes`, and the output of the next filter
  for (size_t i = steps_.size(); i-- > 0;) {
    if (!applies(i)) continue;
    const Step& step = steps_[i];
    if (!step.makes_anew()) {
      bytes = without_checksum(bytes);
      continue;
    }
    std::span<std::byte> next = out;
    if (const size_t wanted = bytes_before(i); i > first || wanted != out.size()) {
      made[1] = std::make_unique_for_overwrite<std::byte[]>(wanted);
      next = {made[1].get(), wanted};
    }
    if (step.filter == H5Z_FILTER_DEFLATE) {
      inflate_all(bytes, next);
    } else {
      expect_bytes(bytes, next.size());
      unshuffle(bytes, step.element_bytes, next);
    }
    made[0] = std::move(made[1]);
    bytes = next;
  }
  expect_bytes(bytes, out.size());
  if (bytes.data() != out.data()) std::ranges::copy(bytes, out.begin());
}

// The driver -------------------------------------------------------------------------------------------

namespace {

/// HDF5's part comes first, ours follows it: the driver gets the address of the former.
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

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const void* info = H5Pget_driver_info(access);
  if (!info) return nullptr;
  FileStatus* status = *static_cast<FileStatus* const*>(info);
  const bool write = flags & H5F_ACC_RDWR, empty = flags & H5F_ACC_TRUNC;
  if (status->source && write) return nullptr;
  Descriptor descriptor;
  if (!status->source) {
    descriptor =
        Descriptor(status->given >= 0
                       ? ::fcntl(status->given, F_DUPFD_CLOEXEC, 0)
                       : ::open(name, (write ? O_RDWR : O_RDONLY) | (empty ? O_CREAT : 0) | O_CLOEXEC, 0666));
    // O_TRUNC, even of an empty file, would make ext4 start to write to the disk when the file is closed.
    if (!descriptor ||
        (empty && ::lseek(descriptor.get(), 0, SEEK_END) > 0 && ::ftruncate(descriptor.get(), 0) != 0)) {
      status->error = errno;
      return nullptr;
    }
  }
  auto* file = new (std::nothrow) OpenFile{};
  if (!file) return nullptr;
  const off_t end = descriptor ? std::max<off_t>(0, ::lseek(descriptor.get(), 0, SEEK_END)) : 0;
  file->end_written = status->source ? status->source->size() : static_cast<haddr_t>(end);
  if (status->overlay) file->end_written = std::max<haddr_t>(file->end_written, status->overlay->end);
  file->descriptor = descriptor.release();
  file->writable = write;
  file->status = status;
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

/// Each file has its own descriptor, so no two are the same.
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

herr_t read_bytes(H5FD_t* base, H5FD_mem_t type, hid_t, haddr_t address, size_t size, void* buffer) noexcept {
  OpenFile* file = cast(base);
  FileStatus& status = *file->status;
  if (status.asked_address && type == H5FD_MEM_DRAW) {
    *status.asked_address = address;
    return 0;
  }
  const std::span out(static_cast<std::byte*>(buffer), size);
  int error = 0;
  if (!status.source) {  // allocated bytes that were never written are zero
    error = read_or_zero(file->descriptor, address, out);
    if (error == 0 && status.overlay) status.overlay->patch(address, out);
  } else {
    try {
      read_patched(status, address, out);
    } catch (...) {  // no exception may pass through HDF5
      if (!status.source_error) status.source_error = std::current_exception();
      error = EIO;
    }
  }
  if (error != 0) note(file, error);
  return error == 0 ? 0 : -1;
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
    return 0;  // the file gets its new end with the change
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
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  constexpr H5FD_mem_t kMap[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::ranges::copy(kMap, driver.fl_map);
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
