#include "formats/io/json_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <unordered_set>
#include <vector>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// Copying a value and writing it as text use a stack frame for each level.
constexpr int kMaxLevels = 200;

/// Finds the first fault that parse() accepts: a field that an object names twice, of which a DOM keeps only one, or too many
/// levels. It is a separate pass, because the parser's callback makes the parser go through all earlier elements of an array for
/// each object in it.
class FaultFinder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& fault() const { return fault_; }  ///< empty: there is none

  bool start_object(size_t /*elements*/) override {
    open_.emplace_back();
    return enter();
  }
  bool end_object() override {
    open_.pop_back();
    return end_array();
  }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    fault_ = fmt::format("field '{}' is there twice", printable(name));
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_array(size_t /*elements*/) override { return enter(); }
  bool end_array() override {
    --levels_;
    return true;
  }
  bool parse_error(size_t /*place*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;  // parse() reports it
  }

 private:
  bool enter() {
    if (++levels_ <= kMaxLevels) return true;
    fault_ = fmt::format("lists and objects are nested more than {} deep", kMaxLevels);
    return false;
  }

  std::vector<std::unordered_set<std::string>> open_;
  int levels_ = 0;
  std::string fault_;
};

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kMax = 200;
  std::string result;
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      result += fmt::format("\\x{:02x}", byte);
    else
      result += c;
  }
  if (text.size() > kMax) result += "…";
  return result;
}

nlohmann::json parse_json_object(std::string_view text, const std::string& where) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw bad_input("{}: not JSON from byte {} on", where, error.byte);
  } catch (const nlohmann::json::exception&) {  // a number beyond the range of double
    throw bad_input("{}: not JSON: a number is out of range", where);
  }
  if (!object.is_object())
    throw bad_input("{}: holds a JSON {}; it must be an object", where, object.type_name());
  FaultFinder finder;
  nlohmann::json::sax_parse(text, &finder);
  if (!finder.fault().empty()) throw bad_input("{}: {}", where, finder.fault());
  return object;
}

nlohmann::json read_json_object(const std::string& file, uint64_t max_bytes) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(file, error);
  if (error) throw bad_input("{}: cannot be read: {}", file, error.message());
  if (size > max_bytes) throw bad_input("{}: has {} bytes; at most {} are plausible", file, size, max_bytes);
  std::ifstream stream(file, std::ios::binary);
  std::string text(size, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  if (!stream) throw failed("{}: cannot be read: {}", file, std::strerror(errno));
  return parse_json_object(text, file);
}

const nlohmann::json* JsonFields::find(const char* name) const {
  const auto place = object_.find(name);
  return place == object_.end() || place->is_null() ? nullptr : &*place;
}

bool JsonFields::has_null(const char* name) const {
  const auto place = object_.find(name);
  return place != object_.end() && place->is_null();
}

template <class T, class Fits>
std::optional<T> JsonFields::get(const char* name, const Fits& fits, const char* right) const {
  const nlohmann::json* value = find(name);
  if (!value) return std::nullopt;
  if (!std::invoke(fits, *value))
    throw bad_input("{} is {}; it must be {}", name, printable(value->dump(-1, ' ', true)), right);
  return value->get<T>();
}

std::optional<bool> JsonFields::get_bool(const char* name) const {
  return get<bool>(name, &nlohmann::json::is_boolean, "true or false");
}

std::optional<int64_t> JsonFields::get_int(const char* name) const {
  const auto fits = [](const nlohmann::json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
  };
  return get<int64_t>(name, fits, "an integer");
}

std::optional<double> JsonFields::get_number(const char* name) const {
  return get<double>(name, &nlohmann::json::is_number, "a number");
}

std::optional<std::string> JsonFields::get_string(const char* name) const {
  return get<std::string>(name, &nlohmann::json::is_string, "a string");
}

int64_t JsonFields::need_int(const char* name) const {
  if (const auto value = get_int(name)) return *value;
  throw bad_input("{} is missing; it must be an integer", name);
}

double JsonFields::need_number(const char* name) const {
  if (const auto value = get_number(name)) return *value;
  throw bad_input("{} is missing; it must be a number", name);
}

}  // namespace kvcodec
