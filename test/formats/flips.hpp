// Files of which every byte is wrong once.
#pragma once

#include <filesystem>
#include <string>

#include "lib/core/error.hpp"
#include "test/formats/edit.hpp"
#include "test/test.hpp"

namespace kvcodec::test {

/// Changes bytes 0, stride … of copies of a file, one in each. values(copy) must be values(good) or throw Error(bad_input).
/// Returns the share of the copies that it refused.
template <class Values>
double refused_share(const std::string& good, const std::string& bad, uint64_t stride, const Values& values) {
  const auto expected = values(good);
  const uint64_t size = std::filesystem::file_size(good);
  double refused = 0, tried = 0;
  for (uint64_t position = 0; position < size; position += stride, ++tried) {
    CAPTURE(position);
    std::filesystem::copy_file(good, bad, std::filesystem::copy_options::overwrite_existing);
    flip_byte(bad, position);
    try {
      const auto found = values(bad);  // outside of CHECK, which would keep the exception
      CHECK(found == expected);
    } catch (const Error& error) {
      ++refused;
      CHECK(static_cast<int>(error.kind()) == static_cast<int>(ErrorKind::bad_input));
    }
  }
  return refused / tried;
}

}  // namespace kvcodec::test
