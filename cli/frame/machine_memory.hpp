// How much memory there is for this process.
#pragma once

#include <cstdint>
#include <filesystem>

namespace kvcodec::cli {

/// The least limit, in bytes, of the control groups that this process runs in, from its own up to the root,
/// by version 2 or 1 of the interface; 0 = none. root: where /proc and /sys are found, for tests.
uint64_t control_group_limit(const std::filesystem::path& root = "/");

/// Memory of the machine in bytes, or control_group_limit() if that is less. 0 = unknown.
uint64_t machine_memory();

}  // namespace kvcodec::cli
