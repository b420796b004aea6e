// Protection of a file's content by checksums and by the digests of FORMAT.md, and its verification.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/core/names.hpp"

namespace kvcodec {

/// The share of a file's datasets that have a protection. A dataset without bytes counts as protected.
enum class Coverage : uint8_t { none, some, all };
constexpr auto names_of(Coverage) { return std::to_array<std::string_view>({"none", "some", "all"}); }

struct Protection {
  Coverage checksums = Coverage::none;  ///< Fletcher-32, which any HDF5 library verifies
  Coverage digests = Coverage::none;    ///< of datasets, which kvcodec verifies
};

/// Reads headers only. Data with digests of their own, such as the parts of codes, count as protected by both. Throws
/// Error(bad_input) for a file that is not of kvcodec.
Protection protection_of(const std::string& file);

/// Reads everything that the file holds, and returns a message for each dataset and each part of codes whose checksums or digests
/// do not match; for a dataset only the first one. progress(done, total): bytes. Throws Error(bad_input) for a file that is not of
/// kvcodec.
std::vector<std::string> find_damage(const std::string& file,
                                     const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace kvcodec
