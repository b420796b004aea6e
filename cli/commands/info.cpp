// kvcodec info FILE [options]
//
//   --layers LIST       only these layers    --documents LIST   only these documents    --json   all of it
//
//   kvcodec info codes.h5
#include <algorithm>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/codecs/sensitivity_text.hpp"
#include "cli/frame/command_entry.hpp"
#include "cli/frame/common.hpp"
#include "cli/frame/json.hpp"
#include "cli/frame/text.hpp"
#include "formats/cache/book_file.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/cache/protection.hpp"
#include "formats/results/index_file.hpp"
#include "formats/results/outputs_file.hpp"
#include "formats/results/selection_file.hpp"
#include "formats/results/sensitivity_file.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

// More documents than this are listed with --json or --documents only: a corpus would push all else off the
// screen.
constexpr size_t kDocumentsShown = 20;

struct InfoOptions final {
  std::string input;
  CommonOptions common;
  LayerSelection layers;
  DocumentSelection documents;
};

/// "name   value" lines, the names of one width.
class Facts {
 public:
  void add(std::string name, std::string_view value) {
    if (!value.empty()) lines_.emplace_back(std::move(name), printable(value));
  }
  std::string text() const {
    constexpr size_t kNameWidth = 14;
    std::string out;
    for (const auto& [name, value] : lines_) out += fmt::format("{:<{}}{}\n", name, kNameWidth, value);
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::string>> lines_;
};

std::string shape_text(const std::vector<uint64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, " x "));
}

std::string record_text(const Record& record) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : record.items())
    parts.push_back(fmt::format("{} {}", name, to_text(value)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// What a layer keeps, in words.
std::string shape_text(const LayerShape& shape) {
  if (shape.heads == 0)
    return shape.source < 0 ? "no keys and values" : fmt::format("those of layer {}", shape.source);
  return fmt::format("{}, keys of {} dimensions, values {} {}",
                     counted(static_cast<uint64_t>(shape.heads), "key/value head"), shape.key_dim,
                     shape.values_in_keys ? "the first" : "of", shape.value_dim);
}

/// "layers 0-3" and what each of them keeps, where layers differ.
std::vector<std::pair<std::string, std::string>> shape_texts(const ModelInfo& model) {
  std::vector<std::pair<LayerShape, std::vector<int>>> kinds;
  for (int layer = 0; layer < model.num_layers && !model.one_shape(); ++layer) {
    const auto same = [&](const auto& kind) { return kind.first == model.layer_shape(layer); };
    auto place = std::ranges::find_if(kinds, same);
    if (place == kinds.end()) place = kinds.insert(kinds.end(), {model.layer_shape(layer), {}});
    place->second.push_back(layer);
  }
  std::vector<std::pair<std::string, std::string>> texts;
  texts.reserve(kinds.size());
  for (const auto& [shape, layers] : kinds)
    texts.emplace_back(texts.empty() ? "layer shapes" : " ",
                       fmt::format("{}: {}", ranges_text(layers), shape_text(shape)));
  return texts;
}

void add_model(Facts& facts, const ModelInfo& model) {
  facts.add("model", model.model);
  const std::string counts = fmt::format("{}, {}", counted(static_cast<uint64_t>(model.num_layers), "layer"),
                                         counted(static_cast<uint64_t>(model.num_q_heads), "query head"));
  if (model.one_shape())
    facts.add("shape", fmt::format("{}, {} x {} dimensions", counts,
                                   counted(static_cast<uint64_t>(model.num_kv_heads), "key/value head"),
                                   model.head_dim));
  else
    facts.add("shape", counts);
  for (const auto& [layers, text] : shape_texts(model)) facts.add(layers, text);
  std::string rope = model.rope_theta > 0 ? fmt::format(", theta {}", model.rope_theta) : "";
  if (!model.rope_scaling.empty()) rope += ", scaling " + model.rope_scaling;
  facts.add("keys", model.key_state + rope);
  facts.add("source", model.source);
}

/// what: documents are so many of.
std::string documents_text(const Documents& documents, const std::vector<size_t>& chosen, bool asked,
                           const char* what = "tokens") {
  Table table({{"document"}, {"name", "", true}, {what}});
  size_t shown = 0;
  for (const size_t i : chosen) {
    if (shown++ == kDocumentsShown && !asked) break;
    table.row({fmt::format("{}", i), std::string(documents.names[i]), grouped(documents.length(i))});
  }
  std::string out = fmt::format("\n{}", table.text());
  if (!asked && chosen.size() > kDocumentsShown)
    out +=
        fmt::format("... and {} more; --documents shows those it names\n", chosen.size() - kDocumentsShown);
  return out;
}

/// "layers 0-3" and how many tokens they hold, where some leave out some.
std::vector<std::pair<std::string, std::string>> held_texts(const Documents& documents,
                                                            const std::vector<int>& layers) {
  std::vector<std::pair<uint64_t, std::vector<int>>> kinds;
  for (const int layer : layers) {
    if (documents.whole()) break;
    const uint64_t held = documents.held(layer);
    auto place = std::ranges::find(kinds, held, [](const auto& kind) { return kind.first; });
    if (place == kinds.end()) place = kinds.insert(kinds.end(), {held, {}});
    place->second.push_back(layer);
  }
  std::vector<std::pair<std::string, std::string>> texts;
  texts.reserve(kinds.size());
  for (const auto& [held, of_layers] : kinds)
    texts.emplace_back(texts.empty() ? "tokens held" : " ",
                       fmt::format("{}: {}", ranges_text(of_layers), grouped(held)));
  return texts;
}

/// Of each layer, the tokens it holds; nothing where all hold all.
void add_held(Json& json, const Documents& documents, const std::vector<int>& layers) {
  for (const int layer : layers)
    if (!documents.whole())
      json["held_tokens"].push_back({{"layer", layer}, {"tokens", documents.held(layer)}});
}

/// The description of a file: each fact once, for JSON and for people.
class Description {
 public:
  Description(const InfoOptions& options, std::string name, const FileType& type)
      : options_(options), name_(std::move(name)), type_(type) {
    const Protection protection = protection_of(options.input);
    json = {{"type", type.type},
            {"version", type.version},
            {"generator", type.generator},
            {"created", type.created},
            {"history", type.history},
            {"checksums", protection.checksums},
            {"digests", protection.digests}};
    facts.add("guarded by", fmt::format("checksums: {}, digests: {}", name_of(protection.checksums),
                                        name_of(protection.digests)));
  }

  void add(const char* key, Json value, const char* name, std::string_view text) {
    json[key] = std::move(value);
    facts.add(name, text);
  }
  void add(const ModelInfo& model) {
    json["model"] = to_json(model);
    add_model(facts, model);
  }
  void add(const Record& parameters) {
    add("parameters", to_json(parameters), "parameters", record_text(parameters));
  }
  void add_file_bytes(uint64_t bytes) {
    add("file_bytes", bytes, "file", fmt::format("{} bytes", grouped(bytes)));
  }
  /// what: documents are so many of.
  void add(const Documents& documents, const std::vector<size_t>& chosen, const char* what = "tokens") {
    json["documents"] = Json::array();
    for (const size_t i : chosen)
      json["documents"].push_back({{"number", i}, {"name", documents.names[i]}, {what, documents.length(i)}});
    sections += documents_text(documents, chosen, options_.documents.given(), what);
  }

  std::string report() const {
    if (options_.common.json) return text_of(json);
    std::string history = type_.history.empty() ? "" : "\nhistory\n";
    for (const auto& line : type_.history) history += "  " + printable(line) + "\n";
    return printable(fmt::format("{}: {}, format version {}, {}{}", name_, type_.type, type_.version,
                                 type_.generator, type_.created.empty() ? "" : ", " + type_.created)) +
           "\n" + facts.text() + sections + history;
  }

  Json json;
  Facts facts;
  std::string sections;  ///< for people, behind the facts

 private:
  const InfoOptions& options_;
  std::string name_;
  FileType type_;
};

std::string kv_info(const InfoOptions& options) {
  const KvReader kv(options.input);
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  const auto documents = options.documents.choose(kv.documents(), kv.name());
  const uint64_t tokens = kv.documents().tokens(), queries = kv.query_tokens();

  Description out(options, kv.name(), kv.type());
  out.add(kv.model());
  out.add("layers", layers, "layers", ranges_text(layers));
  out.add("dtype", name_of(kv.dtype()), "elements", name_of(kv.dtype()));
  out.add("tokens", tokens, "tokens",
          fmt::format("{}{}", grouped(tokens), kv.has_tokens() ? "" : " (ids not known)"));
  out.json["has_tokens"] = kv.has_tokens();
  out.json["file_bytes"] = nullptr;  // its place
  for (const auto& [name, text] : held_texts(kv.documents(), layers)) out.facts.add(name, text);
  out.add("query_tokens", queries, "queries",
          queries == 0 ? "none" : fmt::format("{} tokens per layer", grouped(queries)));
  out.add_file_bytes(kv.file_bytes());
  out.add(kv.documents(), documents);
  add_held(out.json, kv.documents(), layers);
  return out.report();
}

/// What reports call the input.
std::string shown_name(const InfoOptions& options) {
  return options.input == "-" ? "standard input" : options.input;
}

std::string book_info(const InfoOptions& options) {
  const BookFile file = read_book(options.input, "", true);
  Description out(options, shown_name(options), file.type);
  out.json["model"] = nullptr;  // its place
  out.add("digest", file.digest, "digest", file.digest);
  out.add("book_bytes", file.book.size_bytes(), "book",
          fmt::format("{} bytes", grouped(file.book.size_bytes())));
  out.add(file.model);
  out.add(file.book.parameters);
  Table table({{"array"}, {"type"}, {"shape"}, {"bytes"}});
  for (const bool training : {false, true}) {
    Json& list = out.json[training ? "training" : "arrays"] = Json::array();
    for (const Array& array : file.book.arrays) {
      if (array.name.starts_with(Book::kTrainingPrefix) != training) continue;
      list.push_back({{"name", array.name}, {"type", name_of(array.type)}, {"shape", array.shape}});
      table.row({array.name, std::string(name_of(array.type)), shape_text(array.shape),
                 grouped(array.bytes.size())});
    }
  }
  out.sections = "\n" + table.text();
  return out.report();
}

/// What this kvcodec can do with the codec's streams; all no for a codec that it does not have.
Capabilities capabilities_of(const std::string& codec) {
  if (const CodecEntry* entry = known_codec(codec)) return entry->capabilities;
  return {.appends = false};
}

/// The streams of chosen layers, in the order of the file.
template <class Use>  // (side, first layer, stream)
void for_each_stream(const CodesReader& codes, const std::vector<int>& layers, const Use& use) {
  for (const Side side : codes.info().sides())
    for (const int group : codes.info().groups) {
      const auto chosen = [&](int layer) {
        return layer >= group && layer < group + codes.info().layer_group;
      };
      if (std::ranges::none_of(layers, chosen) || !has_side(codes.info(), group, side)) continue;
      for (const StoredStream& stream : codes.streams(side, group)) use(side, group, stream);
    }
}

Json streams_json(const CodesReader& codes, const std::vector<int>& layers) {
  Json json = Json::array();
  for_each_stream(codes, layers, [&](Side side, int group, const StoredStream& stream) {
    json.push_back({{"stream", fmt::format("{}/{}", dataset_name(side, group), stream.spec.name)},
                    {"type", name_of(stream.spec.type)},
                    {"row_shape", stream.spec.row_shape},
                    {"category", name_of(stream.spec.category)},
                    {"shared", stream.spec.shared},
                    {"packed_bits", stream.packed_bits},
                    {"rows", stream.rows},
                    {"bytes", stream.bytes}});
  });
  return json;
}

/// Streams of the same side, name and row, over all chosen groups.
std::string stream_table(const CodesReader& codes, const std::vector<int>& layers) {
  struct Sum {
    std::string name;
    StoredStream stream;
    uint64_t rows = 0, bytes = 0;
  };
  std::vector<Sum> sums;
  for_each_stream(codes, layers, [&](Side side, int, const StoredStream& stream) {
    const std::string name = fmt::format("{}/{}", name_of(side), stream.spec.name);
    auto place = std::ranges::find_if(sums, [&](const Sum& sum) {
      return sum.name == name && sum.stream.spec.row_shape == stream.spec.row_shape;
    });
    if (place == sums.end()) place = sums.insert(sums.end(), {name, stream});
    place->rows += stream.rows;
    place->bytes += stream.bytes;
  });
  Table table({{"stream"}, {"type"}, {"row"}, {"kind", "", true}, {"bits"}, {"rows"}, {"bytes"}});
  for (const Sum& sum : sums) {
    const StreamSpec& spec = sum.stream.spec;
    table.row({sum.name, std::string(name_of(spec.type)), shape_text(spec.row_shape),
               std::string(name_of(spec.category)),
               fmt::format("{}", sum.stream.packed_bits ? sum.stream.packed_bits : 8 * size_of(spec.type)),
               grouped(sum.rows), grouped(sum.bytes)});
  }
  return table.text();
}

/// Of a pair of codecs: what each side takes. Of any other the codec says enough.
void add_sides(Facts& facts, const CodesReader& codes) {
  const CodecEntry* entry = known_codec(codes.info().codec);
  if (!entry || !entry->is_pair()) return;
  for (const SideBits& side : side_bits_of(codes))
    facts.add(plural(side.side), fmt::format("{}, {:.3f} bits per value", side.codec, side.bits_per_value));
}

void add_codec(Description& out, const CodesReader& codes) {
  const CodesInfo& info = codes.info();
  const Capabilities can = capabilities_of(info.codec);
  out.add("codec", info.codec, "codec", info.codec);
  add_sides(out.facts, codes);
  out.add("capabilities",
          {{"lossless", can.lossless},
           {"appends", can.appends},
           {"multiplies", can.multiplies},
           {"has_index", can.has_index},
           {"device_twin", can.device_twin},
           {"device_pays", can.device_pays}},
          "device",
          !can.device_twin  ? ""
          : can.device_pays ? "CUDA, for some of the work (--device)"
                            : "CUDA, only with --device cuda: the CPU is faster");
  out.add(info.parameters);
}

void add_book(Description& out, const CodesInfo& info, bool embedded) {
  out.json["book"] = nullptr;
  if (info.book_type.empty()) return;
  out.add("book",
          {{"type", info.book_type},
           {"digest", info.book_digest},
           {"bytes", info.book_bytes},
           {"embedded", embedded}},
          "book",
          fmt::format("{} with digest {}, {} bytes, {}", info.book_type, info.book_digest,
                      grouped(info.book_bytes), embedded ? "inside" : "apart"));
}

void add_rate(Facts& facts, const FileRate& rate) {
  facts.add("values", grouped(rate.ledger.values));
  const bool book = rate.ledger.book_bytes > 0;
  facts.add("ratio", fmt::format("{:.2f} to 16 bits{}, {:.2f} for the streams alone", rate.rate.ratio,
                                 book ? fmt::format(", {:.2f} with the book", rate.rate.ratio_with_book) : "",
                                 rate.stream_ratio()));
  if (book) facts.add("break-even", break_even_text(rate) + " tokens");
}

std::string codes_info(const InfoOptions& options) {
  const CodesReader codes(options.input);
  const CodesInfo& info = codes.info();
  const auto layers = options.layers.choose(stored_layers(info), codes.name());
  const auto documents = options.documents.choose(info.documents, codes.name());
  const FileRate rate = rate_of(codes);
  Description out(options, codes.name(), codes.type());
  add_codec(out, codes);
  for (const char* key : {"model", "storage", "source_dtype", "layers", "layer_group", "packed"})
    out.json[key] = nullptr;  // their places
  add_held(out.json, info.documents, layers);
  out.json["has_tokens"] = codes.has_tokens();
  add_book(out, info, rate.embedded_book_bytes > 0);
  out.add(info.model);
  out.add("layers", layers, "layers",
          fmt::format("{}, in groups of {}", ranges_text(layers), info.layer_group));
  out.json["layer_group"] = info.layer_group;
  out.json["packed"] = info.packed;
  out.json["storage"] = name_of(info.storage);
  out.add("source_dtype", name_of(info.source_dtype), "elements",
          fmt::format("{}, kept exactly as {}", name_of(info.source_dtype), name_of(info.storage)));
  out.facts.add("tokens", grouped(info.documents.tokens()));
  for (const auto& [name, text] : held_texts(info.documents, layers)) out.facts.add(name, text);
  add_rate(out.facts, rate);
  out.json["rate"] = to_json(rate);
  out.json["sides"] = Json::array();
  for (const SideBits& side : options.common.json ? side_bits_of(codes) : std::vector<SideBits>())
    out.json["sides"].push_back(
        {{"side", name_of(side.side)}, {"codec", side.codec}, {"bits_per_value", side.bits_per_value}});
  out.json["streams"] = streams_json(codes, layers);
  out.sections = "\n" + ledger_table(rate) + "\n" + stream_table(codes, layers);
  out.add(info.documents, documents);
  return out.report();
}

std::string index_info(const InfoOptions& options) {
  const IndexReader index(options.input);
  const IndexInfo& info = index.info();
  const auto layers = options.layers.choose(index.layers(), index.name());
  const auto documents = options.documents.choose(info.documents, index.name());
  Description out(options, index.name(), index.type());
  out.add(info.model);
  out.add(info.parameters);
  out.facts.add("layers", ranges_text(layers));
  out.facts.add("tokens", grouped(info.documents.tokens()));
  out.json["sink"] = info.sink;
  out.add_file_bytes(index.file_bytes());
  out.json["has_tokens"] = index.has_tokens();
  Table table({{"layer"}, {"clusters"}});
  Json clusters = Json::array();
  for (const int layer : layers) {
    clusters.push_back({{"layer", layer}, {"clusters", index.clusters(layer)}});
    table.row({fmt::format("{}", layer), grouped(index.clusters(layer))});
  }
  out.sections = "\n" + table.text();
  out.add(info.documents, documents);
  for (auto& document : out.json["documents"])
    document["batch_ends"] = info.batch_ends[document["number"].get<size_t>()];
  out.json["layers"] = clusters;
  return out.report();
}

std::string selection_info(const InfoOptions& options) {
  const SelectionFile file = read_selection_info(options.input);
  Description out(options, shown_name(options), file.type);
  out.add(file.info.model);
  out.add(file.info.parameters);
  out.add("queries", file.info.query_rows.size(), "queries", grouped(file.info.query_rows.size()));
  out.add("heads", file.info.heads, "heads", grouped(file.info.heads));
  Table table({{"layer"}, {"tokens", "at most"}});
  for (const auto& [layer, budget] : file.budgets) {
    out.json["layers"].push_back({{"layer", layer}, {"budget", budget}});
    table.row({fmt::format("{}", layer), grouped(budget)});
  }
  out.sections = "\n" + table.text();
  return out.report();
}

std::string sensitivity_info(const InfoOptions& options) {
  const SensitivityFile file = read_sensitivities(options.input);
  Description out(options, shown_name(options), file.type);
  out.add(file.info.model);
  out.add(file.info.parameters);
  out.json["layers"] = sensitivity_json(file.info.layers, file.info.fisher);
  out.sections = "\n" + sensitivity_table(file.info.layers, file.info.fisher);
  return out.report();
}

std::string outputs_info(const InfoOptions& options) {
  const OutputsReader outputs(options.input);
  const OutputsInfo& info = outputs.info();
  const auto layers = options.layers.choose(info.layers, outputs.name());
  const auto documents = options.documents.choose(info.documents, outputs.name());
  Description out(options, outputs.name(), outputs.type());
  out.add(info.model);
  out.add("codec", info.codec, "codec", info.codec);
  out.add("layers", layers, "layers", ranges_text(layers));
  out.add("queries", outputs.queries(), "queries",
          fmt::format("{} tokens per layer", grouped(outputs.queries())));
  out.add_file_bytes(outputs.file_bytes());
  out.add(info.documents, documents, "queries");
  return out.report();
}

std::string info(Command& command) {
  InfoOptions options;
  command.describe("FILE [options]",
                   "Says what is in a file of any kvcodec type: what it was made from and how, its shape, "
                   "its documents; for codes also where every byte went (the ledger) and how each stream "
                   "lies in the file. Only headers are read, not the data.",
                   "kvcodec info codes.h5\n"
                   "kvcodec info codes.h5 --json | jq .rate.bits_per_value");
  command.group("Input");
  command.input(
      "FILE",
      "kv, dictionary, codebooks, transform, codes, index, selection, outputs or sensitivity file; - is standard input",
      options.input);
  options.layers.declare(command);
  options.documents.declare(command);
  options.common.declare(command);
  command.parse();
  options.common.apply(command, false);

  const FileType type = identify(options.input);
  if (type.type == "kv") return kv_info(options);
  if (type.type == "codes") return codes_info(options);
  if (type.type == "outputs") return outputs_info(options);
  if (type.type == "index") return index_info(options);
  if (options.layers.given() || options.documents.given())
    throw usage_error("{}: of a {} file info shows everything; leave out --layers and --documents",
                      options.input, type.type);
  if (is_book_type(type.type)) return book_info(options);
  if (type.type == "selection") return selection_info(options);
  if (type.type == "sensitivity") return sensitivity_info(options);
  throw bad_input("{}: info does not know files of type '{}'", options.input, type.type);
}

}  // namespace

CommandEntry info_command() { return {CommandGroup::look, 1, "info", "say what is in a file", info}; }

}  // namespace kvcodec::cli
