#include "cli/resume.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "formats/document_copy.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "items-", kSuffix = ".h5";

bool is_piece(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

/// Whether a piece can be kept; what is no file of this program is made anew, as a damaged one is.
bool is_whole(const std::string& file, const std::string& line, const std::vector<std::string>& inputs) {
  try {
    return why_other(file, line, inputs).empty();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    return false;
  }
}

}  // namespace

void ResumeOptions::declare(Command& command) {
  command.option(
      {.name = "resume",
       .help =
           "keep finished pieces of the product in the folder OUTPUT.pieces, and go on from those that an earlier "
           "run of this very command left there",
       .target = &resume});
  command.option({.name = "piece",
                  .help = "with --resume, finish a piece after so much of the cache (256M, 4G, ...)",
                  .target = &piece},
                 "SIZE");
  command.keep_out_of_history("resume", false);
  command.keep_out_of_history("piece", true);
}

void ResumeOptions::check(const Command& command, const OutputOptions& output,
                          const std::vector<std::string>& inputs) const {
  if (!resume) {
    if (command.given("piece"))
      throw usage_error("--piece says how often --resume finishes a piece; add --resume");
    return;
  }
  if (output.to_stdout() || std::ranges::count(inputs, "-") > 0)
    throw usage_error("--resume cannot go on with a stream; name files for input and output");
  (void)piece_bytes();
}

uint64_t ResumeOptions::piece_bytes() const { return parse_size("--piece", piece); }

std::vector<WorkRange> cut_work(std::span<const uint64_t> bytes, uint64_t piece) {
  std::vector<WorkRange> ranges;
  uint64_t held = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 0 || held >= piece) ranges.push_back({i, i}), held = 0;
    held += bytes[i];
    ranges.back().end = i + 1;
  }
  return ranges;
}

Pieces::Pieces(const Command& command, const CommonOptions& common, const OutputOptions& output,
               const std::vector<std::string>& inputs, std::vector<WorkRange> ranges)
    : common_(&common), folder_(output.path + ".pieces"), ranges_(std::move(ranges)) {
  std::error_code error;
  for (const WorkRange& range : ranges_) {
    const std::string file = file_of(range);
    if (!fs::is_regular_file(file, error) || !is_whole(file, command.history_line(), inputs))
      missing_.push_back(range);
  }
  if (missing_.size() < ranges_.size())
    common.note("{} of {} pieces are in {} already", ranges_.size() - missing_.size(), ranges_.size(),
                folder_);
}

std::string Pieces::file_of(const WorkRange& range) const {
  return fmt::format("{}/{}{}-{}{}", folder_, kPrefix, range.first, range.end, kSuffix);
}

template <class Work>
void Pieces::with_note(const Work& work) const {
  try {
    work();
  } catch (...) {
    std::error_code error;
    if (fs::is_directory(folder_, error))
      common_->note("finished pieces stay in {}; the same command goes on from there", folder_);
    throw;
  }
}

void Pieces::complete(const std::function<void(const WorkRange&, OutputFile&)>& make) const {
  with_note([&] { make_missing(make); });
}

void Pieces::make_missing(const std::function<void(const WorkRange&, OutputFile&)>& make) const {
  std::error_code error;
  fs::create_directory(folder_, error);
  if (!fs::is_directory(folder_)) throw failed("{}: cannot make this folder: {}", folder_, error.message());
  for (const WorkRange& range : missing_) {
    OutputFile piece(file_of(range), true);
    make(range, piece);
    piece.commit();
  }
}

void Pieces::join(OutputFile& output, const Provenance& provenance) const {
  std::vector<DocumentsOf> from;
  from.reserve(ranges_.size());
  for (const WorkRange& range : ranges_) {
    DocumentsOf& piece = from.emplace_back(DocumentsOf{file_of(range), {}});
    piece.numbers.resize(list_documents(piece.file).documents.count());
    std::iota(piece.numbers.begin(), piece.numbers.end(), size_t{0});
  }
  with_note([&] { copy_documents(from, output, provenance); });
}

void Pieces::remove() const {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_, error))
    if (is_piece(entry.path())) files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file, error);
  fs::remove(folder_, error);
}

}  // namespace kvcodec::cli
