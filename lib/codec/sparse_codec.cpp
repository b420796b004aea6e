// The codec `sparse`: SparseCache's codes over a learned dictionary (lib/sparse/omp.hpp,
// lib/codec/sparse_book.hpp).
//
// A token's row becomes one signal (or one for each head, if the dictionary was trained so), centred and
// normalised as the dictionary says; its code is up to s pairs of atom and coefficient, in the order in which
// pursuit took them.
//
// Streams of one document of T tokens, S signals per token (1, or H heads), n atoms:
//   ids           u16 (u32 from 65537 atoms on), index bound n     [T][S][s]   with an error target [pairs]
//   coefficients  f16                                              [T][S][s]   with an error target [pairs]
//   count         u8 (u16 from s = 256 on), index bound s + 1      [T][S]      with an error target only:
//   pairs of each signal gain          f16                                              [T][S]      with
//   normalize signal only: norm of the signal
// (no dimension S where S is 1). Without an error target every signal has s pairs; one that needs fewer is
// filled up with coefficients 0 of atom 0. Packed to index_bits(n), that is s * (16 + index_bits(n)) bits per
// signal: the paper's form.
//
// Coefficients are rounded to f16, after pursuit; the relative error that this adds is near 2^-12. One beyond
// f16's range is an error that says what to do; one below 2^-25 becomes 0. The error target is relative to
// the signal as it is coded (centred and normalised) and holds before that rounding.
//
// Gram matrices. The larger the dictionary, the more rows it takes until they pay (Omp::gram_pays); until
// then, and for dictionaries beyond kGramBytes, pursuit goes without. The bytes are the same.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "lib/codec/exact_rows.hpp"
#include "lib/codec/sparse_book.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kIds = "ids", kCoefficients = "coefficients", kCount = "count", kGain = "gain";

/// Largest Gram matrix made, per side: 16384 atoms. The paper's 8192 take a quarter of it.
constexpr uint64_t kGramBytes = uint64_t{512} << 20;

/// Counts read at a time.
constexpr uint64_t kCountsPerRead = 1 << 16;

struct SparseOptions final : Options {
  int64_t sparsity = 0;  ///< the dictionary knows best what it was trained for
  double error_target = 0;
  std::string coefficients = "f16";  ///< the paper's
  std::string selection = "omp";     ///< the paper's

  std::vector<OptionField> fields() override {
    return {
        {"sparsity", "atoms per signal at most; 0 = as many as the dictionary was trained for", &sparsity, 0,
         1 << 16},
        {"error-target", "stop when the relative error of a signal is this small; 0 = always take all atoms",
         &error_target, 0, 1},
        {"coefficients", "type of the coefficients", &coefficients, {}, {}, {"f16"}},
        {"selection",
         "the next atom: the one with the largest correlation (omp), or the one that lowers the error most "
         "(ols: a little better, slower)",
         &selection,
         {},
         {},
         {"omp", "ols"}}};
  }
};

/// One side's dictionary, ready for both directions.
class SideCoder {
 public:
  explicit SideCoder(Dictionary dictionary)
      : normalization_(std::move(dictionary.normalization)),
        omp_(std::make_shared<const Omp>(dictionary.atoms)),
        reconstructor_(dictionary.atoms) {}

  const Normalization& normalization() const { return normalization_; }
  const Reconstructor& reconstructor() const { return reconstructor_; }

  /// The pursuit to use for that many more signals.
  std::shared_ptr<const Omp> omp_for(uint64_t signals, const OmpOptions& options) {
    const std::lock_guard lock(mutex_);
    signals_ += signals;
    const bool pays =
        Omp::gram_bytes(omp_->atoms()) <= kGramBytes && omp_->gram_pays(signals_, options.sparsity);
    if (!omp_->has_gram() && (pays || options.selection == "ols")) {
      // A copy: other threads may still be coding with the one there is.
      auto with_gram = std::make_shared<Omp>(*omp_);
      with_gram->build_gram();
      omp_ = std::move(with_gram);
    }
    return omp_;
  }

 private:
  Normalization normalization_;
  std::mutex mutex_;
  uint64_t signals_ = 0;  // coded so far
  std::shared_ptr<const Omp> omp_;
  Reconstructor reconstructor_;
};

class SparseCodec final : public Codec {
 public:
  SparseCodec(const SparseOptions& options, SparseBook book);

  Record parameters() const override {
    SparseOptions copy = options_;
    return to_record(copy);
  }
  int layer_group() const override { return layout_.layers; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override;

  /// Signals, as they are and coded (ids, coefficients, residuals), and pairs as stored; the same for
  /// decoding.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * sizeof(float) + layout_.signals_per_row() * (pairs() * 14 + 32);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  uint64_t tokens(const GroupShape& shape, const StreamReader& document) const override;
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;

 private:
  size_t pairs() const { return static_cast<size_t>(options_.sparsity); }  // of a signal, at most
  bool variable() const { return options_.error_target > 0; }
  DType id_type() const { return atoms_ <= 65536 ? DType::u16 : DType::u32; }
  DType count_type() const { return options_.sparsity < 256 ? DType::u8 : DType::u16; }
  SideCoder& coder(Side side) const { return side == Side::key ? key_ : value_; }
  void check_shape(const GroupShape& shape, size_t columns) const;
  void append_pairs(const SparseCodes& codes, StreamStore& document) const;
  std::vector<uint32_t> read_unsigned(const StreamReader& document, std::string_view stream, DType type,
                                      uint64_t first, uint64_t count, uint64_t per_row) const;
  std::vector<float> read_halves(const StreamReader& document, std::string_view stream, uint64_t first,
                                 uint64_t count, uint64_t per_row) const;
  template <class Visit>
  void visit_counts(const StreamReader& document, uint64_t first, uint64_t count, Visit visit) const;

  SparseOptions options_;
  SignalLayout layout_;
  uint64_t atoms_ = 0;
  int num_layers_ = 0;
  mutable SideCoder key_, value_;  // what they learn while coding is about speed only
};

SparseCodec::SparseCodec(const SparseOptions& options, SparseBook book)
    : options_(options),
      layout_(book.layout()),
      atoms_(static_cast<uint64_t>(book.options.atoms)),
      num_layers_(book.num_layers),
      key_(std::move(book.key.dictionary)),
      value_(std::move(book.value.dictionary)) {}

void SparseCodec::check_shape(const GroupShape& shape, size_t columns) const {
  check_width(shape, columns);
  if (shape.layers != layout_.layers || shape.heads != layout_.heads || shape.head_dim != layout_.head_dim)
    throw failed("{} layers of {} heads of {}; the dictionary codes {} of {} of {}", shape.layers,
                 shape.heads, shape.head_dim, layout_.layers, layout_.heads, layout_.head_dim);
  if (shape.first_layer < 0 || shape.first_layer + shape.layers > num_layers_)
    throw failed("layers from {} on of a model of {}", shape.first_layer, num_layers_);
}

std::vector<StreamSpec> SparseCodec::streams(const GroupShape& shape) const {
  const uint64_t signals = layout_.signals_per_row(), s = pairs();
  const std::vector<uint64_t> per_signal =
      layout_.per_head ? std::vector<uint64_t>{signals} : std::vector<uint64_t>{};
  std::vector<uint64_t> code = per_signal;
  code.push_back(s);
  if (variable()) code.clear();
  std::vector<StreamSpec> specs{
      {std::string(kIds), id_type(), code, Category::ids, atoms_},
      {std::string(kCoefficients), DType::f16, code, Category::payload},
  };
  if (variable()) specs.push_back({std::string(kCount), count_type(), per_signal, Category::offsets, s + 1});
  if (coder(shape.side).normalization().normalize == Normalize::signal)
    specs.push_back({std::string(kGain), DType::f16, per_signal, Category::scales});
  return specs;
}

// Encoding
// ---------------------------------------------------------------------------------------------------------

std::vector<uint16_t> to_halves(std::span<const float> values, std::string_view what) {
  std::vector<uint16_t> halves(values.size());
  narrow(DType::f16, values, halves);
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(f16_to_float(halves[i])))
      throw bad_input(
          "a {} of {} is beyond the range of f16; train the dictionary with --normalize layer or signal",
          what, values[i]);
  return halves;
}

template <class To, class From>
std::vector<To> converted(std::span<const From> values) {
  std::vector<To> out(values.size());
  std::ranges::transform(values, out.begin(), [](From value) { return static_cast<To>(value); });
  return out;
}

void append_unsigned(StreamStore& document, std::string_view stream, DType type,
                     std::span<const uint32_t> values) {
  if (type == DType::u8)
    document.append_values<uint8_t>(stream, converted<uint8_t>(values));
  else if (type == DType::u16)
    document.append_values<uint16_t>(stream, converted<uint16_t>(values));
  else
    document.append_values<uint32_t>(stream, values);
}

void SparseCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_shape(shape, rows.cols());
  if (rows.rows() == 0) return;
  SideCoder& side = coder(shape.side);
  const size_t signals = rows.rows() * layout_.signals_per_row();
  const bool gained = side.normalization().normalize == Normalize::signal;
  Matrix<float> values(signals, layout_.signal_width());
  std::vector<float> gains(gained ? signals : 0);
  to_signals(side.normalization(), layout_, shape.first_layer, rows, values, gains);
  OmpOptions pursuit;
  pursuit.sparsity = options_.sparsity;
  pursuit.error_target = options_.error_target;
  pursuit.selection = options_.selection;
  const SparseCodes codes = side.omp_for(signals, pursuit)->encode(values, pursuit);
  append_pairs(codes, document);
  if (gained) document.append_values<uint16_t>(kGain, to_halves(gains, "norm"));
}

void SparseCodec::append_pairs(const SparseCodes& codes, StreamStore& document) const {
  if (!variable()) {
    const auto halves = to_halves({codes.coefficients.data(), codes.coefficients.size()}, "coefficient");
    append_unsigned(document, kIds, id_type(), {codes.ids.data(), codes.ids.size()});
    document.append_values<uint16_t>(kCoefficients, halves);
    return;
  }
  std::vector<uint32_t> ids;
  std::vector<float> coefficients;
  for (size_t i = 0; i < codes.counts.size(); ++i) {
    const auto id_row = codes.ids.row(i).first(codes.counts[i]);
    const auto coefficient_row = codes.coefficients.row(i).first(codes.counts[i]);
    ids.insert(ids.end(), id_row.begin(), id_row.end());
    coefficients.insert(coefficients.end(), coefficient_row.begin(), coefficient_row.end());
  }
  const auto halves = to_halves(coefficients, "coefficient");
  append_unsigned(document, kIds, id_type(), ids);
  document.append_values<uint16_t>(kCoefficients, halves);
  append_unsigned(document, kCount, count_type(), codes.counts);
}

// Decoding
// ---------------------------------------------------------------------------------------------------------

std::vector<uint32_t> SparseCodec::read_unsigned(const StreamReader& document, std::string_view stream,
                                                 DType type, uint64_t first, uint64_t count,
                                                 uint64_t per_row) const {
  if (type == DType::u8)
    return converted<uint32_t>(
        std::span<const uint8_t>(document.read<uint8_t>(stream, first, count, per_row)));
  if (type == DType::u16)
    return converted<uint32_t>(
        std::span<const uint16_t>(document.read<uint16_t>(stream, first, count, per_row)));
  return document.read<uint32_t>(stream, first, count, per_row);
}

std::vector<float> SparseCodec::read_halves(const StreamReader& document, std::string_view stream,
                                            uint64_t first, uint64_t count, uint64_t per_row) const {
  const auto halves = document.read<uint16_t>(stream, first, count, per_row);
  std::vector<float> values(halves.size());
  widen(DType::f16, halves, values);
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw bad_input("stream '{}': row {} is not finite", stream, first + i / per_row);
  return values;
}

/// Calls visit(pairs of a signal) for the signals of tokens [first, first + count).
template <class Visit>
void SparseCodec::visit_counts(const StreamReader& document, uint64_t first, uint64_t count,
                               Visit visit) const {
  const uint64_t per_row = layout_.signals_per_row(),
                 rows_per_read = std::max<uint64_t>(kCountsPerRead / per_row, 1);
  for (uint64_t done = 0; done < count; done += rows_per_read) {
    const uint64_t rows = std::min(rows_per_read, count - done);
    for (const uint32_t pairs_of_signal :
         read_unsigned(document, kCount, count_type(), first + done, rows, per_row)) {
      if (pairs_of_signal > pairs())
        throw bad_input("stream '{}': {} pairs for a signal that has {} at most", kCount, pairs_of_signal,
                        pairs());
      visit(pairs_of_signal);
    }
  }
}

uint64_t SparseCodec::tokens(const GroupShape& shape, const StreamReader& document) const {
  const uint64_t codes = document.rows(kIds);
  if (document.rows(kCoefficients) != codes)
    throw bad_input("{} rows of '{}' and {} of '{}'", codes, kIds, document.rows(kCoefficients),
                    kCoefficients);
  uint64_t tokens = codes;
  if (variable()) {
    tokens = document.rows(kCount);
    uint64_t sum = 0;
    visit_counts(document, 0, tokens, [&](uint32_t pairs_of_signal) { sum += pairs_of_signal; });
    if (sum != codes) throw bad_input("stream '{}' adds up to {} pairs; there are {}", kCount, sum, codes);
  }
  if (coder(shape.side).normalization().normalize == Normalize::signal && document.rows(kGain) != tokens)
    throw bad_input("{} rows of '{}' for {} tokens", document.rows(kGain), kGain, tokens);
  return tokens;
}

void SparseCodec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                         MatrixView<float> out) const {
  check_shape(shape, out.cols());
  const uint64_t there = document.rows(variable() ? kCount : kIds);
  if (first > there || out.rows() > there - first)
    throw bad_input("there are {} tokens; tokens {} to {} are not all there", there, first,
                    first + out.rows());
  if (out.rows() == 0) return;
  const uint64_t per_row = layout_.signals_per_row();
  const size_t signals = out.rows() * per_row;
  uint64_t first_row = first, rows = out.rows(), row_pairs = per_row * pairs();
  std::vector<uint64_t> offsets;
  if (variable()) {
    first_row = 0, row_pairs = 1;
    visit_counts(document, 0, first, [&](uint32_t pairs_of_signal) { first_row += pairs_of_signal; });
    offsets.push_back(0);
    visit_counts(document, first, out.rows(),
                 [&](uint32_t pairs_of_signal) { offsets.push_back(offsets.back() + pairs_of_signal); });
    rows = offsets.back();
  } else {
    offsets = uniform_offsets(signals, pairs());
  }
  const auto ids = read_unsigned(document, kIds, id_type(), first_row, rows, row_pairs);
  const auto coefficients = read_halves(document, kCoefficients, first_row, rows, row_pairs);
  const SideCoder& side = coder(shape.side);
  std::vector<float> gains;
  if (side.normalization().normalize == Normalize::signal)
    gains = read_halves(document, kGain, first, out.rows(), per_row);
  Matrix<float> values(signals, layout_.signal_width());
  with_context(fmt::format("stream '{}'", kIds), [&] {
    side.reconstructor().run({ids, coefficients, offsets}, values);
  });
  from_signals(side.normalization(), layout_, shape.first_layer, values, gains, out);
}

// Making one
// -------------------------------------------------------------------------------------------------------

std::unique_ptr<Options> make_options() { return std::make_unique<SparseOptions>(); }

/// Refuses codes that are larger than the signals themselves at 16 bits.
void check_size(const SparseOptions& options, const SparseBook& book) {
  const size_t width = book.layout().signal_width();
  const auto s = static_cast<uint64_t>(options.sparsity), n = static_cast<uint64_t>(book.options.atoms);
  if (s > width) throw usage_error("sparsity is {}; signals have only {} values", s, width);
  if (s > n) throw usage_error("sparsity is {}; the dictionary has only {} atoms", s, n);
  uint64_t extra = 0;
  if (options.error_target > 0) extra += options.sparsity < 256 ? 8 : 16;
  if (book.options.normalize == "signal") extra += 16;
  const uint64_t pair_bits = 16 + index_bits(n), raw = 16 * width;
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
  if (book.num_layers != context.num_layers || book.heads != context.heads ||
      book.head_dim != context.head_dim)
    throw bad_input("the dictionary is for {} layers of {} heads of {}; the cache has {} of {} of {}",
                    book.num_layers, book.heads, book.head_dim, context.num_layers, context.heads,
                    context.head_dim);
  SparseOptions chosen = dynamic_cast<const SparseOptions&>(options);
  if (chosen.sparsity == 0) chosen.sparsity = book.options.sparsity;
  if (!(chosen.error_target < 1))
    throw usage_error("error-target is {}; it must be below 1", chosen.error_target);
  check_size(chosen, book);
  return std::make_unique<SparseCodec>(chosen, std::move(book));
}

}  // namespace

CodecEntry sparse_codec() {
  return {.name = "sparse",
          .summary = "sparse codes over a learned dictionary (SparseCache)",
          .capabilities = {.needs_book = true},
          .book_type = "dictionary",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
