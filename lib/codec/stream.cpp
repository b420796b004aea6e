#include "lib/codec/stream.hpp"

namespace kvcodec {

std::string_view name_of(Category category) {
  switch (category) {
    case Category::payload:
      return "payload";
    case Category::ids:
      return "ids";
    case Category::scales:
      return "scales";
    case Category::tables:
      return "tables";
    case Category::offsets:
      return "offsets";
    case Category::exempt:
      return "exempt";
  }
  return "?";
}

}  // namespace kvcodec
