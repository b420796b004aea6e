#include "lib/quant/error_bounded_body.hpp"

const kvcodec::error_bounded_kernels::Table& kvcodec::error_bounded_kernels::avx2::table() { return kTable; }
