# Sources that are compiled together where KVCODEC_UNITY is on: those that spend their time in the same headers, folder by folder. What is in
# no group is compiled by itself: wide variants of kernels, and a few sources whose helpers have the names of others.
#
# A helper in an unnamed namespace that takes a name which the group has already is an error here: give it another, or share what is there.

# kvcodec_compile_together(TARGET GROUP PATTERN [EXCEPT PATTERN]): the target's sources whose path matches.
function(kvcodec_compile_together target group pattern)
  cmake_parse_arguments(arg "" EXCEPT "" ${ARGN})
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "${pattern}")
  list(FILTER sources EXCLUDE REGEX "_(scalar|avx2|avx512[a-z_]*)\\.cpp$")
  if(arg_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "${arg_EXCEPT}")
  endif()
  set_source_files_properties(${sources} PROPERTIES UNITY_GROUP ${group})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # it takes the sources, which are included here, for headers
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

kvcodec_compile_together(kvcodec_lib codec "/lib/codec/[a-z0-9_]+\\.cpp$" EXCEPT "(_codec|/products)\\.cpp$")
foreach(codec kvcomp q4 rvq selfindex sparse transform)
  kvcodec_compile_together(kvcodec_lib ${codec} "/lib/codec/${codec}/" EXCEPT "/book\\.cpp$")
endforeach()
kvcodec_compile_together(kvcodec_lib model "/lib/model/" EXCEPT "/tokenizer_(regex|unicode)\\.cpp$")
kvcodec_compile_together(kvcodec_lib pipeline "/lib/(metrics|pipeline)/")
if(KVCODEC_HDF5)
  kvcodec_compile_together(kvcodec_formats files "/formats/[a-h][a-z0-9_]*\\.cpp$" EXCEPT "/http\\.cpp$")
  kvcodec_compile_together(kvcodec_formats files2 "/formats/[i-z][a-z0-9_]*\\.cpp$" EXCEPT "/(index_file|outputs_file|part)\\.cpp$")
  kvcodec_compile_together(kvcodec_formats families "/formats/(gguf_)?families/")
  kvcodec_compile_together(kvcodec_formats interop "/formats/interop/" EXCEPT "/(lmcache|mlx)\\.cpp$")
  # Subcommands have no header, and some names in common.
  get_target_property(cli_sources kvcodec_cli SOURCES)
  foreach(source ${cli_sources})
    string(REGEX REPLACE "\\.cpp$" ".hpp" header ${source})
    if(EXISTS ${header})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP shared)
    endif()
  endforeach()
  kvcodec_compile_together(kvcodec_cli make "/cli/(dump_kv|encode|decode|import|export)\\.cpp$")
  kvcodec_compile_together(kvcodec_cli learn "/cli/(train_[a-z]+|choose|pack_indices)\\.cpp$")
  kvcodec_compile_together(kvcodec_cli judge "/cli/(eval_[a-z]+|sensitivity|report)\\.cpp$")
  kvcodec_compile_together(kvcodec_cli look "/cli/(attend|info|ls|cat|rm|split|compact)\\.cpp$")
  kvcodec_compile_together(kvcodec_cli find "/cli/(index|document_selection)\\.cpp$")
  kvcodec_compile_together(kvcodec_cli check "/cli/(check|select)\\.cpp$")
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
