#include "cuda/engine_parts.hpp"
#include "cuda/kvcomp/kvcomp.hpp"
#include "cuda/kvcomp/kvcomp_encode.hpp"

namespace kvcodec::cuda {
namespace {

using kvcomp::Layout;

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

class Blocks final : public kvcomp::BlockEngine {
 public:
  explicit Blocks(const DeviceWork& device) : device_(device) {}

  /// Copies values there and streams back, a piece of block rows at a time; symbols stay there.
  std::optional<EncodedBlocks> encode(const Layout& layout, DType storage, const ErrorBound& bound,
                                      const BlockCoder& coder,
                                      MatrixView<const uint16_t> values) const override {
    if (!decodable(coder)) return std::nullopt;
    EncodedBlocks all;
    const bool done = in_pieces(layout, storage, bound, values, [&](const QuantizedBlocks& blocks) {
      const EncodedBlocks piece = blocks.encode(coder);
      append(all.modes, piece.modes);
      append(all.counts, piece.counts);
      append(all.payload, piece.payload);
      append(all.origin_bits, piece.origin_bits);
      append(all.origins, piece.origins);
      append(all.sizes, piece.sizes);
      append(all.steps, piece.steps);
    });
    if (!done) return std::nullopt;
    return all;
  }

  /// Copies values there and 256 counts back.
  std::optional<std::vector<uint64_t>> count_symbols(const Layout& layout, DType storage,
                                                     const ErrorBound& bound,
                                                     MatrixView<const uint16_t> values) const override {
    std::vector<uint64_t> all(256);
    const bool done = in_pieces(layout, storage, bound, values, [&](const QuantizedBlocks& blocks) {
      const std::vector<uint64_t> piece = blocks.histogram();
      for (size_t symbol = 0; symbol < all.size(); ++symbol) all[symbol] += piece[symbol];
    });
    if (!done) return std::nullopt;
    return all;
  }

  /// Copies streams there and floats back.
  bool decode(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override {
    return over_blocks(layout, storage, document, first, out.rows(), layout.width() * sizeof(float),
                       DeviceWork::Bits::same,
                       [&](const LoadedBlocks& blocks, size_t token, size_t done, size_t count) {
                         blocks.decode(token, out.rows(done, count));
                       });
  }

  /// Copies streams and queries there and products back.
  bool multiply_keys(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
                     MatrixView<const float> queries, MatrixView<float> out) const override {
    return over_blocks(layout, storage, document, first, out.cols(), queries.rows() * sizeof(float),
                       DeviceWork::Bits::rounded,
                       [&](const LoadedBlocks& blocks, size_t token, size_t done, size_t count) {
                         blocks.multiply_keys(token, queries, out.columns(done, count));
                       });
  }

  /// Copies streams and weights there and sums back.
  bool multiply_values(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
                       MatrixView<const float> weights, MatrixView<float> out) const override {
    Matrix<float> piece(out.rows(), out.cols());
    for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
    return over_blocks(layout, storage, document, first, weights.cols(), weights.rows() * sizeof(float),
                       DeviceWork::Bits::rounded,
                       [&](const LoadedBlocks& blocks, size_t token, size_t done, size_t count) {
                         blocks.multiply_values(token, weights.columns(done, count), piece);
                         for (size_t i = 0; i < out.rows(); ++i)
                           for (size_t c = 0; c < out.cols(); ++c) out(i, c) += piece(i, c);
                       });
  }

 private:
  bool decodable(const BlockCoder& coder) const {
    if (coder.coder() == Coder::huffman) return true;
    device_.leave("kvcomp: blocks coded with rANS");
    return false;
  }

  /// Tokens of whole block rows that are on the device at a time, with so many bytes of each beside streams
  /// of at most two per value.
  static size_t tokens_at_once(const Layout& layout, uint64_t bytes_per_token) {
    const size_t tokens = DeviceWork::rows_at_once(layout.width() * 2 + bytes_per_token);
    // What a kernel addresses in a stream: up to 2^33 bytes, of which a value takes no more than two.
    const uint64_t most = (uint64_t{1} << 32) / std::max<size_t>(1, layout.width());
    const size_t block = layout.block.tokens;
    return std::max<size_t>(1, std::min<uint64_t>(tokens, most) / block) * block;
  }

  /// Calls body(quantized) for pieces of whole block rows.
  template <class Body>
  bool in_pieces(const Layout& layout, DType storage, const ErrorBound& bound,
                 MatrixView<const uint16_t> values, const Body& body) const {
    return device_.run([&] {
      const size_t at_once = tokens_at_once(layout, layout.width() * 4);  // values, symbols, runs
      for (size_t first = 0; first < values.rows(); first += at_once)
        body(QuantizedBlocks(layout, storage, bound,
                             values.rows(first, std::min(at_once, values.rows() - first))));
    });
  }

  /// Calls body(blocks, first token within them, tokens done before, tokens) for tokens [first, first +
  /// count).
  template <class Body>
  bool over_blocks(const Layout& layout, DType storage, const StreamReader& document, uint64_t first,
                   uint64_t count, uint64_t bytes_per_token, DeviceWork::Bits bits, const Body& body) const {
    const uint64_t book_bytes = document.rows(kvcomp::kBook);
    const auto run = [&] {
      if (!decodable(BlockCoder::read(document.read<uint8_t>(kvcomp::kBook, 0, book_bytes, 1))))
        throw bad_input("blocks coded with rANS");
      const uint64_t block = layout.block.tokens, at_once = tokens_at_once(layout, bytes_per_token);
      for (uint64_t begin = first; begin < first + count;) {
        const uint64_t row = begin / block, end = std::min(row * block + at_once, first + count);
        const LoadedBlocks blocks(layout, storage, document, row, (end - 1) / block + 1);
        body(blocks, begin - row * block, begin - first, end - begin);
        begin = end;
      }
    };
    return device_.run(run, bits);
  }

  const DeviceWork& device_;
};

}  // namespace

std::unique_ptr<kvcomp::BlockEngine> block_engine(const DeviceWork& device) {
  return std::make_unique<Blocks>(device);
}

}  // namespace kvcodec::cuda
