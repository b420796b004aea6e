// Option structs document their defaults and reasons at the members; fields() names those members once. The command line makes its
// switches and help from that one list, and files store and restore parameters by it: they cannot disagree.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/record.hpp"

namespace kvcodec {

/// A member that is an enum: shown, given and stored by the names of its values.
class EnumMember {
 public:
  template <NamedEnum E>
  EnumMember(E* member)  // not explicit: fields() names members alike
      : names_(kNamesOf<E>),
        name_([member] { return name_of(*member); }),
        set_([member](size_t value) { *member = static_cast<E>(value); }) {}

  /// A member that may have no value; no value has no name.
  template <NamedEnum E>
  EnumMember(std::optional<E>* member)
      : names_(kNamesOf<E>),
        name_([member] { return *member ? name_of(**member) : std::string_view(); }),
        set_([member](size_t value) { *member = static_cast<E>(value); }) {}

  std::span<const std::string_view> names() const { return names_; }
  std::string_view name() const { return name_(); }
  /// Returns false, and sets nothing, if no value has that name.
  bool set(std::string_view name) const;

 private:
  std::span<const std::string_view> names_;
  std::function<std::string_view()> name_;
  std::function<void(size_t)> set_;
};

/// One settable member: its name ("layer-group"), its meaning, its address, and its allowed values.
struct OptionField {
  std::string name;  ///< lower case, words joined by '-': the long switch's name, and the key in records
  /// One line, without the default, which the help page appends. For a flag that is true by default it says what
  /// --no-NAME does, because the page lists that switch.
  std::string help;
  std::variant<bool*, int64_t*, double*, std::string*, EnumMember> target;
  double min = -std::numeric_limits<double>::infinity();  ///< numbers only, inclusive
  double max = std::numeric_limits<double>::infinity();
  /// The values that a string may have, empty = any; the names of an enum that are possible, empty = all.
  std::vector<std::string> choices = {};
};

/// Values that a field may have: the names of an enum, or its choices; empty = anything of its type.
inline std::vector<std::string> choices_of(const OptionField& field) {
  const auto* member = std::get_if<EnumMember>(&field.target);
  if (!member || !field.choices.empty()) return field.choices;
  return {member->names().begin(), member->names().end()};
}

struct Options {
  virtual ~Options() = default;
  virtual std::vector<OptionField> fields() = 0;
  /// Checks conditions on several fields. Throws Error(usage).
  virtual void check() const {}

 protected:
  Options() = default;
  Options(const Options&) = default;
  Options& operator=(const Options&) = default;
};

struct NoOptions final : Options {
  std::vector<OptionField> fields() override { return {}; }
};

/// The current value of a field.
Scalar value_of(const OptionField& field);

/// Sets a field after checking type, range and choices. Throws Error(usage) naming the field and what is allowed.
void set_value(const OptionField& field, const Scalar& value);

/// All fields as a record, and back (fields that the record lacks keep their values; unknown names in it are ignored).
inline Record to_record(Options& options) {
  Record record;
  for (const auto& field : options.fields()) record.set(field.name, value_of(field));
  return record;
}
inline void from_record(const Record& record, Options& options) {
  for (const auto& field : options.fields())
    if (const Scalar* value = record.find(field.name)) set_value(field, *value);
  options.check();
}

/// The same for options that are constant.
template <class Constant>
Record record_of(Constant options) {
  return to_record(options);
}

}  // namespace kvcodec
