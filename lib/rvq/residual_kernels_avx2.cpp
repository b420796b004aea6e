#include "lib/rvq/residual_kernels_body.hpp"

const kvcodec::residual_kernels::Table& kvcodec::residual_kernels::avx2::table() { return kTable; }
