// Option structs carry their defaults and reasons at the members; fields() names those members once. From
// that one list the command line makes its switches and help, and files get and give back the parameters:
// they cannot disagree.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "lib/core/record.hpp"

namespace kvcodec {

/// One settable member: what it is called ("layer-group"), what it means, where it lives, what is allowed.
struct OptionField {
  std::string
      name;  ///< lower case, words joined by '-': the long switch without its dashes, and the key in records
  std::string help;  ///< one line, of a flag that is true by default what --no-NAME does: that is what a page
                     ///< shows; the default is appended by whoever shows it
  std::variant<bool*, int64_t*, double*, std::string*> target;
  double min = -std::numeric_limits<double>::infinity();  ///< numbers only, inclusive
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  ///< strings only; empty = anything
};

struct Options {
  virtual ~Options() = default;
  virtual std::vector<OptionField> fields() = 0;
  /// Checks what single ranges cannot say. Throws Error(usage).
  virtual void check() const {}

 protected:
  Options() = default;
  Options(const Options&) = default;
  Options& operator=(const Options&) = default;
};

/// Options with no fields.
struct NoOptions final : Options {
  std::vector<OptionField> fields() override { return {}; }
};

/// The current value of a field.
Scalar value_of(const OptionField& field);

/// Sets a field after checking type, range and choices. Throws Error(usage) naming the field and what is
/// allowed.
void set_value(const OptionField& field, const Scalar& value);

/// All fields as a record, and back (fields the record lacks keep their values; unknown names in it are left
/// alone).
Record to_record(Options& options);
void from_record(const Record& record, Options& options);

}  // namespace kvcodec
