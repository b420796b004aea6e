// A small ordered list of named scalars: the parameters of a codec or of a training run, as they are stored in a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/names.hpp"

namespace kvcodec {

using Scalar = std::variant<bool, int64_t, double, std::string>;

class Record {
 public:
  /// Sets a value; an existing name keeps its place.
  void set(std::string_view name, Scalar value);

  /// The value of that name, or nullptr.
  const Scalar* find(std::string_view name) const {
    for (const auto& [key, value] : items_)
      if (key == name) return &value;
    return nullptr;
  }

  /// The value of that name and type. Throws Error(bad_input) if it is missing or of another type; an integer
  /// is accepted where a double is asked for.
  bool get_bool(std::string_view name) const;
  int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  const std::string& get_string(std::string_view name) const;

  /// The value of E named by that string. Throws Error(bad_input) as get_string does, and if the string names no value.
  template <NamedEnum E>
  E get_enum(std::string_view name) const {
    const std::string& text = get_string(name);
    if (const auto value = value_named<E>(text)) return *value;
    throw bad_input("{} is '{}'; it must be one of {}", name, text, fmt::join(kNamesOf<E>, ", "));
  }

  const std::vector<std::pair<std::string, Scalar>>& items() const { return items_; }
  bool operator==(const Record&) const = default;

 private:
  std::vector<std::pair<std::string, Scalar>> items_;
};

/// The scalar as text: true/false, integers, shortest doubles that read back the same, strings as they are.
inline std::string to_text(const Scalar& value) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

}  // namespace kvcodec
