// The one exception type of the project. The kind says who is at fault; the command line maps it to an
// exit code. Messages say what is wrong, where, and what would be right, in one line without a final dot.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvcodec {

enum class ErrorKind {
  failed,     ///< something went wrong while running: disk full, out of memory, a device error
  usage,      ///< the caller asked for something that makes no sense: a bad option or combination of options
  bad_input,  ///< the data given is not what it must be: truncated, wrong shape, not finite
  no_device,  ///< a device was asked for and there is none
  internal,   ///< a defect of the program: one part breaks what another relies on
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

  /// The same error with "where: " put before its message (a file, a dataset).
  Error at(const std::string& where) const { return {kind_, where + ": " + what()}; }

 private:
  ErrorKind kind_;
};

template <class... Args>
Error failed(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::failed, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error bad_input(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::bad_input, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error no_device(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::no_device, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::internal,
          "a fault of kvcodec itself: " + fmt::format(format, std::forward<Args>(args)...)};
}

/// Runs body(); an Error that leaves it has "where: " put before its message. For places in loops where() may make the text, only once
/// there is an error.
template <class Where, class Body>
decltype(auto) with_context(const Where& where, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    if constexpr (std::is_invocable_v<Where>)
      throw error.at(where());
    else
      throw error.at(where);
  }
}

}  // namespace kvcodec
