// Shared by the benchmarks: a line about machine and build, and times with their spread. A benchmark checks its answer, then
// measures; it prints and asserts no time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/core/cpu.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::bench {

/// KVCODEC_BENCH_CLOCK=cpu: times are the process's processor time, for one thread on a machine that is also used otherwise.
inline bool counts_processor_time() {
  static const char* const clock = std::getenv("KVCODEC_BENCH_CLOCK");
  return clock && std::string_view(clock) == "cpu";
}

inline double now() {
  if (timespec used; counts_processor_time() && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0)
    return double(used.tv_sec) + double(used.tv_nsec) * 1e-9;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of repeated runs.
class Times {
 public:
  void add(double seconds) {
    seconds_.push_back(seconds);
    std::sort(seconds_.begin(), seconds_.end());
  }
  double median() const { return seconds_[seconds_.size() / 2]; }
  double min() const { return seconds_.front(); }
  double max() const { return seconds_.back(); }
  size_t count() const { return seconds_.size(); }

 private:
  std::vector<double> seconds_;
};

/// Runs body once to warm up, then `repeats` times.
template <class Body>
Times measure(int repeats, Body&& body) {
  body();
  Times times;
  for (int i = 0; i < repeats; ++i) {
    const double start = now();
    body();
    times.add(now() - start);
  }
  return times;
}

/// work / time in units of `scale` per second (1e9 for G): "median (min .. max)".
inline std::string rate(const Times& times, double work, double scale) {
  return fmt::format("{:.2f} ({:.2f} .. {:.2f})", work / times.median() / scale, work / times.max() / scale,
                     work / times.min() / scale);
}

inline std::string milliseconds(const Times& times) {
  return fmt::format("{:.2f} ms ({:.2f} .. {:.2f})", times.median() * 1e3, times.min() * 1e3,
                     times.max() * 1e3);
}

inline std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

/// First line of every benchmark. It contains the load, because other work on the machine affects the times.
inline void print_header(const std::string& subject) {
  double load[1] = {0};
  if (getloadavg(load, 1) != 1) load[0] = -1;
  fmt::print("{}: {}, {} threads, {}; {}; load {:.1f} before{}\n", subject, cpu_name(), num_threads(),
             name_of(simd_level()), KVCODEC_BUILD, load[0],
             counts_processor_time() ? "; processor time" : "");
}

/// Ends the program if the answer is wrong: wrong answers are not timed.
inline void check(bool right, const std::string& what) {
  if (right) return;
  fmt::print(stderr, "wrong answer: {}\n", what);
  std::exit(1);
}

}  // namespace kvcodec::bench
