// The device with which a codec's documents are encoded and decoded.
#include <string>

#include "cli/codecs/coding.hpp"
#include "lib/engine/engine.hpp"
#include "test/test.hpp"

namespace coding_engine_test {

using namespace kvcodec;
using namespace kvcodec::cli;

TEST_CASE("codecs that are faster on the CPU get a device only if the user asks for it") {
  Engine engine;
  for (const char* name : {"kvcomp", "selfindex"}) {
    CHECK(coding_engine(find_codec(name), DeviceChoice::automatic, &engine) == nullptr);
    CHECK(coding_engine(find_codec(name), DeviceChoice::cuda, &engine) == &engine);
  }
  for (const char* name : {"sparse", "rvq", "transform", "kvcomp+sparse"}) {
    CAPTURE(name);
    CHECK(coding_engine(find_codec(name), DeviceChoice::automatic, &engine) == &engine);
    CHECK(coding_engine(find_codec(name), DeviceChoice::automatic, nullptr) == nullptr);
  }
  // A codec that no device supports gets none, and the user who requested one is told.
  std::string said;
  Engine noting([&](const std::string& what) { said += what; });
  CHECK(coding_engine(find_codec("fp8"), DeviceChoice::automatic, &noting) == nullptr);
  CHECK(said.empty());
  CHECK(coding_engine(find_codec("fp8"), DeviceChoice::cuda, &noting) == nullptr);
  CHECK(said == "the codec fp8");
}

}  // namespace coding_engine_test
