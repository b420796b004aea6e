// JSON from outside: read whole, checked, and accessed by fields; errors name file and field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace kvcodec {

/// Text in a form that fits a one-line message: control characters as \xNN, at most 200 bytes.
std::string printable(std::string_view text);

/// Parses an object. where: the file, for messages. Throws Error(bad_input) for text that is not JSON (naming the byte), is not an
/// object, names a field twice, or is nested more than 200 deep.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

/// The object in a file of at most max_bytes. Throws Error(failed) if it cannot be read, and Error(bad_input) as above or if it is
/// larger.
nlohmann::json read_json_object(const std::string& file, uint64_t max_bytes);

/// Fields of an object, with types checked. Absent and null are equivalent, as in configurations written by transformers. Errors
/// are Error(bad_input), beginning with the field's name and stating its value and the expected one.
class JsonFields {
 public:
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  /// The value, or nullptr if absent or null.
  const nlohmann::json* find(const char* name) const;
  bool has_null(const char* name) const;  ///< present, and null

  std::optional<bool> get_bool(const char* name) const;
  std::optional<int64_t> get_int(const char* name) const;
  std::optional<double> get_number(const char* name) const;
  std::optional<std::string> get_string(const char* name) const;

  int64_t need_int(const char* name) const;
  double need_number(const char* name) const;

 private:
  template <class T, class Fits>
  std::optional<T> get(const char* name, const Fits& fits, const char* right) const;
  const nlohmann::json& object_;
};

}  // namespace kvcodec
