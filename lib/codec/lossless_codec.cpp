// The codec `lossless`: the 16-bit values bit for bit, entropy-coded with rANS: what any lossy codec is to be
// held against. A yardstick.
//
// A value is cut in two symbols: sign and exponent (9 bits of bf16, 6 of f16), of which few are common, and
// the mantissa (7 or 10 bits), which is nearly noise. Each kind has a model of its own per layer and side,
// made in a first pass over all tokens that a file starts with and kept for whatever is appended; symbols it
// does not know are escaped. Blocks of `block` tokens decode alone; tokens short of a block wait exactly. The
// part of a block that would not be smaller coded is stored in whole bits: it has exactly their size.
//
// Streams of one document, H heads of d dimensions, blocks of n = block * H * d values
//   book       u8  shared        the two models (lib/entropy/rans.hpp), one behind the other
//   sizes      u32 [T/block][2]  bytes of each block in the two streams below
//   exponents  u8                symbols of signs and exponents: sign * 2^e + exponent
//   mantissas  u8                symbols of mantissas
//   tail       bf16|f16 [T mod block][H][d]
#include <algorithm>
#include <array>
#include <cmath>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/histogram.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/entropy/rans_decoder.hpp"
#include "lib/entropy/rans_encoder.hpp"

namespace kvcodec {
namespace {

struct LosslessOptions final : Options {
  int64_t block = 64;  ///< at 2 heads of 64 dimensions a segment's fixed cost is 0.05 bits per value

  std::vector<OptionField> fields() override {
    return {{"block", "tokens of a block, which is coded and decoded alone", &block, 1, 65536}};
  }
};

constexpr std::string_view kBook = "book", kSizes = "sizes", kTail = "tail";
constexpr std::array<std::string_view, 2> kParts = {"exponents", "mantissas"};

/// Values of a block from which blocks are made: its two sizes, and what whole bits lose to whole bytes, are
/// then below half a percent.
constexpr size_t kLeastBlock = 1024;

/// Blocks decoded at a time: rANS decodes four side by side.
constexpr size_t kPieceBlocks = 4;

/// How a 16-bit float falls in two symbols.
struct Split {
  unsigned mantissa_bits;  ///< 7 or 10

  explicit Split(DType storage) : mantissa_bits(storage == DType::bf16 ? 7 : 10) {}
  unsigned bits(size_t part) const { return part == 0 ? 16 - mantissa_bits : mantissa_bits; }
  size_t alphabet(size_t part) const { return size_t{1} << bits(part); }
  uint16_t symbol(size_t part, uint16_t half) const {
    return static_cast<uint16_t>(part == 0 ? half >> mantissa_bits : half & ((1u << mantissa_bits) - 1));
  }
  /// Whether this symbol of part 0 has an exponent of all ones: infinities and NaNs.
  bool infinite(uint16_t symbol) const {
    const auto ones = static_cast<uint16_t>((1u << (15 - mantissa_bits)) - 1);
    return (symbol & ones) == ones;
  }
};

std::vector<uint16_t> symbols_of(const Split& split, size_t part, std::span<const uint16_t> halves) {
  std::vector<uint16_t> symbols(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) symbols[i] = split.symbol(part, halves[i]);
  return symbols;
}

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

class LosslessCodec final : public Codec {
 public:
  LosslessCodec(const LosslessOptions& options, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        split_(context.storage),
        block_(static_cast<size_t>(options.block)),
        width_(static_cast<size_t>(context.heads) * static_cast<size_t>(context.head_dim)) {
    if (checked_mul(block_, width_) > kMaxSegmentSymbols)
      throw usage_error("blocks of {} tokens of {} values; a block has at most {} values", block_, width_,
                        kMaxSegmentSymbols);
  }

  Record parameters() const override {
    LosslessOptions copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return {{std::string(kBook), DType::u8, {}, Category::tables, 0, true},
            {std::string(kSizes), DType::u32, {2}, Category::offsets},
            {std::string(kParts[0]), DType::u8, {}, Category::payload},
            {std::string(kParts[1]), DType::u8, {}, Category::payload},
            exact_stream(std::string(kTail), shape, storage_, Category::exempt)};
  }

  /// 16-bit rows, two symbols of 2 bytes, and coded bytes.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 8; }

  SurveyScope survey_scope() const override { return pays() ? SurveyScope::file : SurveyScope::none; }
  std::unique_ptr<Survey> survey(const GroupShape&) const override {
    return std::make_unique<SymbolSurvey>(storage_);
  }

  uint64_t tokens(const GroupShape&, const StreamReader& document) const override {
    const uint64_t blocks = document.rows(kSizes), waiting = document.rows(kTail);
    if (!pays() ? blocks > 0 : waiting >= block_)
      throw bad_input("{} blocks of {} tokens and {} exact tokens; no document ends like that", blocks,
                      block_, waiting);
    return checked_add(checked_mul(blocks, block_), waiting);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;

 private:
  size_t block_values() const { return block_ * width_; }
  bool pays() const { return block_values() >= kLeastBlock; }
  uint64_t plain_bytes(size_t part) const { return packed_bytes(block_values(), split_.bits(part)); }

  std::array<RansModel, 2> read_book(const StreamReader& document) const;
  void decode_part(size_t part, const RansDecoder<uint16_t>& decoder, std::span<const uint32_t> sizes,
                   std::span<const uint8_t> bytes, MatrixView<uint16_t> symbols) const;
  void decode_blocks(const std::array<RansModel, 2>& models, const StreamReader& document, uint64_t first,
                     MatrixView<float> out) const;

  LosslessOptions options_;
  DType storage_;
  Split split_;
  size_t block_, width_;
};

std::array<RansModel, 2> LosslessCodec::read_book(const StreamReader& document) const {
  const uint64_t bytes = document.rows(kBook);
  // No book is longer: up to 21 bits for each symbol of both alphabets, two escapes and headers.
  constexpr uint64_t kLongest = 4096;
  if (bytes > kLongest) throw bad_input("stream '{}': {} bytes are too many for two models", kBook, bytes);
  return with_context(fmt::format("stream '{}'", kBook), [&] {
    const auto stored = document.read<uint8_t>(kBook, 0, bytes, 1);
    BitReader in(stored);
    std::array<RansModel, 2> models = {RansModel::read(in), RansModel::read(in)};
    for (size_t part = 0; part < kParts.size(); ++part)
      if (models[part].alphabet() != split_.alphabet(part) || models[part].escape_bits() != split_.bits(part))
        throw bad_input("a model of {} symbols and escapes of {} bits; {} need {} and {}",
                        models[part].alphabet(), models[part].escape_bits(), kParts[part],
                        split_.alphabet(part), split_.bits(part));
    return models;
  });
}

void LosslessCodec::append(const GroupShape& shape, MatrixView<const float> rows,
                           StreamStore& document) const {
  check_width(shape, rows.cols());
  (void)tokens(shape, document);
  const std::vector<uint16_t> added = to_storage(storage_, rows);
  const uint64_t waiting = document.rows(kTail);
  const size_t blocks = pays() ? (waiting + rows.rows()) / block_ : 0;
  if (blocks == 0) return document.append_values<uint16_t>(kTail, added);

  std::vector<uint16_t> queue = document.read<uint16_t>(kTail, 0, waiting, width_);
  queue.insert(queue.end(), added.begin(), added.end());
  const auto models = read_book(document);
  const std::array<RansEncoder, 2> encoders = {RansEncoder(models[0]), RansEncoder(models[1])};
  std::vector<std::array<std::vector<uint8_t>, 2>> coded(blocks);
  parallel_for(blocks, 1, [&](size_t begin, size_t end, int) {
    for (size_t b = begin; b < end; ++b)
      for (size_t part = 0; part < kParts.size(); ++part) {
        const auto halves = std::span(queue).subspan(b * block_values(), block_values());
        std::vector<uint16_t> symbols = symbols_of(split_, part, halves);
        std::vector<uint16_t> plain = symbols;
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
        if (bytes.size() < plain_bytes(part)) continue;
        bytes.assign(plain_bytes(part), 0);
        pack_bits(std::span<const uint16_t>(plain), split_.bits(part), 0, bytes);
      }
  });
  std::vector<uint32_t> sizes;
  for (const auto& block : coded)
    for (size_t part = 0; part < kParts.size(); ++part) {
      sizes.push_back(static_cast<uint32_t>(block[part].size()));
      document.append_values<uint8_t>(kParts[part], block[part]);
    }
  document.append_values<uint32_t>(kSizes, sizes);
  document.truncate(kTail, 0);
  document.append_values(kTail, std::span<const uint16_t>(queue).subspan(blocks * block_values()));
}

/// Symbols (blocks, block_values()) of consecutive blocks, whose bytes lie one behind the other.
void LosslessCodec::decode_part(size_t part, const RansDecoder<uint16_t>& decoder,
                                std::span<const uint32_t> sizes, std::span<const uint8_t> bytes,
                                MatrixView<uint16_t> symbols) const {
  const uint64_t plain = plain_bytes(part);
  size_t at = 0;
  for (size_t b = 0; b < sizes.size();) {
    if (sizes[b] == plain) {
      unpack_bits(bytes.subspan(at, plain), 0, split_.bits(part), 0, symbols.row(b));
      at += plain;
      ++b;
      continue;
    }
    size_t count = 0, total = 0;
    for (; b + count < sizes.size() && sizes[b + count] != plain; ++count) total += sizes[b + count];
    const MatrixView<uint16_t> rows = symbols.rows(b, count);
    std::vector<EscapedValue> escaped;
    decoder.decode_segments(bytes.subspan(at, total), sizes.subspan(b, count), rows, escaped);
    for (const EscapedValue& value : escaped)
      rows(value.row, value.position) = static_cast<uint16_t>(value.value);
    at += total;
    b += count;
  }
}

/// Tokens [first, first + out.rows()), all of them in blocks.
void LosslessCodec::decode_blocks(const std::array<RansModel, 2>& models, const StreamReader& document,
                                  uint64_t first, MatrixView<float> out) const {
  const uint64_t begin = first / block_, end = (first + out.rows() - 1) / block_ + 1;
  const auto sizes = document.read<uint32_t>(kSizes, 0, end, 2);
  const std::array<RansDecoder<uint16_t>, 2> decoders = {RansDecoder<uint16_t>(models[0]),
                                                         RansDecoder<uint16_t>(models[1])};
  std::array<std::vector<uint8_t>, 2> bytes;
  std::array<std::vector<uint32_t>, 2> own_sizes;
  std::array<std::vector<size_t>, 2> places;  // of each block, and the end
  for (size_t part = 0; part < kParts.size(); ++part) {
    uint64_t before = 0, total = 0;
    places[part].push_back(0);
    for (uint64_t b = 0; b < end; ++b) {
      const uint32_t size = sizes[2 * b + part];
      if (b < begin) {
        before += size;
        continue;
      }
      own_sizes[part].push_back(size);
      places[part].push_back(total += size);
    }
    bytes[part] = document.read<uint8_t>(kParts[part], before, total, 1);
  }
  const size_t blocks = end - begin;
  parallel_for(blocks, kPieceBlocks, [&](size_t from, size_t to, int) {
    std::array<Matrix<uint16_t>, 2> symbols;
    for (size_t part = 0; part < kParts.size(); ++part) {
      symbols[part] = Matrix<uint16_t>(to - from, block_values());
      with_context(
          fmt::format("stream '{}', blocks {} to {}", kParts[part], begin + from, begin + to - 1), [&] {
            const size_t place = places[part][from];
            decode_part(part, decoders[part], std::span(own_sizes[part]).subspan(from, to - from),
                        std::span(bytes[part]).subspan(place, places[part][to] - place), symbols[part]);
          });
    }
    std::vector<uint16_t> halves(width_);
    const uint64_t last = std::min<uint64_t>((begin + to) * block_, first + out.rows());
    for (uint64_t token = std::max<uint64_t>((begin + from) * block_, first); token < last; ++token) {
      const size_t place = (token - (begin + from) * block_) * width_;
      for (size_t c = 0; c < width_; ++c) {
        const uint16_t high = symbols[0].data()[place + c], low = symbols[1].data()[place + c];
        if (split_.infinite(high) || high >= split_.alphabet(0) || low >= split_.alphabet(1))
          throw bad_input("stream '{}': token {} has a value that is not finite", kParts[0], token);
        halves[c] = static_cast<uint16_t>(high << split_.mantissa_bits | low);
      }
      widen(storage_, halves, out.row(token - first));
    }
  });
}

void LosslessCodec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                           MatrixView<float> out) const {
  check_width(shape, out.cols());
  const uint64_t total = tokens(shape, document), in_blocks = document.rows(kSizes) * block_;
  if (first > total || out.rows() > total - first)
    throw bad_input("there are {} tokens; {} from token {} on are not all there", total, out.rows(), first);
  const size_t from_blocks = first < in_blocks ? std::min<uint64_t>(out.rows(), in_blocks - first) : 0;
  // Read for tokens outside of blocks too: a damaged file is not to pass because it is short.
  if (pays()) {
    const auto models = read_book(document);
    if (from_blocks > 0) decode_blocks(models, document, first, out.rows(0, from_blocks));
  }
  if (from_blocks < out.rows())
    read_exact(kTail, storage_, document, first + from_blocks - in_blocks,
               out.rows(from_blocks, out.rows() - from_blocks));
}

std::unique_ptr<Options> make_options() { return std::make_unique<LosslessOptions>(); }

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  return std::make_unique<LosslessCodec>(dynamic_cast<const LosslessOptions&>(options), context);
}

}  // namespace

CodecEntry lossless_codec() {
  return {.name = "lossless",
          .summary = "yardstick: the 16-bit values bit for bit, entropy-coded",
          .capabilities = {.lossless = true},
          .book_type = "",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
