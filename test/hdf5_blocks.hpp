// The metadata of HDF5 files that have a checksum: finds them, and repairs the checksums after deliberate changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace kvcodec::test {

/// Bob Jenkins' lookup3 of bytes, in HDF5's form.
inline uint32_t lookup3(std::string_view bytes) {
  const auto turn = [](uint32_t x, int by) { return x << by | x >> (32 - by); };
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(bytes.size()), b = a, c = a;
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4 && at + i < bytes.size(); ++i)
      value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
    return value;
  };
  size_t at = 0;
  for (; bytes.size() - at > 12; at += 12) {
    a += word(at), b += word(at + 4), c += word(at + 8);
    a -= c, a ^= turn(c, 4), c += b;
    b -= a, b ^= turn(a, 6), a += c;
    c -= b, c ^= turn(b, 8), b += a;
    a -= c, a ^= turn(c, 16), c += b;
    b -= a, b ^= turn(a, 19), a += c;
    c -= b, c ^= turn(b, 4), b += a;
  }
  if (at == bytes.size()) return c;
  a += word(at), b += word(at + 4), c += word(at + 8);
  c ^= b, c -= turn(b, 14);
  a ^= c, a -= turn(c, 11);
  b ^= a, b -= turn(a, 25);
  c ^= b, c -= turn(b, 16);
  a ^= c, a -= turn(c, 4);
  b ^= a, b -= turn(a, 14);
  c ^= b, c -= turn(b, 24);
  return c;
}

/// Bytes of a file, followed by their checksum (4 bytes, little-endian).
struct Hdf5Block {
  uint64_t at = 0;
  uint64_t size = 0;  ///< the checksum aside
};

inline bool bears_checksum(std::string_view bytes, const Hdf5Block& block) {
  uint32_t stored = 0;
  if (block.at > bytes.size() || block.size + sizeof stored > bytes.size() - block.at) return false;
  std::memcpy(&stored, bytes.data() + block.at + block.size, sizeof stored);
  return lookup3(bytes.substr(block.at, block.size)) == stored;
}

/// Size in bytes that an object header of version 2 gives; 0 if there is none, or its bytes are incomplete.
inline uint64_t object_header_size(std::string_view bytes, uint64_t at) {
  if (at + 16 > bytes.size() || bytes.substr(at, 4) != "OHDR" || bytes[at + 4] != 2) return 0;
  const auto flags = static_cast<unsigned char>(bytes[at + 5]);
  const size_t place = at + 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
  const size_t width = size_t{1} << (flags & 3);
  uint64_t length = 0;
  for (size_t i = 0; i < width && place + i < bytes.size(); ++i)
    length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[place + i])) << (8 * i);
  const uint64_t size = place + width - at + length;
  return length > bytes.size() || at + size + 4 > bytes.size() ? 0 : size;
}

/// The object headers of version 2 whose checksums hold.
inline std::vector<Hdf5Block> object_headers(std::string_view bytes) {
  std::vector<Hdf5Block> headers;
  for (size_t at = bytes.find("OHDR"); at != std::string_view::npos; at = bytes.find("OHDR", at + 1)) {
    const Hdf5Block block{at, object_header_size(bytes, at)};
    if (block.size > 0 && bears_checksum(bytes, block)) headers.push_back(block);
  }
  return headers;
}

/// All blocks with a valid checksum: the superblock, object headers, and others that begin with a signature of HDF5 (continuations
/// of headers, heaps, indices of chunks and links), up to 4 KiB each.
inline std::vector<Hdf5Block> checksummed_blocks(std::string_view bytes) {
  constexpr uint64_t kSuperblockBytes = 44, kLongest = 4096;
  constexpr std::array<std::string_view, 15> kSignatures = {"OCHK", "FRHP", "FHDB", "FHIB", "FSHD",
                                                            "FSSE", "BTHD", "BTIN", "BTLF", "FAHD",
                                                            "FADB", "EAHD", "EAIB", "EASB", "EADB"};
  std::vector<Hdf5Block> blocks = object_headers(bytes);
  if (const Hdf5Block superblock{0, kSuperblockBytes}; bears_checksum(bytes, superblock))
    blocks.push_back(superblock);
  for (const std::string_view signature : kSignatures)
    for (size_t at = bytes.find(signature); at != std::string_view::npos; at = bytes.find(signature, at + 1))
      for (uint64_t size = 8; size <= kLongest && at + size + 4 <= bytes.size(); ++size)
        if (const Hdf5Block block{at, size}; bears_checksum(bytes, block)) {
          blocks.push_back(block);
          break;
        }
  return blocks;
}

/// Makes the checksums of these blocks right again, where HDF5 will look for them.
inline void mend_checksums(std::string& bytes, const std::vector<Hdf5Block>& blocks) {
  for (Hdf5Block block : blocks) {
    if (const uint64_t claimed = object_header_size(bytes, block.at)) block.size = claimed;
    if (block.at > bytes.size() || block.size + 4 > bytes.size() - block.at) continue;
    const uint32_t checksum = lookup3(std::string_view(bytes).substr(block.at, block.size));
    std::memcpy(bytes.data() + block.at + block.size, &checksum, sizeof checksum);
  }
}

}  // namespace kvcodec::test
