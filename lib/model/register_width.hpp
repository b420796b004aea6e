// How many floats a register holds at the level that a file is compiled for: for bodies that serve scalar too (lib/core/cpu.hpp).
// In an unnamed namespace, as all that wide files define.
#pragma once

namespace kvcodec {
namespace {

#ifdef __AVX512F__
constexpr int kRegisterFloats = 16;
#elif defined(__AVX2__)
constexpr int kRegisterFloats = 8;
#else
constexpr int kRegisterFloats = 4;
#endif

}  // namespace
}  // namespace kvcodec
