// The emulation itself: collectives follow CUDA's rules, and faults are found.
#include "test/cuda/emulation/emulation.hpp"

#include <cmath>
#include <csignal>
#include <functional>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "cuda/runtime/kernel.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/test.hpp"

namespace emulation_test {

using namespace kvcodec;
using namespace kvcodec::cuda;

namespace {

/// Runs a kernel over one output buffer and returns its content.
template <class T, class... Arguments>
std::vector<T> run(void (*kernel)(T*, Arguments...), unsigned blocks, unsigned threads, size_t outputs,
                   size_t shared_bytes, Arguments... arguments) {
  const Stream stream;
  DeviceBuffer<T> out(outputs);
  std::vector<T> host(outputs);
  check(launch(kernel, blocks, threads, shared_bytes, stream.handle(), out.data(), arguments...), "launch");
  out.download(host, stream);
  stream.synchronize();
  return host;
}

std::string fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const emulation::Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

/// True if a process that does this is killed for touching forbidden memory.
bool dies(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // the test framework's handler would print
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  // AddressSanitizer turns the signal into a status of its own.
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0;
}

__global__ void who(unsigned* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x + 100000 * gridDim.x;
}

/// Sum over a block: shuffles, then shared memory.
__global__ void sum_block(unsigned* out, bool barrier) {
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  unsigned value = threadIdx.x;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  if (barrier) __syncthreads();
  unsigned total = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) total += sums[warp];
  out[threadIdx.x] = total;
}

/// Prefix sums one after the other, without waits between them.
__global__ void prefix_sums(unsigned* out, unsigned rounds) {
  KVCODEC_SHARED_ARRAY(unsigned, sums, 32);
  for (unsigned round = 0; round < rounds; ++round) {
    unsigned total = 0;
    out[2 * (round * blockDim.x + threadIdx.x)] = prefix_sum(threadIdx.x + round, sums, total);
    out[2 * (round * blockDim.x + threadIdx.x) + 1] = total;
  }
}

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __shfl_sync(kAllLanes, lane, 5);
  out[32 + lane] = __shfl_up_sync(kAllLanes, lane, 3);
  out[64 + lane] = __shfl_down_sync(kAllLanes, lane, 3);
  out[96 + lane] = __shfl_sync(kAllLanes, lane, 1, 8);
  out[128 + lane] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  out[160 + lane] = static_cast<int>(__match_any_sync(kAllLanes, lane % 4));
  out[192 + lane] = __syncthreads_count(lane < 7);
  out[224 + lane] = __syncthreads_or(lane == 40);
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  out[256 + lane] = __shfl_sync(half, lane, lane < 16 ? 0 : 31);
}

__global__ void some_leave(int* out) {
  if (threadIdx.x < 7) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void some_shuffle(int* out) {
  if (threadIdx.x < 7) out[threadIdx.x] = __shfl_sync(kAllLanes, 1, 0);
  if (threadIdx.x >= 32) __syncthreads();
}

__global__ void different_meetings(int* out) {
  if (threadIdx.x < 7)
    out[threadIdx.x] = __shfl_sync(kAllLanes, 1, 0);
  else
    out[threadIdx.x] = __any_sync(kAllLanes, 1);
}

__global__ void writes_at(int* out, int index) {
  if (threadIdx.x == 0) out[index] = 1;
}

__global__ void writes_shared_at(int* out, int index) {
  int* shared = dynamic_shared<int>();
  if (threadIdx.x == 0) shared[index] = 1, out[0] = shared[index];
}

/// An array larger than the 16 KiB that launch() leaves for arrays without a request.
constexpr unsigned kManyShared = 4100;
__global__ void has_an_array(float* out) {
  KVCODEC_SHARED_ARRAY(float, many, kManyShared);
  if (threadIdx.x == 0) many[kManyShared - 1] = 1, out[0] = many[kManyShared - 1];
}

__global__ void reads_shared(float* out) { out[threadIdx.x] = dynamic_shared<float>()[threadIdx.x]; }

/// Copies 16 bytes per thread through shared memory.
template <bool kWait>
__global__ void copies(uint32_t* out, const uint32_t* in, unsigned bytes) {
  auto* shared = dynamic_shared<uint32_t>();
  copy_async16(shared + 4 * threadIdx.x, in + 4 * threadIdx.x, bytes);
  copy_async_commit();
  if constexpr (kWait) copy_async_wait<0>();
  __syncthreads();
  const unsigned other = blockDim.x - 1 - threadIdx.x;
  for (unsigned i = 0; i < 4; ++i) out[4 * other + i] = shared[4 * other + i];
}

/// (16, 16) times (16, 16) stored by columns, through shared memory, load_matrices and two multiplications.
template <bool kTransposed>
__global__ void products(float* out, const uint16_t* a, const uint16_t* b) {
  auto* shared = dynamic_shared<uint16_t>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += kWarp) shared[i] = a[i], shared[256 + i] = b[i];
  __syncthreads();
  const unsigned matrix = lane / 8, row = lane % 8;
  uint32_t of_a[4], of_b[4];
  load_matrices(of_a, shared + (matrix % 2 * 8 + row) * 16 + matrix / 2 * 8);
  if constexpr (kTransposed)  // b by rows: (k, column)
    load_matrices_transposed(of_b, shared + 256 + (matrix % 2 * 8 + row) * 16 + matrix / 2 * 8);
  else  // b by columns: (column, k)
    load_matrices(of_b, shared + 256 + (matrix / 2 * 8 + row) * 16 + matrix % 2 * 8);
  for (unsigned half = 0; half < 2; ++half) {
    float c[4] = {0, 0, 0, 0};
    multiply_f16(c, of_a, of_b[2 * half], of_b[2 * half + 1]);
    for (unsigned i = 0; i < 4; ++i)
      out[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = c[i];
  }
}

}  // namespace

TEST_CASE("emulation: two floats are packed as bf16") {
  CHECK(pack_bf16(1.0f, -2.0f) == 0xc0003f80u);
  CHECK(pack_bf16(float_of(0x3f808000), float_of(0x3f818000)) == 0x3f823f80u);  // halfway, to even
}

TEST_CASE("emulation: threads know their place") {
  const auto out = run(who, 3, 64, 192, 0);
  for (unsigned i = 0; i < 192; ++i) CHECK(out[i] == 300000 + i / 64 * 1000 + i % 64);
}

TEST_CASE("emulation: a missing barrier is seen") {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    emulation::set_seed(seed);
    for (const unsigned total : run(sum_block, 1, 256, 256, 0, true)) CHECK(total == 255 * 256 / 2);
    unsigned wrong = 0;
    for (const unsigned total : run(sum_block, 1, 256, 256, 0, false)) wrong += total != 255 * 256 / 2;
    CHECK(wrong > 0);
  }
}

TEST_CASE("emulation: what lanes do together") {
  const auto out = run(shuffles, 1, 32, 288, 0);
  for (int lane = 0; lane < 32; ++lane) {
    const auto at = [&](int what) { return out[static_cast<size_t>(32 * what + lane)]; };
    CHECK(at(0) == 5);
    CHECK(at(1) == (lane >= 3 ? lane - 3 : lane));
    CHECK(at(2) == (lane + 3 < 32 ? lane + 3 : lane));
    CHECK(at(3) == lane / 8 * 8 + 1);
    CHECK(static_cast<unsigned>(at(4)) == 0x49249249u);
    CHECK(static_cast<unsigned>(at(5)) == 0x11111111u << lane % 4);
    CHECK(at(6) == 7);
    CHECK(at(7) == 0);
    CHECK(at(8) == (lane < 16 ? 0 : 31));
  }
}

TEST_CASE("emulation: waits that never end") {
  CHECK(fault_of([] { run(some_leave, 1, 64, 64, 0); }).find("waits for ever") != std::string::npos);
  CHECK(fault_of([] { run(some_leave, 1, 64, 64, 0); }).find("57 threads") != std::string::npos);
  CHECK(fault_of([] { run(some_shuffle, 1, 64, 64, 0); }).find("wait for its warp") != std::string::npos);
  CHECK(fault_of([] { run(different_meetings, 1, 32, 32, 0); }).find("different operations") !=
        std::string::npos);
}

TEST_CASE("emulation: memory that must not be touched") {
  CHECK(run(writes_at, 1, 32, 5, 0, 4)[4] == 1);
  CHECK(fault_of([] { run(writes_at, 1, 32, 5, 0, 5); }).find("outside a device buffer") !=
        std::string::npos);
  CHECK(dies([] { run(writes_at, 1, 32, 8, 0, 8); }));
  CHECK(dies([] { run(writes_at, 1, 32, 8, 0, -1500); }));
  CHECK(fault_of([] { run(writes_at, 1, 32, 8, 0, -3); }).find("outside a device buffer") !=
        std::string::npos);
  CHECK_FALSE(dies([] { run(writes_at, 1, 32, 8, 0, 7); }));
  CHECK(run(writes_shared_at, 1, 32, 1, 64, 15)[0] == 1);
  CHECK(dies([] { run(writes_shared_at, 1, 32, 1, 64, 16); }));
  DeviceBuffer<int> buffer(4);
  CHECK(dies([&] { *static_cast<volatile int*>(buffer.data()) = 1; }));
  int host = 0;
  const Stream stream;
  CHECK(fault_of([&] {
          (void)launch(writes_at, 1, 32, 0, stream.handle(), &host, 0);
        }).find("not to device") != std::string::npos);
  CHECK_THROWS_AS(detail::upload(buffer.data() + 1, &host, 16, stream), emulation::Fault);
}

TEST_CASE("emulation: sizes that devices refuse") {
  CHECK(fault_of([] { run(who, 1, 33, 64, 0); }).find("whole warps") != std::string::npos);
  CHECK(fault_of([] { run(who, 1, 1056, 2000, 0); }).find("1024") != std::string::npos);
  CHECK(fault_of([] { run(who, 1, 32, 64, 200 * 1024); }).find("shared memory") != std::string::npos);
  // Arrays count too, with and without a request.
  const size_t largest = emulation::kSharedBytes - sizeof(float[kManyShared]);
  CHECK(run(has_an_array, 1, 32, 1, largest)[0] == 1);
  CHECK(fault_of([&] { run(has_an_array, 1, 32, 1, largest + 16); }).find("shared memory") !=
        std::string::npos);
  CHECK(fault_of([] { run(has_an_array, 1, 32, 1, kSharedUnasked); }).find("shared memory") !=
        std::string::npos);
  CHECK(run(has_an_array, 1, 32, 1, kSharedUnasked + 16)[0] == 1);
  CHECK(run(has_an_array, 1, 32, 1, 0)[0] == 1);
}

TEST_CASE("emulation: nothing is there before it was written and waited for") {
  for (const float value : run(reads_shared, 1, 32, 32, 128)) CHECK(std::isnan(value));
  const Stream stream;
  DeviceBuffer<uint32_t> in(256);
  std::vector<uint32_t> values(256), out(256, 7);
  for (uint32_t i = 0; i < 256; ++i) values[i] = i * i;
  DeviceBuffer<uint32_t> result(256);
  in.upload(values, stream);
  const uint32_t* device_in = in.data();
  check(launch(copies<true>, 1, 64, 1024, stream.handle(), result.data(), device_in, 16u), "launch");
  result.download(out, stream);
  CHECK(out[1] == 7);  // nobody has waited
  stream.synchronize();
  CHECK(out == values);
  check(launch(copies<true>, 1, 64, 1024, stream.handle(), result.data(), device_in, 8u), "launch");
  result.download(out, stream);
  stream.synchronize();
  for (size_t i = 0; i < 256; ++i) CHECK(out[i] == (i % 4 < 2 ? values[i] : 0));
  check(launch(copies<false>, 1, 64, 1024, stream.handle(), result.data(), device_in, 16u), "launch");
  result.download(out, stream);
  stream.synchronize();
  for (const uint32_t value : out) CHECK(value == 0xffffffffu);
}

TEST_CASE("emulation: streams wait for events") {
  const Stream first, second;
  Event event;
  DeviceBuffer<int> buffer(4);
  std::vector<int> in{1, 2, 3, 4}, out(4);
  buffer.upload(in, first);
  event.record(first);
  event.hold_back(second);
  buffer.download(out, second);
  second.synchronize();
  CHECK(out == in);
}

TEST_CASE("emulation: matrix products") {
  const uint64_t seed = 11;
  Rng rng(seed);
  std::vector<uint16_t> a(256), b(256);
  for (auto& value : a) value = f16_from_float(static_cast<float>(rng.normal()));
  for (auto& value : b) value = f16_from_float(static_cast<float>(rng.normal()));
  const Stream stream;
  const DeviceBuffer<uint16_t> device_a(a, stream), device_b(b, stream);
  DeviceBuffer<float> out(256);
  std::vector<float> products_of(256);
  for (const bool transposed : {false, true}) {
    check(launch(transposed ? products<true> : products<false>, 1, 32, 1024, stream.handle(), out.data(),
                 device_a.data(), device_b.data()),
          "launch");
    out.download(products_of, stream);
    stream.synchronize();
    for (size_t row = 0; row < 16; ++row)
      for (size_t column = 0; column < 16; ++column) {
        double sum = 0, size = 0;
        for (size_t k = 0; k < 16; ++k) {
          const double term = double{f16_to_float(a[row * 16 + k])} *
                              double{f16_to_float(transposed ? b[k * 16 + column] : b[column * 16 + k])};
          sum += term, size += std::abs(term);
        }
        CHECK(std::abs(double{products_of[row * 16 + column]} - sum) <= 16 * 0x1p-24 * size);
      }
  }
}

TEST_CASE("emulation: matrix units cut off what is below a float") {
  const auto sum_of = [](float sum, std::vector<double> some) {
    double products[emulation::kProductsAtOnce] = {};
    std::ranges::copy(some, products);
    return emulation::add_products(sum, products);
  };
  CHECK(sum_of(0.5f, {1, 2, -8, 3, 5, -7, 0.25, 3}) == -0.25f);
  CHECK(sum_of(1, std::vector<double>(8, 0x1.8p-25)) == 1);  // each is cut off
  CHECK(sum_of(1, {0x1p-24, 0x1p-24, 0x1p-24}) == 1 + 0x1p-23f);
  CHECK(sum_of(-1, {-0x1p-24, -0x1p-24, -0x1p-24}) == -1 - 0x1p-23f);
  CHECK(sum_of(1, {-0x1p-24}) == 1 - 0x1p-24f);
  CHECK(sum_of(0x1p-24f, {1, 0x1p-23}) == 1 + 0x1p-23f);  // the sum is one of those that are aligned
  CHECK(sum_of(1, {-1, 0x1p-25}) == 0);
  CHECK(sum_of(0, {0x1p-130}) == 0x1p-130f);
  CHECK(sum_of(0, {}) == 0);
  CHECK(std::isinf(sum_of(1, {-HUGE_VAL})));
  CHECK(std::isnan(sum_of(INFINITY, {-HUGE_VAL})));
}

// The basis of the bounds of rough products (cuda/README.md): for every 8 products 11 * 2^-24 of all magnitudes. Values of one sign
// make most of it.
TEST_CASE("emulation: long sums on matrix units are off by less than is said") {
  const uint64_t seed = 12;
  Rng rng(seed);
  double largest = 0;  // of the bound
  for (const size_t blocks : {1, 2, 16, 512})
    for (const double least : {-1.0, 0.0, 0.9}) {
      float sum = 0;
      double exact = 0, size = 0;
      for (size_t block = 0; block < blocks; ++block) {
        double products[emulation::kProductsAtOnce];
        for (double& product : products) {
          const auto factor = [&] {
            return double{f16_to_float(f16_from_float(static_cast<float>(rng.uniform(least, 1))))};
          };
          product = factor() * factor();
          exact += product, size += std::abs(product);
        }
        sum = emulation::add_products(sum, products);
      }
      const double bound = 11 * static_cast<double>(blocks) * 0x1p-24 * size;
      CHECK(std::abs(double{sum} - exact) <= bound);
      largest = std::max(largest, std::abs(double{sum} - exact) / bound);
    }
  CHECK(largest > 0.05);
}

TEST_CASE("emulation: products of two words with two bytes") {
  // -2 and 300 by the bytes -3, 100, 127, -128.
  const int words = static_cast<int>(300u << 16 | 0xfffeu), bytes = static_cast<int>(0x807f64fdu);
  CHECK(__dp2a_lo(words, bytes, 5) == 5 + 6 + 30000);
  CHECK(__dp2a_hi(words, bytes, 5) == 5 - 254 - 38400);
  CHECK(__float2int_rn(2.5f) == 2);
  CHECK(__float2int_rn(-3.5f) == -4);
}

TEST_CASE("emulation: prefix sums may follow each other at once") {
  constexpr unsigned kRounds = 5;
  for (const unsigned threads : {32u, 64u, 256u, 1024u})
    for (uint64_t seed = 0; seed < 8; ++seed) {
      CAPTURE(threads);
      CAPTURE(seed);
      emulation::set_seed(seed);
      const auto out = run<unsigned>(prefix_sums, 1, threads, size_t{2} * kRounds * threads, 0, kRounds);
      bool right = true;
      for (unsigned round = 0; round < kRounds; ++round)
        for (unsigned thread = 0, sum = 0; thread < threads; ++thread) {
          right &= out[2 * (round * threads + thread)] == sum;
          right &= out[2 * (round * threads + thread) + 1] == threads * (threads - 1) / 2 + threads * round;
          sum += thread + round;
        }
      CHECK(right);
    }
}

}  // namespace emulation_test
