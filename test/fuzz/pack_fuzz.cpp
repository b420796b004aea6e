// Bit packing: any bytes unpack at any width to ids that pack to the same bits; bounds hold.
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/entropy/pack.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

KVCODEC_FUZZ_TARGET(pack) {
  fuzz::Bytes input(data, size);
  const unsigned width = 1 + input.byte() % kMaxPackedWidth;
  const uint64_t first_bit = input.byte();
  const uint64_t count = input.below(4096);
  const uint64_t bound = input.byte() % 4 == 0 ? 1 + input.below(65536) : 0;
  const auto bytes = input.rest();
  fuzz::expect_refusal_or_success([&] {
    std::vector<uint32_t> ids(count);
    unpack_bits(bytes, first_bit, width, bound, ids);
    BitReader reader(bytes, first_bit);
    for (const uint32_t id : ids) {
      fuzz::require(id == reader.get(width));
      fuzz::require(bound == 0 || id < bound);
    }
    std::vector<uint8_t> again((first_bit + count * width + 7) / 8, 0);
    pack_bits(ids, width, bound, again, first_bit);
    BitReader packed(again, first_bit);
    for (const uint32_t id : ids) fuzz::require(id == packed.get(width));
  });
  return 0;
}
