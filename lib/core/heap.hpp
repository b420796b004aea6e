// How the C library gets its memory from the system.
#pragma once

namespace kvcodec {

/// Lets the heap begin with large pages and keep what is freed for what is allocated next. For the start of a program, before it
/// has threads. A short command spends a third of its time on fresh small pages, some three microseconds each. Where the
/// system or the C library knows no such wishes, nothing changes.
void prepare_heap();

}  // namespace kvcodec
