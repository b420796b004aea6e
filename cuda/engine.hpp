// The interface of cuda/ to the rest of kvcodec: the list of devices, and a device as an Engine
// (lib/engine/engine.hpp), which commands and codecs use for --device cuda, and for auto if there is a
// device. Code outside this folder and its tests includes no other header of it. README.md says how to add
// a computation to the device.
//
// Work from different threads runs on the device one piece at a time. Work is cut into pieces that fit the
// free memory; a call copies one piece to the device and its result back.
#pragma once

#include <memory>

#include "cuda/runtime/device.hpp"  // devices(), require_device()
#include "lib/engine/engine.hpp"

namespace kvcodec::cuda {

/// An engine for the current device. note: receives the work that falls back to the CPU. Throws
/// Error(no_device) in a build without CUDA; ask require_device() first.
std::unique_ptr<Engine> make_engine(Engine::Note note = {});

}  // namespace kvcodec::cuda
