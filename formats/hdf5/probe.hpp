// A first look into a file of HDF5, by a child that has no rights.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <variant>

#include <sys/types.h>

#include "formats/io/journal.hpp"

namespace kvcodec {
class ByteSource;
class FarFile;
}  // namespace kvcodec

namespace kvcodec::h5 {

/// How a child's look at a file ended.
enum class Probed : uint8_t {
  passed,  ///< HDF5 read all objects, or refused one as it will again, or there was no child, or no memory for one
  crashed,  ///< HDF5 crashed
  endless,  ///< it was not done after some seconds of processor time, up to a minute for a large file, or, of a file that is
            ///< here, ten minutes in all
  starved,  ///< HDF5 found no memory for it; the child gets 1 GiB
};

/// What the caller is going to open the file for.
enum class Use : uint8_t { reading, changing };

/// Which file it is, and in which state: of a file on a server its number, else device, inode, size and time.
using LocalState = std::tuple<dev_t, ino_t, off_t, time_t, long>;
using ProbedState = std::variant<uint64_t, LocalState>;

/// A file, and how it is read.
struct Looked {
  int descriptor = -1;          ///< open for reading; -1 of a file on a server
  FarFile* far = nullptr;       ///< a file on a server
  ByteSource* local = nullptr;  ///< what reads a file that is here; nullptr: HDF5 reads the descriptor
  Overlay* overlay = nullptr;   ///< what changes of the file; nullptr: nothing
  Use use = Use::reading;
};

/// Goes through all groups, datasets and attributes of the file in a child process that may read it and ask for memory,
/// nothing else (seccomp, where the system has it). The reason: HDF5 1.10 crashes on some headers that somebody made up
/// on purpose; so it is the child that crashes. A file that passed before, or had no end, unchanged and without an overlay, is
/// not looked at again. For changing HDF5 opens and closes a file in another way; what the child writes goes nowhere.
///
/// Of a file on a server the child asks this process for bytes, through a pair of sockets, which is all it has open: it reaches
/// no network. Throws Error if the server does not give them, or the child cannot ask.
///
/// The caller keeps other threads out of HDF5.
class Probe {
 public:
  /// Begins to look. The file stays as it is given until the end.
  explicit Probe(const Looked& file);
  /// A look that nobody wants the end of ends at once.
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// Waits for the child, once.
  Probed end();

 private:
  /// The end of this look, kept for the next one at the same file.
  Probed found(Probed end) const;

  Looked looked_;
  std::optional<ProbedState> state_;
  Probed known_ = Probed::passed;  // where there is no child
  int child_ = -1;                 // process; -1: there is none
  int socket_ = -1;                // at whose other end the child of a file on a server asks
};

/// What the child does first. The calling process may then read what is open, ask for memory, write to one descriptor if one
/// is given, and end; every other system call gives EPERM, so that what HDF5 or the C library asks for without need does no
/// harm. Returns whether that holds: false where the system knows no seccomp, or a container forbids it.
bool give_up_rights(int written = -1);

/// What it does before: closes all that is open but one descriptor, connections to servers above all.
void close_others(int kept);

}  // namespace kvcodec::h5
