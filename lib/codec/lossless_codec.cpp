// The codec `lossless`: the values bit for bit, entropy-coded with rANS: what any lossy codec is to be held against. A baseline.
//
// A value is cut in symbols: sign and exponent (9 bits of bf16 and f32, 6 of f16), of which few are common, and parts of the mantissa, which
// are nearly noise. Values of f32 that come from blocks of a quantized type are stored as these blocks: the scale of each, cut likewise, and
// the levels. Each part has a model of its own per layer and side, made in a first pass over all tokens that a file starts with and kept
// for whatever is appended; symbols it does not know are escaped. Blocks of `block` tokens decode alone; tokens short of a block wait
// exactly. The part of a block that would not be smaller coded is stored in whole bits: it has exactly their size.
//
// Streams of one document, H heads of d dimensions, P parts, blocks of n = block * H * d values
//   book       u8  shared        the models (lib/entropy/rans.hpp) of all parts, one behind the other
//   sizes      u32 [T/block][P]  bytes of each block in the streams of the parts
//   exponents  u8                symbols of the first part, and so on: Cut has the names of the others
//   places     u64               where blocks go on in the streams of the parts (lib/codec/places.hpp)
//   tail       bf16|f16|f32 [T mod block][H][d], or the bytes of each token's quantized blocks: u8 [T mod block][bytes]
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/places.hpp"
#include "lib/codec/value_blocks.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/mapped.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/entropy/rans.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec {
namespace {

/// PairOrder of keys in these blocks; automatic: that of the cache (CodecContext::key_pairs).
enum class KeyPairs : uint8_t { automatic, halves, neighbours };
constexpr auto names_of(KeyPairs) {
  return std::to_array<std::string_view>({"auto", "halves", "neighbours"});
}

constexpr const char* kAutomatic = "auto";  // CodecContext::blocks

struct LosslessOptions final : Options {
  int64_t block = 64;  ///< at 2 heads of 64 dimensions a segment's fixed cost is 0.05 bits per value
  std::string key_blocks = kAutomatic, value_blocks = kAutomatic;  ///< names of ValueBlocks
  KeyPairs key_pairs = KeyPairs::automatic;

  std::vector<OptionField> fields() override {
    return {
        {"block", "tokens of a block, which is coded and decoded alone", &block, 1, 65536},
        {"key-blocks",
         "type of the quantized blocks that all keys of an f32 cache come from, and are stored as: none, q4_0, iq4_nl, q4_1, q5_0, q5_1, "
         "q8_0, or mlx-BITS-GROUP-TYPE, as mlx-4-64-bf16; auto finds it out",
         &key_blocks},
        {"value-blocks", "the same for values", &value_blocks},
        {"key-pairs",
         "how a key's dimensions lay that are turned together when the blocks were made; auto finds it out",
         &key_pairs}};
  }
};

constexpr std::string_view kBook = "book", kSizes = "sizes";

/// Values of a block from which blocks are made: the sizes of its parts, and what whole bits lose to whole bytes, are then below half a
/// percent.
constexpr size_t kMinBlock = 1024;

/// Blocks decoded at a time: rANS decodes four side by side.
constexpr size_t kPieceBlocks = 4;

/// Rows that a thread cuts, or puts together, at a time.
constexpr size_t kPieceRows = 16;

constexpr size_t kMaxParts = 9;  // scale and bias in f32, and levels

/// Symbols that are cut from values: `bits` bits of one word of each unit, or each level of it.
struct Part {
  std::string_view stream;
  unsigned bits = 0, shift = 0;
  size_t word = 0;  ///< of the unit
  bool levels = false;
};

/// How values lie in 16-bit words, and the cut of these words in symbols. A unit is a value, of one word or (f32) of two, the lower one
/// first; or a quantized block (lib/codec/value_blocks.hpp).
class Cut {
 public:
  /// turned: the dimensions of a head if blocks are of rows whose pairs lie side by side; else 0.
  Cut(DType storage, const ValueBlocks& blocks, size_t turned)
      : storage_(storage), blocks_(blocks), turned_(turned) {
    if (quantized()) {
      unit_values_ = blocks.layout().values, unit_words_ = blocks.layout().bytes / 2;
      const AffineGroups* groups = blocks.groups();
      const TensorType type = blocks.type() ? *blocks.type() : TensorType::f32;
      const DType stored = groups ? groups->stored : DType::f16;
      add_float(stored, kFloatStreams, 0);
      const bool has_least = groups || type == TensorType::q4_1 || type == TensorType::q5_1;
      if (has_least) add_float(stored, kLeastStreams, size_of(stored) / 2);
      level_byte_ = size_of(stored) * (has_least ? 2 : 1);
      has_fifth_bits_ = type == TensorType::q5_0 || type == TensorType::q5_1;
      low_bits_ = groups ? groups->bits : type == TensorType::q8_0 ? 8 : 4;
      parts_.push_back({.stream = "levels", .bits = low_bits_ + (has_fifth_bits_ ? 1 : 0), .levels = true});
    } else {
      unit_words_ = size_of(storage) / 2;
      add_float(storage, kFloatStreams, 0);
    }
  }

  bool quantized() const { return blocks_.any(); }
  size_t unit_values() const { return unit_values_; }
  std::span<const Part> parts() const { return parts_; }
  size_t words(size_t values) const { return values / unit_values_ * unit_words_; }
  size_t symbols(const Part& part, size_t values) const {
    return part.levels ? values : values / unit_values_;
  }

  StreamSpec tail(const GroupShape& shape) const {
    if (!quantized()) return exact_stream(kTail, shape, storage_);
    return {std::string(kTail), DType::u8, {words(shape.width()) * 2}, Category::exempt};
  }

  /// Words of rows (n, width). Throws Error(bad_input) for values beyond the range of the type, or off the grid of its blocks.
  UnsetVector<uint16_t> words_of(MatrixView<const float> rows) const {
    if (!quantized() && storage_ != DType::f32) return to_storage(storage_, rows);
    const size_t per_row = words(rows.cols());
    UnsetVector<uint16_t> out(rows.rows() * per_row);
    parallel_each(rows.rows(), kPieceRows, [&](size_t i) {
      const auto bytes = std::as_writable_bytes(std::span(out).subspan(i * per_row, per_row));
      if (!quantized()) return void(std::ranges::copy(std::as_bytes(rows.row(i)), bytes.begin()));
      std::vector<float> turned;
      std::span<const float> row = rows.row(i);
      if (turned_ > 0) {
        turned.assign(row.begin(), row.end());
        order_pairs(PairOrder::neighbours, turned_, turned);
        row = turned;
      }
      if (!blocks_.quantize_exactly(row, bytes))
        throw bad_input(
            "row {}: its values are no blocks of {}, as others of this side are; encode with --key-blocks none "
            "--value-blocks none",
            i, blocks_.name());
    });
    return out;
  }

  /// The values of words; false if one is not finite.
  [[nodiscard]] bool values_of(std::span<const uint16_t> in, std::span<float> out) const {
    if (quantized()) {
      blocks_.dequantize(std::as_bytes(in), out);
      if (turned_ > 0) order_pairs(PairOrder::halves, turned_, out);
    } else if (storage_ == DType::f32) {
      std::memcpy(out.data(), in.data(), out.size_bytes());
    } else {
      widen(storage_, in, out);
    }
    constexpr uint32_t kExponent = 0x7f800000;
    uint32_t largest = 0;
    for (const float value : out) largest = std::max(largest, std::bit_cast<uint32_t>(value) & kExponent);
    return largest < kExponent;
  }

  /// The part's symbols of the units in `in`.
  void take(const Part& part, std::span<const uint16_t> in, std::span<uint16_t> symbols) const {
    if (part.levels) {
      for (size_t i = 0; i < symbols.size(); ++i) symbols[i] = level(in, i);
      return;
    }
    const auto mask = static_cast<uint16_t>((1u << part.bits) - 1);
    for (size_t i = 0; i < symbols.size(); ++i)
      symbols[i] = static_cast<uint16_t>(in[i * unit_words_ + part.word] >> part.shift & mask);
  }

  /// Adds the part's symbols to words that begin as zeros. Throws Error(bad_input) for a symbol that is too large.
  void put(const Part& part, std::span<const uint16_t> symbols, std::span<uint16_t> out) const {
    unsigned largest = 0;
    for (const uint16_t symbol : symbols) largest = std::max<unsigned>(largest, symbol);
    if (largest >> part.bits != 0) throw bad_input("a symbol is {}, of {} bits", largest, part.bits);
    if (part.levels) {
      for (size_t i = 0; i < symbols.size(); ++i) add_level(symbols[i], out, i);
    } else if (unit_words_ == 1) {  // apart, because it becomes vector code
      for (size_t i = 0; i < symbols.size(); ++i) out[i] |= static_cast<uint16_t>(symbols[i] << part.shift);
    } else {
      for (size_t i = 0; i < symbols.size(); ++i)
        out[i * unit_words_ + part.word] |= static_cast<uint16_t>(symbols[i] << part.shift);
    }
  }

 private:
  using FloatStreams = std::array<std::string_view, 4>;
  static constexpr FloatStreams kFloatStreams{"exponents", "mantissas", "middles", "lows"};
  static constexpr FloatStreams kLeastStreams{"least_exponents", "least_mantissas", "least_middles",
                                              "least_lows"};

  /// The parts of a float that begins at that word of a unit: from its highest bits to the lowest.
  void add_float(DType type, const FloatStreams& streams, size_t word) {
    const unsigned mantissa = type == DType::f16 ? 10 : 7;
    const size_t high = type == DType::f32 ? word + 1 : word;
    parts_.push_back({.stream = streams[0], .bits = 16 - mantissa, .shift = mantissa, .word = high});
    parts_.push_back({.stream = streams[1], .bits = mantissa, .word = high});
    if (type != DType::f32) return;
    parts_.push_back({.stream = streams[2], .bits = 8, .shift = 8, .word = word});
    parts_.push_back({.stream = streams[3], .bits = 8, .word = word});
  }

  /// The place of level i of all units: the bit of the words at which its lower bits begin, and that of its fifth bit.
  struct LevelPlace {
    size_t low, fifth;
  };
  LevelPlace place_of(size_t i) const {
    const size_t unit = i / unit_values_ * unit_words_ * 16, j = i % unit_values_,
                 begin = unit + level_byte_ * 8;
    if (low_bits_ == 8 || blocks_.groups()) return {begin + j * low_bits_, 0};
    const size_t half = unit_values_ / 2, levels = begin + (has_fifth_bits_ ? 32 : 0);
    return {levels + j % half * 8 + (j < half ? 0 : 4), begin + j};
  }
  uint16_t level(std::span<const uint16_t> in, size_t i) const {
    const auto [low, fifth] = place_of(i);
    unsigned found = in[low / 16] >> low % 16;
    if (low % 16 + low_bits_ > 16) found |= unsigned{in[low / 16 + 1]} << (16 - low % 16);
    found &= (1u << low_bits_) - 1;
    if (has_fifth_bits_) found |= (in[fifth / 16] >> fifth % 16 & 1u) << 4;
    return static_cast<uint16_t>(found);
  }
  void add_level(unsigned symbol, std::span<uint16_t> out, size_t i) const {
    const auto [low, fifth] = place_of(i);
    const unsigned bits = (symbol & ((1u << low_bits_) - 1)) << low % 16;
    out[low / 16] |= static_cast<uint16_t>(bits);
    if (bits >> 16 != 0) out[low / 16 + 1] |= static_cast<uint16_t>(bits >> 16);
    if (has_fifth_bits_) out[fifth / 16] |= static_cast<uint16_t>((symbol >> 4) << fifth % 16);
  }

  DType storage_;
  ValueBlocks blocks_;
  size_t turned_;
  std::vector<Part> parts_;
  size_t unit_values_ = 1, unit_words_ = 1;
  size_t level_byte_ = 0;  // of a unit, at which what belongs to levels begins
  unsigned low_bits_ = 0;  // of a level, without its fifth bit
  bool has_fifth_bits_ = false;
};

struct LosslessForm {
  Cut cut;
  size_t block, width;

  LosslessForm(const LosslessOptions& options, DType storage, const GroupShape& shape)
      : cut(storage, blocks_of(options, shape.side), turned_of(options, shape)),
        block(as_size(options.block)),
        width(shape.width()) {
    if (checked_mul(block, width) > kMaxSegmentSymbols)
      throw usage_error("blocks of {} tokens of {} values; a block has at most {} values", block, width,
                        kMaxSegmentSymbols);
    if (cut.quantized() && storage != DType::f32)
      throw usage_error("--key-blocks and --value-blocks are for caches of f32; this one keeps {}",
                        name_of(storage));
    if (width % cut.unit_values() != 0)
      throw usage_error(
          "a token has {} values, which are no blocks of {}; leave out --key-blocks and --value-blocks",
          width, cut.unit_values());
  }

  static size_t turned_of(const LosslessOptions& options, const GroupShape& shape) {
    const bool turned = options.key_pairs == KeyPairs::neighbours && options.key_blocks != "none";
    return turned && shape.side != Side::value ? shape.dims() : 0;
  }
  static ValueBlocks blocks_of(const LosslessOptions& options, Side side) {
    const std::string& name = side == Side::value ? options.value_blocks : options.key_blocks;
    if (const auto blocks = ValueBlocks::named(name)) return *blocks;
    throw usage_error(
        "--{}-blocks names no blocks; none, q4_0, iq4_nl, q4_1, q5_0, q5_1, q8_0 or one as mlx-4-64-bf16 is wanted",
        side == Side::value ? "value" : "key");
  }

  std::span<const Part> parts() const { return cut.parts(); }
  size_t row_words() const { return cut.words(width); }
  size_t block_words() const { return block * row_words(); }
  size_t symbols(const Part& part) const { return cut.symbols(part, block * width); }
  bool pays() const { return block * width >= kMinBlock; }
  uint64_t plain_bytes(const Part& part) const { return packed_bytes(symbols(part), part.bits); }

  std::vector<std::string_view> part_streams() const {
    return mapped<std::string_view>(parts(), &Part::stream);
  }

  /// Tokens of a document. Throws Error(bad_input) if its streams disagree.
  uint64_t tokens(const StreamReader& document) const {
    const uint64_t blocks = document.rows(kSizes), waiting = document.rows(kTail);
    if (!pays() ? blocks > 0 : waiting >= block)
      throw bad_input("{} blocks of {} tokens and {} exact tokens; no document ends like that", blocks, block,
                      waiting);
    return checked_add(checked_mul(blocks, block), waiting);
  }

  /// The models of a document, one for each part. Throws Error(bad_input) for streams that hold none.
  std::vector<RansModel> models(const StreamReader& document) const {
    const uint64_t bytes = document.rows(kBook);
    // No book is longer: up to 21 bits for each symbol of all alphabets, an escape each and headers.
    constexpr uint64_t kLongest = 8192;
    if (bytes > kLongest) throw bad_input("stream '{}': {} bytes are too many for its models", kBook, bytes);
    return with_context(fmt::format("stream '{}'", kBook), [&] {
      const auto stored = document.read<uint8_t>(kBook, 0, bytes, 1);
      BitReader in(stored);
      std::vector<RansModel> models;
      for (const Part& part : parts()) {
        const RansModel& model = models.emplace_back(RansModel::read(in));
        if (model.alphabet() != size_t{1} << part.bits || model.escape_bits() != part.bits)
          throw bad_input("a model of {} symbols and escapes of {} bits; {} need {} and {}", model.alphabet(),
                          model.escape_bits(), part.stream, 1u << part.bits, part.bits);
      }
      return models;
    });
  }
};

class SymbolSurvey final : public Survey {
 public:
  explicit SymbolSurvey(LosslessForm form) : form_(std::move(form)) {
    for (const Part& part : form_.parts()) counts_.emplace_back(size_t{1} << part.bits);
  }

  void observe(MatrixView<const float> rows) override {
    const auto words = form_.cut.words_of(rows);
    for (size_t i = 0; i < counts_.size(); ++i) {
      const Part& part = form_.parts()[i];
      std::vector<uint16_t> symbols(form_.cut.symbols(part, rows.rows() * rows.cols()));
      form_.cut.take(part, words, symbols);
      for (const uint16_t symbol : symbols) ++counts_[i][symbol];
    }
  }

  void finish(StreamStore& document) override {
    BitWriter writer;
    for (size_t i = 0; i < counts_.size(); ++i)
      RansModel::from_counts(counts_[i], {.escape_bits = form_.parts()[i].bits}).write(writer);
    document.append_values<uint8_t>(kBook, writer.finish());
  }

 private:
  LosslessForm form_;
  std::vector<std::vector<uint64_t>> counts_;
};

class LosslessView final : public DocumentView {
 public:
  LosslessView(LosslessForm form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document),
        form_(std::move(form)),
        places_(form_.part_streams(), place_interval(form_.block)) {}

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
      return Decoders(models.begin(), models.end());
    };
    if (form_.pays()) (void)decoders_.get(decoders);
    decode_with_tail(
        blocks_ * form_.block, first, out,
        [&](uint64_t at, MatrixView<float> rows) { decode_blocks(decoders_.get(decoders), at, rows); },
        [&](uint64_t at, MatrixView<float> rows) { read_tail(at, rows); });
  }

  Block block_of(uint64_t token) const override {
    return equal_block(token, form_.block, blocks_ * form_.block);
  }

 private:
  using Decoders = std::vector<RansDecoder<uint16_t>>;
  struct Nothing {};

  /// Coded bytes of consecutive blocks in the stream of one part.
  struct CodedPart {
    std::vector<uint32_t> sizes;  // of each block
    std::vector<size_t> places;   // of each block, and the end
    std::vector<uint8_t> bytes;
  };

  /// Blocks [begin, end).
  std::vector<CodedPart> read_blocks(uint64_t begin, uint64_t end) const {
    const size_t count = form_.parts().size();
    std::vector<CodedPart> parts(count);
    std::vector<uint64_t> first(count);
    const auto read_sizes = [&](Interval<Nothing>& interval, uint64_t last) {
      const auto sizes = document().read<uint32_t>(kSizes, interval.end(), last - interval.end(), count);
      std::array<uint64_t, kMaxParts> of_block{};
      for (size_t i = 0; i < sizes.size(); i += count) {
        std::copy_n(&sizes[i], count, of_block.begin());
        interval.add({}, std::span(of_block).first(count));
      }
    };
    for (uint64_t block = begin; block < end; ++block) {
      const auto& interval = places_.at(block, document(), read_sizes);
      for (size_t i = 0; i < count; ++i) {
        const uint64_t place = interval.begin(block, i), size = interval.begin(block + 1, i) - place;
        if (block == begin) first[i] = place;
        parts[i].sizes.push_back(static_cast<uint32_t>(size));
        parts[i].places.push_back(static_cast<size_t>(place - first[i]));
        if (block + 1 == end) parts[i].places.push_back(static_cast<size_t>(place + size - first[i]));
      }
    }
    for (size_t i = 0; i < count; ++i)
      parts[i].bytes = document().read<uint8_t>(form_.parts()[i].stream, first[i], parts[i].places.back(), 1);
    return parts;
  }

  /// Rows [first, first + out.rows()) of the tail.
  void read_tail(uint64_t first, MatrixView<float> out) const {
    const auto words = document().read<uint16_t>(kTail, first, out.rows(), form_.row_words());
    parallel_each(out.rows(), kPieceRows, [&](size_t i) {
      if (!form_.cut.values_of(std::span(words).subspan(i * form_.row_words(), form_.row_words()),
                               out.row(i)))
        throw bad_input("stream '{}', row {}: a value is not finite", kTail, first + i);
    });
  }

  /// Symbols of blocks [from, to) of those that were read, a row for each block.
  Matrix<uint16_t> decode_part(const Part& part, const RansDecoder<uint16_t>& decoder, const CodedPart& coded,
                               size_t from, size_t to) const {
    Matrix<uint16_t> symbols(to - from, form_.symbols(part));
    const uint64_t plain = form_.plain_bytes(part);
    for (size_t b = from, end; b < to; b = end) {
      const auto bytes_to = [&](size_t stop) {
        return std::span(coded.bytes).subspan(coded.places[b], coded.places[stop] - coded.places[b]);
      };
      end = b + 1;
      if (coded.sizes[b] == plain) {
        unpack_bits(bytes_to(end), 0, part.bits, 0, symbols.row(b - from));
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
    const std::vector<CodedPart> coded = read_blocks(begin, end);
    parallel_for(end - begin, kPieceBlocks, [&](size_t from, size_t to, int) {
      std::vector<uint16_t> words((to - from) * form_.block_words());
      for (size_t i = 0; i < coded.size(); ++i) {
        const Part& part = form_.parts()[i];
        with_context(fmt::format("stream '{}', blocks {} to {}", part.stream, begin + from, begin + to - 1),
                     [&] {
                       const Matrix<uint16_t> symbols = decode_part(part, decoders[i], coded[i], from, to);
                       form_.cut.put(part, {symbols.data(), symbols.size()}, words);
                     });
      }
      const uint64_t first_token = (begin + from) * form_.block;
      const uint64_t last = std::min<uint64_t>((begin + to) * form_.block, first + out.rows());
      for (uint64_t token = std::max(first_token, first); token < last; ++token)
        if (!form_.cut.values_of(
                std::span(words).subspan((token - first_token) * form_.row_words(), form_.row_words()),
                out.row(token - first)))
          throw bad_input("stream '{}': token {} has a value that is not finite", form_.parts()[0].stream,
                          token);
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
      : options_(options), storage_(context.storage) {
    const auto settle = [&](std::string& blocks, Side side) {
      if (blocks == kAutomatic) blocks = context.blocks[side == Side::value].name();
      // Refused here already where the widest rows cannot be coded.
      (void)form_of(usual_group(0, 1, context.heads, context.head_dim, side));
    };
    settle(options_.key_blocks, Side::key);
    settle(options_.value_blocks, Side::value);
    if (options_.key_pairs == KeyPairs::automatic)
      options_.key_pairs = value_named<KeyPairs>(name_of(context.key_pairs)).value_or(KeyPairs::halves);
  }

  Record parameters() const override { return record_of(options_); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const LosslessForm form = form_of(shape);
    std::vector<StreamSpec> specs = {
        {std::string(kBook), DType::u8, {}, Category::tables, 0, true},
        {std::string(kSizes), DType::u32, {form.parts().size()}, Category::offsets}};
    for (const Part& part : form.parts())
      specs.push_back({std::string(part.stream), DType::u8, {}, Category::payload});
    specs.push_back(places_stream(form.parts().size()));
    specs.push_back(form.cut.tail(shape));
    return specs;
  }

  /// Words of values, symbols of 2 bytes, and coded bytes.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (storage_ == DType::f32 ? 12 : 8);
  }

  std::string needs_rope() const override {
    return "lossless gives every bit back, and turned keys are rounded";
  }
  SurveyScope survey_scope(const GroupShape& shape) const override {
    return form_of(shape).pays() ? SurveyScope::file : SurveyScope::none;
  }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return std::make_unique<SymbolSurvey>(form_of(shape));
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const LosslessForm form = form_of(shape);
    (void)form.tokens(document);
    const size_t blocks = form.pays() ? (document.rows(kTail) + rows.rows()) / form.block : 0;
    append_to_tail(form.cut.words_of(rows), form.row_words(), blocks * form.block, document,
                   [&](std::span<const uint16_t> words) { append_blocks(form, words, document); });
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<LosslessView>(form_of(shape), shape, document);
  }

 private:
  LosslessForm form_of(const GroupShape& shape) const { return {options_, storage_, shape}; }

  /// words: whole blocks.
  static void append_blocks(const LosslessForm& form, std::span<const uint16_t> words,
                            StreamStore& document) {
    const auto models = form.models(document);
    const std::vector<RansEncoder> encoders(models.begin(), models.end());
    const size_t parts = form.parts().size();
    std::vector<std::array<std::vector<uint8_t>, kMaxParts>> coded(words.size() / form.block_words());
    parallel_each(coded.size(), 1, [&](size_t b) {
      const auto block = words.subspan(b * form.block_words(), form.block_words());
      for (size_t i = 0; i < parts; ++i) {
        const Part& part = form.parts()[i];
        std::vector<uint16_t> plain(form.symbols(part));
        form.cut.take(part, block, plain);
        std::vector<uint16_t> symbols = plain;
        std::vector<uint32_t> escaped;
        for (uint16_t& symbol : symbols)
          if (models[i].frequency(symbol) == 0) {
            escaped.push_back(symbol);
            symbol = static_cast<uint16_t>(models[i].escape());
          }
        uint32_t size = 0;
        std::vector<uint8_t>& bytes = coded[b][i];
        encoders[i].encode_segments(MatrixView<const uint16_t>(symbols.data(), 1, symbols.size()), escaped,
                                    {&size, 1}, bytes);
        if (bytes.size() < form.plain_bytes(part)) continue;
        bytes.assign(form.plain_bytes(part), 0);
        pack_bits(std::span<const uint16_t>(plain), part.bits, 0, bytes);
      }
    });
    PlaceWriter places(form.part_streams(), place_interval(form.block), document, document.rows(kSizes));
    std::vector<uint32_t> sizes;
    for (const auto& block : coded) {
      std::array<uint64_t, kMaxParts> rows{};
      for (size_t i = 0; i < parts; ++i) {
        rows[i] = block[i].size();
        sizes.push_back(static_cast<uint32_t>(rows[i]));
      }
      places.add(std::span(rows).first(parts));
    }
    places.store(document);
    for (const auto& block : coded)
      for (size_t i = 0; i < parts; ++i) document.append_values<uint8_t>(form.parts()[i].stream, block[i]);
    document.append_values<uint32_t>(kSizes, sizes);
  }

  LosslessOptions options_;
  DType storage_;
};

}  // namespace

CodecEntry lossless_codec() {
  return {.name = "lossless",
          .summary = "baseline: the values bit for bit, entropy-coded",
          .capabilities = {.lossless = true, .keeps_blocks = true},
          .make_options = [] { return std::make_unique<LosslessOptions>(); },
          .make = make_exact<LosslessOptions, LosslessCodec>,
          .dial = {.why_not = "it keeps every bit, and takes what these take"},
          .promise = 9,
          .place = 9};
}

}  // namespace kvcodec
