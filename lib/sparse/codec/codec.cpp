// The codec `sparse`: SparseCache's codes over a learned dictionary (lib/sparse/omp.hpp, lib/sparse/codec/book.hpp).
//
// A token's row becomes one signal (or one for each head, if the dictionary was trained so), centred and normalised as the dictionary says;
// its code is up to s pairs of atom and coefficient, in the order in which pursuit took them.
//
// Streams: lib/sparse/codec/streams.hpp. Unsorted, in 16 bits and packed to index_bits(n), that is s *
// (16 + index_bits(n)) bits per signal: the paper's form.
//
// Coefficients are rounded after pursuit. In f16 the relative error that this adds is near 2^-12; one beyond f16's range is an error that
// says what to do, one below 2^-25 becomes 0. As i8 those of a signal are rounded jointly (lib/sparse/coefficients.hpp). The error
// target is relative to the signal as it is coded (centred and normalised) and holds before that rounding.
//
// Products without decoding. A product of a query with a decoded key is the sum over the pairs of its code of
// coefficient times the product of query and atom; those are the same for all tokens. A sum of decoded values
// is a sum of atoms likewise. Where many queries are asked at a time decoding costs less (straight_pays).
//
// Gram matrices. The larger the dictionary, the more rows it takes until they pay (Omp::gram_pays); until then, and for dictionaries beyond
// kGramBytes, pursuit goes without. The bytes are the same.
#include "lib/codec/codec.hpp"

#include <algorithm>
#include <cmath>
#include <list>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/codec/book.hpp"
#include "lib/sparse/codec/streams.hpp"
#include "lib/sparse/codec/view.hpp"
#include "lib/sparse/coefficients.hpp"

namespace kvcodec {
namespace sparse {
namespace {

struct SparseOptions final : Options {
  int64_t sparsity = 0;  ///< the dictionary knows best what it was trained for
  double error_target = 0;
  CoefficientType coefficients = CoefficientType::i8;  ///< the paper's is f16: twice the bits for 0.04 dB
  /// The order that the paper keeps says nothing, and takes a quarter of the bits and more.
  bool sort_ids = true;
  double rounding_error = 0.01;  ///< half of it costs as many bits as a whole atom, which gains more
  int64_t sink = kBestSink;      ///< the paper has none

  std::vector<OptionField> fields() override {
    return {
        {"sparsity", "atoms per signal at most; 0 = as many as the dictionary was trained for", &sparsity, 0,
         1 << 16},
        {"error-target", "stop when the relative error of a signal is this small; 0 = always take all atoms",
         &error_target, 0, 1},
        {"coefficients", "type of the coefficients; with i8 each signal has a scale of 8 bits",
         &coefficients},
        {"sort-ids",
         "keep the order in which a code's atoms were taken; by default ids are sorted, and their gaps and the coefficients are "
         "entropy-coded",
         &sort_ids},
        {"rounding-error",
         "with coefficients i8: the error energy that rounding them may add, as a fraction of the "
         "signal's error energy; more rounding takes fewer bits in sorted codes. 0 = finest rounding",
         &rounding_error, 0, 1},
        sink_field(sink)};
  }

  void check() const override {
    if (coefficients != CoefficientType::i8 && rounding_error != SparseOptions{}.rounding_error)
      throw usage_error(
          "rounding-error is {}; coefficients of type {} are always rounded as well as they can be: it goes with coefficients i8",
          rounding_error, coefficients);
  }
};

class SparseCodec final : public Codec {
 public:
  SparseCodec(const SparseOptions& options, SparseBook book, Engine* engine)
      : options_(options), book_(std::move(book)), group_(book_.layout().layers), engine_(engine) {
    for (SparseBook::Part& part : book_.parts) {
      Part& coders = parts_.emplace_back();
      for (const Side side : book_.sides())
        (side == Side::key ? coders.key : coders.value) =
            std::make_unique<SideCoder>(std::move(part.of(side).dictionary), engine);
      part.key = part.value = {};
    }
  }

  Record parameters() const override { return parameters_of(form(Side::key), record_of(options_)); }
  std::vector<int> group_of(int layer) const override { return consecutive(layer - layer % group_, group_); }
  /// Refuses layers that the dictionary was trained without, before there is any work.
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    (void)book_.part_for(shape.first_layer());
    return form(shape.side).streams();
  }

  /// Signals, as they are and coded (ids, coefficients, residuals), and pairs as stored and sorted; the same for decoding.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * sizeof(float) + book_.layout().signals_per_row() * (pairs() * 24 + 40);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_shape(shape, rows.cols());
    if (rows.rows() == 0) return;
    SideCoder& side = coder(shape);
    const SignalLayout layout = book_.layout(shape.side);
    const size_t signals = rows.rows() * layout.signals_per_row();
    std::vector<float> gains(gained(shape.side) ? signals : 0);
    Matrix<float> values(signals, layout.signal_width());
    to_signals(side.normalization(), layout, shape.first_layer(), rows, values, gains);
    const OmpOptions pursuit{options_.sparsity, options_.error_target};
    const bool i8 = options_.coefficients == CoefficientType::i8;
    SparseCodes codes;
    std::shared_ptr<const Omp> omp;
    if (side.encode_on_device(values, pursuit, codes))
      omp = i8 ? side.any_omp() : nullptr;
    else
      omp = omp_for(side, signals, pursuit), codes = omp->encode(values, pursuit);
    SparsePairs stored{.counts = codes.counts, .ids = {}, .words = {}, .scales = {}, .gains = {}};
    std::vector<float> coefficients;
    for (size_t i = 0; i < signals; ++i) {
      append_to(stored.ids, codes.ids.row(i).first(codes.counts[i]));
      append_to(coefficients, codes.coefficients.row(i).first(codes.counts[i]));
    }
    if (i8)
      round_jointly(*omp, codes, coefficients, stored);
    else
      stored.words = coefficients_in_f16(coefficients);
    stored.gains.resize(gains.size());
    narrow(DType::f16, gains, stored.gains);  // they are f16 numbers already
    form(shape.side).append(std::move(stored), document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    check_shape(shape, shape.width());
    return std::make_unique<SparseView>(form(shape.side), book_.layout(shape.side), coder(shape), engine_,
                                        shape, document);
  }

 private:
  size_t pairs() const { return as_size(options_.sparsity); }  // of a signal, at most
  bool gained(Side side) const {
    return parts_.front().of(side).normalization().normalize == Normalize::signal;
  }
  SideCoder& coder(const GroupShape& shape) const {
    return parts_[book_.part_for(shape.first_layer())].of(shape.side);
  }

  SparseForm form(Side side) const {
    return {.atoms = static_cast<uint64_t>(book_.options.atoms),
            .sparsity = pairs(),
            .signals = book_.layout().signals_per_row(),
            .per_head = book_.layout().per_head,
            .variable = options_.error_target > 0,
            .gains = gained(side),
            .coefficients = options_.coefficients,
            .sorted = options_.sort_ids};
  }

  void check_shape(const GroupShape& shape, size_t columns) const {
    check_width(shape, columns);
    const SignalLayout layout = book_.layout(shape.side);
    if (shape.layers != group_of(shape.first_layer()) || shape.heads() != layout.heads ||
        shape.head_dim() != layout.head_dim)
      throw failed("{} layers of {} heads of {}; the dictionary codes {} of {} of {}", shape.layers.size(),
                   shape.heads(), shape.head_dim(), layout.layers, layout.heads, layout.head_dim);
    if (shape.first_layer() < 0 || shape.layers.back() >= book_.num_layers)
      throw failed("a group begins at layer {}; the model has {} layers", shape.first_layer(),
                   book_.num_layers);
  }

  /// The pursuit of one of the dictionaries. Of many dictionaries those used last keep their Gram matrices.
  std::shared_ptr<const Omp> omp_for(SideCoder& side, uint64_t signals, const OmpOptions& options) const {
    auto omp = side.omp_for(signals, options);
    if (!omp->has_gram()) return omp;
    const std::lock_guard lock(mutex_);
    with_gram_.remove(&side);
    with_gram_.push_front(&side);
    const size_t limit =
        std::max<size_t>(std::size(kSides), kGramBytes / Omp::gram_bytes(as_size(book_.options.atoms)));
    while (with_gram_.size() > limit) {
      with_gram_.back()->drop_gram();
      with_gram_.pop_back();
    }
    return omp;
  }

  /// Rounds the coefficients of each signal, which stand in `coefficients` one signal behind the other, into
  /// the words and scales of `stored`.
  void round_jointly(const Omp& omp, const SparseCodes& codes, std::span<const float> coefficients,
                     SparsePairs& stored) const {
    const size_t signals = stored.counts.size();
    std::vector<size_t> firsts(signals);
    std::exclusive_scan(stored.counts.begin(), stored.counts.end(), firsts.begin(), size_t{0});
    stored.words.resize(coefficients.size());
    stored.scales.resize(signals);
    constexpr size_t kSignalsPerPiece = 16;
    parallel_for(signals, kSignalsPerPiece, [&](size_t begin, size_t end, int) {
      JointRounder rounder;
      Matrix<float> products(pairs(), pairs());
      for (size_t i = begin; i < end; ++i) {
        const size_t first = firsts[i], count = stored.counts[i];
        const MatrixView<float> gram = products.view().rows(0, count).columns(0, count);
        omp.products_of(std::span(stored.ids).subspan(first, count), gram);
        const double allowed = options_.rounding_error * codes.residuals[i] * codes.residuals[i];
        stored.scales[i] = rounder.round(gram, coefficients.subspan(first, count), allowed,
                                         std::span(stored.words).subspan(first, count));
      }
    });
  }

  struct Part {
    std::unique_ptr<SideCoder> key, value;  // what they learn while coding is about speed only
    SideCoder& of(Side side) const { return side == Side::key ? *key : *value; }
  };

  SparseOptions options_;
  SparseBook book_;  // without its dictionaries, which the parts have
  int group_;        // layers of a group
  Engine* engine_;
  std::vector<Part> parts_;
  mutable std::mutex mutex_;
  mutable std::list<SideCoder*> with_gram_;  // the one used last in front
};

/// Refuses options of no pursuit, and codes that are larger than the signals themselves at 16 bits.
void check_size(const SparseOptions& options, const SparseBook& book) {
  size_t width = book.layout().signal_width();
  for (const Side side : book.sides()) width = std::min(width, book.layout(side).signal_width());
  const auto s = static_cast<uint64_t>(options.sparsity), n = static_cast<uint64_t>(book.options.atoms);
  OmpOptions{options.sparsity, options.error_target}.check(width, n);
  const bool i8 = options.coefficients == CoefficientType::i8;
  uint64_t extra = i8 ? 8 : 0;
  if (options.error_target > 0) extra += options.sparsity < 256 ? 8 : 16;
  if (book.options.normalize == Normalize::signal) extra += 16;
  const uint64_t pair_bits = (i8 ? 8 : 16) + index_bits(n), raw = 16 * width;
  if (s * pair_bits + extra <= raw) return;
  if (raw < pair_bits + extra)
    throw usage_error(
        "signals of {} values are too small to be coded with {} atoms: one atom takes {} bits, the values {}",
        width, n, pair_bits + extra, raw);
  throw usage_error(
      "sparsity is {}: {} bits per signal, more than the {} of its values; it can be {} at most", s,
      s * pair_bits + extra, raw, (raw - extra) / pair_bits);
}

std::unique_ptr<Codec> make(const Options& options, const CodecContext& context) {
  check_context(context);
  if (!context.book)
    throw usage_error("codec sparse needs a dictionary: give it with --book (train-dict makes one)");
  SparseBook book = sparse_book_from(*context.book, false);
  if (book.num_layers != context.num_layers || !book.layer().same_rows(context.layer_shape(0)))
    throw bad_input("the dictionary is for {} layers of {} heads of {}; the cache has {} of {} of {}",
                    book.num_layers, book.heads, book.head_dim, context.num_layers, context.heads,
                    context.head_dim);
  SparseOptions chosen = dynamic_cast<const SparseOptions&>(options);
  if (chosen.sparsity == 0) chosen.sparsity = book.options.sparsity;
  check_size(chosen, book);
  const int64_t sink = chosen.sink;
  return keep_first_tokens(std::make_unique<SparseCodec>(chosen, std::move(book), context.engine), sink,
                           context.storage);
}

void turn(Options& options, double setting, bool) {
  dynamic_cast<SparseOptions&>(options).sparsity = std::llround(setting);
}

}  // namespace
}  // namespace sparse

CodecEntry sparse_codec() {
  return {
      .name = "sparse",
      .summary = "sparse codes over a learned dictionary (SparseCache)",
      .capabilities = {.needs_book = true, .multiplies = true, .device_twin = true, .device_pays = true},
      .book_type = "dictionary",
      .make_options = [] { return std::make_unique<sparse::SparseOptions>(); },
      .make = sparse::make,
      .paper = {{"coefficients", "f16"}, {"sort-ids", false}, {"sink", int64_t{0}}},
      .dial = {.sets = {"sparsity"}, .lowest = 1, .highest = 1 << 16, .whole = true, .turn = sparse::turn},
      .promise = 5,
      .on_demand = false,
      .place = 2};
}

}  // namespace kvcodec
