// Files that change in place: before and after the change is made, for every reader; and the checks of journals.
#include "formats/io/journal.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include <fcntl.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/hdf5/hdf5.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/io/journal_writer.hpp"
#include "test/formats/refusal.hpp"
#include "test/hdf5_blocks.hpp"
#include "test/test.hpp"

namespace journal_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

/// Datasets with that many rows, which depend on `seed` from row `same` on.
struct Content {
  uint64_t rows = 0, same = 0, seed = 0;

  std::vector<uint64_t> numbers() const {
    std::vector<uint64_t> values(rows);
    for (uint64_t i = 0; i < rows; ++i) values[i] = i < same ? i : i * 31 + seed;
    return values;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> values(std::min<uint64_t>(rows, 500));
    for (uint64_t i = 0; i < values.size(); ++i) values[i] = fmt::format("{}-{}", i, i < same ? 0 : seed);
    return values;
  }
};

/// Everything but /log, which only grows.
void write(h5::File& file, const Content& content) {
  const auto numbers = content.numbers();
  h5::DatasetWriter rows(file, "/group/rows", DType::u64, {}, numbers.size());
  rows.append_values(std::span<const uint64_t>(numbers));
  rows.finish();
  h5::write_texts(file, "/names", TextList(content.names()));
  const uint64_t shape[] = {numbers.size() / 2, 2};
  h5::write_table(file, "/table", DType::u64, shape, std::as_bytes(std::span(numbers).first(shape[0] * 2)));
  file.set_text("/", "what", fmt::format("seed {}", content.seed));
  file.set_integer("/", "rows", static_cast<int64_t>(content.rows));
  file.set_texts("/", "words", content.names());
}

void create(const std::string& path, const Content& content, std::span<const std::byte> log) {
  OutputFile output(path, true);
  h5::File file = h5::File::create(output);
  h5::DatasetWriter bytes(file, "/log", DType::u8, {}, 0, {.bytes = 4096, .checksums = false});
  bytes.append(log);
  bytes.finish();
  write(file, content);
  file.close();
  output.commit();
}

/// Changes the file as far as the output says so; commit() is the caller's.
void change(OutputFile& output, const Content& content, std::span<const std::byte> more) {
  const h5::File before = h5::File::open(output.target());
  h5::File file = h5::File::create(output);
  auto bytes =
      h5::DatasetWriter::behind(file, before.dataset("/log"), 0, {.bytes = 4096, .checksums = false});
  bytes.append(more);
  bytes.finish();
  write(file, content);
  file.close();
}

void check_content(const std::string& path, const Content& content, std::span<const std::byte> log) {
  const h5::File file = h5::File::open(path);
  for (const std::string& dataset : file.datasets()) file.dataset(dataset).verify();
  CHECK(file.dataset("/group/rows").integers(0, content.rows, UINT64_MAX >> 1) == content.numbers());
  CHECK(file.dataset("/names").texts() == TextList(content.names()));
  const h5::Dataset table = file.dataset("/table");
  std::vector<uint64_t> numbers(table.rows() * 2);
  table.read(0, table.rows(), std::as_writable_bytes(std::span(numbers)));
  auto wanted = content.numbers();
  wanted.resize(content.rows / 2 * 2);
  CHECK(numbers == wanted);
  CHECK(file.text("/", "what") == fmt::format("seed {}", content.seed));
  CHECK(file.integer("/", "rows", 0, INT64_MAX) == static_cast<int64_t>(content.rows));
  CHECK(file.texts("/", "words") == content.names());
  std::vector<std::byte> bytes(file.dataset("/log").rows());
  file.dataset("/log").read(0, bytes.size(), bytes);
  CHECK(std::ranges::equal(bytes, log));
}

std::vector<std::byte> some_bytes(size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed);
  return bytes;
}

const auto nobody_waits = [] { FAIL("nobody else holds the file"); };

void change_and_commit(const std::string& path, const Content& content, std::span<const std::byte> more) {
  const HeldFile held(path, nobody_waits);
  REQUIRE(held.changeable());
  OutputFile output(path, held);
  change(output, content, more);
  output.commit();
}

/// A file whose change is still in its journal, because somebody read the file meanwhile.
struct UnfinishedChange {
  Folder folder;
  std::string path = folder / "file.h5", journal = path + ".journal";
  Content before{1000, 0, 1}, after{3000, 1000, 2};
  std::vector<std::byte> log = some_bytes(10, 0);
  std::string first_page, file,
      changes;  // bytes: of the file's first page before, and of file and journal since

  UnfinishedChange() {
    create(path, before, log);
    first_page = file_bytes(path).substr(0, Overlay::kPageBytes);
    const h5::File reader = h5::File::open(path);
    change_and_commit(path, after, {});
    file = file_bytes(path), changes = file_bytes(journal);
  }
};

}  // namespace

TEST_CASE("journal: pages take the place of what was read, and none is kept that does not change") {
  const Folder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << std::string(10000, 'a');
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Overlay overlay;
  const std::string same(300, 'a'), other(300, 'b');
  CHECK(overlay.write(4000, std::as_bytes(std::span(same)), descriptor) == 0);
  CHECK(overlay.pages.empty());
  CHECK(overlay.write(4000, std::as_bytes(std::span(other)), descriptor) == 0);
  CHECK(overlay.write(9990, std::as_bytes(std::span(other)), descriptor) == 0);  // beyond the end
  CHECK(overlay.pages.size() == 3);
  ::close(descriptor);
  std::string wanted(12000, 'a');
  wanted.replace(4000, 300, other);
  wanted.replace(9990, 300, other);
  for (const auto& [first, count] :
       {std::pair<size_t, size_t>{0, 9990}, {4090, 10}, {4100, 1}, {3999, 302}, {9980, 300}}) {
    std::string read(count, 'a');
    overlay.patch(first, std::as_writable_bytes(std::span(read)));
    CHECK(read == wanted.substr(first, count));
  }
}

TEST_CASE("journal: pages for which there is no memory are an error of the write") {
#ifdef KVCODEC_SANITIZED
  SKIP("the sanitizer has an allocator of its own");
#endif
  const Folder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << "a";
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const std::vector<std::byte> page(Overlay::kPageBytes, std::byte{1});
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const struct rlimit nothing_more = {};
    Overlay overlay;
    ::setrlimit(RLIMIT_AS, &nothing_more);
    for (uint64_t i = 0; i < (uint64_t{1} << 20); ++i)  // what the process has freed is used first
      if (const int error = overlay.write(i * Overlay::kPageBytes, page, descriptor))
        ::_exit(error == ENOMEM ? 0 : 1);
    ::_exit(2);
  }
  ::close(descriptor);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("journal: a file is as it was until the change is made, and then as if written anew") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  const Content before{1000, 0, 1}, after{90000, 700, 2};
  auto log = some_bytes(10000, 3);
  const auto more = some_bytes(50000, 4);
  create(path, before, log);
  const std::string bytes = file_bytes(path);
  {
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    change(output, after, more);
    CHECK(file_bytes(path).substr(0, bytes.size()) == bytes);
    // This process sees it already, to verify it.
    auto all = log;
    all.insert(all.end(), more.begin(), more.end());
    check_content(path, after, all);
  }
  CHECK(file_bytes(path) == bytes);
  check_content(path, before, log);
  change_and_commit(path, after, more);
  log.insert(log.end(), more.begin(), more.end());
  check_content(path, after, log);
  CHECK(folder.names() == std::vector<std::string>{"file.h5"});
}

TEST_CASE(
    "journal: where a damaged group takes no new objects the change fails, and nothing of the file stays open") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  create(path, {1000, 0, 1}, some_bytes(10, 0));
  std::string bytes = file_bytes(path);
  const auto blocks = checksummed_blocks(bytes);
  const Hdf5Block root = object_headers(bytes).at(0);
  // The message that says how the group keeps its links: its type, and a size of two bytes.
  const size_t message = bytes.find(std::string("\x0a\x02\x00", 3), root.at);
  REQUIRE_LT(message, root.at + root.size);
  bytes[message] = 0;
  mend_checksums(bytes, blocks);
  std::ofstream(path, std::ios::binary) << bytes;
  const std::vector<std::function<void(h5::File&)>> changes = {
      [](h5::File& file) { file.make_group("/new"); },
      [](h5::File& file) { h5::DatasetWriter(file, "/new", DType::u8, {}, 1).finish(); },
  };
  for (const auto& change : changes) {
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    h5::File file = h5::File::create(output);
    CHECK_THROWS_WITH_AS(change(file), (path + ": /new: cannot be created: message type not found").c_str(),
                         Error);
  }
  CHECK_EQ(H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL), 0);
}

TEST_CASE("journal: a change is refused where another file took the place of the one that changes") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  create(path, {1000, 0, 1}, some_bytes(10000, 3));
  create(folder / "other.h5", {10, 0, 5}, some_bytes(10, 6));
  const std::string before = file_bytes(path), other = file_bytes(folder / "other.h5");
  std::filesystem::create_hard_link(path, folder / "kept.h5");
  {
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    change(output, {2000, 0, 2}, some_bytes(500, 4));
    std::filesystem::rename(folder / "other.h5", path);
    CHECK_THROWS_WITH_AS(
        output.commit(),
        (path + ": another file took its place while this run changed it; nothing is added. Run "
                "the command again")
            .c_str(),
        Error);
  }
  CHECK(file_bytes(path) == other);
  CHECK(file_bytes(folder / "kept.h5") == before);
  CHECK(folder.names().size() == 2);  // no journal
}

TEST_CASE("journal: only the file that is held is changed, whatever its name leads to by then") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  create(path, {1000, 0, 1}, some_bytes(10000, 3));
  create(folder / "other.h5", {10, 0, 5}, some_bytes(10, 6));
  const std::string other = file_bytes(folder / "other.h5");
  const std::string refused =
      path + ": another run changed it after this one had read it; nothing is written. Run the command again";
  {
    const HeldFile held(path, nobody_waits);
    std::filesystem::rename(folder / "other.h5", path);
    CHECK_THROWS_WITH_AS(OutputFile(path, held), refused.c_str(), Error);
  }
  CHECK(file_bytes(path) == other);
  const HeldFile held(path, nobody_waits);
  std::ofstream(path, std::ios::app) << "more";
  CHECK_THROWS_WITH_AS(OutputFile(path, held), refused.c_str(), Error);
  CHECK(folder.names() == std::vector<std::string>{"file.h5"});
}

TEST_CASE("journal: a change is refused where another host, which sees no lock, changed the file") {
  const Folder folder;
  const std::string path = folder / "file.h5", journal = path + ".journal";
  const auto log = some_bytes(10000, 3);
  create(path, {1000, 0, 1}, log);
  for (const bool by_journal : {true, false}) {
    CAPTURE(by_journal);
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    change(output, {2000, 0, 2}, some_bytes(500, 4));
    if (by_journal) {
      std::ofstream(journal) << "kvcodec journal 1\n";
    } else {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(3000) << "another";
    }
    const uint64_t size = std::filesystem::file_size(path);
    CHECK_THROWS_WITH_AS(
        output.commit(),
        doctest::Contains("file.h5: a run on another host changed it at the same time, unseen by the locks"),
        Error);
    CHECK_EQ(std::filesystem::file_size(path), size);
    CHECK_EQ(std::filesystem::exists(journal), by_journal);
    std::filesystem::remove(journal);
  }
}

TEST_CASE("journal: it is begun with the change, and nothing is added where it cannot be written") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  create(path, {1000, 0, 1}, some_bytes(10000, 3));
  const std::string before = file_bytes(path);
  {
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    auto names = folder.names();
    std::erase(names, "file.h5");
    REQUIRE_EQ(names.size(), 1);
    CHECK(names[0].starts_with(".file.h5.journal."));
    change(output, {2000, 0, 2}, some_bytes(500, 4));
    std::filesystem::remove(folder / names[0]);
    std::filesystem::create_directory(folder / names[0]);
    CHECK_THROWS_WITH_AS(output.commit(), (path + ".journal: cannot be written: Is a directory").c_str(),
                         Error);
    std::filesystem::remove(folder / names[0]);
  }
  CHECK(file_bytes(path) == before);
  CHECK(folder.names() == std::vector<std::string>{"file.h5"});
  if (::geteuid() == 0) SKIP("root may write anywhere");
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0500));
  const HeldFile held(path, nobody_waits);
  CHECK_THROWS_WITH_AS(OutputFile(path, held),
                       (path + ".journal: cannot be written: Permission denied").c_str(), Error);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0700));
}

TEST_CASE("journal: datasets grow and shrink in place, whatever they were") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  auto log = some_bytes(5000, 0);
  create(path, {10, 0, 0}, log);
  const uint64_t rows[] = {11, 12, 12, 300, 5, 0, 20000, 20001, 150000, 150000, 149000, 1};
  uint64_t seed = 0;
  for (const uint64_t count : rows) {
    const Content content{count, count / 2, ++seed};
    const auto more = some_bytes(seed % 3 == 0 ? 0 : 3000 * seed, static_cast<unsigned>(seed));
    change_and_commit(path, content, more);
    log.insert(log.end(), more.begin(), more.end());
    check_content(path, content, log);
  }
}

TEST_CASE("journal: chunks that share rows evenly, and so are a little smaller than asked for, stay") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  const h5::Chunks chunks{.bytes = 4096};
  std::vector<uint64_t> values(100 * 512 + 10);
  std::iota(values.begin(), values.end(), uint64_t{0});
  {
    OutputFile output(path, true);
    h5::File file = h5::File::create(output);
    h5::DatasetWriter rows(file, "/rows", DType::u64, {}, values.size(), chunks);
    rows.append_values(std::span<const uint64_t>(values));
    rows.finish();
    file.close();
    output.commit();
  }
  const uint64_t chunk = h5::File::open(path).extents("/rows", "digests").front();
  REQUIRE_LT(chunk, 512);
  const std::vector<uint64_t> more{7, 8, 9};
  {
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    {
      const h5::File before = h5::File::open(path);
      h5::File file = h5::File::create(output);
      auto rows =
          h5::DatasetWriter::behind(file, before.dataset("/rows"), values.size() + more.size(), chunks);
      rows.append_values(std::span<const uint64_t>(more));
      rows.finish();
      file.close();
    }
    output.commit();
  }
  values.insert(values.end(), more.begin(), more.end());
  const h5::File file = h5::File::open(path);
  CHECK_EQ(file.extents("/rows", "digests").front(), chunk);
  CHECK(file.dataset("/rows").integers(0, values.size(), UINT64_MAX >> 1) == values);
}

TEST_CASE("journal: a table grows by rows of zeros too") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  std::vector<uint64_t> times{5};
  const auto write = [&](OutputFile& output) {
    h5::File file = h5::File::create(output);
    h5::DatasetWriter rows(file, "/time", DType::u64, {}, times.size());
    rows.append_values(std::span<const uint64_t>(times));
    rows.finish();
    file.close();
    output.commit();
  };
  {
    OutputFile output(path, true);
    write(output);
  }
  for (const uint64_t time : {0, 0, 7, 0}) {
    times.push_back(time);
    const HeldFile held(path, nobody_waits);
    OutputFile output(path, held);
    write(output);
    const h5::File file = h5::File::open(path);
    const h5::Dataset found = file.dataset("/time");
    REQUIRE_EQ(found.rows(), times.size());
    CHECK(found.integers(0, times.size(), 10) == times);
    found.verify();
  }
}

TEST_CASE("journal: one whose digest holds is refused for places and sizes that cannot be") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  create(path, {1000, 0, 1}, some_bytes(5000, 0));
  const std::string file = file_bytes(path);
  const std::string page = file.substr(0, Overlay::kPageBytes);
  const auto says = [&](uint64_t end, const std::vector<uint64_t>& numbers) {
    std::vector<std::pair<uint64_t, std::string>> pages;
    for (const uint64_t number : numbers) pages.emplace_back(number, page);
    std::ofstream(journal_of(path), std::ios::binary) << journal_bytes(end, page, pages);
    return refusal_of(path + ".journal", [&] {
      const h5::File opened = h5::File::open(path);
      for (const std::string& dataset : opened.datasets()) opened.dataset(dataset).verify();
    });
  };
  const std::string damaged = "is damaged, and with it what was added last to its file";
  CHECK_EQ(says(file.size(), {0}), "accepted");
  CHECK_EQ(says(file.size(), {}), "accepted");
  CHECK_EQ(says(file.size(), {0, uint64_t{1} << 52}), damaged);  // its first byte is byte 0 modulo 2^64
  CHECK_EQ(says(file.size(), {0, (uint64_t{1} << 52) + 1}), damaged);
  CHECK_EQ(says(file.size(), {0, UINT64_MAX}), damaged);
  CHECK_EQ(says(file.size(), {0, 0}), damaged);
  CHECK_EQ(says(uint64_t{1} << 62, {0}), damaged);
  CHECK_EQ(says(UINT64_MAX, {}), damaged);
}

TEST_CASE("journal: a first page that was written in part is completed, and no other is taken for it") {
  const UnfinishedChange change;
  const std::string &path = change.path, &journal = change.journal, &changes = change.changes;
  // The page with its change follows head, old page and numbers, of which the first is 0.
  uint64_t pages = 0;
  std::memcpy(&pages, changes.data() + 32, sizeof pages);
  const std::string page = changes.substr(40 + 4096 + 8 * pages, Overlay::kPageBytes);
  REQUIRE(page != change.first_page);
  for (unsigned sectors = 0; sectors < 256; sectors += 15) {
    CAPTURE(sectors);
    std::string torn = change.file;
    for (unsigned i = 0; i < 8; ++i)
      if (sectors >> i & 1) torn.replace(i * 512, 512, page, i * 512, 512);
    std::ofstream(path, std::ios::binary) << torn;
    std::ofstream(journal, std::ios::binary) << changes;
    if (sectors % 75 == 0) check_content(path, change.after, change.log);
    const h5::File reader = h5::File::open(path);
    CHECK_EQ(reader.integer("/", "rows", 0, INT64_MAX), 3000);
    torn[4000] ^= 1;
    std::ofstream(path, std::ios::binary) << torn;
    std::ofstream(journal, std::ios::binary) << changes;
    CHECK(message_of([&] { h5::File::open(path); }).find("is of another file, or") != std::string::npos);
  }
  std::ofstream(path, std::ios::binary)
      << change.file.substr(0, 512) + page.substr(512) + change.file.substr(4096);
  change_and_commit(path, change.before, {});
  CHECK(!std::filesystem::exists(journal));
  check_content(path, change.before, change.log);
}

TEST_CASE("journal: is what FORMAT.md says, and one of another version is refused") {
  const UnfinishedChange change;
  const std::string &path = change.path, &changes = change.changes;
  uint64_t end = 0, count = 0;
  std::memcpy(&end, changes.data() + 24, sizeof end);
  std::memcpy(&count, changes.data() + 32, sizeof count);
  std::vector<std::pair<uint64_t, std::string>> pages(count);
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(&pages[i].first, changes.data() + 40 + 4096 + 8 * i, sizeof(uint64_t));
    pages[i].second = changes.substr(40 + 4096 + 8 * count + 4096 * i, 4096);
  }
  CHECK(journal_bytes(end, change.first_page, pages) == changes);
  std::ofstream(change.journal, std::ios::binary) << journal_bytes(end, change.first_page, pages, 2);
  CHECK_EQ(refusal_of(change.journal, [&] { h5::File::open(path); }),
           "is a journal of another version; kvcodec 0.1.0 reads version 1");
}

TEST_CASE("journal: a change of little writes little") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  const auto log = some_bytes(100, 0);
  create(path, {200000, 200000, 0}, log);
  // Now datasets can grow, and there is room for what comes next.
  change_and_commit(path, {200001, 200000, 1}, {});
  const size_t size = file_bytes(path).size();
  CHECK(size > 3 * 8 * 200000 / 2);
  change_and_commit(path, {200003, 200001, 1}, some_bytes(10, 1));
  CHECK(file_bytes(path).size() < size + 20000);
}

TEST_CASE("journal: who reads a file goes on reading what it was, and the next one reads what it is") {
  const Folder folder;
  const std::string path = folder / "file.h5";
  const Content first{1000, 0, 1}, second{3000, 1000, 2}, third{5000, 1000, 3};
  auto log = some_bytes(10, 0);
  create(path, first, log);
  {
    const h5::File reader = h5::File::open(path);
    change_and_commit(path, second, log);
    CHECK(std::filesystem::exists(path + ".journal"));
    CHECK(reader.dataset("/group/rows").integers(0, 1000, UINT64_MAX >> 1) == first.numbers());
    log.insert(log.end(), log.begin(), log.end());
    check_content(path, second, log);
    std::filesystem::create_directory(folder / "links");
    std::filesystem::create_symlink("../file.h5", folder / "links/link.h5");
    check_content(folder / "links/link.h5", second, log);
    change_and_commit(path, third, some_bytes(10, 0));
    log.insert(log.end(), log.begin(), log.begin() + 10);
    CHECK(reader.dataset("/names").texts() == TextList(first.names()));
    check_content(path, third, log);
  }
  CHECK(std::filesystem::exists(path + ".journal"));
  change_and_commit(path, first, {});
  CHECK(!std::filesystem::exists(path + ".journal"));
  check_content(path, first, log);
}

TEST_CASE("journal: the next process that may write completes a change, if nobody else reads the file") {
  for (const bool adding : {false, true}) {
    CAPTURE(adding);
    const UnfinishedChange change;
    const auto open_next = [&] {
      if (adding)
        const HeldFile held(change.path, nobody_waits);
      else
        check_content(change.path, change.after, change.log);
    };
    {
      const Descriptor other(::open(change.path.c_str(), O_RDONLY | O_CLOEXEC));
      lock_as_reader(other.get());
      open_next();
      CHECK(file_bytes(change.journal) == change.changes);
    }
    open_next();
    CHECK(!std::filesystem::exists(change.journal));
    check_content(change.path, change.after, change.log);
  }
}

TEST_CASE("journal: a file of the user's that is called like one stays, and no product goes beside it") {
  const Folder folder;
  const std::string diary = folder / "train.journal", path = folder / "train";
  std::ofstream(diary) << "Dear diary";
  const std::string refused = diary +
                              ": is no journal of this program, but readers would take it for that of " +
                              path + "; move it, or name another output";
  CHECK_THROWS_WITH_AS(create(path, {10, 0, 1}, {}), refused.c_str(), Error);
  CHECK(folder.names() == std::vector<std::string>{"train.journal"});
  std::filesystem::remove(diary);
  OutputFile output(path, true);
  std::ofstream(diary) << "Dear diary";  // in the meantime
  output.commit();
  CHECK(file_bytes(diary) == "Dear diary");
  const std::string long_name = folder / std::string(250, 'n');  // with ".journal" it would be too long
  create(long_name, {10, 0, 1}, {});
  check_content(long_name, {10, 0, 1}, {});
}

TEST_CASE("journal: a damaged one, and one of a damaged file, are refused") {
  const Folder folder;
  const std::string path = folder / "file.h5", journal = path + ".journal";
  const auto log = some_bytes(10, 0);
  create(path, {1000, 0, 1}, log);
  {
    const h5::File reader = h5::File::open(path);
    change_and_commit(path, {2000, 0, 2}, {});
  }
  const std::string good = file_bytes(journal);
  for (const size_t at : {size_t{0}, size_t{30}, size_t{60}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] ^= 1;
    std::ofstream(journal, std::ios::binary) << bad;
    CHECK(message_of([&] { h5::File::open(path); }).find("file.h5.journal: is damaged") != std::string::npos);
  }
  std::ofstream(journal, std::ios::binary) << good.substr(0, good.size() - 4096);
  CHECK(message_of([&] { h5::File::open(path); }).find("is damaged") != std::string::npos);
  std::ofstream(journal, std::ios::binary) << good;
  check_content(path, {2000, 0, 2}, log);
  std::string torn = file_bytes(path);
  torn[4000] ^= 1;
  std::ofstream(path, std::ios::binary) << torn;
  std::ofstream(journal, std::ios::binary) << good;
  CHECK(message_of([&] { h5::File::open(path); }).find("is of another file, or") != std::string::npos);
}

TEST_CASE("journal: that of a replaced file counts for nothing, and whoever replaces the file removes it") {
  const UnfinishedChange change;
  const std::string &path = change.path, &journal = change.journal;
  const Content replacing{10, 0, 3}, next{20, 0, 4};
  create(path, replacing, change.log);
  CHECK(!std::filesystem::exists(journal));
  // A run that is killed in between leaves it.
  std::ofstream(journal, std::ios::binary) << change.changes;
  check_content(path, replacing, change.log);
  CHECK(file_bytes(journal) == change.changes);
  {
    const HeldFile held(path, nobody_waits);
    OutputFile(path, held).commit();  // changes nothing
  }
  check_content(path, replacing, change.log);
  change_and_commit(path, next, {});
  CHECK(!std::filesystem::exists(journal));
  check_content(path, next, change.log);
}

TEST_CASE("journal: who opened a file that is replaced before the journal is looked for reads the new one") {
  const UnfinishedChange change;
  const std::string &path = change.path, other = change.folder / "other.h5";
  const Content replacing{10, 0, 3};
  create(other, replacing, change.log);
  // A process that copies pages into a file makes readers wait.
  const Descriptor held(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_start = 1;
  lock.l_len = 1;
  REQUIRE(::fcntl(held.get(), F_OFD_SETLK, &lock) == 0);
  std::thread reader([&] { check_content(path, replacing, change.log); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // for the reader to open the file
  std::filesystem::rename(other, path);
  std::filesystem::remove(change.journal);
  lock.l_type = F_UNLCK;
  REQUIRE(::fcntl(held.get(), F_OFD_SETLK, &lock) == 0);
  reader.join();
}

TEST_CASE("journal: one that neither the file's owner nor the reader made is refused") {
  if (::geteuid() != 0) SKIP("only root can give files to others");
  const UnfinishedChange change;
  const auto own = [](const std::string& file, uid_t user) {
    REQUIRE(::chown(file.c_str(), user, static_cast<gid_t>(-1)) == 0);
  };
  own(change.journal, 12345);
  CHECK_EQ(refusal_of(change.journal, [&] { h5::File::open(change.path); }),
           "belongs to user 12345, who is neither the owner of " + change.path +
               " nor you; let one of these own it, or remove it, and with it what was added last");
  own(change.path, 12345);
  check_content(change.path, change.after, change.log);
}

TEST_CASE("journal: one whose size and number of pages differ is refused before it is read") {
  const UnfinishedChange change;
  std::filesystem::resize_file(change.journal, uint64_t{1} << 40);  // zeros, of which the disk holds none
  CHECK_EQ(refusal_of(change.journal, [&] { h5::File::open(change.path); }),
           "is damaged, and with it what was added last to its file");
}

}  // namespace journal_test
