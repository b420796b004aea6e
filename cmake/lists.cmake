# Each codec, family of models and command is a source that needs no manual list: CMake writes the lists from the names of the sources.
# (Static libraries drop unreferenced objects, so sources cannot add themselves when a program starts.)

# kvcodec_list(FUNCTION TYPE HEADER NAMESPACE NAME…): writes generated/FUNCTION.cpp, in which `std::vector<TYPE> FUNCTION()` returns the
# results of the functions `TYPE NAME()` of the namespace, in this order. HEADER declares TYPE.
function(kvcodec_list function type header namespace)
  list(TRANSFORM ARGN PREPEND "${type} " OUTPUT_VARIABLE declarations)
  list(TRANSFORM declarations APPEND "()\;")
  list(JOIN declarations "\n" declarations)
  list(TRANSFORM ARGN APPEND "()" OUTPUT_VARIABLE calls)
  list(JOIN calls ", " calls)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/${function}.cpp CONTENT [[
// Written by cmake/lists.cmake from the names of sources.
#include "@header@"

namespace @namespace@ {

@declarations@

std::vector<@type@> @function@() { return {@calls@}; }

}  // namespace @namespace@
]] @ONLY)
endfunction()
