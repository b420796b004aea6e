# Fails if a program that was linked for packages needs a shared library besides the C library.
# usage: cmake -D PROGRAM=… -P only_libc.cmake
include(${CMAKE_CURRENT_LIST_DIR}/needed.cmake)
kvcodec_needed(${PROGRAM} libraries glibc)
if(libraries)
  list(JOIN libraries ", " libraries)
  file(REMOVE ${PROGRAM})
  message(FATAL_ERROR
    "KVCODEC_STATIC: the program needs ${libraries}; install the archives of these libraries (data/install-deps.sh package)")
endif()
