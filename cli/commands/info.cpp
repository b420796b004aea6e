#include <algorithm>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "formats/cache/protection.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec::cli {
namespace {

// Longer lists are shown only with --json or --documents: a corpus would push everything else off the screen.
constexpr size_t kDocumentsShown = 20;

struct InfoOptions final : CommandOptions {
  std::string input;
};

std::string shape_text(const std::vector<uint64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, " x "));
}

std::string shape_text(const LayerShape& shape) {
  if (shape.heads == 0)
    return shape.source < 0 ? "no keys and values" : fmt::format("those of layer {}", shape.source);
  return fmt::format("{}, keys of {} dimensions, values {} {}",
                     counted(static_cast<uint64_t>(shape.heads), "key/value head"), shape.key_dim,
                     shape.values_in_keys ? "the first" : "of", shape.value_dim);
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
    fact("guarded by", fmt::format("checksums: {}, digests: {}", name_of(protection.checksums),
                                   name_of(protection.digests)));
  }

  /// A fact for people only; nothing for an empty value.
  void fact(std::string_view name, std::string_view value) {
    if (!value.empty()) facts_ += fmt::format("{:<14}{}\n", name, printable(value));
  }
  void add(const char* key, Json value, const char* name, std::string_view text) {
    json[key] = std::move(value);
    fact(name, text);
  }
  void add(const ModelInfo& model);
  void add(const Record& parameters) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : parameters.items())
      parts.push_back(fmt::format("{} {}", name, to_text(value)));
    add("parameters", to_json(parameters), "parameters", fmt::format("{}", fmt::join(parts, ", ")));
  }
  void add_spare(const DocumentList& list) {
    json.update(json_of(note_spare(options_.common, options_.input, list)));
  }
  void add_file_bytes(uint64_t bytes) {
    add("file_bytes", bytes, "file", fmt::format("{} bytes", grouped(bytes)));
  }
  /// what: the unit of the documents' lengths.
  void add(const Documents& documents, const std::vector<size_t>& chosen, const char* what = "tokens");
  /// "0-3: …" for layers of one kind, in the order of their first.
  template <class KindOf, class TextOf>
  void add_kinds(const char* name, const std::vector<int>& layers, const KindOf& kind_of,
                 const TextOf& text_of) {
    std::vector<std::pair<decltype(kind_of(0)), std::vector<int>>> kinds;
    for (const int layer : layers) {
      const auto kind = kind_of(layer);
      auto place = std::ranges::find(kinds, kind, [](const auto& known) { return known.first; });
      if (place == kinds.end()) place = kinds.insert(kinds.end(), {kind, {}});
      place->second.push_back(layer);
    }
    for (const auto& [kind, alike] : kinds) {
      fact(name, fmt::format("{}: {}", ranges_text(alike), text_of(kind)));
      name = " ";
    }
  }
  /// Adds how many tokens each layer holds, in JSON and for people; nothing if all layers hold all tokens.
  void add_held(const Documents& documents, const std::vector<int>& layers) {
    if (documents.whole()) return;
    const auto held = [&](int layer) { return documents.held(layer); };
    add_kinds("tokens held", layers, held, grouped);
    for (const int layer : layers) json["held_tokens"].push_back({{"layer", layer}, {"tokens", held(layer)}});
  }

  std::string report() const {
    if (options_.common.json) return text_of(json);
    std::string history = type_.history.empty() ? "" : "\nhistory\n";
    for (const auto& line : type_.history) history += "  " + printable(line) + "\n";
    return printable(fmt::format("{}: {}, format version {}, {}{}", name_, type_.type, type_.version,
                                 type_.generator, type_.created.empty() ? "" : ", " + type_.created)) +
           "\n" + facts_ + sections + history;
  }

  Json json;
  std::string sections;  ///< for people, behind the facts

 private:
  const InfoOptions& options_;
  std::string name_;
  FileType type_;
  std::string facts_;  ///< "name   value" lines
};

void Description::add(const ModelInfo& model) {
  json["model"] = to_json(model);
  fact("model", model.model);
  const std::string heads =
      model.one_shape()
          ? fmt::format(", {} x {} dimensions",
                        counted(static_cast<uint64_t>(model.num_kv_heads), "key/value head"), model.head_dim)
          : "";
  fact("shape", fmt::format("{}, {}{}", counted(static_cast<uint64_t>(model.num_layers), "layer"),
                            counted(static_cast<uint64_t>(model.num_q_heads), "query head"), heads));
  add_kinds(
      "layer shapes", numbers_below<int>(model.one_shape() ? 0 : as_size(model.num_layers)),
      [&](int layer) { return model.layer_shape(layer); },
      [](const LayerShape& shape) { return shape_text(shape); });
  std::string rope = model.rope_theta > 0 ? fmt::format(", theta {}", model.rope_theta) : "";
  if (!model.rope_scaling.empty()) rope += ", scaling " + model.rope_scaling;
  fact("keys", model.key_state + rope);
  fact("source", model.source);
}

void Description::add(const Documents& documents, const std::vector<size_t>& chosen, const char* what) {
  Json& list = json["documents"] = Json::array();
  Table table({{"document"}, {"name", "", true}, {what}});
  const size_t shown = options_.documents.given() ? chosen.size() : std::min(chosen.size(), kDocumentsShown);
  for (const size_t i : chosen) {
    if (list.size() < shown)
      table.row({fmt::format("{}", i), std::string(documents.names[i]), grouped(documents.length(i))});
    list.push_back({{"number", i}, {"name", documents.names[i]}, {what, documents.length(i)}});
  }
  sections += "\n" + table.text();
  if (shown < chosen.size())
    sections += fmt::format("... and {} more; --documents shows those it names\n", chosen.size() - shown);
}

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
  for (const char* key : {"file_bytes", "query_tokens", "documents"})
    out.json[key] = nullptr;  // reserves their place
  out.add_held(kv.documents(), layers);
  out.add("query_tokens", queries, "queries",
          queries == 0 ? "none" : fmt::format("{} tokens per layer", grouped(queries)));
  if (const uint64_t state = kv.state_bytes(); state > 0)
    out.add("state_bytes", state, "state", fmt::format("{} bytes", grouped(state)));
  out.add_file_bytes(kv.file_bytes());
  out.add_spare(list_documents(kv));
  out.add(kv.documents(), documents);
  return out.report();
}

std::string shown_name(const InfoOptions& options) {
  return options.input == "-" ? "standard input" : options.input;
}

std::string book_info(const InfoOptions& options) {
  const BookFile file = read_book(options.input, "", true);
  Description out(options, shown_name(options), file.type);
  out.json["model"] = nullptr;  // reserves its place
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

template <class Use>  // (side, first layer, stream)
void for_each_stream(const CodesReader& codes, const std::vector<int>& layers, const Use& use) {
  for (const Side side : codes.info().sides())
    for (const int group : codes.info().groups) {
      const auto chosen = [&](int layer) { return codes.info().group_of(layer) == group; };
      if (std::ranges::none_of(layers, chosen) || !has_side(codes.info(), group, side)) continue;
      for (const StoredStream& stream : codes.streams(side, group)) use(side, group, stream);
    }
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

void add_codec(Description& out, const CodesReader& codes) {
  const CodesInfo& info = codes.info();
  const CodecEntry* entry = known_codec(info.codec);
  // This kvcodec cannot use streams of a codec that it does not have.
  const Capabilities can = entry ? entry->capabilities : Capabilities{.appends = false};
  out.add("codec", info.codec, "codec", info.codec);
  if (entry && entry->is_pair())  // for any other, the codec is enough
    for (const SideBits& side : side_bits_of(codes))
      out.fact(plural(side.side), fmt::format("{}, {:.3f} bits per value", side.codec, side.bits_per_value));
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

std::string codes_info(const InfoOptions& options) {
  const CodesReader codes(options.input);
  const CodesInfo& info = codes.info();
  const auto layers = options.layers.choose(stored_layers(info), codes.name());
  const auto documents = options.documents.choose(info.documents, codes.name());
  const FileRate rate = rate_of(codes);
  Description out(options, codes.name(), codes.type());
  add_codec(out, codes);
  for (const char* key : {"model", "storage", "source_dtype", "layers", "layer_group", "packed"})
    out.json[key] = nullptr;  // reserves their place
  if (!info.documents.whole()) out.json["held_tokens"] = nullptr;
  out.json["has_tokens"] = codes.has_tokens();
  out.json["book"] = nullptr;
  if (!info.book_type.empty())
    out.add("book",
            {{"type", info.book_type},
             {"digest", info.book_digest},
             {"bytes", info.book_bytes},
             {"embedded", rate.embedded_book_bytes > 0}},
            "book",
            fmt::format("{} with digest {}, {} bytes, {}", info.book_type, info.book_digest,
                        grouped(info.book_bytes), rate.embedded_book_bytes > 0 ? "inside" : "apart"));
  out.add(info.model);
  out.add("layers", layers, "layers",
          fmt::format("{}, in groups of {}", ranges_text(layers), info.layer_group));
  out.json["layer_group"] = info.layer_group;
  out.json["packed"] = info.packed;
  out.json["storage"] = name_of(info.storage);
  out.add("source_dtype", name_of(info.source_dtype), "elements",
          fmt::format("{}, kept exactly as {}", name_of(info.source_dtype), name_of(info.storage)));
  out.fact("tokens", grouped(info.documents.tokens()));
  out.add_held(info.documents, layers);
  out.fact("values", grouped(rate.ledger.values));
  const bool book = rate.ledger.book_bytes > 0;
  out.fact("ratio", fmt::format("{:.2f} to 16 bits{}, {:.2f} for the streams alone", rate.rate.ratio,
                                book ? fmt::format(", {:.2f} with the book", rate.rate.ratio_with_book) : "",
                                rate.stream_ratio()));
  if (book) out.fact("break-even", break_even_text(rate) + " tokens");
  out.json["rate"] = to_json(rate);
  out.add_spare(list_documents(codes));
  out.json["sides"] = Json::array();
  for (const SideBits& side : options.common.json ? side_bits_of(codes) : std::vector<SideBits>())
    out.json["sides"].push_back(
        {{"side", name_of(side.side)}, {"codec", side.codec}, {"bits_per_value", side.bits_per_value}});
  Json& list = out.json["streams"] = Json::array();
  for_each_stream(codes, layers, [&](Side side, int group, const StoredStream& stream) {
    list.push_back({{"stream", fmt::format("{}/{}", dataset_name(side, group), stream.spec.name)},
                    {"type", name_of(stream.spec.type)},
                    {"row_shape", stream.spec.row_shape},
                    {"category", name_of(stream.spec.category)},
                    {"shared", stream.spec.shared},
                    {"packed_bits", stream.packed_bits},
                    {"rows", stream.rows},
                    {"bytes", stream.bytes}});
  });
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
  out.fact("layers", ranges_text(layers));
  out.fact("tokens", grouped(info.documents.tokens()));
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
  out.json["layers"] = sensitivity_json(file.info);
  out.sections = "\n" + sensitivity_table(file.info);
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
