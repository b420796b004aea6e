// A device beside this processor, as codecs and commands see it. lib knows no device: each area has an
// interface next to the functions that it replaces (ResidualEngine in lib/rvq, KmeansOnDevice in
// lib/kmeans ...), and an Engine makes one of each for code with work. cuda/engine.hpp makes the Engine.
//
// An engine may decline any work: a factory by returning nothing, a call by returning false. The work then
// falls back to the CPU: the caller does it, and writes the whole result. The engine tells the user so
// through fall_back(). Its results have the bits that lib would have made, unless an interface says
// otherwise.
//
// An engine also declines input that makes a device stop (damaged codes, values that are not finite), without
// a note: the CPU then reports the error, in the same words with and without a device. Only errors of the
// device itself are thrown, as Error(failed).
//
// All members may be called from several threads at once. How to add a device implementation: cuda/README.md.
#pragma once

#include <any>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>

namespace kvcodec {

class Engine {
 public:
  /// Receives the name of work that falls back to the CPU, each text once.
  using Note = std::function<void(const std::string&)>;
  explicit Engine(Note note = {}) : note_(std::move(note)) {}
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Tells the user, once, that some work falls back to the CPU: "sparse: pursuit".
  void fall_back(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (told_.insert(what).second && note_) note_(what);
  }

  /// Number of pieces of work that are done; exact(): all of them have the bits that lib would have made.
  /// Work that was declined or failed does not count.
  uint64_t taken() const { return taken_; }
  bool exact() const { return exact_; }
  void count(bool exact) {
    ++taken_;
    if (!exact) exact_ = false;
  }

  /// Makes the device's twin of an interface. Interface::Factory is the type of the function that makes it, and documents what
  /// must outlive the result. Returns nothing if the device has no twin, or declines.
  template <typename Interface, typename... Arguments>
  std::invoke_result_t<typename Interface::Factory*, Arguments...> make(Arguments&&... arguments) const {
    const auto found = factories_.find(typeid(Interface));
    if (found == factories_.end()) return {};
    using Factory = std::function<typename Interface::Factory>;
    return std::any_cast<const Factory&>(found->second)(std::forward<Arguments>(arguments)...);
  }

  /// Makes make() use this function. Called before other code sees the engine.
  template <typename Interface>
  void add(std::function<typename Interface::Factory> factory) {
    factories_[typeid(Interface)] = std::move(factory);
  }

 private:
  Note note_;
  std::atomic<uint64_t> taken_ = 0;
  std::atomic<bool> exact_ = true;
  std::mutex mutex_;
  std::set<std::string> told_;  // work that fell back
  std::map<std::type_index, std::any> factories_;
};

}  // namespace kvcodec
