// Journals written from FORMAT.md, valid ones and forged ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/digest.hpp"

namespace kvcodec::test {

/// The bytes of a journal whose digest holds. end: of the file with its change; first_page: of the file without; pages: numbers,
/// and 4096 bytes each.
inline std::string journal_bytes(uint64_t end, const std::string& first_page,
                                 const std::vector<std::pair<uint64_t, std::string>>& pages,
                                 int version = 1) {
  std::string bytes = "kvcodec journal " + std::to_string(version) + "\n";
  bytes.resize(24);
  const auto add_number = [&](uint64_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  add_number(end);
  add_number(pages.size());
  bytes += first_page;
  for (const auto& [number, page] : pages) add_number(number);
  for (const auto& [number, page] : pages) bytes += page;
  const Digest128 digest = digest_of(std::as_bytes(std::span(bytes)));
  bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return bytes;
}

}  // namespace kvcodec::test
