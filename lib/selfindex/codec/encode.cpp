#include "lib/selfindex/codec/encode.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/quant/two_bit.hpp"
#include "lib/selfindex/codec/reader.hpp"

namespace kvcodec::selfindex {
namespace {

/// The largest size that a level's f16 zero point and scale can hold.
constexpr float kMostLevelled = 65504;

/// What is stored of rows, beside those kept exactly.
struct Coded {
  Matrix<uint8_t> signs, levels;
  Matrix<uint16_t> scales, zeros;
};

/// Sets the signs of keys, and turns these into what has levels instead.
void take_signs(const Form& form, const HeadTables& tables, MatrixView<float> rows, Coded& coded) {
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t j = 0; j < form.width(); ++j) rows(t, j) -= tables.center[j];
  });
  coded.signs = Matrix<uint8_t>(rows.rows(), form.heads * form.sign_bytes());
  encode_signs(rows, form.heads, coded.signs);
  if (!form.has_levels()) return;
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t j = 0; j < form.width(); ++j)
        rows(t, j) = (form.signed_levels ? rows(t, j) : std::abs(rows(t, j))) / tables.alpha[j];
  });
}

void check_levels(const Form& form, Side side, MatrixView<const float> rows, uint64_t first_token) {
  for (size_t t = 0; t < rows.rows(); ++t)
    for (size_t j = 0; j < form.width(); ++j)
      if (const float value = rows(t, j); !(std::abs(value) <= kMostLevelled))
        throw bad_input(
            "token {}, head {}, dimension {}: {} {}; 2-bit levels hold up to {}, and --store 16bit keeps all values",
            first_token + t, j / form.dims, j % form.dims, value,
            side == Side::key ? "times the largest among the tokens that the codes began with"
                              : "is too large",
            kMostLevelled);
}

void take_levels(const Form& form, MatrixView<const float> rows, Coded& coded) {
  const size_t count = rows.rows() * form.heads;
  coded.levels = Matrix<uint8_t>(count, form.level_bytes());
  coded.scales = coded.zeros = Matrix<uint16_t>(count, form.groups());
  quantize_two_bit({rows.data(), count, form.dims},
                   {coded.levels.view(), coded.scales.view(), coded.zeros.view()});
}

template <class T>
void append_all(std::string_view stream, const Matrix<T>& values, StreamStore& document) {
  document.append_values<T>(stream, {values.data(), values.size()});
}

}  // namespace

/// Nothing is appended before all is known to fit.
void append_rows(const Form& form, Engine* engine, const GroupShape& shape, MatrixView<const float> rows,
                 StreamStore& document) {
  const std::vector<uint16_t> halves = to_storage(form.storage, rows);
  if (rows.rows() == 0) return;
  Reader reader(form, shape.side, document);
  reader.refresh();
  if (!reader.is_coded()) return document.append_values<uint16_t>(kExact, halves);
  const uint64_t before = reader.tokens();
  Matrix<float> values(rows.rows(), form.width());
  widen(form.storage, halves, {values.data(), values.size()});
  if (engine) engine->fall_back("selfindex: signs and levels, once there are codebooks");
  Coded coded;
  if (shape.side == Side::key) take_signs(form, reader.tables(), values, coded);
  if (form.has_levels()) {
    check_levels(form, shape.side, values, before);
    take_levels(form, values, coded);
  }
  std::vector<uint16_t> exact;
  if (form.has_levels())
    for (const HeadToken& place : reader.exact_places(before, before + rows.rows())) {
      const auto first = halves.begin() + static_cast<ptrdiff_t>((place.token - before) * form.width() +
                                                                 place.head * form.dims);
      exact.insert(exact.end(), first, first + static_cast<ptrdiff_t>(form.dims));
    }
  document.append_values<uint16_t>(kExact, form.has_levels() ? exact : halves);
  if (shape.side == Side::key) append_all(kSigns, coded.signs, document);
  if (!form.has_levels()) return;
  append_all(kLevels, coded.levels, document);
  append_all(kScales, coded.scales, document);
  append_all(kZeros, coded.zeros, document);
}

}  // namespace kvcodec::selfindex
