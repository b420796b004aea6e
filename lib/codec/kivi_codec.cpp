// The codec `kivi`: the baseline of Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV
// Cache" (ICML 2024). Keys are quantized per channel, over `key-group` consecutive tokens; values per token, over
// `value-group` channels of one head (the paper says "per token"; its published code cuts the token's
// channels into groups of the same 32, and so does this).
//
// Window (the paper calls it residual). The newest tokens wait exactly, as 16-bit floats, in the stream "tail". As soon as it holds
// window + key-group tokens, the oldest key-group of them are quantized, keys and values alike. A document of T
// tokens thus has Q = key-group * floor((T - window) / key-group) quantized tokens (0 if T < window), whatever
// the chunks it came in. With window -1 at most a 64th of the document and 128 tokens are kept, except for those that are short
// of a group: w = min(128, floor(T / 64)), Q = key-group * min(ceil((T - w) / key-group), floor(T / key-group)).
//
// Streams of one document, H heads of d dimensions, b bits:
//   codes   u8 [Q][H][ceil(d*b/8)]   per head d codes of b bits, highest bit first, padded with zeros
//   scales  scale-type, keys [Q/key-group][H][d], values [Q][H][ceil(d/value-group)]
//   zeros   like scales: the value of code 0; a value is zeros + code * scales
//   tail    bf16|f16 [T-Q][H][d]     the newest tokens
//
// KIVI pays whole bits and its group metadata: 2 bits in groups of 32 with f16 scales are 3 bits per value.
// Where that would not be smaller than 16 bits (very small heads or groups), nothing is ever quantized: the
// tail holds all.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_ends.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/layer_numbers.hpp"
#include "lib/codec/sink_codec.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/quant/grouped.hpp"

namespace kvcodec {
namespace {

constexpr int64_t kLeastBits = 1, kMostBits = 8;
constexpr int64_t kPaperWindow = 128;

struct KiviOptions final : Options {
  int64_t bits = 2;          ///< KIVI's headline setting; 4 is its careful one
  std::string layer_bits;    ///< of each layer's keys and values
  int64_t key_group = 32;    ///< the paper's group size
  int64_t value_group = 32;  ///< KIVI's code uses the same size along the channels of values
  int64_t window = kUsualWindow;
  int64_t sink = kBestSink;  ///< the paper has none
  DType scale_type = DType::f16;

  std::vector<OptionField> fields() override {
    return {{"bits", "bits per value", &bits, kLeastBits, kMostBits},
            layer_bits_field(layer_bits),
            {"key-group", "tokens that share one scale per key channel, and that are quantized together",
             &key_group, 1, 65536},
            {"value-group", "channels of a token's head that share one scale of the values", &value_group, 1,
             65536},
            {.name = "window",
             .help = "newest tokens kept exactly; -1: at most a 64th of the document and at most 128, and "
                     "tokens short of a group",
             .target = &window,
             .min = kUsualWindow,
             .max = 1 << 24},
            sink_field(sink),
            {"scale-type", "type of scales and zero points", &scale_type, {}, {}, {"f16", "bf16", "f32"}}};
  }
};

constexpr std::string_view kCodes = "codes", kScales = "scales", kZeros = "zeros", kTail = "tail";

/// Sizes that follow from options and shape.
struct Layout {
  size_t heads = 0, head_dim = 0;
  size_t head_bytes = 0;    // packed codes of one token's head
  size_t scale_tokens = 0;  // tokens per row of scales
  size_t head_scales = 0;   // scales of one head in a row of scales
  bool pays = false;        // quantized tokens are smaller than exact ones

  size_t width() const { return heads * head_dim; }
  size_t row_bytes() const { return heads * head_bytes; }
  size_t row_scales() const { return heads * head_scales; }
};

std::vector<std::byte> store_floats(DType type, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  if (type == DType::f32) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    narrow(type, values, {reinterpret_cast<uint16_t*>(bytes.data()), values.size()});
  }
  return bytes;
}

/// What codes look like.
struct KiviForm {
  DType storage, scale_type;
  unsigned bits;
  size_t key_group, value_group;
  int64_t window;

  KiviForm(const KiviOptions& options, const CodecContext& context)
      : storage(context.storage),
        scale_type(options.scale_type),
        bits(static_cast<unsigned>(options.bits)),
        key_group(static_cast<size_t>(options.key_group)),
        value_group(static_cast<size_t>(options.value_group)),
        window(options.window) {}

  Layout layout_of(const GroupShape& shape) const;
  /// How many of a document's tokens are quantized.
  uint64_t quantized_of(uint64_t tokens, const Layout& layout) const {
    if (!layout.pays) return 0;
    const uint64_t kept = exact_tokens_of(window, kPaperWindow, tokens);
    if (tokens < kept) return 0;
    // Tokens short of a group are among the usual window, and beside one that was asked for.
    const uint64_t groups = (tokens - kept + (window == kUsualWindow ? key_group - 1 : 0)) / key_group;
    return std::min(groups, tokens / key_group) * key_group;
  }
  /// Tokens of a document. Throws Error(bad_input) if its streams disagree.
  uint64_t tokens(const Layout& layout, const StreamReader& document) const;
};

Layout KiviForm::layout_of(const GroupShape& shape) const {
  Layout layout;
  layout.heads = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads);
  layout.head_dim = static_cast<size_t>(shape.head_dim);
  layout.head_bytes = packed_bytes(layout.head_dim, bits);
  if (shape.side == Side::key) {
    layout.scale_tokens = key_group;
    layout.head_scales = layout.head_dim;
  } else {
    layout.scale_tokens = 1;
    layout.head_scales = (layout.head_dim + value_group - 1) / value_group;
  }
  const size_t exact = key_group * layout.width() * size_of(storage);
  const size_t scale_rows = key_group / layout.scale_tokens;
  layout.pays =
      key_group * layout.row_bytes() + 2 * scale_rows * layout.row_scales() * size_of(scale_type) < exact;
  return layout;
}

uint64_t KiviForm::tokens(const Layout& layout, const StreamReader& document) const {
  const uint64_t quantized = document.rows(kCodes), waiting = document.rows(kTail);
  for (const std::string_view stream : {kScales, kZeros})
    if (document.rows(stream) != quantized / layout.scale_tokens)
      throw bad_input("stream '{}' has {} rows; {} quantized tokens have {}", stream, document.rows(stream),
                      quantized, quantized / layout.scale_tokens);
  const uint64_t total = checked_add(quantized, waiting);
  if (quantized != quantized_of(total, layout))
    throw bad_input("{} quantized and {} exact tokens; of {} tokens {} are quantized", quantized, waiting,
                    total, quantized_of(total, layout));
  return total;
}

class KiviView final : public DocumentView {
 public:
  KiviView(const KiviForm& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), form_(form), layout_(form.layout_of(shape)) {}

  std::vector<uint64_t> symbol_counts() const override;

 protected:
  uint64_t take_in() override { return form_.tokens(layout_, document()); }
  void decode_rows(uint64_t first, MatrixView<float> out) const override;
  /// What shares scales.
  Block block_of(uint64_t token) const override {
    return equal_block(token, layout_.scale_tokens, quantized());
  }

 private:
  uint64_t quantized() const { return document().rows(kCodes); }
  void decode_quantized(uint64_t first, MatrixView<float> out) const;
  std::vector<float> read_scales(std::string_view stream, uint64_t first, uint64_t count) const;

  KiviForm form_;
  Layout layout_;
};

class KiviCodec final : public Codec {
 public:
  KiviCodec(const KiviOptions& options, const CodecContext& context)
      : options_(options),
        form_(options, context),
        layer_bits_("layer-bits", options.layer_bits, options.bits, kLeastBits, kMostBits,
                    context.num_layers) {}

  Record parameters() const override {
    KiviOptions copy = options_;
    return without_empty(to_record(copy), "layer-bits");
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const Layout layout = form(shape).layout_of(shape);
    const std::vector<uint64_t> scale_row{layout.heads, layout.head_scales};
    return {{std::string(kCodes), DType::u8, {layout.heads, layout.head_bytes}, Category::payload},
            {std::string(kScales), form_.scale_type, scale_row, Category::scales},
            {std::string(kZeros), form_.scale_type, scale_row, Category::scales},
            exact_stream(std::string(kTail), shape, form_.storage, Category::exempt)};
  }

  /// 16-bit rows (2 bytes a value), codes and scales (fewer than 2, or nothing is quantized), scales as
  /// floats (fewer than 4).
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 8; }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<KiviView>(form(shape), shape, document);
  }

 private:
  KiviForm form(const GroupShape& shape) const {
    KiviForm form = form_;
    form.bits = static_cast<unsigned>(layer_bits_.of(shape.first_layer, shape.side));
    return form;
  }

  KiviOptions options_;
  KiviForm form_;
  LayerNumbers layer_bits_;
};

/// Calls body(first code, codes, first byte, bytes) for the runs of a token's codes that are packed without
/// padding between: all heads at once where a head's codes fill whole bytes, else head by head.
template <class Body>
void for_each_run(const Layout& layout, unsigned bits, const Body& body) {
  if (layout.head_dim * bits % 8 == 0) return body(0, layout.width(), 0, layout.row_bytes());
  for (size_t head = 0; head < layout.heads; ++head)
    body(head * layout.head_dim, layout.head_dim, head * layout.head_bytes, layout.head_bytes);
}

/// Quantizes a group of n tokens, rows: (n, width). packed: n * row_bytes; scales, zeros: all of the
/// group's.
void encode_group(const KiviForm& form, Side side, const Layout& layout, MatrixView<const float> rows,
                  std::span<uint8_t> packed, std::span<float> scales, std::span<float> zeros) {
  Matrix<uint8_t> codes(rows.rows(), layout.width());
  if (side == Side::key) {
    quantize_columns(rows, form.bits, form.scale_type, scales, zeros, codes);
  } else {
    const size_t heads = rows.rows() * layout.heads;  // of all tokens, one after the other
    quantize_rows({rows.data(), heads, layout.head_dim}, form.value_group, form.bits, form.scale_type,
                  {scales.data(), heads, layout.head_scales}, {zeros.data(), heads, layout.head_scales},
                  {codes.data(), heads, layout.head_dim});
  }
  for (size_t token = 0; token < rows.rows(); ++token)
    for_each_run(layout, form.bits, [&](size_t code, size_t count, size_t byte, size_t bytes) {
      pack_bits(codes.row(token).subspan(code, count), form.bits, 0,
                packed.subspan(token * layout.row_bytes() + byte, bytes));
    });
}

void KiviCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_width(shape, rows.cols());
  const KiviForm form = this->form(shape);
  const Layout layout = form.layout_of(shape);
  const size_t width = layout.width();
  const uint64_t total = form.tokens(layout, document) + rows.rows();
  const uint64_t waiting = document.rows(kTail), quantized = document.rows(kCodes);
  const std::vector<uint16_t> added = to_storage(form.storage, rows);
  const size_t groups = (form.quantized_of(total, layout) - quantized) / form.key_group;
  if (groups == 0) return document.append_values<uint16_t>(kTail, added);

  std::vector<uint16_t> queue =
      document.read<uint16_t>(kTail, 0, waiting, width);  // all tokens not yet quantized
  queue.insert(queue.end(), added.begin(), added.end());
  const size_t count = groups * form.key_group;
  const size_t group_scales = form.key_group / layout.scale_tokens * layout.row_scales();
  std::vector<uint8_t> packed(count * layout.row_bytes());
  std::vector<float> scales(groups * group_scales), zeros(scales.size());
  parallel_for(groups, 1, [&](size_t begin, size_t end, int) {
    Matrix<float> tokens_of_group(form.key_group, width);
    for (size_t i = begin; i < end; ++i)
      with_context(fmt::format("tokens {} to {}", quantized + i * form.key_group,
                               quantized + (i + 1) * form.key_group - 1),
                   [&] {
                     // What is quantized are the 16-bit values, whether they waited in the tail or came just now.
                     widen(form.storage,
                           std::span(queue).subspan(i * form.key_group * width, form.key_group * width),
                           {tokens_of_group.data(), tokens_of_group.size()});
                     encode_group(form, shape.side, layout, tokens_of_group,
                                  std::span(packed).subspan(i * form.key_group * layout.row_bytes(),
                                                            form.key_group * layout.row_bytes()),
                                  std::span(scales).subspan(i * group_scales, group_scales),
                                  std::span(zeros).subspan(i * group_scales, group_scales));
                   });
  });
  document.append_values<uint8_t>(kCodes, packed);
  document.append(kScales, store_floats(form.scale_type, scales));
  document.append(kZeros, store_floats(form.scale_type, zeros));
  document.truncate(kTail, 0);
  document.append_values(kTail, std::span<const uint16_t>(queue).subspan(count * width));
}

std::vector<float> KiviView::read_scales(std::string_view stream, uint64_t first, uint64_t count) const {
  std::vector<float> values;
  if (form_.scale_type == DType::f32) {
    values = document().read<float>(stream, first, count, layout_.row_scales());
  } else {
    const auto halves = document().read<uint16_t>(stream, first, count, layout_.row_scales());
    values.resize(halves.size());
    widen(form_.scale_type, halves, values);
  }
  const bool may_fall = stream == kZeros;
  const auto bad = std::find_if(values.begin(), values.end(), [&](float value) {
    return !std::isfinite(value) || (value < 0 && !may_fall);
  });
  if (bad != values.end())
    throw bad_input("stream '{}', row {}: {} is {}", stream,
                    first + static_cast<uint64_t>(bad - values.begin()) / layout_.row_scales(), *bad,
                    std::isfinite(*bad) ? "negative" : "not finite");
  return values;
}

/// Tokens [first, first + out.rows()), all of them quantized.
void KiviView::decode_quantized(uint64_t first, MatrixView<float> out) const {
  const uint64_t end = first + out.rows();
  const auto packed = document().read<uint8_t>(kCodes, first, out.rows(), layout_.row_bytes());
  const uint64_t first_scale = first / layout_.scale_tokens;
  const uint64_t scale_rows = (end + layout_.scale_tokens - 1) / layout_.scale_tokens - first_scale;
  const auto scales = read_scales(kScales, first_scale, scale_rows);
  const auto zeros = read_scales(kZeros, first_scale, scale_rows);
  constexpr size_t kPieceTokens = 16;
  parallel_for(out.rows(), kPieceTokens, [&](size_t from, size_t to, int) {
    Matrix<uint8_t> codes(layout_.heads, layout_.head_dim);
    for (size_t i = from; i < to; ++i) {
      for_each_run(layout_, form_.bits, [&](size_t code, size_t count, size_t byte, size_t bytes) {
        unpack_bits(std::span(packed).subspan(i * layout_.row_bytes() + byte, bytes), 0, form_.bits, 0,
                    std::span(codes.data() + code, count));
      });
      const size_t place = ((first + i) / layout_.scale_tokens - first_scale) * layout_.row_scales();
      if (shape().side == Side::key)
        dequantize_columns(
            {codes.data(), 1, layout_.width()}, std::span(scales).subspan(place, layout_.width()),
            std::span(zeros).subspan(place, layout_.width()), {out.row(i).data(), 1, layout_.width()});
      else
        dequantize_rows(codes, form_.value_group, {scales.data() + place, layout_.heads, layout_.head_scales},
                        {zeros.data() + place, layout_.heads, layout_.head_scales},
                        {out.row(i).data(), layout_.heads, layout_.head_dim});
    }
  });
}

void KiviView::decode_rows(uint64_t first, MatrixView<float> out) const {
  const uint64_t quantized = this->quantized();
  const size_t from_codes = first < quantized ? std::min<uint64_t>(out.rows(), quantized - first) : 0;
  if (from_codes > 0) decode_quantized(first, out.rows(0, from_codes));
  if (from_codes < out.rows())
    read_exact(kTail, form_.storage, document(), first + from_codes - quantized,
               out.rows(from_codes, out.rows() - from_codes));
}

std::vector<uint64_t> KiviView::symbol_counts() const {
  std::vector<uint64_t> total(size_t{1} << form_.bits);
  std::vector<uint8_t> codes(layout_.width());
  const uint64_t quantized = this->quantized();
  for (uint64_t first = 0; first < quantized; first += form_.key_group) {  // Q is a multiple of key_group
    const auto packed = document().read<uint8_t>(kCodes, first, form_.key_group, layout_.row_bytes());
    for (size_t i = 0; i < form_.key_group; ++i) {
      for_each_run(layout_, form_.bits, [&](size_t code, size_t count, size_t byte, size_t bytes) {
        unpack_bits(std::span(packed).subspan(i * layout_.row_bytes() + byte, bytes), 0, form_.bits, 0,
                    std::span(codes).subspan(code, count));
      });
      for (const uint8_t code : codes) ++total[code];
    }
  }
  return total;
}

std::unique_ptr<Options> make_kivi_options() { return std::make_unique<KiviOptions>(); }

std::unique_ptr<Codec> make_kivi(const Options& options, const CodecContext& context) {
  check_context(context);
  const auto& chosen = dynamic_cast<const KiviOptions&>(options);
  return keep_first_tokens(std::make_unique<KiviCodec>(chosen, context), chosen.sink, context.storage);
}

/// Sets the whole bits alone. By the fraction the caller (cli/search/goal.cpp) gives some layers and sides one bit more.
void turn_kivi(Options& options, double setting, bool) {
  dynamic_cast<KiviOptions&>(options).bits = static_cast<int64_t>(std::floor(setting));
}

}  // namespace

CodecEntry kivi_codec() {
  return {.name = "kivi",
          .summary = "baseline: round to nearest, keys per channel and values per token, newest tokens exact",
          .capabilities = {.any_shape = true},
          .book_type = "",
          .make_options = make_kivi_options,
          .make = make_kivi,
          .paper = {{"window", kPaperWindow}, {"sink", int64_t{0}}},
          .dial = {.sets = {"bits", "layer-bits"}, .least = 1, .most = 8, .turn = turn_kivi},
          .promise = 4,
          .on_demand = false,
          .place = 6};
}

}  // namespace kvcodec
