// What the rest of kvcodec sees of cuda/: the devices there are, and one of them as an Engine
// (lib/engine/engine.hpp), which commands and codecs get for --device cuda, and for auto where there is a
// device. Nothing outside this folder and its tests includes another of its headers. README.md says how to
// add to what a device does.
//
// One piece of work is on the device at a time, whatever threads ask. Work is cut into pieces that fit the
// memory that is free, so what one call copies is one piece there and its result back.
#pragma once

#include <memory>

#include "cuda/runtime/device.hpp"  // devices(), require_device()
#include "lib/engine/engine.hpp"

namespace kvcodec::cuda {

/// An engine for the current device. note: is told what falls back to the CPU. Throws Error(no_device) in a
/// build without CUDA; ask require_device() first.
std::unique_ptr<Engine> make_engine(Engine::Note note = {});

}  // namespace kvcodec::cuda
