// The codec `sparse`: SparseCache's codes over a learned dictionary (lib/sparse/omp.hpp,
// lib/codec/sparse_book.hpp).
//
// A token's row becomes one signal (or one for each head, if the dictionary was trained so), centred and
// normalised as the dictionary says; its code is up to s pairs of atom and coefficient, in the order in which
// pursuit took them.
//
// What is stored: lib/codec/sparse_streams.hpp. Unsorted, in 16 bits and packed to index_bits(n), that is s *
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
#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>
#include <numeric>
#include <optional>

#include "lib/codec/engine.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/codec/products.hpp"
#include "lib/codec/sparse_book.hpp"
#include "lib/codec/sparse_streams.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/sparse/coefficients.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec {
namespace {

/// Largest Gram matrix made, per side: 16384 atoms. The paper's 8192 take a quarter of it.
constexpr uint64_t kGramBytes = uint64_t{768} << 20;

struct SparseOptions final : Options {
  int64_t sparsity = 0;  ///< the dictionary knows best what it was trained for
  double error_target = 0;
  std::string coefficients = "f16";  ///< the paper's
  std::string selection = "omp";     ///< the paper's
  bool sort_ids = false;             ///< the paper's form stands for itself, and can be sorted later
  double rounding_error = 0.01;      ///< half of it costs as many bits as a whole atom, which gains more

  std::vector<OptionField> fields() override {
    return {
        {"sparsity", "atoms per signal at most; 0 = as many as the dictionary was trained for", &sparsity, 0,
         1 << 16},
        {"error-target", "stop when the relative error of a signal is this small; 0 = always take all atoms",
         &error_target, 0, 1},
        {"coefficients",
         "type of the coefficients; but for f16 with a scale of 8 bits for each signal",
         &coefficients,
         {},
         {},
         {"f16", "fp8", "e3m4", "i8", "i4"}},
        {"selection",
         "the next atom: the one with the largest correlation (omp), or the one that lowers the error most "
         "(ols: a little better, slower)",
         &selection,
         {},
         {},
         {"omp", "ols"}},
        {"sort-ids", "ids of a code in rising order, their gaps and the coefficients entropy-coded",
         &sort_ids},
        {"rounding-error",
         "with coefficients of type i8: what rounding them may add to a signal's error energy, as a part of "
         "it; the coarser they are, the fewer bits they take once sorted. 0 = as little as there can be",
         &rounding_error, 0, 1}};
  }

  void check() const override {
    if (coefficients != "i8" && rounding_error != SparseOptions{}.rounding_error)
      throw usage_error(
          "rounding-error is {}; coefficients of type {} are always rounded as well as they can "
          "be: it goes with coefficients i8",
          rounding_error, coefficients);
  }
};

/// One dictionary, ready for both directions. What only encoding needs is made when it is needed.
class SideCoder {
 public:
  SideCoder(Dictionary dictionary, Engine* engine)
      : engine_(engine),
        reconstructor_(dictionary.bytes.empty() ? Reconstructor(dictionary.atoms)
                                                : Reconstructor(dictionary.bytes)),
        dictionary_(std::move(dictionary)) {
    if (in_bytes()) dictionary_.atoms = {};
  }

  const Normalization& normalization() const { return dictionary_.normalization; }
  const Reconstructor& reconstructor() const { return reconstructor_; }
  /// The signals of codes; on the device where there is one that takes them.
  void reconstruct(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) {
    const ReconstructionEngine* device = reconstruction_engine();
    if (!device || !device->run(codes, out, finishing)) reconstructor_.run(codes, out, finishing);
  }
  bool in_bytes() const { return !dictionary_.bytes.empty(); }

  /// The codes of signals, where there is a device that takes them.
  bool encode_on_device(MatrixView<const float> signals, const OmpOptions& options, SparseCodes& codes) {
    const PursuitEngine* device = pursuit_engine();
    return device && device->encode(signals, options, codes);
  }

  /// What Reconstructor::weights weighs: the atoms, or their levels as floats.
  MatrixView<const float> atoms() {
    const std::lock_guard lock(mutex_);
    Matrix<float>& atoms = dictionary_.atoms;
    if (atoms.size() == 0) {
      const Matrix<int8_t>& levels = dictionary_.bytes.levels;
      atoms = Matrix<float>(levels.rows(), levels.cols());
      std::copy_n(levels.data(), levels.size(), atoms.data());
    }
    return {atoms.data(), atoms.rows(), atoms.cols()};
  }

  /// The pursuit to use for that many more signals.
  std::shared_ptr<const Omp> omp_for(uint64_t signals, const OmpOptions& options) {
    const std::lock_guard lock(mutex_);
    signals_ += signals;
    if (with_gram_) return with_gram_;
    make_plain();
    const uint64_t bytes = Omp::gram_bytes(plain_->atoms());
    const bool needed = options.selection == "ols";
    if (needed && bytes > kGramBytes)
      throw usage_error(
          "selection ols needs the inner products of all atoms, {} bytes for {} atoms; {} bytes (16384 "
          "atoms) "
          "is the most: take selection omp",
          bytes, plain_->atoms(), kGramBytes);
    const bool pays = bytes <= kGramBytes && plain_->gram_pays(signals_, options.sparsity);
    if (!pays && !needed) return plain_;
    // A copy: other threads may still be coding with the one there is.
    auto with_gram = std::make_shared<Omp>(*plain_);
    with_gram->build_gram();
    plain_ = nullptr;
    return with_gram_ = std::move(with_gram);
  }

  /// For inner products of its atoms.
  std::shared_ptr<const Omp> any_omp() {
    const std::lock_guard lock(mutex_);
    if (with_gram_) return with_gram_;
    make_plain();
    return plain_;
  }

  /// The Gram matrix goes with the last that codes with it.
  void drop_gram() {
    const std::lock_guard lock(mutex_);
    with_gram_ = nullptr;
    signals_ = 0;  // until as many come again, building it anew does not pay
  }

 private:
  void make_plain() {
    if (plain_) return;
    plain_ = in_bytes() ? std::make_shared<const Omp>(floats_of(dictionary_.bytes))
                        : std::make_shared<const Omp>(dictionary_.atoms);
  }

  const ReconstructionEngine* reconstruction_engine() {
    if (!engine_) return nullptr;
    const std::lock_guard lock(mutex_);
    if (!on_device_) on_device_ = engine_->reconstruction(dictionary_);
    return on_device_->get();
  }

  const PursuitEngine* pursuit_engine() {
    if (!engine_) return nullptr;
    const std::lock_guard lock(mutex_);
    if (!pursuit_) pursuit_ = engine_->pursuit(dictionary_);
    return pursuit_->get();
  }

  Engine* engine_;
  std::optional<std::unique_ptr<PursuitEngine>> pursuit_;  // made when there is work, as is the other one
  std::optional<std::unique_ptr<ReconstructionEngine>> on_device_;  // made when something is decoded
  std::mutex mutex_;
  uint64_t signals_ = 0;  // coded so far
  std::shared_ptr<const Omp> plain_, with_gram_;
  Reconstructor reconstructor_;
  Dictionary dictionary_;  // floats of atoms that are kept in bytes are made when they are first needed
};

class SparseCodec final : public Codec {
 public:
  SparseCodec(const SparseOptions& options, SparseBook book, Engine* engine);

  Record parameters() const override;
  int layer_group() const override { return layout_.layers; }
  /// Refuses layers that the dictionary was trained without, before there is any work.
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    (void)book_.part_for(shape.first_layer);
    return form(shape.side).streams();
  }

  /// Signals, as they are and coded (ids, coefficients, residuals), and pairs as stored and sorted; the same
  /// for decoding.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * sizeof(float) + layout_.signals_per_row() * (pairs() * 24 + 40);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;
  uint64_t tokens(const GroupShape& shape, const StreamReader& document) const override {
    return form(shape.side).tokens(document);
  }
  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override;
  void multiply_keys(const GroupShape& shape, const StreamReader& document, uint64_t first,
                     MatrixView<const float> queries, MatrixView<float> out) const override;
  void multiply_values(const GroupShape& shape, const StreamReader& document, uint64_t first,
                       MatrixView<const float> weights, MatrixView<float> out) const override;

 private:
  /// Codes of some tokens, ready to be added up.
  struct Codes {
    std::vector<uint32_t> ids;
    std::vector<float> coefficients, gains;
    std::vector<uint64_t> offsets;
    CodeView view() const { return {ids, coefficients, offsets}; }
  };

  size_t pairs() const { return static_cast<size_t>(options_.sparsity); }  // of a signal, at most
  bool gained(Side side) const {
    return parts_.front()->of(side).normalization().normalize == Normalize::signal;
  }
  SparseForm form(Side side) const;
  SideCoder& coder(const GroupShape& shape) const {
    return parts_[book_.part_for(shape.first_layer)]->of(shape.side);
  }
  std::shared_ptr<const Omp> omp_for(SideCoder& side, uint64_t signals, const OmpOptions& options) const;
  void check_shape(const GroupShape& shape, size_t columns) const;
  void round_jointly(const Omp& omp, CoefficientType type, const SparseCodes& codes,
                     std::span<const float> coefficients, SparsePairs& stored) const;
  Codes read(const GroupShape& shape, const StreamReader& document, uint64_t first, uint64_t count) const;
  bool straight_pays(const GroupShape& shape, size_t vectors, size_t tokens) const;
  void add_rows(Matrix<float> rows, const CodeView& codes, MatrixView<float> out,
                const Finishing& finishing) const;
  bool weigh_atoms_on_device(const Codes& codes, size_t signal, MatrixView<const float> weights,
                             std::span<const size_t> rows, MatrixView<float> of_atoms) const;

  struct Part {
    SideCoder key, value;
    SideCoder& of(Side side) { return side == Side::key ? key : value; }
  };

  SparseOptions options_;
  SparseBook book_;  // without its dictionaries, which the parts have
  SignalLayout layout_;
  uint64_t atoms_ = 0;
  Engine* engine_;
  std::vector<std::unique_ptr<Part>> parts_;  // what they learn while coding is about speed only
  mutable std::mutex mutex_;
  mutable std::list<SideCoder*> with_gram_;  // the one used last in front
};

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
          .coefficients = coefficient_type_from_name(options_.coefficients),
          .sorted = options_.sort_ids};
}

void SparseCodec::check_shape(const GroupShape& shape, size_t columns) const {
  check_width(shape, columns);
  if (shape.layers != layout_.layers || shape.heads != layout_.heads || shape.head_dim != layout_.head_dim)
    throw failed("{} layers of {} heads of {}; the dictionary codes {} of {} of {}", shape.layers,
                 shape.heads, shape.head_dim, layout_.layers, layout_.heads, layout_.head_dim);
  if (shape.first_layer < 0 || shape.first_layer + shape.layers > book_.num_layers)
    throw failed("layers from {} on of a model of {}", shape.first_layer, book_.num_layers);
}

// Encoding
// ---------------------------------------------------------------------------------------------------------

/// The pursuit of one of the dictionaries. Of many dictionaries those used last keep their Gram matrices.
std::shared_ptr<const Omp> SparseCodec::omp_for(SideCoder& side, uint64_t signals,
                                                const OmpOptions& options) const {
  auto omp = side.omp_for(signals, options);
  if (!omp->has_gram()) return omp;
  const std::lock_guard lock(mutex_);
  with_gram_.remove(&side);
  with_gram_.push_front(&side);
  const size_t most = std::max<size_t>(std::size(kSides), kGramBytes / Omp::gram_bytes(atoms_));
  while (with_gram_.size() > most) {
    with_gram_.back()->drop_gram();
    with_gram_.pop_back();
  }
  return omp;
}

/// Rounds the coefficients of each signal, which stand in `coefficients` one signal behind the other, into
/// the words and scales of `stored`.
void SparseCodec::round_jointly(const Omp& omp, CoefficientType type, const SparseCodes& codes,
                                std::span<const float> coefficients, SparsePairs& stored) const {
  const size_t signals = stored.counts.size();
  std::vector<size_t> firsts(signals);
  std::exclusive_scan(stored.counts.begin(), stored.counts.end(), firsts.begin(), size_t{0});
  stored.words.resize(coefficients.size());
  stored.scales.resize(signals);
  struct Scratch {
    JointRounder rounder;
    Matrix<float> products;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(static_cast<size_t>(num_threads()));
  constexpr size_t kSignalsPerPiece = 16;
  parallel_for(signals, kSignalsPerPiece, [&](size_t begin, size_t end, int worker) {
    auto& own = scratch[static_cast<size_t>(worker)];
    if (!own) own.reset(new Scratch{JointRounder(type), Matrix<float>(pairs(), pairs())});
    auto& [rounder, products] = *own;
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

void SparseCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_shape(shape, rows.cols());
  if (rows.rows() == 0) return;
  SideCoder& side = coder(shape);
  const size_t signals = rows.rows() * layout_.signals_per_row();
  std::vector<float> gains(gained(shape.side) ? signals : 0);
  Matrix<float> values(signals, layout_.signal_width());
  to_signals(side.normalization(), layout_, shape.first_layer, rows, values, gains);
  OmpOptions pursuit;
  pursuit.sparsity = options_.sparsity;
  pursuit.error_target = options_.error_target;
  pursuit.selection = options_.selection;
  SparseCodes codes;
  std::shared_ptr<const Omp> omp;
  const bool on_device = side.encode_on_device(values, pursuit, codes);
  if (!on_device) omp = omp_for(side, signals, pursuit), codes = omp->encode(values, pursuit);
  SparsePairs stored{.counts = codes.counts, .ids = {}, .words = {}, .scales = {}, .gains = {}};
  std::vector<float> coefficients;
  for (size_t i = 0; i < signals; ++i) {
    const auto ids = codes.ids.row(i).first(codes.counts[i]);
    const auto row = codes.coefficients.row(i).first(codes.counts[i]);
    stored.ids.insert(stored.ids.end(), ids.begin(), ids.end());
    coefficients.insert(coefficients.end(), row.begin(), row.end());
  }
  const CoefficientType type = coefficient_type_from_name(options_.coefficients);
  if (scale_bits(type) > 0)
    round_jointly(on_device ? *side.any_omp() : *omp, type, codes, coefficients, stored);
  else
    stored.words = coefficients_in_f16(coefficients);
  stored.gains.resize(gains.size());
  narrow(DType::f16, gains, stored.gains);  // they are f16 numbers already
  form(shape.side).append(std::move(stored), document);
}

// Decoding
// ---------------------------------------------------------------------------------------------------------

SparseCodec::Codes SparseCodec::read(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                     uint64_t count) const {
  const SparseForm stored = form(shape.side);
  SparsePairs pairs = stored.read(document, first, count);
  Codes codes;
  codes.coefficients = dequantize_coefficients(stored.coefficients, pairs);
  codes.ids = std::move(pairs.ids);
  codes.offsets.reserve(pairs.counts.size() + 1);
  codes.offsets.push_back(0);
  for (const uint32_t of_signal : pairs.counts) codes.offsets.push_back(codes.offsets.back() + of_signal);
  codes.gains.resize(pairs.gains.size());
  widen(DType::f16, pairs.gains, codes.gains);
  for (size_t i = 0; i < codes.gains.size(); ++i)
    if (!std::isfinite(codes.gains[i]))
      throw bad_input("stream 'gain': that of signal {} is not finite",
                      first * layout_.signals_per_row() + i);
  return codes;
}

void SparseCodec::decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
                         MatrixView<float> out) const {
  check_shape(shape, out.cols());
  const Codes codes = read(shape, document, first, out.rows());
  if (out.rows() == 0) return;
  SideCoder& side = coder(shape);
  if (layout_.per_head) {
    Matrix<float> values(codes.offsets.size() - 1, layout_.signal_width());
    side.reconstruct(codes.view(), values);
    from_signals(side.normalization(), layout_, shape.first_layer, values, codes.gains, out);
    return;
  }
  // A token is one signal, in the order of the row: what from_signals does can be done on the way out.
  const Normalization& normalization = side.normalization();
  std::vector<float> scale;
  Finishing finishing{.gains = codes.gains, .scale = {}, .mean = {}};
  const auto layer = static_cast<size_t>(shape.first_layer), layers = static_cast<size_t>(shape.layers);
  if (normalization.normalize == Normalize::layer) {
    for (size_t i = 0; i < layers; ++i)
      scale.insert(scale.end(), layout_.layer_width(), normalization.layer_scale[layer + i]);
    finishing.scale = scale;
  }
  if (normalization.center() == Center::channel)
    finishing.mean = {normalization.channel_mean.row(layer).data(), layers * layout_.layer_width()};
  side.reconstruct(codes.view(), out, finishing);
}

// Products
// ---------------------------------------------------------------------------------------------------------

/// Columns of atoms or rows that belong to one head of one layer of a group.
struct Head {
  size_t layer, head;
};

/// Heads of a signal, in the order of its channels: all of the group, or those of one head in every layer.
std::vector<Head> heads_of(const SignalLayout& layout, size_t signal) {
  std::vector<Head> heads;
  for (size_t layer = 0; layer < static_cast<size_t>(layout.layers); ++layer) {
    if (layout.per_head) {
      heads.push_back({layer, signal});
      continue;
    }
    for (size_t head = 0; head < static_cast<size_t>(layout.heads); ++head) heads.push_back({layer, head});
  }
  return heads;
}

/// Codes of one signal of each token.
struct SignalCodes {
  std::vector<uint32_t> ids;
  std::vector<float> coefficients;
  std::vector<uint64_t> offsets{0};
};

SignalCodes codes_of_signal(const CodeView& codes, size_t signal, size_t per_row) {
  SignalCodes out;
  for (size_t i = signal; i < codes.signals(); i += per_row) {
    const auto begin = static_cast<ptrdiff_t>(codes.offsets[i]),
               end = static_cast<ptrdiff_t>(codes.offsets[i + 1]);
    out.ids.insert(out.ids.end(), codes.ids.begin() + begin, codes.ids.begin() + end);
    out.coefficients.insert(out.coefficients.end(), codes.coefficients.begin() + begin,
                            codes.coefficients.begin() + end);
    out.offsets.push_back(out.ids.size());
  }
  return out;
}

/// The same, turned round: of each atom, in which tokens it is, rising, and with which coefficients.
SignalCodes codes_by_atom(const CodeView& codes, size_t signal, size_t per_row, size_t atoms) {
  SignalCodes out;
  out.offsets.assign(atoms + 2, 0);  // the end of an atom's pairs so far stands one place further
  for (size_t i = signal; i < codes.signals(); i += per_row)
    for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) ++out.offsets[codes.ids[k] + 2];
  for (size_t atom = 2; atom < out.offsets.size(); ++atom) out.offsets[atom] += out.offsets[atom - 1];
  out.ids.resize(out.offsets.back());
  out.coefficients.resize(out.offsets.back());
  for (size_t i = signal; i < codes.signals(); i += per_row)
    for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) {
      const uint64_t place = out.offsets[codes.ids[k] + 1]++;
      out.ids[place] = static_cast<uint32_t>(i / per_row);
      out.coefficients[place] = codes.coefficients[k];
    }
  out.offsets.pop_back();
  return out;
}

/// Atoms per piece of a product with all atoms: fixed, so that sums are the same for any number of threads.
constexpr size_t kAtomsPerPiece = 512;

/// Columns of the weights of atoms that one thread adds to: a cache line.
constexpr size_t kColumns = 16;

float layer_factor(const Normalization& normalization, size_t layer) {
  return normalization.normalize == Normalize::layer ? normalization.layer_scale[layer] : 1.0f;
}

/// Whether products go without decoding. Per token that costs s * vectors multiplications of floats, and once
/// for all tokens atoms * width * vectors / heads in matrix products; decoding costs s * width, of bytes
/// where atoms are such, and width * vectors / heads.
bool SparseCodec::straight_pays(const GroupShape& shape, size_t vectors, size_t tokens) const {
  const auto width = static_cast<double>(shape.width()), heads = width / shape.head_dim,
             per_head = static_cast<double>(vectors) / heads, count = static_cast<double>(tokens),
             all_pairs = count * static_cast<double>(pairs() * layout_.signals_per_row());
  // Measured (kvcodec_bench_reconstruct): a multiplication of the random accesses of sums costs as much as
  // kInMatrices in matrix products; one of bytes kInBytes of it.
  constexpr double kInMatrices = 6, kInBytes = 0.25;
  const double channels = static_cast<double>(layout_.signal_width());
  const double of_vectors = static_cast<double>(vectors) / static_cast<double>(layout_.signals_per_row());
  const double decoding = all_pairs * channels * (coder(shape).in_bytes() ? kInBytes : 1) +
                          count * width * per_head / kInMatrices;
  const double straight = all_pairs * std::max<double>(of_vectors, kColumns) +
                          static_cast<double>(atoms_) * width * per_head / kInMatrices;
  return straight < decoding;
}

/// Sums of rows as if they were atoms; on the device where there is one that takes them, with the same bits.
void SparseCodec::add_rows(Matrix<float> rows, const CodeView& codes, MatrixView<float> out,
                           const Finishing& finishing) const {
  Dictionary dictionary;
  dictionary.atoms = std::move(rows);
  if (engine_)
    if (const auto device = engine_->reconstruction(dictionary); device && device->run(codes, out, finishing))
      return;
  Reconstructor(dictionary.atoms).run(codes, out, finishing);
}

/// What each atom weighs in each of the sums, (sums, atoms): here the tokens' weights are the rows that are
/// added up, and an atom is what is coded. False: nothing was done.
bool SparseCodec::weigh_atoms_on_device(const Codes& codes, size_t signal, MatrixView<const float> weights,
                                        std::span<const size_t> rows, MatrixView<float> of_atoms) const {
  if (!engine_ || weights.cols() == 0) return false;
  const size_t per_row = layout_.signals_per_row();
  Dictionary tokens;
  tokens.atoms = Matrix<float>(weights.cols(), rows.size());
  for (size_t t = 0; t < weights.cols(); ++t) {
    const float gain = codes.gains.empty() ? 1 : codes.gains[t * per_row + signal];
    for (size_t i = 0; i < rows.size(); ++i) tokens.atoms(t, i) = weights(rows[i], t) * gain;
  }
  const auto device = engine_->reconstruction(tokens);
  if (!device) return false;
  const SignalCodes by_atom = codes_by_atom(codes.view(), signal, per_row, atoms_);
  Matrix<float> sums(atoms_, rows.size());
  if (!device->run({by_atom.ids, by_atom.coefficients, by_atom.offsets}, sums, {})) return false;
  engine_->count(false);  // fused, which the CPU's sums are not
  for (size_t atom = 0; atom < atoms_; ++atom)
    for (size_t i = 0; i < rows.size(); ++i) of_atoms(i, atom) = sums(atom, i);
  return true;
}

void SparseCodec::multiply_keys(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                MatrixView<const float> queries, MatrixView<float> out) const {
  check_products(shape, Side::key, queries, out);
  if (!straight_pays(shape, queries.rows(), out.cols()))
    return Codec::multiply_keys(shape, document, first, queries, out);
  check_shape(shape, shape.width());
  Codes codes = read(shape, document, first, out.cols());
  if (out.cols() == 0) return;
  SideCoder& side = coder(shape);
  codes.coefficients = side.reconstructor().weights(codes.view());
  const MatrixView<const float> atoms = side.atoms();
  const auto d = static_cast<size_t>(shape.head_dim), per_row = layout_.signals_per_row();
  const size_t n = queries.rows() / (static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads));
  for (size_t signal = 0; signal < per_row; ++signal) {
    const std::vector<Head> heads = heads_of(layout_, signal);
    // Products of all atoms with the queries: columns by head, and the queries of a head.
    Matrix<float> products(atoms_, heads.size() * n);
    std::vector<float> means(products.cols());
    std::vector<size_t> rows;  // of queries and out
    for (size_t h = 0; h < heads.size(); ++h)
      for (size_t j = 0; j < n; ++j)
        rows.push_back((heads[h].layer * static_cast<size_t>(shape.heads) + heads[h].head) * n + j);
    parallel_for(atoms_, kAtomsPerPiece, [&](size_t begin, size_t end, int) {
      for (size_t h = 0; h < heads.size(); ++h) {
        const float factor =
            layer_factor(side.normalization(), static_cast<size_t>(shape.first_layer) + heads[h].layer);
        gemm(factor, atoms.rows(begin, end - begin).columns(h * d, d), Transpose::no,
             queries.rows(rows[h * n], n), Transpose::yes, 0,
             products.view().rows(begin, end - begin).columns(h * n, n));
      }
    });
    if (side.normalization().center() == Center::channel)
      for (size_t i = 0; i < rows.size(); ++i) {
        const Head head = heads[i / n];
        const auto mean = side.normalization()
                              .channel_mean.row(static_cast<size_t>(shape.first_layer) + head.layer)
                              .subspan(head.head * d, d);
        double sum = 0;
        for (size_t c = 0; c < d; ++c) sum += double{mean[c]} * queries(rows[i], c);
        means[i] = static_cast<float>(sum);
      }
    std::vector<float> gains;
    for (size_t i = signal; i < codes.gains.size(); i += per_row) gains.push_back(codes.gains[i]);
    Matrix<float> scores(out.cols(), rows.size());
    const Finishing finishing{.gains = gains, .scale = {}, .mean = means};
    if (per_row == 1) {
      add_rows(std::move(products), codes.view(), scores, finishing);
    } else {
      const SignalCodes of_signal = codes_of_signal(codes.view(), signal, per_row);
      add_rows(std::move(products), {of_signal.ids, of_signal.coefficients, of_signal.offsets}, scores,
               finishing);
    }
    for (size_t t = 0; t < scores.rows(); ++t)
      for (size_t i = 0; i < rows.size(); ++i) out(rows[i], t) = scores(t, i);
  }
}

void SparseCodec::multiply_values(const GroupShape& shape, const StreamReader& document, uint64_t first,
                                  MatrixView<const float> weights, MatrixView<float> out) const {
  check_products(shape, Side::value, out, weights);
  if (!straight_pays(shape, out.rows(), weights.cols()))
    return Codec::multiply_values(shape, document, first, weights, out);
  check_shape(shape, shape.width());
  Codes codes = read(shape, document, first, weights.cols());
  SideCoder& side = coder(shape);
  codes.coefficients = side.reconstructor().weights(codes.view());
  const MatrixView<const float> atoms = side.atoms();
  const auto d = static_cast<size_t>(shape.head_dim), per_row = layout_.signals_per_row();
  const size_t n = out.rows() / (static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads));
  for (size_t signal = 0; signal < per_row; ++signal) {
    const std::vector<Head> heads = heads_of(layout_, signal);
    std::vector<size_t> rows;  // of weights and out
    for (size_t h = 0; h < heads.size(); ++h)
      for (size_t j = 0; j < n; ++j)
        rows.push_back((heads[h].layer * static_cast<size_t>(shape.heads) + heads[h].head) * n + j);
    Matrix<float> of_atoms(rows.size(), atoms_);
    const bool weighed = weigh_atoms_on_device(codes, signal, weights, rows, of_atoms);
    const size_t groups = weighed ? 0 : (rows.size() + kColumns - 1) / kColumns;
    // What each atom weighs in each of the sums, some columns at a time.
    parallel_for(groups, 1, [&](size_t begin, size_t end, int) {
      for (size_t group = begin; group < end; ++group) {
        const size_t from = group * kColumns, columns = std::min(kColumns, rows.size() - from);
        Matrix<float> sums(atoms_, kColumns);
        for (size_t t = 0; t < weights.cols(); ++t) {
          const size_t i = t * per_row + signal;
          const float gain = codes.gains.empty() ? 1 : codes.gains[i];
          float factors[kColumns] = {};
          for (size_t c = 0; c < columns; ++c) factors[c] = weights(rows[from + c], t) * gain;
          for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) {
            float* row = sums.row(codes.ids[k]).data();
            const float coefficient = codes.coefficients[k];
            for (size_t c = 0; c < kColumns; ++c) row[c] += coefficient * factors[c];
          }
        }
        for (size_t atom = 0; atom < atoms_; ++atom)
          for (size_t c = 0; c < columns; ++c) of_atoms(from + c, atom) = sums(atom, c);
      }
    });
    parallel_for(heads.size(), 1, [&](size_t begin, size_t end, int) {
      for (size_t h = begin; h < end; ++h) {
        const size_t layer = static_cast<size_t>(shape.first_layer) + heads[h].layer, row = rows[h * n];
        gemm(layer_factor(side.normalization(), layer), of_atoms.view().rows(h * n, n), Transpose::no,
             atoms.columns(h * d, d), Transpose::no, 0, out.rows(row, n));
        if (side.normalization().center() != Center::channel) continue;
        const auto mean = side.normalization().channel_mean.row(layer).subspan(heads[h].head * d, d);
        for (size_t j = 0; j < n; ++j) {
          double sum = 0;
          for (size_t t = 0; t < weights.cols(); ++t) sum += weights(row + j, t);
          for (size_t c = 0; c < d; ++c) out(row + j, c) += static_cast<float>(sum * mean[c]);
        }
      }
    });
  }
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
  const CoefficientType type = coefficient_type_from_name(options.coefficients);
  uint64_t extra = scale_bits(type);
  if (options.error_target > 0) extra += options.sparsity < 256 ? 8 : 16;
  if (book.options.normalize == "signal") extra += 16;
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
  return std::make_unique<SparseCodec>(chosen, std::move(book), context.engine);
}

}  // namespace

CodecEntry sparse_codec() {
  return {.name = "sparse",
          .summary = "sparse codes over a learned dictionary (SparseCache)",
          .capabilities = {.needs_book = true, .multiplies = true, .device_twin = true},
          .book_type = "dictionary",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
