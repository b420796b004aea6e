// Which device a codec's documents are encoded and decoded with.
#include "cli/coding.hpp"
#include "lib/engine/engine.hpp"
#include "test/test.hpp"

using namespace kvcodec;
using namespace kvcodec::cli;

TEST_CASE("codecs that are faster on the CPU get a device only if the user asks for it") {
  Engine engine;
  for (const char* name : {"kvcomp", "selfindex", "fp8"}) {
    CHECK(coding_engine(find_codec(name), DeviceChoice::automatic, &engine) == nullptr);
    CHECK(coding_engine(find_codec(name), DeviceChoice::cuda, &engine) == &engine);
  }
  for (const char* name : {"sparse", "rvq", "transform", "kvcomp+sparse"}) {
    CAPTURE(name);
    CHECK(coding_engine(find_codec(name), DeviceChoice::automatic, &engine) == &engine);
    CHECK(coding_engine(find_codec(name), DeviceChoice::automatic, nullptr) == nullptr);
  }
}
