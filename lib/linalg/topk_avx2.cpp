#include "lib/linalg/topk_kernels_body.hpp"

const kvcodec::topk_kernels::Table& kvcodec::topk_kernels::avx2::table() { return kTable; }
