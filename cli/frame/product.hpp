// What a subcommand does that writes a product.
#pragma once

#include <optional>
#include <string>

#include "cli/frame/common.hpp"
#include "formats/io/output.hpp"

namespace kvcodec::cli {

/// Opens the output that -o names, runs write(file), commits the file, makes report(what write() returned), uploads
/// the file if --to says so, and returns the report, or nothing if the product itself went to standard output.
/// Errors that concern the output alone come before the work, except those of a server, which come behind it. If
/// write() throws, an existing output stays as it was. held: the input that the product replaces, or nullptr
/// (OutputOptions::hold). in_place: `held` is changed instead of replaced; write() must then close all readers of it
/// before it returns.
template <class Write, class Report>
std::string run_to_file(const OutputOptions& options, const Write& write, const Report& report,
                        const HeldFile* held = nullptr, bool in_place = false) {
  std::optional<OutputFile> file;
  if (in_place)
    file.emplace(options.path, *held);
  else
    file.emplace(options.path, options.replaces());
  if (held && !in_place) file->replaces(held->state());
  const auto result = write(*file);
  file->commit();
  std::string text = options.to_stdout() ? std::string() : report(result);
  options.send();
  return text;
}

/// The same where -o may be left out: then work() gets nullptr and there is only the report.
template <class Work, class Report>
std::string run_perhaps_to_file(const OutputOptions& options, const Work& work, const Report& report) {
  if (options.path.empty()) return report(work(nullptr));
  return run_to_file(
      options, [&](OutputFile& file) { return work(&file); }, report);
}

}  // namespace kvcodec::cli
