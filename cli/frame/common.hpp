// Shared by all subcommands: options that mean the same everywhere, their effects, progress, outputs.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/frame/command.hpp"
#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/core/error.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/names.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"

namespace kvcodec {
class Engine;  // lib/engine/engine.hpp
}

namespace kvcodec::cli {

// Standard error while a command works ---------------------------------------------------------------

/// Writes the line "kvcodec COMMAND: note: TEXT" on standard error, replacing a progress bar. Commands use CommonOptions::note(),
/// which respects --quiet.
void write_note(const std::string& command, const std::string& text);

/// Writes to standard output. Throws Error(failed) if it cannot be written.
inline void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw failed("standard output: {}", std::strerror(errno));
}

/// Seconds since the object was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

class ProgressBar {
 public:
  /// label: the current work ("encode"). unit: the counted things, in the plural ("tokens"). The bar is shown only if standard
  /// error is a terminal and `quiet` is false; otherwise nothing is ever written.
  ProgressBar(std::string label, std::string unit, bool quiet)
      : label_(std::move(label)),
        unit_(std::move(unit)),
        shown_(!quiet && isatty(STDERR_FILENO) == 1),
        start_(Clock::now()),
        last_(start_) {}
  /// Removes the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(double done, double total, std::string_view note = {});
  /// The following updates count one stage of the work: `before` of the work's `total` was done before it.
  void part(double before, double total) { before_ = before, total_ = total; }
  /// A callback for lib/; it lives as long as the bar.
  Progress callback() {
    return [this](double done, double total, std::string_view note) { update(done, total, note); };
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_, unit_;
  bool shown_ = false, drawn_ = false;
  double before_ = 0, total_ = 0;  ///< of part()
  Clock::time_point start_, last_;
};

// Options --------------------------------------------------------------------------------------------

enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
constexpr auto names_of(DeviceChoice) { return std::to_array<std::string_view>({"auto", "cpu", "cuda"}); }

struct CommonOptions final : Options {
  /// 0 = not given: all processors (or OMP_NUM_THREADS). The output does not depend on it.
  int64_t threads = 0;
  /// A device if there is one. The output is the same, except for the last digits of attend, dump-kv, eval-model and sensitivity.
  DeviceChoice device = DeviceChoice::automatic;
  /// The seed of all random numbers; commands without any also accept it, so that scripts can pass it to all.
  int64_t seed = 0;
  std::string memory;  ///< empty = half of what the machine (or its control group) has
  bool quiet = false;
  bool json = false;

  std::vector<OptionField> fields() override;

  /// Binds all of them; or all but --seed, for commands that have bound it to their own seed with another default.
  void declare(Command& command, bool with_seed = true);
  /// Sets the number of threads and chooses the device. has_twin: some of the command's work can be done on a device. Throws
  /// Error(no_device) for --device cuda if there is none, and Error(usage) if there is one but the command has no device version.
  /// In a team of ranks, only the first one prints, and none uses a device: throws Error(usage) for --device cuda. Call it before
  /// any work.
  void apply(const Command& command, bool has_twin);
  /// The device that computes, or nullptr. With --device cuda, notes on standard error name the work that falls back to the CPU.
  Engine* engine() const { return engine_.get(); }
  /// Adds "--device cuda" to the history of the command's output if a device computed it and rounds differently from the CPU. Call
  /// it before Command::provenance.
  void record_device(Command& command) const;

  /// Bytes that the command may use for its buffers.
  uint64_t memory_bytes() const;

  /// Notes what happened to documents of these names, if there are any; `what` precedes the first names.
  void note_documents(const std::string& what, const std::vector<std::string>& names) const {
    if (names.empty()) return;
    constexpr size_t kShown = 5;
    const auto shown = std::span(names).first(std::min(kShown, names.size()));
    note("{}: {}{}", what, fmt::join(shown, ", "),
         names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
  }
  /// True, with a note, if a part of what was added to the file is still in its journal, because of a reader.
  bool note_journal(const std::string& file) const;
  /// Prints a note on standard error besides the result, unless --quiet.
  template <class... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) const {
    if (!quiet) write_note(command_, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  std::string command_;  ///< its name
  std::shared_ptr<Engine> engine_;
};

/// -o, --overwrite, --force and --to. If the output goes to standard output, the result is not printed there.
struct OutputOptions {
  std::string path;
  std::string to;  ///< URL; empty: the output stays here
  bool overwrite = false;
  bool force = false;
  bool skip_existing = false;
  bool in_place = false;  ///< the output is the input, because the user named no other

  bool replaces() const { return overwrite || force || in_place; }

  void declare(Command& command, const std::string& what) {
    declare_local(command, what);
    command.option(
        {"to", "upload the output to this URL (https://, http:// or s3://) when it is complete", &to}, "URL");
    command.keep_out_of_history("to", true);
  }
  /// The same without --to, for a command whose output is a folder, or that has another --to.
  void declare_local(Command& command, const std::string& what);
  /// Also declares --skip-existing, for commands that are repeated after one of many was interrupted.
  void declare_with_skip(Command& command, const std::string& what);
  /// With --skip-existing: true if the output exists, is complete, was made by this command line, and is not older than the inputs
  /// (those that are files). Then a note says so, `report` is the text for standard output, and the output is uploaded to --to if
  /// it is missing there. Throws Error(usage) if another output exists, unless it may be replaced.
  bool made_before(const Command& command, const CommonOptions& common,
                   const std::vector<std::string>& inputs, std::string& report) const;
  /// Throws Error(usage) if no output was named, if it is a URL, if --json and the output both use standard output, or if --to
  /// names a place that cannot take an output.
  void check(const CommonOptions& common) const;
  /// The same if the output is optional; without -o there is none.
  void check_if_given(const Command& command, const CommonOptions& common) const {
    if (command.given("output")) return check(common);
    if (!to.empty()) throw usage_error("--to uploads the output; name it with -o FILE");
  }
  /// Throws Error(usage) if the output is one of these inputs, or a file of an input that is a model directory, unless --force was
  /// given: the input would be lost. Do not pass inputs that the output contains completely, such as codes that are appended to.
  void keep(const std::vector<std::string>& inputs) const;
  /// Throws Error(usage) if the output is also the target of that option, however both are spelt: one of the two would be lost.
  /// other: "" if there is none.
  void differs_from(const std::string& other, const std::string& option) const;
  /// If the output replaces this input, locks it: another run that adds to it prints a note and waits until this one is done.
  /// Otherwise returns nullptr. Call it before opening the input, and pass HeldFile::state() to OutputFile::replaces().
  std::unique_ptr<HeldFile> hold(const std::string& input, const CommonOptions& common) const;
  /// Uploads the output, which exists and is complete, if --to is given. Throws Error, of kind usage if another file is there already.
  void send() const;
  bool to_stdout() const { return path == "-"; }

 private:
  bool send_if_missing() const;
};

/// Bytes of a file; 0 if it is no regular file.
inline uint64_t file_bytes(const std::string& path) {
  std::error_code no_size;
  return std::filesystem::is_regular_file(path, no_size) ? std::filesystem::file_size(path, no_size) : 0;
}

/// Opens the output that -o names, runs write(file), commits the file, makes report(result of write()), uploads the file if --to is
/// given, and returns the report, or nothing if the output itself went to standard output. Errors that concern only the output come
/// before the work, except those of a server, which come after it. If write() throws, an existing output stays unchanged. held: the
/// input that the output replaces, or nullptr (OutputOptions::hold). in_place: `held` is changed instead of replaced; write() must
/// then close all readers of it before it returns.
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

/// The same if -o is optional: without it work() gets nullptr and there is only the report.
template <class Work, class Report>
std::string run_perhaps_to_file(const OutputOptions& options, const Work& work, const Report& report) {
  if (options.path.empty()) return report(work(nullptr));
  return run_to_file(
      options, [&](OutputFile& file) { return work(&file); }, report);
}

/// The team to which this process belongs as a rank; a team of one if nothing like mpirun started it, or in a program without MPI
/// (no_mpi.cpp instead of mpi_team.cpp). Call it once, before other threads begin. Communication ends with the object.
std::unique_ptr<Team> join_team();

/// Training by a team: rank 0 opens the output, then all ranks call train(), and rank 0 calls write(file, result) and returns
/// report(result); the others return nothing.
template <class Train, class Write, class Report>
std::string train_to_file(const Team& team, const OutputOptions& options, const Train& train,
                          const Write& write, const Report& report) {
  if (team.rank() > 0) {
    train();
    return {};
  }
  return run_to_file(
      options,
      [&](OutputFile& file) {
        auto result = train();
        write(file, result);
        return result;
      },
      report);
}

/// The reason why a file is not what a command with that line (Command::stored_line) would write from these inputs: it was made by
/// another command, is older than one of the inputs that are files, or is damaged. "" if there is none. Throws
/// Error(bad_input) for a file that is not of this program.
std::string why_other(const std::string& file, const std::string& line,
                      const std::vector<std::string>& inputs);

/// A selection of layers: "0,2-5".
struct LayerSelection {
  std::string text;

  void declare(Command& command) {
    command.option({"layers", "only these layers, as 0,2-5 (default: all)", &text}, "LIST");
  }
  bool given() const { return !text.empty(); }
  /// The selected layers of `present` (ascending); all if none were named. Throws Error(usage) for a malformed list and
  /// Error(bad_input) for a missing layer; `where` is the file's name.
  std::vector<int> choose(const std::vector<int>& present, const std::string& where) const;
};

/// A selection of documents: "0,3-7", names, globs of names, or "@FILE" with one of these on each line. A comma inside a name is
/// written "\,", and "\" as "\\"; a name that is the whole text needs neither.
struct DocumentSelection {
  std::string text;
  const Command* command = nullptr;  ///< that declares the option

  /// what, unless: parts of the option's help: what happens to the documents, and to all if none are named.
  void declare(Command& by, const std::string& what = "only these documents",
               const std::string& unless = "default: all");
  /// Also with an empty list, which like an empty file names no document.
  bool given() const { return !text.empty() || (command && command->given("documents")); }
  /// Indices of the selected documents, ascending; all if the option was not given. A name selects every document of that name. Throws
  /// Error(bad_input) for a word that matches no document.
  std::vector<size_t> choose(const Documents& documents, const std::string& where) const;
  /// The same in the order in which they are named, each once.
  std::vector<size_t> choose_in_order(const Documents& documents, const std::string& where) const;
};

/// Text with which DocumentSelection::choose() selects exactly these documents, by their numbers, whatever the documents' names.
/// numbers: ascending, at least one.
std::string words_for(const Documents& documents, const std::vector<size_t>& numbers);

/// Numbers of the documents whose name matches the glob: * ? and [..] as in the shell, except that * also matches /.
std::vector<size_t> matching_documents(const Documents& documents, const std::string& glob);

/// Share i of N, counted from 1. The items, in their order, lie one after the other on an axis of work (tokens, for documents);
/// share i has those whose middle lies in the i-th of N equal intervals of it. So the shares in their order give all items, and the
/// work of each differs from 1/N of the total by at most the work of the largest item.
struct Shard {
  int64_t number = 1, count = 1;

  /// Numbers of the items in the share; offsets: the beginning of the work of each, and the end of the last one.
  std::vector<size_t> choose(std::span<const uint64_t> offsets) const;
  /// The same for some documents (ascending), whose work is their tokens.
  std::vector<size_t> among(const Documents& all, const std::vector<size_t>& chosen) const;
};

struct ShardOption {
  std::string text;

  /// joined: how the results of the shares are joined, for the option's help.
  void declare(Command& command, const std::string& joined = "kvcodec cat joins what N such commands write") {
    command.option({"shard",
                    "only share i of N of the documents, i from 1 on, with about as many tokens each; " +
                        joined + " (default: all of them)",
                    &text},
                   "i/N");
  }
  bool given() const { return !text.empty(); }
  /// The whole if no share was named. Throws Error(usage) for an invalid share.
  Shard shard() const;
};

/// The first and the last number of "3" or "2-5"; std::nullopt for other text.
std::optional<std::pair<uint64_t, uint64_t>> number_range(const std::string& text);

/// "A:B", half open; A or B may be left out.
struct TokenRange {
  uint64_t first = 0, end = UINT64_MAX;
};
TokenRange parse_token_range(const std::string& option, const std::string& text);

/// "0-15,40": numbers and ranges with both ends, sorted and joined if they touch; half open. std::nullopt for other text, such as
/// the name of a file.
std::optional<std::vector<TokenRange>> number_ranges(const std::string& text);

/// "0-4,6", ascending; empty = none. Throws Error(usage) for numbers beyond the layers of any model. option, wanted: for its message.
std::vector<int> parse_layers(const std::string& option, const std::string& text,
                              const char* wanted = "numbers and ranges of layers, as 0-4,6");

/// "512M", "1.5G", "1073741824": bytes, with K, M, G, T = powers of 1024.
uint64_t parse_size(const std::string& option, const std::string& text);

/// The smallest limit, in bytes, of the control groups in which this process runs, from its own up to the root, by version 2 or 1
/// of the interface; 0 = none. root: the folder that contains /proc and /sys, for tests.
uint64_t control_group_limit(const std::filesystem::path& root = "/");

/// Memory of the machine in bytes, or control_group_limit() if that is smaller. 0 = unknown.
uint64_t machine_memory();

/// The bytes of --memory for chunks of rows: a quarter of the bytes that the codec's book leaves, at least a thirty-second of all.
/// The rest is for the buffers of readers and writers.
inline uint64_t chunk_budget(uint64_t memory, uint64_t book_bytes) {
  // A codec holds its book about four times: as read, and in the layouts of both directions, with a Gram matrix.
  const uint64_t held = 4 * book_bytes;
  return std::max(memory / 32, (memory > held ? memory - held : 0) / 4);
}

/// Rows that fit `budget` bytes at `bytes_per_row`, within 1 … 65,536: larger chunks are not faster.
inline size_t chunk_rows(uint64_t budget, uint64_t bytes_per_row) {
  constexpr uint64_t kMaxRows = 65536;
  return static_cast<size_t>(
      std::clamp<uint64_t>(budget / std::max<uint64_t>(bytes_per_row, 1), 1, kMaxRows));
}

/// Throws Error(usage) if more than one of the inputs is standard input.
inline void check_inputs(const std::vector<std::string>& inputs) {
  if (std::count(inputs.begin(), inputs.end(), "-") > 1)
    throw usage_error("only one input can be -, standard input");
}

/// The options that most commands have; each declares those that it takes.
struct CommandOptions : Options {
  CommonOptions common;
  OutputOptions output;
  LayerSelection layers;
  DocumentSelection documents;

  std::vector<OptionField> fields() override { return {}; }
  /// Checks that the output is none of the inputs, and applies the common options (has_twin: as for CommonOptions::apply).
  void check_files(const Command& command, const std::vector<std::string>& inputs, bool has_twin) {
    output.check(common);
    check_inputs(inputs);
    output.keep(inputs);
    common.apply(command, has_twin);
  }
};

/// Merges the histories of several inputs: each line once, in order.
std::vector<std::string> merged_history(const std::vector<std::vector<std::string>>& histories);

}  // namespace kvcodec::cli
