// Runs the user's program for the codec `exec`, as kvcodec-exec(7) describes it: messages on its standard input and output.
#pragma once

#include <string>

#include "lib/codec/row_program.hpp"

namespace kvcodec {

/// file: an executable file, or one that ends in .py, which python3 runs. The function throws Error(bad_input) if it cannot be started.
StartRowProgram row_program(const std::string& file);

}  // namespace kvcodec
