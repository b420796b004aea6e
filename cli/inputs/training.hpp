// Shared by the subcommands that train: the choice of tokens, and going on with a training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/command.hpp"
#include "cli/frame/common.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/codec/book.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/model/rope.hpp"
#include "lib/transform/basis.hpp"

namespace kvcodec::cli {

/// The options that all training has; subcommands add their own. --seed is among those of the training
/// itself.
struct TrainingOptions : Options {
  std::vector<std::string> inputs;
  std::string resume, weights;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;
  RopeChoice rope = RopeChoice::keep;

  /// --rope, for fields(). what: is learned.
  OptionField rope_field(const std::string& what);
  /// --weights, likewise.
  OptionField weights_field(const std::string& what);
  /// The weights of the file that it names; all alike where none is given. kv: is trained on. Throws Error(bad_input) for files of other models.
  LayerWeights read_weights(const KvReader& kv) const;
  /// Throws Error(usage) where a training is resumed, which has its weights, and others are given.
  void check_resumed_weights() const;
  /// Their group in the help, with the subcommand's own fields(); resume is one of those. file: what -o
  /// names; resumed: what --resume takes.
  void declare_files(Command& command, const std::string& file, const std::string& resumed);
  /// Parses the command line, once all groups are declared, and checks what is here. has_twin: as for
  /// CommonOptions::apply.
  void parse(Command& command, bool has_twin);
};

/// Consecutive tokens of one document.
struct Run {
  const KvReader* kv = nullptr;
  uint64_t first = 0, count = 0;  ///< in the file
  uint64_t index = 0;             ///< of the first one in its document
};

/// The tokens to train on: those of the chosen documents except for the first `skip` of each, or an even sample
/// of max_tokens of them (0 = all).
std::vector<Run> choose_runs(const std::vector<KvReader>& files, const DocumentSelection& documents,
                             uint64_t max_tokens, uint64_t skip);

/// The first token of each of the chosen documents, or of some of them spread evenly: a run each.
std::vector<Run> choose_first_tokens(const std::vector<KvReader>& files, const DocumentSelection& documents);

/// Identifies what is trained on, so that --resume can tell other data: model, text, and which part of it.
/// groups: the first layers of the groups of layers.
std::string source_digest(const std::vector<Run>& runs, const std::vector<int>& groups);

/// Reads what is trained on, keys turned back if that is chosen.
class TrainedRows {
 public:
  /// files: all that runs are of. Throws Error(usage) where keys are to be turned back and cannot be.
  TrainedRows(const std::vector<KvReader>& files, RopeChoice rope);
  /// Tokens run.first + skip … of the run: out is (n, shape.width()).
  void read(const GroupShape& shape, const Run& run, uint64_t skip, MatrixView<float> out) const;

 private:
  std::optional<KeyRope> rope_;
};

/// The tokens of runs as one sequence.
class RunTokens {
 public:
  /// rows and runs outlive this.
  RunTokens(const TrainedRows& rows, const std::vector<Run>& runs);
  uint64_t count() const { return starts_.back(); }
  /// Tokens [first, first + out.rows()) of these layers and this side.
  void read(const GroupShape& shape, uint64_t first, MatrixView<float> out) const;
  /// Their features: (n, features.width()).
  void read_features(const TokenFeatures& features, uint64_t first, MatrixView<float> out) const;

 private:
  /// Calls body(run, skip, out) for the pieces of runs that tokens [first, first + out.rows()) are.
  template <class Body>
  void for_each_piece(uint64_t first, MatrixView<float> out, const Body& body) const;

  const TrainedRows& rows_;
  const std::vector<Run>& runs_;
  std::vector<uint64_t> starts_;  // of each run, and their sum
};

/// The caches to train on, and their histories.
struct TrainingFiles {
  std::vector<KvReader> caches;
  std::vector<std::vector<std::string>> histories;
};

/// Opens them. Throws Error(bad_input) unless all are caches of the same layers of the same model, and Error(usage) if
/// one of them is standard input and several ranks read it.
TrainingFiles open_training_files(const std::vector<std::string>& inputs, const Team& team);

/// Options of a training that is resumed: `stored` gets those of `given` that the command line names and that
/// are among `may_change`. Throws Error(usage) for others that differ. file: for messages.
void resume_options(const Command& command, Options& given, Options& stored,
                    const std::vector<std::string_view>& may_change, const std::string& file);

/// The same of --rope: gives what the book was trained with.
RopeChoice resume_rope(const Command& command, RopeChoice given, RopeChoice stored, const std::string& file);

}  // namespace kvcodec::cli
