// kvcodec_bench_kv: writing and reading kv files against cp of the same bytes in the same run.
//
//   kvcodec_bench_kv [folder] [MiB] [repeats]      default: /tmp, 512, 5
//
// Prints GB/s of file bytes, all in the page cache: cp to a new file, writing from float rows (rounding,
// checks for what is not finite, checksums) up to finish(), and reading into float rows (checksums, the same
// checks, widening). The last two lines include the way to the disk: cp with fsync, and commit(). Beside each
// stands the processor time of all threads and of the system on their behalf, in ms per GB: on a machine that
// is busy otherwise it says more than the clock does.
// The shape is that of Llama-3.1-8B: 8 heads of 128 dimensions, layer by layer in pieces of 4,096 tokens.
#include <filesystem>

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/cache/kv_file.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

namespace fs = std::filesystem;

constexpr int kHeads = 8, kHeadDim = 128, kLayers = 4;
constexpr size_t kWidth = size_t{kHeads} * kHeadDim, kPiece = 4096;

struct Job {
  std::string folder;
  uint64_t tokens = 0;
  DType dtype = DType::bf16;
  Matrix<float> rows{kPiece, kWidth};

  std::string file() const { return folder + "/bench.h5"; }
  std::string copy() const { return folder + "/bench-copy.h5"; }
};

void write(const Job& job, OutputFile& output) {
  ModelInfo model;
  model.num_layers = kLayers, model.num_q_heads = model.num_kv_heads = kHeads, model.head_dim = kHeadDim;
  KvWriter writer(output, model, job.dtype, {0, 1, 2, 3}, std::nullopt);
  Documents documents;
  documents.add("text", job.tokens);
  writer.expect(documents);
  std::vector<uint64_t> positions(job.tokens);
  for (uint64_t t = 0; t < job.tokens; ++t) positions[t] = t;
  writer.add_document("text", {}, positions);
  for (uint64_t first = 0; first < job.tokens; first += kPiece)
    for (int layer = 0; layer < kLayers; ++layer)
      for (const Side side : kSides) {
        const uint64_t n = std::min<uint64_t>(kPiece, job.tokens - first);
        writer.append(side, layer, job.rows.view().rows(0, n));
      }
  writer.finish({"kvcodec_bench_kv", {}});
}

/// Reads everything; `check` compares it with the written data.
void read(const Job& job, uint64_t piece, bool check) {
  const KvReader reader(job.file());
  static Matrix<float> rows(kPiece, kWidth);
  for (int layer = 0; layer < kLayers; ++layer)
    for (const Side side : kSides)
      for (uint64_t first = 0; first < job.tokens; first += piece) {
        const MatrixView<float> part = rows.view().rows(0, std::min(piece, job.tokens - first));
        reader.read(side, layer, first, part);
        if (!check) continue;
        for (size_t i = 0; i < part.rows(); ++i)
          for (size_t c = 0; c < kWidth; ++c)
            bench::check(part(i, c) == round_to(job.dtype, job.rows((first + i) % kPiece, c)),
                         "a row differs");
      }
}

void copy(const Job& job, bool sync) {
  std::string program = "cp", option = "--reflink=never", from = job.file(), to = job.copy();
  char* arguments[] = {program.data(), option.data(), from.data(), to.data(), nullptr};
  pid_t child = 0;
  int status = 0;
  bench::check(posix_spawnp(&child, "cp", nullptr, nullptr, arguments, environ) == 0 &&
                   waitpid(child, &status, 0) == child && status == 0,
               "cp failed");
  if (!sync) return;
  const int file = ::open(job.copy().c_str(), O_WRONLY | O_CLOEXEC);
  bench::check(file >= 0 && ::fsync(file) == 0, "fsync failed");
  ::close(file);
}

/// Processor seconds of this process and of those that it waited for.
double processor_time() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    struct rusage usage = {};
    ::getrusage(who, &usage);
    for (const timeval& t : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  }
  return seconds;
}

struct Cost {
  bench::Times clock, processor;

  template <class Body>
  void add(Body&& body) {
    const double start = bench::now(), used = processor_time();
    body();
    processor.add(processor_time() - used);
    clock.add(bench::now() - start);
  }
};

void run(Job& job, int repeats) {
  {
    OutputFile output(job.file(), true);
    write(job, output);
    output.commit();
  }
  read(job, kPiece, true);
  Cost cp, writing, reading, short_reading, cp_synced, committed;
  // They take turns, so that a busy moment of the machine affects all of them.
  for (int i = 0; i < repeats; ++i) {
    reading.add([&] { read(job, kPiece, false); });
    short_reading.add([&] { read(job, 300, false); });
    cp.add([&] { copy(job, false); });
    fs::remove(job.copy());
    {
      OutputFile output(job.file(), true);  // its removal is not timed
      writing.add([&] { write(job, output); });
    }
    cp_synced.add([&] { copy(job, true); });
    fs::remove(job.copy());
    fs::remove(job.file());
    OutputFile output(job.file(), true);
    committed.add([&] {
      write(job, output);
      output.commit();
    });
  }
  const auto bytes = static_cast<double>(fs::file_size(job.file()));
  const auto line = [&](const char* what, const Cost& cost, const Cost& against) {
    fmt::print("  {:<30} {:<20} {:>4.0f}% of cp; processor {:>4.0f} ms/GB\n", what,
               bench::rate(cost.clock, bytes, 1e9), 100 * against.clock.median() / cost.clock.median(),
               cost.processor.median() / bytes * 1e12);
  };
  fmt::print("{}, {:.0f} MB, GB/s: median (min .. max) of {}\n", name_of(job.dtype), bytes / 1e6, repeats);
  line("cp", cp, cp);
  line("write", writing, cp);
  line("read, 4096 tokens at a time", reading, cp);
  line("read, 300 tokens at a time", short_reading, cp);
  line("cp, synced", cp_synced, cp_synced);
  line("write, committed", committed, cp_synced);
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  job.folder = argc > 1 ? argv[1] : "/tmp";
  const uint64_t mebibytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 512;
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 5;
  Rng rng(1);
  for (size_t i = 0; i < job.rows.size(); ++i) job.rows.data()[i] = static_cast<float>(rng.uniform(-4, 4));
  bench::print_header("kv files in " + job.folder);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    job.dtype = dtype;
    job.tokens = (mebibytes << 20) / (2 * kLayers * kWidth * size_of(dtype));
    run(job, repeats);
  }
  fs::remove(job.file());
  fs::remove(job.copy());
  return 0;
}
