// Parts of the sources behind formats/hdf5/hdf5.hpp: turns inside HDF5, identifiers that close themselves, HDF5's reasons and types,
// the driver that files are read and written through, filters of chunks, digests, and the first look into a file. For formats/hdf5
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

#include "formats/io/byte_source.hpp"
#include "formats/io/journal.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/text_list.hpp"

namespace kvcodec::h5 {

/// Held around every call into HDF5: the library may be built without locks of its own.
class Turn {
 public:
  Turn() : lock_(mutex()) {
    // An HDF5 that is built with threads keeps for each thread a setting of what it prints.
    thread_local const bool silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    (void)silenced;
    // A file may name any filter; code for it is not looked for in folders that the environment names.
    static const bool closed = H5PLset_loading_state(0) >= 0;
    (void)closed;
  }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex instance;
    return instance;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

/// An HDF5 identifier and the function that closes it.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ < 0) return;
    const Turn turn;
    close_(id_);
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

/// For functions that HDF5 calls, which is C: no exception may pass through it.
class Callback {
 public:
  /// Runs body() and returns what a callback must: 0 to go on, or -1 where body() threw.
  template <class Body>
  herr_t run(const Body& body) noexcept {
    try {
      body();
      return 0;
    } catch (...) {
      thrown_ = std::current_exception();
      return -1;
    }
  }
  /// Throws what a callback threw, behind HDF5.
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  std::exception_ptr thrown_;
};

// For the holder of a Turn, all below.

/// Names of the links of a group, in the order in which HDF5 has them. hard: only those to objects of this file. Nothing: they
/// cannot be listed.
std::optional<std::vector<std::string>> link_names(hid_t group, bool hard);

/// Gives a new object, of H5Dcreate_anon or H5Gcreate_anon, its name. Not made by one call: where HDF5 makes an object that it then cannot
/// link, as in a damaged group, it keeps a part of it open, cannot close the file, and crashes as the program ends.
bool link_new(const Handle& object, hid_t file, const std::string& path);

/// The innermost entry of HDF5's error stack, in one line.
std::string innermost_reason();

/// The type as it is stored: little-endian. HDF5 and h5py convert all of them, the 16-bit floats too, by
/// themselves.
Handle stored_type(DType type);
/// The element type of a type of HDF5, of any byte order; none for strings, compounds and the like.
std::optional<DType> known_type(hid_t type);

/// Strings of so many bytes, filled up with zeros.
Handle text_type(size_t size);

/// Strings of one size, as a file stores them.
struct FixedText {
  size_t size = 0;      ///< bytes of each
  bool spaces = false;  ///< filled up with spaces, not zeros
};
FixedText fixed_text(hid_t type);
/// Appends strings of variable length, to which read(pointers) makes HDF5 set pointers; false: it did not. space: theirs.
template <class Read>
bool append_variable_texts(hid_t type, hid_t space, size_t count, const Read& read, TextList& texts) {
  std::vector<char*> pointers(count, nullptr);
  if (count > 0 && read(pointers.data()) < 0) return false;
  for (const char* text : pointers) texts.push_back(text ? text : "");
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, pointers.data());
  return true;
}
/// Cuts strings out of their bytes. For anybody.
void append_texts(std::span<const std::byte> bytes, const FixedText& type, TextList& texts);

// The driver -------------------------------------------------------------------------------------------

/// h5::File and the driver tell each other here how to open the file, and the first error.
struct FileStatus {
  /// errno of the first open, read or write that failed. Nothing is written to the file after it.
  int error = 0;
  /// Reads the file; nullptr: it is written, and the driver opens it.
  ByteSource* source = nullptr;
  /// A descriptor to open that file by, whatever it is called; -1: the driver opens it by its name.
  int given = -1;
  std::exception_ptr source_error;  ///< why `source` could not be read first
  /// Pages that are read in place of the file's. While the file is written, changes of its old bytes go to
  /// these pages, and its new end to overlay->end; new bytes go to the file itself.
  Overlay* overlay = nullptr;
  uint64_t allocated = 0;  ///< bytes of the file that HDF5 knows of
  /// If set, raw data are not read, and their address comes here instead. HDF5 1.10 has no call that tells a
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

// Filters ----------------------------------------------------------------------------------------------

/// A checksum of the filter Fletcher-32 stands behind its bytes, little-endian.
inline constexpr size_t kChecksumBytes = 4;

/// The checksum that is stored there.
inline uint32_t stored_checksum(const std::byte* at) {
  uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Filters that the chunks of a dataset went through before they were stored. HDF5 1.10 undoes them without bounds: a chunk inflates to
/// whatever its bytes say, and one that gives less than a chunk is read beyond its end. So filters are undone here.
class Filters {
 public:
  /// No filters.
  Filters() = default;
  /// creation: the dataset's creation list; what cannot be read counts as none. Throws Error(bad_input) for more than one
  /// compression, and for any filter but deflate, shuffle and Fletcher-32.
  explicit Filters(hid_t creation);

  bool none() const { return steps_.empty(); }
  bool has_checksum() const { return has(H5Z_FILTER_FLETCHER32); }
  bool checksum_alone() const { return steps_.size() == 1 && has_checksum(); }
  bool compressed() const { return has(H5Z_FILTER_DEFLATE); }

  /// The chunk of which `stored` was made; skipped: a bit for each filter that it did not go through. Throws Error(bad_input)
  /// unless its checksum holds and it has as many bytes as out; it inflates to no more than these.
  void undo(std::span<const std::byte> stored, uint32_t skipped, std::span<std::byte> out) const;

 private:
  struct Step {
    H5Z_filter_t filter;
    size_t element_bytes;  ///< of shuffle
    bool makes_anew() const { return filter != H5Z_FILTER_FLETCHER32; }
  };
  bool has(H5Z_filter_t filter) const;
  std::vector<Step> steps_;  ///< in the order in which they were applied
};

// Digests of datasets and of their pieces (FORMAT.md, "Digests") ---------------------------------------

inline constexpr char kDigestTable[] = "/digests";
inline constexpr char kDigestAttribute[] = "digests";
/// A piece must be held whole to be verified; one row may be larger.
inline constexpr uint64_t kMaxPieceBytes = uint64_t{1} << 24;

/// The attribute of a dataset about its digests (FORMAT.md, "Digests").
struct Pieces {
  uint64_t rows = 0;   ///< of a piece; the last one may have fewer
  uint64_t first = 0;  ///< row of the table where the digests of its pieces begin
  Digest128 digest{};  ///< of path, type, shape, rows and those digests

  /// As the attribute has them: the digest as two numbers, the most significant byte first. numbers: four.
  static Pieces from(std::span<const uint64_t> numbers);
  std::vector<uint64_t> numbers() const;
  uint64_t count(uint64_t all_rows, uint64_t row_bytes) const {
    return row_bytes == 0 ? 0 : all_rows / rows + (all_rows % rows != 0);
  }
};

/// type: its name; of strings of one length text_type_name().
Digest128 dataset_digest(const std::string& path, const std::string& type, std::span<const uint64_t> shape,
                         uint64_t piece_rows, std::span<const Digest128> pieces);
std::string text_type_name(uint64_t bytes);

// A first look into a file, by a child that has no rights ---------------------------------------------

/// The end of a child's look at a file.
enum class Probed : uint8_t {
  passed,  ///< HDF5 read all objects, or refused one as it will again, or there was no child, or no memory for one
  crashed,  ///< HDF5 crashed
  endless,  ///< it was not done after some seconds of processor time, up to a minute for a large file, or after ten minutes
  starved,  ///< HDF5 found no memory for it; the child gets 1 GiB
};

/// The caller is going to open the file for that.
enum class Use : uint8_t { reading, changing };

/// A file, and how it is read.
struct Looked {
  int descriptor = -1;          ///< open for reading; -1 of a file on a server
  FarFile* far = nullptr;       ///< a file on a server
  ByteSource* local = nullptr;  ///< reads a file that is here; nullptr: HDF5 reads the descriptor
  Overlay* overlay = nullptr;   ///< changes of the file; nullptr: none
  Use use = Use::reading;
};

/// Goes through all groups, datasets and attributes of the file in a child process that may read it and ask for memory,
/// nothing else (seccomp, where the system has it). The reason: HDF5 1.10 crashes on some headers that somebody made up
/// on purpose; so it is the child that crashes. A file that passed before, or had no end, unchanged and without an overlay, is
/// not looked at again. For changing HDF5 opens and closes a file in another way; what the child writes goes nowhere.
///
/// The child asks this process for bytes of a file on a server, through a pair of sockets, which is all it has open: it reaches
/// no network. Throws Error if the server does not give them, or the child cannot ask.
///
/// The caller keeps other threads out of HDF5.
Probed probe(const Looked& file);

/// The child does this first. The calling process may then read what is open, ask for memory, write to one descriptor if one
/// is given, and end; every other system call gives EPERM, so that what HDF5 or the C library asks for without need does no
/// harm. Returns whether that holds: false where the system knows no seccomp, or a container forbids it.
bool give_up_rights(int written = -1);

/// The child does this before: closes all that is open but one descriptor, connections to servers above all.
void close_others(int kept);

}  // namespace kvcodec::h5
