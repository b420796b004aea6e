# The list of codecs, from the names of their sources: lib/codec/<name>_codec.cpp, lib/codec/<name>/codec.cpp and lib/<name>/codec/codec.cpp
# each define `CodecEntry <name>_codec()`. Static libraries drop what nobody names, so codecs cannot add themselves when a program starts.

# kvcodec_list_codecs(OUTPUT SOURCE…): writes the source that collects the entries.
function(kvcodec_list_codecs output)
  set(declarations)
  set(calls)
  foreach(source ${ARGN})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/lib ${source})
    if(NOT path MATCHES "^(codec/)?([a-z0-9]+)(_codec|/codec|/codec/codec)\\.cpp$")
      continue()
    endif()
    set(name ${CMAKE_MATCH_2})
    if(name MATCHES "^(codec|pair|rope|sink)$")  # the interface, and codecs around other codecs
      continue()
    endif()
    string(APPEND declarations "CodecEntry ${name}_codec();\n")
    string(APPEND calls "\n    ${name}_codec(),")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT [[
// Written by cmake/codecs.cmake.
#include "lib/codec/codec.hpp"

namespace kvcodec {

@declarations@
std::vector<CodecEntry> all_entries() {
  return {@calls@
  };
}

}  // namespace kvcodec
]] @ONLY)
endfunction()
