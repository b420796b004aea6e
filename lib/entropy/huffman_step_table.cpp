#include "lib/entropy/huffman_step_table.hpp"

#include "lib/core/error.hpp"

namespace kvcodec {

std::vector<uint32_t> step_table(const HuffmanBook& book) {
  if (book.num_codes() == 0) throw failed("a book without codes decodes nothing");
  if (book.symbols() > 256) throw failed("a book of {} symbols; steps know 256", book.symbols());
  const auto codes = book.codes_by_window(kStepWindow);
  const auto escapes = [&](const HuffmanBook::Code& code) {
    return book.has_escape() && code.symbol == book.escape();
  };
  std::vector<uint32_t> table;
  for (size_t bits = 0; bits < codes.size(); ++bits) {
    const HuffmanBook::Code& first = codes[bits];
    // What follows the first code; the bits that are not known are those of a second that does not fit.
    const HuffmanBook::Code& second = codes[(bits << first.length) % codes.size()];
    const bool both =
        first.length + second.length <= static_cast<int>(kStepWindow) && !escapes(first) && !escapes(second);
    table.push_back(both ? step_entry(first.symbol, first.length, second.symbol, second.length)
                         : step_entry(first.symbol, first.length, escapes(first)));
  }
  return table;
}

}  // namespace kvcodec
