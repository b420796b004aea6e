#include "cuda/device.hpp"

#include "lib/core/error.hpp"
#include "test/test.hpp"

using namespace kvcodec;

TEST_CASE("a device that is not there is refused with a reason") {
  const auto found = cuda::devices();
  if (!cuda::built_with_cuda()) CHECK(found.empty());
  const int beyond = static_cast<int>(found.size());
  try {
    cuda::require_device(beyond);
    FAIL("device ", beyond, " was accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::no_device);
    const std::string message = error.what();
    CHECK_MESSAGE(message.find("device") != std::string::npos, message);
    if (!cuda::built_with_cuda()) CHECK(message.find("built without CUDA") != std::string::npos);
  }
}

TEST_CASE("device 0 describes itself") {
  if (cuda::devices().empty()) SKIP("no CUDA device here");
  const auto device = cuda::require_device(0);
  CHECK_FALSE(device.name.empty());
  CHECK(device.major >= 7);
  CHECK(device.memory_bytes > 0);
}
