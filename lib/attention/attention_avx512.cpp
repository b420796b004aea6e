#include "lib/attention/attention_kernels_body.hpp"

const kvcodec::attention_kernels::Table& kvcodec::attention_kernels::avx512::table() { return kTable; }
