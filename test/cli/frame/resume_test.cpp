#include "cli/frame/resume.hpp"

#include <memory>

#include "formats/cache/kv_file.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace resume_test {

using namespace kvcodec;
using namespace kvcodec::cli;
using namespace kvcodec::test;

namespace {

/// A command that reads that many files, and adds these words to its line.
std::unique_ptr<Command> reading(size_t files, const std::vector<std::string>& found = {}) {
  std::vector<std::string> words;
  words.reserve(files);
  for (size_t i = 0; i < files; ++i)
    words.push_back(fmt::format("documents/chapter {}, of what went before.txt", i));
  auto command = std::make_unique<Command>("dump-kv", "", std::move(words));
  for (const std::string& one : found) command->add_to_history(one);
  return command;
}

/// A file that the command wrote.
void write_by(const Command& command, const std::string& path) {
  OutputFile output(path, true);
  KvWriter writer(output, sample_model(1, 1, 2), DType::f32, {0}, std::nullopt);
  writer.add_document("a", {}, counting(0, 2));
  for (const Side side : kSides) writer.append(side, 0, random_rows(2, 2, 1));
  writer.finish(command.provenance());
  output.commit();
}

std::vector<std::pair<size_t, size_t>> cut(std::vector<uint64_t> bytes, uint64_t piece) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const WorkRange& range : cut_work(bytes, piece)) ranges.emplace_back(range.first, range.end);
  return ranges;
}

}  // namespace

TEST_CASE("resume: work is cut where a piece is full, and no piece is empty") {
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  CHECK(cut({}, 10) == Ranges{});
  CHECK(cut({3, 3, 3}, 10) == Ranges{{0, 3}});
  CHECK(cut({5, 5, 1}, 10) == Ranges{{0, 2}, {2, 3}});  // full to the byte
  CHECK(cut({100, 1, 100}, 10) == Ranges{{0, 1}, {1, 3}});
  CHECK(cut({0, 0, 0}, 10) == Ranges{{0, 3}});
  CHECK(cut({1, 2}, 0) == Ranges{{0, 1}, {1, 2}});
}

TEST_CASE("resume: a file is known by the command that wrote it, however long its line is") {
  const Folder folder;
  const std::string file = folder / "kv.h5", other = "was made by another command";
  const std::string found = "(found: --layer-bits '" + std::string(1500, '3') + "')";
  for (const size_t files : {size_t{1}, size_t{60}, size_t{75}, size_t{1000}}) {
    CAPTURE(files);
    const auto same = reading(files), more = reading(files + 1);
    for (const std::vector<std::string>& behind :
         {std::vector<std::string>{}, {found}, {found, "--device cuda"}, {"--device cuda"}}) {
      const auto writing = reading(files, behind);
      write_by(*writing, file);
      CHECK(why_other(file, same->stored_line(), {}).empty());     // as --skip-existing asks
      CHECK(why_other(file, writing->stored_line(), {}).empty());  // as --resume asks
      CHECK(why_other(file, more->stored_line(), {}) == other);
    }
    write_by(*same, file);
    CHECK(why_other(file, reading(files, {found})->stored_line(), {}) == other);
  }
}

}  // namespace resume_test
