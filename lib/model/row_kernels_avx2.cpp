#include "lib/model/row_kernels_body.hpp"

const kvcodec::row_kernels::Table& kvcodec::row_kernels::avx2::table() { return kTable; }
