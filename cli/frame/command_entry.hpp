// Headers and options that nearly all commands use.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/command.hpp"
#include "cli/frame/common.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

/// The options that most commands have; each declares those that it takes.
struct CommandOptions : Options {
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override { return {}; }
  /// Checks that the output is none of the inputs, and applies the common options (has_twin: as for CommonOptions::apply).
  void check_files(const Command& command, const std::vector<std::string>& inputs, bool has_twin) {
    output.check(common);
    check_inputs(inputs);
    output.keep(inputs);
    common.apply(command, has_twin);
  }
};

}  // namespace kvcodec::cli
