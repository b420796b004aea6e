#include "lib/engine/engine.hpp"

namespace kvcodec {

void Engine::fall_back(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (told_.insert(what).second && note_) note_(what);
}

}  // namespace kvcodec
