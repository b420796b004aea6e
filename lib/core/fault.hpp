// Faults of inputs that do not end the work: callers that go on behind them.
#pragma once

#include <optional>
#include <utility>

#include "lib/core/error.hpp"

namespace kvcodec {

/// The Error(bad_input) that leaves body(), if one does.
template <class Body>
std::optional<Error> bad_input_of(Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    return error;
  }
  return std::nullopt;
}

}  // namespace kvcodec
