// The portable variant; huffman_avx2.cpp is the same code with BMI2.
#include "lib/entropy/huffman_loops.hpp"

namespace kvcodec::huffman_kernels {

template <class Symbol>
const Table<Symbol>& scalar::table() {
  static constexpr Table<Symbol> kTable = {decode_runs<kLanes, Symbol>, decode_runs<1, Symbol>,
                                           copy_rows<Symbol>, encode_runs<Symbol>};
  return kTable;
}
template const Table<uint8_t>& scalar::table();
template const Table<uint16_t>& scalar::table();

const SideBySideKernels* scalar::side_by_side() { return nullptr; }

}  // namespace kvcodec::huffman_kernels
