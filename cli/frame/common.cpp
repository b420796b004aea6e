#include "cli/frame/common.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>

#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/frame/text.hpp"
#include "cuda/engine.hpp"
#include "formats/cache/protection.hpp"
#include "formats/io/http.hpp"
#include "formats/io/journal.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::cli {
namespace {

namespace fs = std::filesystem;

// For a machine that does not report its memory.
constexpr uint64_t kFallbackMemory = uint64_t{2} << 30;
// Below this the fixed costs (program, libraries, HDF5's caches) are larger than the buffers that --memory controls.
constexpr uint64_t kMinMemory = uint64_t{64} << 20;
// More threads than any machine has: a larger number is a typing error.
constexpr int kMaxThreads = 4096;

/// True if there is a device that can run this program's device code.
bool usable_device() {
  try {
    cuda::require_device();
    return true;
  } catch (const Error&) {
    return false;
  }
}

constexpr std::chrono::milliseconds kInterval{100};  // ten updates per second are smooth enough
constexpr size_t kBarWidth = 24;

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

std::string rate_text(double rate) {
  if (rate >= 1e6) return fmt::format("{:.1f}M", rate / 1e6);
  if (rate >= 1e4) return fmt::format("{:.0f}k", rate / 1e3);
  return fmt::format("{:.{}f}", rate, rate < 10 ? 1 : 0);
}

// Returns to the start of the line, which a bar may occupy, and clears it.
constexpr const char* kClearLine = "\r\033[K";

}  // namespace

// Standard error while a command works ---------------------------------------------------------------

void write_note(const std::string& command, const std::string& text) {
  std::fprintf(stderr, "%skvcodec %s: note: %s\n", isatty(STDERR_FILENO) == 1 ? kClearLine : "",
               command.c_str(), message_text(text).c_str());
}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs(kClearLine, stderr);
}

void ProgressBar::update(double done, double total, std::string_view note) {
  if (!shown_) return;
  done += before_;
  if (total_ > 0) total = total_;
  const auto now = Clock::now();
  if (now - last_ < kInterval) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  const auto filled = static_cast<size_t>(std::floor(share * kBarWidth));
  std::string line = fmt::format("{} [{}{}] {:3.0f}%  {} {}/s", label_, std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), std::floor(share * 100),
                                 rate_text(done / seconds), unit_);
  if (share > 0) line += fmt::format("  {} left", time_text(seconds * (1 - share) / share));
  if (!note.empty()) line += fmt::format("  {}", note);
  if (line.size() >= terminal_width()) line.resize(terminal_width() - 1);
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

// Memory ---------------------------------------------------------------------------------------------

/// The smaller of two limits; 0 means no limit.
static uint64_t tighter(uint64_t a, uint64_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/// The number in a limit's file; 0 if there is no file or it says "max".
static uint64_t limit_in(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  in >> text;
  return number_in<uint64_t>(text).value_or(0);
}

/// The smallest limit of a group and all above it: each is subject to the limits of its parents. In a container the group may have the
/// name that it has on the machine, but no such folder; the mounted root is then the container's own group.
static uint64_t limit_up_from(const fs::path& mount, const std::string& group, const char* file) {
  uint64_t limit = limit_in(mount / file);
  fs::path place = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part == "..") break;  // a group outside of the mounted ones
    limit = tighter(limit, limit_in((place /= part) / file));
  }
  return limit;
}

uint64_t control_group_limit(const fs::path& root) {
  uint64_t limit = 0;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:group
    const auto parts = split(line, ':');
    if (parts.size() < 3) continue;
    const std::string group = line.substr(parts[0].size() + parts[1].size() + 2);
    if (parts[1].empty())  // version 2, alone or beside version 1
      for (const char* mount : {"sys/fs/cgroup", "sys/fs/cgroup/unified"})
        limit = tighter(limit, limit_up_from(root / mount, group, "memory.max"));
    else if (const auto controllers = split(parts[1], ','); std::ranges::count(controllers, "memory") > 0)
      limit = tighter(limit, limit_up_from(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

uint64_t machine_memory() {
  const auto of_system = [](int name) { return static_cast<uint64_t>(std::max(sysconf(name), 0L)); };
  return tighter(of_system(_SC_PHYS_PAGES) * of_system(_SC_PAGESIZE), control_group_limit());
}

// Options --------------------------------------------------------------------------------------------

std::vector<OptionField> CommonOptions::fields() {
  return {
      {"threads", "threads to compute with (default: all processors); the output is the same for any number",
       &threads, 1, kMaxThreads},
      {"device", "where to compute; auto takes a device where there is one and the command can use it",
       &device},
      {"seed", "seed of everything random", &seed, 0},
      {"memory", "bound for the buffers, as 512M or 4G (default: half of the machine's memory)", &memory},
      {"quiet", "no progress and no notes on standard error", &quiet},
      {"json", "the result on standard output as JSON", &json},
  };
}

void CommonOptions::declare(Command& command, bool with_seed) {
  auto chosen = fields();
  if (!with_seed) std::erase_if(chosen, [](const OptionField& field) { return field.name == "seed"; });
  command_ = command.name();
  command.group("Common to all subcommands");
  command.options(chosen, {{"memory", "SIZE"}});
  command.show_help_switch();
}

void CommonOptions::apply(const Command& command, bool has_twin) {
  if (command.given("threads")) set_num_threads(static_cast<int>(threads));
  (void)memory_bytes();  // detects a malformed size before any work
  if (command.team().rank() > 0) quiet = true;
  if (command.team().size() > 1) {
    if (device == DeviceChoice::cuda)
      throw usage_error("--device is cuda, but ranks of MPI compute on CPUs: take auto or cpu");
    return;
  }
  if (device == DeviceChoice::cpu) return;
  if (device == DeviceChoice::automatic && !(has_twin && usable_device())) return;
  if (device == DeviceChoice::cuda) cuda::require_device();
  if (!has_twin) throw usage_error("{} has no CUDA version; --device must be auto or cpu", command.name());
  Engine::Note notes;
  if (device == DeviceChoice::cuda && !quiet)
    notes = [name = command_](const std::string& what) { write_note(name, "on the CPU: " + what); };
  engine_ = cuda::make_engine(notes);
}

void CommonOptions::record_device(Command& command) const {
  if (engine_ && !engine_->exact()) command.add_to_history("--device cuda");
}

uint64_t CommonOptions::memory_bytes() const {
  if (!memory.empty()) {
    const uint64_t bytes = parse_size("--memory", memory);
    if (bytes < kMinMemory) throw usage_error("--memory is {}; it must be at least 64M", memory);
    return bytes;
  }
  const uint64_t machine = machine_memory();
  return std::max(kMinMemory, (machine ? machine : kFallbackMemory) / 2);
}

bool CommonOptions::note_journal(const std::string& file) const {
  const fs::path journal = journal_of(file);
  std::error_code error;
  if (!fs::exists(journal, error)) return false;
  note(
      "{}: another program reads it, so a part of what was added stays in {}; keep both together until a command that "
      "may write opens {} next",
      file, journal.string(), file);
  return true;
}

void OutputOptions::declare_local(Command& command, const std::string& what) {
  command.option({"output", what + "; - is standard output", &path}, "FILE", 'o');
  command.option({"overwrite", "replace the output if it exists", &overwrite});
  command.option(
      {"force",
       "replace the output even if it is one of the files that the command reads, which is then lost",
       &force});
}

void OutputOptions::declare_with_skip(Command& command, const std::string& what) {
  declare(command, what);
  command.option(
      {"skip-existing",
       "do nothing where the output is there already, whole, made by this very command, and not older "
       "than what it reads",
       &skip_existing});
}

/// True if a file of this name in a model's folder belongs to the model.
static bool is_of_model(const fs::path& file) {
  return file.extension() == ".safetensors" || file.extension() == ".json";
}

/// The file of that name, or the files of the model whose folder it is.
static std::vector<fs::path> files_of(const std::string& input) {
  std::error_code error;
  if (fs::is_regular_file(input, error)) return {input};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(input, error))
    if (is_of_model(entry.path()) && entry.is_regular_file(error)) files.push_back(entry.path());
  return files;
}

// Words that a command itself adds to its history come after those of its line.
std::string why_other(const std::string& file, const std::string& line,
                      const std::vector<std::string>& inputs) {
  const std::string last = identify(file).history.back();
  if (last != line && !last.starts_with(line + " (found: ") && last != line + " --device cuda")
    return "was made by another command";
  std::error_code error;
  const auto time = fs::last_write_time(file, error);
  for (const std::string& input : inputs)
    for (const fs::path& read : files_of(input))
      if (fs::last_write_time(read, error) > time) return "is older than " + read.string();
  const auto damage = find_damage(file, [](uint64_t, uint64_t) {});
  return damage.empty() ? "" : "is damaged: " + damage.front();
}

bool OutputOptions::made_before(const Command& command, const CommonOptions& common,
                                const std::vector<std::string>& inputs, std::string& report) const {
  std::error_code error;
  if (!skip_existing || to_stdout() || !fs::is_regular_file(path, error)) return false;
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
  if (force || path.empty() || to_stdout() || !fs::is_regular_file(path, error)) return;
  const fs::path output(path);
  for (const std::string& input : inputs) {
    if (input.empty() || input == "-") continue;
    // The files of a model, for any spelling of its folder.
    const bool of_model = fs::is_directory(input, error) && is_of_model(output);
    if (fs::equivalent(of_model ? fs::path(input) / output.filename() : fs::path(input), output, error))
      throw usage_error(
          "{}: this command reads it, and writing there would lose it; name another output, or add --force",
          path);
  }
}

void OutputOptions::differs_from(const std::string& other, const std::string& option) const {
  if (other.empty() || path.empty() || to_stdout() != (other == "-")) return;
  const auto place = [](const std::string& name) {
    std::error_code error;
    const auto found = fs::weakly_canonical(fs::absolute(name, error), error);
    return error ? fs::path(name) : found;
  };
  if (place(path) == place(other))
    throw usage_error("-o and {} both name {}; give each a file of its own", option,
                      to_stdout() ? "standard output" : other);
}

std::unique_ptr<HeldFile> OutputOptions::hold(const std::string& input, const CommonOptions& common) const {
  std::error_code error;
  if (input.empty() || input == "-" || to_stdout() || !fs::equivalent(input, path, error)) return nullptr;
  auto held = std::make_unique<HeldFile>(input, [&] {
    common.note(
        "{}: another run changes it, or, on NFS, another program reads it; waiting until that is done",
        input);
  });
  if (held->lock_error() != 0)
    common.note(
        "{}: cannot be locked ({}), so that other runs are not kept out; if one changes it, this one writes nothing",
        input, std::strerror(held->lock_error()));
  return held;
}

void OutputOptions::check(const CommonOptions& common) const {
  if (path.empty()) throw usage_error("no output is named; say where with -o FILE");
  if (is_far(path))
    throw usage_error("-o is a URL: the output is written to a file here first; give -o FILE --to {}",
                      shown_name(path));
  if (!to.empty()) {
    if (!is_far(to)) throw usage_error("--to is '{}'; it must be a URL: https://, http:// or s3://", to);
    if (to_stdout()) throw usage_error("--to uploads a file; -o cannot be -");
    require_http(far_place(to));
  }
  if (to_stdout() && common.json)
    throw usage_error("--json and -o - both write to standard output; give -o a file");
}

void OutputOptions::send() const {
  if (!send_if_missing())
    throw usage_error("{}: exists already; --overwrite replaces it; {} is complete", shown_name(to), path);
}

/// False if it exists and may not be replaced.
bool OutputOptions::send_if_missing() const {
  if (to.empty()) return true;
  const FarPlace place = far_place(to);
  std::error_code error;
  if (fs::exists(journal_of(path), error))
    throw failed("{}: is not uploaded, because another run reads {}; run compact on it, then upload it",
                 place.shown, path);
  try {
    return upload(place, path, overwrite || force);
  } catch (const Error& fault) {
    throw Error(fault.kind(), fmt::format("{}; {} is complete", fault.what(), path));
  }
}

std::vector<int> LayerSelection::choose(const std::vector<int>& present, const std::string& where) const {
  if (text.empty()) return present;
  const auto ranges = number_ranges(text);
  if (!ranges) throw usage_error("--layers is '{}'; it must be numbers and ranges such as 0,2-5", text);
  std::vector<int> chosen;
  for (const TokenRange& range : *ranges)
    for (uint64_t layer = range.first; layer < range.end; ++layer) {
      if (std::ranges::find(present, layer) == present.end())
        throw bad_input("{}: there is no layer {}; it has layers {}", where, layer, ranges_text(present));
      chosen.push_back(static_cast<int>(layer));
    }
  return chosen;
}

std::vector<size_t> Shard::choose(std::span<const uint64_t> offsets) const {
  const size_t items = offsets.size() - 1;
  const bool idle = offsets.back() == 0;  // then each item counts as one
  // Middles are counted in halves. The middle of an empty last item is the end of all.
  const uint64_t total = 2 * (idle ? items : offsets.back());
  const auto shares = static_cast<uint64_t>(count);
  const auto begin_of = [&](int64_t share) {
    const auto i = static_cast<uint64_t>(share);
    return total / shares * i + total % shares * i / shares;
  };
  const uint64_t begin = begin_of(number - 1), end = number == count ? total + 1 : begin_of(number);
  std::vector<size_t> chosen;
  for (size_t i = 0; i < items; ++i)
    if (const uint64_t middle = idle ? 2 * i + 1 : offsets[i] + offsets[i + 1];
        begin <= middle && middle < end)
      chosen.push_back(i);
  return chosen;
}

std::vector<size_t> Shard::among(const Documents& all, const std::vector<size_t>& chosen) const {
  std::vector<uint64_t> offsets{0};
  for (const size_t document : chosen) offsets.push_back(offsets.back() + all.length(document));
  return mapped<size_t>(choose(offsets), [&](size_t place) { return chosen[place]; });
}

Shard ShardOption::shard() const {
  constexpr int64_t kMaxShards = 1000000;
  if (text.empty()) return {};
  const size_t slash = std::min(text.find('/'), text.size());
  const auto number = number_in<int64_t>(std::string_view(text).substr(0, slash)),
             count = number_in<int64_t>(std::string_view(text).substr(std::min(slash + 1, text.size())));
  if (!number || !count || *number < 1 || *number > *count || *count > kMaxShards)
    throw usage_error("--shard is '{}'; it must be i/N with 1 <= i <= N, as 3/64", text);
  return {*number, *count};
}

// Numbers --------------------------------------------------------------------------------------------

std::optional<std::pair<uint64_t, uint64_t>> number_range(const std::string& text) {
  const std::string_view view(text);
  const size_t dash = view.find('-');
  const auto first = number_in<uint64_t>(view.substr(0, dash));
  const auto last = dash == view.npos ? first : number_in<uint64_t>(view.substr(dash + 1));
  if (!first || !last) return {};
  return std::pair(*first, *last);
}

TokenRange parse_token_range(const std::string& option, const std::string& text) {
  const std::string_view view(text);
  const size_t colon = std::min(view.find(':'), view.size());
  const auto limit = [](std::string_view number, uint64_t otherwise) {
    return number.empty() ? otherwise : number_in<uint64_t>(number);
  };
  const auto first = limit(view.substr(0, colon), 0),
             end = limit(view.substr(std::min(colon + 1, view.size())), UINT64_MAX);
  if (colon == view.size() || !first || !end)
    throw usage_error("{} is '{}'; it must be FIRST:END, as 0:128 or 512:", option, text);
  if (*first >= *end) throw usage_error("{} is '{}', which holds no token", option, text);
  return {*first, *end};
}

std::optional<std::vector<TokenRange>> number_ranges(const std::string& text) {
  std::vector<TokenRange> ranges;
  for (const auto& part : split(text, ',')) {
    const auto range = number_range(part);
    if (!range || range->first > range->second || range->second == UINT64_MAX) return {};
    ranges.push_back({range->first, range->second + 1});
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

std::vector<int> parse_layers(const std::string& option, const std::string& text, const char* wanted) {
  constexpr uint64_t kMaxLayers = 1 << 16;  // more than any model has
  std::vector<int> layers;
  if (text.empty()) return layers;
  const auto ranges = number_ranges(text);
  if (!ranges || ranges->back().end > kMaxLayers)
    throw usage_error("{} is '{}'; it must be {}", option, text, wanted);
  for (const TokenRange& range : *ranges)
    for (uint64_t layer = range.first; layer < range.end; ++layer) layers.push_back(static_cast<int>(layer));
  return layers;
}

uint64_t parse_size(const std::string& option, const std::string& text) {
  constexpr std::string_view kUnits = "KMGT";
  constexpr double kMaxBytes = 1e15;  // a petabyte: beyond any machine, and far below the limit of 64 bits
  const size_t place = std::min(text.find_first_of(kUnits), text.size());
  const std::string unit = text.substr(place);
  const bool known = unit.empty() || unit.size() == 1 || unit.substr(1) == "B" || unit.substr(1) == "iB";
  const int power = unit.empty() ? 0 : 10 * static_cast<int>(kUnits.find(unit[0]) + 1);
  const double bytes =
      std::ldexp(number_in<double>(std::string_view(text).substr(0, place)).value_or(0), power);
  if (!known || !(bytes > 0) || !(bytes <= kMaxBytes))
    throw usage_error("{} is '{}'; it must be a size such as 512M or 4G", option, text);
  return static_cast<uint64_t>(bytes);
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
