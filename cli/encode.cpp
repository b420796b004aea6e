// kvcodec encode KV --codec NAME[:key=value,...] [options] -o CODES
//
//   --codec NAME        sparse, none, kivi …; each brings its own options, with their defaults in the help
//   --codec NAME+NAME   keys by one codec, values by another; their options are --key.… and --value.…
//   --preset NAME       where these begin: default, what does best, or paper, as its paper has it
//   --book FILE         the dictionary that the codec needs
//   --embed-book        put it into the product
//   --no-pack           ids in 16 or 32 bits each, not in as few as they need
//   --codec auto        find the codec too, as kvcodec choose does
//   --total-bits X      find the codec's options for a rate (--quality, --max-nll: for a quality, for a loss)
//   --resume            go on where an earlier run of this command stopped
//   --verify            decode the product before it takes its place
//   --append CODES      add the tokens to these codes, in place unless -o names another file
//   --weights FILE      what errors cost the model (kvcodec sensitivity), for codecs with one bound for all
//   --storage TYPE      16-bit type of tokens kept exactly (that of the cache)
//
//   kvcodec encode kv.h5 --codec sparse --book dict.h5 --sparsity 64 -o codes.h5
#include <algorithm>
#include <map>

#include "cli/codec_search.hpp"
#include "cli/codec_spec.hpp"
#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/goal.hpp"
#include "cli/matching.hpp"
#include "cli/product.hpp"
#include "cli/progress.hpp"
#include "cli/rate.hpp"
#include "cli/resume.hpp"
#include "cli/shard.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "cli/weights.hpp"
#include "formats/kv_file.hpp"
#include "lib/codec/pair_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// The word for --codec that leaves the choice to kvcodec.
constexpr std::string_view kAuto = "auto";

struct EncodeOptions final : Options {
  std::string input, codec, book, weights, append;
  std::optional<DType> storage;
  std::optional<RopeChoice> rope;
  Preset preset = Preset::best;
  bool embed_book = false, verify = false;
  bool pack = true;  ///< lossless, and takes hardly any time
  GoalOptions goal;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;
  ShardOption shard;
  ResumeOptions resume;

  std::vector<OptionField> fields() override {
    return {
        {.name = "codec",
         .help = fmt::format(
             "how to compress: {}; its options, which stand below, may also follow a colon, as "
             "kivi:bits=2,window=32. Two with a + between them, as kvcomp:key-rel=0.3+kivi:bits=2, code keys "
             "and values apart. auto: the codec and the options that reach --total-bits or --max-nll "
             "best, as kvcodec choose finds them",
             fmt::join(codec_names(), ", ")),
         .target = &codec},
        preset_field(preset),
        {.name = "book",
         .help = "file of the dictionary, codebooks or transform that the codec needs",
         .target = &book},
        {.name = "weights",
         .help =
             "sensitivity file: errors of layers and sides that cost the model more are kept smaller; for kvcomp "
             "with --max-error (books bring their own: see train-dict, train-rvq and train-transform)",
         .target = &weights},
        {.name = "embed-book",
         .help = "put the book into the product, which then decodes by itself",
         .target = &embed_book},
        {.name = "pack",
         .help = "store ids in 16 or 32 bits each; by default they take as few as they need, as "
                 "pack-indices stores them",
         .target = &pack},
        {.name = "verify",
         .help = "read the product back, verify its digests and decode all of it before it takes its place",
         .target = &verify},
        {.name = "append",
         .help =
             "start from these codes and add the tokens of KV to them, with the codec and the options "
             "they were made with; a first document that has the name of the last one stored and goes "
             "on at the next position continues it, every other is new. Without -o the codes are changed in place",
         .target = &append},
        {.name = "storage",
         .help = "16-bit type of tokens that a codec keeps exactly (default: the type of KV; bf16 if that "
                 "is f32)",
         .target = &storage,
         .choices = {"bf16", "f16"}},
        {.name = "rope",
         .help =
             "undo: give the codec keys from before the rotary embedding, turned back by their index in "
             "the document; whoever decodes turns them forward again (default: keep them as they are, or as "
             "the book was trained)",
         .target = &rope},
    };
  }
};

/// The codec that --codec names, and its options, bound to the command line. Both null where it names none.
struct NamedCodec {
  const CodecEntry* entry = nullptr;
  std::unique_ptr<Options> options;
};

/// The value of --preset, read before parsing, because the defaults of options follow from it.
Preset preset_asked(const Command& command) {
  Preset preset = Preset::best;
  if (const std::string asked = command.peek("preset"); !asked.empty())
    set_from_text(preset_field(preset), "--preset", asked);
  return preset;
}

/// Binds the options of both codecs. An option without its side is refused, with its names for keys and values.
std::unique_ptr<Options> declare_pair(Command& command, const CodecEntry& pair, Preset preset) {
  auto options = options_from(pair, preset);
  command.group(fmt::format("Codec {}: {}", pair.name, pair.summary));
  command.options(*options);
  std::map<std::string, std::vector<std::string>> meant;
  for (const Side side : kSides)
    for (const OptionField& field : pair.of(side).make_options()->fields())
      meant[field.name].push_back(fmt::format("--{}{}", pair_prefix(side), field.name));
  for (const auto& [name, names] : meant)
    command.refuse(name,
                   fmt::format("--{} does not say of which side: write {}", name, fmt::join(names, " or ")));
  return options;
}

NamedCodec declare_codec(Command& command) {
  const std::string word = command.peek("codec");
  NamedCodec chosen;
  if (!word.empty() && word != kAuto && !(command.help_wanted() && !has_codec(word)))
    chosen.entry = &codec_named(word);
  const Preset preset = chosen.entry ? preset_in(word, preset_asked(command)) : Preset::best;
  if (chosen.entry && chosen.entry->is_pair()) chosen.options = declare_pair(command, *chosen.entry, preset);
  for (const CodecEntry& entry : codecs()) {
    const bool is_chosen = &entry == chosen.entry;
    auto fields = options_from(entry, is_chosen ? preset : Preset::best);
    if (is_chosen || (!chosen.entry && command.help_wanted())) {
      command.group(fmt::format("Codec {}: {}", entry.name, entry.summary));
      if (is_chosen) {
        command.options(*fields);
        chosen.options = std::move(fields);
      } else {
        command.show(*fields);
      }
      continue;
    }
    for (const auto& field : fields->fields())
      command.refuse(field.name, chosen.entry
                                     ? fmt::format("--{} is an option of codec {}, not of {}", field.name,
                                                   entry.name, chosen.entry->name)
                                     : fmt::format("--{} is an option of codec {}; choose it with --codec {}",
                                                   field.name, entry.name, entry.name));
  }
  return chosen;
}

/// Sets the options that follow the colon in the value of --codec: those of the codec, book, weights, rope, preset and
/// goals.
void take_word(const Command& command, const NamedCodec& codec, EncodeOptions& options) {
  auto fields = codec.options->fields();
  fields.push_back({.name = "book", .help = "", .target = &options.book});
  fields.push_back({.name = "weights", .help = "", .target = &options.weights});
  fields.push_back({.name = "rope", .help = "", .target = &options.rope});
  fields.push_back({.name = "preset", .help = "", .target = &options.preset});
  with_context(fmt::format("--codec {}", options.codec), [&] {
    for (const OptionField& field : options.goal.fields()) fields.push_back(field);
    set_keys(options.codec, codec.entry->name, fields);
    for (const std::string& key : keys_of(options.codec))
      if (command.given(key)) throw usage_error("{} is given here and as --{}", key, key);
  });
}

/// A cache that takes more than so many times the bits of a book's training data is of another kind: other novels take 1.1
/// times as many, technical prose and code 1.6 and more.
constexpr double kUnlike = 1.4;

/// What is to be encoded: whole documents of a kv file, and where they go in the codes.
struct Job {
  struct Piece {
    uint64_t first = 0, count = 0;  ///< tokens of the kv file
    size_t document = 0;            ///< of the codes
    size_t source = 0;              ///< document of the kv file
  };
  std::vector<Piece> pieces;
  std::vector<Piece>
      surveyed;  ///< surveyed for what all documents of a new file share: with --shard the pieces of all shares
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> positions;
  std::vector<std::string>
      stored_before;  ///< documents that are left out, because the codes have them already
};

/// The documents that codes hold, by name.
class StoredDocuments {
 public:
  explicit StoredDocuments(const CodesReader* codes) : codes_(codes) {
    if (!codes || !codes->has_tokens()) return;
    const Documents& documents = codes->info().documents;
    for (size_t i = 0; i < documents.count(); ++i) numbers_[documents.names[i]].push_back(i);
  }

  /// Whether a document of that name has these ids at these positions, alone or among others.
  bool has(std::string_view name, std::span<const uint32_t> ids, std::span<const uint64_t> positions) const {
    const auto place = numbers_.find(name);
    return place != numbers_.end() && std::ranges::any_of(place->second, [&](size_t document) {
             return holds(document, ids, positions);
           });
  }

 private:
  bool holds(size_t document, std::span<const uint32_t> ids, std::span<const uint64_t> positions) const {
    const uint64_t first = codes_->info().documents.offsets[document],
                   length = codes_->info().documents.length(document);
    if (ids.empty() || length < ids.size()) return ids.empty() && length == 0;
    const auto there = codes_->positions(first, length);
    const auto at = static_cast<uint64_t>(std::ranges::lower_bound(there, positions.front()) - there.begin());
    return length - at >= ids.size() &&
           std::ranges::equal(std::span(there).subspan(at, ids.size()), positions) &&
           std::ranges::equal(codes_->tokens(first + at, ids.size()), ids);
  }

  const CodesReader* codes_;
  std::map<std::string_view, std::vector<size_t>> numbers_;
};

/// The facts of the codes' last document after a document of the kv file, with these ids, has continued it.
DocumentFacts continued(const CodesReader& base, const DocumentFacts& more, std::span<const uint32_t> ids) {
  const Documents& documents = base.info().documents;
  const size_t last = documents.count() - 1;
  DocumentFacts facts = documents.facts_of(last);
  facts.time = std::max(facts.time, more.time);
  if (!more.metadata.empty()) facts.metadata = more.metadata;
  if (!facts.digest && !more.digest) return facts;
  auto all = base.tokens(documents.offsets[last], documents.length(last));
  all.insert(all.end(), ids.begin(), ids.end());
  facts.digest = token_digest(all);
  return facts;
}

Job make_job(const KvReader& kv, const std::vector<size_t>& chosen, const CodesReader* base,
             Documents& documents) {
  Job job;
  const StoredDocuments stored(base);
  for (const size_t index : chosen) {
    const uint64_t first = kv.documents().offsets[index], count = kv.documents().length(index);
    const std::string_view name = kv.documents().names[index];
    const auto positions = kv.positions(first, count);
    bool continues =
        base && job.pieces.empty() && documents.count() > 0 && documents.names.back() == name && count > 0;
    if (continues && documents.length(documents.count() - 1) > 0)
      continues = positions.front() == base->positions(documents.tokens() - 1, 1).front() + 1;
    const auto tokens = kv.has_tokens() ? kv.tokens(first, count) : std::vector<uint32_t>();
    if (!continues && kv.has_tokens() && stored.has(name, tokens, positions)) {
      job.stored_before.emplace_back(name);
      continue;
    }
    std::vector<uint64_t> left_out;
    if (!kv.documents().whole()) left_out = kv.documents().left_out[index];
    if (continues &&
        std::ranges::any_of(left_out, [](uint64_t count_left_out) { return count_left_out > 0; }))
      throw bad_input(
          "{}: document '{}' goes on with that of {}, and some layers leave out tokens in between; dump it without "
          "--window-layers trim",
          kv.name(), name, base->name());
    const DocumentFacts facts = kv.documents().facts_of(index);
    if (continues)
      documents.extend_last(count, continued(*base, facts, tokens));
    else
      documents.add(name, count, left_out, facts);
    job.pieces.push_back({first, count, documents.count() - 1, index});
    job.positions.insert(job.positions.end(), positions.begin(), positions.end());
    job.tokens.insert(job.tokens.end(), tokens.begin(), tokens.end());
  }
  job.surveyed = job.pieces;
  return job;
}

/// The pieces that a command without --shard would encode.
std::vector<Job::Piece> whole_pieces(const KvReader& kv, const std::vector<size_t>& chosen) {
  std::vector<Job::Piece> pieces;
  pieces.reserve(chosen.size());
  for (const size_t index : chosen)
    pieces.push_back({kv.documents().offsets[index], kv.documents().length(index), pieces.size(), index});
  return pieces;
}

/// Runs the codec over all pieces, chunk by chunk. Groups and sides one after the other: the writer holds one
/// at a time.
class CodecRun {
 public:
  /// info: of the codes. documents_before: how many documents the codes have already; the first piece may continue the last of
  /// them.
  CodecRun(const KvReader& kv, const CodesInfo& info, const Codec& codec, const Job& job,
           size_t documents_before, CodesWriter& writer, uint64_t budget, ProgressBar& bar)
      : kv_(kv),
        info_(info),
        codec_(codec),
        job_(job),
        documents_before_(documents_before),
        writer_(writer),
        budget_(budget),
        bar_(bar) {
    tokens_ = tokens_of(job.pieces);
    for (const auto* pieces : {&job.pieces, &job.surveyed})
      for (const Job::Piece& piece : *pieces) longest_ = std::max(longest_, piece.count);
  }

  void run(const std::vector<int>& groups) {
    for (const int group : groups) sides_ += info_.sides(group).size();
    for (const int group : groups)
      for (const Side side : info_.sides(group)) {
        run_side(side, group);
        ++sides_done_;
      }
  }

 private:
  /// The tokens of pieces that a layer holds.
  std::vector<Job::Piece> held(std::vector<Job::Piece> pieces, int layer) const {
    for (Job::Piece& piece : pieces) {
      const uint64_t left_out = kv_.documents().left_out_of(layer, piece.source);
      piece.first += left_out, piece.count -= left_out;
    }
    return pieces;
  }

  /// The pieces that are surveyed before piece i is appended: none, itself, or all that new shared streams are made from.
  std::span<const Job::Piece> surveyed_before(const GroupShape& shape, size_t i) const {
    const auto pieces = std::span(pieces_);
    switch (codec_.survey_scope(shape)) {
      case SurveyScope::none:
        break;
      case SurveyScope::file:
        return std::span(surveyed_).first(i == 0 && documents_before_ == 0 ? surveyed_.size() : 0);
      case SurveyScope::document:
        return pieces.subspan(i, pieces[i].document >= documents_before_ ? 1 : 0);
    }
    return {};
  }

  static uint64_t tokens_of(std::span<const Job::Piece> pieces) {
    uint64_t tokens = 0;
    for (const auto& piece : pieces) tokens += piece.count;
    return tokens;
  }

  /// One side of one group: surveys where the codec wants it, and appends.
  void run_side(Side side, int group) {
    const GroupShape shape = group_shape(kv_.model(), group, codec_.layer_group(), side);
    pieces_ = held(job_.pieces, group);
    surveyed_ = held(job_.surveyed, group);
    const uint64_t own_tokens = tokens_of(pieces_);
    uint64_t surveyed_tokens = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) surveyed_tokens += tokens_of(surveyed_before(shape, i));
    done_ = 0, planned_ = own_tokens;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      StreamStore& document = writer_.document(side, group, pieces_[i].document);
      if (const auto pieces = surveyed_before(shape, i); !pieces.empty()) {
        const auto survey = codec_.survey(shape);
        planned_ =
            own_tokens +
            surveyed_tokens * static_cast<uint64_t>(survey->passes());  // all surveys of a side have as many
        run_survey(*survey, codec_.surveyed(shape), pieces, document);
      }
      for_each_chunk(shape, pieces_[i],
                     [&](MatrixView<const float> rows) { codec_.append(shape, rows, document); });
    }
  }

  void run_survey(Survey& survey, const GroupShape& shape, std::span<const Job::Piece> pieces,
                  StreamStore& document) {
    for (int pass = 0; pass < survey.passes(); ++pass) {
      for (const auto& piece : pieces) {
        show_queries(survey, shape, piece);
        if (codec_.predicts_from() > 0) survey.observe_ids(kv_.tokens(piece.first, piece.count));
        show(survey, shape, piece);
        survey.end_document();
      }
      survey.end_pass();
    }
    survey.finish(document);
  }

  /// Reads what the survey looks at of a piece.
  void show(Survey& survey, const GroupShape& shape, const Job::Piece& piece) {
    for (uint64_t first = 0; first < piece.count;) {
      const Survey::Look look = survey.look(piece.count - first);
      Job::Piece shown = piece;
      shown.first += first + look.skipped;
      shown.count = look.shown;
      done_ += look.skipped;
      for_each_chunk(shape, shown, [&](MatrixView<const float> rows) { survey.observe(rows); });
      first += look.skipped + look.shown;
    }
  }

  /// The queries of a piece's tokens, if the codec wants them and there are any.
  void show_queries(Survey& survey, const GroupShape& shape, const Job::Piece& piece) {
    if (!codec_.wants_queries() || kv_.query_tokens() == 0) return;
    if (queries_layer_ != shape.first_layer) {
      queries_ = kv_.queries(shape.first_layer);
      queries_layer_ = shape.first_layer;
    }
    if (!queries_) return;
    const auto& rows = queries_->token_rows;
    const auto begin = std::ranges::lower_bound(rows, piece.first);
    const auto end = std::ranges::lower_bound(rows, piece.first + piece.count);
    std::vector<uint64_t> tokens(begin, end);
    for (uint64_t& token : tokens) token -= piece.first;
    const size_t width = rows.empty() ? 0 : queries_->values.size() / rows.size();
    survey.observe_queries(
        tokens,
        {queries_->values.data() + static_cast<size_t>(begin - rows.begin()) * width, tokens.size(), width});
  }

  template <class Body>
  void for_each_chunk(const GroupShape& shape, const Job::Piece& piece, const Body& body) {
    const size_t chunk =
        chunk_rows(budget_, shape.width() * sizeof(float) + codec_.scratch_bytes_per_row(shape));
    if (rows_.cols() != shape.width() || rows_.rows() < std::min<uint64_t>(chunk, longest_))
      rows_ = Matrix<float>(std::min<uint64_t>(chunk, longest_), shape.width());
    for (uint64_t first = 0; first < piece.count; first += chunk) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(chunk, piece.count - first));
      const auto part = rows_.view().rows(0, count);
      kv_.read(shape, piece.first + first, part);
      at_dataset(kv_.name(), shape.side, shape.first_layer, [&] { body(part); });
      done_ += count;
      const double share = static_cast<double>(done_) / static_cast<double>(planned_);
      const auto tokens = static_cast<double>(tokens_);
      bar_.update((static_cast<double>(sides_done_) + share) / static_cast<double>(sides_) * tokens, tokens);
    }
  }

  const KvReader& kv_;
  const CodesInfo& info_;
  const Codec& codec_;
  const Job& job_;
  size_t documents_before_;
  CodesWriter& writer_;
  uint64_t budget_;
  ProgressBar& bar_;
  Matrix<float> rows_;
  std::optional<KvReader::Queries> queries_;  // of queries_layer_
  int queries_layer_ = -1;
  std::vector<Job::Piece> pieces_;     // what the layers in work hold of all pieces
  std::vector<Job::Piece> surveyed_;   // and of those that are surveyed
  uint64_t tokens_ = 0;                // of all pieces
  uint64_t longest_ = 0;               // tokens of the longest piece
  size_t sides_ = 0, sides_done_ = 0;  // of all groups
  uint64_t done_ = 0, planned_ = 0;    // tokens read, over all passes of the side in work
};

/// Throws Error(bad_input) unless the tokens of the cache can follow those in the codes: model, type and token ids must fit.
void check_continues(const KvReader& kv, const CodesReader& base) {
  check_same_model(kv, base);
  if (kv.dtype() != base.info().source_dtype)
    throw bad_input("{}: the element type is {}; {} has {}", kv.name(), name_of(kv.dtype()), base.name(),
                    name_of(base.info().source_dtype));
  if (kv.has_tokens() != base.has_tokens() && base.info().documents.tokens() > 0)
    throw bad_input("{}: {} token ids; {} {}", kv.name(), kv.has_tokens() ? "has" : "has no", base.name(),
                    base.has_tokens() ? "has them" : "has none");
}

/// Makes the codec. An Error(bad_input) names the book's file, if there is one: it is about the book.
std::unique_ptr<Codec> make_codec(const CodecEntry& entry, const Options& options,
                                  const CodecContext& context, std::optional<RopeChoice> rope,
                                  const std::string& book_file) {
  try {
    return kvcodec::make_codec(entry, options, context, choose_rope(entry, rope, context));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::bad_input && !book_file.empty()) throw error.at(book_file);
    throw;
  }
}

/// The report of the command: a table of one row, or JSON.
std::string summary(const FileRate& rate, const std::string& target, const std::string& codec, double seconds,
                    const Job& job, bool json) {
  if (json) {
    Json result = {{"output", target}, {"seconds", seconds}};
    if (!job.stored_before.empty()) result["stored_before"] = job.stored_before;
    result.update(to_json(rate));
    return text_of(result);
  }
  Table table({{"codes"},
               {"codec"},
               {"tokens"},
               {"values"},
               {"16-bit"},
               {"file"},
               {"bits/value"},
               {"ratio"},
               {"with book"},
               {"break-even", "tokens"},
               {"time"}});
  table.row({target, codec, grouped(rate.ledger.tokens), grouped(rate.ledger.values),
             size_text(rate.raw_bytes()), size_text(rate.file_bytes),
             fmt::format("{:.3f}", rate.rate.bits_per_value), fmt::format("{:.2f}", rate.rate.ratio),
             fmt::format("{:.2f}", rate.rate.ratio_with_book), break_even_text(rate), time_text(seconds)});
  return table.text();
}

/// Whether a codec with an option `sink`, for keys or for values, keeps no first token exactly.
bool covers_first_tokens(const Record& parameters) {
  return std::ranges::any_of(parameters.items(), [](const auto& item) {
    const std::string_view name = item.first;
    return (name == "sink" || name.ends_with(".sink")) && item.second == Scalar(int64_t{0});
  });
}

/// The codes to be written: their CodesInfo, the codec, and the book or codes that it needs. Not copied or moved, as the
/// codec points to the book.
class Encoding {
 public:
  /// New codes of chosen layers and documents, by the codec named, with its options, or with those that reach the goal.
  Encoding(const KvReader& kv, const EncodeOptions& options, const NamedCodec& codec,
           const std::vector<size_t>& documents) {
    const CodecEntry& entry = *codec.entry;
    read_book_for(entry, options, kv);
    info.codec = entry.name;
    info.model = kv.model();
    info.source_dtype = kv.dtype();
    info.storage = kv.dtype() == DType::f32 ? DType::bf16 : kv.dtype();
    if (options.storage) info.storage = *options.storage;
    CodecContext context =
        context_of(info.model, kv.documents(), info.storage, book_ ? &book_->book : nullptr);
    context.engine = engine_for(entry, options.common.engine());
    if (!options.goal.given() || !allocates_bits(entry) || entry.capabilities.takes_weights)
      take_weights(options.weights, context);
    const auto make = [&](const Options& with) {
      return make_codec(entry, with, context, options.rope, options.book);
    };
    const auto layers = options.layers.choose(kv.layers(), kv.name());
    std::optional<Weights> weights;
    if (options.goal.given() && !options.weights.empty()) weights = read_weights(options.weights, info.model);
    if (options.goal.given())
      found = settle(options.goal,
                     {entry, kv, documents, layers, weights ? &*weights : nullptr, options.common, make},
                     *codec.options);
    made_ = make(*codec.options);
    if (entry.before_rope && !options.rope && !context.book && !context.rope.turns())
      options.common.note("keys go to {} as they are: {}", entry.name,
                          context.rope.known() ? "the model does not turn them" : context.rope.why_not());
    info.parameters = made_->parameters();
    if (!options.weights.empty() && covers_first_tokens(info.parameters))
      options.common.note(
          "{} does not cover first tokens, whose errors cost far more: keep the first one exact with --sink 1",
          options.weights);
    info.layer_group = made_->layer_group();
    info.joint = made_->joint();
    info.groups = options.layers.given()
                      ? whole_groups(layers, info.layer_group, ErrorKind::usage, "--layers")
                      : whole_groups(layers, info.layer_group, ErrorKind::bad_input, kv.name() + ": layers");
    info.packed = options.pack;
  }

  /// Codes that exist and grow.
  Encoding(const KvReader& kv, const EncodeOptions& options) : base_(std::in_place, options.append) {
    check_continues(kv, *base_);
    base_codec_.emplace(*base_, options.book, options.common.engine());
    info = base_->info();
    if (!base_codec_->entry().capabilities.appends)
      throw usage_error("{}: the codec {} cannot append", base_->name(), info.codec);
    if (!base_codec_->entry().capabilities.any_shape)
      check_one_shape(kv.name(), kv.model(), kv.documents(), info.codec.c_str());
    for (const int group : info.groups)
      for (int layer = group; layer < group + info.layer_group; ++layer)
        if (std::find(kv.layers().begin(), kv.layers().end(), layer) == kv.layers().end())
          throw bad_input("{}: there is no layer {}, which {} has; it has layers {}", kv.name(), layer,
                          base_->name(), ranges_text(kv.layers()));
  }

  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  CodesInfo info;
  std::string found;  ///< options that reach the goal, as they could be typed
  const CodesReader* base() const { return base_ ? &*base_ : nullptr; }
  /// Closes the codes that grow: base() is null afterwards, and their codec() is gone.
  void close_base() {
    base_codec_.reset();
    base_.reset();
  }
  const Codec& codec() const { return made_ ? *made_ : base_codec_->codec(); }

  std::unique_ptr<CodesWriter> make_writer(OutputFile& output, const Job& job, bool embed_book) const {
    if (base_) return std::make_unique<CodesWriter>(output, *base_, info, codec(), job.tokens, job.positions);
    return std::make_unique<CodesWriter>(output, info, codec(), job.tokens, job.positions,
                                         embed_book ? &book_->book : nullptr);
  }

  std::vector<std::string> history(const KvReader& kv) const {
    std::vector<std::vector<std::string>> histories;
    if (base_) histories.push_back(base_->type().history);
    histories.push_back(kv.type().history);
    if (book_) histories.push_back(book_->type.history);
    return merged_history(histories);
  }

 private:
  void read_book_for(const CodecEntry& entry, const EncodeOptions& options, const KvReader& kv) {
    if (entry.book_type.empty()) {
      if (!options.book.empty())
        throw usage_error("the codec {} takes no book; leave out --book", entry.name);
      if (options.embed_book) throw usage_error("the codec {} has no book to embed", entry.name);
      return;
    }
    if (options.book.empty())
      throw usage_error("the codec {} needs a {} file; name it with --book", entry.name, entry.book_type);
    book_ = read_book(options.book, entry.book_type, false);
    check_same_weights(options.book, book_->model, kv.name(), kv.model());
    info.book_type = entry.book_type;
    info.book_digest = book_->digest;
    info.book_bytes = book_->book.size_bytes();
  }

  std::optional<BookFile> book_;
  std::unique_ptr<Codec> made_;
  std::optional<CodesReader> base_;
  std::optional<CodecOfFile> base_codec_;
};

/// For --codec auto: the codec that reaches the goal best. Sets `options` as if it had been named with its options, and
/// `found` to these as words of a command line.
NamedCodec find_codec(const KvReader& kv, const std::vector<size_t>& documents, EncodeOptions& options,
                      std::string& found) {
  SearchOptions search{.goal = options.goal, .weights = options.weights};
  if (!options.book.empty()) search.books.push_back(options.book);
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  const SearchResult result =
      search_codecs(search, {kv, documents, documents, layers}, options.common, Stopwatch());
  const Attempt& chosen = result.chosen();
  const CodecEntry& entry = codec_named(chosen.codec);
  NamedCodec codec{&entry, entry.make_options()};
  from_record(*chosen.settings, *codec.options);
  options.book = chosen.book, options.weights = chosen.weights;
  if (options.book.empty()) options.embed_book = false;
  options.goal = {};
  found = fmt::format("--codec {}{}{}", chosen.codec, chosen.options.empty() ? "" : " ", chosen.options);
  options.common.note("{}: a sample of {} tokens takes {:.3f} bits per value, with {:.1f} dB", found,
                      result.tokens, *chosen.bits, *chosen.snr_db);
  return codec;
}

/// Throws Error(usage) for options that exclude each other or lack another.
void check_combination(const Command& command, const EncodeOptions& options) {
  if (options.codec == kAuto) {
    for (const char* of_one : {"preset", "storage", "rope"})
      if (command.given(of_one))
        throw usage_error("--codec {} tries codecs as they are by default; leave out --{}", kAuto, of_one);
    if (options.goal.quality || (options.goal.total_bits == 0 && options.goal.max_nll == 0))
      throw usage_error("--codec {} needs a goal: give --total-bits, or --max-nll with --model and --text",
                        kAuto);
  }
  if (options.append.empty() && options.codec.empty())
    throw usage_error("no codec is named; choose one with --codec: {}", fmt::join(codec_names(), ", "));
  if (!options.append.empty())
    for (const char* fixed : {"codec", "preset", "layers", "storage", "pack", "embed-book", "weights", "rope",
                              "shard", "total-bits", "quality", "max-nll", "resume"})
      if (command.given(fixed))
        throw usage_error("--append goes on as {} was made; leave out --{}", options.append, fixed);
}

NamedCodec declare(Command& command, EncodeOptions& options) {
  command.describe("KV --codec NAME[:key=value,...] [options] -o CODES",
                   "Compresses the keys and values of a cache (a kv file, as dump-kv makes it) and "
                   "writes a codes file. Every document is coded by itself and decodes by itself. "
                   "kvcodec info says what the bytes of the product are spent on.",
                   "kvcodec encode kv.h5 --codec sparse --book dict.h5 --sparsity 64 -o codes.h5\n"
                   "kvcodec encode kv.h5 --codec kivi:bits=2 -o kivi.h5\n"
                   "kvcodec encode kv.h5 --codec kvcomp:key-rel=0.3+kivi:bits=2 -o mixed.h5");
  command.group("Input and output");
  command.input("KV", "kv file; - is standard input", options.input);
  options.output.declare_with_skip(command, "codes file to write");
  options.resume.declare(command);
  options.layers.declare(command);
  options.documents.declare(command);
  options.shard.declare(command);
  command.group("Coding");
  command.options(
      options,
      {{"codec", "NAME[:key=value,...]"}, {"book", "FILE"}, {"weights", "FILE"}, {"append", "CODES"}});
  options.goal.declare(command);
  NamedCodec codec = declare_codec(command);
  options.common.declare(command);
  return codec;
}

/// The first names of a list, and how many more there are.
std::string names_text(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const auto shown = std::span(names).first(std::min(kShown, names.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

void note_missing_queries(const KvReader& kv, const Codec& codec, const CommonOptions& common) {
  if (const std::string instead = codec.without_queries();
      codec.wants_queries() && !instead.empty() && kv.query_tokens() == 0)
    common.note("{} has no queries: {} (see dump-kv --queries)", kv.name(), instead);
}

/// Notes that the cache takes many more bits than what the book was learned from: it is unlike that, and loses more too.
void note_unlike_book(const CodesReader& codes, const FileRate& rate, const KvReader& kv, const Codec& codec,
                      const CommonOptions& common) {
  const auto learned = codec.learned_rate();
  if (!learned) return;
  uint64_t bytes = 0;
  for (const Side side : codes.info().sides())
    for (const int group : codes.info().groups)
      for (const StoredStream& stream : codes.streams(side, group))
        if (std::ranges::count(learned->streams, stream.spec.name) > 0) bytes += stream.bytes;
  const double taken = bits_per_value(rate.ledger.values, bytes);
  if (taken > kUnlike * learned->bits)
    common.note(
        "{} takes {:.2f} bits per value where what the book was learned from took {:.2f}: it is of another kind, "
        "and loses more. A book learned from a mixture takes fewer",
        kv.name(), taken, learned->bits);
}

/// Notes on a file that is larger than its codec's options suggest (rate_remark).
void note_rate(const FileRate& rate, const std::string& target, const CommonOptions& common) {
  const std::string what = rate_remark(rate);
  if (!what.empty()) common.note("{}: {}", target, what);
}

/// Reads back what was written and decodes all of it, as kvcodec decode would: from the file and its book alone. Throws
/// Error(failed) if that fails.
void verify_codes(const CodesReader& codes, const EncodeOptions& options, const std::string& target) {
  try {
    codes.check_parts([](uint64_t) {}, [](const Error& fault) { throw Error(fault); });
    const CodecOfFile codec(codes, options.embed_book ? std::string() : options.book);
    ProgressBar bar("verify", "%", options.common.quiet);
    decode_all(codes, codec.codec(), chunk_budget(options.common.memory_bytes(), codes.info().book_bytes),
               [&](double done) { bar.update(100 * done, 100); });
  } catch (const Error& error) {
    throw failed("{}: --verify failed, and the output is discarded: {}", target, error.what());
  }
}

/// Writes the codes.
void write_codes(const Command& command, const EncodeOptions& options, const KvReader& kv,
                 const Encoding& encoding, const Job& job, OutputFile& output, ProgressBar& bar) {
  const auto writer = encoding.make_writer(output, job, options.embed_book);
  CodecRun run(kv, encoding.info, encoding.codec(), job,
               encoding.base() ? encoding.base()->info().documents.count() : 0, *writer,
               chunk_budget(options.common.memory_bytes(), encoding.info.book_bytes), bar);
  run.run(encoding.info.groups);
  writer->finish(command.provenance(encoding.history(kv)));
}

/// With --resume: writes the codes of these documents of the cache in pieces, of which some may be there.
Pieces write_in_pieces(const Command& command, const EncodeOptions& options, const KvReader& kv,
                       Encoding& encoding, const std::vector<size_t>& documents, const Job& whole,
                       OutputFile& output) {
  uint64_t of_token = 0;
  for (const int layer : kv.layers()) of_token += kv.model().layer_shape(layer).width() * size_of(kv.dtype());
  std::vector<uint64_t> bytes;
  bytes.reserve(documents.size());
  for (const size_t document : documents) bytes.push_back(kv.documents().length(document) * of_token);
  const auto numbers_of = [&](const WorkRange& items) {
    return std::vector<size_t>(documents.begin() + static_cast<ptrdiff_t>(items.first),
                               documents.begin() + static_cast<ptrdiff_t>(items.end));
  };
  std::vector<Piece> wanted;
  for (const WorkRange& items : cut_work(bytes, options.resume.piece_bytes())) {
    Piece& piece = wanted.emplace_back(Piece{items, {}});
    for (const size_t number : numbers_of(items)) piece.documents.add(kv.documents(), number);
  }
  Pieces pieces(command, options.common, options.output, {options.input, options.book, options.weights},
                kv.model(), std::move(wanted));
  ProgressBar bar("encode", "tokens", options.common.quiet);
  pieces.write(
      [&](const WorkRange& items, OutputFile& piece) {
        encoding.info.documents = {};
        Job job = make_job(kv, numbers_of(items), nullptr, encoding.info.documents);
        job.surveyed = whole.surveyed;
        write_codes(command, options, kv, encoding, job, piece, bar);
      },
      bar, output);
  return pieces;
}

/// Verifies the product if --verify asks for it, writes notes on its rate, and returns that rate.
FileRate judge(const EncodeOptions& options, const KvReader& kv, const Encoding& encoding,
               const OutputFile& output) {
  const CodesReader codes(output.path());
  if (options.verify) verify_codes(codes, options, output.target());
  FileRate rate = rate_of(codes);
  note_unlike_book(codes, rate, kv, encoding.codec(), options.common);
  note_rate(rate, options.output.path, options.common);
  return rate;
}

}  // namespace

std::string encode(Command& command) {
  EncodeOptions options;
  NamedCodec codec = declare(command, options);
  command.parse();
  check_combination(command, options);
  if (codec.entry) take_word(command, codec, options);
  if (options.codec == kAuto)
    SearchOptions{.goal = options.goal}.check_goal();
  else
    options.goal.check_goal();
  if (codec.entry) check_goal_fits(command, options.goal, *codec.entry, options.codec);
  check_inputs({options.input, options.book, options.weights, options.append});
  if (options.output.path.empty()) options.output.path = options.append, options.output.in_place = true;
  options.output.check(options.common);
  options.output.keep({options.input, options.book, options.weights});
  options.resume.check(command, options.output, {options.input});
  options.common.apply(command, true);
  if (codec.entry) codec.options->check();
  const Shard shard = options.shard.shard();
  if (std::string report; options.output.made_before(command, options.common,
                                                     {options.input, options.book, options.weights}, report))
    return report;

  const Stopwatch watch;
  const KvReader kv(options.input);
  const auto documents = options.documents.choose(kv.documents(), kv.name());
  const auto held = options.output.hold(options.append, options.common);
  std::optional<Encoding> encoding;
  std::string found;
  if (options.codec == kAuto) codec = find_codec(kv, documents, options, found);
  if (codec.entry)
    encoding.emplace(kv, options, codec, documents);
  else
    encoding.emplace(kv, options);
  if (found.empty()) found = encoding->found;
  if (!found.empty()) command.add_to_history("(found: " + found + ")");
  const auto own = shard.among(kv.documents(), documents);
  Job job = make_job(kv, own, encoding->base(), encoding->info.documents);
  if (options.shard.given()) job.surveyed = whole_pieces(kv, documents);
  check_token_ids(kv, encoding->codec());
  if (!job.stored_before.empty())
    options.common.note("{} has {} of these already, with the same token ids, and keeps them as they are: {}",
                        options.append, counted(job.stored_before.size(), "document"),
                        names_text(job.stored_before));
  note_missing_queries(kv, encoding->codec(), options.common);
  const bool in_place =
      held && held->changeable() && CodesWriter::can_change_in_place(*encoding->base(), job.positions);
  std::optional<Pieces> pieces;
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        if (options.resume.resume && !own.empty()) {
          pieces = write_in_pieces(command, options, kv, *encoding, own, job, output);
        } else {
          ProgressBar bar("encode", "tokens", options.common.quiet);
          write_codes(command, options, kv, *encoding, job, output, bar);
        }
        FileRate rate = judge(options, kv, *encoding, output);
        encoding->close_base();
        return rate;
      },
      [&](const FileRate& rate) {
        if (pieces) pieces->remove();
        return summary(rate, options.output.path, encoding->info.codec, watch.seconds(), job,
                       options.common.json);
      },
      held.get(), in_place);
}

}  // namespace kvcodec::cli
