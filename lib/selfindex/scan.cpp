// The scalar reference of scan_kernels.hpp.
#include "lib/selfindex/scan_kernels.hpp"

namespace kvcodec::scan_kernels {
namespace {

/// Where byte b of a token stands, and the first of its two 16-entry byte tables; the low nibble's is
/// kNibbles behind the high one's.
struct Words {
  static constexpr size_t kNibbles = 64;
  static size_t place(const Codes& codes, size_t token, size_t b) {
    return token / kWordTokens * kWordTokens * codes.row_bytes +
           (b / 4 * kWordTokens + token % kWordTokens) * 4 + b % 4;
  }
  static size_t table(size_t b) { return b / 4 * 128 + b % 4 * 16; }
};

struct Lanes {
  static constexpr size_t kNibbles = 16;
  static size_t place(const Codes& codes, size_t token, size_t b) {
    return token / kLaneTokens * kLaneTokens * codes.row_bytes + b * kLaneTokens + token % kLaneTokens;
  }
  static size_t table(size_t b) { return b * 32; }
};

template <class Arrangement>
int32_t byte_sum(const Codes& codes, const uint8_t* table, size_t token) {
  int32_t sum = 0;
  for (size_t b = 0; b < codes.row_bytes; ++b) {
    const uint8_t byte = codes.bytes[Arrangement::place(codes, token, b)];
    const uint8_t* entries = table + Arrangement::table(b);
    sum += entries[byte >> 4] + entries[Arrangement::kNibbles + (byte & 15)];
  }
  return sum;
}

template <class Arrangement>
float exact_score(const Codes& codes, const float* table, size_t token) {
  float sum = 0;
  for (size_t group = 0; group < codes.groups; ++group) {
    const uint8_t byte = codes.bytes[Arrangement::place(codes, token, group / 2)];
    sum += table[16 * group + (group % 2 == 0 ? byte >> 4 : byte & 15)];
  }
  return sum;
}

template <class Arrangement>
size_t scan(const Codes& codes, const uint8_t* table, size_t first, size_t end, int32_t limit, int32_t* sums,
            uint32_t* ids, size_t room, size_t* written) {
  size_t found = 0, block = first;
  for (; block < end && found + kScanRoom <= room; ++block)
    for (size_t token = block * kBlock; token < (block + 1) * kBlock && token < codes.tokens; ++token) {
      const int32_t sum = byte_sum<Arrangement>(codes, table, token);
      if (sum < limit) continue;
      sums[found] = sum;
      ids[found++] = static_cast<uint32_t>(token);
    }
  *written = found;
  return block;
}

template <class Arrangement>
void quick(const Codes& codes, const uint8_t* table, size_t first, size_t end, float scale, float offset,
           float* out) {
  for (size_t token = first * kBlock; token < end * kBlock; ++token)
    *out++ = offset + scale * static_cast<float>(byte_sum<Arrangement>(codes, table, token));
}

template <class Arrangement>
void exact(const Codes& codes, const float* table, size_t first, size_t end, float* out) {
  for (size_t token = first * kBlock; token < end * kBlock; ++token)
    *out++ = exact_score<Arrangement>(codes, table, token);
}

template <class Arrangement>
void exact_of(const Codes& codes, const float* table, const uint32_t* ids, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = exact_score<Arrangement>(codes, table, ids[i]);
}

template <class Arrangement>
constexpr Table kTable = {scan<Arrangement>, quick<Arrangement>, exact<Arrangement>, exact_of<Arrangement>};

}  // namespace

const Table& scalar::words() { return kTable<Words>; }
const Table& scalar::lanes() { return kTable<Lanes>; }

}  // namespace kvcodec::scan_kernels
