# KVCODEC_UNITY compiles the sources of a folder together, so that headers are read, and templates instantiated, once for all of them. Wide variants of kernels, which have flags of their own, stay apart, as do folders of kernels, which include little.
#
# A helper in an unnamed namespace whose name already exists in its folder is an error here: rename it, or share the existing one. Each file
# of tests has its own namespace instead, because all of them need names such as `rows`; their groups span folders.

# kvcodec_compile_together(TARGET [FOLDERS REGEX] [OVER_FOLDERS] [PRECOMPILE HEADER…]): groups of at most 80,000 bytes of sources (of those
# folders), so that a build does not wait for one of them. Headers of libraries that most sources include are read once per target.
function(kvcodec_compile_together target)
  cmake_parse_arguments(ARG "OVER_FOLDERS" "FOLDERS" "PRECOMPILE" ${ARGN})
  if(NOT KVCODEC_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)
  set(folder)
  set(sum 0)
  foreach(source ${sources})
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(definitions OR options)  # precompiled headers are those of one set of flags
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      continue()
    endif()
    # Where a build lies must not decide what is compiled together, or its bytes would depend on that.
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} generated)
    if(generated OR source MATCHES "_scalar\\.cpp$" OR (ARG_FOLDERS AND NOT source MATCHES "${ARG_FOLDERS}"))
      continue()
    endif()
    file(SIZE ${source} bytes)
    get_filename_component(here ${source} DIRECTORY)
    math(EXPR sum "${sum} + ${bytes}")
    if(sum GREATER 80000 OR NOT DEFINED group OR NOT (ARG_OVER_FOLDERS OR here STREQUAL folder))
      file(RELATIVE_PATH group ${PROJECT_SOURCE_DIR} ${source})
      string(REGEX REPLACE "[^a-z0-9_]" "_" group ${group})
      set(folder ${here})
      set(sum ${bytes})
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The compiler treats the sources, which are included here, as headers; and it forgets that warnings in the library's own headers are
    # disabled if they are in a precompiled header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <functional> <map> <memory> <span> <string> <vector> <fmt/format.h> ${ARG_PRECOMPILE})
endfunction()
