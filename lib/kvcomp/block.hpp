// Blocks of quantized values, entropy-coded: KVComp's storage (Jiang et al., "KVComp: A High-Performance,
// LLM-Aware, Lossy Compression Framework for KV Cache", section 3.2).
//
// A block holds `tokens` consecutive tokens of one head, [tokens, dims] symbols of
// lib/quant/error_bounded.hpp. It is cut into runs in the direction of its later product: keys by token (a
// run is a row, all channels of one token, as q.k needs it), values by channel (a run is a column, as the
// weighted sum over tokens needs it). Symbol 255 (kExactSymbol) stands for a value that is stored exactly, as
// its original 16-bit float; a symbol that the book does not know is stored in the same way, so later data
// never fails and its error only becomes smaller.
//
// A block coded with Huffman codes:
//   counts    base     u16, little-endian: the smallest number of bits among the block's runs
//             excess   per run its bits - base in `mode` bits each, most significant bit first, then zeros
//   payload   runs one after the other without gaps (lib/entropy/huffman.hpp), padded to whole bytes
// A block coded with rANS:
//   payload   one segment (lib/entropy/rans.hpp) of all symbols, run after run; no counts, mode 0
// A block that neither would make smaller than its values:
//   payload   the 16-bit values, token after token; no counts, mode 255 (kRawBlock)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/core/names.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/huffman.hpp"
#include "lib/entropy/rans.hpp"
#include "lib/quant/error_bounded.hpp"

namespace kvcodec {

inline constexpr uint8_t kRawBlock = 255;
/// Maximum number of symbols of a run: its bits are counted in 16 bits, and a symbol takes at most a code of 12
/// bits and an exact value of 16.
inline constexpr size_t kMaxBlockRun = 65535 / (12 + 16);

struct BlockShape {
  size_t tokens = 0, dims = 0;
  bool by_channel = false;  ///< runs are columns (values), not rows (keys)

  size_t runs() const { return by_channel ? dims : tokens; }
  size_t run_length() const { return by_channel ? tokens : dims; }
  size_t symbols() const { return tokens * dims; }
  size_t raw_bytes() const { return symbols() * 2; }
  /// Bytes of the counts of a Huffman-coded block of that mode (0..16).
  size_t count_bytes(uint8_t mode) const { return 2 + (runs() * mode + 7) / 8; }
};

struct CodedBlock {
  uint8_t mode = 0;
  std::vector<uint8_t> counts, payload;
  size_t bytes() const { return counts.size() + payload.size(); }
};

enum class Coder : uint8_t { huffman = 0, rans = 1 };

/// The way to choose the coder and its book.
enum class EntropyChoice : uint8_t {
  huffman,
  rans,
  none,       ///< codes of equal length, to see what the coder gains: a Huffman book that ignores the counts
  automatic,  ///< Huffman or rANS, whichever makes the smaller blocks of this shape
};
constexpr auto names_of(EntropyChoice) {
  return std::to_array<std::string_view>({"huffman", "rans", "none", "auto"});
}

/// The symbols of one layer's side, coded with one book. Immutable; any number of threads may use it.
class BlockCoder {
 public:
  /// counts: of each of the 256 symbols. If they are few (a short or empty cache), the shape of a normal
  /// distribution of that deviation, in steps, is mixed in: later data needs a book too.
  static BlockCoder from_counts(std::span<const uint64_t> counts, double deviation, EntropyChoice choice,
                                const BlockShape& shape);
  /// Reads the result of write(). Throws Error(bad_input) for anything else.
  static BlockCoder read(std::span<const uint8_t> bytes);
  /// u8 coder (0 Huffman, 1 rANS), then the book or model as bits.
  std::vector<uint8_t> write() const {
    BitWriter out;
    out.put(static_cast<uint32_t>(coder()), 8);
    rans_ ? rans_->book.write(out) : huffman_->book.write(out);
    return out.finish();
  }

  Coder coder() const { return rans_ ? Coder::rans : Coder::huffman; }
  /// Only where coder() is huffman.
  const HuffmanBook& book() const { return huffman_->book; }
  /// Only where coder() is rans.
  const RansModel& model() const { return rans_->book; }

  /// symbols, values: (tokens, dims); values are the original 16-bit floats of the symbols, for those stored
  /// exactly. side_bytes: bytes that the caller stores with a coded block but not with a raw one (its size,
  /// steps, origins). The result is raw unless the coded block and these bytes are smaller than the values.
  CodedBlock encode(const BlockShape& shape, MatrixView<const uint8_t> symbols,
                    MatrixView<const uint16_t> values, size_t side_bytes) const;

  /// Bytes of a block's counts, by its mode. Throws Error(bad_input) for a mode that no encoder writes.
  size_t count_bytes(const BlockShape& shape, uint8_t mode) const {
    if (mode == kRawBlock) return 0;
    if (mode > (rans_ ? 0 : 16)) throw bad_input("there is no block mode {}", mode);
    return rans_ ? 0 : shape.count_bytes(mode);
  }

  /// Decodes a block that is not raw into runs: (shape.runs(), shape.run_length()). Exact values become
  /// kExactSymbol; `exact` gets their positions (row = run) and 16 bits. Throws Error(bad_input) for a
  /// damaged block.
  void decode_runs(const BlockShape& shape, uint8_t mode, std::span<const uint8_t> counts,
                   std::span<const uint8_t> payload, MatrixView<uint8_t> runs,
                   std::vector<EscapedValue>& exact) const;

  /// The number of blocks that decode_rans() takes at a time: several together are decoded faster than one by one.
  static constexpr size_t kTogether = RansDecoder<uint8_t>::kTogether;

  /// decode_runs for at most kTogether blocks, none of them raw, coded with rANS: row i of symbols,
  /// (payloads.size(), shape.symbols()), gets the runs of block i one behind the other, exact[i] its exact
  /// values.
  void decode_rans(const BlockShape& shape, std::span<const std::span<const uint8_t>> payloads,
                   MatrixView<uint8_t> symbols, std::span<std::vector<EscapedValue>> exact) const;

 private:
  explicit BlockCoder(HuffmanBook book);
  explicit BlockCoder(RansModel model);
  /// True if all symbols between the lowest and the highest of these (at least one) have a code, as in most runs.
  bool surely_known(std::span<const uint8_t> symbols) const;
  std::vector<uint32_t> run_bits(const BlockShape& shape, uint8_t mode, std::span<const uint8_t> counts,
                                 std::span<const uint8_t> payload) const;

  template <class Book, class Encoder, class Decoder>
  struct Coding {
    explicit Coding(Book of) : book(std::move(of)), encoder(book), decoder(book) {}

    Book book;
    Encoder encoder;
    Decoder decoder;
  };
  using Huffman = Coding<HuffmanBook, HuffmanEncoder, HuffmanDecoder>;
  using Rans = Coding<RansModel, RansEncoder, RansDecoder<uint8_t>>;

  std::shared_ptr<const Huffman> huffman_;  // one of the two
  std::shared_ptr<const Rans> rans_;
  std::array<bool, 256> unknown_;  // symbols that have no code, such as kExactSymbol
};

}  // namespace kvcodec
