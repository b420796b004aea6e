#include <cmath>

#include "formats/sensitivity_file.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

SensitivityInfo sample_info() {
  SensitivityInfo info{.model = sample_model(3, 2, 8), .parameters = {}, .layers = {}};
  info.parameters.set("sink", int64_t{4});
  Rng rng(9);
  info.layers.resize(3);
  for (auto& layer : info.layers)
    for (Sensitivity& side : layer) {
      side.variance = rng.uniform();
      for (auto& probe : side.probes) probe = {rng.uniform(), {rng.uniform(), rng.uniform()}};
      side.nats = {rng.uniform(), rng.uniform()};
    }
  info.layers[1][0].nats.half_width = INFINITY;
  return info;
}

void write(const std::string& path) {
  OutputFile output(path, true);
  write_sensitivities(output, sample_info(), {"kvcodec test", {"kvcodec before"}});
  output.commit();
}

}  // namespace

TEST_CASE("sensitivity: what was written comes back") {
  const Folder folder;
  write(folder / "s.h5");
  CHECK(identify(folder / "s.h5").type == "sensitivity");
  const SensitivityFile file = read_sensitivities(folder / "s.h5");
  const SensitivityInfo expected = sample_info();
  CHECK(file.info.model == expected.model);
  CHECK(file.info.parameters == expected.parameters);
  REQUIRE_EQ(file.info.layers.size(), 3);
  for (size_t layer = 0; layer < 3; ++layer)
    for (size_t side = 0; side < 2; ++side) {
      const Sensitivity &a = file.info.layers[layer][side], &b = expected.layers[layer][side];
      CHECK_EQ(a.variance, b.variance);
      CHECK_EQ(a.nats.mean, b.nats.mean);
      CHECK_EQ(a.nats.half_width, b.nats.half_width);
      for (size_t i = 0; i < 2; ++i) {
        CHECK_EQ(a.probes[i].deviation, b.probes[i].deviation);
        CHECK_EQ(a.probes[i].divergence.mean, b.probes[i].divergence.mean);
        CHECK_EQ(a.probes[i].divergence.half_width, b.probes[i].divergence.half_width);
      }
    }
}

TEST_CASE("sensitivity: files that say what cannot be are refused") {
  const Folder folder;
  const auto refused = [&](const char* path, double value) {
    write(folder / "s.h5");
    {
      Edit edit(folder / "s.h5");
      const size_t per_side = std::string(path).starts_with("/d") ? 2 : 1;
      std::vector<hsize_t> shape{3, 2};
      if (per_side == 2) shape.push_back(2);
      edit.put(path, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, shape, std::vector<double>(6 * per_side, value));
    }
    CHECK_THROWS_AS(read_sensitivities(folder / "s.h5"), Error);
  };
  for (const char* path :
       {"/variance", "/deviation", "/divergence", "/divergence_half_width", "/nats", "/nats_half_width"})
    refused(path, -1);
  for (const char* path : {"/variance", "/deviation", "/divergence", "/nats"}) refused(path, INFINITY);
  for (const char* path : {"/divergence_half_width", "/nats", "/nats_half_width"}) refused(path, NAN);
  SensitivityInfo few = sample_info();
  few.layers.pop_back();
  OutputFile output(folder / "few.h5", true);
  CHECK_THROWS_AS(write_sensitivities(output, few, {"kvcodec test", {}}), Error);
}
