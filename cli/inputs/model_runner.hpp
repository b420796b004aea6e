// Models as commands run them: how they multiply (--compute), and on what device.
#pragma once

#include "cli/frame/command.hpp"
#include "cli/frame/common.hpp"
#include "formats/models/model_files.hpp"
#include "lib/model/llama.hpp"

namespace kvcodec::cli {

/// --compute, in a group of its own.
void declare_compute(Command& command, Compute& compute);

/// A model of these files, which outlive it, ready to run as the options say, after notes on what had to be guessed. Throws
/// Error(usage) where it cannot be run so. keep_weights() makes it quicker for more than a few tokens.
LlamaModel make_model(ModelFiles& files, const CommonOptions& common, Compute compute = Compute::f32);

/// What a command is about to have a model compute.
struct ModelWork {
  uint64_t tokens = 0;  ///< that it is run over, about
  int layers = 0;       ///< the first so many; 0 = all
  bool logits = true;
};

/// Lays the model's weights out for products by this processor, if that pays for the work and takes no more than a share of the
/// memory. What a device multiplies stays as it is; a model that a device declines is laid out.
void keep_weights(LlamaModel& model, const ModelWork& work);

/// Its tokenizer, after notes on what had to be guessed.
Tokenizer make_tokenizer(const ModelFiles& files, const CommonOptions& common);

}  // namespace kvcodec::cli
