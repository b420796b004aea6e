// The portable variant; huffman_avx2.cpp is the same code with BMI2.
#define KVCODEC_HUFFMAN_LEVEL scalar
#include "lib/entropy/huffman_entries.hpp"

namespace kvcodec::huffman_kernels::scalar {

bool copy_and_find(const uint8_t* end, size_t rows, size_t n, uint8_t wanted, uint8_t* to, size_t to_stride) {
  return copy_rows(end, rows, n, wanted, to, to_stride);
}
bool copy_and_find(const uint16_t* end, size_t rows, size_t n, uint16_t wanted, uint16_t* to,
                   size_t to_stride) {
  return copy_rows(end, rows, n, wanted, to, to_stride);
}

}  // namespace kvcodec::huffman_kernels::scalar
