#include "test/bench/cuda/device_bench.hpp"

#include <cmath>
#include <stdexcept>

#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"

namespace kvcodec::bench {
namespace {

/// Several launches make a timed region this long: events are exact to about a microsecond.
constexpr double kRegionSeconds = 2e-3;
constexpr int kRepeats = 15;

}  // namespace

void verify(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("wrong answer: " + what);
}

DeviceBench::DeviceBench(bool small, std::string only)
    : small_(small), only_(std::move(only)), device_(cuda::require_device()), limits_(cuda::limits()) {
  measure_floors();
}

size_t DeviceBench::sets_of(double bytes) const {
  if (small_) return 2;
  const double wanted = std::ceil(2 * static_cast<double>(limits_.l2_bytes) / std::max(bytes, 1.0));
  return static_cast<size_t>(std::clamp(wanted, 2.0, 64.0));
}

Times DeviceBench::time(size_t sets, const std::function<void(size_t)>& launch) {
  cuda::Event start, end;
  size_t set = 0;
  const auto region = [&](size_t launches) {
    start.record(stream_);
    for (size_t i = 0; i < launches; ++i) launch(set++ % sets);
    end.record(stream_);
    return double{end.milliseconds_since(start)} * 1e-3 / static_cast<double>(launches);
  };
  region(small_ ? 1 : std::max<size_t>(sets, 3));  // warm up: code is loaded, every set was touched
  const double once = region(1);
  const auto launches = small_ ? 1 : static_cast<size_t>(std::clamp(kRegionSeconds / once, 1.0, 1000.0));
  Times times;
  for (int i = 0; i < (small_ ? 1 : kRepeats); ++i) times.add(region(launches));
  return times;
}

std::vector<size_t> spread(size_t n, size_t count) {
  std::vector<size_t> numbers(std::min(n, count));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = numbers.size() == 1 ? 0 : i * (n - 1) / (numbers.size() - 1);
  return numbers;
}

std::vector<float> random_floats(uint64_t seed, size_t n) {
  constexpr size_t kPiece = 1 << 16;
  std::vector<float> values(n);
  parallel_for(n, kPiece, [&](size_t begin, size_t end, int) {
    Rng rng(seed, begin / kPiece);
    for (size_t i = begin; i < end; ++i) values[i] = static_cast<float>(rng.uniform(-1, 1));
  });
  return values;
}

void DeviceBench::measure_floors() {
  const size_t bytes = small_ ? size_t{1} << 16 : size_t{2} << 30;
  cuda::DeviceBuffer<uint8_t> from(bytes), to(bytes);
  from.fill(0x5a, stream_);
  copy_bandwidth_ =
      2 * static_cast<double>(bytes) /
      time(1, [&](size_t) { cuda::detail::copy(to.data(), from.data(), bytes, stream_); }).median();
  product_rate_ =
      library_product_rate(stream_, small_ ? 64 : 8192, [&](const auto& launch) { return time(1, launch); });
  fmt::print("copy {:.0f} GB/s (read and written), matrix products {:.0f} TFLOP/s\n", copy_bandwidth_ / 1e9,
             product_rate_ / 1e12);
}

void DeviceBench::measure(const std::string& name, const std::string& shape, const Work& work, size_t sets,
                          const std::function<void(size_t)>& launch) {
  const Times times = time(sets, launch);
  const double counted = work.reported > 0 ? work.reported : work.bytes > 0 ? work.bytes : work.operations;
  const double scale = work.unit == "TFLOP/s" ? 1e12 : work.unit.starts_with("G") ? 1e9 : 1e6;
  double floor = work.bytes / copy_bandwidth_;
  if (product_rate_ > 0) floor = std::max(floor, work.operations / product_rate_);
  lines_.push_back({name, shape, work.unit, times.median(), times.min(), times.max(),
                    counted / times.median() / scale, floor});
  const Line& line = lines_.back();
  fmt::print("{:34} {:30} {:10.1f} us {:9.1f} {}\n", line.name, line.shape, line.seconds * 1e6, line.rate,
             line.unit);
  std::fflush(stdout);
}

void DeviceBench::attempt(const std::string& name, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    ++failures_;
    fmt::print("{}: {}\n", name, error.what());
    std::fflush(stdout);
  }
}

void DeviceBench::print_table() const {
  fmt::print("\n{} ({} multiprocessors), copy {:.0f} GB/s, matrix products {:.0f} TFLOP/s{}\n", device_.name,
             device_.multiprocessors, copy_bandwidth_ / 1e9, product_rate_ / 1e12,
             small_ ? "; small sizes: times mean nothing" : "");
  fmt::print("{:34} {:30} {:>10} {:>22} {:>16} {:>10} {:>7}\n", "kernel", "shape", "us", "spread", "rate",
             "floor us", "ratio");
  for (const Line& line : lines_)
    fmt::print("{:34} {:30} {:10.1f} {:>22} {:16} {:10.1f} {:7.2f}\n", line.name, line.shape,
               line.seconds * 1e6, fmt::format("{:.1f} .. {:.1f}", line.least * 1e6, line.limit * 1e6),
               fmt::format("{:.1f} {}", line.rate, line.unit), line.floor_seconds * 1e6,
               line.floor_seconds > 0 ? line.seconds / line.floor_seconds : 0);
}

void DeviceBench::write_json(const std::string& path) const {
  std::ofstream out(path);
  out << fmt::format(
      "{{\"device\": \"{}\", \"multiprocessors\": {}, \"copy_bytes_per_second\": {}, "
      "\"product_operations_per_second\": {}, \"small\": {}, \"failures\": {}, \"cases\": [",
      device_.name, device_.multiprocessors, copy_bandwidth_, product_rate_, small_, failures_);
  for (size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    out << fmt::format(
        "{}\n  {{\"name\": \"{}\", \"shape\": \"{}\", \"seconds\": {}, \"least\": {}, \"most\": {}, "
        "\"rate\": {}, "
        "\"unit\": \"{}\", \"floor_seconds\": {}}}",
        i > 0 ? "," : "", line.name, line.shape, line.seconds, line.least, line.limit, line.rate, line.unit,
        line.floor_seconds);
  }
  out << "\n]}\n";
  verify(static_cast<bool>(out.flush()), fmt::format("{} could not be written", path));
}

}  // namespace kvcodec::bench
