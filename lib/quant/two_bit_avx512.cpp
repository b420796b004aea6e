#include "lib/quant/two_bit_wide_body.hpp"

const kvcodec::two_bit_kernels::Table& kvcodec::two_bit_kernels::avx512::table() { return kTable; }
