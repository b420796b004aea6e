#include "cuda/reconstruct/reconstruct.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/cuda/device_case.hpp"

namespace reconstruct_test {

using namespace kvcodec;

namespace {

bool same(const Matrix<float>& a, const Matrix<float>& b) {
  return std::equal(a.data(), a.data() + a.size(), b.data());
}

}  // namespace

TEST_CASE("device: signals from codes are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 31;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t width : {1, 31, 128, 300})
    for (const size_t atoms : {1, 7, 700}) {
      CAPTURE(width);
      CAPTURE(atoms);
      const Matrix<float> dictionary = test::random_rows(rng, atoms, width);
      const cuda::DeviceReconstructor device(dictionary);
      const Reconstructor reference(dictionary);
      std::vector<uint64_t> offsets{2};  // codes may begin behind the first pair
      for (const size_t count : {0, 1, 31, 33, 70, 5, 0, 12, 64}) offsets.push_back(offsets.back() + count);
      std::vector<uint32_t> ids(offsets.back());
      std::vector<float> coefficients(ids.size());
      for (auto& id : ids) id = static_cast<uint32_t>(rng.below(atoms));
      for (auto& coefficient : coefficients) coefficient = static_cast<float>(rng.normal());
      Matrix<float> expected(9, width), found(9, width);
      for (size_t i = 0; i < found.size(); ++i) found.data()[i] = 99;
      reference.run({ids, coefficients, offsets}, expected);
      device.run({ids, coefficients, offsets}, found);
      CHECK(same(found, expected));
    }
}

TEST_CASE("device: signals from atoms of 8 bits are lib's") {
  NEEDS_DEVICE();
  const uint64_t seed = 34;
  INFO("seed ", seed);
  Rng rng(seed);
  // Slices in shared memory; larger than it; and ids that do not fit 16 bits.
  for (const auto& [atoms, width] :
       std::vector<std::pair<size_t, size_t>>{{1, 1}, {7, 16}, {300, 40}, {16000, 17}, {70000, 5}}) {
    CAPTURE(atoms);
    CAPTURE(width);
    Matrix<float> dictionary = test::random_rows(rng, atoms, width);
    const ByteAtoms bytes = round_to_bytes(dictionary);
    const cuda::DeviceReconstructor device(bytes);
    const Reconstructor reference(bytes);
    std::vector<uint64_t> offsets{3};
    for (const size_t count : {0, 1, 31, 33, 70, 5, 0, 12, 64, 512})
      offsets.push_back(offsets.back() + count);
    for (size_t i = 0; i < 30; ++i) offsets.push_back(offsets.back() + i % 7);
    const size_t signals = offsets.size() - 1;
    std::vector<uint32_t> ids(offsets.back());
    std::vector<float> coefficients(ids.size()), gains(signals), scale(width), mean(width);
    for (auto& id : ids) id = static_cast<uint32_t>(rng.below(atoms));
    for (auto* values : {&coefficients, &gains, &scale, &mean})
      for (auto& value : *values) value = static_cast<float>(rng.normal());
    for (size_t k = 4; k < 30; ++k) coefficients[k] *= 1e-35f;  // weights that are taken for zero
    const CodeView codes{ids, coefficients, offsets};
    for (const Finishing& finishing :
         {Finishing{}, Finishing{gains, scale, mean}, Finishing{{}, scale, {}}}) {
      Matrix<float> expected(signals, width), found(signals, width);
      reference.run(codes, expected, finishing);
      device.run(codes, found, finishing);
      CHECK(same(found, expected));
    }
  }
}

TEST_CASE("device: signals with gains, scales and means") {
  NEEDS_DEVICE();
  Rng rng(35);
  const Matrix<float> dictionary = test::random_rows(rng, 50, 21);
  std::vector<uint32_t> ids(7 * 6);
  std::vector<float> coefficients(ids.size()), gains(7), scale(21), mean(21);
  for (auto& id : ids) id = static_cast<uint32_t>(rng.below(50));
  for (auto* values : {&coefficients, &gains, &scale, &mean})
    for (auto& value : *values) value = static_cast<float>(rng.normal());
  const std::vector<uint64_t> offsets = uniform_offsets(7, 6);
  const CodeView codes{ids, coefficients, offsets};
  const Finishing finishing{gains, scale, mean};
  const cuda::DeviceReconstructor device(dictionary);
  const Reconstructor reference(dictionary);
  Matrix<float> expected(7, 21), found(7, 21);
  reference.run(codes, expected, finishing);
  device.run(codes, found, finishing);
  CHECK(same(found, expected));
  CHECK_THROWS_AS(device.run(codes, found, Finishing{gains, gains, {}}), Error);
}

TEST_CASE("device: signals in pieces that fit the memory") {
  NEEDS_DEVICE();
  Rng rng(36);
  const Matrix<float> dictionary = test::random_rows(rng, 50, 21);
  std::vector<uint32_t> ids(70 * 6);
  std::vector<float> coefficients(ids.size()), gains(70);
  for (auto& id : ids) id = static_cast<uint32_t>(rng.below(50));
  for (auto* values : {&coefficients, &gains})
    for (auto& value : *values) value = static_cast<float>(rng.normal());
  const std::vector<uint64_t> offsets = uniform_offsets(70, 6);
  const cuda::DeviceReconstructor device(dictionary);
  Matrix<float> expected(70, 21), found(70, 21);
  Reconstructor(dictionary).run({ids, coefficients, offsets}, expected, {gains, {}, {}});
  cuda::limit_free_bytes(8000);
  device.run({ids, coefficients, offsets}, found, {gains, {}, {}});
  cuda::limit_free_bytes(cuda::kAllFreeBytes);
  CHECK(same(found, expected));
}

TEST_CASE("device: codes that do not fit are refused") {
  NEEDS_DEVICE();
  Rng rng(33);
  const cuda::DeviceReconstructor device(test::random_rows(rng, 5, 8));
  Matrix<float> out(2, 8), narrow_out(2, 7);
  const std::vector<uint32_t> ids{0, 4, 5, 1};
  const std::vector<float> coefficients(4, 1.0f);
  const std::vector<uint64_t> falling{0, 3, 2}, beyond{0, 2, 5}, good{0, 2, 4}, fine{0, 1, 2};
  const auto message = [&](const auto& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message([&] { device.run({ids, coefficients, falling}, out); }).find("shorter") != std::string::npos);
  CHECK(message([&] { device.run({ids, coefficients, beyond}, out); }).find("shorter") != std::string::npos);
  CHECK(message([&] { device.run({ids, coefficients, good}, out); }).find("place 2 ") != std::string::npos);
  CHECK(message([&] { device.run({ids, coefficients, fine}, out); }).empty());
  CHECK_THROWS_AS(device.run({ids, coefficients, fine}, narrow_out), Error);
  CHECK(message([&] {
          device.run({ids, coefficients, {}}, out);
        }).find("with 0 offsets") != std::string::npos);
  CHECK_THROWS_AS(cuda::DeviceReconstructor(Matrix<float>(0, 4)), Error);
  // The maximum grid of blocks, with sixteen values per row.
  const size_t widest = (size_t{1} << 20) - 16;
  CHECK(cuda::DeviceReconstructor(ByteAtoms{Matrix<int8_t>(1, widest), {1.0f}}).width() == widest);
  CHECK_THROWS_AS(cuda::DeviceReconstructor(ByteAtoms{Matrix<int8_t>(1, widest + 1), {1.0f}}), Error);
  CHECK(message([&] { cuda::DeviceReconstructor(Matrix<float>(1, widest + 1)); }).find("1048560") !=
        std::string::npos);
  const std::vector<float> endless{1, 1, 1, INFINITY};
  CHECK(message([&] { device.run({ids, endless, fine}, out); }).empty());  // the last pair is of no signal
  CHECK(message([&] {
          device.run({std::span(ids).first(2), std::span(endless).last(2), fine}, out);
        }).find("place 1 ") != std::string::npos);
  // Sums of 32 bits hold no more pairs.
  const cuda::DeviceReconstructor levels(round_to_bytes(test::random_rows(rng, 5, 8)));
  const std::vector<uint32_t> long_ids(1000);
  const std::vector<float> long_coefficients(1000, 1.0f);
  const std::vector<uint64_t> long_offsets{0, 513, 1000};
  CHECK(message([&] {
          levels.run({long_ids, long_coefficients, long_offsets}, out);
        }).find("512 pairs") != std::string::npos);
}

}  // namespace reconstruct_test
