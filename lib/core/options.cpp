#include "lib/core/options.hpp"

#include <algorithm>

#include "lib/core/error.hpp"

namespace kvcodec {

static void check_range(const OptionField& field, double value) {
  if (value >= field.min && value <= field.max) return;
  if (field.max == std::numeric_limits<double>::infinity())
    throw usage_error("{} is {}; it must be at least {}", field.name, value, field.min);
  throw usage_error("{} is {}; it must be between {} and {}", field.name, value, field.min, field.max);
}

template <class T>
static const T& expect(const OptionField& field, const Scalar& value, const char* type) {
  if (const T* typed = std::get_if<T>(&value)) return *typed;
  throw usage_error("{} is '{}'; it must be {}", field.name, to_text(value), type);
}

bool EnumMember::set(std::string_view name) const {
  const auto place = std::ranges::find(names_, name);
  if (place == names_.end()) return false;
  set_(static_cast<size_t>(place - names_.begin()));
  return true;
}

Scalar value_of(const OptionField& field) {
  return std::visit(
      [](const auto& target) -> Scalar {
        if constexpr (std::is_same_v<decltype(target), const EnumMember&>)
          return std::string(target.name());
        else
          return *target;
      },
      field.target);
}

void set_value(const OptionField& field, const Scalar& value) {
  if (auto* const* flag = std::get_if<bool*>(&field.target)) {
    **flag = expect<bool>(field, value, "true or false");
  } else if (auto* const* integer = std::get_if<int64_t*>(&field.target)) {
    const int64_t wanted = expect<int64_t>(field, value, "an integer");
    check_range(field, static_cast<double>(wanted));
    **integer = wanted;
  } else if (auto* const* number = std::get_if<double*>(&field.target)) {
    const auto* whole = std::get_if<int64_t>(&value);
    const double wanted = whole ? static_cast<double>(*whole) : expect<double>(field, value, "a number");
    check_range(field, wanted);
    **number = wanted;
  } else {
    const std::string& wanted = expect<std::string>(field, value, "a string");
    const std::vector<std::string> choices = choices_of(field);
    if (!choices.empty() && std::ranges::find(choices, wanted) == choices.end())
      throw usage_error("{} is '{}'; it must be one of {}", field.name, wanted, fmt::join(choices, ", "));
    if (const auto* member = std::get_if<EnumMember>(&field.target))
      (void)member->set(wanted);
    else
      *std::get<std::string*>(field.target) = wanted;
  }
}

}  // namespace kvcodec
