#include "lib/codec/book.hpp"

#include <fmt/ranges.h>

#include "lib/core/checked.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

static bool needed_to_decode(const Array& array) { return !array.name.starts_with(Book::kTrainingPrefix); }

const Array& Book::get(std::string_view name, DType dtype, size_t dimensions) const {
  const Array* array = find(name);
  if (!array) throw bad_input("/{}: missing from the {}", name, type);
  if (array->type != dtype || array->shape.size() != dimensions)
    throw bad_input("/{}: is {} [{}]; a {} has {} with {} dimensions there", name, name_of(array->type),
                    fmt::join(array->shape, ", "), type, name_of(dtype), dimensions);
  return *array;
}

const Array& Book::checked(std::string_view name, DType dtype, std::span<const uint64_t> shape,
                           size_t element_bytes) const {
  const Array& array = get(name, dtype, shape.size());
  if (!std::ranges::equal(array.shape, shape))
    throw bad_input("/{}: is [{}]; it must be [{}]", name, fmt::join(array.shape, ", "),
                    fmt::join(shape, ", "));
  if (array.bytes.size() != checked_mul(checked_product(array.shape), element_bytes))
    throw bad_input("/{}: {} bytes do not fit its shape [{}]", name, array.bytes.size(),
                    fmt::join(array.shape, ", "));
  return array;
}

void Book::read_options(std::string_view of_type, std::string_view what,
                        std::initializer_list<Options*> options) const {
  if (type != of_type) throw bad_input("the book is of type '{}'; a {} is needed", type, of_type);
  try {
    for (Options* each : options) from_record(parameters, *each);
  } catch (const Error& error) {
    throw bad_input("parameters of the {}: {}", what, error.what());
  }
}

int value_dim_in(const Record& parameters) {
  constexpr int64_t kMax = 1 << 20;
  if (!parameters.find("value-dim")) return kAsKeys;
  const int64_t value = parameters.get_int("value-dim");
  if (value < 0 || value > kMax) throw bad_input("value-dim is {}; it must be between 0 and {}", value, kMax);
  return static_cast<int>(value);
}

uint64_t Book::size_bytes() const {
  uint64_t total = 0;
  for (const Array& array : arrays)
    if (needed_to_decode(array)) total += array.bytes.size();
  return total;
}

std::string Book::digest() const {
  Digest digest;
  digest.add(type);
  for (const Array& array : arrays) {
    if (!needed_to_decode(array)) continue;
    digest.add(array.name);
    digest.add(name_of(array.type));
    digest.add(uint64_t{array.shape.size()});
    for (const uint64_t extent : array.shape) digest.add(extent);
    digest.add(std::span<const std::byte>(array.bytes));
  }
  return digest.hex();
}

}  // namespace kvcodec
