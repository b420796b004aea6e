#include "cuda/runtime/device.hpp"

#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace device_test {

using namespace kvcodec;

TEST_CASE("a device that is not there is refused with a reason") {
  const int beyond = static_cast<int>(cuda::devices().size());
  try {
    cuda::require_device(beyond);
    FAIL("device ", beyond, " was accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::no_device);
    const std::string message = error.what();
    CHECK_MESSAGE(message.find("device") != std::string::npos, message);
  }
}

TEST_CASE("device 0 describes itself") {
  if (cuda::devices().empty()) SKIP("no CUDA device here");
  const auto device = cuda::require_device(0);
  CHECK_FALSE(device.name.empty());
  CHECK(cuda::lacks(device) == "");
  CHECK(device.memory_bytes > 0);
}

TEST_CASE("devices that are too small for the kernels are named as such") {
  const auto device = [](int major, int minor, size_t shared_kib) {
    cuda::DeviceInfo info;
    info.major = major, info.minor = minor, info.shared_bytes = shared_kib * 1024;
    return info;
  };
  CHECK(cuda::lacks(device(8, 0, 163)) == "");
  CHECK(cuda::lacks(device(9, 0, 227)) == "");
  CHECK(cuda::lacks(device(7, 5, 163)) ==
        "its compute capability is 7.5; 8.0 is the least that runs kvcodec");
  CHECK(cuda::lacks(device(8, 9, 99)) ==
        "a block of threads has 99 KiB of shared memory there; kvcodec needs 163 KiB");
}

}  // namespace device_test
