// Options of the address sanitizer for targets whose files a child opens first (formats/hdf5/probe.cpp). Included once in a program.
#pragma once

#if defined(KVCODEC_FUZZ) && \
    defined(__has_feature)  // the replay gets them from its environment (CMakeLists.txt)
#if __has_feature(address_sanitizer)
// In the child, a fault that the sanitizer finds must end it as a crash does. What HDF5 loses is HDF5's; and it asks for memory
// that a header names before it sees that the file has not as much.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:detect_leaks=0:allocator_may_return_null=1";
}
#endif
#endif
