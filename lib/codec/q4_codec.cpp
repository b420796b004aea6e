// The codec `q4`: levels of 4 bits (or 2 to 8) with one f16 scale for each group of 32 channels of a token's
// head, after a Hadamard transform of the head if wanted: the plain quantizer that every method is to beat. A baseline.
//
// Tokens are coded one by one, so they decode alone, and nothing waits but what a window asks for. Heads whose size is
// no power of two are transformed in pieces of the largest power of two that divides it.
//
// Streams of one document, H heads of d dimensions, b bits, Q tokens (all but the first `sink` and the newest `window`)
//   codes   u8  [Q][H][ceil(d*b/8)]      levels + 2^(b-1), highest bit first, padded with zeros
//   scales  f16 [Q][H][ceil(d/group)]    signed
//   sink, tail                           where there is a sink or a window: lib/codec/exact_rows.hpp
//   exact   bf16|f16 [T][H][d]           instead of all, where codes and scales would not be smaller than 16 bits
#include <cmath>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/linalg/hadamard.hpp"
#include "lib/quant/grouped.hpp"

namespace kvcodec {
namespace {

/// The transform of each head before it is quantized.
enum class Rotation : uint8_t { none, hadamard };
constexpr auto names_of(Rotation) { return std::to_array<std::string_view>({"none", "hadamard"}); }

constexpr int64_t kMinQ4Bits = 2, kMaxQ4Bits = 8;

struct Q4Options final : BitOptions {
  int64_t group = 32;                    ///< what low-bit formats for weights use
  Rotation rotate = Rotation::hadamard;  ///< costs nothing, and gains wherever channels differ
  int64_t sink = kBestSink, window = 0;
  Centered center = Centered::automatic;

  Q4Options() : BitOptions(4) {}
  /// One channel far from 0 makes the scale of its group coarse, and a rotation spreads it over all.
  static bool gains_by_center() { return true; }

  std::vector<OptionField> fields() override {
    return {{"bits", "bits per value", &bits, kMinQ4Bits, kMaxQ4Bits},
            layer_bits_field(),
            {"group", "channels of a token's head that share one scale", &group, 1, 65536},
            {"rotate",
             "transform of each head before it is quantized: hadamard spreads outliers over all channels",
             &rotate},
            sink_field(sink),
            {"window", "newest tokens of a document kept exactly", &window, 0, 1 << 24},
            center_field(center)};
  }
};

constexpr std::string_view kQ4Codes = "codes", kQ4Scales = "scales", kQ4Exact = "exact";
constexpr DType kQ4ScaleType = DType::f16;

/// Tokens per piece of parallel work.
constexpr size_t kQ4PieceTokens = 16;

struct Q4Form {
  DType storage;
  unsigned bits;
  size_t group, dims, head_bytes, head_scales;
  Rotation rotation;
  bool has_ends;
  ExactEnds ends;

  Q4Form(const Q4Options& options, unsigned bits_of_values, DType type, const GroupShape& shape)
      : storage(type),
        bits(bits_of_values),
        group(as_size(options.group)),
        dims(shape.dims()),
        head_bytes(packed_bytes(dims, bits)),
        head_scales((dims + group - 1) / group),
        rotation(options.rotate),
        has_ends(options.sink > 0 || options.window > 0),
        ends(type, static_cast<uint64_t>(options.sink), options.window) {}

  /// True if codes and scales are smaller than the values.
  bool pays() const { return head_bytes + head_scales * size_of(kQ4ScaleType) < dims * size_of(storage); }
};

class Q4View final : public DocumentView {
 public:
  Q4View(const Q4Form& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), form_(form) {}

 protected:
  uint64_t take_in() override {
    if (!form_.pays()) return document().rows(kQ4Exact);
    const uint64_t coded = document().rows(kQ4Codes), scaled = document().rows(kQ4Scales);
    if (coded != scaled)
      throw bad_input("stream '{}' has {} rows; '{}' has {}", kQ4Scales, scaled, kQ4Codes, coded);
    return form_.has_ends ? form_.ends.tokens(document(), coded) : coded;
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    if (!form_.pays()) return read_exact(kQ4Exact, form_.storage, document(), first, out);
    if (!form_.has_ends) return decode_quantized(first, out);
    form_.ends.decode(document(), document().rows(kQ4Codes), first, out,
                      [&](uint64_t at, MatrixView<float> rows) { decode_quantized(at, rows); });
  }

 private:
  /// Tokens [first, first + out.rows()) of those that are quantized.
  void decode_quantized(uint64_t first, MatrixView<float> out) const {
    const size_t heads = shape().width() / form_.dims;
    const auto packed = document().read<uint8_t>(kQ4Codes, first, out.rows(), heads * form_.head_bytes);
    const auto stored = document().read<uint16_t>(kQ4Scales, first, out.rows(), heads * form_.head_scales);
    parallel_for(out.rows(), kQ4PieceTokens, [&](size_t begin, size_t end, int) {
      Matrix<float> scales(heads, form_.head_scales);
      Matrix<uint8_t> codes(heads, form_.dims);
      for (size_t i = begin; i < end; ++i) {
        widen(kQ4ScaleType, std::span(stored).subspan(i * scales.size(), scales.size()),
              {scales.data(), scales.size()});
        for (const float scale : std::span<const float>(scales.data(), scales.size()))
          if (!std::isfinite(scale))
            throw bad_input("stream '{}', row {}: {} is not finite", kQ4Scales, first + i, scale);
        for (size_t head = 0; head < heads; ++head)
          unpack_bits(std::span(packed).subspan((i * heads + head) * form_.head_bytes, form_.head_bytes), 0,
                      form_.bits, 0, codes.row(head));
        dequantize_symmetric(codes, form_.group, form_.bits, scales, {out.row(i).data(), heads, form_.dims});
        if (form_.rotation == Rotation::hadamard) hadamard(out.row(i), power_of_two_in(form_.dims));
      }
    });
  }

  Q4Form form_;
};

class Q4Codec final : public Codec {
 public:
  Q4Codec(const Q4Options& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        layer_bits_(options, kMinQ4Bits, kMaxQ4Bits, context.num_layers) {}

  Record parameters() const override { return Q4Options(options_).record(); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const Q4Form form = form_of(shape);
    if (!form.pays()) return {exact_stream(kQ4Exact, shape, storage_)};
    const uint64_t heads = shape.all_heads();
    std::vector<StreamSpec> specs{
        {std::string(kQ4Codes), DType::u8, {heads, form.head_bytes}, Category::payload},
        {std::string(kQ4Scales), kQ4ScaleType, {heads, form.head_scales}, Category::scales}};
    if (form.has_ends) {
      specs.push_back(form.ends.sink_stream(shape));
      specs.push_back(form.ends.tail_stream(shape));
    }
    return specs;
  }

  /// 16-bit rows, twice where there are ends (4 bytes a value), floats of scales, codes and stored scales (together fewer than 6).
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 10; }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const Q4Form form = form_of(shape);
    if (!form.pays()) return document.append_values<uint16_t>(kQ4Exact, to_storage(form.storage, rows));
    const auto quantize_halves = [&](std::span<const uint16_t> halves) {
      quantize(shape, form, halves, document);
    };
    if (!form.has_ends) return quantize_halves(to_storage(form.storage, rows));
    form.ends.append(rows, form.ends.tokens(document, document.rows(kQ4Codes)), document, quantize_halves);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<Q4View>(form_of(shape), shape, document);
  }

 private:
  Q4Form form_of(const GroupShape& shape) const {
    return {options_, layer_bits_.of(shape.first_layer(), shape.side), storage_, shape};
  }
  /// halves: whole tokens.
  void quantize(const GroupShape& shape, const Q4Form& form, std::span<const uint16_t> halves,
                StreamStore& document) const {
    const size_t heads = shape.all_heads();
    // A side that is coded has values. NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
    const size_t tokens = halves.size() / shape.width();
    std::vector<uint8_t> packed(tokens * heads * form.head_bytes);
    std::vector<uint16_t> stored(tokens * heads * form.head_scales);
    parallel_for(tokens, kQ4PieceTokens, [&](size_t begin, size_t end, int) {
      Matrix<float> values(heads, form.dims), scales(heads, form.head_scales);
      Matrix<uint8_t> codes(heads, form.dims);
      for (size_t i = begin; i < end; ++i) {
        const std::span<float> all(values.data(), values.size());
        widen(form.storage, std::span(halves).subspan(i * values.size(), values.size()), all);
        if (form.rotation == Rotation::hadamard) hadamard(all, power_of_two_in(form.dims));
        with_context([&] { return fmt::format("row {}", i); },
                     [&] { quantize_symmetric(values, form.group, form.bits, kQ4ScaleType, scales, codes); });
        narrow(kQ4ScaleType, {scales.data(), scales.size()},
               std::span(stored).subspan(i * scales.size(), scales.size()));
        for (size_t head = 0; head < heads; ++head)
          pack_bits(std::as_const(codes).row(head), form.bits, 0,
                    std::span(packed).subspan((i * heads + head) * form.head_bytes, form.head_bytes));
      }
    });
    document.append_values<uint8_t>(kQ4Codes, packed);
    document.append_values<uint16_t>(kQ4Scales, stored);
  }

  Q4Options options_;
  DType storage_;
  LayerBits layer_bits_;
};

}  // namespace

CodecEntry q4_codec() {
  return {.name = "q4",
          .summary = "baseline: 4-bit levels in groups of 32 channels, after a rotation of heads if wanted",
          .make_options = [] { return std::make_unique<Q4Options>(); },
          .make = make_centered<Q4Options, make_checked<Q4Options, Q4Codec>>,
          .before_rope = true,
          .dial = {.sets = {"bits", "layer-bits"}, .lowest = 2, .highest = 8, .turn = BitOptions::turn},
          .promise = 3,
          .on_demand = false,
          .place = 7};
}

}  // namespace kvcodec
