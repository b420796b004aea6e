// The codec `rvq`: VQKV. A token's value in one head is a sum of entries of codebooks, one of each (lib/rvq);
// of its key, low and high dimensions are quantized apart. One set of codebooks (lib/rvq/codec/book.hpp)
// serves all layers and heads.
//
// Exempt. The first `sink` tokens of a document and its newest `window` tokens are kept at 16 bits, with window -1 a 64th
// of the document and 1024 at most. What
// falls out of the window as tokens are appended is quantized together, in one batch per append; of T tokens
// Q = max(0, T - sink - window) are quantized, whatever the pieces they came in.
//
// Streams of one document, H heads of d dimensions:
//   sink  bf16|f16 [min(T, sink)][H][d]
//   ids        u8|u16|u32 [Q][H][N_q], index bound N_c          values
//   low_ids, high_ids     likewise                              keys
//   tail  bf16|f16 [T - sink - Q][H][d]
//
// Where ids would not be smaller than 16 bits per value (very small heads), nothing is ever quantized.
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "lib/codec/exact_ends.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/engine/engine.hpp"
#include "lib/rvq/codec/book.hpp"

namespace kvcodec {
namespace {

/// Tokens encoded or decoded at a time: what is kept beside the rows does not grow with the document.
constexpr size_t kTokensAtOnce = 4096;
/// With a device as many as drivers hand over: each piece costs a copy there and one back.
constexpr size_t kTokensForDevice = 65536;

constexpr int64_t kPaperSink = 4, kPaperWindow = 1024;

struct RvqOptions final : Options {
  int64_t beam = 5;  ///< most of what a wider beam gains, at a fifth of greedy choice's speed
  int64_t sink = 1;  ///< the paper's 4 cost as many bits as hundreds of coded tokens
  int64_t window = kUsualWindow;

  std::vector<OptionField> fields() override {
    return {{"beam",
             "candidate sums that the search keeps at each stage; 1 takes the nearest entry, stage by stage, "
             "as the paper does, several times as fast",
             &beam, 1, static_cast<double>(ResidualEncoder::kMostHypotheses)},
            {.name = "sink",
             .help = "first tokens of a document kept exactly",
             .target = &sink,
             .min = 0,
             .max = 1 << 24},
            {.name = "window",
             .help = "newest tokens of a document kept exactly; -1: a 64th of it, and 1024 at most",
             .target = &window,
             .min = kUsualWindow,
             .max = 1 << 24}};
  }
};

/// One quantizer: its codebooks, what its stream is called, and which dimensions of a head it serves.
struct Part {
  std::string stream;
  Codebooks books;
  std::vector<uint32_t> dimensions;  ///< empty = all

  /// Runs of dimensions that lie side by side: how rows are taken apart and put together.
  struct Run {
    size_t first = 0, place = 0, count = 0;
  };
  std::vector<Run> runs;

  DType id_type() const {
    return books.entries() <= 256 ? DType::u8 : books.entries() <= 65536 ? DType::u16 : DType::u32;
  }
};

std::vector<Part::Run> runs_of(std::span<const uint32_t> dimensions) {
  std::vector<Part::Run> runs;
  for (size_t i = 0; i < dimensions.size(); ++i) {
    if (!runs.empty() && runs.back().first + runs.back().count == dimensions[i])
      ++runs.back().count;
    else
      runs.push_back({dimensions[i], i, 1});
  }
  return runs;
}

class RvqCodec;

class RvqView final : public DocumentView {
 public:
  RvqView(const RvqCodec& codec, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), codec_(codec) {}

 protected:
  uint64_t take_in() override;
  void decode_rows(uint64_t first, MatrixView<float> out) const override;

 private:
  const RvqCodec& codec_;
};

class RvqCodec final : public Codec {
 public:
  RvqCodec(const RvqOptions& options, RvqBook book, const CodecContext& context)
      : options_(options),
        storage_(context.storage),
        engine_(context.engine),
        head_dim_(static_cast<size_t>(book.head_dim)),
        weights_(std::move(book.weights)) {
    value_.push_back({"ids", std::move(book.of(RvqPart::value).books), {}, {{0, 0, head_dim_}}});
    key_.push_back({"low_ids", std::move(book.of(RvqPart::key_low).books), book.split.low, {}});
    if (!book.split.high.empty())
      key_.push_back({"high_ids", std::move(book.of(RvqPart::key_high).books), book.split.high, {}});
    for (Part& part : key_) part.runs = runs_of(part.dimensions);
    workers_.resize(key_.size() + value_.size());
  }

  Record parameters() const override {
    RvqOptions copy = options_;
    return to_record(copy);
  }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    std::vector<StreamSpec> specs{ends(shape.side).sink_stream(shape)};
    for (const Part& part : parts(shape.side))
      specs.push_back({part.stream,
                       part.id_type(),
                       {heads_of(shape), part.books.stages()},
                       Category::ids,
                       part.books.entries()});
    specs.push_back(ends(shape.side).tail_stream(shape));
    return specs;
  }

  /// 16-bit rows twice, and ids, which are fewer bytes than those; for a device rows as floats, taken apart
  /// by codebooks, and as it takes them.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (engine_ ? 20 : 8);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

  /// Tokens of a document. Throws Error(bad_input) if its streams disagree.
  uint64_t tokens(Side side, const StreamReader& document) const;
  /// Tokens [first, first + out.rows()), which are there.
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    return std::make_unique<RvqView>(*this, shape, document);
  }

 private:
  static size_t heads_of(const GroupShape& shape) {
    return static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads);
  }
  const std::vector<Part>& parts(Side side) const { return side == Side::key ? key_ : value_; }

  /// Whether ids are smaller than 16-bit values.
  bool pays(Side side) const {
    size_t bytes = 0;
    for (const Part& part : parts(side)) bytes += part.books.stages() * size_of(part.id_type());
    return bytes < head_dim_ * 2;
  }
  ExactEnds ends(Side side) const {
    return pays(side)
               ? ExactEnds(storage_, static_cast<uint64_t>(options_.sink), options_.window, kPaperWindow)
               : ExactEnds::everything(storage_);
  }

  void check_shape(const GroupShape& shape, size_t columns) const {
    check_width(shape, columns);
    if (static_cast<size_t>(shape.head_dim) != head_dim_)
      throw failed("heads of {} dimensions; the codebooks are for {}", shape.head_dim, head_dim_);
  }

  /// The device's engine and the encoder for a set of codebooks, made at first use.
  struct Worker {
    std::optional<std::unique_ptr<ResidualEngine>> engine;  ///< nothing: not asked for yet; nullptr: declined
    std::unique_ptr<ResidualEncoder> encoder;
  };
  Worker& worker(Side side, size_t part) const {
    return workers_[side == Side::key ? part : key_.size() + part];
  }

  const ResidualEngine* engine(Side side, size_t part) const {
    if (!engine_) return nullptr;
    const std::lock_guard lock(mutex_);
    auto& made = worker(side, part).engine;
    if (!made) made = engine_->make<ResidualEngine>(parts(side)[part].books);
    return made->get();
  }
  const ResidualEncoder& encoder(Side side, size_t part) const {
    const std::lock_guard lock(mutex_);
    auto& made = worker(side, part).encoder;
    if (!made) made = std::make_unique<ResidualEncoder>(parts(side)[part].books);
    return *made;
  }
  void search(Side side, size_t part, MatrixView<const float> rows, MatrixView<uint32_t> ids) const {
    const auto beam = static_cast<size_t>(options_.beam);
    const ResidualEngine* device = engine(side, part);
    if (!device || !device->encode(rows, beam, ids)) encoder(side, part).encode(rows, beam, ids);
  }
  void sum(Side side, size_t part, const Matrix<uint32_t>& ids, MatrixView<float> out) const {
    const ResidualEngine* device = engine(side, part);
    if (!device || !device->sum_entries(ids, out)) sum_entries(parts(side)[part].books, ids, out);
  }
  /// Tokens to encode or decode at a time.
  size_t tokens_at_once(Side side, size_t part) const {
    return engine(side, part) ? kTokensForDevice : kTokensAtOnce;
  }

  void quantize(const GroupShape& shape, size_t part, std::span<const uint16_t> halves,
                StreamStore& document) const;
  void decode_quantized(const GroupShape& shape, const StreamReader& document, uint64_t first,
                        MatrixView<float> out) const;
  Matrix<uint32_t> read_ids(const Part& part, const StreamReader& document, uint64_t first, size_t tokens,
                            size_t heads) const;

  RvqOptions options_;
  DType storage_;
  Engine* engine_;
  size_t head_dim_;
  LayerWeights weights_;
  std::vector<Part> key_, value_;
  mutable std::mutex mutex_;
  mutable std::vector<Worker> workers_;  // of each part
};

uint64_t RvqCodec::tokens(Side side, const StreamReader& document) const {
  const auto& all = parts(side);
  const uint64_t quantized = document.rows(all[0].stream);
  for (const Part& part : all)
    if (document.rows(part.stream) != quantized)
      throw bad_input("stream '{}' has {} rows; '{}' has {}", part.stream, document.rows(part.stream),
                      all[0].stream, quantized);
  return ends(side).tokens(document, quantized);
}

// Encoding
// ---------------------------------------------------------------------------------------------------------

void append_ids(StreamStore& document, const Part& part, const Matrix<uint32_t>& ids) {
  const std::span<const uint32_t> all(ids.data(), ids.size());
  if (part.id_type() == DType::u32) return document.append_values<uint32_t>(part.stream, all);
  if (part.id_type() == DType::u16) {
    std::vector<uint16_t> words(all.begin(), all.end());
    return document.append_values<uint16_t>(part.stream, words);
  }
  std::vector<uint8_t> bytes(all.size());
  std::ranges::transform(all, bytes.begin(), [](uint32_t id) { return static_cast<uint8_t>(id); });
  document.append_values<uint8_t>(part.stream, bytes);
}

/// halves: whole tokens of the queue, [heads][head_dim] each.
void RvqCodec::quantize(const GroupShape& shape, size_t which, std::span<const uint16_t> halves,
                        StreamStore& document) const {
  const Side side = shape.side;
  const Part& part = parts(side)[which];
  const size_t heads = heads_of(shape);
  const float scale = 1 / weights_.error_scale(shape.first_layer, side);
  const size_t rows = halves.size() / head_dim_, width = part.books.width(),
               at_once = tokens_at_once(side, which) * heads;
  Matrix<uint32_t> ids(rows, part.books.stages());
  Matrix<float> vectors(std::min(rows, at_once), width);
  std::vector<float> floats;
  for (size_t first = 0; first < rows; first += at_once) {
    const size_t count = std::min(at_once, rows - first);
    floats.resize(count * head_dim_);
    // What is quantized are the 16-bit values, whether they waited in the tail or came just now.
    widen(storage_, halves.subspan(first * head_dim_, count * head_dim_), floats);
    if (!weights_.alike())
      for (float& value : floats) value *= scale;
    for (size_t i = 0; i < count; ++i)
      for (const Part::Run& run : part.runs)
        std::copy_n(floats.data() + i * head_dim_ + run.first, run.count, vectors.row(i).data() + run.place);
    search(side, which, vectors.view().rows(0, count), ids.view().rows(first, count));
  }
  append_ids(document, part, ids);
}

void RvqCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_shape(shape, rows.cols());
  const Side side = shape.side;
  ends(side).append(rows, tokens(side, document), document, [&](std::span<const uint16_t> halves) {
    for (size_t part = 0; part < parts(side).size(); ++part) quantize(shape, part, halves, document);
  });
}

// Decoding
// ---------------------------------------------------------------------------------------------------------

/// Ids of `tokens` tokens, a row for each head.
Matrix<uint32_t> RvqCodec::read_ids(const Part& part, const StreamReader& document, uint64_t first,
                                    size_t tokens, size_t heads) const {
  const size_t stages = part.books.stages(), per_token = heads * stages;
  Matrix<uint32_t> ids(tokens * heads, stages);
  const std::span<uint32_t> out(ids.data(), ids.size());
  if (part.id_type() == DType::u8)
    std::ranges::copy(document.read<uint8_t>(part.stream, first, tokens, per_token), out.begin());
  else if (part.id_type() == DType::u16)
    std::ranges::copy(document.read<uint16_t>(part.stream, first, tokens, per_token), out.begin());
  else
    std::ranges::copy(document.read<uint32_t>(part.stream, first, tokens, per_token), out.begin());
  const auto bad = std::ranges::find_if(out, [&](uint32_t id) { return id >= part.books.entries(); });
  if (bad != out.end())
    throw bad_input("stream '{}', row {}: id {} of {} entries", part.stream,
                    first + static_cast<uint64_t>(bad - out.begin()) / per_token, *bad, part.books.entries());
  return ids;
}

/// Tokens [first, first + out.rows()) of those that are quantized.
void RvqCodec::decode_quantized(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                MatrixView<float> out) const {
  const size_t heads = heads_of(shape), at_once = tokens_at_once(shape.side, 0);
  Matrix<float> sums;
  for (size_t done = 0; done < out.rows(); done += at_once) {
    const size_t count = std::min(at_once, out.rows() - done);
    for (size_t which = 0; which < parts(shape.side).size(); ++which) {
      const Part& part = parts(shape.side)[which];
      const Matrix<uint32_t> ids = read_ids(part, document, first + done, count, heads);
      if (part.dimensions.empty() && out.contiguous()) {
        sum(shape.side, which, ids, {out.row(done).data(), count * heads, head_dim_});
        continue;
      }
      if (sums.rows() < ids.rows() || sums.cols() != part.books.width())
        sums = Matrix<float>(ids.rows(), part.books.width());
      sum(shape.side, which, ids, sums.view().rows(0, ids.rows()));
      parallel_for(count, 64, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i)
          for (size_t head = 0; head < heads; ++head)
            for (const Part::Run& run : part.runs)
              std::copy_n(sums.row(i * heads + head).data() + run.place, run.count,
                          out.row(done + i).data() + head * head_dim_ + run.first);
      });
    }
  }
}

void RvqCodec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                      MatrixView<float> out) const {
  check_shape(shape, out.cols());
  ends(shape.side)
      .decode(document, document.rows(parts(shape.side)[0].stream), first, out,
              [&](uint64_t at, MatrixView<float> rows) {
                decode_quantized(shape, document, at, rows);
                if (weights_.alike()) return;
                const float scale = weights_.error_scale(shape.first_layer, shape.side);
                for (size_t i = 0; i < rows.rows(); ++i)
                  for (float& value : rows.row(i)) value *= scale;
              });
}

uint64_t RvqView::take_in() { return codec_.tokens(shape().side, document()); }
void RvqView::decode_rows(uint64_t first, MatrixView<float> out) const {
  codec_.decode(shape(), document(), first, out);
}

std::unique_ptr<Options> make_rvq_options() { return std::make_unique<RvqOptions>(); }

std::unique_ptr<Codec> make_rvq(const Options& options, const CodecContext& context) {
  check_context(context);
  if (!context.book)
    throw usage_error("codec rvq needs codebooks: give them with --book (train-rvq makes them)");
  RvqBook book = rvq_book_from(*context.book, false);
  if (book.head_dim != context.head_dim)
    throw bad_input("the codebooks are for heads of {} dimensions; the cache's have {}", book.head_dim,
                    context.head_dim);
  book.weights.check_layers(context.num_layers);
  return std::make_unique<RvqCodec>(dynamic_cast<const RvqOptions&>(options), std::move(book), context);
}

}  // namespace

CodecEntry rvq_codec() {
  return {.name = "rvq",
          .summary = "vectors of a head as sums of entries of codebooks, first and newest tokens exact",
          .capabilities = {.needs_book = true, .device_twin = true, .device_pays = true},
          .book_type = "codebooks",
          .make_options = make_rvq_options,
          .make = make_rvq,
          .paper = {{"beam", int64_t{1}}, {"sink", kPaperSink}, {"window", kPaperWindow}},
          .dial = {.why_not = "its rate is that of the codebooks it was given: train-rvq makes them"},
          .promise = 6,
          .on_demand = false,
          .place = 3};
}

}  // namespace kvcodec
