// The codec `kivi`: the baseline of Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache" (ICML 2024). Keys are
// quantized per channel, over `key-group` consecutive tokens; values per token, over `value-group` channels of one head (the paper says
// "per token"; its published code cuts the token's channels into groups of the same 32, and so does this).
//
// Window (the paper calls it residual). The newest tokens wait exactly, as 16-bit floats, in the stream "tail". As
// soon as it holds window + key-group tokens, the oldest key-group of them are quantized, keys and values alike. A
// document of T tokens thus has Q = key-group * floor((T - window) / key-group) quantized tokens (0 if T < window), whatever
// the chunks it came in. With window -1 at most a 64th of the document and 128 tokens are kept, except for those that
// are short of a group: w = min(128, floor(T / 64)), Q = key-group * min(ceil((T - w) / key-group), floor(T / key-group)).
//
// Streams of one document, H heads of d dimensions, b bits:
//   codes   u8 [Q][H][ceil(d*b/8)]   per head d codes of b bits, highest bit first, padded with zeros
//   scales  scale-type, keys [Q/key-group][H][d], values [Q][H][ceil(d/value-group)]
//   zeros   like scales: the value of code 0; a value is zeros + code * scales
//   tail    bf16|f16 [T-Q][H][d]     the newest tokens
//
// KIVI pays whole bits and its group metadata: 2 bits in groups of 32 with f16 scales are 3 bits per value. Where that would not be smaller
// than 16 bits (very small heads or groups), nothing is ever quantized: the tail holds all.
#include <algorithm>
#include <cmath>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/quant/grouped.hpp"

namespace kvcodec {
namespace {

constexpr int64_t kMinKiviBits = 1, kMaxKiviBits = 8;
constexpr int64_t kPaperWindow = 128;

struct KiviOptions final : BitOptions {
  int64_t key_group = 32;    ///< the paper's group size
  int64_t value_group = 32;  ///< KIVI's code uses the same size along the channels of values
  int64_t window = kUsualWindow;
  int64_t sink = kBestSink;  ///< the paper has none
  DType scale_type = DType::f16;

  KiviOptions() : BitOptions(2) {}  // KIVI's headline setting; 4 is its careful one

  std::vector<OptionField> fields() override {
    return {
        {"bits", "bits per value", &bits, kMinKiviBits, kMaxKiviBits},
        layer_bits_field(),
        {"key-group", "tokens that share one scale per key channel, and that are quantized together",
         &key_group, 1, 65536},
        {"value-group", "channels of a token's head that share one scale of the values", &value_group, 1,
         65536},
        {"window",
         "newest tokens kept exactly; -1: at most a 64th of the document and at most 128, and tokens short of a group",
         &window, kUsualWindow, 1 << 24},
        sink_field(sink),
        {"scale-type", "type of scales and zero points", &scale_type, {}, {}, {"f16", "bf16", "f32"}}};
  }
};

constexpr std::string_view kKiviCodes = "codes", kKiviScales = "scales", kZeros = "zeros";

std::vector<std::byte> store_floats(DType type, std::span<const float> values) {
  if (type == DType::f32) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> bytes(values.size() * size_of(type));
  narrow(type, values, {reinterpret_cast<uint16_t*>(bytes.data()), values.size()});
  return bytes;
}

/// The form of codes of a shape.
struct KiviForm {
  DType storage, scale_type;
  bool by_channel;  // scales of keys
  unsigned bits;
  size_t key_group, value_group, heads, dims;
  int64_t window;
  size_t head_bytes;    // packed codes of one token's head
  size_t scale_tokens;  // tokens per row of scales
  size_t head_scales;   // scales of one head in a row of scales

  KiviForm(const KiviOptions& options, unsigned bits_of_values, DType type, const GroupShape& shape)
      : storage(type),
        scale_type(options.scale_type),
        by_channel(shape.side == Side::key),
        bits(bits_of_values),
        key_group(as_size(options.key_group)),
        value_group(as_size(options.value_group)),
        heads(shape.all_heads()),
        dims(shape.dims()),
        window(options.window),
        head_bytes(packed_bytes(dims, bits)),
        scale_tokens(by_channel ? key_group : 1),
        head_scales(by_channel ? dims : (dims + value_group - 1) / value_group) {}

  size_t width() const { return heads * dims; }
  size_t row_bytes() const { return heads * head_bytes; }
  size_t row_scales() const { return heads * head_scales; }
  size_t group_scales() const { return key_group / scale_tokens * row_scales(); }
  /// True if quantized tokens are smaller than exact ones.
  bool pays() const {
    return key_group * row_bytes() + 2 * group_scales() * size_of(scale_type) <
           key_group * width() * size_of(storage);
  }

  uint64_t quantized_of(uint64_t tokens) const {
    const uint64_t kept = exact_tokens_of(window, kPaperWindow, tokens);
    if (!pays() || tokens < kept) return 0;
    // Tokens short of a group are among the usual window, and beside one that was asked for.
    const uint64_t groups = (tokens - kept + (window == kUsualWindow ? key_group - 1 : 0)) / key_group;
    return std::min(groups, tokens / key_group) * key_group;
  }

  /// Tokens of a document. Throws Error(bad_input) if its streams disagree.
  uint64_t tokens(const StreamReader& document) const {
    const uint64_t quantized = document.rows(kKiviCodes), waiting = document.rows(kTail);
    for (const std::string_view stream : {kKiviScales, kZeros})
      if (document.rows(stream) != quantized / scale_tokens)
        throw bad_input("stream '{}' has {} rows; {} quantized tokens have {}", stream, document.rows(stream),
                        quantized, quantized / scale_tokens);
    const uint64_t total = checked_add(quantized, waiting);
    if (quantized != quantized_of(total))
      throw bad_input("{} quantized and {} exact tokens; of {} tokens {} are quantized", quantized, waiting,
                      total, quantized_of(total));
    return total;
  }

  /// Calls body(first code, codes, first byte, bytes) for the runs of a token's codes that are packed without
  /// padding between: all heads at once where a head's codes fill whole bytes, else head by head.
  template <class Body>
  void for_each_run(const Body& body) const {
    if (dims * bits % 8 == 0) return body(0, width(), 0, row_bytes());
    for (size_t head = 0; head < heads; ++head) body(head * dims, dims, head * head_bytes, head_bytes);
  }
  void unpack_token(std::span<const uint8_t> packed, std::span<uint8_t> codes) const {
    for_each_run([&](size_t code, size_t count, size_t byte, size_t bytes) {
      unpack_bits(packed.subspan(byte, bytes), 0, bits, 0, codes.subspan(code, count));
    });
  }

  /// Quantizes a group of n tokens, rows: (n, width). packed: n * row_bytes; scales, zeros: all of the group's.
  void encode_group(MatrixView<const float> rows, std::span<uint8_t> packed, std::span<float> scales,
                    std::span<float> zeros) const {
    Matrix<uint8_t> codes(rows.rows(), width());
    if (by_channel) {
      quantize_columns(rows, bits, scale_type, scales, zeros, codes);
    } else {
      const size_t all_heads = rows.rows() * heads;  // of all tokens, one after the other
      quantize_rows({rows.data(), all_heads, dims}, value_group, bits, scale_type,
                    {{scales.data(), all_heads, head_scales},
                     {zeros.data(), all_heads, head_scales},
                     {codes.data(), all_heads, dims}});
    }
    for (size_t token = 0; token < rows.rows(); ++token)
      for_each_run([&](size_t code, size_t count, size_t byte, size_t bytes) {
        pack_bits(std::as_const(codes).row(token).subspan(code, count), bits, 0,
                  packed.subspan(token * row_bytes() + byte, bytes));
      });
  }
};

class KiviView final : public DocumentView {
 public:
  KiviView(const KiviForm& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), form_(form) {}

  std::vector<uint64_t> symbol_counts() const override {
    std::vector<uint64_t> total(size_t{1} << form_.bits);
    std::vector<uint8_t> codes(form_.width());
    for (uint64_t first = 0; first < quantized(); first += form_.key_group) {  // Q is a multiple of key_group
      const auto packed = document().read<uint8_t>(kKiviCodes, first, form_.key_group, form_.row_bytes());
      for (size_t i = 0; i < form_.key_group; ++i) {
        form_.unpack_token(std::span(packed).subspan(i * form_.row_bytes(), form_.row_bytes()), codes);
        for (const uint8_t code : codes) ++total[code];
      }
    }
    return total;
  }

 protected:
  uint64_t take_in() override { return form_.tokens(document()); }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    decode_with_tail(form_.storage, document(), quantized(), first, out,
                     [&](uint64_t at, MatrixView<float> rows) { decode_quantized(at, rows); });
  }
  /// Tokens that share scales.
  Block block_of(uint64_t token) const override {
    return equal_block(token, form_.scale_tokens, quantized());
  }

 private:
  uint64_t quantized() const { return document().rows(kKiviCodes); }
  /// Tokens [first, first + out.rows()), all of them quantized.
  void decode_quantized(uint64_t first, MatrixView<float> out) const {
    const size_t width = form_.width(), heads = form_.heads;
    const auto packed = document().read<uint8_t>(kKiviCodes, first, out.rows(), form_.row_bytes());
    const uint64_t first_scale = first / form_.scale_tokens;
    const uint64_t scale_rows = (first + out.rows() - 1) / form_.scale_tokens + 1 - first_scale;
    const auto scales = read_scales(kKiviScales, first_scale, scale_rows);
    const auto zeros = read_scales(kZeros, first_scale, scale_rows);
    constexpr size_t kPieceTokens = 16;
    parallel_for(out.rows(), kPieceTokens, [&](size_t from, size_t to, int) {
      std::vector<uint8_t> codes(width);
      for (size_t i = from; i < to; ++i) {
        form_.unpack_token(std::span(packed).subspan(i * form_.row_bytes(), form_.row_bytes()), codes);
        const size_t place = ((first + i) / form_.scale_tokens - first_scale) * form_.row_scales();
        if (form_.by_channel)
          dequantize_columns({codes.data(), 1, width}, std::span(scales).subspan(place, width),
                             std::span(zeros).subspan(place, width), {out.row(i).data(), 1, width});
        else
          dequantize_rows({codes.data(), heads, form_.dims}, form_.value_group,
                          {scales.data() + place, heads, form_.head_scales},
                          {zeros.data() + place, heads, form_.head_scales},
                          {out.row(i).data(), heads, form_.dims});
      }
    });
  }

  std::vector<float> read_scales(std::string_view stream, uint64_t first, uint64_t count) const {
    std::vector<float> values(count * form_.row_scales());
    if (form_.scale_type == DType::f32)
      document().read(stream, first, count, std::as_writable_bytes(std::span(values)));
    else
      widen(form_.scale_type, document().read<uint16_t>(stream, first, count, form_.row_scales()), values);
    const bool may_fall = stream == kZeros;
    const auto bad = std::ranges::find_if(
        values, [&](float value) { return !std::isfinite(value) || (value < 0 && !may_fall); });
    if (bad != values.end())
      throw bad_input("stream '{}', row {}: {} is {}", stream,
                      first + static_cast<uint64_t>(bad - values.begin()) / form_.row_scales(), *bad,
                      std::isfinite(*bad) ? "negative" : "not finite");
    return values;
  }

  KiviForm form_;
};

class KiviCodec final : public Codec {
 public:
  KiviCodec(const KiviOptions& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        layer_bits_(options, kMinKiviBits, kMaxKiviBits, context.num_layers) {}

  Record parameters() const override { return KiviOptions(options_).record(); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const KiviForm form = form_of(shape);
    const std::vector<uint64_t> scale_row{form.heads, form.head_scales};
    return {{std::string(kKiviCodes), DType::u8, {form.heads, form.head_bytes}, Category::payload},
            {std::string(kKiviScales), form.scale_type, scale_row, Category::scales},
            {std::string(kZeros), form.scale_type, scale_row, Category::scales},
            exact_stream(kTail, shape, storage_)};
  }

  /// 16-bit rows (2 bytes a value), codes and scales (fewer than 2, or nothing is quantized), scales as floats (fewer than 4).
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 8; }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const KiviForm form = form_of(shape);
    const uint64_t quantized =
        form.quantized_of(form.tokens(document) + rows.rows()) - document.rows(kKiviCodes);
    append_to_tail(to_storage(storage_, rows), rows.cols(), quantized, document,
                   [&](std::span<const uint16_t> halves) { quantize(form, halves, document); });
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<KiviView>(form_of(shape), shape, document);
  }

 private:
  KiviForm form_of(const GroupShape& shape) const {
    return {options_, layer_bits_.of(shape.first_layer(), shape.side), storage_, shape};
  }

  /// halves: whole groups of tokens.
  static void quantize(const KiviForm& form, std::span<const uint16_t> halves, StreamStore& document) {
    const size_t group_values = form.key_group * form.width(), groups = halves.size() / group_values;
    const size_t group_bytes = form.key_group * form.row_bytes(), group_scales = form.group_scales();
    const uint64_t before = document.rows(kKiviCodes);
    std::vector<uint8_t> packed(groups * group_bytes);
    std::vector<float> scales(groups * group_scales), zeros(scales.size());
    parallel_for(groups, 1, [&](size_t begin, size_t end, int) {
      Matrix<float> tokens(form.key_group, form.width());
      for (size_t i = begin; i < end; ++i) {
        const uint64_t first = before + i * form.key_group;
        // The 16-bit values are quantized, whether they waited in the tail or came just now.
        widen(form.storage, halves.subspan(i * group_values, group_values), {tokens.data(), tokens.size()});
        with_context(fmt::format("tokens {} to {}", first, first + form.key_group - 1), [&] {
          form.encode_group(tokens, std::span(packed).subspan(i * group_bytes, group_bytes),
                            std::span(scales).subspan(i * group_scales, group_scales),
                            std::span(zeros).subspan(i * group_scales, group_scales));
        });
      }
    });
    document.append_values<uint8_t>(kKiviCodes, packed);
    document.append(kKiviScales, store_floats(form.scale_type, scales));
    document.append(kZeros, store_floats(form.scale_type, zeros));
  }

  KiviOptions options_;
  DType storage_;
  LayerBits layer_bits_;
};

}  // namespace

CodecEntry kivi_codec() {
  return {.name = "kivi",
          .summary = "baseline: round to nearest, keys per channel and values per token, newest tokens exact",
          .make_options = [] { return std::make_unique<KiviOptions>(); },
          .make = make_behind_sink<KiviOptions, KiviCodec>,
          .paper = {{"window", kPaperWindow}, {"sink", int64_t{0}}},
          .dial = {.sets = {"bits", "layer-bits"}, .lowest = 1, .highest = 8, .turn = BitOptions::turn},
          .promise = 4,
          .on_demand = false,
          .place = 6};
}

}  // namespace kvcodec
