// The documents that kvcodec encode encodes, and their places in the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"

namespace kvcodec::cli {

/// The work of encode: whole documents of a kv file, and their places in the codes.
struct Job {
  struct Piece {
    uint64_t first = 0, count = 0;  ///< tokens of the kv file
    size_t document = 0;            ///< of the codes
    size_t source = 0;              ///< document of the kv file
  };
  std::vector<Piece> pieces;
  /// Surveyed for the streams that all documents of a new file share: with --shard the pieces of all shares; empty if these streams
  /// exist.
  std::vector<Piece> surveyed;
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> positions;
  std::vector<std::string>
      stored_before;  ///< documents that are left out, because the codes have them already
};

/// The documents of a kv file to encode. base: codes that they are added to, or null; documents that it already has are left out,
/// and a first document may continue its last one. documents: those of the codes; new ones are added. Throws Error(bad_input) for a
/// document that continues another while some layers leave out tokens.
Job make_job(const KvReader& kv, const std::vector<size_t>& chosen, const CodesReader* base,
             Documents& documents);

}  // namespace kvcodec::cli
