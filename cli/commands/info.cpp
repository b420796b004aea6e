// kvcodec info FILE [options]
//
//   --layers LIST       only these layers    --documents LIST   only these documents    --json   all of it
//
//   kvcodec info codes.h5
#include <algorithm>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/codecs/sensitivity_text.hpp"
#include "cli/commands/subcommands.hpp"
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

/// Of any file: what it is, and what guards it.
std::string head_lines(const InfoOptions& options, const std::string& name, const FileType& type) {
  const Protection protection = protection_of(options.input);
  Facts facts;
  facts.add("guarded by", fmt::format("checksums: {}, digests: {}", name_of(protection.checksums),
                                      name_of(protection.digests)));
  return printable(fmt::format("{}: {}, format version {}, {}{}", name, type.type, type.version,
                               type.generator, type.created.empty() ? "" : ", " + type.created)) +
         "\n" + facts.text();
}

std::string history_text(const FileType& type) {
  std::string out = "\nhistory\n";
  for (const auto& line : type.history) out += "  " + printable(line) + "\n";
  return type.history.empty() ? "" : out;
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

Json json_of(const InfoOptions& options, const FileType& type) {
  const Protection protection = protection_of(options.input);
  return {{"type", type.type},
          {"version", type.version},
          {"generator", type.generator},
          {"created", type.created},
          {"history", type.history},
          {"checksums", protection.checksums},
          {"digests", protection.digests}};
}

Json chosen_documents_json(const Documents& documents, const std::vector<size_t>& chosen,
                           const char* what = "tokens") {
  Json json = Json::array();
  for (const size_t i : chosen)
    json.push_back({{"number", i}, {"name", documents.names[i]}, {what, documents.length(i)}});
  return json;
}

std::string kv_info(const InfoOptions& options) {
  const KvReader kv(options.input);
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  const auto documents = options.documents.choose(kv.documents(), kv.name());

  if (options.common.json) {
    Json json = json_of(options, kv.type());
    json["model"] = to_json(kv.model());
    json["layers"] = layers;
    json["dtype"] = name_of(kv.dtype());
    json["tokens"] = kv.documents().tokens();
    json["has_tokens"] = kv.has_tokens();
    json["file_bytes"] = kv.file_bytes();
    json["query_tokens"] = kv.query_tokens();
    json["documents"] = chosen_documents_json(kv.documents(), documents);
    add_held(json, kv.documents(), layers);
    return text_of(json);
  }
  Facts facts;
  add_model(facts, kv.model());
  facts.add("layers", ranges_text(layers));
  facts.add("elements", std::string(name_of(kv.dtype())));
  facts.add("tokens",
            fmt::format("{}{}", grouped(kv.documents().tokens()), kv.has_tokens() ? "" : " (ids not known)"));
  for (const auto& [name, text] : held_texts(kv.documents(), layers)) facts.add(name, text);
  facts.add("queries",
            kv.query_tokens() == 0 ? "none" : fmt::format("{} tokens per layer", grouped(kv.query_tokens())));
  facts.add("file", fmt::format("{} bytes", grouped(kv.file_bytes())));
  return head_lines(options, kv.name(), kv.type()) + facts.text() +
         documents_text(kv.documents(), documents, options.documents.given()) + history_text(kv.type());
}

/// What reports call the input.
std::string shown_name(const InfoOptions& options) {
  return options.input == "-" ? "standard input" : options.input;
}

std::string book_info(const InfoOptions& options) {
  const BookFile file = read_book(options.input, "", true);
  const std::string name = shown_name(options);
  std::vector<const Array*> needed, training;
  for (const auto& array : file.book.arrays)
    (array.name.starts_with(Book::kTrainingPrefix) ? training : needed).push_back(&array);

  if (options.common.json) {
    Json json = json_of(options, file.type);
    json["model"] = to_json(file.model);
    json["digest"] = file.digest;
    json["book_bytes"] = file.book.size_bytes();
    json["parameters"] = to_json(file.book.parameters);
    const auto list = [](const std::vector<const Array*>& arrays) {
      Json out = Json::array();
      for (const Array* a : arrays)
        out.push_back({{"name", a->name}, {"type", name_of(a->type)}, {"shape", a->shape}});
      return out;
    };
    json["arrays"] = list(needed);
    json["training"] = list(training);
    return text_of(json);
  }
  Facts facts;
  facts.add("digest", file.digest);
  facts.add("book", fmt::format("{} bytes", grouped(file.book.size_bytes())));
  add_model(facts, file.model);
  facts.add("parameters", record_text(file.book.parameters));
  Table table({{"array"}, {"type"}, {"shape"}, {"bytes"}});
  for (const auto* list : {&needed, &training})
    for (const Array* array : *list)
      table.row({array->name, std::string(name_of(array->type)), shape_text(array->shape),
                 grouped(array->bytes.size())});
  return head_lines(options, name, file.type) + facts.text() + "\n" + table.text() + history_text(file.type);
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

Json codes_json(const InfoOptions& options, const CodesReader& codes, const FileRate& rate,
                const Capabilities& can, const std::vector<int>& layers) {
  const CodesInfo& info = codes.info();
  Json json = json_of(options, codes.type());
  json["codec"] = info.codec;
  json["capabilities"] = {{"lossless", can.lossless},       {"appends", can.appends},
                          {"multiplies", can.multiplies},   {"has_index", can.has_index},
                          {"device_twin", can.device_twin}, {"device_pays", can.device_pays}};
  json["parameters"] = to_json(info.parameters);
  json["model"] = to_json(info.model);
  json["storage"] = name_of(info.storage);
  json["source_dtype"] = name_of(info.source_dtype);
  json["layers"] = layers;
  json["layer_group"] = info.layer_group;
  json["packed"] = info.packed;
  add_held(json, info.documents, layers);
  json["has_tokens"] = codes.has_tokens();
  json["book"] = info.book_type.empty() ? Json(nullptr)
                                        : Json{{"type", info.book_type},
                                               {"digest", info.book_digest},
                                               {"bytes", info.book_bytes},
                                               {"embedded", rate.embedded_book_bytes > 0}};
  json["rate"] = to_json(rate);
  json["sides"] = Json::array();
  for (const SideBits& side : side_bits_of(codes))
    json["sides"].push_back(
        {{"side", name_of(side.side)}, {"codec", side.codec}, {"bits_per_value", side.bits_per_value}});
  json["streams"] = streams_json(codes, layers);
  return json;
}

/// Of a pair of codecs: what each side takes. Of any other the codec says enough.
void add_sides(Facts& facts, const CodesReader& codes) {
  const CodecEntry* entry = known_codec(codes.info().codec);
  if (!entry || !entry->is_pair()) return;
  for (const SideBits& side : side_bits_of(codes))
    facts.add(plural(side.side), fmt::format("{}, {:.3f} bits per value", side.codec, side.bits_per_value));
}

Facts codes_facts(const CodesReader& codes, const FileRate& rate, const Capabilities& can,
                  const std::vector<int>& layers) {
  const CodesInfo& info = codes.info();
  Facts facts;
  facts.add("codec", info.codec);
  add_sides(facts, codes);
  facts.add("device", !can.device_twin  ? ""
                      : can.device_pays ? "CUDA, for some of the work (--device)"
                                        : "CUDA, only with --device cuda: the CPU is faster");
  facts.add("parameters", record_text(info.parameters));
  if (!info.book_type.empty())
    facts.add("book",
              fmt::format("{} with digest {}, {} bytes, {}", info.book_type, info.book_digest,
                          grouped(info.book_bytes), rate.embedded_book_bytes > 0 ? "inside" : "apart"));
  add_model(facts, info.model);
  facts.add("layers", fmt::format("{}, in groups of {}", ranges_text(layers), info.layer_group));
  facts.add("elements",
            fmt::format("{}, kept exactly as {}", name_of(info.source_dtype), name_of(info.storage)));
  facts.add("tokens", grouped(info.documents.tokens()));
  for (const auto& [name, text] : held_texts(info.documents, layers)) facts.add(name, text);
  facts.add("values", grouped(rate.ledger.values));
  const bool book = rate.ledger.book_bytes > 0;
  facts.add("ratio", fmt::format("{:.2f} to 16 bits{}, {:.2f} for the streams alone", rate.rate.ratio,
                                 book ? fmt::format(", {:.2f} with the book", rate.rate.ratio_with_book) : "",
                                 rate.stream_ratio()));
  if (book) facts.add("break-even", break_even_text(rate) + " tokens");
  return facts;
}

std::string codes_info(const InfoOptions& options) {
  const CodesReader codes(options.input);
  const CodesInfo& info = codes.info();
  const auto layers = options.layers.choose(stored_layers(info), codes.name());
  const auto documents = options.documents.choose(info.documents, codes.name());
  const FileRate rate = rate_of(codes);
  const Capabilities can = capabilities_of(info.codec);
  if (options.common.json) {
    Json json = codes_json(options, codes, rate, can, layers);
    json["documents"] = chosen_documents_json(info.documents, documents);
    return text_of(json);
  }
  return head_lines(options, codes.name(), codes.type()) + codes_facts(codes, rate, can, layers).text() +
         "\n" + ledger_table(rate) + "\n" + stream_table(codes, layers) +
         documents_text(info.documents, documents, options.documents.given()) + history_text(codes.type());
}

std::string index_info(const InfoOptions& options) {
  const IndexReader index(options.input);
  const IndexInfo& info = index.info();
  const auto layers = options.layers.choose(index.layers(), index.name());
  const auto documents = options.documents.choose(info.documents, index.name());
  if (options.common.json) {
    Json json = json_of(options, index.type());
    json["model"] = to_json(info.model);
    json["parameters"] = to_json(info.parameters);
    json["sink"] = info.sink;
    json["file_bytes"] = index.file_bytes();
    json["has_tokens"] = index.has_tokens();
    json["documents"] = chosen_documents_json(info.documents, documents);
    for (auto& document : json["documents"])
      document["batch_ends"] = info.batch_ends[document["number"].get<size_t>()];
    json["layers"] = Json::array();
    for (const int layer : layers)
      json["layers"].push_back({{"layer", layer}, {"clusters", index.clusters(layer)}});
    return text_of(json);
  }
  Facts facts;
  add_model(facts, info.model);
  facts.add("parameters", record_text(info.parameters));
  facts.add("layers", ranges_text(layers));
  facts.add("tokens", grouped(info.documents.tokens()));
  facts.add("file", fmt::format("{} bytes", grouped(index.file_bytes())));
  Table table({{"layer"}, {"clusters"}});
  for (const int layer : layers) table.row({fmt::format("{}", layer), grouped(index.clusters(layer))});
  return head_lines(options, index.name(), index.type()) + facts.text() + "\n" + table.text() +
         documents_text(info.documents, documents, options.documents.given()) + history_text(index.type());
}

std::string selection_info(const InfoOptions& options) {
  const SelectionFile file = read_selection_info(options.input);
  const std::string name = shown_name(options);
  if (options.common.json) {
    Json json = json_of(options, file.type);
    json["model"] = to_json(file.info.model);
    json["parameters"] = to_json(file.info.parameters);
    json["queries"] = file.info.query_rows.size();
    json["heads"] = file.info.heads;
    for (const auto& [layer, budget] : file.budgets)
      json["layers"].push_back({{"layer", layer}, {"budget", budget}});
    return text_of(json);
  }
  Facts facts;
  add_model(facts, file.info.model);
  facts.add("parameters", record_text(file.info.parameters));
  facts.add("queries", grouped(file.info.query_rows.size()));
  facts.add("heads", grouped(file.info.heads));
  Table table({{"layer"}, {"tokens", "at most"}});
  for (const auto& [layer, budget] : file.budgets) table.row({fmt::format("{}", layer), grouped(budget)});
  return head_lines(options, name, file.type) + facts.text() + "\n" + table.text() + history_text(file.type);
}

std::string sensitivity_info(const InfoOptions& options) {
  const SensitivityFile file = read_sensitivities(options.input);
  const std::string name = shown_name(options);
  if (options.common.json) {
    Json json = json_of(options, file.type);
    json["model"] = to_json(file.info.model);
    json["parameters"] = to_json(file.info.parameters);
    json["layers"] = sensitivity_json(file.info.layers, file.info.fisher);
    return text_of(json);
  }
  Facts facts;
  add_model(facts, file.info.model);
  facts.add("parameters", record_text(file.info.parameters));
  return head_lines(options, name, file.type) + facts.text() + "\n" +
         sensitivity_table(file.info.layers, file.info.fisher) + history_text(file.type);
}

std::string outputs_info(const InfoOptions& options) {
  const OutputsReader outputs(options.input);
  const OutputsInfo& info = outputs.info();
  const auto layers = options.layers.choose(info.layers, outputs.name());
  const auto documents = options.documents.choose(info.documents, outputs.name());
  if (options.common.json) {
    Json json = json_of(options, outputs.type());
    json["model"] = to_json(info.model);
    json["codec"] = info.codec;
    json["layers"] = layers;
    json["queries"] = outputs.queries();
    json["file_bytes"] = outputs.file_bytes();
    json["documents"] = chosen_documents_json(info.documents, documents, "queries");
    return text_of(json);
  }
  Facts facts;
  add_model(facts, info.model);
  facts.add("codec", info.codec);
  facts.add("layers", ranges_text(layers));
  facts.add("queries", fmt::format("{} tokens per layer", grouped(outputs.queries())));
  facts.add("file", fmt::format("{} bytes", grouped(outputs.file_bytes())));
  return head_lines(options, outputs.name(), outputs.type()) + facts.text() +
         documents_text(info.documents, documents, options.documents.given(), "queries") +
         history_text(outputs.type());
}

}  // namespace

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

}  // namespace kvcodec::cli
