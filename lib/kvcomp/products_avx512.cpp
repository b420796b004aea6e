#include "lib/kvcomp/products_kernels_body.hpp"

void kvcodec::products_kernels::avx512::multiply(Factors factors) { wide_multiply(factors); }
