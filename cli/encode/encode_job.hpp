// The documents that kvcodec encode encodes, and their places in the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/inputs/documents.hpp"
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
  NameRule names = {false, {}};  ///< documents that are left out or replaced
};

/// The documents of a kv file to encode. base: codes that they are added to, or null. documents: the table of the codes, where new ones are
/// added; if some replace others (NameRule::replaces) it has the new ones alone: old and new are then written apart. Throws
/// Error(bad_input) for a document that continues another while some layers leave out tokens.
Job make_job(const KvReader& kv, const std::vector<size_t>& chosen, const CodesReader* base,
             const Additions& how, Documents& documents);

}  // namespace kvcodec::cli
