#include "lib/entropy/huffman_window.hpp"

#include <algorithm>

namespace kvcodec {

std::vector<WindowCode> codes_by_window(const HuffmanBook& book, unsigned window) {
  // A book of one code leaves the half behind it unused: it means that symbol too.
  size_t only = 0;
  while (only < book.symbols() && book.length(only) == 0) ++only;
  std::vector<WindowCode> codes(size_t{1} << window, {static_cast<uint16_t>(only), 1});
  for (size_t symbol = 0; symbol < book.symbols(); ++symbol)
    if (const unsigned length = book.length(symbol); length > 0) {
      const size_t values = size_t{1} << (window - length);
      const auto begin = codes.begin() + ptrdiff_t{book.code(symbol)} * static_cast<ptrdiff_t>(values);
      std::fill_n(begin, values, WindowCode{static_cast<uint16_t>(symbol), static_cast<uint8_t>(length)});
    }
  return codes;
}

}  // namespace kvcodec
