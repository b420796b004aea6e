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

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/linalg/hadamard.hpp"
#include "lib/quant/symmetric.hpp"

namespace kvcodec {
namespace {

/// What is done to each head before it is quantized.
enum class Rotation : uint8_t { none, hadamard };
constexpr auto names_of(Rotation) { return std::to_array<std::string_view>({"none", "hadamard"}); }

struct Q4Options final : Options {
  int64_t bits = 4;
  int64_t group = 32;  ///< what low-bit formats for weights use
  Rotation rotate = Rotation::none;

  std::vector<OptionField> fields() override {
    return {{"bits", "bits per value", &bits, 2, 8},
            {"group", "channels of a token's head that share one scale", &group, 1, 65536},
            {"rotate",
             "transform of each head before it is quantized: hadamard spreads outliers over all channels",
             &rotate}};
  }
};

constexpr std::string_view kCodes = "codes", kScales = "scales", kExact = "exact";
constexpr DType kScaleType = DType::f16;

/// Tokens per piece of parallel work.
constexpr size_t kPieceTokens = 16;

/// What codes of a shape look like.
struct Q4Form {
  DType storage;
  unsigned bits;
  size_t group, dims, head_bytes, head_scales;
  bool rotates;

  Q4Form(const Q4Options& options, DType type, const GroupShape& shape)
      : storage(type),
        bits(static_cast<unsigned>(options.bits)),
        group(static_cast<size_t>(options.group)),
        dims(static_cast<size_t>(shape.head_dim)),
        head_bytes(packed_bytes(dims, bits)),
        head_scales((dims + group - 1) / group),
        rotates(options.rotate == Rotation::hadamard) {}

  /// Whether codes and scales are smaller than the values.
  bool pays() const { return head_bytes + head_scales * size_of(kScaleType) < dims * size_of(storage); }
};

class Q4View final : public DocumentView {
 public:
  Q4View(const Q4Form& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), form_(form) {}

 protected:
  uint64_t take_in() override {
    if (!form_.pays()) return document().rows(kExact);
    const uint64_t coded = document().rows(kCodes), scaled = document().rows(kScales);
    if (coded != scaled)
      throw bad_input("stream '{}' has {} rows; '{}' has {}", kScales, scaled, kCodes, coded);
    return coded;
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override;

 private:
  Q4Form form_;
};

class Q4Codec final : public Codec {
 public:
  Q4Codec(const Q4Options& options, const CodecContext& context)
      : options_(options), storage_(context.storage) {}

  Record parameters() const override {
    Q4Options copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const Q4Form form = form_of(shape);
    if (!form.pays()) return {exact_stream(std::string(kExact), shape, storage_, Category::exempt)};
    const uint64_t heads = shape.width() / form.dims;
    return {{std::string(kCodes), DType::u8, {heads, form.head_bytes}, Category::payload},
            {std::string(kScales), kScaleType, {heads, form.head_scales}, Category::scales}};
  }

  /// 16-bit rows (2 bytes a value), floats of scales, codes and stored scales (together fewer than 6).
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 8; }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<Q4View>(form_of(shape), shape, document);
  }

 private:
  Q4Form form_of(const GroupShape& shape) const { return {options_, storage_, shape}; }

  Q4Options options_;
  DType storage_;
};

void Q4Codec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_width(shape, rows.cols());
  const Q4Form form = form_of(shape);
  const std::vector<uint16_t> halves = to_storage(form.storage, rows);
  if (!form.pays()) return document.append_values<uint16_t>(kExact, halves);
  const size_t heads = shape.width() / form.dims;
  std::vector<uint8_t> packed(rows.rows() * heads * form.head_bytes);
  std::vector<uint16_t> stored(rows.rows() * heads * form.head_scales);
  parallel_for(rows.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    Matrix<float> values(heads, form.dims), scales(heads, form.head_scales);
    Matrix<uint8_t> codes(heads, form.dims);
    for (size_t i = begin; i < end; ++i) {
      const std::span<float> all(values.data(), values.size());
      widen(form.storage, std::span(halves).subspan(i * values.size(), values.size()), all);
      if (form.rotates) hadamard(all, power_of_two_in(form.dims));
      with_context(fmt::format("row {}", i),
                   [&] { quantize_symmetric(values, form.group, form.bits, kScaleType, scales, codes); });
      narrow(kScaleType, {scales.data(), scales.size()},
             std::span(stored).subspan(i * scales.size(), scales.size()));
      for (size_t head = 0; head < heads; ++head)
        pack_bits(std::as_const(codes).row(head), form.bits, 0,
                  std::span(packed).subspan((i * heads + head) * form.head_bytes, form.head_bytes));
    }
  });
  document.append_values<uint8_t>(kCodes, packed);
  document.append_values<uint16_t>(kScales, stored);
}

void Q4View::decode_rows(uint64_t first, MatrixView<float> out) const {
  if (!form_.pays()) return read_exact(kExact, form_.storage, document(), first, out);
  const size_t heads = shape().width() / form_.dims;
  const auto packed = document().read<uint8_t>(kCodes, first, out.rows(), heads * form_.head_bytes);
  const auto stored = document().read<uint16_t>(kScales, first, out.rows(), heads * form_.head_scales);
  parallel_for(out.rows(), kPieceTokens, [&](size_t begin, size_t end, int) {
    Matrix<float> scales(heads, form_.head_scales);
    Matrix<uint8_t> codes(heads, form_.dims);
    for (size_t i = begin; i < end; ++i) {
      widen(kScaleType, std::span(stored).subspan(i * scales.size(), scales.size()),
            {scales.data(), scales.size()});
      for (const float scale : std::span<const float>(scales.data(), scales.size()))
        if (!std::isfinite(scale))
          throw bad_input("stream '{}', row {}: {} is not finite", kScales, first + i, scale);
      for (size_t head = 0; head < heads; ++head)
        unpack_bits(std::span(packed).subspan((i * heads + head) * form_.head_bytes, form_.head_bytes), 0,
                    form_.bits, 0, codes.row(head));
      dequantize_symmetric(codes, form_.group, form_.bits, scales, {out.row(i).data(), heads, form_.dims});
      if (form_.rotates) hadamard(out.row(i), power_of_two_in(form_.dims));
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
          .capabilities = {.any_shape = true},
          .book_type = "",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
