#include "lib/sparse/omp_kernels_body.hpp"

const kvcodec::omp_kernels::Kernels& kvcodec::omp_kernels::avx512::table() { return kTable; }
