#include "formats/hdf5/digests.hpp"

#include <fmt/format.h>

namespace kvcodec::h5 {

Digest128 dataset_digest(const std::string& path, const std::string& type, std::span<const uint64_t> shape,
                         uint64_t piece_rows, std::span<const Digest128> pieces) {
  Digest digest;
  digest.add(path);
  digest.add(type);
  digest.add(uint64_t{shape.size()});
  for (const uint64_t extent : shape) digest.add(extent);
  digest.add(piece_rows);
  digest.add(std::as_bytes(pieces));
  return digest.value();
}

std::string text_type_name(uint64_t bytes) { return fmt::format("string{}", bytes); }

uint64_t half_of(const Digest128& digest, size_t half) {
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | static_cast<uint64_t>(digest[8 * half + i]);
  return number;
}

Digest128 digest_from(uint64_t high, uint64_t low) {
  Digest128 digest;
  for (size_t i = 0; i < 8; ++i) {
    digest[i] = static_cast<std::byte>(high >> (56 - 8 * i));
    digest[8 + i] = static_cast<std::byte>(low >> (56 - 8 * i));
  }
  return digest;
}

}  // namespace kvcodec::h5
