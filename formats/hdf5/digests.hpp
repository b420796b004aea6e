// Digests of datasets and of their pieces (FORMAT.md, "Digests"). For formats/hdf5 alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/core/digest.hpp"

namespace kvcodec::h5 {

inline constexpr char kDigestTable[] = "/digests";
inline constexpr char kDigestAttribute[] = "digests";
/// A piece must be held whole to be verified; one row may be larger.
inline constexpr uint64_t kMostPieceBytes = uint64_t{1} << 24;

/// What a dataset says of its digests (FORMAT.md, "Digests").
struct Pieces {
  uint64_t rows = 0;   ///< of a piece; the last one may have fewer
  uint64_t first = 0;  ///< row of the table where the digests of its pieces begin
  Digest128 digest{};  ///< of path, type, shape, rows and those digests

  uint64_t count(uint64_t all_rows, uint64_t row_bytes) const {
    return row_bytes == 0 ? 0 : all_rows / rows + (all_rows % rows != 0);
  }
};

/// type: its name; of strings of one length text_type_name().
Digest128 dataset_digest(const std::string& path, const std::string& type, std::span<const uint64_t> shape,
                         uint64_t piece_rows, std::span<const Digest128> pieces);
std::string text_type_name(uint64_t bytes);

/// Half of a digest as a number, most significant byte first; and the digest of both halves.
uint64_t half_of(const Digest128& digest, size_t half);
Digest128 digest_from(uint64_t high, uint64_t low);

}  // namespace kvcodec::h5
