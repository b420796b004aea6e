#include "lib/kvcomp/products_kernels_body.hpp"

void kvcodec::products_kernels::avx2::multiply(Factors factors) { wide_multiply(factors); }
