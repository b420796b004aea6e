// Shared by the subcommands that train: the choice of tokens, and resuming a training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/common.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/codec/book.hpp"
#include "lib/codec/kinds.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/model/rope.hpp"
#include "lib/transform/basis.hpp"

namespace kvcodec::cli {

/// The options of all training; subcommands add their own. --seed is among those of the training itself.
struct TrainingOptions : CommandOptions {
  std::vector<std::string> inputs;
  std::string resume, weights;
  RopeChoice rope = RopeChoice::keep;

  /// --rope, for fields(). what: the name of the learned object.
  OptionField rope_field(const std::string& what);
  /// --weights, likewise.
  OptionField weights_field(const std::string& what);
  /// The weights from the option's file; all equal without one. kv: the training cache. Throws Error(bad_input) for files of other
  /// models.
  LayerWeights read_weights(const KvReader& kv) const;
  /// Throws Error(usage) if other weights are given for a resumed training, which has its own.
  void check_resumed_weights() const;
  /// Declares their group in the help, with the subcommand's own fields(); resume is one of those. file: the value of -o; resumed:
  /// the value of --resume.
  void declare_files(Command& command, const std::string& file, const std::string& resumed);
  /// Parses the command line, after all groups are declared, and checks these options. has_twin: as for CommonOptions::apply.
  void parse(Command& command, bool has_twin);
};

/// Consecutive tokens of one document.
struct Run {
  const KvReader* kv = nullptr;
  uint64_t first = 0, count = 0;  ///< in the file
  uint64_t index = 0;             ///< of the first one in its document
  size_t document = 0;            ///< its number in the file
};

/// Layers to train on, and the tokens of them: those of the chosen documents that all these layers hold, except for the first `skip` of
/// each document, or an even sample of max_tokens of them (0 = all).
struct TokenChoice {
  const std::vector<int>& layers;
  const DocumentSelection& documents;
  uint64_t max_tokens = 0, skip = 0;
};
std::vector<Run> choose_runs(const std::vector<KvReader>& files, const TokenChoice& choice);

/// The first token of each chosen document that all layers hold, or of some of them spread evenly: one run each.
std::vector<Run> choose_first_tokens(const std::vector<KvReader>& files, const TokenChoice& choice);

/// The kinds (lib/codec/kinds.hpp) of the layers of the model, as these caches hold them.
LayerKinds kinds_of_layers(const std::vector<KvReader>& files);
/// The number of a layer in its kind's book.
inline int place_in_kind(const std::vector<int>& kind, int layer) {
  return static_cast<int>(std::ranges::find(kind, layer) - kind.begin());
}
/// The groups of so many neighbouring layers of a kind that the chosen ones among them fill. Throws Error(usage) unless groups of that
/// size divide the kind's layers, and the errors of whole_groups().
std::vector<std::vector<int>> groups_in_kind(const std::vector<int>& kind, int64_t layer_group,
                                             const LayerSelection& chosen, const KvReader& kv);
/// The books of the kinds in a book whose training is resumed, which is `file`. Throws Error(bad_input) if they are other kinds.
std::vector<Book> resumed_books(const Book& book, const LayerKinds& kinds, int num_layers,
                                const std::string& file);

/// Identifies the training data, so that --resume can detect other data: model, text, and the part of it. groups: the first layers
/// of the groups of layers.
std::string source_digest(const std::vector<Run>& runs, const std::vector<int>& groups);

/// Reads the training data, with keys turned back if that is chosen.
class TrainedRows {
 public:
  /// files: all files to which runs refer. Throws Error(usage) if keys cannot be turned back as requested.
  TrainedRows(const std::vector<KvReader>& files, RopeChoice rope);
  /// Tokens run.first + skip … of the run: out is (n, shape.width()).
  void read(const GroupShape& shape, const Run& run, uint64_t skip, MatrixView<float> out) const;

 private:
  std::optional<KeyRope> rope_;
};

/// The tokens of runs as one sequence.
class RunTokens {
 public:
  /// rows and runs outlive this object.
  RunTokens(const TrainedRows& rows, const std::vector<Run>& runs);
  uint64_t count() const { return starts_.back(); }
  /// Tokens [first, first + out.rows()) of these layers and this side.
  void read(const GroupShape& shape, uint64_t first, MatrixView<float> out) const;
  /// Their features: (n, features.width()).
  void read_features(const TokenFeatures& features, uint64_t first, MatrixView<float> out) const;

 private:
  /// Calls body(run, skip, out) for the pieces of runs that make up tokens [first, first + out.rows()).
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

/// Opens the files. Throws Error(bad_input) unless all are caches of the same layers of the same model, and Error(usage) if one of
/// them is standard input and several ranks read it.
TrainingFiles open_training_files(const std::vector<std::string>& inputs, const Team& team);

/// Options of a resumed training: `stored` gets those of `given` that the command line names and that are among `may_change`.
/// Throws Error(usage) for others that differ, and for a preset. file: for messages.
void resume_options(const Command& command, Options& given, Options& stored,
                    const std::vector<std::string_view>& may_change, const std::string& file);

/// The same for --rope: returns the choice with which the book was trained.
RopeChoice resume_rope(const Command& command, RopeChoice given, RopeChoice stored, const std::string& file);

}  // namespace kvcodec::cli
