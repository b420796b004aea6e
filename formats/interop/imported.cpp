#include "formats/interop/imported.hpp"

#include "formats/io/json_file.hpp"

namespace kvcodec::interop {

Imported::Imported(const CacheSource& source, std::string_view format) : object_(nlohmann::json::object()) {
  if (source.model().imported.empty()) return;
  nlohmann::json object =
      parse_json_object(source.model().imported, source.name() + ": attribute 'imported'");
  const auto name = object.find("format");
  if (name != object.end() && name->is_string() && name->get<std::string>() == format)
    object_ = std::move(object);
}

const nlohmann::json* Imported::find(const char* name) const {
  const auto value = object_.find(name);
  return value == object_.end() ? nullptr : &*value;
}

uint64_t Imported::number(const char* name, uint64_t usual, uint64_t most) const {
  const auto* value = find(name);
  return value && value->is_number_unsigned() && value->get<uint64_t>() <= most ? value->get<uint64_t>()
                                                                                : usual;
}

bool Imported::flag(const char* name) const {
  const auto* value = find(name);
  return value && value->is_boolean() && value->get<bool>();
}

std::string Imported::text(const char* name) const {
  const auto* value = find(name);
  return value && value->is_string() ? value->get<std::string>() : "";
}

std::vector<int64_t> Imported::list(const char* name) const {
  const auto* value = find(name);
  std::vector<int64_t> numbers;
  if (!value || !value->is_array()) return numbers;
  for (const auto& item : *value) {
    if (!item.is_number_integer()) return {};
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

std::vector<std::pair<uint32_t, uint32_t>> Imported::pairs(const char* name) const {
  const auto* value = find(name);
  std::vector<std::pair<uint32_t, uint32_t>> found;
  if (!value || !value->is_array()) return found;
  for (const auto& item : *value) {
    const auto small = [&](size_t i) {
      return item[i].is_number_unsigned() && item[i].get<uint64_t>() <= UINT16_MAX;
    };
    if (!item.is_array() || item.size() != 2 || !small(0) || !small(1)) return {};
    found.emplace_back(item[0].get<uint32_t>(), item[1].get<uint32_t>());
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> Imported::texts(const char* name) const {
  const auto* value = find(name);
  std::vector<std::pair<std::string, std::string>> found;
  if (!value || !value->is_object()) return found;
  for (const auto& [key, text] : value->items())
    if (text.is_string()) found.emplace_back(key, text.get<std::string>());
  return found;
}

std::string imported_text(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kvcodec::interop
