// The HDF5 file driver that files are read and written through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include <hdf5.h>

#include "formats/io/byte_source.hpp"
#include "formats/io/journal.hpp"

namespace kvcodec::h5 {

/// What h5::File and the driver tell each other: how to open the file, the first error, and how much was
/// read.
struct FileStatus {
  /// errno of the first open, read or write that failed. Nothing is written to the file after it.
  int error = 0;
  /// What a file is read by; nullptr: it is written, and the driver opens it.
  ByteSource* source = nullptr;
  /// A descriptor to open that file by, whatever it is called; -1: the driver opens it by its name.
  int given = -1;
  std::exception_ptr source_error;  ///< why `source` could not be read first
  /// Pages that are read in place of the file's. While the file is written, changes of its old bytes go to
  /// these pages, and its new end to overlay->end; new bytes go to the file itself.
  Overlay* overlay = nullptr;
  uint64_t allocated = 0;  ///< bytes of the file that HDF5 knows of
  /// Where raw data lie: if set, a read of them is not done, and its address comes here instead. HDF5 1.10 has no call that tells a
  /// chunk's address without a walk over all chunks; it finds a chunk that it is told to read at once.
  std::optional<uint64_t>* asked_address = nullptr;
};

/// Bytes of a file that is read by a source, and those of the overlay in their place; zeros behind the source's end.
void read_patched(const FileStatus& status, uint64_t position, std::span<std::byte> out);

/// A file access list for plain positioned reads and writes. It tells HDF5 that every write went well and
/// keeps the first error in `status` (which outlives the file).
///
/// The reason: HDF5 1.10 cannot close a file whose metadata could not be flushed. H5Fclose fails, the file
/// stays half open, and the library crashes at its next use or at exit. So HDF5 never hears of the full disk;
/// h5::File looks at the status instead, after every operation and after closing, and the output is thrown
/// away. Besides, a file need not have a name that still leads to it (/proc/self/fd/N), and opening a file
/// twice gives two files that know nothing of each other.
hid_t make_access(FileStatus* status);

}  // namespace kvcodec::h5
