#include "cuda/runtime/runtime.hpp"
#include "test/cuda/device_case.hpp"

namespace memory_launch_test {

using namespace kvcodec;

TEST_CASE("device: memory that was given back is free again, and can be had again") {
  NEEDS_DEVICE();
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr uint64_t kPages = uint64_t{32} << 20;  // a pool may count whole ones
  const cuda::Stream stream;
  const uint64_t before = cuda::free_bytes();
  for (int i = 0; i < 3; ++i) {
    cuda::DeviceBuffer<uint8_t> buffer(kBytes);
    buffer.fill(static_cast<uint8_t>(i), stream);
    uint8_t last = 77;
    buffer.download({&last, 1}, stream, kBytes - 1);
    stream.synchronize();
    CHECK(last == i);
    CHECK(cuda::free_bytes() <= before - kBytes);
    CHECK(cuda::free_bytes() >= before - kBytes - kPages);
  }
  CHECK(cuda::free_bytes() == before);
}

}  // namespace memory_launch_test
