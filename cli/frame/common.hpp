// Shared by all subcommands: options that mean the same everywhere, their effects, progress, outputs.
#pragma once

#include <chrono>
#include <cstdint>
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
#include "lib/core/names.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"

namespace kvcodec {
class Engine;  // lib/engine/engine.hpp
}

namespace kvcodec::cli {

// Standard error while a command works ---------------------------------------------------------------

/// Writes the line "kvcodec COMMAND: note: TEXT" on standard error, over a progress bar that may stand there.
/// CommonOptions::note() is for commands: it heeds --quiet.
void write_note(const std::string& command, const std::string& text);

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

class ProgressBar {
 public:
  /// label: what goes on ("encode"). unit: what is counted, in the plural ("tokens"). Shown only if standard
  /// error is a terminal and `quiet` is false; otherwise nothing is ever written.
  ProgressBar(std::string label, std::string unit, bool quiet);
  /// Takes the line away again.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(double done, double total, std::string_view note = {});
  /// The updates that follow count one stage of the work: `before` of the work's `total` was done before it.
  void part(double before, double total) { before_ = before, total_ = total; }
  /// To hand to lib/; lives as long as the bar.
  Progress callback();

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
  /// 0, not given: all processors (or OMP_NUM_THREADS). The output does not depend on it.
  int64_t threads = 0;
  /// A device where there is one. The output is the same, except the last digits of attend, dump-kv, eval-model and sensitivity.
  DeviceChoice device = DeviceChoice::automatic;
  /// Of everything random; commands with none take it too, so that scripts can pass it to all.
  int64_t seed = 0;
  std::string memory;  ///< empty = half of what the machine (or its control group) has
  bool quiet = false;
  bool json = false;

  std::vector<OptionField> fields() override;

  /// Binds all of them; or all but --seed, for commands that have bound it to a seed of their own, with another default.
  void declare(Command& command, bool with_seed = true);
  /// Sets the number of threads and settles the device. has_twin: whether some of the command's work can be
  /// done on one. Throws Error(no_device) for --device cuda where there is none, and Error(usage) where there
  /// is one but the command has no device version. Of a team's ranks the first alone prints, and none takes a device:
  /// throws Error(usage) for --device cuda. Before any work.
  void apply(const Command& command, bool has_twin);
  /// The device that computes, or nullptr. With --device cuda notes on standard error say what falls back to
  /// the CPU.
  Engine* engine() const { return engine_.get(); }
  /// Puts "--device cuda" in the history of the command's output if a device computed it and rounds otherwise than the
  /// CPU. Before Command::provenance.
  void record_device(Command& command) const;

  /// Bytes that the command may use for its buffers.
  uint64_t memory_bytes() const;

  /// Notes that a file to which documents are added has these already, if there are any.
  void note_stored(const std::string& file, const std::vector<std::string>& names) const;
  /// Says something on standard error beside the result, unless --quiet.
  template <class... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) const {
    if (!quiet) write_note(command_, fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  std::string command_;  ///< its name
  std::shared_ptr<Engine> engine_;
};

/// -o, --overwrite, --force and --to. The result on standard output gives way to a output on it.
struct OutputOptions {
  std::string path;
  std::string to;  ///< URL; empty: the output stays here
  bool overwrite = false;
  bool force = false;
  bool skip_existing = false;
  bool in_place = false;  ///< the output is the input, because the user named no other

  bool replaces() const { return overwrite || force || in_place; }

  void declare(Command& command, const std::string& what);
  /// The same without --to, of a command whose output is a folder, or that has another --to.
  void declare_local(Command& command, const std::string& what);
  /// --skip-existing besides, of commands that are run again where one of many was broken off.
  void declare_with_skip(Command& command, const std::string& what);
  /// With --skip-existing: whether the output is there, whole, made by this command line, and not older than the inputs (those
  /// that are files). Then that is said, `report` is what goes to standard output, and what --to names is uploaded, if it is not
  /// there too. Throws Error(usage) for an output that is there but another one, unless it may be replaced.
  bool made_before(const Command& command, const CommonOptions& common,
                   const std::vector<std::string>& inputs, std::string& report) const;
  /// Throws Error(usage) if no output was named, if it is a URL, if --json and the output both want standard output, or for
  /// a --to that no output can go to.
  void check(const CommonOptions& common) const;
  /// The same where the output may be left out; then there is none.
  void check_if_given(const Command& command, const CommonOptions& common) const;
  /// Throws Error(usage) if the output is one of these inputs, or a file of an input that is a model
  /// directory, unless --force was given: the input would be lost. Do not pass inputs that the output
  /// contains whole, such as codes that are appended to.
  void keep(const std::vector<std::string>& inputs) const;
  /// Throws Error(usage) if the output is also what the command writes to by that option, however both are spelt: one of
  /// the two would be lost. other: "" where there is none.
  void differs_from(const std::string& other, const std::string& option) const;
  /// If the output replaces this input, locks it: another run that adds to it waits until this one is done,
  /// and prints a note. Otherwise returns nullptr. Call it before opening the input, and pass
  /// HeldFile::state() to OutputFile::replaces().
  std::unique_ptr<HeldFile> hold(const std::string& input, const CommonOptions& common) const;
  /// Uploads the output, which is there, whole, if --to says where. Throws Error, of kind usage if something else is there already.
  void send() const;
  bool to_stdout() const { return path == "-"; }

 private:
  bool send_if_missing() const;
};

/// Opens the output that -o names, runs write(file), commits the file, makes report(what write() returned), uploads
/// the file if --to says so, and returns the report, or nothing if the output itself went to standard output.
/// Errors that concern the output alone come before the work, except those of a server, which come behind it. If
/// write() throws, an existing output stays as it was. held: the input that the output replaces, or nullptr
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

/// The team that this process is a rank of; alone where nothing like mpirun started it, or in a program without MPI
/// (no_mpi.cpp instead of mpi_team.cpp). Once, before any other threads begin. Communication ends with the object.
std::unique_ptr<Team> join_team();

/// For a training by a team: rank 0 opens the output, then all ranks call train(), and rank 0 calls write(file, result)
/// and returns what report(result) says; the others return nothing.
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

/// Why a file is not what a command of that line (Command::stored_line) would write from these inputs, or nothing: it
/// was made by another command, is older than one of the inputs that are files, or is damaged. Throws Error(bad_input)
/// for what is no file of this program.
std::string why_other(const std::string& file, const std::string& line,
                      const std::vector<std::string>& inputs);

/// Which layers: "0,2-5".
struct LayerSelection {
  std::string text;

  void declare(Command& command);
  bool given() const { return !text.empty(); }
  /// The layers of `present` (ascending) that were asked for; all if none were named. Throws Error(usage) for
  /// a malformed list and Error(bad_input) for a layer that is not there; `where` is the file's name.
  std::vector<int> choose(const std::vector<int>& present, const std::string& where) const;
};

/// Which documents: "0,3-7", names, globs of names, or "@FILE" with one of these on each line. A comma inside a name is
/// written "\,", and "\" as "\\"; a name that is the whole text needs neither.
struct DocumentSelection {
  std::string text;

  /// what, unless: of the option's help, what becomes of the documents, and of all if none are named.
  void declare(Command& command, const std::string& what = "only these documents",
               const std::string& unless = "default: all");
  bool given() const { return !text.empty(); }
  /// Indices of the documents asked for, ascending; all if none were named. A name stands for every document
  /// of that name. Throws Error(bad_input) for what names no document.
  std::vector<size_t> choose(const Documents& documents, const std::string& where) const;
};

/// Text by which DocumentSelection::choose() chooses just these documents, by their numbers, whatever documents are called.
/// numbers: ascending, at least one.
std::string words_for(const Documents& documents, const std::vector<size_t>& numbers);

/// Numbers of the documents whose name fits the glob: * ? and [..] as the shell has them, except that * fits / too.
std::vector<size_t> matching_documents(const Documents& documents, const std::string& glob);

/// Share i of N, counted from 1. The items, in their order, lie one behind the other on an axis of work
/// (tokens, for documents); share i has those whose middle lies in the i-th of N equal intervals of it. So
/// the shares in their order give all items, and the work of each differs from 1/N of the total by at most
/// that of the largest item.
struct Shard {
  int64_t number = 1, count = 1;

  /// Numbers of the things in the share; offsets: where the work of each begins, and the end of the last one.
  std::vector<size_t> choose(std::span<const uint64_t> offsets) const;
  /// The same of documents, whose work is their tokens.
  std::vector<size_t> documents(const Documents& all) const { return choose(all.offsets); }
  /// The same of some of the documents (ascending).
  std::vector<size_t> among(const Documents& all, const std::vector<size_t>& chosen) const;
};

/// The option.
struct ShardOption {
  std::string text;

  /// joined: how what the shares give is joined, in the option's help.
  void declare(Command& command, const std::string& joined = "kvcodec cat joins what N such commands write");
  bool given() const { return !text.empty(); }
  /// All of it if none was named. Throws Error(usage) for what is not a share.
  Shard shard() const;
};

/// The first and the last of "3" or "2-5"; nothing if it is neither.
std::optional<std::pair<uint64_t, uint64_t>> number_range(const std::string& text);

/// "A:B", half open; A or B may be left out.
struct TokenRange {
  uint64_t first = 0, end = UINT64_MAX;
};
TokenRange parse_token_range(const std::string& option, const std::string& text);

/// "0-15,40": numbers and ranges with both ends, sorted and joined where they touch; half open. Nothing if it
/// is something else, such as the name of a file.
std::optional<std::vector<TokenRange>> number_ranges(const std::string& text);

/// "0-4,6", ascending; empty = none. Throws Error(usage) for what no model's layers are. option, wanted: for its message.
std::vector<int> parse_layers(const std::string& option, const std::string& text,
                              const char* wanted = "numbers and ranges of layers, as 0-4,6");

/// "512M", "1.5G", "1073741824": bytes, with K, M, G, T = powers of 1024.
uint64_t parse_size(const std::string& option, const std::string& text);

/// The least limit, in bytes, of the control groups that this process runs in, from its own up to the root,
/// by version 2 or 1 of the interface; 0 = none. root: where /proc and /sys are found, for tests.
uint64_t control_group_limit(const std::filesystem::path& root = "/");

/// Memory of the machine in bytes, or control_group_limit() if that is less. 0 = unknown.
uint64_t machine_memory();

/// The bytes of --memory for chunks of rows: a quarter of the bytes that the codec's book leaves, at least a
/// thirty-second of all. The rest is for the buffers of readers and writers.
uint64_t chunk_budget(uint64_t memory, uint64_t book_bytes);

/// Rows that fit `budget` bytes at `bytes_per_row`, within 1 … 65,536: beyond that larger chunks do not run
/// faster.
size_t chunk_rows(uint64_t budget, uint64_t bytes_per_row);

/// Throws Error(usage) if more than one of the inputs is standard input.
void check_inputs(const std::vector<std::string>& inputs);

/// Histories of several inputs as one: each line once, in order.
std::vector<std::string> merged_history(const std::vector<std::vector<std::string>>& histories);

}  // namespace kvcodec::cli
