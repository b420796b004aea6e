#include "lib/sparse/dictionary.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace dictionary_test {

using namespace kvcodec;

namespace {

Matrix<float> gaussian(size_t count, size_t width, Rng& rng) {
  Matrix<float> rows(count, width);
  for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(rng.normal());
  return rows;
}

constexpr SignalLayout kLayouts[] = {{.layers = 1, .heads = 1, .head_dim = 1, .per_head = false},
                                     {.layers = 1, .heads = 3, .head_dim = 5, .per_head = false},
                                     {.layers = 4, .heads = 2, .head_dim = 8, .per_head = false},
                                     {.layers = 1, .heads = 3, .head_dim = 5, .per_head = true},
                                     {.layers = 2, .heads = 4, .head_dim = 7, .per_head = true}};

}  // namespace

TEST_CASE("signals: what is cut, centred and scaled comes back") {
  Rng rng(20);
  for (const SignalLayout& layout : kLayouts)
    for (const Normalize normalize :
         {Normalize::none, Normalize::layer, Normalize::signal, Normalize::weights})
      for (const Center center : {Center::none, Center::channel}) {
        CAPTURE(layout.layers);
        CAPTURE(layout.per_head);
        CAPTURE(name_of(normalize));
        CAPTURE(name_of(center));
        const size_t layers = 2 * static_cast<size_t>(layout.layers);
        const int first_layer = layout.layers;
        Matrix<float> rows = gaussian(150, layout.row_width(), rng);
        for (size_t j = 0; j < rows.cols(); ++j)
          for (size_t i = 0; i < rows.rows(); ++i) rows(i, j) = rows(i, j) * float(j + 1) + 10 * float(j % 3);
        std::vector<float> scales;
        if (normalize == Normalize::weights) scales.assign(layers, 4);
        NormalizationFinder finder(normalize, center, layout, layers, scales);
        finder.add(first_layer, rows.view().rows(0, 100));
        finder.add(first_layer, rows.view().rows(100, 50));
        const Normalization normalization = finder.finish();
        normalization.check(layers, layout.layer_width());
        CHECK(normalization.center() == center);
        const size_t signals_count = rows.rows() * layout.signals_per_row();
        Matrix<float> signals(signals_count, layout.signal_width());
        std::vector<float> gains(signals_count);
        to_signals(normalization, layout, first_layer, rows, signals, gains);
        Matrix<float> back(rows.rows(), rows.cols());
        from_signals(normalization, layout, first_layer, signals, gains, back);
        double worst = 0, energy = 0, sum = 0;
        for (size_t i = 0; i < rows.size(); ++i)
          worst = std::max(worst, std::abs(double(back.data()[i]) - rows.data()[i]));
        CHECK_LE(worst, 1e-4);
        for (size_t i = 0; i < signals.size(); ++i) {
          energy += double(signals.data()[i]) * signals.data()[i];
          sum += signals.data()[i];
        }
        if (normalize == Normalize::layer)
          CHECK(energy / double(signals.size()) == doctest::Approx(1).epsilon(1e-4));
        if (normalize == Normalize::weights) {
          double plain = 0;
          for (size_t i = 0; i < back.rows(); ++i)
            for (size_t j = 0; j < back.cols(); ++j) {
              const double mean =
                  center == Center::channel
                      ? normalization.channel_mean
                            .data()[static_cast<size_t>(first_layer) * layout.layer_width() + j]
                      : 0;
              plain += std::pow(rows(i, j) - mean, 2);
            }
          CHECK(energy == doctest::Approx(plain / 16).epsilon(1e-3));
          CHECK_THROWS(NormalizationFinder(normalize, center, layout, layers).finish());
        }
        if (normalize == Normalize::signal)
          CHECK(energy / double(signals_count) == doctest::Approx(1).epsilon(2e-3));
        if (center == Center::channel && normalize != Normalize::signal)
          CHECK_LE(std::abs(sum), 1e-3 * double(signals.size()));
      }
}

TEST_CASE("signals: a head's signal holds that head's values of all layers of the group") {
  const SignalLayout layout{.layers = 2, .heads = 3, .head_dim = 4, .per_head = true};
  Matrix<float> rows(2, layout.row_width());
  for (size_t t = 0; t < 2; ++t)
    for (size_t l = 0; l < 2; ++l)
      for (size_t h = 0; h < 3; ++h)
        for (size_t d = 0; d < 4; ++d) rows(t, (l * 3 + h) * 4 + d) = float(1000 * t + 100 * l + 10 * h + d);
  Matrix<float> signals(6, 8);
  to_signals({}, layout, 0, rows, signals, {});
  for (size_t t = 0; t < 2; ++t)
    for (size_t h = 0; h < 3; ++h)
      for (size_t l = 0; l < 2; ++l)
        for (size_t d = 0; d < 4; ++d)
          CHECK_EQ(signals(t * 3 + h, l * 4 + d), float(1000 * t + 100 * l + 10 * h + d));
}

TEST_CASE("signals: statistics stand far offsets, constants, layers never seen and any thread count") {
  const SignalLayout layout{.layers = 1, .heads = 1, .head_dim = 2, .per_head = false};
  Rng rng(21);
  Matrix<float> rows(5000, 2);
  for (size_t i = 0; i < rows.rows(); ++i) rows(i, 0) = 4096 + 0.5f * float(rng.normal()), rows(i, 1) = -3;
  NormalizationFinder finder(Normalize::layer, Center::channel, layout, 3);
  finder.add(1, rows);
  const Normalization found = finder.finish();
  CHECK(found.channel_mean(1, 0) == doctest::Approx(4096).epsilon(1e-5));
  CHECK_EQ(found.channel_mean(1, 1), -3.0f);
  CHECK(found.layer_scale[1] == doctest::Approx(0.5 / std::sqrt(2.0)).epsilon(0.05));
  CHECK_EQ(found.layer_scale[0], 1.0f);
  CHECK_EQ(found.layer_scale[2], 1.0f);
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    NormalizationFinder again(Normalize::layer, Center::channel, layout, 3);
    again.add(1, rows);
    CHECK(again.finish().layer_scale == found.layer_scale);
  }
  set_num_threads(0);
  NormalizationFinder constant(Normalize::layer, Center::channel, layout, 1);
  constant.add(0, Matrix<float>(10, 2));
  CHECK_EQ(constant.finish().layer_scale[0], 1.0f);
}

TEST_CASE("signals: gains are f16, zero signals and tiny ones become zeros, loud ones are refused") {
  const SignalLayout layout{.layers = 1, .heads = 1, .head_dim = 4, .per_head = false};
  Normalization normalization;
  normalization.normalize = Normalize::signal;
  Matrix<float> rows(4, 4);
  rows(1, 2) = 3.3333f;
  rows(2, 0) = 1e-9f;
  rows(3, 3) = 30000;
  Matrix<float> signals(4, 4);
  std::vector<float> gains(4);
  to_signals(normalization, layout, 0, rows, signals, gains);
  CHECK_EQ(gains[0], 0);
  CHECK_EQ(gains[1], round_to(DType::f16, 3.3333f));
  CHECK_EQ(gains[2], 0);
  CHECK_EQ(signals(2, 0), 0);
  CHECK_EQ(signals(1, 2), 3.3333f / gains[1]);
  rows(3, 3) = 70000;
  CHECK_THROWS_WITH_AS(to_signals(normalization, layout, 0, rows, signals, gains),
                       "row 3: a signal of norm 70000 is beyond the range of f16 gains", Error);
}

TEST_CASE("dictionaries are checked: norms, widths, scales, means") {
  const SignalLayout layout{.layers = 1, .heads = 2, .head_dim = 4, .per_head = false};
  Dictionary dictionary;
  dictionary.atoms = Matrix<float>(10, 8);
  kaiming_atoms(3, dictionary.atoms);
  dictionary.normalization.normalize = Normalize::layer;
  dictionary.normalization.layer_scale = {1, 2};
  dictionary.check(layout, 2);
  CHECK_THROWS_AS(dictionary.check(layout, 3), Error);
  CHECK_THROWS_AS(dictionary.check({.layers = 2, .heads = 2, .head_dim = 4, .per_head = false}, 2), Error);
  for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Dictionary copy = dictionary;
    copy.normalization.layer_scale[1] = wrong;
    CHECK_THROWS_AS(copy.check(layout, 2), Error);
  }
  Dictionary copy = dictionary;
  copy.normalization.channel_mean = Matrix<float>(2, 8);
  copy.check(layout, 2);
  copy.normalization.channel_mean(1, 3) = std::nanf("");
  CHECK_THROWS_WITH_AS(copy.check(layout, 2), "the mean of channel 3 of layer 1 is not finite", Error);
  copy = dictionary;
  copy.atoms(4, 0) = 2;
  CHECK_THROWS_AS(copy.check(layout, 2), Error);
  CHECK_EQ(normalize_atoms(copy.atoms), 0);
  copy.check(layout, 2);
  std::fill(copy.atoms.row(5).begin(), copy.atoms.row(5).end(), 0.0f);
  CHECK_EQ(normalize_atoms(copy.atoms), 1);
  CHECK_THROWS_AS(copy.check(layout, 2), Error);
}

TEST_CASE("normalising atoms twice changes nothing") {
  // Signals with few entries, whose roundings give norms that are often not 1 to the last bit.
  Rng rng(23);
  Matrix<float> atoms = gaussian(20000, 3, rng);
  CHECK_EQ(normalize_atoms(atoms), 0);
  const Matrix<float> once = atoms;
  CHECK_EQ(normalize_atoms(atoms), 0);
  CHECK(std::equal(once.data(), once.data() + once.size(), atoms.data()));
}

TEST_CASE("reconstruction adds up what the codes say, for any widths and lengths") {
  Rng rng(22);
  for (const size_t n : {1, 2, 100})
    for (const size_t m : {1, 15, 16, 17, 33, 64, 128, 129, 300})
      for (const size_t signals : {0, 1, 3, 300}) {
        const Matrix<float> atoms = gaussian(n, m, rng);
        std::vector<uint64_t> offsets{0};
        for (size_t i = 0; i < signals; ++i) offsets.push_back(offsets.back() + rng.below(10));
        std::vector<uint32_t> ids(offsets.back());
        for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(n));
        const Matrix<float> coefficients = gaussian(1, ids.size(), rng);
        Matrix<float> wide(signals, m + 2);
        const Reconstructor reconstructor(atoms);
        reconstructor.run({ids, coefficients.row(0), offsets}, wide.view().columns(1, m));
        double worst = 0;
        for (size_t i = 0; i < signals; ++i) {
          for (size_t c = 0; c < m; ++c) {
            double expected = 0;
            for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k)
              expected += double(coefficients(0, k)) * atoms(ids[k], c);
            worst = std::max(worst, std::abs(expected - double(wide(i, c + 1))));
          }
          CHECK((wide(i, 0) == 0 && wide(i, m + 1) == 0));
        }
        CHECK_LE(worst, 1e-5);
      }
}

TEST_CASE("reconstruction refuses ids that are no atoms and offsets that lead outside") {
  Matrix<float> atoms(3, 4), out(2, 4);
  const Reconstructor reconstructor(atoms);
  const std::vector<float> coefficients{1, 1, 1, 1};
  const auto run = [&](std::vector<uint32_t> ids, std::vector<uint64_t> offsets) {
    reconstructor.run({ids, coefficients, offsets}, out);
  };
  run({0, 1, 2, 0}, {0, 2, 4});
  CHECK_THROWS_WITH_AS(run({0, 1, 3, 0}, {0, 2, 4}), "atom 3 of a dictionary of 3", Error);
  CHECK_THROWS_AS(run({0, 1, 2, 0}, {0, 2, 5}), Error);
  CHECK_THROWS_AS(run({0, 1, 2, 0}, {0, 4, 2}), Error);
  CHECK_THROWS_AS(run({0, 1, 2, 0}, {0, 4}), Error);
}

TEST_CASE("atoms of 8 bits: nearest levels, norm 1, and rounding again changes nothing") {
  Rng rng(24);
  for (const size_t m : {1, 2, 3, 64, 65, 512}) {
    Matrix<float> atoms = gaussian(50, m, rng);
    normalize_atoms(atoms);
    const ByteAtoms bytes = round_to_bytes(atoms);
    const Matrix<float> back = floats_of(bytes);
    check_atoms(back);
    const ByteAtoms again = round_to_bytes(back);
    CHECK(again.scales == bytes.scales);
    CHECK(std::equal(again.levels.data(), again.levels.data() + again.levels.size(), bytes.levels.data()));
    for (size_t i = 0; i < atoms.rows(); ++i) {
      double largest = 0;
      for (const float value : atoms.row(i)) largest = std::max(largest, std::abs(double(value)));
      int top = 0;
      for (size_t c = 0; c < m; ++c) {
        const int level = bytes.levels(i, c);
        top = std::max(top, std::abs(level));
        CHECK_LE(std::abs(level - atoms(i, c) / largest * 127), 0.5 + 1e-4);
      }
      CHECK_EQ(top, 127);
    }
  }
}

namespace {

/// Reconstruction from atoms of 8 bits by the definition in reconstruct.hpp.
Matrix<float> sums_of_bytes(const ByteAtoms& atoms, const CodeView& codes, const Finishing& finishing) {
  Matrix<float> out(codes.signals(), atoms.levels.cols());
  for (size_t i = 0; i < codes.signals(); ++i) {
    const auto weight = [&](uint64_t k) { return codes.coefficients[k] * atoms.scales[codes.ids[k]]; };
    float largest = 0;
    for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k)
      largest = std::max(largest, std::abs(weight(k)));
    for (size_t c = 0; c < out.cols(); ++c) {
      int64_t sum = 0;
      for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1] && largest >= 0x1p-100f; ++k)
        sum += std::lrint(weight(k) * (32639 / largest)) * atoms.levels(codes.ids[k], c);
      float value = static_cast<float>(sum) * (largest >= 0x1p-100f ? largest / 32639 : 0);
      if (!finishing.gains.empty()) value *= finishing.gains[i];
      if (!finishing.scale.empty()) value *= finishing.scale[c];
      if (!finishing.mean.empty()) value += finishing.mean[c];
      out(i, c) = value;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("reconstruction from atoms of 8 bits: every level and any order of pairs, the same bits") {
  Rng rng(25);
  const std::vector<size_t> lengths{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 511, 512, 513, 700};
  for (const size_t n : {1, 2, 300})
    for (const size_t m : {1, 3, 16, 17, 63, 64, 65, 128, 200}) {
      Matrix<float> atoms = gaussian(n, m, rng);
      normalize_atoms(atoms);
      const ByteAtoms bytes = round_to_bytes(atoms);
      const Reconstructor reconstructor(bytes);
      std::vector<uint64_t> offsets{0};
      for (const size_t length : lengths) offsets.push_back(offsets.back() + length);
      std::vector<uint32_t> ids(offsets.back());
      for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(n));
      Matrix<float> coefficients = gaussian(1, ids.size(), rng);
      for (size_t i = 0; i < lengths.size();
           ++i)  // loud, quiet, zero, and all of one size and sign: large sums
        for (uint64_t k = offsets[i]; k < offsets[i + 1]; ++k)
          coefficients(0, k) = i % 5 == 1   ? coefficients(0, k) * 0x1p60f
                               : i % 5 == 2 ? coefficients(0, k) * 0x1p-90f
                               : i % 5 == 3 ? coefficients(0, k) * 0x1p-125f
                               : i % 5 == 4 ? 1.0f
                                            : coefficients(0, k);
      const Matrix<float> gains = gaussian(1, lengths.size(), rng), finish = gaussian(2, m, rng);
      std::vector<uint32_t> turned_ids = ids;
      Matrix<float> turned = coefficients;
      for (size_t i = 0; i < lengths.size(); ++i) {
        std::reverse(turned_ids.begin() + ptrdiff_t(offsets[i]),
                     turned_ids.begin() + ptrdiff_t(offsets[i + 1]));
        std::reverse(turned.data() + offsets[i], turned.data() + offsets[i + 1]);
      }
      for (const Finishing& finishing :
           {Finishing{}, Finishing{gains.row(0), {}, {}}, Finishing{{}, finish.row(0), finish.row(1)},
            Finishing{gains.row(0), {}, finish.row(1)}}) {
        const Matrix<float> wanted = sums_of_bytes(bytes, {ids, coefficients.row(0), offsets}, finishing);
        for (const SimdLevel level : test::simd_levels()) {
          const test::AtLevel at(level);
          CAPTURE(name_of(level));
          CAPTURE(n);
          CAPTURE(m);
          Matrix<float> wide(lengths.size(), m + 2);
          reconstructor.run({ids, coefficients.row(0), offsets}, wide.view().columns(1, m), finishing);
          test::Mismatch wrong;
          for (size_t i = 0; i < wide.rows(); ++i) {
            for (size_t c = 0; c < m; ++c) wrong.compare(wide(i, c + 1), wanted(i, c), i, c);
            for (const size_t outside : {size_t{0}, m + 1}) wrong.compare(wide(i, outside), 0, i, outside);
          }
          CHECK_EQ(wrong.report(), "");
          Matrix<float> other(lengths.size(), m);
          reconstructor.run({turned_ids, turned.row(0), offsets}, other, finishing);
          CHECK(std::equal(other.data(), other.data() + other.size(), wanted.data()));
        }
      }
    }
}

TEST_CASE("reconstruction from atoms of floats finishes its sums as written down") {
  Rng rng(26);
  const Matrix<float> atoms = gaussian(40, 33, rng), coefficients = gaussian(1, 50, rng),
                      finish = gaussian(3, 33, rng);
  std::vector<uint32_t> ids(50);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(40));
  const auto offsets = uniform_offsets(10, 5);
  const Finishing finishing{finish.row(0).first(10), finish.row(1), finish.row(2)};
  const Reconstructor reconstructor(atoms);
  Matrix<float> plain(10, 33), floats(10, 33);
  const CodeView codes{ids, coefficients.row(0), offsets};
  reconstructor.run(codes, plain);
  reconstructor.run(codes, floats, finishing);
  for (size_t i = 0; i < 10; ++i)
    for (size_t c = 0; c < 33; ++c) {
      const float scaled = plain(i, c) * finish(0, i) * finish(1, c);
      CHECK_EQ(floats(i, c), scaled + finish(2, c));
    }
}

}  // namespace dictionary_test
