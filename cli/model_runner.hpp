// Models as commands run them: how they multiply (--compute), and on what device.
#pragma once

#include "cli/command.hpp"
#include "cli/common.hpp"
#include "formats/model_files.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec::cli {

/// --compute, in a group of its own.
void declare_compute(Command& command, Compute& compute);

/// A model of these files, which outlive it, ready to run as the options say, after notes on what had to be guessed. Throws
/// Error(usage) where it cannot be run so.
LlamaModel make_model(ModelFiles& files, const CommonOptions& common, Compute compute = Compute::f32);

/// Its tokenizer, after notes on what had to be guessed.
Tokenizer make_tokenizer(const ModelFiles& files, const CommonOptions& common);

}  // namespace kvcodec::cli
