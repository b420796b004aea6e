// The whole of test_cuda in a build without CUDA.
#include "cuda/engine.hpp"
#include "lib/core/error.hpp"
#include "test/test.hpp"

using namespace kvcodec;

TEST_CASE("devices run what lib does") {
  CHECK(cuda::devices().empty());
  const auto refusal = [](auto&& demand) -> std::string {
    try {
      (void)demand();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::no_device);
      return error.what();
    }
    return "";
  };
  const std::string why = refusal([] { return cuda::require_device(); });
  CHECK_MESSAGE(why.find("built without CUDA") != std::string::npos, why);
  CHECK(refusal([] { return cuda::make_engine(); }) == why);
  SKIP("this build has no CUDA: nothing runs on a device");
}
