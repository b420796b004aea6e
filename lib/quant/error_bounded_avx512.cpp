#include "lib/quant/error_bounded_body.hpp"

const kvcodec::error_bounded_kernels::Table& kvcodec::error_bounded_kernels::avx512::table() {
  return kTable;
}
