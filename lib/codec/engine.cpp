#include "lib/codec/engine.hpp"

namespace kvcodec {

void Engine::leave(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (left_.insert(what).second && note_) note_(what);
}

}  // namespace kvcodec
