#include "cli/frame/resume.hpp"

#include <algorithm>
#include <filesystem>

#include "formats/cache/document_copy.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "items-";

bool same_documents(const Documents& a, const Documents& b) {
  if (a.names != b.names || a.offsets != b.offsets || a.left_out != b.left_out) return false;
  for (size_t i = 0; i < a.count(); ++i)
    if (a.facts_of(i).digest != b.facts_of(i).digest || a.facts_of(i).metadata != b.facts_of(i).metadata)
      return false;
  return true;
}

/// Pieces are written, and removed in the end: not where somebody else lets a name lead.
void refuse_link(const std::string& path) {
  std::error_code error;
  if (fs::is_symlink(path, error))
    throw usage_error("{}: is a symbolic link; --resume keeps pieces in a folder of its own: remove the link",
                      path);
}

}  // namespace

void ResumeOptions::declare(Command& command) {
  command.option(
      {"resume",
       "keep finished pieces of the output in the folder OUTPUT.pieces, and go on from those that an earlier "
       "run of this very command left there",
       &resume});
  command.option(
      {"piece", "with --resume, finish a piece after so much of the cache (256M, 4G, ...)", &piece}, "SIZE");
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
               const std::vector<std::string>& inputs, const ModelInfo& model, std::vector<Piece> pieces)
    : common_(&common), folder_(output.path + ".pieces"), pieces_(std::move(pieces)) {
  refuse_link(folder_);
  const auto is_there = [&](const Piece& piece) {
    const std::string file = file_of(piece);
    std::error_code error;
    refuse_link(file);
    if (!fs::is_regular_file(file, error)) return false;
    try {
      if (!why_other(file, command.stored_line(), inputs).empty()) return false;
      const DocumentList list = list_documents(file);
      check_same_model(file, list.model, output.path, model);
      return same_documents(list.documents, piece.documents);
    } catch (const Error& fault) {  // not a file of this program, or one of another model
      if (fault.kind() != ErrorKind::bad_input) throw;
      return false;
    }
  };
  for (const Piece& piece : pieces_) finished_.push_back(is_there(piece));
  if (const auto there = std::ranges::count(finished_, true); there > 0)
    common.note("{} of {} pieces are in {} already", there, pieces_.size(), folder_);
}

std::string Pieces::file_of(const Piece& piece) const {
  return fmt::format("{}/{}{}-{}.h5", folder_, kPrefix, piece.items.first, piece.items.end);
}

void Pieces::write(const MakePiece& make, ProgressBar& bar, OutputFile& output) {
  try {
    make_missing(make, bar);
    join(output);
  } catch (...) {
    std::error_code error;
    if (fs::is_directory(folder_, error))
      common_->note("finished pieces stay in {}; the same command goes on from there", folder_);
    throw;
  }
}

void Pieces::make_missing(const MakePiece& make, ProgressBar& bar) {
  std::error_code error;
  fs::create_directory(folder_, error);
  if (!fs::is_directory(folder_)) throw failed("{}: cannot make this folder: {}", folder_, error.message());
  double done = 0, total = 0;
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (!finished_[i]) total += static_cast<double>(pieces_[i].documents.tokens());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (finished_[i]) continue;
    bar.part(done, total);
    OutputFile file(file_of(pieces_[i]), true);
    make(pieces_[i].items, file);
    file.commit();
    finished_[i] = true;
    done += static_cast<double>(pieces_[i].documents.tokens());
  }
}

void Pieces::join(OutputFile& output) const {
  std::vector<DocumentsOf> from;
  std::vector<DocumentList> lists;
  std::vector<std::string> history;
  for (const Piece& piece : pieces_) {
    from.push_back({file_of(piece), DocumentSelection().choose(piece.documents, folder_)});
    // The output was made like its pieces, and gets the longest line of theirs: some have words after those of the command, about
    // values that the run found or about work on a device.
    std::vector<std::string> other = lists.emplace_back(list_documents(from.back().file)).type.history;
    if (history.empty() || other.back().size() > history.back().size()) history = std::move(other);
  }
  std::string line = std::move(history.back());
  history.pop_back();
  copy_documents(from, lists, output, {std::move(line), std::move(history)});
}

void Pieces::remove() const {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_, error))
    if (entry.path().filename().string().starts_with(kPrefix) && entry.path().extension() == ".h5")
      files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file, error);
  fs::remove(folder_, error);
}

}  // namespace kvcodec::cli
