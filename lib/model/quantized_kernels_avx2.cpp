#include "lib/model/quantized_kernels_body.hpp"

const kvcodec::quantized_kernels::Table& kvcodec::quantized_kernels::avx2::table() { return kTable; }
