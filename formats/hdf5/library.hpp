// Parts of the sources behind formats/hdf5/hdf5.hpp: turns inside HDF5, identifiers that close themselves, HDF5's reasons and types.
// For formats/hdf5 alone.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

#include "lib/core/dtype.hpp"
#include "lib/core/text_list.hpp"

namespace kvcodec::h5 {

/// Held around every call into HDF5: the library may be built without locks of its own.
class Turn {
 public:
  Turn() : lock_(mutex()) {
    // Where HDF5 is built with threads, what it prints is a setting of each thread.
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
/// That of a type of HDF5, whatever its byte order; none for strings, compounds and the like.
std::optional<DType> known_type(hid_t type);

/// Strings of so many bytes, filled up with zeros.
Handle text_type(size_t size);

/// How a file stores strings of one size.
struct FixedText {
  size_t size = 0;      ///< bytes of each
  bool spaces = false;  ///< filled up with spaces, not zeros
};
FixedText fixed_text(hid_t type);
/// Cuts strings out of their bytes. For anybody.
void append_texts(std::span<const std::byte> bytes, const FixedText& type, TextList& texts);

}  // namespace kvcodec::h5
