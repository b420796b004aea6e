#include "lib/entropy/huffman_kernels.hpp"

const kvcodec::huffman_kernels::Table& kvcodec::huffman_kernels::avx2::table() { return kTable; }
