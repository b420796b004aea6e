#include "cuda/reconstruct/reconstruct.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/entropy/pack.hpp"
#include "test/cuda/device_case.hpp"

namespace reconstruct_test {

using namespace kvcodec;

namespace {

Matrix<float> rounded(const Matrix<float>& rows, DType type) {
  Matrix<float> out = rows;
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = round_to(type, out.data()[i]);
  return out;
}

Matrix<uint16_t> narrowed(const Matrix<float>& rows, DType type) {
  Matrix<uint16_t> out(rows.rows(), rows.cols());
  narrow(type, {rows.data(), rows.size()}, {out.data(), out.size()});
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
        const cuda::DeviceReconstructor device(dictionary, type);
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
      const cuda::DeviceReconstructor device(dictionary);
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
      for (const DType type : {DType::bf16, DType::f16}) {
        const Matrix<uint16_t> half_expected = narrowed(expected, type);
        Matrix<uint16_t> half_found(signals, width);
        device.run(codes, type, half_found, finishing);
        CHECK(std::equal(half_found.data(), half_found.data() + half_found.size(), half_expected.data()));
      }
    }
  }
}

TEST_CASE("device: signals with gains, scales and means, rounded to 16 bits") {
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
  for (const DType type : {DType::bf16, DType::f16}) {
    const Matrix<uint16_t> half_expected = narrowed(expected, type);
    Matrix<uint16_t> half_found(7, 21);
    device.run(codes, type, half_found, finishing);
    CHECK(std::equal(half_found.data(), half_found.data() + half_found.size(), half_expected.data()));
  }
  CHECK_THROWS_AS(device.run(codes, found, Finishing{gains, gains, {}}), Error);
}

TEST_CASE("device: coefficients of 8 and of 4 bits, packed") {
  NEEDS_DEVICE();
  const uint64_t seed = 36;
  INFO("seed ", seed);
  Rng rng(seed);
  const size_t atoms = 200, width = 35, signals = 45, s = 9;
  const Matrix<float> dictionary = test::random_rows(rng, atoms, width);
  const ByteAtoms bytes = round_to_bytes(dictionary);
  std::vector<uint32_t> ids(signals * s);
  for (auto& id : ids) id = static_cast<uint32_t>(rng.below(atoms));
  std::vector<uint8_t> packed_ids(packed_bytes(ids.size(), 8));
  pack_bits(ids, 8, atoms, packed_ids);
  std::vector<float> numbers(256), scale_numbers(256);
  for (size_t i = 0; i < 256; ++i)
    numbers[i] = static_cast<float>(i) - 7.5f,
    scale_numbers[i] = std::ldexp(1.0f, static_cast<int>(i) / 8 - 20);
  std::vector<uint8_t> scales(signals);
  for (auto& scale : scales) scale = static_cast<uint8_t>(rng.below(256));
  for (const unsigned bits : {4u, 8u, 5u}) {
    CAPTURE(bits);
    std::vector<uint32_t> words(ids.size());
    std::vector<float> coefficients(ids.size());
    for (size_t k = 0; k < words.size(); ++k) {
      words[k] = static_cast<uint32_t>(rng.below(1u << bits));
      coefficients[k] = numbers[words[k]] * scale_numbers[scales[k / s]];
    }
    std::vector<uint8_t> packed_words(packed_bytes(words.size(), bits));
    pack_bits(words, bits, 1u << bits, packed_words);
    const cuda::PackedCodes codes{packed_ids, 8, {}, s, packed_words, bits, numbers, scales, scale_numbers};
    Matrix<float> expected(signals, width), found(signals, width);
    const std::vector<uint64_t> offsets = uniform_offsets(signals, s);
    Reconstructor(dictionary).run({ids, coefficients, offsets}, expected);
    cuda::DeviceReconstructor(dictionary).run(codes, found);
    CHECK(same(found, expected));
    Reconstructor(bytes).run({ids, coefficients, offsets}, expected);
    cuda::DeviceReconstructor(bytes).run(codes, found);
    CHECK(same(found, expected));
    std::vector<float> with_hole = numbers;
    with_hole[words[3]] = NAN;
    cuda::PackedCodes damaged = codes;
    damaged.numbers = with_hole;
    CHECK_THROWS_AS(cuda::DeviceReconstructor(bytes).run(damaged, found), Error);
    damaged = codes;
    damaged.word_width = 9;
    CHECK_THROWS_AS(cuda::DeviceReconstructor(bytes).run(damaged, found), Error);
    damaged = codes;
    damaged.words = damaged.words.first(damaged.words.size() - 1);
    CHECK_THROWS_AS(cuda::DeviceReconstructor(bytes).run(damaged, found), Error);
  }
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
  CHECK_THROWS_AS(cuda::DeviceReconstructor(Matrix<float>(0, 4)), Error);
  // A grid of blocks reaches so far, sixteen values to a row.
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
        }).find("513 pairs") != std::string::npos);
}

}  // namespace reconstruct_test
