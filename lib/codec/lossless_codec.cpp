// The codec `lossless`: the 16-bit values bit for bit, entropy-coded with rANS: what any lossy codec is to be held against. A baseline.
//
// A value is cut in two symbols: sign and exponent (9 bits of bf16, 6 of f16), of which few are common, and the mantissa (7 or 10 bits),
// which is nearly noise. Each kind has a model of its own per layer and side, made in a first pass over all tokens that a file starts with
// and kept for whatever is appended; symbols it does not know are escaped. Blocks of `block` tokens decode alone; tokens short of a block
// wait exactly. The part of a block that would not be smaller coded is stored in whole bits: it has exactly their size.
//
// Streams of one document, H heads of d dimensions, blocks of n = block * H * d values
//   book       u8  shared        the two models (lib/entropy/rans.hpp), one behind the other
//   sizes      u32 [T/block][2]  bytes of each block in the two streams below
//   exponents  u8                symbols of signs and exponents: sign * 2^e + exponent
//   mantissas  u8                symbols of mantissas
//   places     u64               where blocks go on in exponents and mantissas (lib/codec/places.hpp)
//   tail       bf16|f16 [T mod block][H][d]
#include <algorithm>
#include <array>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/places.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/entropy/rans.hpp"

namespace kvcodec {
namespace {

struct LosslessOptions final : Options {
  int64_t block = 64;  ///< at 2 heads of 64 dimensions a segment's fixed cost is 0.05 bits per value

  std::vector<OptionField> fields() override {
    return {{"block", "tokens of a block, which is coded and decoded alone", &block, 1, 65536}};
  }
};

constexpr std::string_view kBook = "book", kSizes = "sizes";
constexpr std::array<std::string_view, 2> kParts = {"exponents", "mantissas"};

/// Values of a block from which blocks are made: its two sizes, and what whole bits lose to whole bytes, are then below half a percent.
constexpr size_t kMinBlock = 1024;

/// Blocks decoded at a time: rANS decodes four side by side.
constexpr size_t kPieceBlocks = 4;

/// The cut of a 16-bit float in two symbols.
struct Split {
  unsigned mantissa_bits;  ///< 7 or 10

  explicit Split(DType storage) : mantissa_bits(storage == DType::bf16 ? 7 : 10) {}
  unsigned bits(size_t part) const { return part == 0 ? 16 - mantissa_bits : mantissa_bits; }
  size_t alphabet(size_t part) const { return size_t{1} << bits(part); }
  uint16_t symbol(size_t part, uint16_t half) const {
    return static_cast<uint16_t>(part == 0 ? half >> mantissa_bits : half & ((1u << mantissa_bits) - 1));
  }
  /// True if this symbol of part 0 has an exponent of all ones: infinities and NaNs.
  bool infinite(uint16_t symbol) const {
    const auto ones = static_cast<uint16_t>((1u << (15 - mantissa_bits)) - 1);
    return (symbol & ones) == ones;
  }
};

class SymbolSurvey final : public Survey {
 public:
  explicit SymbolSurvey(DType storage) : storage_(storage), split_(storage) {
    for (size_t part = 0; part < kParts.size(); ++part) counts_[part].resize(split_.alphabet(part));
  }

  void observe(MatrixView<const float> rows) override {
    for (const uint16_t half : to_storage(storage_, rows))
      for (size_t part = 0; part < kParts.size(); ++part) ++counts_[part][split_.symbol(part, half)];
  }

  void finish(StreamStore& document) override {
    BitWriter writer;
    for (size_t part = 0; part < kParts.size(); ++part)
      RansModel::from_counts(counts_[part], {.escape_bits = split_.bits(part)}).write(writer);
    document.append_values<uint8_t>(kBook, writer.finish());
  }

 private:
  DType storage_;
  Split split_;
  std::array<std::vector<uint64_t>, 2> counts_;
};

struct LosslessForm {
  DType storage;
  Split split;
  size_t block, width;

  LosslessForm(const LosslessOptions& options, DType type, size_t row_values)
      : storage(type), split(type), block(as_size(options.block)), width(row_values) {
    if (checked_mul(block, width) > kMaxSegmentSymbols)
      throw usage_error("blocks of {} tokens of {} values; a block has at most {} values", block, width,
                        kMaxSegmentSymbols);
  }

  size_t block_values() const { return block * width; }
  bool pays() const { return block_values() >= kMinBlock; }
  uint64_t plain_bytes(size_t part) const { return packed_bytes(block_values(), split.bits(part)); }

  /// Tokens of a document. Throws Error(bad_input) if its streams disagree.
  uint64_t tokens(const StreamReader& document) const {
    const uint64_t blocks = document.rows(kSizes), waiting = document.rows(kTail);
    if (!pays() ? blocks > 0 : waiting >= block)
      throw bad_input("{} blocks of {} tokens and {} exact tokens; no document ends like that", blocks, block,
                      waiting);
    return checked_add(checked_mul(blocks, block), waiting);
  }

  /// The models of a document. Throws Error(bad_input) for streams that hold none.
  std::array<RansModel, 2> models(const StreamReader& document) const {
    const uint64_t bytes = document.rows(kBook);
    // No book is longer: up to 21 bits for each symbol of both alphabets, two escapes and headers.
    constexpr uint64_t kLongest = 4096;
    if (bytes > kLongest) throw bad_input("stream '{}': {} bytes are too many for two models", kBook, bytes);
    return with_context(fmt::format("stream '{}'", kBook), [&] {
      const auto stored = document.read<uint8_t>(kBook, 0, bytes, 1);
      BitReader in(stored);
      std::array<RansModel, 2> models = {RansModel::read(in), RansModel::read(in)};
      for (size_t part = 0; part < kParts.size(); ++part)
        if (models[part].alphabet() != split.alphabet(part) || models[part].escape_bits() != split.bits(part))
          throw bad_input("a model of {} symbols and escapes of {} bits; {} need {} and {}",
                          models[part].alphabet(), models[part].escape_bits(), kParts[part],
                          split.alphabet(part), split.bits(part));
      return models;
    });
  }
};

class LosslessView final : public DocumentView {
 public:
  LosslessView(const LosslessForm& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document),
        form_(form),
        places_({kParts.begin(), kParts.end()}, place_interval(form.block)) {}

 protected:
  uint64_t take_in() override {
    const uint64_t tokens = form_.tokens(document());
    blocks_ = document().rows(kSizes);
    places_.grow(document(), blocks_, blocks_);
    return tokens;
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    // Read for tokens outside of blocks too: a damaged file is not to pass because it is short.
    const auto decoders = [&] {
      const auto models = form_.models(document());
      return Decoders{RansDecoder<uint16_t>(models[0]), RansDecoder<uint16_t>(models[1])};
    };
    if (form_.pays()) (void)decoders_.get(decoders);
    decode_with_tail(
        form_.storage, document(), blocks_ * form_.block, first, out,
        [&](uint64_t at, MatrixView<float> rows) { decode_blocks(decoders_.get(decoders), at, rows); });
  }

  Block block_of(uint64_t token) const override {
    return equal_block(token, form_.block, blocks_ * form_.block);
  }

 private:
  using Decoders = std::array<RansDecoder<uint16_t>, 2>;
  struct Nothing {};

  /// Coded bytes of consecutive blocks in one of the streams.
  struct CodedPart {
    std::vector<uint32_t> sizes;  // of each block
    std::vector<size_t> places;   // of each block, and the end
    std::vector<uint8_t> bytes;
  };

  /// Blocks [begin, end).
  std::array<CodedPart, 2> read_blocks(uint64_t begin, uint64_t end) const {
    std::array<CodedPart, 2> parts;
    std::array<uint64_t, 2> first{};
    const auto read_sizes = [&](Interval<Nothing>& interval, uint64_t last) {
      const auto sizes = document().read<uint32_t>(kSizes, interval.end(), last - interval.end(), 2);
      for (size_t i = 0; i < sizes.size(); i += 2)
        interval.add({}, std::array<uint64_t, 2>{sizes[i], sizes[i + 1]});
    };
    for (uint64_t block = begin; block < end; ++block) {
      const auto& interval = places_.at(block, document(), read_sizes);
      for (size_t i = 0; i < parts.size(); ++i) {
        const uint64_t place = interval.begin(block, i), size = interval.begin(block + 1, i) - place;
        if (block == begin) first[i] = place;
        parts[i].sizes.push_back(static_cast<uint32_t>(size));
        parts[i].places.push_back(static_cast<size_t>(place - first[i]));
        if (block + 1 == end) parts[i].places.push_back(static_cast<size_t>(place + size - first[i]));
      }
    }
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].bytes = document().read<uint8_t>(kParts[i], first[i], parts[i].places.back(), 1);
    return parts;
  }

  /// Symbols (to - from, form_.block_values()) of blocks [from, to) of those that were read.
  Matrix<uint16_t> decode_part(size_t part, const RansDecoder<uint16_t>& decoder, const CodedPart& coded,
                               size_t from, size_t to) const {
    Matrix<uint16_t> symbols(to - from, form_.block_values());
    const uint64_t plain = form_.plain_bytes(part);
    for (size_t b = from, end; b < to; b = end) {
      const auto bytes_to = [&](size_t stop) {
        return std::span(coded.bytes).subspan(coded.places[b], coded.places[stop] - coded.places[b]);
      };
      end = b + 1;
      if (coded.sizes[b] == plain) {
        unpack_bits(bytes_to(end), 0, form_.split.bits(part), 0, symbols.row(b - from));
        continue;
      }
      while (end < to && coded.sizes[end] != plain) ++end;
      const MatrixView<uint16_t> rows = symbols.view().rows(b - from, end - b);
      std::vector<EscapedValue> escaped;
      decoder.decode_segments(bytes_to(end), std::span(coded.sizes).subspan(b, end - b), rows, escaped);
      for (const EscapedValue& value : escaped)
        rows(value.row, value.position) = static_cast<uint16_t>(value.value);
    }
    return symbols;
  }

  /// Tokens [first, first + out.rows()), all of them in blocks.
  void decode_blocks(const Decoders& decoders, uint64_t first, MatrixView<float> out) const {
    const uint64_t begin = first / form_.block, end = (first + out.rows() - 1) / form_.block + 1;
    const std::array<CodedPart, 2> parts = read_blocks(begin, end);
    parallel_for(end - begin, kPieceBlocks, [&](size_t from, size_t to, int) {
      std::array<Matrix<uint16_t>, 2> symbols;
      for (size_t part = 0; part < kParts.size(); ++part)
        symbols[part] = with_context(
            fmt::format("stream '{}', blocks {} to {}", kParts[part], begin + from, begin + to - 1),
            [&] { return decode_part(part, decoders[part], parts[part], from, to); });
      std::vector<uint16_t> halves(form_.width);
      const uint64_t first_token = (begin + from) * form_.block;
      const uint64_t last = std::min<uint64_t>((begin + to) * form_.block, first + out.rows());
      for (uint64_t token = std::max(first_token, first); token < last; ++token) {
        const size_t place = (token - first_token) * form_.width;
        for (size_t c = 0; c < form_.width; ++c) {
          const uint16_t high = symbols[0].data()[place + c], low = symbols[1].data()[place + c];
          if (form_.split.infinite(high) || high >= form_.split.alphabet(0) || low >= form_.split.alphabet(1))
            throw bad_input("stream '{}': token {} has a value that is not finite", kParts[0], token);
          halves[c] = static_cast<uint16_t>(high << form_.split.mantissa_bits | low);
        }
        widen(form_.storage, halves, out.row(token - first));
      }
    });
  }

  LosslessForm form_;
  uint64_t blocks_ = 0;
  Lazy<Decoders> decoders_;
  Places<Nothing> places_;
};

class LosslessCodec final : public Codec {
 public:
  LosslessCodec(const LosslessOptions& options, const CodecContext& context)
      : options_(options),
        largest_(options, context.storage, as_size(context.heads) * as_size(context.head_dim)) {}

  Record parameters() const override { return record_of(options_); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return {{std::string(kBook), DType::u8, {}, Category::tables, 0, true},
            {std::string(kSizes), DType::u32, {2}, Category::offsets},
            {std::string(kParts[0]), DType::u8, {}, Category::payload},
            {std::string(kParts[1]), DType::u8, {}, Category::payload},
            places_stream(kParts.size()),
            exact_stream(kTail, shape, largest_.storage)};
  }

  /// 16-bit rows, two symbols of 2 bytes, and coded bytes.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 8; }

  std::string needs_rope() const override {
    return "lossless gives every bit back, and turned keys are rounded";
  }
  SurveyScope survey_scope(const GroupShape& shape) const override {
    return form_of(shape).pays() ? SurveyScope::file : SurveyScope::none;
  }
  std::unique_ptr<Survey> survey(const GroupShape&) const override {
    return std::make_unique<SymbolSurvey>(largest_.storage);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const LosslessForm form = form_of(shape);
    (void)form.tokens(document);
    const size_t blocks = form.pays() ? (document.rows(kTail) + rows.rows()) / form.block : 0;
    append_to_tail(to_storage(form.storage, rows), form.width, blocks * form.block, document,
                   [&](std::span<const uint16_t> halves) { append_blocks(form, halves, document); });
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<LosslessView>(form_of(shape), shape, document);
  }

 private:
  LosslessForm form_of(const GroupShape& shape) const { return {options_, largest_.storage, shape.width()}; }
  /// halves: whole blocks.
  static void append_blocks(const LosslessForm& form, std::span<const uint16_t> halves,
                            StreamStore& document) {
    const auto models = form.models(document);
    const std::array<RansEncoder, 2> encoders = {RansEncoder(models[0]), RansEncoder(models[1])};
    std::vector<std::array<std::vector<uint8_t>, 2>> coded(halves.size() / form.block_values());
    parallel_each(coded.size(), 1, [&](size_t b) {
      for (size_t part = 0; part < kParts.size(); ++part) {
        const auto block = halves.subspan(b * form.block_values(), form.block_values());
        std::vector<uint16_t> plain(block.size());
        std::ranges::transform(block, plain.begin(), [&](uint16_t h) { return form.split.symbol(part, h); });
        std::vector<uint16_t> symbols = plain;
        std::vector<uint32_t> escaped;
        for (uint16_t& symbol : symbols)
          if (models[part].frequency(symbol) == 0) {
            escaped.push_back(symbol);
            symbol = static_cast<uint16_t>(models[part].escape());
          }
        uint32_t size = 0;
        std::vector<uint8_t>& bytes = coded[b][part];
        encoders[part].encode_segments(MatrixView<const uint16_t>(symbols.data(), 1, symbols.size()), escaped,
                                       {&size, 1}, bytes);
        if (bytes.size() < form.plain_bytes(part)) continue;
        bytes.assign(form.plain_bytes(part), 0);
        pack_bits(std::span<const uint16_t>(plain), form.split.bits(part), 0, bytes);
      }
    });
    PlaceWriter places(kParts, place_interval(form.block), document, document.rows(kSizes));
    std::vector<uint32_t> sizes;
    for (const auto& block : coded) {
      places.add(std::array<uint64_t, 2>{block[0].size(), block[1].size()});
      for (const auto& bytes : block) sizes.push_back(static_cast<uint32_t>(bytes.size()));
    }
    places.store(document);
    for (const auto& block : coded)
      for (size_t part = 0; part < kParts.size(); ++part)
        document.append_values<uint8_t>(kParts[part], block[part]);
    document.append_values<uint32_t>(kSizes, sizes);
  }

  LosslessOptions options_;
  LosslessForm largest_;  // of the cache's widest rows
};

}  // namespace

CodecEntry lossless_codec() {
  return {.name = "lossless",
          .summary = "baseline: the 16-bit values bit for bit, entropy-coded",
          .capabilities = {.lossless = true, .any_shape = true},
          .make_options = [] { return std::make_unique<LosslessOptions>(); },
          .make = make_checked<LosslessOptions, LosslessCodec>,
          .dial = {.why_not = "it keeps every bit, and takes what these take"},
          .promise = 9,
          .place = 9};
}

}  // namespace kvcodec
