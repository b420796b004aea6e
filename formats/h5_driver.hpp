// The HDF5 file driver that products are written through.
#pragma once

#include <hdf5.h>

namespace kvcodec::h5 {

/// What went wrong first while writing a file.
struct WriteStatus {
  int error = 0;  ///< errno of the first write that failed; nothing is written after it
};

/// A file access list for writing through plain positioned writes, which tells HDF5 that every write went
/// well and keeps the first error in `status` (which outlives the file).
///
/// The reason: HDF5 1.10 cannot close a file whose metadata could not be flushed. H5Fclose fails, the file
/// stays half open, and the library crashes at its next use or at exit. So HDF5 never hears of the full disk;
/// h5::File looks at the status instead, after every operation and after closing, and the output is thrown
/// away.
hid_t make_writing_access(WriteStatus* status);

}  // namespace kvcodec::h5
