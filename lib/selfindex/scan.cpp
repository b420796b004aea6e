// The scalar reference of scan_kernels.hpp.
#include "lib/selfindex/scan_kernels.hpp"

namespace kvcodec::scan_kernels {
namespace {

uint8_t byte_of(const Codes& codes, size_t token, size_t b) {
  return codes
      .bytes[token / kLaneTokens * kLaneTokens * codes.row_bytes + b * kLaneTokens + token % kLaneTokens];
}

int32_t byte_sum(const Codes& codes, const uint8_t* table, size_t token) {
  int32_t sum = 0;
  for (size_t b = 0; b < codes.row_bytes; ++b) {
    const uint8_t byte = byte_of(codes, token, b);
    sum += table[32 * b + (byte >> 4)] + table[32 * b + 16 + (byte & 15)];
  }
  return sum;
}

float exact_score(const Codes& codes, const float* table, size_t token) {
  float sum = 0;
  for (size_t group = 0; group < codes.groups; ++group) {
    const uint8_t byte = byte_of(codes, token, group / 2);
    sum += table[16 * group + (group % 2 == 0 ? byte >> 4 : byte & 15)];
  }
  return sum;
}

size_t scan(const Codes& codes, const uint8_t* table, size_t first, size_t end, int32_t limit, int32_t* sums,
            uint32_t* ids, size_t room, size_t* written) {
  size_t found = 0, block = first;
  for (; block < end && found + kScanRoom <= room; ++block)
    for (size_t token = block * kBlock; token < (block + 1) * kBlock && token < codes.tokens; ++token) {
      const int32_t sum = byte_sum(codes, table, token);
      if (sum < limit) continue;
      sums[found] = sum;
      ids[found++] = static_cast<uint32_t>(token);
    }
  *written = found;
  return block;
}

void exact(const Codes& codes, const float* table, size_t first, size_t end, float* out) {
  for (size_t token = first * kBlock; token < end * kBlock; ++token)
    *out++ = exact_score(codes, table, token);
}

void exact_of(const Codes& codes, const float* table, const uint32_t* ids, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = exact_score(codes, table, ids[i]);
}

}  // namespace

const Table& scalar::table() {
  static constexpr Table kTable = {scan, exact, exact_of};
  return kTable;
}

}  // namespace kvcodec::scan_kernels
