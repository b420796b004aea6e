#include "cuda/reconstruct.hpp"

#include <algorithm>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "test/cuda/device_case.hpp"

using namespace kvcodec;

namespace {

Matrix<float> rounded(const Matrix<float>& rows, DType type) {
  Matrix<float> out = rows;
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = round_to(type, out.data()[i]);
  return out;
}

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
    for (const size_t atoms : {1, 7, 700})
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(width);
        CAPTURE(atoms);
        const Matrix<float> dictionary = test::random_rows(rng, atoms, width);
        const cuda::Reconstructor device(dictionary, type);
        const Reconstructor reference(rounded(dictionary, type));
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

TEST_CASE("device: signals straight from packed ids") {
  NEEDS_DEVICE();
  const uint64_t seed = 32;
  INFO("seed ", seed);
  Rng rng(seed);
  for (const size_t atoms : {1, 2, 100, 8192, 70000})
    for (const size_t s : {1, 5, 64}) {
      CAPTURE(atoms);
      CAPTURE(s);
      const unsigned width = index_bits(atoms);
      const Matrix<float> dictionary = test::random_rows(rng, atoms, 6);
      const cuda::Reconstructor device(dictionary);
      const Reconstructor reference(dictionary);
      std::vector<uint32_t> ids(11 * s);
      std::vector<uint16_t> halves(ids.size());
      std::vector<float> coefficients(ids.size());
      for (auto& id : ids) id = static_cast<uint32_t>(rng.below(atoms));
      ids.back() = static_cast<uint32_t>(atoms - 1);
      for (size_t i = 0; i < ids.size(); ++i) {
        halves[i] = f16_from_float(static_cast<float>(rng.normal()));
        coefficients[i] = f16_to_float(halves[i]);
      }
      std::vector<uint8_t> packed(packed_bytes(ids.size(), width));
      pack_bits(ids, width, atoms, packed);
      Matrix<float> expected(11, 6), found(11, 6);
      reference.run({ids, coefficients, uniform_offsets(11, s)}, expected);
      device.run(cuda::PackedCodes{packed, width, halves, s}, found);
      CHECK(same(found, expected));
    }
}

TEST_CASE("device: codes that do not fit are refused") {
  NEEDS_DEVICE();
  Rng rng(33);
  const cuda::Reconstructor device(test::random_rows(rng, 5, 8));
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
  const std::vector<uint8_t> packed(1);
  const std::vector<uint16_t> halves(4);
  CHECK_THROWS_AS(device.run(cuda::PackedCodes{packed, 3, halves, 2}, out), Error);
  const std::vector<uint8_t> many(64);
  CHECK(message([&] {
          device.run(cuda::PackedCodes{many, 33, halves, 2}, out);
        }).find("33 bits") != std::string::npos);
  CHECK(message([&] { device.run(cuda::PackedCodes{many, 32, halves, 2}, out); }).empty());
  CHECK(message([&] {
          device.run({ids, coefficients, {}}, out);
        }).find("without offsets") != std::string::npos);
  CHECK_THROWS_AS(cuda::Reconstructor(Matrix<float>(0, 4)), Error);
}
