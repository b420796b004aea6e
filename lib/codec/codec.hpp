// The Codec interface: float rows in, streams out; lib/codec/document_view.hpp is the way back.
//
// How to add a codec: CONTRIBUTING.md, "A codec".
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/attention/score_forms.hpp"
#include "lib/codec/book.hpp"
#include "lib/codec/document_view.hpp"
#include "lib/codec/group_shape.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/codec/stream.hpp"
#include "lib/codec/value_blocks.hpp"
#include "lib/core/options.hpp"
#include "lib/core/record.hpp"
#include "lib/core/view.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec {

class Engine;  // lib/engine/engine.hpp

/// The abilities of a codec; shown by `kvcodec info` and used to refuse early.
struct Capabilities {
  bool needs_book = false;
  bool lossless = false;  ///< decodes the input exactly, f32 too
  bool keeps_blocks =
      false;                ///< stores values that come from quantized blocks as these (CodecContext::blocks)
  bool appends = true;      ///< later tokens can be added without changing the stored ones
  bool multiplies = false;  ///< products with keys and values without decoding them
  bool has_index = false;   ///< the codes tell which tokens a query should look at
  bool device_twin = false;  ///< has a CUDA implementation
  bool device_pays = false;  ///< encodes and decodes documents faster on it than on a CPU (BENCHMARKS.md)
  /// One error bound serves all layers; CodecContext::weights scales it for each layer and side.
  bool takes_weights = false;
};

/// Everything outside its own options that a codec is made from.
struct CodecContext {
  int num_layers = 0;  ///< of the model
  int heads = 0;       ///< key/value heads per layer; the largest number where layers differ
  int head_dim = 0;    ///< of keys and values; likewise
  /// The shape of each layer. Empty: keys and values of all layers have `heads` heads of `head_dim` dimensions.
  std::vector<LayerShape> layer_shapes = {};
  int query_heads = 0;  ///< per layer, a multiple of heads; 0 = not known
  /// The type of tokens kept exactly: bf16 or f16; also f32, for codecs with Capabilities::lossless.
  DType storage = DType::bf16;
  /// The blocks that all keys, and all values, of an f32 cache come from. For Capabilities::keeps_blocks.
  std::array<ValueBlocks, 2> blocks = {};
  bool recorded = false;  ///< made from the record of codes: automatic options not in it are off
  PairOrder key_pairs = PairOrder::halves;  ///< how keys lay when they were cut into these blocks
  const Book* book = nullptr;               ///< read by make alone; nullptr where the codec needs none
  Engine* engine = nullptr;   ///< the device that computes, nullptr: the CPU does; outlives the codec
  LayerWeights weights = {};  ///< for codecs that can (Capabilities::takes_weights)
  KeyRope rope = {};          ///< the rotation of the cache's keys; for the wrapper of outer_codecs.hpp
  ScoreForms scores = {};     ///< of the queries that surveys see (Codec::wants_queries)

  LayerShape layer_shape(int layer) const {
    return layer_shapes.empty() ? usual_layer(heads, head_dim) : layer_shapes[static_cast<size_t>(layer)];
  }
};

/// A first pass over the tokens that are about to be appended, for codecs that must know them before they store the first one: for the
/// histogram of their symbols, say. Its results go into the streams, where append and decode find them.
class Survey {
 public:
  virtual ~Survey() = default;
  /// The number of times that the caller must show all tokens, from the first document to the last.
  virtual int passes() const { return 1; }
  /// Called in each pass before a document's observe(), where the codec wants queries (Codec::wants_queries) and there are any. tokens: the
  /// rows of the document that they belong to, rising; queries: (tokens.size(), query_heads * head_dim).
  virtual void observe_queries(std::span<const uint64_t> /*tokens*/, MatrixView<const float> /*queries*/) {}
  /// Called in each pass before a document's observe(), where the codec predicts from ids (Codec::predicts_from):
  /// the ids of all its tokens.
  virtual void observe_ids(std::span<const uint32_t> /*ids*/) {}
  /// The part of the next tokens of a document that a survey needs to see: nothing of the first `skipped`, then `shown` of them.
  struct Look {
    uint64_t skipped = 0, shown = 0;
  };
  /// Returns the part to show of the next `left` tokens of the current document, which are all that it has left. Skipped tokens count
  /// as shown, and the caller need not read them. Tokens beyond this part are asked for later; `shown` is 0 only if none are left.
  virtual Look look(uint64_t left) { return {0, left}; }
  /// Takes the next tokens of the current document: rows (n, shape.width()), any n. A caller that shows all tokens need not call look().
  virtual void observe(MatrixView<const float> rows) = 0;
  /// No more tokens of this document; a call to observe() starts the next one.
  virtual void end_document() {}
  /// No more documents in this pass.
  virtual void end_pass() {}
  /// Stores the results in the document's own or shared streams. Called before the first append to it.
  virtual void finish(StreamStore& document) = 0;
};

/// The tokens that a codec surveys.
enum class SurveyScope : uint8_t {
  none,
  file,  ///< all that a new file starts with; stored in shared streams and used for all that is added later
  document,  ///< all that a new document starts with; stored in the document's own streams
};

/// Keys and values of a document, opened together (Codec::open_sides).
struct SideViews {
  ViewPtr keys, values;
};

/// The rate of some streams together.
struct LearnedRate {
  std::vector<std::string_view> streams;
  double bits = 0;              ///< per value of all sides
  std::vector<double> at = {};  ///< the same at whole settings of the codec's dial, from 0 on
};

/// One codec with its options fixed, for a whole file. Stateless but for the count of clipped(): all it knows about a document is in the
/// document's streams, so a document encoded in any number of append() calls has the same streams as in one (after the same survey, where
/// the codec makes one). Const members may run on several threads at once on different documents; inside they use parallel_for.
class Codec {
 public:
  virtual ~Codec() = default;

  /// All values that, with the book, build the codec again: the options in effect, with defaults and automatic choices resolved.
  virtual Record parameters() const = 0;

  /// The layers that share one row with this one, itself included, rising; all have one shape.
  virtual std::vector<int> group_of(int layer) const { return {layer}; }

  /// True if keys and values are one row: shapes then are of both sides (sides()).
  virtual bool joint() const { return false; }
  std::span<const Side> sides() const {
    return joint() ? std::span<const Side>(kJointly) : std::span<const Side>(kSides);
  }

  /// The rate that codes with these options had on the training data of the book; std::nullopt if the rate does not depend on the data. A
  /// cache that needs many more bits holds data of another kind.
  virtual std::optional<LearnedRate> learned_rate() const { return std::nullopt; }

  /// For codecs that predict vectors from token ids (StreamReader::token_ids), which encoding and decoding then need:
  /// the size of the vocabulary, below which all ids are. 0: the codec uses no ids.
  virtual uint64_t predicts_from() const { return 0; }

  /// True if append() codes tokens of larger weight (StreamStore::token_weight) more finely.
  virtual bool weighs_tokens() const { return false; }

  /// The streams of one side of one group. The same for every document.
  virtual std::vector<StreamSpec> streams(const GroupShape& shape) const = 0;

  /// Bytes of scratch memory that append and DocumentView::decode need per row, beside the rows themselves. Callers
  /// use it to choose the number of rows that they hand over at a time.
  virtual size_t scratch_bytes_per_row(const GroupShape& shape) const {
    return shape.width() * sizeof(float);
  }

  virtual SurveyScope survey_scope(const GroupShape&) const { return SurveyScope::none; }
  /// The shape of the rows that a survey for `shape` gets: the same, or that of the other side.
  virtual GroupShape surveyed(const GroupShape& shape) const { return shape; }
  /// True if the survey of some side uses queries. Only codecs with a layer group of 1 do.
  virtual bool wants_queries() const { return false; }
  /// Text for a note to the user if the codec wants queries and there are none: it says what is done instead.
  virtual std::string without_queries() const { return {}; }
  /// The reason why this codec needs keys after the rotary embedding, as queries meet them: text that follows
  /// "keys cannot be turned back: ". Empty if it does not need that.
  virtual std::string needs_rope() const { return {}; }
  /// True if append() rounds rows to the cache's type before anything is made of them, and so takes any floats.
  virtual bool rounds() const { return false; }
  /// Starts a survey of one side of one group; only if its survey_scope() is not none.
  virtual std::unique_ptr<Survey> survey(const GroupShape& shape) const;

  /// Adds rows.rows() tokens to the document. rows: (n, shape.width()), finite.
  /// Throws Error(bad_input) for values the codec cannot represent.
  virtual void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const = 0;
  /// How many values append() has cut so far, of all documents, because they lie beyond the range that earlier tokens set.
  virtual uint64_t clipped() const { return 0; }

  /// Opens a document for reading. shape.side is one of sides(); where keys and values are coded jointly, it
  /// may also be key or value, and the view then shows only that side. This codec and `document` outlive the
  /// view. Throws Error(bad_input) if the document's streams disagree with each other.
  ViewPtr open(const GroupShape& shape, const StreamReader& document) const;

  /// Opens both sides of a document, to be read in turns. If they are coded jointly, only the streams of `keys` are read, and decoding
  /// tokens of one side yields the other side's rows too. The views keep the rows decoded last, of at most 2,048 tokens, for a range of the
  /// other side, as decode_sides() (lib/codec/document_view.hpp) reads it.
  SideViews open_sides(const GroupShape& shape, const StreamReader& keys, const StreamReader& values) const;

 protected:
  /// Makes the codec's view without reading anything; open() then calls refresh().
  virtual ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const = 0;
  /// The same for a codec that this one wraps.
  static ViewPtr view_of(const Codec& other, const GroupShape& shape, const StreamReader& document) {
    return other.view_of(shape, document);
  }
};

/// One number, the dial's setting, sets the codec's options, from its lowest rate to its highest. A search for a rate
/// or a loss turns it (cli/search/goal.hpp). A higher setting means a higher rate, except where the overhead of blocks
/// and groups dominates in short documents.
struct Dial {
  /// Options that the user cannot give together with a search. For all others the search starts from the user's values.
  std::vector<std::string_view> sets = {};
  double lowest = 0, highest = 0;
  double useful = lowest;  ///< the lowest setting that a search on one side alone looks at
  double usual = lowest;   ///< the setting at which other searches begin
  bool whole = false;      ///< only whole settings differ
  /// Sets options of the codec, which otherwise are as they were given. weighed: errors are weighed by layer and side.
  void (*turn)(Options& options, double setting, bool weighed) = nullptr;
  std::string_view why_not = {};  ///< the reason why a codec's rate is fixed; then `turn` is null
};

/// Rounded to three digits, so that the option can be typed as it was used.
inline double rounded_setting(double x) { return std::stod(fmt::format("{:.3g}", x)); }

/// The registry line of a codec: its help, how one is made, and how a search treats it.
struct CodecEntry {
  std::string name;     ///< as in --codec
  std::string summary;  ///< one line for help
  Capabilities capabilities = {};
  std::string book_type = {};  ///< "dictionary" …; empty where it needs none
  std::function<std::unique_ptr<Options>()> make_options;
  /// Builds the codec for encoding with these options (made by make_options). Throws Error(usage) for options
  /// that do not fit the model, Error(bad_input) for a book that does not.
  /// Its caller is make_codec (outer_codecs.hpp).
  std::function<std::unique_ptr<Codec>(const Options& options, const CodecContext& context)> make;
  /// True if it takes keys from before the rotary embedding unless it is told otherwise.
  bool before_rope = false;
  /// Options, with values, that give the form of the codec's paper; the codec's defaults are the best values. Empty
  /// if it follows no paper, or if its defaults are the paper's.
  std::vector<std::pair<std::string, Scalar>> paper = {};
  /// Sets its options for --total-bits and others, or says why they cannot be set. A pair has two: see of().
  Dial dial = {};
  /// In which order `choose` tries codecs, the lowest first.
  int promise = 100;
  /// True if `choose` tries it only where --codecs names it.
  bool on_demand = true;
  /// Its place in help and lists, the lowest first.
  int place = 100;
  /// The codecs of keys and of values of a pair (registry.hpp); null for all others.
  std::array<const CodecEntry*, 2> sides = {};

  bool is_pair() const { return sides[0] != nullptr; }
  /// The codec of that side: of a pair one of the two, else this one.
  const CodecEntry& of(Side side) const { return is_pair() ? *sides[side == Side::value] : *this; }
};

/// True if a search can set the rate; for a pair (registry.hpp), the rate of either side.
inline bool has_dial(const CodecEntry& codec) {
  return codec.of(Side::key).dial.turn || codec.of(Side::value).dial.turn;
}

/// Sets options (made by entry.make_options) to the paper's form. Throws Error(usage) if there is none.
void take_paper_form(const CodecEntry& entry, Options& options);

/// Rebuilds the codec of a file from its parameter record, to decode the file or to add to it. context.book is the book that the file was
/// made with (its caller has compared the digests), null for codecs that need none. Options that the record does not name keep their
/// defaults. Without a parameter `rope` the codec takes keys as the cache has them. Other parameters of the record must equal those that
/// the codec derives from the book.
/// Throws Error(bad_input), saying which codec's parameters they are, for options that make would refuse, for
/// a record at odds with the book, and for a book that is missing or does not fit.
std::unique_ptr<Codec> codec_from_record(const CodecEntry& entry, const Record& parameters,
                                         const CodecContext& context);

}  // namespace kvcodec
