#include "lib/selfindex/codec/view.hpp"

#include <algorithm>
#include <cmath>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/quant/two_bit.hpp"

namespace kvcodec::selfindex {

/// Tokens [first, first + out.rows()) as signs and levels say.
void SelfIndexView::decode_levels(uint64_t first, MatrixView<float> out) const {
  if (engine_) engine_->fall_back("selfindex: decoding");
  const size_t count = out.rows();
  const auto levels = document().read<uint8_t>(kLevels, first, count, form_.heads * form_.level_bytes());
  const auto scales = read_scales(kScales, first, count), zeros = read_scales(kZeros, first, count);
  const bool key = shape().side == Side::key;
  const size_t sign_bytes = form_.sign_bytes();
  const auto signs =
      key ? document().read<uint8_t>(kSigns, first, count, form_.heads * sign_bytes) : std::vector<uint8_t>();
  static const HeadTables kNone;
  const HeadTables& tables = key ? reader_.tables() : kNone;
  const ConstTwoBitRows coded{{levels.data(), count * form_.heads, form_.level_bytes()},
                              {scales.data(), count * form_.heads, form_.groups()},
                              {zeros.data(), count * form_.heads, form_.groups()}};
  parallel_for(count, kPieceTokens, [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t)
      for (size_t head = 0; head < form_.heads; ++head) {
        const size_t row = t * form_.heads + head;
        const auto own = out.row(t).subspan(head * form_.dims, form_.dims);
        if (key && !form_.signed_levels) {
          dequantize_signed_row(coded, row, std::span(signs).subspan(row * sign_bytes, sign_bytes),
                                std::span(tables.alpha).subspan(head * form_.dims, form_.dims),
                                std::span(tables.center).subspan(head * form_.dims, form_.dims), own);
          continue;
        }
        dequantize_two_bit({coded.levels.rows(row, 1), coded.scales.rows(row, 1), coded.zeros.rows(row, 1)},
                           {own.data(), 1, form_.dims});
        if (!key) continue;
        for (size_t c = 0; c < form_.dims; ++c)
          own[c] = tables.center[head * form_.dims + c] + tables.alpha[head * form_.dims + c] * own[c];
      }
  });
}

/// Scales or zeros as they are stored, checked.
std::vector<uint16_t> SelfIndexView::read_scales(std::string_view stream, uint64_t first,
                                                 uint64_t count) const {
  auto halves = document().read<uint16_t>(stream, first, count, form_.heads * form_.groups());
  for (size_t i = 0; i < halves.size(); ++i)
    if ((halves[i] & 0x7c00) == 0x7c00)
      throw bad_input("stream '{}', row {}: a value is not finite", stream,
                      first + i / (form_.heads * form_.groups()));
  return halves;
}

/// Puts what is kept exactly over decoded tokens [first, first + out.rows()).
void SelfIndexView::put_exact(uint64_t first, MatrixView<float> out) const {
  const std::span<const HeadToken> places = reader_.exact_places(first, first + out.rows());
  Matrix<float> exact(places.size(), form_.dims);
  read_exact(kExact, form_.storage, document(), reader_.exact_before(first), exact);
  for (size_t i = 0; i < places.size(); ++i)
    std::ranges::copy(exact.row(i), out.row(places[i].token - first).begin() +
                                        static_cast<ptrdiff_t>(places[i].head * form_.dims));
}

void SelfIndexView::decode_rows(uint64_t first, MatrixView<float> out) const {
  if (shape().side == Side::key && reader_.is_coded()) (void)reader_.codebooks();  // whether they are damaged
  if (reader_.is_coded() && form_.has_levels()) {
    decode_levels(first, out);
    return put_exact(first, out);
  }
  const size_t width = form_.width();
  Matrix<float> rows(out.rows() * form_.heads, form_.dims);
  read_exact(kExact, form_.storage, document(), first * form_.heads, rows);
  for (size_t t = 0; t < out.rows(); ++t) std::copy_n(rows.data() + t * width, width, out.row(t).begin());
}

}  // namespace kvcodec::selfindex
