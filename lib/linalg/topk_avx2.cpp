#include "lib/linalg/topk_kernels_body.hpp"

namespace kvcodec::topk_kernels::avx2 {

const Table& table() {
  static constexpr Table kTable = {range, count, keep_one_by_one, collect_one_by_one, ranks};
  return kTable;
}

}  // namespace kvcodec::topk_kernels::avx2
