#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/frame/common.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/sparse/codec/streams.hpp"

namespace kvcodec::cli {
namespace {

struct PackOptions final : CommandOptions {
  std::string input;
  bool unpack = false;
  bool sorted = false;

  std::vector<OptionField> fields() override {
    return {
        {"unpack", "store ids plainly again", &unpack},
        {"sorted", "ids of each sparse code in rising order, their gaps and the coefficients entropy-coded",
         &sorted}};
  }
  void check() const override {
    if (unpack && sorted) throw usage_error("--unpack and --sorted exclude each other");
  }
};

struct PackResult {
  RepackResult ids;
  bool sorted = false;
  FileRate before, after;
};

std::string summary(const PackResult& result, const PackOptions& options) {
  if (options.common.json)
    return text_of({{"output", options.output.path},
                    {"packed", !options.unpack},
                    {"sorted", result.sorted},
                    {"index_bytes_before", result.ids.index_bytes_before},
                    {"index_bytes_after", result.ids.index_bytes_after},
                    {"before", to_json(result.before)},
                    {"after", to_json(result.after)}});
  MeasureTable table("codes");
  const auto row = [&](const std::string& name, uint64_t ids, const FileRate& rate) {
    table.row(name, {number_of(nullptr, {"ids", "bytes"}, ids),
                     number_of(nullptr, {"file", "bytes"}, rate.file_bytes),
                     decimal(nullptr, {"bits/value"}, rate.rate.bits_per_value, 3),
                     decimal(nullptr, {"ratio"}, rate.rate.ratio, 2)});
  };
  row(options.input, result.ids.index_bytes_before, result.before);
  row(options.output.path, result.ids.index_bytes_after, result.after);
  return table.text();
}

uint64_t id_bytes(const CodesReader& codes) {
  return codes.ledger().category[static_cast<size_t>(Category::ids)];
}

RepackResult copy_sparse(const CodesReader& codes, OutputFile& output, bool pack, bool sort,
                         const Provenance& provenance) {
  CodesInfo info = codes.info();
  if (info.groups.empty()) throw bad_input("{}: there are no layers", codes.name());
  const int any = info.groups.front();
  const int64_t sink = at_dataset(codes.name(), Side::key, any, [&] { return sink_in(info.parameters); });
  const auto firsts_of = [&](Side side, int group) {
    return sink_stream(info.shape(group, side), info.storage);
  };
  const auto form_of = [&](Side side, int group) {
    auto specs = mapped<StreamSpec>(codes.streams(side, group), &StoredStream::spec);
    if (sink > 0) std::erase(specs, firsts_of(side, group));
    return at_dataset(codes.name(), side, group, [&] {
      const SparseForm form = SparseForm::of(codes.info().parameters, specs);
      const auto heads = static_cast<uint64_t>(info.model.num_kv_heads);
      if (form.per_head && form.signals != heads)
        throw bad_input("{} signals per token; the model has {} heads", form.signals, heads);
      return form;
    });
  };
  SparseForm keys = form_of(Side::key, any), values = form_of(Side::value, any);
  keys.sorted = values.sorted = sort;
  auto copies = std::make_unique<SparseCopyCodec>(keys, values, info.parameters);
  const SparseCopyCodec& copy_codec = *copies;
  const auto target = keep_first_tokens(std::move(copies), sink, info.storage);
  info.parameters = target->parameters();
  info.packed = pack;
  const uint64_t tokens = info.documents.tokens();
  const auto ids = codes.has_tokens() ? codes.tokens(0, tokens) : std::vector<uint32_t>{};
  const auto positions = codes.positions(0, tokens);
  const auto book = codes.embedded_book();
  // Streams of all sides and groups belong to one dictionary; only gains differ by side.
  for (const int group : info.groups)
    for (const Side side : kSides) {
      SparseForm form = form_of(side, group), wanted = keys;
      form.sorted = sort;
      wanted.gains = copy_codec.form(side).gains;
      if (form != wanted)
        at_dataset(codes.name(), side, group, [&] {
          throw bad_input(
              "streams of another form than those of layer {}: {} atoms and {} signals per token, not {} and "
              "{}",
              any, form.atoms, form.signals, wanted.atoms, wanted.signals);
        });
    }
  CodesWriter writer(output, info, *target, {ids, positions}, book ? &*book : nullptr);
  for (const int group : info.groups)
    for (const Side side : kSides) {
      const SparseForm from = form_of(side, group);
      at_dataset(codes.name(), side, group, [&] {
        for (size_t d = 0; d < info.documents.count(); ++d) {
          const auto document = codes.document(side, group, d);
          StreamStore& copy = writer.document(side, group, d);
          copy_codes(from, *document, copy_codec.form(side), copy);
          if (sink > 0) copy_first_tokens(firsts_of(side, group), *document, copy);
        }
      });
    }
  writer.finish(provenance);
  return {id_bytes(codes), 0};  // the written file can be read only when it is complete
}

std::string pack_indices(Command& command) {
  PackOptions options;
  command.describe("CODES [--unpack | --sorted] -o CODES",
                   "Rewrites a codes file with every id in as few bits as its range needs (13 bits for "
                   "8,192 atoms) as one continuous bit stream, or plainly again. Nothing is lost either "
                   "way, and decode reads both. Sparse codes can be sorted: the order of a code's atoms "
                   "says nothing, and without it codes are much smaller. The order cannot be restored: "
                   "ids then rise in each code, and values decoded over atoms in f32 may differ in "
                   "their last bits. Sorted codes stay sorted unless they are unpacked.",
                   "kvcodec pack-indices codes.h5 -o packed.h5\n"
                   "kvcodec pack-indices --sorted codes.h5 -o sorted.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  options.output.declare(command, "codes file to write");
  command.group("Packing");
  command.options(options);
  for (const char* name : {"layers", "documents"})
    command.refuse(name, fmt::format("pack-indices rewrites whole files; it takes no --{}", name));
  options.common.declare(command);
  command.parse();
  options.check_files(command, {}, false);
  options.check();

  const auto held = options.output.hold(options.input, options.common);
  const CodesReader codes(options.input);
  if (options.sorted && codes.info().codec != "sparse")
    throw bad_input("{}: --sorted is for codes of the codec sparse; these are of {}", codes.name(),
                    codes.info().codec);
  const Provenance provenance = command.provenance(codes.type().history);
  // Sorted codes are read and written again even if nothing changes, so that damage is found.
  const Record& parameters = codes.info().parameters;
  const bool was_sorted = codes.info().codec == "sparse" && parameters.find("sort-ids") &&
                          parameters.get_bool("sort-ids"),
             copies = options.sorted || was_sorted;
  const bool sort = options.sorted || (was_sorted && !options.unpack);
  const auto rewrite = [&](OutputFile& output) {
    PackResult result{.ids = copies ? copy_sparse(codes, output, !options.unpack, sort, provenance)
                                    : repack_indices(codes, output, !options.unpack, provenance),
                      .sorted = sort,
                      .before = rate_of(codes),
                      .after = {}};
    const CodesReader written(output.path());
    if (copies) result.ids.index_bytes_after = id_bytes(written);
    result.after = rate_of(written);
    return result;
  };
  return run_to_file(
      options.output, rewrite, [&](const PackResult& result) { return summary(result, options); },
      held.get());
}

}  // namespace

CommandEntry pack_indices_command() {
  return {CommandGroup::code, 4, "pack-indices", "pack ids into the fewest bits, sort them, or unpack them",
          pack_indices};
}

}  // namespace kvcodec::cli
