// State that the parts of an engine share: the device, which does one piece of work at a time for all
// threads; the count of work done; and the notes on work that was declined.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/runtime/runtime.hpp"
#include "lib/core/error.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cuda {

/// Runs work on the device, and counts it (Engine::taken) when it is done. Work that was declined, or that
/// threw, is not counted.
///
/// A device declines work in three cases: it does not fit the device's memory, it throws an Error, or it
/// declines it itself. The user is told of the first two, unless the Error is of kind bad_input: the CPU
/// finds the same in the input, and reports it in lib's words. A DeviceFault, an error of the device
/// itself, always goes to the caller.
class DeviceWork {
 public:
  explicit DeviceWork(Engine& engine) : engine_(engine) {}

  /// Agreement of results with those of lib: the same bits, or within rounding.
  enum class Bits : uint8_t { same, rounded };

  /// Runs body() with the device to itself. False: it declined. prefix: the begin of a note about that.
  template <class Body>
  [[nodiscard]] bool try_run(const Body& body, Bits bits = Bits::same, const std::string& prefix = "") const {
    const bool is_done = attempt(prefix, body);
    if (is_done) count(bits);
    return is_done;
  }

  /// The same for work that cannot be taken over once it has begun: exceptions of body() go to the
  /// caller.
  template <class Body>
  void must_run(const Body& body, Bits bits = Bits::same) const {
    alone(body);
    count(bits);
  }

  /// Runs make() with the device to itself and returns its result; a default-initialised one if the device declines.
  /// `what` begins the note about that. Making something is not counted as work.
  template <class Make>
  [[nodiscard]] auto try_make(const std::string& what, const Make& make) const {
    std::invoke_result_t<const Make&> made{};
    (void)attempt(what + ": ", [&] { made = make(); });
    return made;
  }

  /// Makes Engine::make<Interface>() return make(*this, arguments...), as try_make() does.
  template <class Interface, class Make>
  void offer(const std::string& what, const Make& make) const {
    engine_.add<Interface>([this, what, make](const auto&... arguments) {
      return try_make(what, [&] { return make(*this, arguments...); });
    });
  }
  /// The engine of this device.
  Engine& engine() const { return engine_; }

  /// Returns a shared pointer to an object that holds device memory. The last copy of the pointer frees that
  /// memory, with the device to itself.
  template <class T>
  std::shared_ptr<const T> share(T made) const {
    return {new const T(std::move(made)), [this](const T* last) { alone([&] { delete last; }); }};
  }

  /// Runs body() with the device to itself, and counts nothing. Returns the result of body(). Bodies may call this again.
  template <class Body>
  auto alone(const Body& body) const {
    const std::lock_guard lock(mutex_);
    return body();
  }

  /// Counts a piece of work as done.
  void count(Bits bits) const { engine_.count(bits == Bits::same); }

  /// Tells the user that some work falls back to the CPU.
  void fall_back(const std::string& what) const { engine_.fall_back(what); }

  /// Bytes that work may take, asked before it runs: half of the free memory, so that other work at the
  /// same time finds some.
  uint64_t room() const {
    return alone([] { return free_bytes() / 2; });
  }

  /// Number of rows of so many bytes to work on at a time, asked by running work: they fill half of the free
  /// memory. At least one.
  static size_t rows_at_once(uint64_t bytes_per_row) {
    return static_cast<size_t>(
        std::max<uint64_t>(1, free_bytes() / 2 / std::max<uint64_t>(1, bytes_per_row)));
  }

 private:
  /// Runs body() with the device to itself. False: it ran only to the point where it declined.
  template <class Body>
  bool attempt(const std::string& prefix, const Body& body) const {
    try {
      alone(body);
      return true;
    } catch (const DeviceFault&) {
      throw;
    } catch (const OutOfMemory&) {  // without its own words, whose sizes differ each time
      fall_back(prefix + "work for which it has no memory");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::bad_input) fall_back(prefix + error.what());
    }
    return false;
  }

  Engine& engine_;
  mutable std::recursive_mutex mutex_;
};

}  // namespace kvcodec::cuda
