// The filters of chunks, undone past HDF5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <hdf5.h>

namespace kvcodec::h5 {

/// Of the filter Fletcher-32: its checksum stands behind what it is of, little-endian.
inline constexpr size_t kChecksumBytes = 4;

/// The checksum that is stored there.
inline uint32_t stored_checksum(const std::byte* at) {
  uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// What the chunks of a dataset went through before they were stored. HDF5 1.10 undoes it without bounds: a chunk inflates to
/// whatever its bytes say, and one that gives less than a chunk is read beyond its end. So filters are undone here.
class Filters {
 public:
  /// No filters.
  Filters() = default;
  /// creation: the dataset's creation list; what cannot be read counts as none. Throws Error(bad_input) for more than one
  /// compression, and for any filter but deflate, shuffle and Fletcher-32.
  explicit Filters(hid_t creation);

  bool none() const { return steps_.empty(); }
  bool has_checksum() const;  ///< Fletcher-32 is among them
  bool checksum_alone() const { return steps_.size() == 1 && has_checksum(); }
  bool compressed() const;

  /// The chunk of which `stored` was made; skipped: a bit for each filter that it did not go through. Throws Error(bad_input)
  /// unless its checksum holds and it has as many bytes as out; it inflates to no more than these.
  void undo(std::span<const std::byte> stored, uint32_t skipped, std::span<std::byte> out) const;

 private:
  struct Step {
    H5Z_filter_t filter;
    size_t element_bytes;  ///< of shuffle
    bool makes_anew() const { return filter != H5Z_FILTER_FLETCHER32; }
  };
  std::vector<Step> steps_;  ///< in the order in which they were applied
};

}  // namespace kvcodec::h5
