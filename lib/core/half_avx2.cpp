#include "lib/core/half_kernels_body.hpp"

const kvcodec::half_kernels::Table& kvcodec::half_kernels::avx2::table() { return kTable; }
