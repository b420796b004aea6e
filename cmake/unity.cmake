# Where KVCODEC_UNITY is on, sources of one folder are compiled together, so that headers are read once for all of them. Algorithms of lib/,
# which include little, and wide variants of kernels, which have flags of their own, stay apart.
#
# A helper in an unnamed namespace that takes a name which its folder has already is an error here: give it another, or share what is there.

# kvcodec_compile_together(TARGET [FOLDERS]): groups of at most 40,000 bytes of sources, folder by folder, so that none is what a build waits for.
function(kvcodec_compile_together target)
  set(folders ${ARGN})
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  if(folders)
    list(FILTER sources INCLUDE REGEX "${folders}")
  endif()
  list(FILTER sources EXCLUDE REGEX "_(scalar|avx2|avx512[a-z_]*)\\.cpp$")
  list(SORT sources)
  set(folder)
  foreach(source ${sources})
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(definitions)
      continue()
    endif()
    file(SIZE ${source} bytes)
    get_filename_component(here ${source} DIRECTORY)
    math(EXPR sum "0${sum} + ${bytes}")
    if(NOT here STREQUAL folder OR sum GREATER 40000)
      file(RELATIVE_PATH group ${PROJECT_SOURCE_DIR} ${source})
      string(REGEX REPLACE "[^a-z0-9_]" "_" group ${group})
      set(folder ${here})
      set(sum ${bytes})
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # it takes the sources, which are included here, for headers
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

kvcodec_compile_together(kvcodec_lib "/lib/(codec|tokenizer|model|metrics|pipeline|[a-z]+/codec)/")
if(KVCODEC_HDF5)
  kvcodec_compile_together(kvcodec_formats)
  kvcodec_compile_together(kvcodec_cli)
endif()

# kvcodec_precompile(TARGET HEADER…): headers of libraries that most of the target's sources include are read once. A source with flags of its
# own reads them itself: precompiled headers are those of one set of flags.
function(kvcodec_precompile target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(options OR definitions)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # which forgets of a precompiled header that the library's own headers are not to be warned of
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <functional> <map> <memory> <span> <string> <vector> <fmt/format.h> ${ARGN})
endfunction()

kvcodec_precompile(kvcodec_lib)
if(KVCODEC_HDF5)
  kvcodec_precompile(kvcodec_formats)
  kvcodec_precompile(kvcodec_cli <nlohmann/json.hpp>)
endif()
