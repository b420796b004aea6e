#include "lib/core/dtype.hpp"

#include "lib/core/error.hpp"

namespace kvcodec {

DType dtype_from_name(std::string_view name) {
  if (const auto type = value_named<DType>(name)) return *type;
  throw usage_error("'{}' is not an element type; choose from {}", name, fmt::join(kNamesOf<DType>, ", "));
}

}  // namespace kvcodec
