// Included by every test.
#pragma once

#include <string>

#include <doctest/doctest.h>

#include "lib/core/names.hpp"

/// Checks show enums by their names.
template <kvcodec::NamedEnum E>
struct doctest::StringMaker<E> {
  static String convert(E value) { return std::string(kvcodec::name_of(value)).c_str(); }
};

namespace kvcodec::test {

/// Sanitizers make tests ten to thirty times slower: there, tests with lists of sizes take a few of them.
#ifdef KVCODEC_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Tests that damage a file byte by byte try every so many.
inline constexpr size_t kDamageStride = kSanitized ? 37 : 1;

/// Remembers that a case could not run here; use through SKIP.
void note_skip(const std::string& reason);

/// The checkout, for fixtures: source_dir() + "/test/golden/…".
inline std::string source_dir() { return KVCODEC_SOURCE_DIR; }

}  // namespace kvcodec::test

/// Leaves a test case that cannot run on this machine. ctest reports it as skipped, never as passed.
#define SKIP(reason)                    \
  do {                                  \
    ::kvcodec::test::note_skip(reason); \
    return;                             \
  } while (false)
