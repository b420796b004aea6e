// The codec `q4`: levels of 4 bits (or 2 to 8) with one f16 scale for each group of 32 channels of a token's
// head, after a Hadamard transform of the head if wanted: the plain quantizer that every method is to beat. A
// yardstick.
//
// Tokens are coded one by one, so they decode alone and nothing waits. Heads whose size is no power of two
// are transformed in pieces of the largest power of two that divides it.
//
// Streams of one document, H heads of d dimensions, b bits
//   codes   u8  [T][H][ceil(d*b/8)]      levels + 2^(b-1), highest bit first, padded with zeros
//   scales  f16 [T][H][ceil(d/group)]    signed
//   exact   bf16|f16 [T][H][d]           instead, where codes and scales would not be smaller than 16 bits
#include <algorithm>
#include <cmath>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/linalg/hadamard.hpp"
#include "lib/quant/symmetric.hpp"

namespace kvcodec {
namespace {

struct Q4Options final : Options {
  int64_t bits = 4;
  int64_t group = 32;  ///< what low-bit formats for weights use
  std::string rotate = "none";

  std::vector<OptionField> fields() override {
    return {{"bits", "bits per value", &bits, 2, 8},
            {"group", "channels of a token's head that share one scale", &group, 1, 65536},
            {"rotate",
             "transform of each head before it is quantized: hadamard spreads outliers over all channels",
             &rotate,
             {},
             {},
             {"none", "hadamard"}}};
  }
};

constexpr std::string_view kCodes = "codes", kScales = "scales", kExact = "exact";
constexpr DType kScaleType = DType::f16;

/// Tokens per piece of parallel work.
constexpr size_t kPieceTokens = 16;

class Q4Codec final : public Codec {
 public:
  Q4Codec(const Q4Options& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        bits_(static_cast<unsigned>(options.bits)),
        group_(static_cast<size_t>(options.group)),
        dims_(static_cast<size_t>(context.head_dim)),
        head_bytes_(packed_bytes(dims_, bits_)),
        head_scales_((dims_ + group_ - 1) / group_),
        rotates_(options.rotate == "hadamard") {}

  Record parameters() const override {
    Q4Options copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    if (!pays()) return {exact_stream(std::string(kExact), shape, storage_, Category::exempt)};
    const uint64_t heads = shape.width() / dims_;
    return {{std::string(kCodes), DType::u8, {heads, head_bytes_}, Category::payload},
            {std::string(kScales), kScaleType, {heads, head_scales_}, Category::scales}};
  }

  /// 16-bit rows (2 bytes a value), floats of scales, codes and stored scales (together fewer than 6).
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 8; }

  uint64_t tokens(const GroupShape&, const StreamReader& document) const override {
    if (!pays()) return document.rows(kExact);
    const uint64_t coded = document.rows(kCodes), scaled = document.rows(kScales);
    if (coded != scaled)
      throw bad_input("stream '{}' has {} rows; '{}' has {}", kScales, scaled, kCodes, coded);
    return coded;
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;

 private:
  bool pays() const { return head_bytes_ + head_scales_ * size_of(kScaleType) < dims_ * size_of(storage_); }

  Q4Options options_;
  DType storage_;
  unsigned bits_;
  size_t group_, dims_, head_bytes_, head_scales_;
  bool rotates_;
};

void Q4Codec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_width(shape, rows.cols());
  const std::vector<uint16_t> halves = to_storage(storage_, rows);
  if (!pays()) return document.append_values<uint16_t>(kExact, halves);
  const size_t heads = shape.width() / dims_;
  std::vector<uint8_t> packed(rows.rows() * heads * head_bytes_);
  std::vector<uint16_t> stored(rows.rows() * heads * head_scales_);
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    Matrix<float> values(heads, dims_), scales(heads, head_scales_);
    Matrix<uint8_t> codes(heads, dims_);
    for (size_t i = begin; i < end; ++i) {
      const std::span<float> all(values.data(), values.size());
      widen(storage_, std::span(halves).subspan(i * values.size(), values.size()), all);
      if (rotates_) hadamard(all, power_of_two_in(dims_));
      with_context(fmt::format("row {}", i),
                   [&] { quantize_symmetric(values, group_, bits_, kScaleType, scales, codes); });
      narrow(kScaleType, {scales.data(), scales.size()},
             std::span(stored).subspan(i * scales.size(), scales.size()));
      for (size_t head = 0; head < heads; ++head)
        pack_bits(std::as_const(codes).row(head), bits_, 0,
                  std::span(packed).subspan((i * heads + head) * head_bytes_, head_bytes_));
    }
  });
  document.append_values<uint8_t>(kCodes, packed);
  document.append_values<uint16_t>(kScales, stored);
}

void Q4Codec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                     MatrixView<float> out) const {
  check_width(shape, out.cols());
  (void)tokens(shape, document);  // whether streams agree
  if (!pays()) return read_exact(kExact, storage_, document, first, out);
  const size_t heads = shape.width() / dims_;
  const auto packed = document.read<uint8_t>(kCodes, first, out.rows(), heads * head_bytes_);
  const auto stored = document.read<uint16_t>(kScales, first, out.rows(), heads * head_scales_);
  parallel_for(out.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    Matrix<float> scales(heads, head_scales_);
    Matrix<uint8_t> codes(heads, dims_);
    for (size_t i = begin; i < end; ++i) {
      widen(kScaleType, std::span(stored).subspan(i * scales.size(), scales.size()),
            {scales.data(), scales.size()});
      for (const float scale : std::span<const float>(scales.data(), scales.size()))
        if (!std::isfinite(scale))
          throw bad_input("stream '{}', row {}: {} is not finite", kScales, first + i, scale);
      for (size_t head = 0; head < heads; ++head)
        unpack_bits(std::span(packed).subspan((i * heads + head) * head_bytes_, head_bytes_), 0, bits_, 0,
                    codes.row(head));
      dequantize_symmetric(codes, group_, bits_, scales, {out.row(i).data(), heads, dims_});
      if (rotates_) hadamard(out.row(i), power_of_two_in(dims_));
    }
  });
}

std::unique_ptr<Options> make_options() { return std::make_unique<Q4Options>(); }

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  return std::make_unique<Q4Codec>(dynamic_cast<const Q4Options&>(options), context);
}

}  // namespace

CodecEntry q4_codec() {
  return {.name = "q4",
          .summary = "yardstick: 4-bit levels in groups of 32 channels, after a Hadamard transform if wanted",
          .capabilities = {},
          .book_type = "",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
