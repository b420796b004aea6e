// The HDF5 file driver that files are read and written through.
#pragma once

#include <hdf5.h>

namespace kvcodec::h5 {

/// What the system said when it first refused a read or a write.
struct FileStatus {
  int error = 0;  ///< errno; after a failed write nothing more is written
};

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
