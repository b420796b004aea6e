// Huffman: any bytes read as a book and runs are refused or decoded; the table and the tree walk agree.
#include <vector>

#include "lib/entropy/huffman.hpp"
#include "test/fuzz/fuzz.hpp"
#include "test/lib/entropy/huffman_tree_walk.hpp"

using namespace kvcodec;

namespace {

struct Result {
  bool refused = false;
  Matrix<uint8_t> symbols;
  std::vector<EscapedValue> escaped;
};

template <class Decoder>
Result decode(const Decoder& decoder, std::span<const uint8_t> payload, uint64_t first_bit,
              const std::vector<uint32_t>& run_bits, size_t n) {
  Result result;
  result.symbols = Matrix<uint8_t>(run_bits.size(), n);
  try {
    decoder.decode_runs(payload, first_bit, run_bits, result.symbols, result.escaped);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    result.refused = true;
  }
  return result;
}

void decode_both(const HuffmanBook& book, std::span<const uint8_t> payload, uint64_t first_bit,
                 const std::vector<uint32_t>& run_bits, size_t n) {
  const auto walked = decode(test::HuffmanTreeWalk(book), payload, first_bit, run_bits, n);
  const auto looked_up = decode(HuffmanDecoder(book), payload, first_bit, run_bits, n);
  if (run_bits.size() == 1) fuzz::require(walked.refused == looked_up.refused);
  if (walked.refused) return;
  fuzz::require(!looked_up.refused);
  fuzz::require(walked.escaped == looked_up.escaped);
  for (size_t i = 0; i < walked.symbols.size(); ++i)
    fuzz::require(walked.symbols.data()[i] == looked_up.symbols.data()[i]);
  for (const EscapedValue& value : walked.escaped)
    fuzz::require(walked.symbols(value.row, value.position) == book.escape());
}

}  // namespace

KVCODEC_FUZZ_TARGET(huffman) {
  fuzz::Bytes input(data, size);
  const size_t n = input.below(1200);
  std::vector<uint32_t> run_bits(input.byte());
  const uint64_t first_bit = input.byte() % 16;
  input.byte();  // once chose wider symbols: the corpus has it
  for (uint32_t& bits : run_bits) bits = input.below(65536);
  fuzz::expect_refusal_or_success([&] {
    BitReader reader(input.rest());
    const HuffmanBook book = HuffmanBook::read(reader);
    BitWriter writer;
    book.write(writer);
    const auto bytes = writer.finish();
    BitReader rewritten(bytes);
    fuzz::require(HuffmanBook::read(rewritten) == book);
    const auto payload = input.rest().subspan((reader.position() + 7) / 8);
    if (book.symbols() <= 256) decode_both(book, payload, first_bit, run_bits, n);
  });
  return 0;
}
