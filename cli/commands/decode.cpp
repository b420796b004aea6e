#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/fault.hpp"

namespace kvcodec::cli {
namespace {

struct DecodeOptions final : CommandOptions {
  std::string input, book, tokens, select;
  bool keep_going = false;
  std::optional<DType> dtype;

  std::vector<OptionField> fields() override {
    return {
        {"book", "file of the book the codes were made with; not needed if it is inside", &book},
        {.name = "dtype",
         .help = "element type of the output (default: that of the encoded cache)",
         .target = &dtype,
         .choices = {"bf16", "f16", "f32"}},
        {"tokens",
         "only tokens A to B-1 of each document, counted from 0; A or B may be left out, and documents that "
         "end before A are left out (default: all)",
         &tokens},
        {"select",
         "only selected tokens: those that a selection file names for any of its queries, in the layers "
         "decoded, or a list of numbers and ranges, as 0-15,40, counted from 0 in each document. A file "
         "whose name is such a list is named with its folder, as ./40",
         &select},
        keep_going_field(keep_going),
    };
  }
};

/// Tokens of one stored document: [first, first + count), or chosen ones.
struct Part {
  size_t document = 0;
  uint64_t first = 0, count = 0;
  std::vector<uint32_t> chosen = {};  // ascending; `count` of them, unless empty
};

void add_chosen(std::vector<Part>& parts, size_t document, std::vector<uint32_t> chosen) {
  if (!chosen.empty()) parts.push_back({document, 0, chosen.size(), std::move(chosen)});
}

/// Parts of documents in these ranges; whole documents without ranges.
std::vector<Part> parts_in(const CodesReader& codes, const std::vector<size_t>& documents,
                           const std::vector<TokenRange>& ranges) {
  std::vector<Part> parts;
  for (const size_t document : documents) {
    const uint64_t length = codes.info().documents.length(document);
    if (ranges.size() <= 1) {
      const TokenRange range = ranges.empty() ? TokenRange{} : ranges.front();
      if (ranges.empty() || range.first < length)
        parts.push_back({document, range.first, std::min(range.end, length) - range.first});
      continue;
    }
    std::vector<uint32_t> chosen;
    for (const TokenRange& range : ranges)
      for (uint64_t token = range.first; token < std::min<uint64_t>({range.end, length, UINT32_MAX}); ++token)
        chosen.push_back(static_cast<uint32_t>(token));
    add_chosen(parts, document, std::move(chosen));
  }
  if (parts.empty() && !documents.empty())
    throw bad_input("{}: no chosen document has a token {}", codes.name(), ranges.front().first);
  return parts;
}

/// Tokens that any query of the file selected in any of these layers; documents are matched by name.
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
  std::unordered_map<std::string_view, std::deque<size_t>> unused;  // documents by name, in the file's order
  for (size_t j = 0; j < wanted.size(); ++j) unused[codes.info().documents.names[j]].push_back(j);
  for (size_t i = 0; i < place.size(); ++i) {
    std::deque<size_t>& named = unused[info.documents.names[i]];
    if (named.empty())
      throw bad_input("{}: {} has no document '{}'", name, codes.name(), info.documents.names[i]);
    place[i] = named.front();
    named.pop_front();
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

/// Throws Error(bad_input) if a chosen layer lacks tokens of a part that stops before its document's end: what the layer then has is
/// not what the tokens behind the part attend to.
void check_held(const CodesReader& codes, const std::vector<int>& layers, const std::vector<Part>& parts) {
  const Documents& documents = codes.info().documents;
  for (const Part& part : parts) {
    const uint64_t first = part.chosen.empty() ? part.first : part.chosen.front(),
                   end = part.chosen.empty() ? part.first + part.count : uint64_t{part.chosen.back()} + 1;
    if (end == documents.length(part.document)) continue;
    std::vector<int> lacking;
    uint64_t held_from = 0;
    for (const int layer : layers)
      if (const uint64_t left_out = documents.left_out_of(layer, part.document); left_out > first) {
        lacking.push_back(layer);
        held_from = std::max(held_from, left_out);
      }
    if (!lacking.empty())
      throw bad_input(
          "{}: in layers {} document '{}' has only the tokens from {} on, as windows need; choose tokens from there on or "
          "up to its end, or other layers with --layers",
          codes.name(), ranges_text(lacking), documents.names[part.document], held_from);
  }
}

/// The tokens of a part that a layer holds, counted from its first one, if it leaves out the document's first tokens.
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

/// Number of tokens of a part that each layer leaves out; empty if all layers hold all tokens.
std::vector<uint64_t> left_out_of(const CodesReader& codes, const Part& part) {
  const Documents& documents = codes.info().documents;
  std::vector<uint64_t> left_out;
  for (int layer = 0; layer < codes.info().model.num_layers && !documents.whole(); ++layer)
    left_out.push_back(part.count - held_part(part, documents.left_out_of(layer, part.document)).count);
  return left_out;
}

/// Token ids or positions of a part; read(first, count) returns those of the file.
template <class Read>
auto of_part(const Part& part, uint64_t document_first, const Read& read) {
  if (part.chosen.empty()) return read(document_first + part.first, part.count);
  auto all = read(document_first, uint64_t{part.chosen.back()} + 1);
  for (size_t i = 0; i < part.chosen.size(); ++i) all[i] = all[part.chosen[i]];  // chosen[i] >= i
  all.resize(part.chosen.size());
  return all;
}

/// Facts of a part's document; ids: those of the part.
DocumentFacts facts_of(const CodesReader& codes, const Part& part, std::span<const uint32_t> ids) {
  const Documents& documents = codes.info().documents;
  DocumentFacts facts = documents.facts_of(part.document);
  if (part.count == documents.length(part.document)) return facts;
  if (facts.digest) facts.digest = token_digest(ids);
  facts.state.clear();  // it is that behind the document's last token, and of all its tokens
  return facts;
}

/// The cache that is written, and the time that it took.
struct Decoded {
  std::vector<int> layers;
  DType dtype{};
  Documents documents;
  double read_seconds = 0, decode_seconds = 0;  ///< decode_seconds includes read_seconds
  uint64_t read_bytes = 0;                      ///< of streams
};

/// A document's streams, which count what is read from them.
class CountedStreams final : public StreamReader {
 public:
  CountedStreams(const StreamReader& streams, Decoded& decoded) : streams_(streams), decoded_(decoded) {}
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
    decoded_.read_seconds += seconds;
    decoded_.read_bytes += out.size();
  }

 private:
  const StreamReader& streams_;
  Decoded& decoded_;
  mutable std::mutex mutex_;
};

struct Decoding {
  const CodesReader& codes;
  const Codec& codec;
  uint64_t budget;  ///< bytes of rows that are decoded at once, about
  Decoded& decoded;
  KvWriter* writer;  ///< nullptr: rows are decoded to see whether they can be
  std::function<void(uint64_t rows)> count;
  Matrix<float> rows = {};
};

void write_rows(const Decoding& decoding, const GroupShape& shape, MatrixView<const float> rows) {
  for (const Side side : sides_in(shape.side))
    for (size_t i = 0; i < shape.layers.size(); ++i) {
      const int layer = shape.layers[i];
      if (!std::ranges::binary_search(decoding.decoded.layers, layer) || shape.layer.width(side) == 0)
        continue;
      const auto own = shape.columns(rows, side, i);
      if (decoding.writer)
        with_context(decoding.codes.name(),
                     [&] { decoding.writer->append(side, layer, own); });  // the writer names the dataset
      else
        for (size_t row = 0; row < own.rows(); ++row)
          if (find_non_finite(own.row(row))) throw bad_input("a token decodes to what is not finite");
    }
}

void decode_rows(Decoding& decoding, const DocumentView& document, const Part& part) {
  const GroupShape& shape = document.shape();
  const size_t chunk = chunk_rows(
      decoding.budget, shape.width() * sizeof(float) + decoding.codec.scratch_bytes_per_row(shape));
  Matrix<float>& rows = decoding.rows;
  if (rows.rows() < std::min<uint64_t>(chunk, part.count) || rows.cols() != shape.width())
    rows = Matrix<float>(std::min<uint64_t>(chunk, part.count), shape.width());
  for (uint64_t first = 0; first < part.count; first += chunk) {
    const auto piece = rows.view().rows(0, std::min<uint64_t>(chunk, part.count - first));
    const Stopwatch watch;
    if (part.chosen.empty())
      document.decode(part.first + first, piece);
    else
      document.decode_tokens(std::span(part.chosen).subspan(first, piece.rows()), piece);
    decoding.decoded.decode_seconds += watch.seconds();
    write_rows(decoding, shape, piece);
    decoding.count(piece.rows());
  }
}

void decode_part(Decoding& decoding, const Part& part) {
  const CodesReader& codes = decoding.codes;
  const CodesInfo& info = codes.info();
  const uint64_t first = info.documents.offsets[part.document];
  std::vector<uint32_t> ids;
  if (codes.has_tokens())
    ids = of_part(part, first, [&](uint64_t at, uint64_t count) { return codes.tokens(at, count); });
  const auto positions =
      of_part(part, first, [&](uint64_t at, uint64_t count) { return codes.positions(at, count); });
  if (decoding.writer)
    decoding.writer->add_document(info.documents.names[part.document], ids, positions,
                                  left_out_of(codes, part), facts_of(codes, part, ids));
  else
    for (const StateTensor& tensor : facts_of(codes, part, ids).state) (void)tensor.load();
  for (const int group : groups_of(decoding.decoded.layers, info)) {
    const Part held = held_part(part, info.documents.left_out_of(group, part.document));
    for (const Side side : info.sides(group)) {
      const GroupShape shape = info.shape(group, side);
      at_dataset(codes.name(), side, group, [&] {
        const auto streams = codes.document(side, group, part.document);
        const CountedStreams counted(*streams, decoding.decoded);
        decode_rows(decoding, *open_document(codes, decoding.codec, shape, part.document, counted), held);
      });
      decoding.count(part.count - held.count);
    }
  }
}

/// Decodes all parts, and leaves out those of documents that are damaged.
void leave_out_undecodable(Decoding decoding, std::vector<Part>& parts, DamagedDocuments& damaged) {
  const CodesReader& codes = decoding.codes;
  for (const int group : groups_of(decoding.decoded.layers, codes.info()))
    for (const Side side : codes.info().sides(group)) codes.check_shared(side, group);
  std::erase_if(parts, [&](const Part& part) {
    const auto damage = bad_input_of([&] { decode_part(decoding, part); });
    if (damage)
      damaged.add(codes.name(), part.document, codes.info().documents.names[part.document], *damage);
    return damage.has_value();
  });
}

std::string summary(const Decoded& decoded, const CodesReader& codes, double seconds,
                    const DecodeOptions& options, const Measures& left_out) {
  return one_row(joined({word("output", {"cache"}, options.output.path),
                         word("codec", {"from"}, codes.info().codec),
                         number_of("documents", {"documents"}, decoded.documents.count()),
                         number_of("tokens", {"tokens"}, decoded.documents.tokens()),
                         layers_measure(decoded.layers),
                         word("dtype", {"dtype"}, name_of(decoded.dtype)),
                         time_measure(seconds),
                         {"read_bytes", decoded.read_bytes},
                         {"read_seconds", decoded.read_seconds},
                         {"physical_bytes_read", codes.bytes_read()},
                         {"physical_reads", codes.reads()},
                         {"rebuild_seconds", std::max(0.0, decoded.decode_seconds - decoded.read_seconds)}},
                        left_out),
                 options.common.json);
}

std::string decode(Command& command) {
  DecodeOptions options;
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
  command.parse();
  if (!options.tokens.empty() && !options.select.empty())
    throw usage_error("--tokens and --select both say which tokens; give one");
  const auto list = number_ranges(options.select);
  options.check_files(command, {options.input, options.book, list ? "" : options.select}, true);

  const Stopwatch watch;
  const CodesReader codes(options.input);
  const CodesInfo& info = codes.info();
  const auto layers = options.layers.choose(stored_layers(info), codes.name());
  const auto documents = options.documents.choose(info.documents, codes.name());
  std::vector<TokenRange> ranges = list.value_or(std::vector<TokenRange>());
  if (!options.tokens.empty()) ranges.push_back(parse_token_range("--tokens", options.tokens));
  auto parts = options.select.empty() || list ? parts_in(codes, documents, ranges)
                                              : selected_parts(codes, documents, layers, options.select);
  check_held(codes, layers, parts);
  const auto lost = std::ranges::count_if(parts, [&](const Part& part) {
    return part.count != info.documents.length(part.document) &&
           !info.documents.facts_of(part.document).state.empty();
  });
  if (lost > 0)
    options.common.note(
        "{} of {} lost their state, which is that behind all tokens of a document: no model can go on from there",
        lost, counted(parts.size(), "part"));
  const CodecOfFile file_codec(codes, options.book, coding_engine(codec_entry(codes), options.common));
  Decoded decoded{.layers = layers, .dtype = options.dtype.value_or(info.source_dtype), .documents = {}};
  DamagedDocuments damaged;
  return run_to_file(
      options.output,
      [&](OutputFile& output) {
        size_t passes = 0;
        for (const int group : groups_of(layers, info)) passes += info.sides(group).size();
        uint64_t total = 0, done = 0;
        for (const Part& part : parts) total += part.count;
        std::optional<ProgressBar> bar;
        bar.emplace(options.keep_going ? "check" : "decode", "tokens", options.common.quiet);
        Decoding decoding{.codes = codes,
                          .codec = file_codec.codec(),
                          .budget = chunk_budget(options.common.memory_bytes(), info.book_bytes),
                          .decoded = decoded,
                          .writer = nullptr,
                          .count = [&](uint64_t rows) {
                            done += rows;
                            bar->update(static_cast<double>(done) / static_cast<double>(passes),
                                        static_cast<double>(total));
                          }};
        if (options.keep_going) {
          leave_out_undecodable(decoding, parts, damaged);
          damaged.report(command, options.common, parts.size());
          decoded.decode_seconds = decoded.read_seconds = 0, decoded.read_bytes = 0;
          bar.emplace("decode", "tokens", options.common.quiet);
          done = 0;
        }
        for (const Part& part : parts)
          decoded.documents.add(info.documents.names[part.document], part.count, left_out_of(codes, part));
        total = decoded.documents.tokens();
        KvWriter writer(output, info.model, decoded.dtype, layers, std::nullopt);
        if (decoded.dtype == info.source_dtype) writer.clip();
        writer.expect(decoded.documents);
        decoding.writer = &writer;
        for (const Part& part : parts) decode_part(decoding, part);
        writer.finish(command.provenance(merged_history({codes.type().history, file_codec.book_history()})));
        return 0;
      },
      [&](int) { return summary(decoded, codes, watch.seconds(), options, damaged.measures()); });
}

}  // namespace

CommandEntry decode_command() {
  return {CommandGroup::code, 3, "decode", "rebuild a cache, or a part of it, from its codes", decode};
}

}  // namespace kvcodec::cli
