// Journals by the words of FORMAT.md, good ones and such that lie.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/digest.hpp"

namespace kvcodec::test {

/// The bytes of a journal whose digests hold. end: of the file with its change; first_page: of the file without; pages: numbers,
/// and 4096 bytes each. signature: 1 or 2.
inline std::string journal_bytes(uint64_t end, const std::string& first_page,
                                 const std::vector<std::pair<uint64_t, std::string>>& pages,
                                 int signature = 2) {
  std::string bytes = "kvcodec journal " + std::to_string(signature) + "\n";
  bytes.resize(24);
  const auto add_number = [&](uint64_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const auto add_digest = [&](const std::string& of) {
    const Digest128 digest = digest_of(std::as_bytes(std::span(of)));
    bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  };
  add_number(end);
  add_number(pages.size());
  if (signature == 1)
    add_digest(first_page);
  else
    bytes += first_page;
  for (const auto& [number, page] : pages) add_number(number);
  for (const auto& [number, page] : pages) bytes += page;
  add_digest(std::string(bytes));
  return bytes;
}

}  // namespace kvcodec::test
