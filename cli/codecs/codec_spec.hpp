// A codec with its options in one word, NAME[:key=value,...]: the value of --codec, given once in encode and for each setting in
// eval-model. Both know preset=, book=, weights= and rope=. Codes files, label=, dtype= and the keys that select tokens are only
// for eval-model; goals such as total-bits= are only for encode.
//
//   kivi:bits=2,window=0                     the options of encode, without their dashes
//   sparse:book=dict.h5,sparsity=32          with its book
//   kvcomp:unit-heads                        a switch
//   q4:rope=undo                             keys from before the rotary embedding
//   kvcomp:max-error=0.5,weights=s.h5        errors weighted by their cost for the model
//   kvcomp:key-rel=0.3+kivi:bits=2           keys by one codec, values by another
//   codes.h5                                 codec, options and embedded book of a codes file
//   none:select=quest,budget=128,setup=paper attention to chosen tokens
//   kivi:bits=2,label=baseline               its name in tables
//   none:dtype=f32                           a cache that is not rounded
//   kivi:preset=paper,bits=4                 the form of the codec's paper, except for the given options
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/cache/book_file.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/models/model_files.hpp"
#include "lib/codec/codec.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/core/options.hpp"
#include "lib/pipeline/selection.hpp"

namespace kvcodec::cli {

class Command;

// Options that choose the tokens queries attend to: the same in select, eval-model and the words of its settings.

/// The source of values that are not given: the best ones on SmolLM2-135M (data/experiments/README.md, "selection"), or those of
/// the method's paper.
enum class SelectionSetup : uint8_t { best, paper };
constexpr auto names_of(SelectionSetup) { return std::to_array<std::string_view>({"best", "paper"}); }

struct SelectionOptions final : Options {
  SelectBy by = SelectBy::codes;
  SelectionSetup setup = SelectionSetup::best;
  Share share = Share::weight;  ///< scores of query heads differ in scale, weights do not
  int64_t budget = 0;
  double ratio = 0, mass = 0;
  int64_t first = 4;       ///< most attention of many heads lies on the very first token
  int64_t newest = 4;      ///< few suffice: products find the others that matter
  int64_t heavy = 0;       ///< none: candidates find such tokens
  int64_t candidates = 4;  ///< products with these keys correct wrong scores
  Beside beside = Beside::none;
  std::string dense_layers = std::string(kFirstTwo);  ///< as in Quest and ClusterKV: they attend broadly

  ClusterOptions clusters;  ///< of eval-model; select has them from an index file

  static constexpr std::string_view kFirstTwo = "0-1";

  /// The options if only these two are given.
  static SelectionOptions of(SelectBy by, SelectionSetup setup);
  /// The same, with the two values read from the command line: those of the option `by` and of --setup. Invalid ones count as not
  /// given: parse() refuses them.
  static SelectionOptions peek(const Command& command, const char* by, SelectBy otherwise);

  std::vector<OptionField> fields() override;
  /// The fields for a model that continues: `by` is called `select`, and may be all; and those of clusters.
  std::vector<OptionField> step_fields();
  void check() const override {
    if (budget > 0 && ratio > 0) throw usage_error("--budget and --ratio exclude each other");
    if (mass > 0 && share != Share::weight && share != Share::each)
      throw usage_error("--budget-mass needs --share weight or each, not {}", share);
  }

  /// The rule for a model with that many layers. Throws Error(usage) for dense layers that are not a list, or not in the model.
  SelectionRule rule(int layers) const;
};

/// Values by the names of fields.
using GivenFields = std::vector<std::pair<std::string, Scalar>>;

/// The source of a codec's options that are not given: the defaults, which perform best, or the values of its paper.
enum class Preset : uint8_t { best, paper };
constexpr auto names_of(Preset) { return std::to_array<std::string_view>({"default", "paper"}); }

/// The option that selects the preset.
OptionField preset_field(Preset& preset);

/// A codec's options with that preset. Throws Error(usage) for a codec that follows no paper.
inline std::unique_ptr<Options> options_from(const CodecEntry& entry, Preset preset) {
  auto options = entry.make_options();
  if (preset == Preset::paper) take_paper_form(entry, *options);
  return options;
}

/// The preset that a word names after its colon; `otherwise` if it names none. Throws Error(usage) for an invalid one.
Preset preset_in(const std::string& word, Preset otherwise = Preset::best);

/// A parsed word.
struct CodecSpec {
  std::string text;   ///< as it was given
  std::string label;  ///< its name in tables: the text, without the folder of a codes file
  const CodecEntry* entry = nullptr;
  std::unique_ptr<Options> options;   ///< of the codec named
  std::optional<CodesReader> recipe;  ///< the codes file
  std::string book;                   ///< file of the book
  std::string weights;                ///< sensitivity file
  std::optional<RopeChoice> rope;     ///< where it is given
  SelectionOptions selection = SelectionOptions::of(SelectBy::all, SelectionSetup::best);
  DType dtype = DType::bf16;  ///< of the cache
};

std::vector<std::string> codec_names();

/// True if a codec has the name before a word's colon, or a pair of codecs has the names before its two colons.
bool has_codec(const std::string& word);

/// That codec, or that pair. Throws Error(usage) with the name that was probably meant, or with all names.
const CodecEntry& codec_named(const std::string& word);

/// The keys after a word's colons; those of a pair's options begin with its prefixes.
std::vector<std::string> keys_of(const std::string& word);

/// Sets fields to the values after a word's colon. codec: for messages. Throws Error(usage) for keys that are given twice or match
/// no field, and for values that a field does not accept.
void set_keys(const std::string& word, const std::string& codec, const std::vector<OptionField>& fields);

/// selection: fields of SelectionOptions::step_fields() that apply if the word does not set them; dtype likewise. Throws
/// Error(usage) naming the word for keys that its codec does not have, invalid values, and books that are missing or not accepted;
/// Error(bad_input) for files that are not codes files.
CodecSpec parse_codec_spec(const std::string& text, const GivenFields& selection, DType dtype = DType::bf16);

/// Codecs made from words, and the books that they use, each read once.
class SpecCodecs {
 public:
  /// The codec; it lives as long as this object. book_bytes becomes the size of its book. Throws like encode.
  const Codec& make(const CodecSpec& spec, CodecContext context, uint64_t& book_bytes);
  /// Throws Error(bad_input) for books and sensitivities of a model with other weights. named: the model.
  void check_model(const std::string& named, ModelFiles& files) const {
    for (const auto& [file, model] : models_)
      if (!model.weights().empty()) check_same_weights(file, model, named, model_info(named, files, false));
  }

 private:
  std::map<std::string, BookFile> books_;  // by file
  std::vector<std::unique_ptr<Book>> embedded_;
  std::map<std::string, ModelInfo> models_;  // by file, the models of books and sensitivities
  std::vector<std::unique_ptr<Codec>> codecs_;
};

}  // namespace kvcodec::cli
