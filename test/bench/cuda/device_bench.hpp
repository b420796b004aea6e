// Shared by the benchmarks of the device twins. Each case checks its answer against the CPU first, then times launches with events
// over several sets of buffers, together larger than the second-level cache, and compares the time with the floor: the bytes that
// must move over the measured copy bandwidth, or the operations over the measured rate of matrix products, whichever takes longer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/runtime.hpp"
#include "test/bench/bench.hpp"

namespace kvcodec::bench {

/// Throws unless the answer is right: wrong answers are not timed.
void verify(bool right, const std::string& what);

/// The minimum work of a case.
struct Work {
  double bytes = 0;       ///< each input read once, each output written once
  double operations = 0;  ///< on the matrix units
  double reported = 0;    ///< what the rate counts; 0: bytes, or operations where there are no bytes
  std::string unit = "GB/s";
};

class DeviceBench {
 public:
  /// small: sizes that the emulation manages in seconds; times then mean nothing.
  DeviceBench(bool small, std::string only);

  bool small() const { return small_; }
  const cuda::Stream& stream() const { return stream_; }
  const cuda::Limits& limits() const { return limits_; }
  double copy_bandwidth() const { return copy_bandwidth_; }

  /// True if cases of this name are selected.
  bool wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }

  /// Number of sets of `bytes` that are twice as large as the cache, from 2 to 64.
  size_t sets_of(double bytes) const;

  /// Launches `launch(set)` for set = 0, 1, ..., sets - 1, 0, ... and adds a line. name: "system/kernel"; shape: its sizes. Call it
  /// after the answer was checked.
  void measure(const std::string& name, const std::string& shape, const Work& work, size_t sets,
               const std::function<void(size_t set)>& launch);

  /// Runs a case. If it throws, the error is printed and recorded, and the next case can run.
  void attempt(const std::string& name, const std::function<void()>& body);
  /// Cases that threw.
  size_t failures() const { return failures_; }

  /// The measurements so far, as JSON.
  void write_json(const std::string& path) const;
  /// The same as a table, on standard output.
  void print_table() const;

 private:
  struct Line {
    std::string name, shape, unit;
    double seconds, least, limit;  // median and spread of one launch
    double rate, floor_seconds;
  };
  void measure_floors();
  Times time(size_t sets, const std::function<void(size_t)>& launch);

  bool small_;
  std::string only_;
  cuda::DeviceInfo device_;  // asked for once: after a fault there is none to ask
  cuda::Stream stream_;
  cuda::Limits limits_;
  double copy_bandwidth_ = 0, product_rate_ = 0;  // bytes and operations per second
  std::vector<Line> lines_;
  size_t failures_ = 0;
};

/// Rates of f16 matrix products by the vendor's library, operations per second; 0 if it is not available.
double library_product_rate(const cuda::Stream& stream, size_t n,
                            const std::function<Times(const std::function<void(size_t)>&)>& time);

/// `per_head` vectors for each head of a cache of 16-bit values [tokens][heads][dims].
struct HeadProducts {
  size_t tokens, heads, dims, per_head;
};

/// The vendor's products of bf16 keys and values, with sums in float32, for all heads at once.
class LibraryProducts {
 public:
  explicit LibraryProducts(const cuda::Stream& stream);
  ~LibraryProducts();
  LibraryProducts(const LibraryProducts&) = delete;
  LibraryProducts& operator=(const LibraryProducts&) = delete;

  bool available() const { return handle_ != nullptr; }
  /// out [heads][per_head][tokens] = queries [heads][per_head][dims] times keys.
  void multiply_keys(const HeadProducts& shape, const uint16_t* keys, const uint16_t* queries,
                     float* out) const;
  /// out [heads][per_head][dims] = weights [heads][per_head][tokens] times values.
  void multiply_values(const HeadProducts& shape, const uint16_t* values, const uint16_t* weights,
                       float* out) const;

 private:
  void* handle_ = nullptr;
};

/// The content of a buffer after all work of the stream is done. Cases use it to check the results of the timed launches.
template <class T>
std::vector<T> read(const cuda::DeviceBuffer<T>& buffer, const cuda::Stream& stream) {
  std::vector<T> values(buffer.size());
  buffer.download(values, stream);
  stream.synchronize();
  return values;
}

/// `count` of the numbers below n, or all, from 0 to n - 1 in even steps.
std::vector<size_t> spread(size_t n, size_t count);

/// n floats within [-1, 1), the same for a seed.
std::vector<float> random_floats(uint64_t seed, size_t n);

/// The cases: one function per system, in the file of its name.
using Cases = void (*)(DeviceBench&);
struct System {
  const char* name;
  Cases run;
};
extern const std::vector<System> kSystems;
void kvcomp_cases(DeviceBench& bench);
void rvq_cases(DeviceBench& bench);
void signvq_cases(DeviceBench& bench);
void attention_cases(DeviceBench& bench);
void nearest_cases(DeviceBench& bench);
void reconstruct_cases(DeviceBench& bench);
void prefill_cases(DeviceBench& bench);
void omp_cases(DeviceBench& bench);
void cluster_cases(DeviceBench& bench);
void transform_cases(DeviceBench& bench);

}  // namespace kvcodec::bench
