// The codec `rvq`: VQKV. A token's value in one head is a sum of entries of codebooks, one of each (lib/rvq); of its key, low and high
// dimensions are quantized apart. One set of codebooks (lib/rvq/codec/book.hpp) serves all layers and heads.
//
// Exempt. The first `sink` tokens of a document and its newest `window` tokens are kept at 16 bits, with window -1 a 64th of the document
// and 1024 at most. What falls out of the window as tokens are appended is quantized together, in one batch per append; of T tokens Q =
// max(0, T - sink - window) are quantized, whatever the pieces they came in.
//
// Streams of one document, H heads of d dimensions:
//   sink  bf16|f16 [min(T, sink)][H][d]
//   ids        u8|u16|u32 [Q][H][N_q], index bound N_c          values
//   low_ids, high_ids     likewise                              keys
//   tail  bf16|f16 [T - sink - Q][H][d]
//
// If ids would not be smaller than 16 bits per value (very small heads), nothing is ever quantized.
#include <algorithm>
#include <deque>
#include <memory>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
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
             &beam, 1, static_cast<double>(ResidualEncoder::kMaxHypotheses)},
            {"sink", "first tokens of a document kept exactly", &sink, 0, 1 << 24},
            {"window", "newest tokens of a document kept exactly; -1: a 64th of it, and 1024 at most",
             &window, kUsualWindow, 1 << 24}};
  }
};

/// One quantizer: its codebooks, what its stream is called, and which dimensions of a head it serves.
struct Part {
  /// Dimensions that lie side by side: how rows are taken apart and put together.
  struct Run {
    size_t first = 0, place = 0, count = 0;
  };

  Part(std::string name, Codebooks codebooks, std::span<const uint32_t> dimensions)
      : stream(std::move(name)), books(std::move(codebooks)) {
    for (size_t i = 0; i < dimensions.size(); ++i)
      if (!runs.empty() && runs.back().first + runs.back().count == dimensions[i])
        ++runs.back().count;
      else
        runs.push_back({dimensions[i], i, 1});
  }

  DType id_type() const {
    return books.entries() <= 256 ? DType::u8 : books.entries() <= 65536 ? DType::u16 : DType::u32;
  }

  std::string stream;
  Codebooks books;
  std::vector<Run> runs;
  Lazy<std::unique_ptr<ResidualEngine>> on_device;
  Lazy<ResidualEncoder> encoder;
};

/// Settings for coding documents; outlives all views.
struct Coding {
  RvqOptions options;
  DType storage;
  Engine* engine;
  std::array<size_t, 2> dims;  // of a head's key and value
  LayerWeights weights;
  std::deque<Part> key = {}, value = {};

  const std::deque<Part>& parts(Side side) const { return side == Side::key ? key : value; }

  /// First and newest tokens are exact; all are where ids are not smaller than 16-bit values.
  ExactEnds ends(Side side) const {
    size_t bytes = 0;
    for (const Part& part : parts(side)) bytes += part.books.stages() * size_of(part.id_type());
    if (bytes >= dims[side == Side::value] * 2) return ExactEnds::everything(storage);
    return {storage, static_cast<uint64_t>(options.sink), options.window, kPaperWindow};
  }

  const ResidualEngine* device(const Part& part) const {
    if (!engine) return nullptr;
    return part.on_device.get([&] { return engine->make<ResidualEngine>(part.books); }).get();
  }
  /// Tokens to encode or decode at a time.
  size_t tokens_at_once(const Part& part) const { return device(part) ? kTokensForDevice : kTokensAtOnce; }
};

class RvqView final : public DocumentView {
 public:
  RvqView(const Coding& coding, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), coding_(coding), parts_(coding.parts(shape.side)) {}

 protected:
  uint64_t take_in() override {
    quantized_ = document().rows(parts_[0].stream);
    for (const Part& part : parts_)
      if (document().rows(part.stream) != quantized_)
        throw bad_input("stream '{}' has {} rows; '{}' has {}", part.stream, document().rows(part.stream),
                        parts_[0].stream, quantized_);
    return coding_.ends(shape().side).tokens(document(), quantized_);
  }

  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    const auto decode = [&](uint64_t at, MatrixView<float> rows) {
      decode_quantized(at, rows);
      if (coding_.weights.alike()) return;
      const float scale = coding_.weights.error_scale(shape().first_layer(), shape().side);
      for (size_t i = 0; i < rows.rows(); ++i)
        for (float& value : rows.row(i)) value *= scale;
    };
    coding_.ends(shape().side).decode(document(), quantized_, first, out, decode);
  }

 private:
  /// Ids of `tokens` tokens, a row for each head.
  Matrix<uint32_t> read_ids(const Part& part, uint64_t first, size_t tokens) const {
    const size_t heads = shape().all_heads(), per_token = heads * part.books.stages();
    Matrix<uint32_t> ids(tokens * heads, part.books.stages());
    const std::span<uint32_t> out(ids.data(), ids.size());
    with_unsigned(part.id_type(), [&]<class T>(T) {
      std::ranges::copy(document().read<T>(part.stream, first, tokens, per_token), out.begin());
    });
    const auto bad = std::ranges::find_if(out, [&](uint32_t id) { return id >= part.books.entries(); });
    if (bad != out.end())
      throw bad_input("stream '{}', row {}: id {} of {} entries", part.stream,
                      first + static_cast<uint64_t>(bad - out.begin()) / per_token, *bad,
                      part.books.entries());
    return ids;
  }

  /// Tokens [first, first + out.rows()) of those that are quantized.
  void decode_quantized(uint64_t first, MatrixView<float> out) const {
    const size_t heads = shape().all_heads(), d = shape().dims(), at_once = coding_.tokens_at_once(parts_[0]);
    const auto sum = [&](const Part& part, const Matrix<uint32_t>& ids, MatrixView<float> to) {
      const ResidualEngine* device = coding_.device(part);
      if (!device || !device->sum_entries(ids, to)) sum_entries(part.books, ids, to);
    };
    Matrix<float> sums;
    for (size_t done = 0; done < out.rows(); done += at_once) {
      const size_t count = std::min(at_once, out.rows() - done);
      for (const Part& part : parts_) {
        const Matrix<uint32_t> ids = read_ids(part, first + done, count);
        if (part.books.width() == d && out.contiguous()) {
          sum(part, ids, {out.row(done).data(), count * heads, d});
          continue;
        }
        if (sums.rows() < ids.rows() || sums.cols() != part.books.width())
          sums = Matrix<float>(ids.rows(), part.books.width());
        sum(part, ids, sums.view().rows(0, ids.rows()));
        parallel_each(count, 64, [&](size_t i) {
          for (size_t head = 0; head < heads; ++head)
            for (const Part::Run& run : part.runs)
              std::copy_n(sums.row(i * heads + head).data() + run.place, run.count,
                          out.row(done + i).data() + head * d + run.first);
        });
      }
    }
  }

  const Coding& coding_;
  const std::deque<Part>& parts_;
  uint64_t quantized_ = 0;
};

class RvqCodec final : public Codec {
 public:
  RvqCodec(const RvqOptions& options, RvqBook book, const CodecContext& context)
      : coding_{options,
                context.storage,
                context.engine,
                {book.dims(Side::key), book.dims(Side::value)},
                std::move(book.weights)} {
    const auto all = numbers_below<uint32_t>(coding_.dims[1]);
    if (!all.empty()) coding_.value.emplace_back("ids", std::move(book.of(RvqPart::value).books), all);
    coding_.key.emplace_back("low_ids", std::move(book.of(RvqPart::key_low).books), book.split.low);
    if (!book.split.high.empty())
      coding_.key.emplace_back("high_ids", std::move(book.of(RvqPart::key_high).books), book.split.high);
  }

  Record parameters() const override { return record_of(coding_.options); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const ExactEnds ends = coding_.ends(shape.side);
    std::vector<StreamSpec> specs{ends.sink_stream(shape)};
    for (const Part& part : coding_.parts(shape.side))
      specs.push_back({part.stream,
                       part.id_type(),
                       {shape.all_heads(), part.books.stages()},
                       Category::ids,
                       part.books.entries()});
    specs.push_back(ends.tail_stream(shape));
    return specs;
  }

  /// 16-bit rows twice, and ids, which are fewer bytes than those; for a device rows as floats, taken apart
  /// by codebooks, and as it takes them.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * (coding_.engine ? 20 : 8);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const auto quantize_all = [&](std::span<const uint16_t> halves) {
      for (const Part& part : coding_.parts(shape.side)) quantize(shape, part, halves, document);
    };
    coding_.ends(shape.side).append(rows, open(shape, document)->tokens(), document, quantize_all);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<RvqView>(coding_, shape, document);
  }

 private:
  /// halves: whole tokens that fell out of the window, [heads][head_dim] each.
  void quantize(const GroupShape& shape, const Part& part, std::span<const uint16_t> halves,
                StreamStore& document) const {
    const size_t d = shape.dims(), rows = halves.size() / d,
                 at_once = coding_.tokens_at_once(part) * shape.all_heads(),
                 beam = as_size(coding_.options.beam);
    const float scale = 1 / coding_.weights.error_scale(shape.first_layer(), shape.side);
    Matrix<uint32_t> ids(rows, part.books.stages());
    Matrix<float> vectors(std::min(rows, at_once), part.books.width());
    std::vector<float> floats;
    for (size_t first = 0; first < rows; first += at_once) {
      const size_t count = std::min(at_once, rows - first);
      floats.resize(count * d);
      // The 16-bit values are quantized, whether they waited in the tail or came just now.
      widen(coding_.storage, halves.subspan(first * d, count * d), floats);
      if (!coding_.weights.alike())
        for (float& value : floats) value *= scale;
      for (size_t i = 0; i < count; ++i)
        for (const Part::Run& run : part.runs)
          std::copy_n(floats.data() + i * d + run.first, run.count, vectors.row(i).data() + run.place);
      const auto some = vectors.view().rows(0, count);
      const auto found = ids.view().rows(first, count);
      if (const auto* device = coding_.device(part); !device || !device->encode(some, beam, found))
        part.encoder.get([&] { return ResidualEncoder(part.books); }).encode(some, beam, found);
    }
    append_unsigned<uint32_t>(document, part.stream, part.id_type(), {ids.data(), ids.size()});
  }

  Coding coding_;
};

std::unique_ptr<Codec> make_rvq(const Options& options, const CodecContext& context) {
  check_context(context);
  if (!context.book)
    throw usage_error("codec rvq needs codebooks: give them with --book (train-rvq makes them)");
  RvqBook book = rvq_book_from(*context.book, false);
  if (!layer_of(context.heads, book.head_dim, book.value_dim).same_rows(context.layer_shape(0)))
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
          .make_options = [] { return std::make_unique<RvqOptions>(); },
          .make = make_rvq,
          .paper = {{"beam", int64_t{1}}, {"sink", kPaperSink}, {"window", kPaperWindow}},
          .dial = {.why_not = "its rate is that of the codebooks it was given: train-rvq makes them"},
          .promise = 6,
          .on_demand = false,
          .place = 3};
}

}  // namespace kvcodec
