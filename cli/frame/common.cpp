#include "cli/frame/common.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>

#include "cli/frame/json.hpp"
#include "cli/frame/machine_memory.hpp"
#include "cli/frame/text.hpp"
#include "cuda/engine.hpp"
#include "formats/cache/book_file.hpp"
#include "formats/cache/protection.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "formats/io/far_place.hpp"
#include "formats/io/http.hpp"
#include "formats/io/journal.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::cli {
namespace {

// Where the machine does not say what it has.
constexpr uint64_t kFallbackMemory = uint64_t{2} << 30;
// Below this the fixed costs (program, libraries, HDF5's caches) outweigh the buffers that --memory speaks
// of.
constexpr uint64_t kLeastMemory = uint64_t{64} << 20;
// More threads than any machine has; a typing error rather than a wish.
constexpr int kMostThreads = 4096;

bool to_number(std::string_view text, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

/// Whether there is a device that runs what this program has for it.
bool usable_device() {
  if (cuda::devices().empty()) return false;
  try {
    cuda::require_device();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::optional<NumberRange> number_range(const std::string& text) {
  NumberRange range;
  const size_t dash = text.find('-');
  if (!to_number(text.substr(0, dash), range.first)) return {};
  range.last = range.first;
  if (dash != std::string::npos && !to_number(text.substr(dash + 1), range.last)) return {};
  return range;
}

std::vector<OptionField> CommonOptions::fields() {
  return {
      {.name = "threads",
       .help = "threads to compute with (default: all processors); the product is the same for any number",
       .target = &threads,
       .min = 1,
       .max = kMostThreads},
      {.name = "device",
       .help = "where to compute; auto takes a device where there is one and the command can use it",
       .target = &device},
      {.name = "seed", .help = "seed of everything random", .target = &seed, .min = 0},
      {.name = "memory",
       .help = "bound for the buffers, as 512M or 4G (default: half of the machine's memory)",
       .target = &memory},
      {.name = "quiet", .help = "no progress and no notes on standard error", .target = &quiet},
      {.name = "json", .help = "the result on standard output as JSON", .target = &json},
  };
}

void CommonOptions::declare(Command& command, const std::vector<OptionField>& chosen) {
  command_ = command.name();
  command.group("Common to all subcommands");
  command.options(chosen, {{"memory", "SIZE"}});
  command.show_help_switch();
}

void CommonOptions::declare_without_seed(Command& command) {
  auto chosen = fields();
  std::erase_if(chosen, [](const OptionField& field) { return field.name == "seed"; });
  declare(command, chosen);
}

void CommonOptions::apply(const Command& command, bool has_twin) {
  if (command.given("threads")) set_num_threads(static_cast<int>(threads));
  (void)memory_bytes();  // a malformed size is found before any work
  if (command.team().rank() > 0) quiet = true;
  if (command.team().size() > 1) {
    if (device == DeviceChoice::cuda)
      throw usage_error("--device is cuda, but ranks of MPI compute on CPUs: take auto or cpu");
    return;
  }
  if (device == DeviceChoice::cpu) return;
  if (device == DeviceChoice::automatic) {
    if (has_twin && usable_device()) engine_ = cuda::make_engine();
    return;
  }
  cuda::require_device();
  if (!has_twin) throw usage_error("{} has no CUDA version; --device must be auto or cpu", command.name());
  if (quiet) {
    engine_ = cuda::make_engine();
    return;
  }
  engine_ = cuda::make_engine(
      [name = command_](const std::string& what) { write_note(name, "on the CPU: " + what); });
}

void CommonOptions::record_device(Command& command) const {
  if (engine_ && !engine_->exact()) command.add_to_history("--device cuda");
}

uint64_t CommonOptions::memory_bytes() const {
  if (!memory.empty()) {
    const uint64_t bytes = parse_size("--memory", memory);
    if (bytes < kLeastMemory) throw usage_error("--memory is {}; it must be at least 64M", memory);
    return bytes;
  }
  const uint64_t machine = machine_memory();
  return std::max(kLeastMemory, (machine ? machine : kFallbackMemory) / 2);
}

void CommonOptions::note_stored(const std::string& file, const std::vector<std::string>& names) const {
  if (names.empty()) return;
  constexpr size_t kShown = 5;
  const auto shown = std::span(names).first(std::min(kShown, names.size()));
  note("{} has {} of these already, with the same token ids, and keeps them as they are: {}{}", file,
       counted(names.size(), "document"), fmt::join(shown, ", "),
       names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

void OutputOptions::declare_local(Command& command, const std::string& what) {
  command.option({.name = "output", .help = what + "; - is standard output", .target = &path}, "FILE", 'o');
  command.option({.name = "overwrite", .help = "replace the output if it exists", .target = &overwrite});
  command.option(
      {.name = "force",
       .help = "replace the output even if it is one of the files that the command reads, which is then lost",
       .target = &force});
}

void OutputOptions::declare(Command& command, const std::string& what) {
  declare_local(command, what);
  command.option({.name = "to",
                  .help = "upload the output to this URL (https://, http:// or s3://) when it is complete",
                  .target = &to},
                 "URL");
  command.keep_out_of_history("to", true);
}

void OutputOptions::declare_with_skip(Command& command, const std::string& what) {
  declare(command, what);
  command.option(
      {.name = "skip-existing",
       .help =
           "do nothing where the output is there already, whole, made by this very command, and not older "
           "than what it reads",
       .target = &skip_existing});
}

/// Whether a file of this name in a model's folder is one of the model's.
static bool is_of_model(const std::filesystem::path& file) {
  return file.extension() == ".safetensors" || file.extension() == ".json";
}

/// The file of that name, or the files of the model whose folder it is.
static std::vector<std::filesystem::path> files_of(const std::string& input) {
  std::error_code error;
  if (std::filesystem::is_regular_file(input, error)) return {input};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(input, error))
    if (is_of_model(entry.path()) && entry.is_regular_file(error)) files.push_back(entry.path());
  return files;
}

/// What was found out by the command itself stands behind its words.
std::string why_other(const std::string& file, const std::string& line,
                      const std::vector<std::string>& inputs) {
  const std::string last = identify(file).history.back();
  if (last != line && !last.starts_with(line + " (found: ") && last != line + " --device cuda")
    return "was made by another command";
  std::error_code error;
  const auto time = std::filesystem::last_write_time(file, error);
  for (const std::string& input : inputs)
    for (const std::filesystem::path& read : files_of(input))
      if (std::filesystem::last_write_time(read, error) > time) return "is older than " + read.string();
  const auto damage = find_damage(file, [](uint64_t, uint64_t) {});
  return damage.empty() ? "" : "is damaged: " + damage.front();
}

bool OutputOptions::made_before(const Command& command, const CommonOptions& common,
                                const std::vector<std::string>& inputs, std::string& report) const {
  std::error_code error;
  if (!skip_existing || to_stdout() || !std::filesystem::is_regular_file(path, error)) return false;
  const std::string other = why_other(path, command.stored_line(), inputs);
  if (other.empty()) {
    common.note("{} is there, whole and made by this command; {}", path,
                to.empty()          ? "nothing is done"
                : send_if_missing() ? "it is uploaded"
                                    : shown_name(to) + " is there too, and stays");
    if (common.json) report = text_of({{"output", path}, {"skipped", true}});
    return true;
  }
  if (!replaces()) throw usage_error("{}: is there and {}; --overwrite replaces it", path, other);
  return false;
}

void OutputOptions::keep(const std::vector<std::string>& inputs) const {
  std::error_code error;
  if (force || path.empty() || to_stdout() || !std::filesystem::is_regular_file(path, error)) return;
  const std::filesystem::path product(path);
  for (const std::string& input : inputs) {
    if (input.empty() || input == "-") continue;
    // The files of a model, by whatever name its folder is called.
    const bool of_model = std::filesystem::is_directory(input, error) && is_of_model(product);
    if (std::filesystem::equivalent(
            of_model ? std::filesystem::path(input) / product.filename() : std::filesystem::path(input),
            product, error))
      throw usage_error(
          "{}: this command reads it, and writing there would lose it; name another output, or add --force",
          path);
  }
}

void OutputOptions::differs_from(const std::string& other, const std::string& option) const {
  if (other.empty() || path.empty() || to_stdout() != (other == "-")) return;
  const auto place = [](const std::string& name) {
    std::error_code error;
    const auto found = std::filesystem::weakly_canonical(std::filesystem::absolute(name, error), error);
    return error ? std::filesystem::path(name) : found;
  };
  if (place(path) == place(other))
    throw usage_error("-o and {} both name {}; give each a file of its own", option,
                      to_stdout() ? "standard output" : other);
}

std::unique_ptr<HeldFile> OutputOptions::hold(const std::string& input, const CommonOptions& common) const {
  std::error_code error;
  if (input.empty() || input == "-" || to_stdout() || !std::filesystem::equivalent(input, path, error))
    return nullptr;
  return std::make_unique<HeldFile>(input, [&] {
    common.note(
        "{}: another run changes it, or, on NFS, another program reads it; waiting until that is done",
        input);
  });
}

void OutputOptions::check(const CommonOptions& common) const {
  if (path.empty()) throw usage_error("no output is named; say where with -o FILE");
  check_to();
  if (to_stdout() && common.json)
    throw usage_error("--json and -o - both write to standard output; give -o a file");
}

void OutputOptions::check_if_given(const Command& command, const CommonOptions& common) const {
  if (command.given("output")) return check(common);
  if (!to.empty()) throw usage_error("--to uploads the output; name it with -o FILE");
}

void OutputOptions::check_to() const {
  if (is_far(path))
    throw usage_error("-o is a URL: the output is written to a file here first; give -o FILE --to {}",
                      shown_name(path));
  if (to.empty()) return;
  if (!is_far(to)) throw usage_error("--to is '{}'; it must be a URL: https://, http:// or s3://", to);
  if (to_stdout()) throw usage_error("--to uploads a file; -o cannot be -");
  require_http(far_place(to));
}

void OutputOptions::send() const {
  if (!send_if_missing())
    throw usage_error("{}: exists already; --overwrite replaces it; {} is complete", shown_name(to), path);
}

/// False if it is there and may not be replaced.
bool OutputOptions::send_if_missing() const {
  if (to.empty()) return true;
  const FarPlace place = far_place(to);
  std::error_code error;
  if (std::filesystem::exists(journal_of(path), error))
    throw failed("{}: is not uploaded, because another run reads {}; run compact on it, then upload it",
                 place.shown, path);
  try {
    return upload(place, path, overwrite || force);
  } catch (const Error& fault) {
    throw Error(fault.kind(), fmt::format("{}; {} is complete", fault.what(), path));
  }
}

void LayerSelection::declare(Command& command) {
  command.option({.name = "layers", .help = "only these layers, as 0,2-5 (default: all)", .target = &text},
                 "LIST");
}

std::vector<int> LayerSelection::choose(const std::vector<int>& present, const std::string& where) const {
  if (text.empty()) return present;
  std::set<int> wanted;
  for (const auto& part : split(text, ',')) {
    const auto range = number_range(part);
    if (!range || range->first > range->last)
      throw usage_error("--layers is '{}'; it must be numbers and ranges such as 0,2-5", text);
    for (uint64_t layer = range->first; layer <= range->last; ++layer) {
      if (std::find(present.begin(), present.end(), layer) == present.end())
        throw bad_input("{}: there is no layer {}; it has layers {}", where, layer, ranges_text(present));
      wanted.insert(static_cast<int>(layer));
    }
  }
  return {wanted.begin(), wanted.end()};
}

TokenRange parse_token_range(const std::string& option, const std::string& text) {
  TokenRange range;
  const size_t colon = text.find(':');
  const bool good = colon != std::string::npos &&
                    (colon == 0 || to_number(text.substr(0, colon), range.first)) &&
                    (colon + 1 == text.size() || to_number(text.substr(colon + 1), range.end));
  if (!good) throw usage_error("{} is '{}'; it must be FIRST:END, as 0:128 or 512:", option, text);
  if (range.first >= range.end) throw usage_error("{} is '{}', which holds no token", option, text);
  return range;
}

std::optional<std::vector<TokenRange>> number_ranges(const std::string& text) {
  std::vector<TokenRange> ranges;
  for (const auto& part : split(text, ',')) {
    const auto range = number_range(part);
    if (!range || range->first > range->last || range->last == UINT64_MAX) return {};
    ranges.push_back({range->first, range->last + 1});
  }
  std::ranges::sort(ranges, {}, &TokenRange::first);
  std::vector<TokenRange> joined;
  for (const TokenRange& range : ranges)
    if (!joined.empty() && range.first <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  return joined;
}

uint64_t parse_size(const std::string& option, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  uint64_t factor = 1;
  constexpr std::string_view kUnits = "KMGT";
  if (!unit.empty() && kUnits.find(unit[0]) != std::string_view::npos) {
    factor = uint64_t{1} << (10 * (kUnits.find(unit[0]) + 1));
    unit.remove_prefix(1);
    if (unit == "iB" || unit == "B") unit = {};
  }
  constexpr double kMost = 1e15;  // a petabyte: beyond any machine, below where the product could overflow
  const double bytes = number * static_cast<double>(factor);
  if (error != std::errc{} || !unit.empty() || !(number > 0) || !(bytes <= kMost))
    throw usage_error("{} is '{}'; it must be a size such as 512M or 4G", option, text);
  return static_cast<uint64_t>(bytes);
}

uint64_t chunk_budget(uint64_t memory, uint64_t book_bytes) {
  // A codec holds its book about four times over: as read, and laid out for both directions, with a Gram
  // matrix.
  const uint64_t held = 4 * book_bytes;
  return std::max(memory / 32, (memory > held ? memory - held : 0) / 4);
}

size_t chunk_rows(uint64_t budget, uint64_t bytes_per_row) {
  constexpr uint64_t kMost = 65536;
  return static_cast<size_t>(std::clamp<uint64_t>(budget / std::max<uint64_t>(bytes_per_row, 1), 1, kMost));
}

void check_inputs(const std::vector<std::string>& inputs) {
  if (std::count(inputs.begin(), inputs.end(), "-") > 1)
    throw usage_error("only one input can be -, standard input");
}

void expect_inputs(const std::vector<std::string>& files, const std::string& book) {
  const auto is_none = [](const std::string& file) { return file.empty() || file == "-"; };
  const auto is_here = [](const std::string& file) {
    std::error_code error;
    return std::filesystem::is_regular_file(file, error);
  };
  for (const std::string& file : files)
    if (!is_none(file)) h5::File::expect(file);
  // Who misspelt an input is told so before a large book is read.
  const bool all_here =
      std::ranges::all_of(files, [&](const auto& file) { return is_none(file) || is_here(file); });
  if (is_none(book) || !all_here || !is_here(book)) return;
  h5::File::expect(book);
  expect_book(book);
}

std::vector<std::string> merged_history(const std::vector<std::vector<std::string>>& histories) {
  std::vector<std::string> merged;
  std::set<std::string_view> seen;  // lines of the histories; cat joins 100,000 of them
  for (const auto& history : histories)
    for (const auto& line : history)
      if (seen.insert(line).second) merged.push_back(line);
  return merged;
}

}  // namespace kvcodec::cli
