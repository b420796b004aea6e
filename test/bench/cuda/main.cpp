// Benchmarks of the device twins.
// usage: kvcodec_bench_cuda [--small] [--only PART-OF-NAME] [--json FILE]
#include <string_view>

#include "cuda/runtime/device.hpp"
#include "lib/core/error.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {

const std::vector<System> kSystems = {{"kvcomp", kvcomp_cases},   {"rvq", rvq_cases},
                                      {"signvq", signvq_cases},   {"attention", attention_cases},
                                      {"nearest", nearest_cases}, {"reconstruct", reconstruct_cases},
                                      {"prefill", prefill_cases}, {"pursuit", omp_cases},
                                      {"cluster", cluster_cases}, {"transform", transform_cases}};

}  // namespace kvcodec::bench

int main(int argc, char** argv) {
  using namespace kvcodec;
  bool small = false;
  std::string only, json;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--small") {
      small = true;
    } else if (i + 1 < argc && argument == "--only") {
      only = argv[++i];
    } else if (i + 1 < argc && argument == "--json") {
      json = argv[++i];
    } else {
      fmt::print(stderr, "usage: kvcodec_bench_cuda [--small] [--only PART-OF-NAME] [--json FILE]\n");
      return 2;
    }
  }
  try {
    const auto device = cuda::require_device();
    bench::print_header("device twins on " + device.name);
    bench::DeviceBench bench(small, only);
    for (const auto& system : bench::kSystems) {
      if (std::string_view(system.name).find(only.substr(0, only.find('/'))) == std::string_view::npos)
        continue;
      bench.attempt(system.name, [&] { system.run(bench); });
      if (!json.empty()) bench.write_json(json);  // what comes later may end the program
    }
    bench.print_table();
    if (bench.failures() > 0) {
      fmt::print(stderr, "kvcodec_bench_cuda: {} cases failed\n", bench.failures());
      return 1;
    }
  } catch (const Error& error) {
    fmt::print(stderr, "kvcodec_bench_cuda: {}\n", error.what());
    return error.kind() == ErrorKind::no_device ? 4 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvcodec_bench_cuda: {}\n", error.what());
    return 1;
  }
  return 0;
}
