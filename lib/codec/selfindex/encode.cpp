#include "lib/codec/selfindex/encode.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/selfindex/reader.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/quant/two_bit.hpp"

namespace kvcodec::selfindex {
namespace {

/// Signs, and the rows whose levels are stored instead of these.
void append_signs(const Form& form, const HeadTables& tables, MatrixView<float> rows, StreamStore& document) {
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t j = 0; j < form.width(); ++j) rows(t, j) -= tables.center[j];
  });
  Matrix<uint8_t> signs(rows.rows(), form.heads * form.sign_bytes());
  encode_signs(rows, form.heads, signs);
  document.append_values<uint8_t>(kSigns, {signs.data(), signs.size()});
  if (!form.has_levels()) return;
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t j = 0; j < form.width(); ++j)
        rows(t, j) = (form.signed_levels ? rows(t, j) : std::abs(rows(t, j))) / tables.alpha[j];
  });
}

void append_levels(const Form& form, MatrixView<const float> rows, StreamStore& document) {
  const size_t count = rows.rows() * form.heads;
  Matrix<uint8_t> levels(count, form.level_bytes());
  Matrix<uint16_t> scales(count, form.groups()), zeros(count, form.groups());
  quantize_two_bit({rows.data(), count, form.dims}, {levels.view(), scales.view(), zeros.view()});
  document.append_values<uint8_t>(kLevels, {levels.data(), levels.size()});
  document.append_values<uint16_t>(kScales, {scales.data(), scales.size()});
  document.append_values<uint16_t>(kZeros, {zeros.data(), zeros.size()});
}

}  // namespace

void append_rows(const Form& form, Engine* engine, const GroupShape& shape, MatrixView<const float> rows,
                 StreamStore& document) {
  const std::vector<uint16_t> halves = to_storage(form.storage, rows);
  if (rows.rows() == 0) return;
  Reader reader(form, shape.side, document);
  reader.refresh();
  if (!reader.is_coded() || !form.has_levels()) {
    document.append_values<uint16_t>(kExact, halves);
    if (!reader.is_coded()) return;
  } else {
    const uint64_t before = reader.tokens();
    std::vector<uint16_t> exact;
    for (const HeadToken& place : reader.exact_places(before, before + rows.rows())) {
      const auto first = halves.begin() + static_cast<ptrdiff_t>((place.token - before) * form.width() +
                                                                 place.head * form.dims);
      exact.insert(exact.end(), first, first + static_cast<ptrdiff_t>(form.dims));
    }
    document.append_values<uint16_t>(kExact, exact);
  }
  Matrix<float> values(rows.rows(), form.width());
  widen(form.storage, halves, {values.data(), values.size()});
  if (engine) engine->fall_back("selfindex: signs and levels, once there are codebooks");
  if (shape.side == Side::key) append_signs(form, reader.tables(), values, document);
  if (form.has_levels()) append_levels(form, values, document);
}

}  // namespace kvcodec::selfindex
