# A codec, a family of models and a command are each a source that no list need name: CMake writes the lists from the names of the sources.
# (Static libraries drop what nobody names, so sources cannot add themselves when a program starts.)

# kvcodec_list(FUNCTION TYPE HEADER NAMESPACE NAME…): writes generated/FUNCTION.cpp, in which `std::vector<TYPE> FUNCTION()` returns what the
# functions `TYPE NAME()` of the namespace return, in this order. HEADER declares TYPE.
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
