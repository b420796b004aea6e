#include "formats/cache/record_json.hpp"

#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace kvcodec {

nlohmann::ordered_json to_json(const Record& record) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : record.items()) {
    if (const auto* number = std::get_if<double>(&value); number && !std::isfinite(*number))
      throw failed("parameter '{}' is {}; only finite numbers can be stored", name, *number);
    object[name] = std::visit([](const auto& v) { return nlohmann::ordered_json(v); }, value);
  }
  return object;
}

std::string to_json_text(const Record& record) {
  // Text that is no UTF-8 (a file name, say) is stored with replacement characters rather than not at all.
  return to_json(record).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Record record_from_json(const std::string& text) {
  const auto object = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!object.is_object()) throw bad_input("is not a JSON object");
  Record record;
  for (const auto& [name, value] : object.items()) {
    if (value.is_boolean())
      record.set(name, value.get<bool>());
    else if (value.is_number_unsigned() &&
             value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      throw bad_input("parameter '{}' does not fit 64 bits", name);
    else if (value.is_number_integer())
      record.set(name, value.get<int64_t>());
    else if (value.is_number_float())
      record.set(name, value.get<double>());
    else if (value.is_string())
      record.set(name, value.get<std::string>());
    else
      throw bad_input("parameter '{}' is neither a number, a string nor true or false", name);
  }
  return record;
}

}  // namespace kvcodec
