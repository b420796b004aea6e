#include "cli/encode/encode_options.hpp"

#include <map>

#include "cli/codecs/coding.hpp"
#include "cli/frame/text.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

std::vector<OptionField> EncodeOptions::fields() {
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
       "start from these codes and add the tokens of KV to them, with the codec and the options they were "
       "made with; a first document that has the name of the last one stored and goes on at the next "
       "position continues it, every other is new. Without -o the codes are changed in place",
       &append},
      {.name = "storage",
       .help = "16-bit type of tokens that a codec keeps exactly (default: the type of KV; bf16 if that "
               "is f32)",
       .target = &storage,
       .choices = {"bf16", "f16"}},
      {"rope",
       "undo: give the codec keys from before the rotary embedding, turned back by their index in the "
       "document; whoever decodes turns them forward again (default: keep them as they are, or as the "
       "book was trained)",
       &rope},
  };
}

namespace {

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

}  // namespace

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
  if (!options.append.empty())
    for (const char* fixed : {"codec", "preset", "layers", "storage", "pack", "embed-book", "weights", "rope",
                              "shard", "total-bits", "quality", "max-nll", "resume"})
      if (command.given(fixed))
        throw usage_error("--append goes on as {} was made; leave out --{}", options.append, fixed);
}

NamedCodec declare_encode(Command& command, EncodeOptions& options) {
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

}  // namespace kvcodec::cli
