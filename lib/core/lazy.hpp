// A value that is made when it is first asked for.
#pragma once

#include <mutex>
#include <optional>

namespace kvcodec {

/// Several threads may ask at once: one makes the value, the others wait. Exceptions of make() are passed on; the next call tries again.
template <class T>
class Lazy {
 public:
  template <class Make>
  const T& get(const Make& make) const {
    const std::lock_guard lock(mutex_);
    if (!value_) value_.emplace(make());
    return *value_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::optional<T> value_;
};

}  // namespace kvcodec
