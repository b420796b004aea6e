#include "cuda/kvcomp/kvcomp.hpp"

#include <algorithm>
#include <cmath>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/kvcomp/kvcomp_encode.hpp"
#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"
#include "lib/entropy/huffman.hpp"

namespace kvcodec::cuda {

/// Limit for a query's elements; steps and origins are below 2^16.
constexpr float kLargestQuery = 0x1p64f;

constexpr uint32_t kNoneDamaged = ~uint32_t{0};

/// Kernels count blocks, and one round of blocks beyond the last, in 32 bits.
constexpr uint64_t kMaxBlocks = uint64_t{1} << 31;

/// Bytes of a stream in device memory, with room for `more` and zeros behind them.
static DeviceBuffer<uint8_t> upload_bytes(std::span<const uint8_t> bytes, const Stream& stream,
                                          uint64_t more = 0) {
  const uint64_t all = round_up(bytes.size(), size_t{16}) + more;
  // Kernels count words of 4 bytes in 32 bits.
  if (all > (uint64_t{1} << 33))
    throw failed("{} bytes of blocks at once; a device takes up to {}", all, uint64_t{1} << 33);
  DeviceBuffer<uint8_t> buffer(round_up(all, uint64_t{16}) + kKvcompPadding);
  buffer.fill(0, stream);
  buffer.upload(bytes, stream);
  return buffer;
}

/// Block rows that hold tokens of the range, and the range relative to them.
KvcompWork DeviceBlocks::part(uint64_t first, uint64_t count) const {
  if (first > tokens() || count > tokens() - first)
    throw failed("there are {} tokens in blocks; {} from token {} on are not all there", tokens(), count,
                 first);
  const uint64_t begin = first / store_.tokens;
  const uint64_t end = count == 0 ? begin : (first + count - 1) / store_.tokens + 1;
  KvcompStore rows = store_;
  rows.places += begin * store_.heads;
  rows.rows = static_cast<uint32_t>(end - begin);
  const uint64_t from = first - begin * store_.tokens;
  return {rows, {from, from + count}, nullptr, stream_.handle(), cuts_};
}

/// Calls run(work, result) and copies the result to `out`. Throws if it found a damaged block.
template <class Run>
void DeviceBlocks::guarded(KvcompWork work, MatrixView<float> out, const Run& run) const {
  DeviceBuffer<uint32_t> damaged(1);
  DeviceBuffer<float> result(checked_mul(out.rows(), out.cols()));
  damaged.fill(0xff, stream_);
  work.damaged = damaged.data();
  run(work, result.data());
  download_rows(result, out, stream_);
  const uint32_t found = downloaded(damaged, stream_)[0];
  if (found == kNoneDamaged) return;
  const auto skipped = static_cast<uint64_t>(work.store.places - store_.places) / store_.heads;
  throw bad_input("block row {}, head {}: its runs and what is stored of their lengths do not agree",
                  skipped + found / store_.heads, found % store_.heads);
}

DeviceBlocks::DeviceBlocks(const kvcomp::Layout& layout, DType storage, const kvcomp::StoredBlocks& stored) {
  if (layout.block.by_channel != (layout.unit == UnitShape::row) ||
      (layout.block.by_channel && layout.has_origins))
    throw failed("runs of values have a step for each token, runs of keys have none");
  const uint64_t rows = stored.blocks.size() / layout.heads;
  if (stored.blocks.size() >= kMaxBlocks)
    throw failed("{} block rows of {} heads at once; a device takes less than {} blocks", rows, layout.heads,
                 kMaxBlocks);
  if (layout.heads > kMaxGridRows)  // products give each head a row of blocks of threads
    throw failed("{} heads; a device takes at most {}", layout.heads, kMaxGridRows);
  const bool rans = stored.coder.coder() == Coder::rans;
  const auto symbols = static_cast<uint32_t>(layout.block.symbols());
  uint64_t as_bytes = 0;  // room for what segments of rANS become
  std::vector<KvcompPlace> places;
  places.reserve(stored.blocks.size());
  for (const auto& block : stored.blocks) {
    const bool coded = block.mode != kRawBlock;
    // Damaged sizes could ask for more shared memory than there is; blocks of at least this size are not coded.
    if (coded && block.payload.size > layout.block.raw_bytes())
      throw bad_input("a block of {} bytes; its values have {}", block.payload.size,
                      layout.block.raw_bytes());
    places.push_back({block.payload.start, block.counts.start, block.origins.start, block.steps.start,
                      static_cast<uint32_t>(block.payload.size), block.mode, block.origin_bits});
    if (!coded) continue;
    const uint32_t bytes = places.back().payload_bytes + (rans ? symbols : 0);
    store_.largest_payload = std::max(store_.largest_payload, bytes);
    if (rans) as_bytes += bytes;
  }
  // A book without codes serves a document without blocks.
  std::vector<uint32_t> table(size_t{1} << kStepWindow);
  static_assert(kStepZero == kZeroSymbol);
  if (rans) {
    for (uint32_t bits = 0; bits < table.size(); ++bits) {
      const uint32_t symbol = bits >> (kStepWindow - 8);
      table[bits] = step_entry(symbol, 8, symbol == kExactSymbol);
    }
  } else if (!places.empty() && stored.coder.book().num_codes() > 0) {
    table = step_table(stored.coder.book());
  }
  payload_ = upload_bytes(stored.payload, stream_, as_bytes);
  counts_ = upload_bytes(stored.counts, stream_);
  origins_ = upload_bytes(stored.origins, stream_);
  steps_ = DeviceBuffer<uint16_t>(stored.steps, stream_);
  places_ = DeviceBuffer<KvcompPlace>(places, stream_);
  table_ = DeviceBuffer<uint32_t>(table, stream_);
  store_.payload = words_of(payload_);
  store_.counts = words_of(counts_);
  store_.origins = words_of(origins_);
  store_.steps = steps_.data();
  store_.places = places_.data();
  store_.table = table_.data();
  store_.rows = static_cast<uint32_t>(rows);
  store_.heads = static_cast<uint32_t>(layout.heads);
  store_.tokens = static_cast<uint32_t>(layout.block.tokens);
  store_.dims = static_cast<uint32_t>(layout.block.dims);
  store_.by_channel = layout.block.by_channel;
  store_.channel_steps = layout.unit == UnitShape::column;
  store_.has_origins = layout.has_origins;
  store_.brain = storage == DType::bf16;
  if (as_bytes > 0) to_bytes(stored.coder.model(), places, round_up(stored.payload.size(), size_t{16}));
  stream_.synchronize();  // what is uploaded goes away
}

/// Makes bytes of the blocks of rANS. target: offset in payload_ from which on there is room for them.
void DeviceBlocks::to_bytes(const RansModel& model, std::span<const KvcompPlace> places, uint64_t target) {
  std::vector<uint8_t> slots(size_t{1} << model.scale());
  std::vector<uint32_t> ranges(slots.size());
  for (size_t symbol = 0; symbol < model.symbols(); ++symbol)
    for (uint32_t i = 0; i < model.frequency(symbol); ++i) {
      slots[model.start(symbol) + i] = static_cast<uint8_t>(symbol);
      ranges[model.start(symbol) + i] = model.frequency(symbol) | i << 16;
    }
  std::vector<uint64_t> targets;
  targets.reserve(places.size());
  const uint64_t symbols = uint64_t{store_.tokens} * store_.dims,
                 runs = store_.by_channel ? store_.dims : store_.tokens;
  for (const KvcompPlace& place : places) {
    targets.push_back(target);
    if (place.mode != kRawBlock) target += symbols + place.payload_bytes;
  }
  counts_ = upload_bytes({}, stream_, places.size() * (2 + 2 * runs));
  store_.counts = words_of(counts_);
  const DeviceBuffer<uint8_t> device_slots(slots, stream_);
  const DeviceBuffer<uint32_t> device_ranges(ranges, stream_);
  const DeviceBuffer<uint64_t> device_targets(targets, stream_);
  DeviceBuffer<uint8_t> scratch(places.size() * symbols);
  DeviceBuffer<uint32_t> words(places.size());
  check(run_kvcomp_bytes({store_,
                          {device_slots.data(), device_ranges.data(), model.scale()},
                          device_targets.data(),
                          payload_.data(),
                          counts_.data(),
                          scratch.data(),
                          words.data(),
                          places_.data()},
                         stream_.handle()),
        "decoding rANS");
  stream_.synchronize();  // what is used ends here
}

uint64_t DeviceBlocks::bytes() const {
  return payload_.size() + counts_.size() + origins_.size() + 2 * steps_.size() + 4 * table_.size() +
         sizeof(KvcompPlace) * places_.size();
}

/// Queries or weights of each head; rows: of all heads.
static unsigned per_head(const KvcompStore& store, size_t rows, bool keys) {
  if (store.by_channel == keys || store.heads == 0 || rows % store.heads != 0)
    throw failed("{} rows for {} of {} heads", rows, store.by_channel ? "values" : "keys", store.heads);
  return static_cast<unsigned>(rows / store.heads);
}

void DeviceBlocks::decode(size_t first, MatrixView<float> out) const {
  const size_t width = size_t{store_.heads} * store_.dims;
  check_shape("values", out, out.rows(), width);
  guarded(part(first, out.rows()), out, [&](const KvcompWork& work, float* values) {
    check(run_kvcomp_decode(work, values, width), "decoding blocks");
  });
}

void DeviceBlocks::multiply_keys(size_t first, MatrixView<const float> queries, MatrixView<float> out) const {
  const unsigned n = per_head(store_, queries.rows(), true);
  check_shape("queries", queries, out.rows(), store_.dims);
  const PackedRows rows(queries);
  // Infinite elements, also after the products with steps and origins, cannot be split into halves.
  if (!std::ranges::all_of(rows.values(), [](float query) { return std::abs(query) <= kLargestQuery; }))
    throw usage_error("queries beyond {}; a device does not multiply them with keys", kLargestQuery);
  const DeviceBuffer<float> device_queries(rows.values(), stream_);
  guarded(part(first, out.cols()), out, [&](const KvcompWork& work, float* scores) {
    check(run_kvcomp_keys(work, device_queries.data(), n, scores, out.cols()), "products with keys");
  });
}

void DeviceBlocks::multiply_values(size_t first, MatrixView<const float> weights,
                                   MatrixView<float> out) const {
  const unsigned n = per_head(store_, weights.rows(), false);
  check_shape("sums", out, weights.rows(), store_.dims);
  const DeviceBuffer<float> device_weights = upload_rows(weights, stream_);
  guarded(part(first, weights.cols()), out, [&](const KvcompWork& work, float* sums) {
    DeviceBuffer<float> partial(kvcomp_partial_sums(work, n));
    check(run_kvcomp_values(work, device_weights.data(), weights.cols(), n, partial.data(), sums),
          "products with values");
    stream_.synchronize();  // what is to be added up ends here
  });
}

// Parts that an engine provides ----------------------------------------------------------------------

namespace {

using kvcomp::Layout;

/// Bytes of a value that streams take on a device at most; of rANS segments, bytes made of them and those while they are made.
constexpr uint64_t kStoredBytes = 2, kRansBytes = 6;

/// Tokens of whole block rows that are on the device at a time, if `free` bytes may be taken, with so many
/// bytes of each token beside streams of so many per value.
size_t tokens_in(uint64_t free, const Layout& layout, uint64_t bytes_per_token,
                 uint64_t bytes_per_value = kStoredBytes) {
  const uint64_t tokens = free / (layout.width() * bytes_per_value + bytes_per_token);
  // Kernels address up to 2^33 bytes of a stream.
  const uint64_t limit = (uint64_t{1} << 33) / std::max<uint64_t>(1, layout.width() * bytes_per_value);
  const size_t block = layout.block.tokens;
  return std::max<size_t>(1, std::min<uint64_t>(tokens, limit) / block) * block;
}

/// Block rows of documents that stay on the device: those used last, as long as the same amount of memory
/// stays free for work.
class KeptBlocks {
 public:
  explicit KeptBlocks(const DeviceWork& device) : device_(device) {}

  /// Block rows [first, last) of a document.
  struct Piece {
    const void* document = nullptr;
    uint64_t first = 0, last = 0, bytes = 0;
    std::shared_ptr<const DeviceBlocks> blocks = {};
  };

  /// The piece of that document that has all of these block rows; one without blocks if there is none.
  Piece find(const void* document, uint64_t first, uint64_t last) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(pieces_, [&](const Piece& piece) {
      return piece.document == document && piece.first <= first && piece.last >= last;
    });
    if (found == pieces_.end()) return {};
    pieces_.splice(pieces_.begin(), pieces_, found);
    return *found;
  }

  void keep(Piece piece) {
    const std::lock_guard lock(mutex_);
    pieces_.remove_if([&](const Piece& other) {
      return other.document == piece.document && other.first >= piece.first && other.last <= piece.last;
    });
    pieces_.push_front(std::move(piece));
    uint64_t bytes = 0;
    for (const Piece& kept : pieces_) bytes += kept.bytes;
    for (; !pieces_.empty() && bytes > device_.room(); pieces_.pop_back()) bytes -= pieces_.back().bytes;
  }

  /// Drops the pieces that were used longest ago until there is room for so many bytes, or none is left.
  void make_room(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    while (!pieces_.empty() && bytes > device_.room()) pieces_.pop_back();
  }

  void forget(const void* document) {
    const std::lock_guard lock(mutex_);
    pieces_.remove_if([&](const Piece& piece) { return piece.document == document; });
  }

 private:
  const DeviceWork& device_;
  std::mutex mutex_;
  std::list<Piece> pieces_;  // the one used last in front
};

class DocumentBlocks final : public kvcomp::BlocksElsewhere {
 public:
  DocumentBlocks(const DeviceWork& device, KeptBlocks& kept, const Layout& layout, DType storage, Coder coder,
                 kvcomp::BlockEngine::ReadBlocks read)
      : device_(device),
        kept_(kept),
        layout_(layout),
        storage_(storage),
        bytes_per_value_(coder == Coder::rans ? kRansBytes : kStoredBytes),
        read_(std::move(read)) {}
  ~DocumentBlocks() override { kept_.forget(this); }

  /// Copies streams to the device, unless they are there, and floats back.
  bool decode(uint64_t first, MatrixView<float> out) override {
    return over_blocks(first, out.rows(), layout_.width() * sizeof(float), DeviceWork::Bits::same,
                       [&](const DeviceBlocks& blocks, size_t token, size_t done, size_t count) {
                         blocks.decode(token, out.rows(done, count));
                       });
  }

  /// Copies streams, unless they are there, and queries to the device, and products back.
  bool multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) override {
    return over_blocks(first, out.cols(), queries.rows() * sizeof(float), DeviceWork::Bits::rounded,
                       [&](const DeviceBlocks& blocks, size_t token, size_t done, size_t count) {
                         blocks.multiply_keys(token, queries, out.columns(done, count));
                       });
  }

  /// Copies streams, unless they are there, and weights to the device, and sums back.
  bool multiply_values(uint64_t first, MatrixView<const float> weights, MatrixView<float> out) override {
    Matrix<float> piece(out.rows(), out.cols());
    for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
    return over_blocks(first, weights.cols(), weights.rows() * sizeof(float), DeviceWork::Bits::rounded,
                       [&](const DeviceBlocks& blocks, size_t token, size_t done, size_t count) {
                         blocks.multiply_values(token, weights.columns(done, count), piece);
                         for (size_t i = 0; i < out.rows(); ++i)
                           for (size_t c = 0; c < out.cols(); ++c) out(i, c) += piece(i, c);
                       });
  }

 private:
  /// Calls body(blocks, first token within them, tokens done before, tokens) for tokens [first, first +
  /// count).
  template <class Body>
  bool over_blocks(uint64_t first, uint64_t count, uint64_t bytes_per_token, DeviceWork::Bits bits,
                   const Body& body) {
    const uint64_t block = layout_.block.tokens, begin = first / block, end = (first + count - 1) / block + 1;
    if (const auto piece = kept_.find(this, begin, end); piece.blocks)
      return device_.try_run([&] { body(*piece.blocks, first - piece.first * block, 0, count); }, bits);
    const uint64_t tokens = (end - begin) * block;
    kept_.make_room(tokens * (layout_.width() * bytes_per_value_ + bytes_per_token));
    if (tokens > tokens_in(device_.room(), layout_, bytes_per_token, bytes_per_value_))
      return in_pieces(first, count, bytes_per_token, bits, body);
    KeptBlocks::Piece piece{this, begin, end};
    const auto run = [&] {
      piece.blocks = device_.share(DeviceBlocks(layout_, storage_, read_(begin, end)));
      piece.bytes = piece.blocks->bytes();
      body(*piece.blocks, first - begin * block, 0, count);
    };
    if (!device_.try_run(run, bits)) return false;
    kept_.keep(std::move(piece));
    return true;
  }

  /// The same, for more tokens than fit at a time; nothing stays.
  template <class Body>
  bool in_pieces(uint64_t first, uint64_t count, uint64_t bytes_per_token, DeviceWork::Bits bits,
                 const Body& body) const {
    const auto run = [&] {
      const uint64_t block = layout_.block.tokens;
      const uint64_t at_once =
          tokens_in(DeviceWork::rows_at_once(1), layout_, bytes_per_token, bytes_per_value_);
      for (uint64_t begin = first; begin < first + count;) {
        const uint64_t row = begin / block, end = std::min(row * block + at_once, first + count);
        const DeviceBlocks blocks(layout_, storage_, read_(row, (end - 1) / block + 1));
        body(blocks, begin - row * block, begin - first, end - begin);
        begin = end;
      }
    };
    return device_.try_run(run, bits);
  }

  const DeviceWork& device_;
  KeptBlocks& kept_;
  Layout layout_;
  DType storage_;
  uint64_t bytes_per_value_;
  kvcomp::BlockEngine::ReadBlocks read_;
};

class Blocks final : public kvcomp::BlockEngine {
 public:
  explicit Blocks(const DeviceWork& device) : device_(device), kept_(device) {}

  /// Copies values to the device and streams back, a piece of block rows at a time; symbols stay there.
  std::optional<EncodedBlocks> encode(const Layout& layout, DType storage, const ErrorBound& bound,
                                      const BlockCoder& coder,
                                      MatrixView<const uint16_t> values) const override {
    if (coder.coder() == Coder::rans) {
      device_.fall_back("kvcomp: coding blocks with rANS");
      return std::nullopt;
    }
    EncodedBlocks all;
    const bool done = in_pieces(layout, storage, bound, values,
                                [&](const QuantizedBlocks& blocks) { all.append(blocks.encode(coder)); });
    return done ? std::optional(std::move(all)) : std::nullopt;
  }

  /// Copies values to the device and 256 counts back.
  std::optional<std::vector<uint64_t>> count_symbols(const Layout& layout, DType storage,
                                                     const ErrorBound& bound,
                                                     MatrixView<const uint16_t> values) const override {
    std::vector<uint64_t> all(256);
    const bool done = in_pieces(layout, storage, bound, values, [&](const QuantizedBlocks& blocks) {
      const std::vector<uint64_t> piece = blocks.histogram();
      for (size_t symbol = 0; symbol < all.size(); ++symbol) all[symbol] += piece[symbol];
    });
    return done ? std::optional(std::move(all)) : std::nullopt;
  }

  std::unique_ptr<kvcomp::BlocksElsewhere> document(const Layout& layout, DType storage,
                                                    const BlockCoder& coder, ReadBlocks read) const override {
    return std::make_unique<DocumentBlocks>(device_, kept_, layout, storage, coder.coder(), std::move(read));
  }

 private:
  /// Calls body(quantized) for pieces of whole block rows.
  template <class Body>
  bool in_pieces(const Layout& layout, DType storage, const ErrorBound& bound,
                 MatrixView<const uint16_t> values, const Body& body) const {
    const auto run = [&] {
      // Memory for values, symbols and runs.
      const size_t at_once = tokens_in(DeviceWork::rows_at_once(1), layout, layout.width() * 4);
      for (size_t first = 0; first < values.rows(); first += at_once)
        body(QuantizedBlocks(layout, storage, bound,
                             values.rows(first, std::min(at_once, values.rows() - first))));
    };
    return device_.try_run(run);
  }

  const DeviceWork& device_;
  mutable KeptBlocks kept_;
};

}  // namespace

void add_blocks(const DeviceWork& device) {
  device.engine().add<kvcomp::BlockEngine>([made = std::make_shared<Blocks>(device)] { return made.get(); });
}

}  // namespace kvcodec::cuda
