#include "lib/core/kernels_body.hpp"

const kvcodec::core_kernels::Table& kvcodec::core_kernels::avx512::table() { return kTable; }
