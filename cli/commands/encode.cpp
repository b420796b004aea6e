// kvcodec encode KV --codec NAME[:key=value,...] [options] -o CODES
#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/encode/attention_note.hpp"
#include "cli/encode/encode_job.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/resume.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/search/attention_judge.hpp"
#include "cli/search/codec_search.hpp"
#include "cli/search/goal.hpp"
#include "lib/codec/layer_weights.hpp"

namespace kvcodec::cli {
namespace {

/// The word for --codec that leaves the choice to kvcodec.
constexpr std::string_view kAuto = "auto";

struct EncodeOptions final : CommandOptions {
  std::string input, codec, book, weights, append;
  std::optional<DType> storage;
  std::optional<RopeChoice> rope;
  Preset preset = Preset::best;
  bool embed_book = false, verify = false;
  Additions additions;
  bool pack = true;  ///< lossless, and takes hardly any time
  GoalOptions goal;
  ShardOption shard;
  ResumeOptions resume;

  std::vector<OptionField> fields() override {
    return {
        {"codec",
         fmt::format(
             "how to compress: {}; its options, which stand below, may also follow a colon, as "
             "kivi:bits=2,window=32. Two with a + between them, as kvcomp:key-rel=0.3+kivi:bits=2, code keys "
             "and values apart. auto: the codec and the options that reach --total-bits or --max-nll "
             "best, as kvcodec choose finds them",
             fmt::join(codec_names(), ", ")),
         &codec},
        preset_field(preset),
        {"book", "file of the dictionary, codebooks or transform that the codec needs", &book},
        {"weights",
         "sensitivity file: errors of layers and sides that cost the model more are kept smaller; for "
         "kvcomp with --max-error or a goal, for kivi and q4 with a goal (books bring their own: see "
         "train-dict, train-rvq and train-transform)",
         &weights},
        {"embed-book", "put the book into the output, which then decodes by itself", &embed_book},
        {"pack",
         "store ids in 8, 16 or 32 bits each; by default they take as few as they need, as pack-indices "
         "stores them",
         &pack},
        {"verify", "read the output back, verify its digests and decode all of it before it takes its place",
         &verify},
        {"append",
         "start from these codes and add the documents of KV to them, with the codec and the options they were "
         "made with. Without -o the codes are changed in place",
         &append},
        additions.replace_field(),
        additions.continue_field(
            "a first document that has the name of the last one stored, and goes on at the next "
            "position, continue that one"),
        {.name = "storage",
         .help =
             "16-bit type of tokens that a codec keeps exactly (default: the type of KV; of f32, which only none "
             "and lossless keep, bf16)",
         .target = &storage,
         .choices = {"bf16", "f16"}},
        {"rope",
         "undo: give the codec keys from before the rotary embedding, turned back by their index in the "
         "document; decoding turns them forward again (default: keep them as they are, or as the "
         "book was trained)",
         &rope},
    };
  }
};

/// The codec that --codec names, and its options, bound to the command line. Both are null if it names none.
struct NamedCodec {
  const CodecEntry* entry = nullptr;
  std::unique_ptr<Options> options;
};

/// Binds the options of both codecs. An option without its side is refused with a message that names the two.
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
  Preset preset = Preset::best;  // read before parsing, because the defaults of options follow from it
  if (const std::string asked = command.peek("preset"); !asked.empty())
    set_from_text(preset_field(preset), "--preset", asked);
  preset = chosen.entry ? preset_in(word, preset) : Preset::best;
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

/// Sets the options after the colon in the value of --codec: those of the codec, book, weights, rope, preset and goals.
void take_word(const Command& command, const NamedCodec& codec, EncodeOptions& options) {
  auto fields = codec.options->fields();
  fields.push_back({"book", "", &options.book});
  fields.push_back({"weights", "", &options.weights});
  fields.push_back({"rope", "", &options.rope});
  fields.push_back({"preset", "", &options.preset});
  with_context(fmt::format("--codec {}", options.codec), [&] {
    for (const OptionField& field : options.goal.fields()) fields.push_back(field);
    set_keys(options.codec, codec.entry->name, fields);
    for (const std::string& key : keys_of(options.codec))
      if (command.given(key)) throw usage_error("{} is given here and as --{}", key, key);
  });
}

/// Throws Error(usage) for options that exclude each other or lack another.
void check_combination(const Command& command, const EncodeOptions& options) {
  if (options.codec == kAuto) {
    for (const char* of_one : {"preset", "storage", "rope"})
      if (command.given(of_one))
        throw usage_error("--codec {} tries codecs as they are by default; leave out --{}", kAuto, of_one);
    if (options.goal.quality || !options.goal.given())
      throw usage_error("--codec {} needs a goal: give --total-bits, or --max-nll with --model and --text",
                        kAuto);
  }
  if (options.append.empty() && options.codec.empty())
    throw usage_error("no codec is named; choose one with --codec: {}", fmt::join(codec_names(), ", "));
  options.additions.check(command, !options.append.empty(), "the last one");
  if (!options.append.empty())
    for (const char* fixed : {"codec", "preset", "layers", "storage", "pack", "embed-book", "weights", "rope",
                              "shard", "total-bits", "quality", "max-nll", "resume"})
      if (command.given(fixed))
        throw usage_error("--append goes on as {} was made; leave out --{}", options.append, fixed);
}

/// Declares all options of the command, including those of the codec that the command line names.
NamedCodec declare(Command& command, EncodeOptions& options) {
  command.describe("KV --codec NAME[:key=value,...] [options] -o CODES",
                   "Compresses the keys and values of a cache (a kv file, as dump-kv makes it) and "
                   "writes a codes file. Every document is coded by itself and decodes by itself. "
                   "kvcodec info says what the bytes of the output are spent on.",
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

/// A cache that takes more than this many times the bits of a book's training data is of another kind: other novels take 1.1 times
/// as many, technical prose and code at least 1.6.
constexpr double kUnlike = 1.4;

/// Changes of values that an encoding makes beyond those of its codec.
struct Losses {
  std::optional<DType> rounded_to;  ///< where a codec that keeps every bit keeps those of another type
  uint64_t clipped = 0;             ///< Codec::clipped()
};

/// The price of a search for a goal, for JSON; nothing without one.
Measures price_measures(const SearchPrice& price) {
  if (price.tries == 0) return {};
  return {{"search_tries", price.tries}, {"search_coded_values", price.coded_values}};
}

/// of_file: facts of the written file, for JSON.
std::string summary(const FileRate& rate, const EncodeOptions& options, double seconds, const Losses& losses,
                    const Measures& of_file) {
  if (options.common.json) {
    Json result = {{"output", options.output.path}, {"seconds", seconds}};
    if (losses.rounded_to) result["rounded_to"] = name_of(*losses.rounded_to);
    if (losses.clipped > 0) result["clipped_values"] = losses.clipped;
    result.update(json_of(of_file));
    result.update(to_json(rate));
    return text_of(result);
  }
  return one_row(
      {word(nullptr, {"codes"}, options.output.path), word(nullptr, {"codec"}, rate.codec),
       number_of(nullptr, {"tokens"}, rate.ledger.tokens), number_of(nullptr, {"values"}, rate.ledger.values),
       word(nullptr, {"16-bit"}, size_text(rate.raw_bytes())),
       word(nullptr, {"file"}, size_text(rate.file_bytes)),
       decimal(nullptr, {"bits/value"}, rate.rate.bits_per_value, 3),
       decimal(nullptr, {"ratio"}, rate.rate.ratio, 2),
       decimal(nullptr, {"with book"}, rate.rate.ratio_with_book, 2),
       word(nullptr, {"break-even", "tokens"}, break_even_text(rate)), time_measure(seconds)},
      false);
}

/// The cache, and the settings of its codes: their CodesInfo, the codec, and the book or codes that it points to.
struct Encoding {
  const Command& command;
  EncodeOptions& options;
  const KvReader& kv;
  CodesInfo info = {};
  std::string found = {};  ///< options that reach the goal, as they could be typed
  SearchPrice price = {};  ///< of finding them
  double judged_bits = 0;  ///< bits per value of the text that a loss was measured on; 0: none was
  std::optional<BookFile> book = {};
  std::unique_ptr<Codec> made = {};
  std::optional<CodesReader> grown = {};        ///< codes that grow; closed at the end
  std::optional<CodecOfFile> grown_codec = {};  ///< likewise

  const Codec& codec() const { return made ? *made : grown_codec->codec(); }
  bool apart = false;  ///< new documents do not follow those of the grown codes in their file
  const CodesReader* base() const { return grown && !apart ? &*grown : nullptr; }
};

/// Notes codecs that weight errors but keep no first token exactly: weights do not cover it.
void note_first_tokens(const CodecEntry& entry, const Record& parameters, const Book* book,
                       const EncodeOptions& options) {
  const Scalar* normalize = book ? book->parameters.find("normalize") : nullptr;
  const bool weighed = book && (book->parameters.find(kErrorScales) ||
                                (normalize && *normalize == Scalar(std::string("weights"))));
  const auto note = [&](const CodecEntry& codec, std::string_view prefix) {
    const Scalar* sink = parameters.find(fmt::format("{}sink", prefix));
    if (!sink || *sink != Scalar(int64_t{0})) return;
    const std::string advice = fmt::format(
        "first tokens, whose errors cost far more: keep the first one exact with --{}sink 1", prefix);
    if (!codec.book_type.empty()) {
      if (weighed)
        options.common.note("{} was learned with weights, which do not cover {}", options.book, advice);
    } else if (!options.weights.empty()) {
      options.common.note("{} does not cover {}", options.weights, advice);
    }
  };
  if (!entry.is_pair()) return note(entry, "");
  for (const Side side : kSides) note(entry.of(side), pair_prefix(side));
}

void read_book_for(const CodecEntry& entry, Encoding& encoding) {
  const EncodeOptions& options = encoding.options;
  if (entry.book_type.empty()) {
    if (!options.book.empty()) throw usage_error("the codec {} takes no book; leave out --book", entry.name);
    if (options.embed_book) throw usage_error("the codec {} has no book to embed", entry.name);
    return;
  }
  if (options.book.empty())
    throw usage_error("the codec {} needs a {} file; name it with --book", entry.name, entry.book_type);
  encoding.book = read_book(options.book, entry.book_type, false);
  check_same_weights(options.book, encoding.book->model, encoding.kv.name(), encoding.kv.model());
  encoding.info.book_type = entry.book_type;
  encoding.info.book_digest = encoding.book->digest;
  encoding.info.book_bytes = encoding.book->book.size_bytes();
  if (encoding.book->book.program && options.embed_book)
    throw usage_error("{}: a program is not embedded, since one that lies in a file is never run",
                      options.book);
}

/// The type to which values are rounded before a codec keeps every bit of them, with a note; std::nullopt if there is no such codec, or
/// the cache has that type.
std::optional<DType> round_for(const CodecEntry& entry, const Encoding& encoding) {
  const DType from = encoding.kv.dtype(), to = encoding.info.storage;
  if (from == to ||
      !std::ranges::any_of(kSides, [&](Side side) { return entry.of(side).capabilities.lossless; }))
    return std::nullopt;
  encoding.options.common.note("{}: its values, {}, are rounded to {}, which {} keeps bit for bit",
                               encoding.kv.name(), name_of(from), name_of(to), entry.name);
  return to;
}

/// Quantized blocks that one side of a cache may come from.
struct BlockKind {
  Side side;
  ValueBlocks blocks;
  PairOrder pairs = PairOrder::halves;
};

/// True if all values of the side come from such blocks, and not all are 0.
bool come_from_blocks(const Encoding& encoding, const std::vector<size_t>& documents,
                      const std::vector<int>& layers, const BlockKind& kind) {
  const auto& [side, wanted, pairs] = kind;
  const KvReader& kv = encoding.kv;
  ProgressBar bar(fmt::format("look for {}", wanted.name()), "layers", encoding.options.common.quiet);
  constexpr uint64_t kPiece = 256;
  const BlockLayout block = wanted.layout();
  bool some = false;
  for (size_t l = 0; l < layers.size(); ++l) {
    const int layer = layers[l];
    if (side == Side::value && kv.model().layer_shape(layer).values_in_keys) continue;
    const GroupShape shape = group_shape(kv.model(), {layer}, side);
    if (shape.width() % block.values != 0) return false;
    for (const size_t document : documents) {
      const uint64_t end = kv.documents().offsets[document + 1];
      for (uint64_t at = end - kv.documents().held(layer, document); at < end; at += kPiece) {
        Matrix<float> rows(static_cast<size_t>(std::min(kPiece, end - at)), shape.width());
        kv.read(shape, at, rows.view());
        const std::span<float> values(rows.data(), rows.size());
        if (pairs == PairOrder::neighbours) order_pairs(pairs, shape.dims(), values);
        std::vector<std::byte> blocks(values.size() / block.values * block.bytes);
        if (!wanted.quantize_exactly(values, blocks)) return false;
        some = some || std::ranges::any_of(values, [](float value) { return value != 0; });
      }
    }
    bar.update(static_cast<double>(l + 1), static_cast<double>(layers.size()));
  }
  return some;
}

/// Sets CodecContext::blocks and key_pairs to what the chosen layers and documents come from.
void find_blocks(const CodecEntry& entry, const Encoding& encoding, const std::vector<size_t>& documents,
                 const std::vector<int>& layers, CodecContext& context) {
  if (encoding.info.storage != DType::f32) return;
  for (const Side side : kSides) {
    if (!entry.of(side).capabilities.keeps_blocks) continue;
    std::vector<BlockKind> kinds;
    for (const ValueBlocks& blocks : ValueBlocks::all()) kinds.push_back({side, blocks});
    // llama.cpp cut keys of some models in blocks while their pairs lay side by side (formats/INTEROP.md).
    if (side == Side::key)
      for (const TensorType type : kQuantizers) kinds.push_back({side, type, PairOrder::neighbours});
    const auto found = std::ranges::find_if(
        kinds, [&](const BlockKind& kind) { return come_from_blocks(encoding, documents, layers, kind); });
    if (found == kinds.end()) continue;
    context.blocks[side == Side::value] = found->blocks;
    if (side == Side::key) context.key_pairs = found->pairs;
  }
}

/// Throws Error(bad_input) if layers that are coded together do not hold the same tokens.
void check_groups_held(const KvReader& kv, const CodesInfo& info) {
  const Documents& documents = kv.documents();
  for (const int group : info.groups)
    for (const int layer : info.layers_of(group))
      for (size_t i = 0; i < documents.count(); ++i)
        if (documents.held(layer, i) != documents.held(group, i))
          throw bad_input(
              "{}: layers {} and {} hold other tokens, as windows leave out some, and the {} codes them "
              "together: learn one from such a cache",
              kv.name(), group, layer, info.book_type);
}

/// New codes of chosen layers and documents, by the named codec with its options, or with those that reach the goal.
void begin_codes(const NamedCodec& codec, const std::vector<size_t>& documents, Encoding& encoding) {
  const CodecEntry& entry = *codec.entry;
  const EncodeOptions& options = encoding.options;
  const KvReader& kv = encoding.kv;
  CodesInfo& info = encoding.info;
  read_book_for(entry, encoding);
  const Book* const book = encoding.book ? &encoding.book->book : nullptr;
  info.codec = entry.name;
  info.model = kv.model();
  info.source_dtype = kv.dtype();
  info.storage = kv.dtype() == DType::f32 && !entry.capabilities.lossless ? DType::bf16 : kv.dtype();
  if (options.storage) info.storage = *options.storage;
  CodecContext context = context_of(info.model, info.storage, book);
  context.engine = coding_engine(entry, options.common);
  std::optional<Weights> weights;
  if (!options.weights.empty()) weights = read_weights(options.weights, info.model, kv.name());
  if (weights && (!options.goal.given() || !allocates_bits(entry) || entry.capabilities.takes_weights))
    context.weights = weights->by_layer();
  const auto make = [&](const Options& with) {
    try {
      return make_codec(entry, with, context, choose_rope(entry, options.rope, context));
    } catch (const Error& error) {  // it is about the book, if there is one
      const bool named = std::string_view(error.what()).starts_with(options.book + ": ");
      throw error.kind() == ErrorKind::bad_input && book && !named ? error.at(options.book) : error;
    }
  };
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  find_blocks(entry, encoding, documents, layers, context);
  if (options.goal.given()) {
    const Samples samples({kv, documents, documents, layers}, options.goal, options.common);
    const FoundOptions found = settle(options.goal, {entry, weights ? &*weights : nullptr, make, samples},
                                      options.common, *codec.options);
    encoding.found = found.words, encoding.price = found.price;
    if (found.loss) encoding.judged_bits = found.loss->bits;
  }
  encoding.made = make(*codec.options);
  if (entry.before_rope && !options.rope && !context.book && !context.rope.turns())
    options.common.note("keys go to {} as they are: {}", entry.name,
                        context.rope.known() ? "the model does not turn them" : context.rope.why_not());
  info.parameters = encoding.made->parameters();
  note_first_tokens(entry, info.parameters, book, options);
  info.joint = encoding.made->joint();
  const GroupOf group_of = groups_by(*encoding.made);
  info.set_groups(options.layers.given()
                      ? whole_groups(layers, group_of, ErrorKind::usage, "--layers")
                      : whole_groups(layers, group_of, ErrorKind::bad_input, kv.name() + ": layers"));
  check_groups_held(kv, info);
  info.packed = options.pack;
}

/// Existing codes that grow.
void continue_codes(Encoding& encoding) {
  const EncodeOptions& options = encoding.options;
  const KvReader& kv = encoding.kv;
  const CodesReader& base = encoding.grown.emplace(options.append);
  const CodesInfo& info = encoding.info = base.info();
  // Tokens of the cache must be a valid continuation of those in the codes.
  check_same_model(kv.name(), kv.model(), base.name(), base.info().model);
  if (kv.dtype() != base.info().source_dtype)
    throw bad_input("{}: the element type is {}; {} has {}", kv.name(), name_of(kv.dtype()), base.name(),
                    name_of(base.info().source_dtype));
  if (kv.has_tokens() != base.has_tokens() && base.info().documents.tokens() > 0)
    throw bad_input("{}: {} token ids; {} {}", kv.name(), kv.has_tokens() ? "has" : "has no", base.name(),
                    base.has_tokens() ? "has them" : "has none");
  encoding.grown_codec.emplace(base, options.book, coding_engine(codec_entry(base), options.common));
  if (!encoding.grown_codec->entry().capabilities.appends)
    throw usage_error("{}: the codec {} cannot append", base.name(), info.codec);
  for (const int layer : stored_layers(info))
    if (std::find(kv.layers().begin(), kv.layers().end(), layer) == kv.layers().end())
      throw bad_input("{}: there is no layer {}, which {} has; it has layers {}", kv.name(), layer,
                      base.name(), ranges_text(kv.layers()));
  check_groups_held(kv, info);
}

/// For --codec auto: the codec that reaches the goal best. Sets the options as if it had been named with them.
NamedCodec find_codec(const std::vector<size_t>& documents, Encoding& encoding) {
  EncodeOptions& options = encoding.options;
  const KvReader& kv = encoding.kv;
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
  encoding.found =
      fmt::format("--codec {}{}{}", chosen.codec, chosen.options.empty() ? "" : " ", chosen.options);
  options.common.note("{}: a sample of {} tokens takes {:.3f} bits per value, with {:.1f} dB", encoding.found,
                      result.tokens, *chosen.bits, chosen.attention_db.value_or(*chosen.snr_db));
  return codec;
}

/// Notes that the cache takes many more bits than the data from which the book was learned: it differs from them, and also loses more.
void note_unlike_book(const CodesReader& codes, const FileRate& rate, const Encoding& encoding) {
  const auto learned = encoding.codec().learned_rate();
  if (!learned) return;
  uint64_t bytes = 0;
  for (const Side side : codes.info().sides())
    for (const int group : codes.info().groups)
      for (const StoredStream& stream : codes.streams(side, group))
        if (std::ranges::count(learned->streams, stream.spec.name) > 0) bytes += stream.bytes;
  const double taken = bits_per_value(rate.ledger.values, bytes);
  if (taken > kUnlike * learned->bits)
    encoding.options.common.note(
        "{} takes {:.2f} bits per value where what the book was learned from took {:.2f}: it is of another kind, "
        "and loses more. A book learned from a mixture takes fewer",
        encoding.kv.name(), taken, learned->bits);
}

/// A cache that takes more than this many times the bits of the text that a loss was measured on, or fewer by it, is of another kind.
constexpr double kFarRate = 1.1;

void note_far_from_judged(const FileRate& rate, const Encoding& encoding) {
  const double taken = bits_per_value(rate.ledger.values, rate.stream_bytes), judged = encoding.judged_bits;
  if (judged > 0 && std::max(taken, judged) > kFarRate * std::min(taken, judged))
    encoding.options.common.note(
        "{} takes {:.2f} bits per value where the text that the loss is measured on takes {:.2f}: it is of another kind, and "
        "its loss may be another",
        encoding.kv.name(), taken, judged);
}

/// Reads the written file and decodes all of it, like kvcodec decode: using only the file and its book. Throws Error(failed) if
/// that fails.
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

/// Runs the codec over all pieces, chunk by chunk. Groups and sides come one after the other, because the writer holds one at a
/// time.
class CodecRun {
 public:
  CodecRun(const Encoding& encoding, const Job& job, CodesWriter& writer, ProgressBar& bar)
      : encoding_(encoding),
        job_(job),
        writer_(writer),
        bar_(bar),
        budget_(chunk_budget(encoding.options.common.memory_bytes(), encoding.info.book_bytes)) {
    if (encoding.base()) documents_before_ = encoding.base()->info().documents.count();
    tokens_ = tokens_of(job.pieces);
    for (const auto* pieces : {&job.pieces, &job.surveyed})
      for (const Job::Piece& piece : *pieces) longest_ = std::max(longest_, piece.count);
    if (!encoding.codec().weighs_tokens()) return;
    // Tokens that continue a document have no weights: the keys of those before them are not at hand.
    const std::vector<uint64_t> queries = StoredQueries::rows_in(encoding.kv);
    for (const Job::Piece& piece : job.pieces)
      weights_.push_back(piece.document < documents_before_
                             ? std::vector<float>()
                             : token_weights(encoding.kv, queries, piece.source));
  }

  void run() {
    for (const int group : encoding_.info.groups) sides_ += encoding_.info.sides(group).size();
    for (const int group : encoding_.info.groups)
      for (const Side side : encoding_.info.sides(group)) {
        run_side(side, group);
        ++sides_done_;
      }
  }

 private:
  /// The tokens of pieces that a layer holds.
  std::vector<Job::Piece> held(std::vector<Job::Piece> pieces, int layer) const {
    for (Job::Piece& piece : pieces) {
      const uint64_t left_out = encoding_.kv.documents().left_out_of(layer, piece.source);
      piece.first += left_out, piece.count -= left_out;
    }
    return pieces;
  }

  /// The pieces that are surveyed before piece i is appended: none, itself, or all from which new shared streams are made.
  std::span<const Job::Piece> surveyed_before(const GroupShape& shape, size_t i) const {
    const auto pieces = std::span(pieces_);
    switch (encoding_.codec().survey_scope(shape)) {
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

  /// One side of one group: surveys if the codec requires it, and appends.
  void run_side(Side side, int group) {
    const GroupShape shape = encoding_.info.shape(group, side);
    pieces_ = held(job_.pieces, group);
    surveyed_ = held(job_.surveyed, group);
    const uint64_t own_tokens = tokens_of(pieces_);
    uint64_t surveyed_tokens = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) surveyed_tokens += tokens_of(surveyed_before(shape, i));
    done_ = 0, planned_ = own_tokens;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      StreamStore& document = writer_.document(side, group, pieces_[i].document);
      if (const auto pieces = surveyed_before(shape, i); !pieces.empty()) {
        const auto survey = encoding_.codec().survey(shape);
        planned_ = own_tokens +
                   surveyed_tokens *
                       static_cast<uint64_t>(survey->passes());  // all surveys of a side have the same number
        const GroupShape surveyed = encoding_.codec().surveyed(shape);
        // A piece that is appended next, and that the buffer holds, is read once.
        if (pieces.size() == 1 && surveyed.side == side && pieces[0].count <= chunk_of(surveyed))
          read(surveyed, pieces[0].first, static_cast<size_t>(pieces[0].count));
        run_survey(*survey, surveyed, pieces, document);
      }
      if (!weights_.empty()) {  // a layer holds the last of a piece's tokens
        const auto& all = weights_[i];
        const auto held = static_cast<ptrdiff_t>(std::min<uint64_t>(pieces_[i].count, all.size()));
        document.weigh_tokens({all.end() - held, all.end()});
      }
      for_each_chunk(shape, pieces_[i],
                     [&](MatrixView<const float> rows) { encoding_.codec().append(shape, rows, document); });
    }
  }

  void run_survey(Survey& survey, const GroupShape& shape, std::span<const Job::Piece> pieces,
                  StreamStore& document) {
    for (int pass = 0; pass < survey.passes(); ++pass) {
      for (const auto& piece : pieces) {
        show_queries(survey, shape, piece);
        if (encoding_.codec().predicts_from() > 0)
          survey.observe_ids(encoding_.kv.tokens(piece.first, piece.count));
        show(survey, shape, piece);
        survey.end_document();
      }
      survey.end_pass();
    }
    survey.finish(document);
  }

  /// Shows the survey those tokens of a piece that it requests.
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

  /// Shows the queries of a piece's tokens, if the codec wants them and there are any.
  void show_queries(Survey& survey, const GroupShape& shape, const Job::Piece& piece) {
    if (!encoding_.codec().wants_queries() || encoding_.kv.query_tokens() == 0) return;
    if (queries_layer_ != shape.first_layer()) {
      queries_ = encoding_.kv.queries(shape.first_layer());
      queries_layer_ = shape.first_layer();
    }
    if (!queries_) return;
    const TokenQueries some = queries_of(*queries_, piece.first, piece.count);
    survey.observe_queries(some.tokens, some.rows);
  }

  size_t chunk_of(const GroupShape& shape) const {
    return chunk_rows(budget_,
                      shape.width() * sizeof(float) + encoding_.codec().scratch_bytes_per_row(shape));
  }

  /// Tokens [first, first + count) of the cache, no more than a chunk: from the buffer, if it holds them.
  MatrixView<const float> read(const GroupShape& shape, uint64_t first, size_t count) {
    const std::pair part(shape.first_layer(), shape.side);
    if (held_part_ != part || first < held_first_ || first + count > held_first_ + held_) {
      const auto most = static_cast<size_t>(std::min<uint64_t>(chunk_of(shape), longest_));
      if (rows_.cols() != shape.width() || rows_.rows() < most) rows_ = Matrix<float>(most, shape.width());
      held_ = 0;
      encoding_.kv.read(shape, first, rows_.view().rows(0, count));
      held_part_ = part, held_first_ = first, held_ = count;
    }
    return std::as_const(rows_).view().rows(static_cast<size_t>(first - held_first_), count);
  }

  template <class Body>
  void for_each_chunk(const GroupShape& shape, const Job::Piece& piece, const Body& body) {
    const size_t chunk = chunk_of(shape);
    for (uint64_t first = 0; first < piece.count; first += chunk) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(chunk, piece.count - first));
      const auto part = read(shape, piece.first + first, count);
      at_dataset(encoding_.kv.name(), shape.side, shape.first_layer(), [&] { body(part); });
      done_ += count;
      const double share = static_cast<double>(done_) / static_cast<double>(planned_);
      const auto tokens = static_cast<double>(tokens_);
      bar_.update((static_cast<double>(sides_done_) + share) / static_cast<double>(sides_) * tokens, tokens);
    }
  }

  const Encoding& encoding_;
  const Job& job_;
  CodesWriter& writer_;
  ProgressBar& bar_;
  uint64_t budget_;              // bytes for rows and the codec's scratch memory
  size_t documents_before_ = 0;  // in the codes already; the first piece may continue the last of them
  Matrix<float> rows_;           // tokens from held_first_ on
  std::optional<std::pair<int, Side>> held_part_;
  uint64_t held_first_ = 0, held_ = 0;
  std::optional<KvReader::Queries> queries_;  // of queries_layer_
  int queries_layer_ = -1;
  std::vector<Job::Piece> pieces_;           // the part of all pieces that the current layers hold
  std::vector<Job::Piece> surveyed_;         // the same for those that are surveyed
  uint64_t tokens_ = 0;                      // of all pieces
  uint64_t longest_ = 0;                     // tokens of the longest piece
  std::vector<std::vector<float>> weights_;  // of the tokens of each piece, where the codec weighs them
  size_t sides_ = 0, sides_done_ = 0;        // of all groups
  uint64_t done_ = 0, planned_ = 0;          // tokens read, over all passes of the current side
};

/// Writes the codes of the job. alike: see CodesWriter.
void write_codes(const Encoding& encoding, const Job& job, OutputFile& output, ProgressBar& bar,
                 const CodesReader* alike = nullptr) {
  const CodesReader* const base = encoding.base();
  const Book* const embedded = encoding.options.embed_book ? &encoding.book->book : nullptr;
  const TokenRun tokens{job.tokens, job.positions};
  CodesWriter writer = base ? CodesWriter(output, *base, encoding.info, encoding.codec(), tokens)
                            : CodesWriter(output, encoding.info, encoding.codec(), tokens, embedded, alike);
  CodecRun(encoding, job, writer, bar).run();
  std::vector<std::vector<std::string>> histories{encoding.kv.type().history};
  if (base) histories.insert(histories.begin(), base->type().history);
  if (encoding.book) histories.push_back(encoding.book->type.history);
  writer.finish(encoding.command.provenance(merged_history(histories)));
}

/// Writes the codes that grow without the documents that give way to new ones, and the new ones behind them, in one file.
void encode_replacing(const Encoding& encoding, Job job, OutputFile& output, ProgressBar& bar) {
  const CodesReader& grown = *encoding.grown;
  OutputFile added(encoding.options.output.path, true);  // never committed, so that it vanishes
  // Streams that all documents share stay as they are, if there are any.
  const bool has_shared = grown.info().documents.tokens() > 0;
  if (has_shared) job.surveyed.clear();
  write_codes(encoding, job, added, bar, has_shared ? &grown : nullptr);
  copy_replacing(
      job.names, encoding.options.append, added.path(), output,
      encoding.command.provenance(merged_history({grown.type().history, encoding.kv.type().history})));
}

/// The files that are read. Codes that are changed in place are among them.
std::vector<std::string> inputs_of(const EncodeOptions& options) {
  std::vector<std::string> read = text_files(options.goal.texts);
  read.insert(read.end(), {options.input, options.book, options.weights, options.append, options.goal.model});
  return read;
}

/// With --resume: writes the codes of these documents of the cache in pieces, some of which may exist already.
Pieces write_in_pieces(Encoding& encoding, const std::vector<size_t>& documents, const Job& whole,
                       OutputFile& output) {
  const EncodeOptions& options = encoding.options;
  const KvReader& kv = encoding.kv;
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
    wanted.push_back({items, {}});
    wanted.back().documents.add(kv.documents(), numbers_of(items));
  }
  Pieces pieces(encoding.command, options.common, options.output, inputs_of(options), kv.model(),
                std::move(wanted));
  ProgressBar bar("encode", "tokens", options.common.quiet);
  std::optional<CodesReader> alike;
  pieces.write(
      [&](const WorkRange& items, OutputFile& piece) {
        encoding.info.documents = {};
        Job job = make_job(kv, numbers_of(items), nullptr, {}, encoding.info.documents);
        // The first piece surveys the whole cache for the streams that all share, and the others reuse them.
        if (!alike)
          if (const auto finished = pieces.finished()) alike.emplace(*finished);
        job.surveyed = alike ? std::vector<Job::Piece>() : whole.surveyed;
        write_codes(encoding, job, piece, bar, alike ? &*alike : nullptr);
      },
      bar, output);
  return pieces;
}

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
  if (std::string report; options.output.made_before(command, options.common, inputs_of(options), report))
    return report;

  const Stopwatch watch;
  const KvReader kv(options.input);
  const auto documents = options.documents.choose(kv.documents(), kv.name());
  const auto held = options.output.hold(options.append, options.common);
  Encoding encoding{.command = command, .options = options, .kv = kv};
  if (options.codec == kAuto) codec = find_codec(documents, encoding);
  if (codec.entry)
    begin_codes(codec, documents, encoding);
  else
    continue_codes(encoding);
  if (!encoding.found.empty()) command.add_to_history("(found: " + encoding.found + ")");
  const auto own = shard.among(kv.documents(), documents);
  Job job = make_job(kv, own, encoding.base(), options.additions, encoding.info.documents);
  if (options.shard.given()) job.surveyed.clear();  // the pieces of all shares take their place
  for (size_t i = 0; i < documents.size() && options.shard.given(); ++i)
    job.surveyed.push_back(
        {kv.documents().offsets[documents[i]], kv.documents().length(documents[i]), i, documents[i]});
  check_token_ids(kv, encoding.codec());
  job.names.note(options.common);
  if (const std::string instead = encoding.codec().without_queries();
      encoding.codec().wants_queries() && !instead.empty() && kv.query_tokens() == 0)
    options.common.note("{} has no queries: {} (see dump-kv --queries)", kv.name(), instead);
  encoding.apart = job.names.replaces();
  const bool in_place = held && held->changeable() && options.output.replaces() && !encoding.apart &&
                        CodesWriter::can_change_in_place(*encoding.base(), job.positions);
  std::optional<Pieces> pieces;
  Measures spare;
  Losses losses{.rounded_to =
                    round_for(codec.entry ? *codec.entry : encoding.grown_codec->entry(), encoding)};
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        if (options.resume.resume && !own.empty()) {
          pieces = write_in_pieces(encoding, own, job, output);
        } else {
          ProgressBar bar("encode", "tokens", options.common.quiet);
          if (encoding.apart)
            encode_replacing(encoding, job, output, bar);
          else
            write_codes(encoding, job, output, bar);
        }
        const CodesReader codes(output.path());
        if (options.verify) verify_codes(codes, options, output.target());
        FileRate rate = rate_of(codes);
        if (!options.append.empty())
          spare = note_spare(options.common, options.output.path, list_documents(codes));
        note_unlike_book(codes, rate, encoding);
        note_far_from_judged(rate, encoding);
        if (const std::string remark = rate_remark(rate); !remark.empty())
          options.common.note("{}: {}", options.output.path, remark);
        if ((losses.clipped = encoding.codec().clipped()) > 0)
          options.common.note(
              "{}: clipped {} of {} to the range of its first documents; encode all documents at once to keep such values",
              options.append, counted(losses.clipped, "value"), kv.name());
        note_attention(kv, documents, codes, encoding.codec(), options.common);
        encoding.grown_codec.reset();
        encoding.grown.reset();
        return rate;
      },
      [&](const FileRate& rate) {
        if (pieces) pieces->remove();
        Measures of_file = joined(job.names.measures(), price_measures(encoding.price));
        if (options.common.note_journal(options.output.path)) of_file.push_back({"in_journal", true});
        return summary(rate, options, watch.seconds(), losses, joined(std::move(of_file), spare));
      },
      held.get(), in_place);
}

}  // namespace

CommandEntry encode_command() {
  return {CommandGroup::code, 2, "encode", "compress a cache with one of the codecs", encode};
}

}  // namespace kvcodec::cli
