#include "lib/selfindex/codec/document.hpp"

#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::selfindex {

uint64_t SelfIndexView::take_in() {
  const uint64_t exact = document().rows(kExact);
  const auto same = [](std::string_view stream, uint64_t rows, uint64_t wanted) {
    if (rows != wanted) throw bad_input("stream '{}' has {} rows, not {}", stream, rows, wanted);
  };
  const uint64_t flags = form_.has_choice(shape().side) ? document().rows(kCoded) : 0;
  if (flags > 1) throw bad_input("stream '{}' has {} rows; it has at most one", kCoded, flags);
  coded_ = flags == 1;
  if (coded_)
    if (const uint8_t value = document().read<uint8_t>(kCoded, 0, 1, 1).front(); value != 1)
      throw bad_input("stream '{}' says {}; 1 is possible", kCoded, value);
  if (form_.has_levels() && coded_) read_places();
  uint64_t count = exact / form_.heads;
  if (coded_ && form_.has_levels()) {
    count = document().rows(kLevels);
    same(kScales, document().rows(kScales), count);
    same(kZeros, document().rows(kZeros), count);
    same(kExact, exact, exact_before(count));
  } else {
    same(kExact, exact, count * form_.heads);
    if (form_.has_levels())
      for (const std::string_view stream : {kLevels, kScales, kZeros, kExactIds})
        same(stream, document().rows(stream), 0);
  }
  if (shape().side == Side::key) {
    same(kSigns, document().rows(kSigns), coded_ ? count : 0);
    for (const std::string_view stream : {kCenter, kAlpha, kCodebooks})
      same(stream, document().rows(stream), coded_ ? 1 : 0);
  }
  return count;
}

void SelfIndexView::read_places() {
  const uint64_t rows = document().rows(kExactIds), heads = std::max<size_t>(form_.heads, 1);
  if (rows * heads == places_.size()) return;  // a document has them from its start on
  const auto ids = document().read<uint32_t>(kExactIds, 0, rows, heads);
  places_.clear();
  places_.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i >= heads && ids[i] <= ids[i - heads])
      throw bad_input("stream '{}', row {}: token {} does not come after {}", kExactIds, i / heads, ids[i],
                      ids[i - heads]);
    places_.push_back({ids[i], static_cast<uint32_t>(i % heads)});
  }
  std::ranges::sort(places_);
}

const HeadTables& SelfIndexView::tables() const {
  return tables_.get([&] {
    HeadTables tables{read_finite(kCenter), read_finite(kAlpha)};
    for (const float alpha : tables.alpha)
      if (!(alpha > 0)) throw bad_input("stream '{}' holds {}; it must be positive", kAlpha, alpha);
    return tables;
  });
}

const std::vector<SignCodebook>& SelfIndexView::codebooks() const {
  return codebooks_.get([&] {
    const HeadTables& tables = this->tables();
    const auto halves = document().read<uint16_t>(kCodebooks, 0, 1, form_.width() * kSignCodes);
    std::vector<SignCodebook> codebooks;
    size_t next = 0;
    for (size_t head = 0; head < form_.heads; ++head) {
      SignCodebook codebook{Matrix<float>(form_.dims, kSignCodes)};
      for (size_t group = 0; group < codebook.groups(); ++group)
        for (size_t code = 0; code < kSignCodes; ++code)
          for (size_t i = 0; i < kSignGroup; ++i) {
            const size_t channel = group * kSignGroup + i;
            const float relative = f16_to_float(halves[next++]);
            if (!std::isfinite(relative))
              throw bad_input("stream '{}' holds a value that is not finite", kCodebooks);
            codebook.centroids(channel, code) = relative * tables.alpha[head * form_.dims + channel];
          }
      codebooks.push_back(std::move(codebook));
    }
    return codebooks;
  });
}

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
  const HeadTables& tables = key ? this->tables() : kNone;
  const ConstTwoBitRows coded{{levels.data(), count * form_.heads, form_.level_bytes()},
                              {scales.data(), count * form_.heads, form_.groups()},
                              {zeros.data(), count * form_.heads, form_.groups()}};
  parallel_each(count, kPieceTokens, [&](size_t t) {
    for (size_t head = 0; head < form_.heads; ++head) {
      const size_t row = t * form_.heads + head;
      const auto own = out.row(t).subspan(head * form_.dims, form_.dims);
      if (key && !form_.signed_levels()) {
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

void SelfIndexView::decode_rows(uint64_t first, MatrixView<float> out) const {
  if (shape().side == Side::key && is_coded()) (void)codebooks();  // whether they are damaged
  if (is_coded() && form_.has_levels()) {
    decode_levels(first, out);
    const std::span<const HeadToken> places = exact_places(first, first + out.rows());
    Matrix<float> exact(places.size(), form_.dims);
    read_exact(kExact, form_.storage, document(), exact_before(first), exact);
    for (size_t i = 0; i < places.size(); ++i)
      std::ranges::copy(exact.row(i), out.row(places[i].token - first).begin() +
                                          static_cast<ptrdiff_t>(places[i].head * form_.dims));
    return;
  }
  const size_t width = form_.width();
  Matrix<float> rows(out.rows() * form_.heads, form_.dims);
  read_exact(kExact, form_.storage, document(), first * form_.heads, rows);
  for (size_t t = 0; t < out.rows(); ++t) std::copy_n(rows.data() + t * width, width, out.row(t).begin());
}

std::unique_ptr<GrowingSelector> SelfIndexView::selector(size_t head, bool signs_only) const {
  if (shape().side != Side::key || head >= form_.heads)
    throw failed("no index of {} {}", name_of(shape().side), head);
  const uint64_t count = tokens();
  if (!is_coded()) {
    Matrix<float> all(count * form_.heads, form_.dims), own(count, form_.dims);
    read_exact(kExact, form_.storage, document(), 0, all);
    for (size_t t = 0; t < count; ++t) std::ranges::copy(all.row(t * form_.heads + head), own.row(t).begin());
    return std::make_unique<OracleSelector>(std::move(own));
  }
  const size_t sign_bytes = form_.sign_bytes();
  const auto signs = document().read<uint8_t>(kSigns, 0, count, form_.heads * sign_bytes);
  SignIndex index(form_.dims);
  const MatrixView<const uint8_t> codes(signs.data() + head * sign_bytes, count, sign_bytes,
                                        form_.heads * sign_bytes);
  index.append(codes);
  const std::span own_center = std::span(tables().center).subspan(head * form_.dims, form_.dims);
  SignFit fit{codebooks()[head], {own_center.begin(), own_center.end()}};
  if (signs_only) {  // every centroid at the corner its signs name
    Matrix<float>& centroids = fit.codebook.centroids;
    for (size_t channel = 0; channel < form_.dims; ++channel)
      for (size_t code = 0; code < kSignCodes; ++code)
        centroids(channel, code) = code >> (kSignGroup - 1 - channel % kSignGroup) & 1 ? 1.0f : -1.0f;
  }
  std::function<SignScorer()> on_device;
  if (engine_) {
    std::vector<uint8_t> own;
    for (size_t t = 0; t < count; ++t) append_to(own, std::span<const uint8_t>(codes.row(t)));
    on_device = [engine = engine_, dims = form_.dims, own = std::move(own), sign_bytes] {
      return engine->make<SignIndexOnDevice>(
          dims, MatrixView<const uint8_t>(own.data(), own.size() / sign_bytes, sign_bytes));
    };
  }
  return std::make_unique<SignSelector>(std::move(fit), std::move(index), std::move(on_device));
}

}  // namespace kvcodec::selfindex
