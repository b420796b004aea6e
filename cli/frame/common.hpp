// Options that mean the same in every subcommand, and what follows from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/frame/command.hpp"
#include "cli/frame/progress.hpp"
#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/names.hpp"

namespace kvcodec {
class Engine;  // lib/engine/engine.hpp
}

namespace kvcodec::cli {

enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
constexpr auto names_of(DeviceChoice) { return std::to_array<std::string_view>({"auto", "cpu", "cuda"}); }

struct CommonOptions final : Options {
  /// 0, not given: all processors (or OMP_NUM_THREADS). The product does not depend on it.
  int64_t threads = 0;
  /// A device where there is one. The product is the same, except the last digits of attend, dump-kv, eval-model and sensitivity.
  DeviceChoice device = DeviceChoice::automatic;
  /// Of everything random; commands with none take it too, so that scripts can pass it to all.
  int64_t seed = 0;
  std::string memory;  ///< empty = half of what the machine (or its control group) has
  bool quiet = false;
  bool json = false;

  std::vector<OptionField> fields() override;

  /// Binds all of them.
  void declare(Command& command) { declare(command, fields()); }
  /// All but --seed, for commands that have bound it to a seed of their own, with another default.
  void declare_without_seed(Command& command);
  /// Sets the number of threads and settles the device. has_twin: whether some of the command's work can be
  /// done on one. Throws Error(no_device) for --device cuda where there is none, and Error(usage) where there
  /// is one but the command has no device version. Of a team's ranks the first alone prints, and none takes a device:
  /// throws Error(usage) for --device cuda. Before any work.
  void apply(const Command& command, bool has_twin);
  /// The device that computes, or nullptr. With --device cuda notes on standard error say what falls back to
  /// the CPU.
  Engine* engine() const { return engine_.get(); }
  /// Puts "--device cuda" in the history of the command's product if a device computed it and rounds otherwise than the
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
  void declare(Command& command, const std::vector<OptionField>& chosen);

  std::string command_;  ///< its name
  std::shared_ptr<Engine> engine_;
};

/// -o, --overwrite, --force and --to. The result on standard output gives way to a product on it.
struct OutputOptions {
  std::string path;
  std::string to;  ///< URL; empty: the product stays here
  bool overwrite = false;
  bool force = false;
  bool skip_existing = false;
  bool in_place = false;  ///< the output is the input, because the user named no other

  bool replaces() const { return overwrite || force || in_place; }

  void declare(Command& command, const std::string& what);
  /// The same without --to, of a command whose product is a folder, or that has another --to.
  void declare_local(Command& command, const std::string& what);
  /// --skip-existing besides, of commands that are run again where one of many was broken off.
  void declare_with_skip(Command& command, const std::string& what);
  /// With --skip-existing: whether the output is there, whole, made by this command line, and not older than the inputs (those
  /// that are files). Then that is said, `report` is what goes to standard output, and what --to names is uploaded, if it is not
  /// there too. Throws Error(usage) for an output that is there but another one, unless it may be replaced.
  bool made_before(const Command& command, const CommonOptions& common,
                   const std::vector<std::string>& inputs, std::string& report) const;
  /// Throws Error(usage) if no output was named, if it is a URL, if --json and the product both want standard output, or for
  /// a --to that no product can go to.
  void check(const CommonOptions& common) const;
  /// The same where the output may be left out; then there is none.
  void check_if_given(const Command& command, const CommonOptions& common) const;
  /// Throws Error(usage) if the output is one of these inputs, or a file of an input that is a model
  /// directory, unless --force was given: the input would be lost. Do not pass inputs that the product
  /// contains whole, such as codes that are appended to.
  void keep(const std::vector<std::string>& inputs) const;
  /// Throws Error(usage) if the output is also what the command writes to by that option, however both are spelt: one of
  /// the two would be lost. other: "" where there is none.
  void differs_from(const std::string& other, const std::string& option) const;
  /// If the product replaces this input, locks it: another run that adds to it waits until this one is done,
  /// and prints a note. Otherwise returns nullptr. Call it before opening the input, and pass
  /// HeldFile::state() to OutputFile::replaces().
  std::unique_ptr<HeldFile> hold(const std::string& input, const CommonOptions& common) const;
  /// Uploads the product, which is there, whole, if --to says where. Throws Error, of kind usage if something else is there already.
  void send() const;
  bool to_stdout() const { return path == "-"; }

 private:
  void check_to() const;
  bool send_if_missing() const;
};

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

/// What DocumentSelection::choose() takes for just these documents, by their numbers, whatever documents are called.
/// numbers: ascending, at least one.
std::string words_for(const Documents& documents, const std::vector<size_t>& numbers);

/// Numbers of the documents whose name fits the glob: * ? and [..] as the shell has them, except that * fits / too.
std::vector<size_t> matching_documents(const Documents& documents, const std::string& glob);

/// Numbers with both ends.
struct NumberRange {
  uint64_t first = 0, last = 0;
};
/// "3" or "2-5"; nothing if it is neither.
std::optional<NumberRange> number_range(const std::string& text);

/// "A:B", half open; A or B may be left out.
struct TokenRange {
  uint64_t first = 0, end = UINT64_MAX;
};
TokenRange parse_token_range(const std::string& option, const std::string& text);

/// "0-15,40": numbers and ranges with both ends, sorted and joined where they touch; half open. Nothing if it
/// is something else, such as the name of a file.
std::optional<std::vector<TokenRange>> number_ranges(const std::string& text);

/// "512M", "1.5G", "1073741824": bytes, with K, M, G, T = powers of 1024.
uint64_t parse_size(const std::string& option, const std::string& text);

/// What of --memory goes to chunks of rows: a quarter of what the codec's book leaves, at least a
/// thirty-second. The rest is for the buffers of readers and writers.
uint64_t chunk_budget(uint64_t memory, uint64_t book_bytes);

/// Rows that fit `budget` bytes at `bytes_per_row`, within 1 … 65,536: beyond that larger chunks do not run
/// faster.
size_t chunk_rows(uint64_t budget, uint64_t bytes_per_row);

/// Throws Error(usage) if more than one of the inputs is standard input.
void check_inputs(const std::vector<std::string>& inputs);
/// Lets children look at the files of HDF5 that the command will open, "" and - left out, and reads the book, if there is one, while
/// they look at the others.
void expect_inputs(const std::vector<std::string>& files, const std::string& book);

/// Histories of several inputs as one: each line once, in order.
std::vector<std::string> merged_history(const std::vector<std::vector<std::string>>& histories);

}  // namespace kvcodec::cli
