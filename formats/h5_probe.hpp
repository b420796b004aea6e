// A first look into a file of HDF5, by a child that has no rights.
#pragma once

#include <cstdint>

#include "formats/journal.hpp"
#include "formats/output.hpp"

namespace kvcodec::h5 {

/// How a child's look at a file ended.
enum class Probed : uint8_t {
  passed,   ///< HDF5 read all objects, or refused one as it will again, or there was no child to ask
  crashed,  ///< HDF5 crashed
  endless,  ///< it was not done after a minute of processor time, or ten minutes in all
};

/// Goes through all groups, datasets and attributes of the file in a child process that may read it and ask for memory,
/// nothing else (seccomp, where the system has it). The reason: HDF5 1.10 crashes on some headers that somebody made up
/// on purpose; so it is the child that crashes. Of a file that passed before, unchanged, nothing is asked again.
///
/// Of a file on a server the child asks this process for bytes, through a pair of sockets, which is all it has open: it reaches
/// no network. Throws Error if the server does not give them.
///
/// overlay: what changes of the file, or nullptr. The caller keeps other threads out of HDF5.
Probed probe(const InputFile& input, Overlay* overlay);

}  // namespace kvcodec::h5
