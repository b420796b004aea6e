// Damages files of kvcodec at random and reads them whole, each in a separate process: TESTING.md gives the number of cases and the
// results.
//
//   file_campaign KIND CASES SEED FILE...
//   file_campaign KIND CASES SEED --write FOLDER FILE...     only writes the damaged files, as case-N.h5, for hdf5_walk.py
//
// KIND is bytes (bits, bytes, sectors, the end of the file), chunks (stored chunks lost, interchanged, doubled) or headers (bytes
// of HDF5's object headers, their checksums made right again). A case is good if the file is refused, or gives what it gave before.
// It prints what came out and the first bad cases, and keeps files that something crashes on as case-N.h5. Its status is 1 if
// there was a bad one. headers cannot tell what was changed on purpose from what was meant: there a file that reads
// differently is not bad.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fcntl.h>
#define H5_USE_110_API  // H5Ovisit, of any newer HDF5 too
#include <hdf5.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/everything.hpp"
#include "test/hdf5_blocks.hpp"

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

// A case ----------------------------------------------------------------------------------------------

enum Outcome { kSame, kRefused, kDifferent, kCrash, kHang, kOutcomes };
constexpr const char* kOutcomeNames[] = {"same", "refused", "different", "crashed", "hung"};

Outcome outcome_of(const std::string& name, const std::string& wanted) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::alarm(60);
    int status = kRefused;
    try {
      status = everything_in(name) == wanted ? kSame : kDifferent;
    } catch (const std::exception&) {  // what runs out of memory is refused too
    }
    ::_exit(status);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status))
    return WEXITSTATUS(status) <= kDifferent ? static_cast<Outcome>(WEXITSTATUS(status)) : kCrash;
  return WTERMSIG(status) == SIGALRM ? kHang : kCrash;
}

struct Edit {
  uint64_t at = 0;
  std::string bytes;
};
/// Bytes to write over those of the file, and where it ends.
struct Damage {
  std::string name;
  std::vector<Edit> edits;
  uint64_t size = UINT64_MAX;
};

/// A file that can be damaged and mended.
class Victim {
 public:
  Victim(const std::string& source, std::string name) : name_(std::move(name)) {
    std::ifstream in(source, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    std::ofstream(name_, std::ios::binary) << bytes_;
    descriptor_ = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor_ < 0) throw std::runtime_error("cannot open " + name_);
    wanted_ = everything_in(name_);
  }
  Victim(Victim&& other) noexcept = default;
  const std::string& bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  /// Writes the damaged file.
  void write(const Damage& damage, const std::filesystem::path& path) const {
    std::string bytes = bytes_.substr(0, damage.size);
    for (const Edit& edit : damage.edits)
      if (edit.at < bytes.size()) bytes.replace(edit.at, edit.bytes.size(), edit.bytes);
    std::ofstream(path, std::ios::binary) << bytes;
  }

  /// kept: the place for a file that crashes something.
  Outcome try_out(const Damage& damage, const std::string& kept) const {
    for (const Edit& edit : damage.edits) put(edit.at, edit.bytes);
    if (damage.size < bytes_.size() && ::ftruncate(descriptor_, static_cast<off_t>(damage.size)) != 0)
      throw std::runtime_error("ftruncate failed");
    const Outcome outcome = outcome_of(name_, wanted_);
    if (outcome > kDifferent)
      std::filesystem::copy_file(name_, kept, std::filesystem::copy_options::overwrite_existing);
    for (const Edit& edit : damage.edits) put(edit.at, bytes_.substr(edit.at, edit.bytes.size()));
    if (damage.size < bytes_.size()) put(damage.size, bytes_.substr(damage.size));
    return outcome;
  }

 private:
  void put(uint64_t at, const std::string& bytes) const {
    if (::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at)) !=
        static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("pwrite failed");
  }
  std::string name_, bytes_, wanted_;
  int descriptor_ = -1;
};

// Kinds of damage ---------------------------------------------------------------------------------------

Damage random_bytes(const Victim& victim, Rng& rng) {
  const std::string& bytes = victim.bytes();
  const uint64_t at = rng.below(bytes.size());
  const auto sector = [&](uint64_t size) { return rng.below(bytes.size() / size + 1) * size; };
  switch (rng.below(6)) {
    case 0: {
      std::string one = bytes.substr(at, 1);
      one[0] = static_cast<char>(one[0] ^ (1 << rng.below(8)));
      return {"bit", {{at, one}}};
    }
    case 1:
      return {"byte", {{at, std::string(1, static_cast<char>(rng.below(256)))}}};
    case 2: {
      std::string run = bytes.substr(at, 1 + rng.below(64));
      for (char& byte : run) byte = static_cast<char>(rng.below(256));
      return {"run", {{at, run}}};
    }
    case 3: {
      const uint64_t size = rng.below(2) ? 512 : 4096,
                     from = std::min<uint64_t>(sector(size), bytes.size() - 1);
      return {"zeros", {{from, std::string(std::min<uint64_t>(size, bytes.size() - from), '\0')}}};
    }
    case 4: {
      const uint64_t size = 512, a = sector(size), b = sector(size);
      if (a + size > bytes.size() || b + size > bytes.size()) return {"cut", {}, at};
      return {"sectors", {{a, bytes.substr(b, size)}, {b, bytes.substr(a, size)}}};
    }
    default:
      return {"cut", {}, at};
  }
}

struct Chunk {
  uint64_t at, size;
};

/// The chunks of all datasets.
std::vector<Chunk> chunks_of(const std::string& name) {
  std::vector<Chunk> chunks;
  const hid_t file = H5Fopen(name.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const auto visit = [](hid_t group, const char* path, const H5O_info_t* info, void* found) -> herr_t {
    if (info->type != H5O_TYPE_DATASET) return 0;
    const hid_t dataset = H5Dopen2(group, path, H5P_DEFAULT), space = H5Dget_space(dataset);
    hsize_t count = 0;
    if (H5Dget_num_chunks(dataset, space, &count) < 0) count = 0;
    for (hsize_t i = 0; i < count; ++i) {
      hsize_t offset[8], size = 0;
      unsigned filters = 0;
      haddr_t address = HADDR_UNDEF;
      if (H5Dget_chunk_info(dataset, space, i, offset, &filters, &address, &size) >= 0 &&
          address != HADDR_UNDEF)
        static_cast<std::vector<Chunk>*>(found)->push_back({address, size});
    }
    H5Sclose(space), H5Dclose(dataset);
    return 0;
  };
  H5Ovisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, &chunks);
  H5Fclose(file);
  return chunks;
}

Damage random_chunks(const Victim& victim, const std::vector<Chunk>& chunks, Rng& rng) {
  const std::string& bytes = victim.bytes();
  const Chunk a = chunks[rng.below(chunks.size())];
  std::vector<Chunk> alike;
  for (const Chunk& chunk : chunks)
    if (chunk.size == a.size && chunk.at != a.at) alike.push_back(chunk);
  const uint64_t kind = alike.empty() ? 0 : rng.below(4);
  if (kind == 0) return {"lost", {{a.at, std::string(a.size, '\0')}}};
  if (kind == 1) {  // HDF5's checksum of 0x0000 and of 0xffff is the same
    std::string inverted = bytes.substr(a.at, a.size);
    for (size_t i = 0; i + 6 < inverted.size(); i += 2)
      if (inverted[i] == 0 && inverted[i + 1] == 0) inverted[i] = inverted[i + 1] = '\xff';
    return {"inverted", {{a.at, inverted}}};
  }
  const Chunk b = alike[rng.below(alike.size())];
  if (kind == 2) return {"doubled", {{a.at, bytes.substr(b.at, b.size)}}};
  return {"interchanged", {{a.at, bytes.substr(b.at, b.size)}, {b.at, bytes.substr(a.at, a.size)}}};
}

Damage random_header(const Victim& victim, const std::vector<Hdf5Block>& headers, Rng& rng) {
  const Hdf5Block header = headers[rng.below(headers.size())];
  std::string bytes = victim.bytes().substr(header.at, header.size);
  for (uint64_t changes = 1 + rng.below(2); changes > 0; --changes) {
    char& byte = bytes[4 + rng.below(header.size - 4)];
    constexpr unsigned char kEdges[] = {0, 1, 0x7f, 0x80, 0xff};
    byte = static_cast<char>(rng.below(2) ? rng.below(256) : kEdges[rng.below(std::size(kEdges))]);
  }
  const uint32_t checksum = lookup3(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), 4);
  return {"header", {{header.at, bytes}}};
}

int run(int argc, char** argv) {
  const bool writes = argc > 4 && std::string_view(argv[4]) == "--write";
  const int first_file = writes ? 6 : 4;
  if (argc <= first_file)
    throw std::runtime_error("usage: file_campaign bytes|chunks|headers CASES SEED [--write FOLDER] FILE...");
  const std::string kind = argv[1];
  const uint64_t cases = std::strtoull(argv[2], nullptr, 10), seed = std::strtoull(argv[3], nullptr, 10);
  set_num_threads(1);  // a child has one thread
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("kvcodec-campaign-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::vector<Victim> victims;
  std::vector<std::vector<Chunk>> chunks;
  std::vector<std::vector<Hdf5Block>> headers;
  for (int i = first_file; i < argc; ++i) {
    victims.emplace_back(argv[i], folder / (std::to_string(i) + ".h5"));
    chunks.push_back(chunks_of(victims.back().name()));
    headers.push_back(object_headers(victims.back().bytes()));
    if (kind == "headers" && headers.back().empty()) throw std::runtime_error("no object header is known");
  }
  Rng rng(seed);
  std::map<std::string, std::map<int, uint64_t>> counts;
  uint64_t bad = 0;
  for (uint64_t number = 0; number < cases; ++number) {
    const size_t i = rng.below(victims.size());
    const Damage damage = kind == "bytes"    ? random_bytes(victims[i], rng)
                          : kind == "chunks" ? random_chunks(victims[i], chunks[i], rng)
                                             : random_header(victims[i], headers[i], rng);
    const std::string kept = "case-" + std::to_string(number) + ".h5";
    if (writes) {
      victims[i].write(damage, std::filesystem::path(argv[5]) / kept);
      continue;
    }
    const Outcome outcome = victims[i].try_out(damage, kept);
    ++counts[damage.name][outcome];
    const bool is_bad = outcome > kDifferent || (outcome == kDifferent && kind != "headers");
    if (is_bad && ++bad <= 20)
      std::printf("case %lu: %s: %s at byte %lu: %s\n", static_cast<unsigned long>(number),
                  argv[first_file + i], damage.name.c_str(),
                  static_cast<unsigned long>(damage.edits.empty() ? damage.size : damage.edits[0].at),
                  kOutcomeNames[outcome]);
  }
  std::filesystem::remove_all(folder);
  if (writes) return 0;
  for (const auto& [name, of_kind] : counts) {
    std::printf("%-14s", name.c_str());
    for (int outcome = 0; outcome < kOutcomes; ++outcome) {
      const auto place = of_kind.find(outcome);
      std::printf(" %lu %s%s", static_cast<unsigned long>(place == of_kind.end() ? 0 : place->second),
                  kOutcomeNames[outcome], outcome + 1 < kOutcomes ? "," : "\n");
    }
  }
  std::printf("%lu cases, %lu bad\n", static_cast<unsigned long>(cases), static_cast<unsigned long>(bad));
  return bad > 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "file_campaign: %s\n", error.what());
    return 2;
  }
}
