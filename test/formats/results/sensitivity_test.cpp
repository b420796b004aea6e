#include <algorithm>
#include <cmath>

#include "formats/results/results.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace sensitivity_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

SensitivityInfo sample_info() {
  SensitivityInfo info{.model = sample_model(3, 2, 8), .parameters = {}, .layers = {}, .fisher = {}};
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

/// sample_info() with a Fisher matrix, a product of random rows, for each head.
SensitivityInfo sample_with_fisher() {
  SensitivityInfo info = sample_info();
  Rng rng(10);
  Fisher fisher{.layers = 3, .heads = 2, .keys_before_rope = true, .matrices = {}};
  for (auto& side : fisher.matrices)
    for (int head = 0; head < 3 * 2; ++head) {
      Matrix<float> rows(5, 8), product(8, 8);
      for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(rng.normal());
      for (size_t i = 0; i < 8; ++i)
        for (size_t j = 0; j <= i; ++j) {
          for (size_t t = 0; t < 5; ++t) product(i, j) += rows(t, i) * rows(t, j);
          product(j, i) = product(i, j);
        }
      side.push_back(product);
    }
  info.fisher = fisher;
  return info;
}

void write(const std::string& path, const SensitivityInfo& info = sample_info()) {
  OutputFile output(path, true);
  write_sensitivities(output, info, {"kvcodec test", {"kvcodec before"}});
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

TEST_CASE("sensitivity: files with impossible numbers are refused") {
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

TEST_CASE("sensitivity: Fisher matrices come back, and a file without them has none") {
  const Folder folder;
  write(folder / "none.h5");
  CHECK_FALSE(read_sensitivities(folder / "none.h5").info.fisher.has_value());
  for (const bool before : {true, false}) {
    SensitivityInfo expected = sample_with_fisher();
    expected.fisher->keys_before_rope = before;
    write(folder / "s.h5", expected);
    const SensitivityFile file = read_sensitivities(folder / "s.h5");
    REQUIRE(file.info.fisher.has_value());
    const Fisher &a = *file.info.fisher, &b = *expected.fisher;
    CHECK_EQ(a.layers, 3);
    CHECK_EQ(a.heads, 2);
    CHECK_EQ(a.keys_before_rope, before);
    for (const Side side : kSides)
      for (int layer = 0; layer < 3; ++layer) {
        CHECK_EQ(a.nats(side, layer), b.nats(side, layer));
        for (int head = 0; head < 2; ++head) {
          const Matrix<float>&x = a.of(side, layer, head), &y = b.of(side, layer, head);
          CHECK(std::ranges::equal(std::span(x.data(), x.size()), std::span(y.data(), y.size())));
        }
      }
    CHECK_EQ(file.info.layers[2][1].variance, expected.layers[2][1].variance);
  }
}

TEST_CASE("sensitivity: impossible Fisher matrices are refused") {
  const Folder folder;
  const std::string path = folder / "s.h5";
  const SensitivityInfo info = sample_with_fisher();
  const auto message = [&] {
    try {
      read_sensitivities(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  std::vector<float> values;
  for (const Matrix<float>& matrix : info.fisher->matrices[1])
    values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
  const size_t matrix = (2 * 2 + 1) * 64, place = matrix + 3 * 8 + 5, diagonal = matrix + 3 * 8 + 3;
  const auto refused = [&](size_t where, float value, const char* why) {
    write(path, info);
    std::vector<float> changed = values;
    changed[where] = value;
    Edit(path).put_floats("/fisher/value", {3, 2, 8, 8}, changed);
    const std::string said = message();
    CAPTURE(said);
    CHECK_NE(said.find("/fisher/value: layer 2, head 1: "), std::string::npos);
    CHECK_NE(said.find(why), std::string::npos);
  };
  refused(place, 77, "not symmetric");
  refused(place, NAN, "not symmetric");  // its partner is a number
  refused(diagonal, NAN, "nan is impossible");
  refused(diagonal, INFINITY, "inf is impossible");
  refused(diagonal, -1, "-1 is impossible");

  const auto other_shape = [&](std::vector<hsize_t> shape) {
    write(path, info);
    size_t count = 1;
    for (const hsize_t extent : shape) count *= extent;
    Edit(path).put_floats("/fisher/key", shape, std::vector<float>(count));
    CHECK_THROWS_AS(read_sensitivities(path), Error);
  };
  other_shape({2, 2, 8, 8});
  other_shape({3, 1, 8, 8});
  other_shape({3, 2, 8, 4});
  other_shape({3, 2, 64});
  write(path, info);
  Edit(path).put("/fisher/key", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {3, 2, 8, 8}, std::vector<double>(384));
  CHECK_THROWS_AS(read_sensitivities(path), Error);
  write(path, info);
  Edit(path).remove("/fisher/key");
  CHECK_THROWS_AS(read_sensitivities(path), Error);
  write(path, info);
  Edit(path).set("/fisher", "key_state", std::string("turned"));
  CHECK_NE(message().find("key_state"), std::string::npos);

  for (const int what : {0, 1, 2}) {
    SensitivityInfo wrong = info;
    if (what == 0) wrong.fisher->heads = 1;
    if (what == 1) wrong.fisher->matrices[0].pop_back();
    if (what == 2) wrong.fisher->matrices[1][3] = Matrix<float>(8, 7);
    OutputFile output(folder / "wrong.h5", true);
    CHECK_THROWS_AS(write_sensitivities(output, wrong, {"kvcodec test", {}}), Error);
  }
}

}  // namespace sensitivity_test
