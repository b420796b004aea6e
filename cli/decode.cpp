// kvcodec decode CODES [options] -o KV
//
//   --book FILE         the book the codes were made with, unless it is inside     --dtype TYPE    of the
//   product (that of the source)
//   --documents LIST    only these documents    --tokens A:B   only these tokens of each    --layers LIST
//   only these layers
//
//   kvcodec decode codes.h5 --book dict.h5 --documents 3 --tokens 0:128 -o part.h5
#include <algorithm>
#include <chrono>

#include "cli/coding.hpp"
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/progress.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "formats/kv_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

struct DecodeOptions final : Options {
  std::string input, book, dtype, tokens;
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
    };
  }
};

/// Tokens [first, first + count) of one stored document.
struct Part {
  size_t document = 0;
  uint64_t first = 0, count = 0;
};

std::vector<Part> chosen_parts(const CodesReader& codes, const std::vector<size_t>& documents,
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

class Decoder {
 public:
  Decoder(const CodesReader& codes, const Codec& codec, std::vector<int> layers, uint64_t budget)
      : codes_(codes),
        codec_(codec),
        layers_(std::move(layers)),
        groups_(groups_of(layers_, codes.info().layer_group)),
        budget_(budget) {}

  void run(const Part& part, KvWriter& writer, const std::function<void(uint64_t)>& count) {
    for (const int group : groups_)
      for (const Side side : kSides) {
        const GroupShape shape = group_shape(codes_.info().model, group, codes_.info().layer_group, side);
        at_dataset(codes_.name(), side, group, [&] {
          const auto document = stored_document(codes_, codec_, shape, part.document);
          decode(shape, *document, part, writer, count);
        });
      }
  }

  size_t passes() const { return groups_.size() * std::size(kSides); }

 private:
  void decode(const GroupShape& shape, const StreamReader& document, const Part& part, KvWriter& writer,
              const std::function<void(uint64_t)>& count) {
    const size_t chunk =
        chunk_rows(budget_, shape.width() * sizeof(float) + codec_.scratch_bytes_per_row(shape));
    const size_t layer_width = shape.width() / static_cast<size_t>(shape.layers);
    if (rows_.rows() < std::min<uint64_t>(chunk, part.count) || rows_.cols() != shape.width())
      rows_ = Matrix<float>(std::min<uint64_t>(chunk, part.count), shape.width());
    for (uint64_t first = 0; first < part.count; first += chunk) {
      const auto piece =
          rows_.view().rows(0, static_cast<size_t>(std::min<uint64_t>(chunk, part.count - first)));
      codec_.decode(shape, document, part.first + first, piece);
      for (int i = 0; i < shape.layers; ++i)
        if (const int layer = shape.first_layer + i;
            std::find(layers_.begin(), layers_.end(), layer) != layers_.end())
          writer.append(shape.side, layer, piece.columns(static_cast<size_t>(i) * layer_width, layer_width));
      count(piece.rows());
    }
  }

  const CodesReader& codes_;
  const Codec& codec_;
  std::vector<int> layers_, groups_;
  uint64_t budget_;
  Matrix<float> rows_;
};

}  // namespace

std::string decode(Command& command) {
  DecodeOptions options;
  command.describe("CODES [options] -o KV",
                   "Rebuilds a cache, or chosen documents, layers and tokens of it, from a codes file made "
                   "by any codec, and writes a kv file. Only what is asked for is read. Token ids and "
                   "positions are kept.",
                   "kvcodec decode codes.h5 --book dict.h5 -o recon.h5\n"
                   "kvcodec decode codes.h5 --book dict.h5 --documents 3 --tokens 0:128 -o part.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  options.output.declare(command, "kv file to write");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Decoding");
  command.options(options, {{"book", "FILE"}, {"tokens", "A:B"}});
  options.common.declare(command);
  command.parse();
  options.output.check(options.common);
  check_inputs({options.input, options.book});
  options.common.apply(command, false);

  const auto start = std::chrono::steady_clock::now();
  const CodesReader codes(options.input);
  const CodesInfo& info = codes.info();
  const auto layers = options.layers.choose(stored_layers(info), codes.name());
  const auto parts =
      chosen_parts(codes, options.documents.choose(info.documents, codes.name()), options.tokens);
  const CodecOfFile file_codec(codes, options.book);
  const DType dtype = options.dtype.empty() ? info.source_dtype : dtype_from_name(options.dtype);

  OutputFile output(options.output.path, options.output.overwrite);
  KvWriter writer(output, info.model, dtype, layers, false);
  uint64_t total = 0;
  for (const auto& part : parts) total += part.count;
  writer.expect_tokens(total);
  {
    ProgressBar bar("decode", "tokens", options.common.quiet);
    Decoder decoder(codes, file_codec.codec(), layers,
                    chunk_budget(options.common.memory_bytes(), info.book_bytes));
    uint64_t done = 0;
    for (const auto& part : parts) {
      const uint64_t first = info.documents.offsets[part.document] + part.first;
      writer.add_document(info.documents.names[part.document],
                          codes.has_tokens() ? codes.tokens(first, part.count) : std::vector<uint32_t>{},
                          codes.positions(first, part.count));
      decoder.run(part, writer, [&](uint64_t count) {
        done += count;
        bar.update(static_cast<double>(done) / static_cast<double>(decoder.passes()),
                   static_cast<double>(total));
      });
    }
  }
  writer.finish(command.provenance(merged_history({codes.type().history, file_codec.book_history()})));
  output.commit();
  if (options.output.to_stdout()) return "";

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.common.json)
    return text_of({{"output", options.output.path},
                    {"codec", info.codec},
                    {"documents", parts.size()},
                    {"tokens", total},
                    {"layers", layers},
                    {"dtype", name_of(dtype)},
                    {"seconds", seconds}});
  Table table({{"cache"}, {"from"}, {"documents"}, {"tokens"}, {"layers"}, {"dtype"}, {"time"}});
  table.row({options.output.path, info.codec, grouped(parts.size()), grouped(total), ranges_text(layers),
             std::string(name_of(dtype)), time_text(seconds)});
  return table.text();
}

}  // namespace kvcodec::cli
