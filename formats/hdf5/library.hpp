// Internals of the sources behind formats/hdf5/hdf5.hpp: the lock around HDF5, identifiers that close themselves, HDF5's error
// reasons and types, the driver for reading and writing files, filters of chunks, digests, and the probe of a file. Only
// formats/hdf5 uses this header.
#pragma once

#include <cstring>
#include <exception>
#include <functional>
#include <utility>

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
    // A threaded build of HDF5 has a setting of its own for each thread.
    thread_local const bool silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    (void)silenced;
    // A file may name any filter; HDF5 must not load code for it from folders that the environment names.
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

/// A function that HDF5 calls, a C library through which no exception may pass. Args: all arguments except the client.
template <class... Args>
class Callback {
 public:
  explicit Callback(std::function<void(Args...)> body) : body_(std::move(body)) {}
  /// HDF5 gets this function, and the object as client. A negative result, if body threw, makes HDF5 stop.
  static herr_t call(Args... args, void* client) noexcept {
    auto& own = *static_cast<Callback*>(client);
    try {
      own.body_(args...);
      return 0;
    } catch (...) {
      own.thrown_ = std::current_exception();
      return -1;
    }
  }
  /// Rethrows an exception of the body after HDF5 has returned.
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  std::function<void(Args...)> body_;
  std::exception_ptr thrown_;
};

// The caller of all functions below must hold a Turn.

/// Names of the links of a group, in HDF5's order. hard: only those to objects of this file. std::nullopt: they cannot be listed.
std::optional<std::vector<std::string>> link_names(hid_t group, bool hard);

/// Gives a new object, from H5Dcreate_anon or H5Gcreate_anon, its name. Two calls are necessary: if one HDF5 call creates an object and
/// then cannot link it, as in a damaged group, HDF5 keeps a part of it open, cannot close the file, and crashes when the program ends.
inline bool link_new(const Handle& object, hid_t file, const std::string& path) {
  return object && H5Olink(object.get(), file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT) >= 0;
}

/// The innermost entry of HDF5's error stack, on one line.
std::string innermost_reason();

/// The type in which values are stored: little-endian. HDF5 and h5py convert all of them, including the 16-bit floats, by
/// themselves.
Handle stored_type(DType type);
/// The element type of an HDF5 type, in any byte order; std::nullopt for strings, compounds and the like.
std::optional<DType> known_type(hid_t type);

/// Strings of that many bytes, padded with zeros.
Handle text_type(size_t size);

/// Appends strings of variable length; read(pointers) makes HDF5 set pointers to them. False if it failed. space: that of the strings.
template <class Read>
bool append_variable_texts(hid_t type, hid_t space, size_t count, const Read& read, TextList& texts) {
  std::vector<char*> pointers(count, nullptr);
  if (count > 0 && read(pointers.data()) < 0) return false;
  for (const char* text : pointers) texts.push_back(text ? text : "");
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, pointers.data());
  return true;
}

// The driver -------------------------------------------------------------------------------------------

/// h5::File tells the driver here how to open the file; the driver reports the first error here.
struct FileStatus {
  /// errno of the first open, read or write that failed. Nothing is written to the file after it.
  int error = 0;
  /// Reads the file; nullptr: the file is written, and the driver opens it.
  ByteSource* source = nullptr;
  /// A descriptor that refers to the file, whatever its name; -1: the driver opens the file by its name.
  int given = -1;
  std::exception_ptr source_error;  ///< the first error of reading `source`
  /// Pages that replace those of the file. While the file is written, changes of its old bytes go to these pages, and its new end
  /// to overlay->end; new bytes go to the file itself.
  Overlay* overlay = nullptr;
  uint64_t allocated = 0;  ///< bytes of the file that HDF5 knows of
  /// If set, raw data are not read, and their address is stored here instead. HDF5 1.10 has no call that returns a chunk's address
  /// without a walk over all chunks; but it finds a chunk at once when it reads it.
  std::optional<uint64_t>* asked_address = nullptr;
};

/// Bytes of a file that is read through a source, patched with those of the overlay; zeros after the end of the source.
void read_patched(const FileStatus& status, uint64_t position, std::span<std::byte> out);

/// A file access list for plain positioned reads and writes. It tells HDF5 that every write succeeded and keeps the first error in
/// `status` (which outlives the file).
///
/// The reason: HDF5 1.10 cannot close a file whose metadata could not be flushed. H5Fclose fails, the file stays half open, and the
/// library crashes at its next use or at exit. So write errors are hidden from HDF5; h5::File checks the status instead, after
/// every operation and after closing, and the output is discarded. Besides, the file need not be reachable by its name
/// (/proc/self/fd/N), and a file that is opened twice is two independent files.
hid_t make_access(FileStatus* status);

// Filters ----------------------------------------------------------------------------------------------

/// The Fletcher-32 filter appends its checksum to the bytes, little-endian.
inline constexpr size_t kChecksumBytes = 4;

/// The checksum stored at that place.
inline uint32_t stored_checksum(const std::byte* at) {
  uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Filters that the chunks of a dataset passed before they were stored. HDF5 1.10 undoes filters without bounds: a chunk may inflate to
/// any size, and HDF5 reads beyond the end of one that inflates to too few bytes. So they are undone here.
class Filters {
 public:
  /// No filters.
  Filters() = default;
  /// creation: the dataset's creation list; an unreadable list counts as empty. Throws Error(bad_input) for more than one
  /// compression, and for any filter except deflate, shuffle and Fletcher-32.
  explicit Filters(hid_t creation);

  bool none() const { return steps_.empty(); }
  bool has_checksum() const { return has(H5Z_FILTER_FLETCHER32); }
  bool checksum_alone() const { return steps_.size() == 1 && has_checksum(); }
  bool compressed() const { return has(H5Z_FILTER_DEFLATE); }

  /// Recovers the chunk from `stored`; skipped: a bit for each filter that was not applied to it. Throws Error(bad_input) unless
  /// its checksum matches and it has as many bytes as out; it inflates to at most that many.
  void undo(std::span<const std::byte> stored, uint32_t skipped, std::span<std::byte> out) const;

 private:
  struct Step {
    H5Z_filter_t filter;
    size_t element_bytes;  ///< of shuffle
    bool makes_anew() const { return filter != H5Z_FILTER_FLETCHER32; }
  };
  bool has(H5Z_filter_t filter) const { return std::ranges::count(steps_, filter, &Step::filter) > 0; }
  std::vector<Step> steps_;  ///< in the order in which they were applied
};

// Digests of datasets and of their pieces (FORMAT.md, "Digests") ---------------------------------------

inline constexpr char kDigestTable[] = "/digests";
inline constexpr char kDigestAttribute[] = "digests";
/// A piece must be held whole to be verified; one row may be larger.
inline constexpr uint64_t kMaxPieceBytes = uint64_t{1} << 24;

/// The attribute of a dataset that describes its digests (FORMAT.md, "Digests").
struct Pieces {
  uint64_t rows = 0;   ///< of a piece; the last one may have fewer
  uint64_t first = 0;  ///< row of the table where the digests of its pieces begin
  Digest128 digest{};  ///< of path, type, shape, rows and those digests

  /// Reads the attribute's form: the digest is two numbers, the most significant byte first. numbers: four.
  static Pieces from(std::span<const uint64_t> numbers) {
    Pieces pieces{.rows = numbers[0], .first = numbers[1]};
    for (size_t i = 0; i < sizeof(Digest128); ++i)
      pieces.digest[i] = static_cast<std::byte>(numbers[2 + i / 8] >> (56 - 8 * (i % 8)));
    return pieces;
  }
  std::vector<uint64_t> numbers() const {
    std::vector<uint64_t> numbers{rows, first, 0, 0};
    for (size_t i = 0; i < sizeof(Digest128); ++i)
      numbers[2 + i / 8] |= static_cast<uint64_t>(digest[i]) << (56 - 8 * (i % 8));
    return numbers;
  }
  uint64_t count(uint64_t all_rows, uint64_t row_bytes) const {
    return row_bytes == 0 ? 0 : all_rows / rows + (all_rows % rows != 0);
  }
};

/// type: its name; text_type_name() for strings of one length.
Digest128 dataset_digest(const std::string& path, const std::string& type, std::span<const uint64_t> shape,
                         uint64_t piece_rows, std::span<const Digest128> pieces);
inline std::string text_type_name(uint64_t bytes) { return fmt::format("string{}", bytes); }

// The probe of a file by a child process without rights ----------------------------------------------

/// The result of a child's probe of a file.
enum class Probed : uint8_t {
  passed,  ///< HDF5 read all objects, or refused one and will refuse it again; or no child or no memory for one was available
  crashed,  ///< HDF5 crashed
  endless,  ///< the child ran out of time: some seconds of processor time, up to a minute for a large file, or ten minutes in all
  starved,  ///< HDF5 found no memory for it; the child gets 1 GiB
};

/// The caller's purpose in opening the file.
enum class Use : uint8_t { reading, changing };

/// A file to probe, and how it is read.
struct ProbeTarget {
  int descriptor = -1;          ///< open for reading; -1 for a file on a server
  FarFile* far = nullptr;       ///< a file on a server
  ByteSource* local = nullptr;  ///< reads a file that is here; nullptr: HDF5 reads the descriptor
  Overlay* overlay = nullptr;   ///< changes of the file; nullptr: none
  Use use = Use::reading;
};

/// Visits all groups, datasets and attributes of the file in a child process that may only read it and allocate memory (seccomp, if
/// the system has it). The reason: HDF5 1.10 crashes on some maliciously made headers; this way the child crashes. A file that
/// passed or ran out of time before is not probed again if it is unchanged and has no overlay. For Use::changing HDF5 opens and
/// closes a file in another way; the child's writes are discarded.
///
/// For a file on a server, the child asks this process for bytes through a pair of sockets, its only open descriptor: it cannot
/// reach the network. Throws Error if the server does not deliver them, or the child cannot ask.
///
/// The caller keeps other threads out of HDF5.
Probed probe(const ProbeTarget& file);

/// First step of the child. Afterwards the calling process may read open files, allocate memory, write to one descriptor if one is
/// given, and exit; every other system call gives EPERM, so that unnecessary calls by HDF5 or the C library do no harm. Returns
/// false if this could not be set up: the system has no seccomp, or a container forbids it.
bool give_up_rights(int written = -1);

/// The child does this before give_up_rights(): closes all descriptors but one, especially connections to servers.
void close_others(int kept);

}  // namespace kvcodec::h5
