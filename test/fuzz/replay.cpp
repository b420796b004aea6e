// Runs a fuzz target over its corpus without a fuzzer: every file as it is, cut short, and with seeded
// mutations. usage: fuzz_replay TARGET CORPUS-FOLDER [MUTATIONS-PER-FILE]
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
  const long mutations = argc == 4 ? std::strtol(argv[3], nullptr, 10) : kMutations;
  const auto& targets = kvcodec::fuzz::targets();
  const auto target = argc > 1 ? targets.find(argv[1]) : targets.end();
  if (target == targets.end() || argc < 3 || argc > 4 || mutations <= 0 ||
      !std::filesystem::is_directory(argv[2])) {
    std::fprintf(stderr, "usage: %s TARGET CORPUS-FOLDER [MUTATIONS-PER-FILE]\ntargets:", argv[0]);
    for (const auto& [name, run] : targets) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const auto run = target->second;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "%s: no files\n", argv[2]);
    return 1;
  }
  size_t runs = 0;
  for (const auto& file : files) {
    const std::vector<uint8_t> original = read_file(file);
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);  // the last name printed is the culprit after a crash
    run(original.data(), original.size());
    kvcodec::Rng rng(1, original.size());
    for (long i = 0; i < mutations; ++i) {
      std::vector<uint8_t> bytes = original;
      mutate(bytes, rng);
      run(bytes.data(), bytes.size());
      ++runs;
    }
  }
  std::printf("%zu files, %zu mutations of them\n", files.size(), runs);
  return 0;
}
