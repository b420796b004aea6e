// kvcodec decode CODES [options] -o KV
//
//   --book FILE         the book the codes were made with, unless it is inside
//   --dtype TYPE        of the product (that of the source)
//   --documents LIST    only these documents
//   --tokens A:B        only these tokens of each
//   --layers LIST       only these layers
//   --select FILE|LIST  only selected tokens
//
//   kvcodec decode codes.h5 --book dict.h5 --documents 3 --tokens 0:128 -o part.h5
#include <algorithm>
#include <mutex>
#include <set>

#include "cli/codecs/coding.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/measures.hpp"
#include "cli/frame/product.hpp"
#include "cli/frame/progress.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/matching.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/results/selection_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

struct DecodeOptions final : Options {
  std::string input, book, tokens, select;
  std::optional<DType> dtype;
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override {
    return {
        {.name = "book",
         .help = "file of the book the codes were made with; not needed if it is inside",
         .target = &book},
        {.name = "dtype",
         .help = "element type of the product (default: that of the encoded cache)",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
        {.name = "tokens",
         .help = "only tokens A to B-1 of each document, counted from 0; A or B may be left out, and "
                 "documents that end before A are left out (default: all)",
         .target = &tokens},
        {.name = "select",
         .help = "only selected tokens: those that a selection file names for any of its queries, in the "
                 "layers decoded, or a list of numbers and ranges, as 0-15,40, counted from 0 in each "
                 "document. A file whose name is such a list is named with its folder, as ./40",
         .target = &select},
    };
  }
};

/// Tokens of one stored document: [first, first + count), or chosen ones.
struct Part {
  size_t document = 0;
  uint64_t first = 0, count = 0;
  std::vector<uint32_t> chosen = {};  // rising; count of them, unless empty
};

std::vector<Part> parts_in_range(const CodesReader& codes, const std::vector<size_t>& documents,
                                 const std::string& tokens) {
  const TokenRange range = tokens.empty() ? TokenRange{} : parse_token_range("--tokens", tokens);
  std::vector<Part> parts;
  for (const size_t document : documents) {
    const uint64_t length = codes.info().documents.length(document);
    if (!tokens.empty() && range.first >= length) continue;
    parts.push_back({document, range.first, std::min(range.end, length) - range.first});
  }
  if (parts.empty() && !documents.empty())
    throw bad_input("{}: no chosen document has a token {}", codes.name(), range.first);
  return parts;
}

/// Those of a document's tokens that are chosen; none: no part.
void add_chosen(std::vector<Part>& parts, size_t document, std::vector<uint32_t> chosen) {
  if (!chosen.empty()) parts.push_back({document, 0, chosen.size(), std::move(chosen)});
}

std::vector<Part> listed_parts(const CodesReader& codes, const std::vector<size_t>& documents,
                               const std::vector<TokenRange>& list) {
  std::vector<Part> parts;
  for (const size_t document : documents) {
    const uint64_t length = std::min<uint64_t>(codes.info().documents.length(document), UINT32_MAX);
    std::vector<uint32_t> chosen;
    for (const TokenRange& range : list)
      for (uint64_t token = range.first; token < std::min(range.end, length); ++token)
        chosen.push_back(static_cast<uint32_t>(token));
    add_chosen(parts, document, std::move(chosen));
  }
  if (parts.empty() && !documents.empty())
    throw bad_input("{}: no chosen document has a token {}", codes.name(), list.front().first);
  return parts;
}

/// What any query of the file selected in any of these layers, document by document, found by name.
std::vector<Part> selected_parts(const CodesReader& codes, const std::vector<size_t>& documents,
                                 const std::vector<int>& layers, const std::string& name) {
  const SelectionFile file = read_selection_info(name);
  const SelectionInfo& info = file.info;
  check_same_model(name, info.model, codes.name(), codes.info().model);
  if (info.documents.count() == 0 && !info.query_rows.empty())
    throw bad_input(
        "{}: does not say which documents its queries belong to; kvcodec select writes one that does", name);
  std::vector<std::set<uint32_t>> wanted(codes.info().documents.count());
  std::vector<size_t> place(info.documents.count());
  std::vector<bool> used(wanted.size());
  for (size_t i = 0; i < place.size(); ++i) {
    size_t j = 0;
    while (j < used.size() && (used[j] || codes.info().documents.names[j] != info.documents.names[i])) ++j;
    if (j == used.size())
      throw bad_input("{}: {} has no document '{}'", name, codes.name(), info.documents.names[i]);
    used[j] = true;
    place[i] = j;
  }
  for (const auto& [layer, budget] : file.budgets) {
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) continue;
    const LayerSelections selections = read_selections(name, layer);
    for (size_t i = 0; i < place.size(); ++i)
      for (size_t at = info.documents.offsets[i] * info.heads;
           at < info.documents.offsets[i + 1] * info.heads; ++at)
        for (const Scored& token : selections.chosen[at]) wanted[place[i]].insert(token.id);
  }
  std::vector<Part> parts;
  for (const size_t document : documents) {
    const auto& own = wanted[document];
    if (!own.empty() && *own.rbegin() >= codes.info().documents.length(document))
      throw bad_input("{0}: selects token {1} of document '{2}', which has {4} in {3}", name, *own.rbegin(),
                      codes.info().documents.names[document], codes.name(),
                      counted(codes.info().documents.length(document), "token"));
    add_chosen(parts, document, {own.begin(), own.end()});
  }
  if (parts.empty() && !documents.empty())
    throw bad_input("{}: selects no token of a chosen document in a chosen layer", name);
  return parts;
}

/// What a layer that leaves out the document's first tokens holds of a part, counted from the first that it holds.
Part held_part(const Part& part, uint64_t left_out) {
  if (left_out == 0) return part;
  Part held{.document = part.document};
  for (const uint32_t token : part.chosen)
    if (token >= left_out) held.chosen.push_back(static_cast<uint32_t>(token - left_out));
  if (!part.chosen.empty()) {
    held.count = held.chosen.size();
    return held;
  }
  const uint64_t end = std::max(part.first + part.count, left_out);
  held.first = std::max(part.first, left_out) - left_out;
  held.count = end - left_out - held.first;
  return held;
}

/// Of each layer, how many tokens of a part it leaves out; none where all hold all.
std::vector<uint64_t> left_out_of(const CodesReader& codes, const Part& part) {
  const Documents& documents = codes.info().documents;
  std::vector<uint64_t> left_out;
  for (int layer = 0; layer < codes.info().model.num_layers && !documents.whole(); ++layer)
    left_out.push_back(part.count - held_part(part, documents.left_out_of(layer, part.document)).count);
  return left_out;
}

/// Token ids or positions of a part; read(first, count) gives those of the file.
template <class Read>
auto of_part(const Part& part, uint64_t document_first, const Read& read) {
  if (part.chosen.empty()) return read(document_first + part.first, part.count);
  auto all = read(document_first, uint64_t{part.chosen.back()} + 1);
  for (size_t i = 0; i < part.chosen.size(); ++i) all[i] = all[part.chosen[i]];  // chosen[i] >= i
  all.resize(part.chosen.size());
  return all;
}

/// What is known of a part's document; ids: those of the part.
DocumentFacts facts_of(const CodesReader& codes, const Part& part, std::span<const uint32_t> ids) {
  const Documents& documents = codes.info().documents;
  DocumentFacts facts = documents.facts_of(part.document);
  if (facts.digest && part.count != documents.length(part.document)) facts.digest = token_digest(ids);
  return facts;
}

/// Where the time of a decode goes.
struct Effort {
  double read_seconds = 0, decode_seconds = 0;      ///< the second with the first in it
  uint64_t read_bytes = 0;                          ///< of streams
  uint64_t physical_bytes = 0, physical_reads = 0;  ///< of the codes file, its opening included
};

/// A document's streams that keep account of what is read from them.
class CountedStreams final : public StreamReader {
 public:
  CountedStreams(const StreamReader& streams, Effort& effort) : streams_(streams), effort_(effort) {}
  uint64_t rows(std::string_view stream) const override { return streams_.rows(stream); }
  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    return streams_.token_ids(first, count);
  }
  void read(std::string_view stream, uint64_t first, uint64_t count,
            std::span<std::byte> out) const override {
    const Stopwatch watch;
    streams_.read(stream, first, count, out);
    const double seconds = watch.seconds();
    const std::lock_guard lock(mutex_);
    effort_.read_seconds += seconds;
    effort_.read_bytes += out.size();
  }

 private:
  const StreamReader& streams_;
  Effort& effort_;
  mutable std::mutex mutex_;
};

class Decoder {
 public:
  Decoder(const CodesReader& codes, const Codec& codec, std::vector<int> layers, uint64_t budget)
      : codes_(codes),
        codec_(codec),
        layers_(std::move(layers)),
        groups_(groups_of(layers_, codes.info().layer_group)),
        budget_(budget) {}

  void run(const Part& part, KvWriter& writer, const std::function<void(uint64_t)>& count) {
    for (const int group : groups_) {
      const Part held = held_part(part, codes_.info().documents.left_out_of(group, part.document));
      for (const Side side : codes_.info().sides(group)) {
        const GroupShape shape = group_shape(codes_.info().model, group, codes_.info().layer_group, side);
        at_dataset(codes_.name(), side, group, [&] {
          const auto streams = codes_.document(side, group, part.document);
          const CountedStreams counted(*streams, effort_);
          decode(*open_document(codes_, codec_, shape, part.document, counted), held, writer, count);
        });
        count(part.count - held.count);
      }
    }
  }

  size_t passes() const {
    size_t sides = 0;
    for (const int group : groups_) sides += codes_.info().sides(group).size();
    return sides;
  }
  const Effort& effort() const { return effort_; }

 private:
  void decode(const DocumentView& document, const Part& part, KvWriter& writer,
              const std::function<void(uint64_t)>& count) {
    const GroupShape& shape = document.shape();
    const size_t chunk =
        chunk_rows(budget_, shape.width() * sizeof(float) + codec_.scratch_bytes_per_row(shape));
    if (rows_.rows() < std::min<uint64_t>(chunk, part.count) || rows_.cols() != shape.width())
      rows_ = Matrix<float>(std::min<uint64_t>(chunk, part.count), shape.width());
    for (uint64_t first = 0; first < part.count; first += chunk) {
      const auto piece =
          rows_.view().rows(0, static_cast<size_t>(std::min<uint64_t>(chunk, part.count - first)));
      const Stopwatch watch;
      if (part.chosen.empty())
        document.decode(part.first + first, piece);
      else
        document.decode_tokens(std::span(part.chosen).subspan(first, piece.rows()), piece);
      effort_.decode_seconds += watch.seconds();
      write(shape, piece, writer);
      count(piece.rows());
    }
  }

  void write(const GroupShape& shape, MatrixView<const float> rows, KvWriter& writer) const {
    const size_t width = shape.side_width() / static_cast<size_t>(shape.layers);
    for (const Side side : sides_in(shape.side))
      for (int i = 0; i < shape.layers; ++i)
        if (const int layer = shape.first_layer + i;
            std::find(layers_.begin(), layers_.end(), layer) != layers_.end())
          with_context(codes_.name(), [&] {  // the writer names the dataset
            writer.append(side, layer,
                          rows.columns(shape.column_of(side) + static_cast<size_t>(i) * width, width));
          });
  }

  const CodesReader& codes_;
  const Codec& codec_;
  std::vector<int> layers_, groups_;
  uint64_t budget_;
  Matrix<float> rows_;
  Effort effort_;
};

void declare(Command& command, DecodeOptions& options) {
  command.describe("CODES [options] -o KV",
                   "Rebuilds a cache, or chosen documents, layers and tokens of it, from a codes file made "
                   "by any codec, and writes a kv file. Only what is asked for is read. Token ids and "
                   "positions are kept, so the tokens that a selection names can be fetched by themselves.",
                   "kvcodec decode codes.h5 --book dict.h5 -o recon.h5\n"
                   "kvcodec decode codes.h5 --book dict.h5 --documents 3 --tokens 0:128 -o part.h5\n"
                   "kvcodec decode codes.h5 --select selection.h5 -o fetched.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  options.output.declare(command, "kv file to write");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Decoding");
  command.options(options, {{"book", "FILE"}, {"tokens", "A:B"}, {"select", "FILE|LIST"}});
  options.common.declare(command);
}

/// Which parts of the codes are asked for. list: what --select has, if that is no file.
std::vector<Part> choose_parts(const CodesReader& codes, const std::vector<int>& layers,
                               const DecodeOptions& options,
                               const std::optional<std::vector<TokenRange>>& list) {
  const auto documents = options.documents.choose(codes.info().documents, codes.name());
  if (options.select.empty()) return parts_in_range(codes, documents, options.tokens);
  return list ? listed_parts(codes, documents, *list)
              : selected_parts(codes, documents, layers, options.select);
}

/// Decodes the parts into the writer.
Effort decode_parts(const CodesReader& codes, const std::vector<Part>& parts, Decoder& decoder,
                    KvWriter& writer, uint64_t tokens, ProgressBar& bar) {
  uint64_t done = 0;
  for (const Part& part : parts) {
    const uint64_t first = codes.info().documents.offsets[part.document];
    const auto read_tokens = [&](uint64_t at, uint64_t count) { return codes.tokens(at, count); };
    const auto read_positions = [&](uint64_t at, uint64_t count) { return codes.positions(at, count); };
    const auto ids = codes.has_tokens() ? of_part(part, first, read_tokens) : std::vector<uint32_t>{};
    writer.add_document(codes.info().documents.names[part.document], ids,
                        of_part(part, first, read_positions), left_out_of(codes, part),
                        facts_of(codes, part, ids));
    decoder.run(part, writer, [&](uint64_t count) {
      done += count;
      bar.update(static_cast<double>(done) / static_cast<double>(decoder.passes()),
                 static_cast<double>(tokens));
    });
  }
  Effort effort = decoder.effort();
  effort.physical_bytes = codes.bytes_read();
  effort.physical_reads = codes.reads();
  return effort;
}

/// What was written, and how.
struct DecodedCache {
  std::string codec;
  size_t documents = 0;
  uint64_t tokens = 0;
  std::vector<int> layers;
  DType dtype{};
};

std::string summary(const DecodedCache& product, const Effort& effort, double seconds,
                    const DecodeOptions& options) {
  return one_row({word("output", {"cache"}, options.output.path),
                  word("codec", {"from"}, product.codec),
                  number_of("documents", {"documents"}, product.documents),
                  number_of("tokens", {"tokens"}, product.tokens),
                  layers_measure(product.layers),
                  word("dtype", {"dtype"}, name_of(product.dtype)),
                  time_measure(seconds),
                  {"read_bytes", effort.read_bytes},
                  {"read_seconds", effort.read_seconds},
                  {"physical_bytes_read", effort.physical_bytes},
                  {"physical_reads", effort.physical_reads},
                  {"rebuild_seconds", std::max(0.0, effort.decode_seconds - effort.read_seconds)}},
                 options.common.json);
}

std::string decode(Command& command) {
  DecodeOptions options;
  declare(command, options);
  command.parse();
  options.output.check(options.common);
  if (!options.tokens.empty() && !options.select.empty())
    throw usage_error("--tokens and --select both say which tokens; give one");
  const auto list = number_ranges(options.select);
  const std::vector<std::string> read{options.input, options.book, list ? std::string() : options.select};
  check_inputs(read);
  options.output.keep(read);
  options.common.apply(command, true);

  const Stopwatch watch;
  expect_inputs({options.input}, options.book);
  const CodesReader codes(options.input);
  const CodesInfo& info = codes.info();
  const auto layers = options.layers.choose(stored_layers(info), codes.name());
  const auto parts = choose_parts(codes, layers, options, list);
  const CodecOfFile file_codec(codes, options.book, coding_engine(codec_entry(codes), options.common));
  Documents decoded;
  DecodedCache product{.codec = info.codec,
                       .documents = parts.size(),
                       .tokens = 0,
                       .layers = layers,
                       .dtype = options.dtype.value_or(info.source_dtype)};
  for (const Part& part : parts)
    decoded.add(info.documents.names[part.document], part.count, left_out_of(codes, part));
  product.tokens = decoded.tokens();
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        KvWriter writer(output, info.model, product.dtype, layers, std::nullopt);
        if (product.dtype == info.source_dtype) writer.clip();
        writer.expect(decoded);
        Decoder decoder(codes, file_codec.codec(), layers,
                        chunk_budget(options.common.memory_bytes(), info.book_bytes));
        ProgressBar bar("decode", "tokens", options.common.quiet);
        const Effort effort = decode_parts(codes, parts, decoder, writer, product.tokens, bar);
        writer.finish(command.provenance(merged_history({codes.type().history, file_codec.book_history()})));
        return effort;
      },
      [&](const Effort& effort) { return summary(product, effort, watch.seconds(), options); });
}

}  // namespace

CommandEntry decode_command() {
  return {CommandGroup::code, 3, "decode", "rebuild a cache, or a part of it, from its codes", decode};
}

}  // namespace kvcodec::cli
