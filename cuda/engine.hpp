// The device as an Engine (lib/codec/engine.hpp): what commands and codecs get for --device cuda, and for
// auto where there is a device. It joins the twins of this folder; README.md says how to add one.
//
// One piece of work is on the device at a time, whatever threads ask. Work is cut into pieces that fit the
// memory that is free, so what one call copies is one piece there and its result back.
#pragma once

#include <memory>

#include "lib/codec/engine.hpp"

namespace kvcodec::cuda {

/// An engine for the current device. note: gets what is left to the CPU. Throws Error(no_device) in a build
/// without CUDA; ask require_device() first.
std::unique_ptr<Engine> make_engine(Engine::Note note = {});

}  // namespace kvcodec::cuda
