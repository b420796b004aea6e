// Messages of readers that refuse untrusted files.
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace kvcodec::test {

/// The one-line message of the Error(bad_input) that the action throws; "accepted" if it throws none.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::bad_input);
    std::string message = error.what();
    CHECK_EQ(message.find('\n'), std::string::npos);
    return message;
  }
  return "accepted";
}

/// The same for reading a file, without the file's name, with which it must begin.
inline std::string refusal_of(const std::string& file, const std::function<void()>& read) {
  std::string message = message_of(read);
  if (message == "accepted") return message;
  CHECK(message.starts_with(file + ": "));
  return message.substr(std::min(message.size(), file.size() + 2));
}

}  // namespace kvcodec::test
