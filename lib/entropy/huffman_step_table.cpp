#include "lib/entropy/huffman_step_table.hpp"

#include "lib/core/error.hpp"
#include "lib/entropy/huffman_window.hpp"

namespace kvcodec {

StepTable step_table(const HuffmanBook& book, int zero_symbol) {
  if (book.num_codes() == 0) throw failed("a book without codes decodes nothing");
  if (book.symbols() > 256) throw failed("a book of {} symbols; steps know 256", book.symbols());
  StepTable table;
  table.window = book.max_length() <= 11 ? 11 : 12;
  for (const auto& [symbol, length] : codes_by_window(book, table.window))
    table.entries.push_back(
        step_entry(symbol, length, book.has_escape() && symbol == book.escape(), zero_symbol));
  return table;
}

}  // namespace kvcodec
