// Journals of files that were changed in place: any size, any numbers of pages and any bytes in them are refused or read, all
// digests right.
//
// Input: the size of the file with its change (8 bytes, added to that of the file); how many pages; their numbers (8 bytes each);
// edits of the pages, which begin as those of the file: page, offset (2), the new byte.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "formats/cache/protection.hpp"
#include "formats/io/journal.hpp"
#include "lib/core/parallel.hpp"
#include "test/everything.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/io/journal_writer.hpp"
#include "test/formats/samples.hpp"
#include "test/fuzz/child_options.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kMaxEdits = 16, kMaxPages = 4;

struct Sample {
  test::Folder folder;
  std::string path, bytes;
  Sample() : path(folder / "kv.h5") {
    set_num_threads(1);  // a child has one thread
    test::write_sample_kv(path);
    bytes = test::file_bytes(path);
  }
};

uint64_t number(fuzz::Bytes& input) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{input.byte()} << (8 * i);
  return value;
}

}  // namespace

KVCODEC_FUZZ_TARGET(journal) {
  static const Sample sample;
  fuzz::Bytes input(data, size);
  const uint64_t end = sample.bytes.size() + number(input);
  std::vector<std::pair<uint64_t, std::string>> pages(input.byte() % (kMaxPages + 1));
  for (auto& [place, page] : pages) {
    place = number(input);
    if (place < sample.bytes.size() / Overlay::kPageBytes + 1)
      page = sample.bytes.substr(place * Overlay::kPageBytes, Overlay::kPageBytes);
    page.resize(Overlay::kPageBytes);
  }
  for (size_t edit = 0; edit < kMaxEdits && !input.rest().empty() && !pages.empty(); ++edit) {
    std::string& page = pages[input.byte() % pages.size()].second;
    const uint32_t offset = input.below(Overlay::kPageBytes);
    page[offset] = static_cast<char>(input.byte());
  }
  std::string first_page = sample.bytes.substr(0, Overlay::kPageBytes);
  first_page.resize(Overlay::kPageBytes);
  std::ofstream(sample.path, std::ios::binary) << sample.bytes;  // a reader completes the change
  std::ofstream(journal_of(sample.path), std::ios::binary) << test::journal_bytes(end, first_page, pages);
  fuzz::expect_refusal_or_success([&] { test::everything_in(sample.path); });
  fuzz::expect_refusal_or_success([&] { find_damage(sample.path, [](uint64_t, uint64_t) {}); });
  return 0;
}
