// What the subcommands that train share: which tokens are trained on, and going on with a training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.hpp"
#include "cli/common.hpp"
#include "formats/kv_file.hpp"

namespace kvcodec::cli {

/// The options that all training has; subcommands add their own. --seed is among those of the training
/// itself.
struct TrainingOptions : Options {
  std::vector<std::string> inputs;
  std::string resume;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  /// Their group in the help, with the subcommand's own fields(); resume is one of those. product: what -o
  /// names; resumed: what --resume takes.
  void declare_files(Command& command, const std::string& product, const std::string& resumed);
  /// Parses the command line, once all groups are declared, and checks what is here. has_twin: as for
  /// CommonOptions::apply.
  void parse(Command& command, bool has_twin);
};

/// Consecutive tokens of one file.
struct Run {
  const KvReader* kv = nullptr;
  uint64_t first = 0, count = 0;
};

/// The tokens to train on: those of the chosen documents but for the first `skip` of each, or an even sample
/// of max_tokens of them (0 = all).
std::vector<Run> choose_runs(const std::vector<KvReader>& files, const DocumentSelection& documents,
                             uint64_t max_tokens, uint64_t skip);

/// Identifies what is trained on, so that --resume can tell other data: model, text, and which part of it.
/// groups: the first layers of the groups of layers.
std::string source_digest(const std::vector<Run>& runs, const std::vector<int>& groups);

/// What is trained on, and the histories of the files.
struct TrainingFiles {
  std::vector<KvReader> caches;
  std::vector<std::vector<std::string>> histories;
};

/// Opens them. Throws Error(bad_input) unless all are caches of the same layers of the same model.
TrainingFiles open_training_files(const std::vector<std::string>& inputs);

/// Options of a training that is resumed: `stored` gets those of `given` that the command line names and that
/// are among `may_change`. Throws Error(usage) for others that differ. file: for messages.
void resume_options(const Command& command, Options& given, Options& stored,
                    const std::vector<std::string_view>& may_change, const std::string& file);

}  // namespace kvcodec::cli
