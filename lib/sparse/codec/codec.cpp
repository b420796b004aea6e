// The codec `sparse`: SparseCache's codes over a learned dictionary (lib/sparse/omp.hpp,
// lib/sparse/codec/book.hpp).
//
// A token's row becomes one signal (or one for each head, if the dictionary was trained so), centred and
// normalised as the dictionary says; its code is up to s pairs of atom and coefficient, in the order in which
// pursuit took them.
//
// Streams: lib/sparse/codec/streams.hpp. Unsorted, in 16 bits and packed to index_bits(n), that is s *
// (16 + index_bits(n)) bits per signal: the paper's form.
//
// Coefficients are rounded after pursuit. In f16 the relative error that this adds is near 2^-12; one beyond
// f16's range is an error that says what to do, one below 2^-25 becomes 0. In other types those of a signal
// are rounded jointly (lib/sparse/coefficients.hpp). The error target is relative to the signal as it is
// coded (centred and normalised) and holds before that rounding.
//
// Products without decoding. A product of a query with a decoded key is the sum over the pairs of its code of
// coefficient times the product of query and atom; those are the same for all tokens. A sum of decoded values
// is a sum of atoms likewise. Where many queries are asked at a time decoding costs less (straight_pays).
//
// Gram matrices. The larger the dictionary, the more rows it takes until they pay (Omp::gram_pays); until
// then, and for dictionaries beyond kGramBytes, pursuit goes without. The bytes are the same. Selection ols
// cannot do without and refuses such dictionaries.
#include "lib/sparse/codec/codec.hpp"

#include "lib/codec/exact_rows.hpp"
#include "lib/core/bits.hpp"

namespace kvcodec {
namespace sparse {

SparseCodec::SparseCodec(const SparseOptions& options, SparseBook book, Engine* engine)
    : options_(options),
      book_(std::move(book)),
      layout_(book_.layout()),
      atoms_(static_cast<uint64_t>(book_.options.atoms)),
      engine_(engine) {
  for (SparseBook::Part& part : book_.parts) {
    parts_.push_back(std::unique_ptr<Part>(new Part{SideCoder(std::move(part.key.dictionary), engine),
                                                    SideCoder(std::move(part.value.dictionary), engine)}));
    part.key = part.value = {};
  }
}

Record SparseCodec::parameters() const {
  SparseOptions copy = options_;
  return parameters_of(form(Side::key), to_record(copy));
}

SparseForm SparseCodec::form(Side side) const {
  return {.atoms = atoms_,
          .sparsity = pairs(),
          .signals = layout_.signals_per_row(),
          .per_head = layout_.per_head,
          .variable = options_.error_target > 0,
          .gains = gained(side),
          .coefficients = options_.coefficients,
          .sorted = options_.sort_ids};
}

void SparseCodec::check_shape(const GroupShape& shape, size_t columns) const {
  check_width(shape, columns);
  if (shape.layers != layout_.layers || shape.heads != layout_.heads || shape.head_dim != layout_.head_dim)
    throw failed("{} layers of {} heads of {}; the dictionary codes {} of {} of {}", shape.layers,
                 shape.heads, shape.head_dim, layout_.layers, layout_.heads, layout_.head_dim);
  if (shape.first_layer < 0 || shape.first_layer + shape.layers > book_.num_layers)
    throw failed("a group begins at layer {}; the model has {} layers", shape.first_layer, book_.num_layers);
}

namespace {

std::unique_ptr<Options> make_options() { return std::make_unique<SparseOptions>(); }

/// Refuses codes that are larger than the signals themselves at 16 bits.
void check_size(const SparseOptions& options, const SparseBook& book) {
  const size_t width = book.layout().signal_width();
  const auto s = static_cast<uint64_t>(options.sparsity), n = static_cast<uint64_t>(book.options.atoms);
  if (s > width) throw usage_error("sparsity is {}; signals have only {} values", s, width);
  if (s > n) throw usage_error("sparsity is {}; the dictionary has only {} atoms", s, n);
  const CoefficientType type = options.coefficients;
  uint64_t extra = scale_bits(type);
  if (options.error_target > 0) extra += options.sparsity < 256 ? 8 : 16;
  if (book.options.normalize == Normalize::signal) extra += 16;
  const uint64_t pair_bits = coefficient_bits(type) + index_bits(n), raw = 16 * width;
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
  return {.name = "sparse",
          .summary = "sparse codes over a learned dictionary (SparseCache)",
          .capabilities = {.needs_book = true, .multiplies = true, .device_twin = true, .device_pays = true},
          .book_type = "dictionary",
          .make_options = sparse::make_options,
          .make = sparse::make,
          .paper = {{"coefficients", "f16"}, {"sort-ids", false}, {"sink", int64_t{0}}},
          .dial = {.sets = {"sparsity"}, .least = 1, .most = 1 << 16, .whole = true, .turn = sparse::turn},
          .promise = 5,
          .on_demand = false,
          .place = 2};
}

}  // namespace kvcodec
