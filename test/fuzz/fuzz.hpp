// Shared by all fuzz targets. A target accepts any bytes and may only return: to refuse input is to throw Error(bad_input) or
// Error(usage), which `expect_refusal_or_success` swallows; anything else (a crash, another exception, another kind of error) is a
// finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <string>

#include "lib/core/error.hpp"

/// KVCODEC_FUZZ_TARGET(name) { uses data and size, and returns 0 }: the entry point of a program of libFuzzer, or, without
/// libFuzzer, one of the targets that the replay finds by their names.
#ifdef KVCODEC_FUZZ
#define KVCODEC_FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define KVCODEC_FUZZ_TARGET(name)                                                                     \
  static int name##_target(const uint8_t* data, size_t size);                                         \
  static const bool name##_is_listed = kvcodec::fuzz::targets().emplace(#name, name##_target).second; \
  static int name##_target(const uint8_t* data, size_t size)
#endif

namespace kvcodec::fuzz {

typedef int (*Target)(const uint8_t* data, size_t size);
inline std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

template <class Body>
void expect_refusal_or_success(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input && error.kind() != ErrorKind::usage) throw;
  }
}

/// Aborts, so that both libFuzzer and the replay see it.
inline void require(bool condition) {
  if (!condition) std::abort();
}

/// Takes an input apart, byte by byte; zeros when it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data, size) {}
  uint8_t byte() {
    if (data_.empty()) return 0;
    const uint8_t first = data_.front();
    data_ = data_.subspan(1);
    return first;
  }
  uint32_t below(uint32_t bound) { return (byte() | static_cast<uint32_t>(byte()) << 8) % bound; }
  std::span<const uint8_t> take(size_t count) {
    const auto taken = data_.first(count < data_.size() ? count : data_.size());
    data_ = data_.subspan(taken.size());
    return taken;
  }
  std::span<const uint8_t> rest() const { return data_; }

 private:
  std::span<const uint8_t> data_;
};

}  // namespace kvcodec::fuzz
