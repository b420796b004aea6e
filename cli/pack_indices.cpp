// kvcodec pack-indices CODES [--unpack] -o CODES
//
//   --unpack            store every id plainly again, in 16 or 32 bits
//
//   kvcodec pack-indices codes.h5 -o packed.h5
#include "cli/common.hpp"
#include "cli/json.hpp"
#include "cli/rate.hpp"
#include "cli/subcommands.hpp"
#include "cli/text.hpp"
#include "formats/codes_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

struct PackOptions final : Options {
  std::string input;
  bool unpack = false;
  CommonOptions common;
  OutputOptions output;

  std::vector<OptionField> fields() override {
    return {{.name = "unpack", .help = "store ids plainly again", .target = &unpack}};
  }
};

std::string summary(const RepackResult& result, const FileRate& before, const FileRate& after,
                    const PackOptions& options) {
  if (options.common.json)
    return text_of({{"output", options.output.path},
                    {"packed", !options.unpack},
                    {"index_bytes_before", result.index_bytes_before},
                    {"index_bytes_after", result.index_bytes_after},
                    {"before", to_json(before)},
                    {"after", to_json(after)}});
  Table table({{"codes"}, {"ids", "bytes"}, {"file", "bytes"}, {"bits/value"}, {"ratio"}});
  const auto row = [&](const std::string& name, uint64_t ids, const FileRate& rate) {
    table.row({name, grouped(ids), grouped(rate.file_bytes), fmt::format("{:.3f}", rate.rate.bits_per_value),
               fmt::format("{:.2f}", rate.rate.ratio)});
  };
  row(options.input, result.index_bytes_before, before);
  row(options.output.path, result.index_bytes_after, after);
  return table.text();
}

}  // namespace

std::string pack_indices(Command& command) {
  PackOptions options;
  command.describe("CODES [--unpack] -o CODES",
                   "Rewrites a codes file with every id in as few bits as its range needs (13 bits for "
                   "8,192 atoms) as one continuous bit stream, or plainly again. Nothing is lost either "
                   "way, and decode reads both.",
                   "kvcodec pack-indices codes.h5 -o packed.h5");
  command.group("Input and output");
  command.input("CODES", "codes file; - is standard input", options.input);
  options.output.declare(command, "codes file to write");
  command.group("Packing");
  command.options(options);
  for (const char* name : {"layers", "documents"})
    command.refuse(name, fmt::format("pack-indices rewrites whole files; it takes no --{}", name));
  options.common.declare(command);
  command.parse();
  options.output.check(options.common);
  options.common.apply(command, false);

  const CodesReader codes(options.input);
  OutputFile output(options.output.path, options.output.overwrite);
  const auto result =
      repack_indices(codes, output, !options.unpack, command.provenance(codes.type().history));
  const FileRate after = rate_of(CodesReader(output.path()));
  const FileRate before = rate_of(codes);
  output.commit();
  return options.output.to_stdout() ? "" : summary(result, before, after, options);
}

}  // namespace kvcodec::cli
