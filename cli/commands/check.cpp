#include <map>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "formats/cache/protection.hpp"
#include "lib/codec/kinds.hpp"
#include "lib/core/fault.hpp"

namespace kvcodec::cli {
namespace {

/// The reason why a file is not good: bits of the exit status, for scripts. They are above the statuses that all commands have, and
/// below those of signals.
enum FaultBit : uint8_t { kFormat = 8, kDamage = 16, kBook = 32 };
const char* name_of(FaultBit bit) { return bit == kFormat ? "format" : bit == kDamage ? "damage" : "book"; }

struct CheckOptions final : CommandOptions {
  std::vector<std::string> inputs;
  std::string book;
};

struct Fault {
  FaultBit bit;
  std::string message;
};

struct Checked {
  std::string name, type;
  Protection protection;
  std::vector<Fault> faults;
  Measures spare = {};  ///< note_spare()

  void add(FaultBit bit, const std::string& message) {
    // Readers may report damage that was found before.
    for (const Fault& fault : faults)
      if (fault.message == message) return;
    faults.push_back({bit, message});
  }
};

/// Runs action(); an input error that it throws is recorded as a fault of that kind.
template <class Action>
void note_fault(Checked& checked, FaultBit bit, const Action& action) {
  if (const auto error = bad_input_of(action)) checked.add(bit, error->what());
}

constexpr uint64_t kRowsBytes = uint64_t{16} << 20;

/// Throws Error(bad_input) unless digests match the token ids and the tensors of states, and metadata are JSON objects.
void check_facts(const TokenFile& file) {
  const Documents& documents = file.documents();
  if (documents.facts.empty()) return;
  for (size_t i = 0; i < documents.count(); ++i) {
    const DocumentFacts facts = documents.facts_of(i);
    for (const StateTensor& tensor : facts.state) (void)tensor.load();
    (void)metadata_json(facts, fmt::format("{}: document {}", file.name(), i));
    if (facts.digest && (!file.has_tokens() || token_digest(file.tokens_of(i)) != *facts.digest))
      throw bad_input("{}: document {} ('{}') has the digest {}, which is not that of its token ids",
                      file.name(), i, documents.names[i], hex_of(*facts.digest));
  }
}

/// Calls read(first, out) for chunks of the rows [begin, end); reading verifies them.
template <class Read>
void read_chunks(uint64_t begin, uint64_t end, size_t width, const Read& read) {
  Matrix<float> rows(std::min<uint64_t>(chunk_rows(kRowsBytes, width * sizeof(float)), end - begin), width);
  for (uint64_t first = begin; first < end; first += rows.rows())
    read(first, rows.view().rows(0, static_cast<size_t>(std::min<uint64_t>(rows.rows(), end - first))));
}

void check_kv(const std::string& name, const std::function<void(double)>& progress) {
  const KvReader kv(name);
  if (kv.has_tokens()) (void)kv.tokens(0, kv.documents().tokens());
  check_facts(kv);
  size_t done = 0;
  for (const int layer : kv.layers()) {
    for (const Side side : kSides)
      if (const size_t width = kv.model().layer_shape(layer).width(side); width > 0)
        for (const auto& [begin, end] : kv.documents().held_runs(layer))
          read_chunks(begin, end, width,
                      [&](uint64_t first, MatrixView<float> rows) { kv.read(side, layer, first, rows); });
    progress(static_cast<double>(++done) / static_cast<double>(kv.layers().size()));
  }
  for (const int layer : kv.query_layers()) (void)kv.queries(layer);
}

void check_index(const std::string& name) {
  const IndexReader index(name);
  const IndexInfo& info = index.info();
  if (index.has_tokens()) (void)index.tokens(0, info.documents.tokens());
  for (const int layer : index.layers())
    for (size_t document = 0; document < info.documents.count(); ++document)
      for (size_t head = 0; head < as_size(info.model.layer_shape(layer).heads); ++head)
        (void)index.read(layer, document, head);
}

void check_outputs(const std::string& name) {
  const OutputsReader outputs(name);
  const ModelInfo& model = outputs.info().model;
  (void)outputs.positions(0, outputs.queries());
  (void)outputs.token_rows(0, outputs.queries());
  for (const int layer : outputs.info().layers)
    read_chunks(0, outputs.queries(),
                as_size(model.num_q_heads) * as_size(model.layer_shape(layer).value_dim),
                [&](uint64_t first, MatrixView<float> rows) { outputs.read(layer, first, rows); });
}

/// Checks a book against its digest and against the requirements of the codecs that use it.
void check_book(const std::string& name) {
  const BookFile file = read_book(name, "", true);
  for (const CodecEntry& entry : codecs()) {
    if (entry.book_type != file.type.type) continue;
    const auto options = entry.make_options();
    try {
      (void)make_for_kinds(entry, *options, context_of(file.model, DType::bf16, &file.book));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bad_input)
        throw error.at(name);  // the default options may not fit: no fault
    }
  }
}

/// Files of books by their digests.
using Books = std::map<std::string, std::string>;

void check_codes(Checked& checked, const Books& books, const CommonOptions& common,
                 const std::function<void(double)>& progress) {
  const CodesReader codes(checked.name);
  const uint64_t total = codes.info().documents.tokens();
  if (codes.has_tokens()) (void)codes.tokens(0, total);
  (void)codes.positions(0, total);
  (void)codes.ledger();
  check_facts(codes);
  const CodesInfo& info = codes.info();
  const auto place = info.book_type.empty() ? books.end() : books.find(info.book_digest);
  if (!info.book_type.empty() && place == books.end() && !codes.embedded_book())
    return checked.add(kBook, fmt::format("{}: is not decoded: it needs the {} with digest {}, which is not "
                                          "among the files given",
                                          checked.name, info.book_type, info.book_digest));
  const CodecOfFile codec(codes, place == books.end() ? "" : place->second);
  decode_all(codes, codec.codec(), chunk_budget(common.memory_bytes(), codes.info().book_bytes), progress);
}

Checked check_file(const std::string& name, const Books& books, const CommonOptions& common) {
  Checked checked{.name = name, .type = {}, .protection = {}, .faults = {}};
  ProgressBar bar("check " + printable(name), "%", common.quiet);
  note_fault(checked, kFormat, [&] {
    checked.type = identify(name).type;
    checked.protection = protection_of(name);
    for (const std::string& message : find_damage(name, [&](uint64_t done, uint64_t total) {
           bar.update(50 * static_cast<double>(done) / static_cast<double>(std::max<uint64_t>(total, 1)),
                      100);
         }))
      checked.add(kDamage, message);
  });
  if (!checked.type.empty())
    note_fault(checked, kFormat, [&] {
      const auto progress = [&](double done) { bar.update(50 + 50 * done, 100); };
      const std::string& type = checked.type;
      if (type == "kv") return check_kv(name, progress);
      if (type == "codes") return check_codes(checked, books, common, progress);
      if (type == "index") return check_index(name);
      if (type == "outputs") return check_outputs(name);
      if (type == "sensitivity") return (void)read_sensitivities(name);
      if (type != "selection") return check_book(name);
      for (const auto& [layer, budget] : read_selection_info(name).budgets)
        (void)read_selections(name, layer);
    });
  if (checked.faults.empty() && (checked.type == "kv" || checked.type == "codes"))
    note_fault(checked, kFormat, [&] { checked.spare = note_spare(common, name, list_documents(name)); });
  return checked;
}

std::string check(Command& command) {
  CheckOptions options;
  command.describe(
      "FILE... [options]",
      "Reads files of any kvcodec type whole and holds them to what kvcodec-format(5) requires, to their "
      "checksums and to their digests. Codes are decoded, with their books. A line for each good file, "
      "or for each fault, is the result.\n\n"
      "Exit status, beside those of all commands: the sum of 8 (a file cannot be read, or is not as the "
      "format requires), 16 (a checksum or a digest does not hold) and 32 (the book of some codes is "
      "missing, so that they were not decoded).",
      "kvcodec check kv.h5 dict.h5 codes.h5\n"
      "kvcodec check codes.h5 --book dict.h5 --json | jq .files[].faults");
  command.group("Input");
  command.inputs("FILE", "files of any type; books among them serve the codes", options.inputs);
  command.option({"book", "a book that is not checked itself, for the codes among the files", &options.book},
                 "FILE");
  options.common.declare(command);
  command.parse();
  options.common.apply(command, false);
  check_inputs(options.inputs);

  // Unreadable books are not used for codes; their faults are reported where they are checked.
  Books books;
  const auto add = [&](const std::string& name) {
    if (is_book_type(identify(name).type)) books[read_book(name, "", false).digest] = name;
  };
  if (!options.book.empty()) {
    add(options.book);
    if (books.empty()) throw bad_input("{}: is not a book", options.book);
  }
  for (const std::string& name : options.inputs) (void)bad_input_of([&] { add(name); });
  std::string text;
  Json files = Json::array();
  int status = 0;
  for (const std::string& name : options.inputs) {
    const Checked checked = check_file(name, books, options.common);
    if (checked.faults.empty())
      text +=
          fmt::format("{}: {}, good (checksums: {}, digests: {})\n", printable(checked.name), checked.type,
                      name_of(checked.protection.checksums), name_of(checked.protection.digests));
    Json faults = Json::array();
    for (const Fault& fault : checked.faults) {
      status |= fault.bit;
      text += fmt::format("{} ({})\n", printable(fault.message), name_of(fault.bit));
      faults.push_back({{"kind", name_of(fault.bit)}, {"message", fault.message}});
    }
    Json& json =
        files.emplace_back(Json{{"file", checked.name}, {"type", nullptr}, {"good", checked.faults.empty()}});
    if (!checked.type.empty()) {
      json["type"] = checked.type;
      json["checksums"] = checked.protection.checksums;
      json["digests"] = checked.protection.digests;
    }
    json.update(json_of(checked.spare));
    json["faults"] = faults;
  }
  command.set_status(status);
  return options.common.json ? text_of({{"files", files}, {"status", status}}) : text;
}

}  // namespace

CommandEntry check_command() {
  return {CommandGroup::look, 2, "check", "test files against the format, checksums and digests", check};
}

}  // namespace kvcodec::cli
