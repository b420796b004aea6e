// A first look into a file of HDF5, by a child that has no rights.
#pragma once

#include <cstdint>

#include "formats/journal.hpp"

namespace kvcodec::h5 {

/// How a child's look at a file ended.
enum class Probed : uint8_t {
  passed,   ///< HDF5 read all objects, or refused one as it will again, or there was no child to ask
  crashed,  ///< HDF5 crashed
  endless,  ///< it was not done after a minute of processor time, or ten minutes in all
};

/// What the caller is going to open the file for.
enum class Use : uint8_t { reading, changing };

/// Goes through all groups, datasets and attributes of the file in a child process that may read it and ask for memory,
/// nothing else (seccomp, where the system has it). The reason: HDF5 1.10 crashes on some headers that somebody made up
/// on purpose; so it is the child that crashes. Of a file that passed before, unchanged and without an overlay, nothing is
/// asked again. For changing HDF5 opens and closes a file in another way; what the child writes goes nowhere.
/// descriptor: the file, open for reading; overlay: what changes of it, or nullptr. The caller keeps other threads out of HDF5.
Probed probe(int descriptor, Overlay* overlay, Use use = Use::reading);

/// What the child does first. The calling process may then read what is open, ask for memory, and end; every other system
/// call gives EPERM, so that what HDF5 or the C library asks for without need does no harm. Returns whether that holds: false
/// where the system knows no seccomp, or a container forbids it.
bool give_up_rights();

}  // namespace kvcodec::h5
