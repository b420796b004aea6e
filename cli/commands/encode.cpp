// kvcodec encode KV --codec NAME[:key=value,...] [options] -o CODES
//
//   --codec NAME        sparse, none, kivi …; each brings its own options, with their defaults in the help
//   --codec NAME+NAME   keys by one codec, values by another; their options are --key.… and --value.…
//   --preset NAME       where these begin: default, what does best, or paper, as its paper has it
//   --book FILE         the dictionary that the codec needs
//   --embed-book        put it into the product
//   --no-pack           ids in 8, 16 or 32 bits each, not in as few as they need
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
#include <optional>
#include <span>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/encode/encode_job.hpp"
#include "cli/encode/encode_options.hpp"
#include "cli/encode/encode_run.hpp"
#include "cli/encode/encoding.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/resume.hpp"
#include "cli/frame/shard.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/inputs/matching.hpp"
#include "cli/search/codec_search.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// A cache that takes more than so many times the bits of a book's training data is of another kind: other novels take 1.1
/// times as many, technical prose and code 1.6 and more.
constexpr double kUnlike = 1.4;

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

/// Writes the codes. alike: see CodesWriter.
void write_codes(const Command& command, const EncodeOptions& options, const KvReader& kv,
                 const Encoding& encoding, const Job& job, OutputFile& output, ProgressBar& bar,
                 const CodesReader* alike = nullptr) {
  const auto writer = encoding.make_writer(output, job, options.embed_book, alike);
  run_codec({.kv = kv,
             .info = encoding.info,
             .codec = encoding.codec(),
             .job = job,
             .writer = *writer,
             .bar = bar,
             .documents_before = encoding.base() ? encoding.base()->info().documents.count() : 0,
             .budget = chunk_budget(options.common.memory_bytes(), encoding.info.book_bytes)});
  writer->finish(command.provenance(encoding.history(kv)));
}

/// The files that are read. Codes that are changed in place are among them, and no older than themselves.
std::vector<std::string> inputs_of(const EncodeOptions& options) {
  std::vector<std::string> read = text_files(options.goal.texts);
  read.insert(read.end(), {options.input, options.book, options.weights, options.append, options.goal.model});
  return read;
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
  Pieces pieces(command, options.common, options.output, inputs_of(options), kv.model(), std::move(wanted));
  ProgressBar bar("encode", "tokens", options.common.quiet);
  std::optional<CodesReader> alike;
  pieces.write(
      [&](const WorkRange& items, OutputFile& piece) {
        encoding.info.documents = {};
        Job job = make_job(kv, numbers_of(items), nullptr, encoding.info.documents);
        // The first piece surveys the whole cache for what all of them share, and the others take that over.
        if (!alike)
          if (const auto finished = pieces.finished()) alike.emplace(*finished);
        job.surveyed = alike ? std::vector<Job::Piece>() : whole.surveyed;
        write_codes(command, options, kv, encoding, job, piece, bar, alike ? &*alike : nullptr);
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

std::string encode(Command& command) {
  EncodeOptions options;
  NamedCodec codec = declare_encode(command, options);
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
  expect_inputs({options.input, options.weights}, options.book);
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
  options.common.note_stored(options.append, job.stored_before);
  note_missing_queries(kv, encoding->codec(), options.common);
  const bool in_place = held && held->changeable() && options.output.replaces() &&
                        CodesWriter::can_change_in_place(*encoding->base(), job.positions);
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

}  // namespace

CommandEntry encode_command() {
  return {CommandGroup::code, 2, "encode", "compress a cache with one of the codecs", encode};
}

}  // namespace kvcodec::cli
