#include "lib/linalg/row_sums_kernels_body.hpp"

const kvcodec::row_sums_kernels::Table& kvcodec::row_sums_kernels::avx512::table() { return kTable; }
