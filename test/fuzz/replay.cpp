// Runs a fuzz target over its corpus without a fuzzer: every file as it is, cut short, and with seeded
// mutations. usage: <name>_fuzz CORPUS-FOLDER [MUTATIONS-PER-FILE]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "lib/core/rng.hpp"
#include "test/fuzz/fuzz.hpp"

namespace {

constexpr long kMutations = 400;  // per file; a few milliseconds each at most

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Overwrites, inserts, removes or repeats a few bytes; favours values at the edges of ranges.
void mutate(std::vector<uint8_t>& bytes, kvcodec::Rng& rng) {
  constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', ',', '9', '-'};
  for (uint64_t edits = 1 + rng.below(4); edits > 0; --edits) {
    const auto place = static_cast<std::ptrdiff_t>(rng.below(bytes.size() + 1));
    const auto value = rng.below(2) ? static_cast<uint8_t>(rng.next()) : kEdges[rng.below(std::size(kEdges))];
    switch (rng.below(4)) {
      case 0:
        bytes.insert(bytes.begin() + place, value);
        break;
      case 1:
        if (place < std::ssize(bytes)) bytes.erase(bytes.begin() + place);
        break;
      case 2:
        bytes.resize(static_cast<size_t>(place));
        break;
      default:
        if (place < std::ssize(bytes)) bytes[static_cast<size_t>(place)] = value;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long mutations = argc == 3 ? std::strtol(argv[2], nullptr, 10) : kMutations;
  if (argc < 2 || argc > 3 || mutations <= 0 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "usage: %s CORPUS-FOLDER [MUTATIONS-PER-FILE]\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "%s: no files\n", argv[1]);
    return 1;
  }
  size_t runs = 0;
  for (const auto& file : files) {
    const std::vector<uint8_t> original = read_file(file);
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);  // the last name printed is the culprit after a crash
    LLVMFuzzerTestOneInput(original.data(), original.size());
    kvcodec::Rng rng(1, original.size());
    for (long i = 0; i < mutations; ++i) {
      std::vector<uint8_t> bytes = original;
      mutate(bytes, rng);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      ++runs;
    }
  }
  std::printf("%zu files, %zu mutations of them\n", files.size(), runs);
  return 0;
}
