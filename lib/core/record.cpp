#include "lib/core/record.hpp"

#include <algorithm>

namespace kvcodec {

template <class T>
static const T& get(const Record& record, std::string_view name, const char* type) {
  const Scalar* value = record.find(name);
  if (!value) throw bad_input("parameter '{}' is missing", name);
  if (const T* typed = std::get_if<T>(value)) return *typed;
  throw bad_input("parameter '{}' is '{}', not {}", name, to_text(*value), type);
}

void Record::set(std::string_view name, Scalar value) {
  auto place =
      std::find_if(items_.begin(), items_.end(), [&](const auto& item) { return item.first == name; });
  if (place != items_.end())
    place->second = std::move(value);
  else
    items_.emplace_back(name, std::move(value));
}

bool Record::get_bool(std::string_view name) const { return get<bool>(*this, name, "true or false"); }
int64_t Record::get_int(std::string_view name) const { return get<int64_t>(*this, name, "an integer"); }
const std::string& Record::get_string(std::string_view name) const {
  return get<std::string>(*this, name, "a string");
}

double Record::get_double(std::string_view name) const {
  if (const Scalar* value = find(name))
    if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  return get<double>(*this, name, "a number");
}

}  // namespace kvcodec
