// What each instruction set offers of the loops alike, under the names of huffman_kernels.hpp.
#pragma once

#include "lib/entropy/huffman_loops.hpp"

namespace kvcodec::huffman_kernels::KVCODEC_HUFFMAN_LEVEL {

void decode_lanes(DecodeTable table, const uint8_t* in, size_t in_bytes, size_t n, Target target,
                  Lane<uint8_t>* lanes) {
  decode_runs<kLanes>(table, in, in_bytes, n, target, lanes);
}
void decode_lanes(DecodeTable table, const uint8_t* in, size_t in_bytes, size_t n, Target target,
                  Lane<uint16_t>* lanes) {
  decode_runs<kLanes>(table, in, in_bytes, n, target, lanes);
}
void decode_lane(DecodeTable table, const uint8_t* in, size_t in_bytes, size_t n, Lane<uint8_t>* lane) {
  decode_runs<1>(table, in, in_bytes, n, {}, lane);
}
void decode_lane(DecodeTable table, const uint8_t* in, size_t in_bytes, size_t n, Lane<uint16_t>* lane) {
  decode_runs<1>(table, in, in_bytes, n, {}, lane);
}

size_t encode(EncodeTable table, const uint8_t* symbols, size_t stride, size_t runs, size_t n, uint8_t* out,
              uint64_t* bit, uint32_t* run_bits, uint64_t* flags) {
  return encode_runs(table, symbols, stride, runs, n, out, bit, run_bits, flags);
}
size_t encode(EncodeTable table, const uint16_t* symbols, size_t stride, size_t runs, size_t n, uint8_t* out,
              uint64_t* bit, uint32_t* run_bits, uint64_t* flags) {
  return encode_runs(table, symbols, stride, runs, n, out, bit, run_bits, flags);
}

}  // namespace kvcodec::huffman_kernels::KVCODEC_HUFFMAN_LEVEL
